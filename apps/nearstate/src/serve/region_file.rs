//! Notices when the file of a served region loses its name.
//!
//! Nothing happens to the memory then: the node and attached processes go on. But a process that
//! attaches later finds no region, or creates another one, and the records are gone when the last
//! process ends. Causes are cleaners of `/dev/shm`, above all systemd-logind, which removes the
//! files of users that log out (`RemoveIPC`).

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nearstate_model::{Error, Result};

/// How often the path is looked at. Notices of the kernel would not tell of a directory that was
/// renamed, or of another file system in its place.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// The device and the number of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity(u64, u64);

impl FileIdentity {
    pub(crate) fn of(file: &fs::Metadata) -> Self {
        Self(file.dev(), file.ino())
    }
}

/// The file of a region that is served.
#[derive(Debug)]
pub(crate) struct ServedFile {
    path: PathBuf,
    identity: FileIdentity,
    is_present: AtomicBool,
}

impl ServedFile {
    /// Watches the path of a region's file until the process ends. `on_change` is called, on a
    /// thread of its own, with whether the path names the file.
    ///
    /// # Errors
    /// `System`: no thread can be started.
    pub(crate) fn watch(
        path: &Path,
        identity: FileIdentity,
        on_change: impl Fn(bool) + Send + 'static,
    ) -> Result<Arc<Self>> {
        let is_present = AtomicBool::new(true);
        let file = Arc::new(Self { path: path.to_owned(), identity, is_present });
        let watched = Arc::clone(&file);
        let look = move || {
            loop {
                let is_present = watched.look();
                if watched.is_present.swap(is_present, Ordering::AcqRel) != is_present {
                    on_change(is_present);
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
        };
        let started = std::thread::Builder::new().name("ns-region-file".to_owned()).spawn(look);
        started.map_err(|error: io::Error| Error::System {
            detail: "cannot start a thread".to_owned(),
            errno: error.raw_os_error().unwrap_or_default(),
        })?;
        Ok(file)
    }

    fn look(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|file| FileIdentity::of(&file) == self.identity)
    }

    /// Whether the path still names the file.
    pub(crate) fn is_present(&self) -> bool {
        self.is_present.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    const LONG: Duration = Duration::from_secs(60);

    fn watched(path: &Path) -> (Arc<ServedFile>, Receiver<bool>) {
        let (sender, changes) = channel();
        let identity = FileIdentity::of(&fs::metadata(path).unwrap());
        let file = ServedFile::watch(path, identity, move |is_present| {
            sender.send(is_present).unwrap();
        });
        (file.unwrap(), changes)
    }

    #[test]
    fn a_file_that_is_removed_or_replaced_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("region"), folder.path().join("other"));
        fs::write(&path, "content").unwrap();
        // Regions are mapped: the file outlives its name, and no other one gets its number.
        let _used = fs::File::open(&path).unwrap();
        let (file, changes) = watched(&path);
        assert!(file.is_present());
        fs::rename(&path, &other).unwrap();
        assert_eq!(changes.recv_timeout(LONG), Ok(false));
        assert!(!file.is_present());
        fs::rename(&other, &path).unwrap();
        assert_eq!(changes.recv_timeout(LONG), Ok(true));
        // Another file in its place is not the region's.
        fs::write(&other, "content").unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(changes.recv_timeout(LONG), Ok(false));
    }
}
