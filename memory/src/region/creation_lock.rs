//! The creation lock: a lock on one byte of a region's file, which excludes concurrent creators.
//! Attaching takes no lock.
//!
//! Every wait is bounded. A process that holds the lock and makes no progress is named.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nearstate_model::{Error, Holder, Result};

use crate::region::liveness::file_key;
use crate::system::{self, LockMode, failure, lock_byte};

/// The byte that a creator locks.
const CREATION_BYTE: u64 = 1 << 61;

/// How long a process waits for a creator that makes no progress. Without `populate` a creation
/// takes less than a millisecond; with it, the file grows all the time.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// How often a waiting process looks.
const POLL_EVERY: Duration = Duration::from_millis(1);

/// The creation lock, until it is dropped.
#[derive(Debug)]
pub(crate) struct CreationLock {
    /// A second descriptor of the open file that holds the lock.
    file: File,
}

impl CreationLock {
    /// Takes the lock if it is free.
    pub(crate) fn try_acquire(file: &File) -> Result<Option<Self>> {
        let file = file.try_clone().map_err(|_| failure("cannot copy a descriptor"))?;
        Ok(lock_byte(file.as_fd(), CREATION_BYTE, LockMode::Try)?.then_some(Self { file }))
    }

    /// The file that is locked.
    pub(crate) const fn file(&self) -> &File {
        &self.file
    }

    /// Waits for the lock of a complete region, at most a second. That its file grows is no
    /// progress of the process that holds the lock: any member makes it grow.
    pub(crate) fn acquire(file: &File) -> Result<Self> {
        let mut wait = CreationWait::fixed();
        loop {
            if let Some(lock) = Self::try_acquire(file)? {
                return Ok(lock);
            }
            wait.pause(file)?;
        }
    }
}

impl Drop for CreationLock {
    fn drop(&mut self) {
        // Explicit, because a forked child may have a copy of the descriptor. A failure has no
        // effect on others: the lock ends with the open file.
        let _ = lock_byte(self.file.as_fd(), CREATION_BYTE, LockMode::Release);
    }
}

/// Calls `work` under the lock if that is free, without another descriptor: for a process that can
/// open none.
pub(crate) fn with_lock_of(file: &File, work: impl FnOnce() -> Result<()>) -> Result<()> {
    if !lock_byte(file.as_fd(), CREATION_BYTE, LockMode::Try)? {
        return Ok(());
    }
    let done = work();
    lock_byte(file.as_fd(), CREATION_BYTE, LockMode::Release)?;
    done
}

/// True if a process is creating the region.
pub(crate) fn is_held(file: &File) -> Result<bool> {
    system::is_byte_write_locked(file.as_fd(), CREATION_BYTE)
}

/// A bounded wait for the process that holds the creation lock.
#[derive(Debug)]
pub(crate) struct CreationWait {
    /// When the wait began, or the file last grew.
    since: Instant,
    /// The size of the file, and how much of it is allocated. `None`: that does not matter.
    size: Option<(u64, u64)>,
}

impl CreationWait {
    /// For the creator of a file that is no region yet: it makes the file grow.
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), size: Some((0, 0)) }
    }

    /// At most a second.
    fn fixed() -> Self {
        Self { since: Instant::now(), size: None }
    }

    /// True if the wait is over. `found` is the size of the file at `now`.
    fn is_over(&mut self, found: (u64, u64), now: Instant) -> bool {
        if let Some(size) = &mut self.size
            && *size != found
        {
            (*size, self.since) = (found, now);
        }
        now.duration_since(self.since) > WAIT_MAX
    }

    /// Waits a moment.
    ///
    /// # Errors
    /// `Stalled` after a second, or if the file has not grown for a second.
    pub(crate) fn pause(&mut self, file: &File) -> Result<()> {
        let found = file.metadata().map_err(|_| failure("cannot stat the region's file"))?;
        if self.is_over((found.len(), found.blocks()), Instant::now()) {
            return Err(Error::Stalled { holder: holder(file)? });
        }
        std::thread::sleep(POLL_EVERY);
        Ok(())
    }
}

/// The process that holds the creation lock, as far as this process may see it.
fn holder(file: &File) -> Result<Holder> {
    let (device, inode) = file_key(file)?;
    let (major, minor) = (libc::major(device), libc::minor(device));
    let wanted = format!("{major:02x}:{minor:02x}:{inode} {CREATION_BYTE} {CREATION_BYTE}");
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten();
    for folder in folders {
        let pid = folder.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid else { continue };
        if pid != std::process::id() && has_lock(&folder.path(), &wanted) {
            let name = fs::read_to_string(folder.path().join("comm")).unwrap_or_default();
            return Ok(Holder { pid, name: name.trim_end().to_owned() });
        }
    }
    Ok(Holder { pid: 0, name: "not visible: see /proc/locks".to_owned() })
}

/// True if an open file of a process has a lock whose line in `/proc/PID/fdinfo` ends like this.
fn has_lock(process: &Path, wanted: &str) -> bool {
    let files = fs::read_dir(process.join("fdinfo")).into_iter().flatten().flatten();
    files.filter_map(|file| fs::read_to_string(file.path()).ok()).any(|text| {
        let is_it = |line: &str| line.contains("OFDLCK") && line.trim_end().ends_with(wanted);
        text.lines().any(is_it)
    })
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds after which a wait is over while the file grows for `growing_ms`.
    fn over_after(mut wait: CreationWait, growing_ms: u64) -> u64 {
        let since = wait.since;
        let mut times = 0..;
        let is_over =
            |ms: &u64| wait.is_over((1, *ms.min(&growing_ms)), since + Duration::from_millis(*ms));
        times.find(is_over).unwrap()
    }

    #[test]
    fn only_the_wait_for_a_creator_goes_on_while_the_file_grows() {
        assert_eq!(over_after(CreationWait::new(), 5000), 6001);
        assert_eq!(over_after(CreationWait::new(), 0), 1001);
        assert_eq!(over_after(CreationWait::fixed(), 5000), 1001);
    }
}
