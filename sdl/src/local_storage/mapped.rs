//! A region that a node granted, and periodic checks of the node and the region's file.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nearstate_local_transport::RegionFiles;
use nearstate_store::{Region, since_boot};

use crate::error::{Error, ErrorKind, Result};
use crate::region_storage::RegionStorage;

/// Interval of checks: of the connection over which the region was granted, and after its end of
/// the region's file. A check costs one or two system calls; reading the clock costs five
/// nanoseconds. Records may be written to a removed file for this long; and to a file that still
/// exists while the next node uses another one, until the next attempt to reach that node.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Pause after a failed attempt to reach the next node, as a multiple of its duration: operations
/// on the region wait for at most a twentieth of their time. Checks continue meanwhile.
const PAUSE_FACTOR: u32 = 20;

/// The longest pause: the next node may use another file, and writes go to the old one meanwhile.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A region that a node granted.
pub(super) struct MappedRegion {
    pub(super) storage: RegionStorage,
    /// Unique while the region is mapped.
    pub(super) file: FileId,
    /// The connection to the node that granted the region; `None` after its end.
    node: Option<UnixStream>,
    times: CheckTimes,
}

/// Device and inode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId(u64, u64);

impl FileId {
    /// The identity of a region's file that is not attached yet.
    pub(super) fn of(files: &RegionFiles) -> io::Result<Self> {
        let found = File::from(files.file.try_clone()?).metadata()?;
        Ok(Self(found.dev(), found.ino()))
    }
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MappedState {
    /// No check was due, or the node runs, or no attempt to reach the next node is due.
    Current,
    /// The node has ended, and an attempt to reach the next one is due.
    Left,
    /// The node has ended, and the file was removed: writes to it would be lost.
    Removed,
}

impl MappedRegion {
    pub(super) fn new(files: RegionFiles, name: &Path, node: UnixStream) -> Result<Self> {
        let file = FileId::of(&files)
            .and_then(|found| node.set_nonblocking(true).map(|()| found))
            .map_err(|error| {
                let detail = format!("{}: {error}", name.display());
                Error::backend(ErrorKind::BackendFailure, detail)
            })?;
        let storage = RegionStorage::on(Region::attach_files(files, name)?)?;
        Ok(Self { storage, file, node: Some(node), times: CheckTimes::new(since_boot()) })
    }

    /// Checks the node and the file, if a check is due.
    #[inline]
    pub(super) fn check(&mut self) -> MappedState {
        if since_boot() < self.times.check_at { MappedState::Current } else { self.check_now() }
    }

    #[cold]
    fn check_now(&mut self) -> MappedState {
        let now = since_boot();
        self.times.checked(now);
        if self.node.as_mut().is_some_and(is_connected) {
            return MappedState::Current;
        }
        self.node = None;
        match (self.is_removed(), now >= self.times.connect_at) {
            (true, _) => MappedState::Removed,
            (false, true) => MappedState::Left,
            (false, false) => MappedState::Current,
        }
    }

    /// True if the region's file was removed.
    pub(super) fn is_removed(&self) -> bool {
        let files = self.storage.region().files().ok();
        let found = files.and_then(|files| File::from(files.file).metadata().ok());
        found.is_some_and(|found| found.nlink() == 0)
    }

    /// A node granted the same file again.
    pub(super) fn renewed(&mut self, node: UnixStream) {
        // A socket that may block is taken for an ended one at the next check.
        self.node = node.set_nonblocking(true).is_ok().then_some(node);
    }

    /// An attempt that started at `start` reached no node.
    pub(super) fn missed(&mut self, start: Duration) {
        self.times.missed(start, since_boot());
    }
}

/// No request was sent, so the only input is the end.
fn is_connected(node: &mut UnixStream) -> bool {
    match node.read(&mut [0; 64]) {
        Ok(bytes) => bytes > 0,
        Err(error) => {
            matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        }
    }
}

/// Times of the next actions, as [`since_boot`].
#[derive(Debug)]
struct CheckTimes {
    /// The next check.
    check_at: Duration,
    /// The next attempt to reach a node.
    connect_at: Duration,
}

impl CheckTimes {
    fn new(now: Duration) -> Self {
        Self { check_at: now + CHECK_INTERVAL, connect_at: now }
    }

    fn checked(&mut self, now: Duration) {
        self.check_at = now + CHECK_INTERVAL;
    }

    fn missed(&mut self, start: Duration, now: Duration) {
        self.checked(now);
        let pause = now.saturating_sub(start).saturating_mul(PAUSE_FACTOR);
        self.connect_at = now + pause.min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_failed_attempt_is_followed_by_a_long_pause_while_checks_continue() {
        let ms = Duration::from_millis;
        let mut times = CheckTimes::new(ms(1000));
        assert_eq!((times.check_at, times.connect_at), (ms(1100), ms(1000)));
        times.checked(ms(1150));
        times.missed(ms(1150), ms(1350));
        assert_eq!((times.check_at, times.connect_at), (ms(1450), ms(2350)));
        times.checked(ms(1450));
        assert_eq!((times.check_at, times.connect_at), (ms(1550), ms(2350)));
        times.missed(ms(5400), ms(5400));
        assert_eq!((times.check_at, times.connect_at), (ms(5500), ms(5400)));
    }
}
