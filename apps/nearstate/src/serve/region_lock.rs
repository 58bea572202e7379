//! The lock that keeps a second node from serving the same region.
//!
//! Keys, watches and keyspace notifications are in the region and reach the clients of every node.
//! Messages of `PUBLISH` are not: with two nodes, a subscriber would silently miss the messages of
//! the other node's clients. The lock belongs to the region's file (`flock`). The kernel releases
//! it with the process.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nearstate_model::{Error, Result};

use super::region_file::FileIdentity;

/// Held while a node serves a region.
#[derive(Debug)]
pub(crate) struct RegionLock {
    file: File,
}

impl RegionLock {
    /// The file that is locked.
    ///
    /// # Errors
    /// `System`.
    pub(crate) fn identity(&self) -> Result<FileIdentity> {
        self.file.metadata().map(|file| FileIdentity::of(&file)).map_err(|error| Error::System {
            detail: "cannot read the file of the region".to_owned(),
            errno: error.raw_os_error().unwrap_or_default(),
        })
    }
}

/// Takes the lock for a node of one region: alone, or together with other nodes that share it.
///
/// # Errors
/// `BadArgument`: another node serves the region, and one of the two does not share it. `System`.
pub(crate) fn acquire_single(path: &Path, is_shared: bool) -> Result<RegionLock> {
    let advice = "messages of PUBLISH would not reach the clients of the other node; stop it, \
                  choose another region, or set region.several_nodes of both nodes";
    acquire_or(path, is_shared, advice)
}

/// Takes the lock for the node of a host of a cluster, which shares its regions with no other one.
///
/// # Errors
/// As [`acquire_single`].
pub(crate) fn acquire(path: &Path, is_shared: bool) -> Result<RegionLock> {
    let advice = "the node of this host runs already: a host of a cluster has one node; stop it \
                  before another one is started";
    acquire_or(path, is_shared, advice)
}

fn acquire_or(path: &Path, is_shared: bool, advice: &str) -> Result<RegionLock> {
    let failed = |error: &std::io::Error| Error::System {
        detail: format!("cannot lock {}", path.display()),
        errno: error.raw_os_error().unwrap_or(0),
    };
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(|e| failed(&e))?;
    let locked = if is_shared { file.try_lock_shared() } else { file.try_lock() };
    match locked {
        Ok(()) => Ok(RegionLock { file }),
        Err(TryLockError::Error(error)) => Err(failed(&error)),
        Err(TryLockError::WouldBlock) => {
            let holder = fs::read_to_string("/proc/locks").ok();
            let inode = file.metadata().map_err(|e| failed(&e))?.ino();
            let pid = holder.and_then(|locks| holder_of(&locks, inode));
            let holder = pid.map_or("another node".to_owned(), |pid| format!("process {pid}"));
            let detail = format!("{holder} already serves {}: {advice}", path.display());
            Err(Error::BadArgument { detail })
        }
    }
}

/// The process that holds a lock on a whole file, by the text of `/proc/locks`.
fn holder_of(locks: &str, inode: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let at = fields.iter().position(|field| *field == "FLOCK")?;
        let (_, own) = fields.get(at + 4)?.rsplit_once(':')?;
        let is_held = fields.get(1) != Some(&"->");
        (is_held && own.parse::<u64>() == Ok(inode)).then(|| fields.get(at + 3)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_holds_the_lock_or_several_share_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("region");
        fs::write(&path, "content").unwrap();
        let alone = acquire_single(&path, false).unwrap();
        for is_shared in [false, true] {
            let error = acquire_single(&path, is_shared).unwrap_err().to_string();
            assert!(error.contains("already serves") && error.contains("PUBLISH"), "{error}");
        }
        let error = acquire(&path, false).unwrap_err().to_string();
        assert!(error.contains("the node of this host runs already"), "{error}");
        assert!(!error.contains("several_nodes"), "{error}");
        drop(alone);
        let shared = [acquire_single(&path, true).unwrap(), acquire_single(&path, true).unwrap()];
        assert!(acquire_single(&path, false).is_err());
        drop(shared);
        drop(acquire_single(&path, false).unwrap());
        assert!(acquire_single(&folder.path().join("none"), false).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"content");
    }

    #[test]
    fn the_holder_is_named() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 00:1a:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 00:1a:78 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 14 00:1a:79 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 13 00:1a:79 0 EOF\n4: FLOCK\n";
        assert_eq!(holder_of(locks, 78), Some(12));
        assert_eq!(holder_of(locks, 79), Some(13));
        assert_eq!(holder_of(locks, 77), None);
    }
}
