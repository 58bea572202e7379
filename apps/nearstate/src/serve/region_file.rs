//! Notices when the file of a served region loses its name.
//!
//! Nothing happens to the memory then: the node and attached processes go on. But a process that
//! attaches later finds no region, or creates another one, and the records are gone when the last
//! process ends. Causes are cleaners of `/dev/shm`, above all systemd-logind, which removes the
//! files of users that log out (`RemoveIPC`).

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nearstate_model::{Error, Result};
use rustix::fs::inotify;

/// How often the path is looked at if the kernel does not tell of changes: users have a limited
/// number of inotify instances.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// For some events, which have no names because the file itself is watched.
const EVENT_BYTES: usize = 1024;

/// The file of a region that is served.
#[derive(Debug)]
pub(crate) struct ServedFile {
    path: PathBuf,
    /// The device and the number of the file.
    identity: (u64, u64),
    is_present: AtomicBool,
}

/// The device and the number of the file at a path. The kernel tells that a name was removed before
/// the path stops naming the file, but behind the count of its names.
fn identity_of(path: &Path) -> io::Result<(u64, u64)> {
    let file = fs::metadata(path)?;
    if file.nlink() == 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok((file.dev(), file.ino()))
}

impl ServedFile {
    /// Watches the file until the process ends. `on_change` is called, on a thread of its own, with
    /// whether the path names the file.
    ///
    /// # Errors
    /// `System`: the file cannot be read, or no thread can be started.
    pub(crate) fn watch(
        path: &Path,
        on_change: impl Fn(bool) + Send + 'static,
    ) -> Result<Arc<Self>> {
        let failed = |what: &str, error: &io::Error| Error::System {
            detail: format!("{what} ({error})"),
            errno: error.raw_os_error().unwrap_or_default(),
        };
        // Before the identity is read, so that no change is missed.
        let changes = changes_of(path).ok();
        let identity = identity_of(path)
            .map_err(|error| failed(&format!("cannot read {}", path.display()), &error))?;
        let is_present = AtomicBool::new(true);
        let file = Arc::new(Self { path: path.to_owned(), identity, is_present });
        let watched = Arc::clone(&file);
        let started =
            std::thread::Builder::new().name("ns-region-file".to_owned()).spawn(move || {
                let mut changes = changes;
                loop {
                    let is_present = watched.look();
                    if watched.is_present.swap(is_present, Ordering::AcqRel) != is_present {
                        on_change(is_present);
                    }
                    if !changes.as_ref().is_some_and(wait) {
                        changes = None;
                        std::thread::sleep(LOOK_INTERVAL);
                    }
                }
            });
        started.map_err(|error| failed("cannot start a thread", &error))?;
        Ok(file)
    }

    fn look(&self) -> bool {
        identity_of(&self.path).is_ok_and(|identity| identity == self.identity)
    }

    /// Whether the path still names the file.
    pub(crate) fn is_present(&self) -> bool {
        self.is_present.load(Ordering::Acquire)
    }
}

/// Tells when the file gets another name or loses one.
fn changes_of(path: &Path) -> rustix::io::Result<OwnedFd> {
    let changes = inotify::init(inotify::CreateFlags::CLOEXEC)?;
    // The removal of a name of a file that is in use changes its attributes.
    let kinds = inotify::WatchFlags::ATTRIB | inotify::WatchFlags::MOVE_SELF;
    inotify::add_watch(&changes, path, kinds)?;
    Ok(changes)
}

/// Waits for the next change. False: there are none to wait for.
fn wait(changes: &OwnedFd) -> bool {
    let mut buffer = [MaybeUninit::uninit(); EVENT_BYTES];
    inotify::Reader::new(changes, &mut buffer)
        .next()
        .is_ok_and(|event| !event.events().contains(inotify::ReadFlags::IGNORED))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    const LONG: Duration = Duration::from_secs(60);

    fn watched(path: &Path) -> (Arc<ServedFile>, Receiver<bool>) {
        let (sender, changes) = channel();
        let file = ServedFile::watch(path, move |is_present| sender.send(is_present).unwrap());
        (file.unwrap(), changes)
    }

    #[test]
    fn a_file_that_is_removed_or_replaced_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("region"), folder.path().join("other"));
        fs::write(&path, "content").unwrap();
        // Regions are mapped: the file outlives its name.
        let _used = fs::File::open(&path).unwrap();
        let (file, changes) = watched(&path);
        assert!(file.is_present());
        fs::rename(&path, &other).unwrap();
        assert_eq!(changes.recv_timeout(LONG), Ok(false));
        assert!(!file.is_present());
        fs::rename(&other, &path).unwrap();
        assert_eq!(changes.recv_timeout(LONG), Ok(true));
        fs::remove_file(&path).unwrap();
        assert_eq!(changes.recv_timeout(LONG), Ok(false));

        // Another file in its place is not the region's.
        fs::write(&path, "content").unwrap();
        let (file, changes) = watched(&path);
        fs::write(&other, "content").unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(changes.recv_timeout(LONG), Ok(false));
        assert!(!file.is_present());
    }

    #[test]
    fn a_path_without_a_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = ServedFile::watch(&folder.path().join("none"), |_| ()).unwrap_err().to_string();
        assert!(error.contains("cannot read") && error.contains("none"), "{error}");
    }
}
