//! A region that a node has given, and when to look whether node and file are still there.

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

/// How often the connection is looked at by which a region came, and once that has ended the
/// region's file: a look is a system call or two, and the clock of those between is five
/// nanoseconds. So long records may be written to a file that was removed; to one that has kept its
/// name while the next node took another, until the next attempt to reach that node.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// After an attempt to reach the next node that failed, so many times as long none is made: who
/// works on the region waits for a twentieth of its time at the most. The looks go on meanwhile.
const REST: u32 = 20;

/// The longest rest: the next node may have another file, and what is written meanwhile is in ours.
const REST_MAX: Duration = Duration::from_secs(1);

/// A region that a node has given.
pub(super) struct Mapped {
    pub(super) storage: RegionStorage,
    /// While it is mapped no other file is this one.
    pub(super) file: FileId,
    /// The connection to the node that has given it; `None` once that has ended.
    node: Option<UnixStream>,
    times: Times,
}

/// Device and inode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId(u64, u64);

impl FileId {
    /// That of a region's file, which is not attached yet.
    pub(super) fn of(files: &RegionFiles) -> io::Result<Self> {
        let found = File::from(files.file.try_clone()?).metadata()?;
        Ok(Self(found.dev(), found.ino()))
    }
}

/// What a look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// It was not time for a look, or all is well, or there is nothing to do about it yet.
    Fine,
    /// The node has ended, and it is time to reach the next one.
    Left,
    /// The node has ended, and the file has no name any more: what is written there is for nobody.
    Removed,
}

impl Mapped {
    pub(super) fn new(files: RegionFiles, name: &Path, node: UnixStream) -> Result<Self> {
        let file = FileId::of(&files)
            .and_then(|found| node.set_nonblocking(true).map(|()| found))
            .map_err(|error| {
                let detail = format!("{}: {error}", name.display());
                Error::backend(ErrorKind::BackendFailure, detail)
            })?;
        let storage = RegionStorage::on(Region::attach_files(files, name)?)?;
        Ok(Self { storage, file, node: Some(node), times: Times::new(since_boot()) })
    }

    /// Looks whether the node and the file are there, if it is time.
    #[inline]
    pub(super) fn look(&mut self) -> Look {
        if since_boot() < self.times.look_at { Look::Fine } else { self.look_now() }
    }

    #[cold]
    fn look_now(&mut self) -> Look {
        let now = since_boot();
        self.times.looked(now);
        if self.node.as_mut().is_some_and(is_there) {
            return Look::Fine;
        }
        self.node = None;
        match (self.is_removed(), now >= self.times.ask_at) {
            (true, _) => Look::Removed,
            (false, true) => Look::Left,
            (false, false) => Look::Fine,
        }
    }

    /// True if the region's file has no name any more.
    pub(super) fn is_removed(&self) -> bool {
        let files = self.storage.region().files().ok();
        let found = files.and_then(|files| File::from(files.file).metadata().ok());
        found.is_some_and(|found| found.nlink() == 0)
    }

    /// A node has given the same file again.
    pub(super) fn met(&mut self, node: UnixStream) {
        // One that would block is taken for one that has ended, at the next look.
        self.node = node.set_nonblocking(true).is_ok().then_some(node);
    }

    /// No node was there, from `begun` to now.
    pub(super) fn missed(&mut self, begun: Duration) {
        self.times.missed(begun, since_boot());
    }
}

/// Nothing was asked, so nothing comes but the end.
fn is_there(node: &mut UnixStream) -> bool {
    match node.read(&mut [0; 64]) {
        Ok(bytes) => bytes > 0,
        Err(error) => {
            matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        }
    }
}

/// When something is done the next time, of [`since_boot`].
#[derive(Debug)]
struct Times {
    /// A look at the node, or at the file.
    look_at: Duration,
    /// An attempt to reach the next node.
    ask_at: Duration,
}

impl Times {
    fn new(now: Duration) -> Self {
        Self { look_at: now + LOOK_EVERY, ask_at: now }
    }

    fn looked(&mut self, now: Duration) {
        self.look_at = now + LOOK_EVERY;
    }

    fn missed(&mut self, begun: Duration, now: Duration) {
        self.looked(now);
        let rest = now.saturating_sub(begun).saturating_mul(REST);
        self.ask_at = now + rest.min(REST_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_that_took_long_is_not_made_soon_again_and_the_file_is_looked_at_all_the_while() {
        let ms = Duration::from_millis;
        let mut times = Times::new(ms(1000));
        assert_eq!((times.look_at, times.ask_at), (ms(1100), ms(1000)));
        times.looked(ms(1150));
        times.missed(ms(1150), ms(1350));
        assert_eq!((times.look_at, times.ask_at), (ms(1450), ms(2350)));
        times.looked(ms(1450));
        assert_eq!((times.look_at, times.ask_at), (ms(1550), ms(2350)));
        times.missed(ms(5400), ms(5400));
        assert_eq!((times.look_at, times.ask_at), (ms(5500), ms(5400)));
    }
}
