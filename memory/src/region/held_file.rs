//! The descriptor that a mapping keeps, and which file it is.

use std::fs::File;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::MetadataExt;
use std::time::UNIX_EPOCH;

use nearstate_model::{Result, invariant};
use xxhash_rust::xxh3::xxh3_64;

use crate::region::liveness::file_key;
use crate::system::failure;

/// The region's descriptor, while it is valid.
#[derive(Debug)]
pub(crate) struct HeldFile {
    file: Option<File>,
    key: (u64, u64),
    identity: u64,
}

impl HeldFile {
    pub(crate) fn new(file: File) -> Result<Self> {
        let (key, identity) = (file_key(&file)?, identity_of(&file)?);
        invariant!(identity != 0 && identity < 1 << 48, "a sealed word has no room for {identity}");
        Ok(Self { file: Some(file), key, identity })
    }

    /// Device and inode.
    pub(crate) const fn key(&self) -> (u64, u64) {
        self.key
    }

    /// Which file of its file system it is, in 48 bits, and not 0: a copy of a file has another
    /// one, also under the same name. The device does not count: that of an overlay changes with
    /// each mount.
    pub(crate) const fn identity(&self) -> u64 {
        self.identity
    }

    /// The file, unless its descriptor was closed.
    pub(crate) fn held(&self) -> Option<&File> {
        self.file.as_ref().filter(|file| file_key(file).is_ok_and(|key| key == self.key))
    }
}

impl Drop for HeldFile {
    /// Closes the descriptor only if it still refers to the region: the number may be another file
    /// now.
    fn drop(&mut self) {
        if self.held().is_none()
            && let Some(file) = self.file.take()
        {
            let _ = file.into_raw_fd();
        }
    }
}

/// The inode, and the time of its birth, because a file system may use the number of a removed
/// file again. One that keeps no such time (hugetlbfs) counts its inodes up.
fn identity_of(file: &File) -> Result<u64> {
    let data = file.metadata().map_err(|_| failure("cannot stat the region's file"))?;
    let born = data.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let born_ns = born.map_or(0, |since| since.as_nanos());
    let mut bytes = [0; 24];
    let (inode, time) = bytes.split_at_mut(8);
    inode.copy_from_slice(&data.ino().to_le_bytes());
    time.copy_from_slice(&born_ns.to_le_bytes());
    Ok((xxh3_64(&bytes) >> 16) | 1)
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::fixture::TestRegionPath;

    #[test]
    fn a_file_keeps_its_identity_and_a_copy_has_another_one() {
        let files = ["bound", "copied", "moved"].map(TestRegionPath::new);
        let [path, copy, moved] = files.each_ref().map(TestRegionPath::path);
        let identity = |path| identity_of(&File::open(path).unwrap()).unwrap();
        fs::write(path, "a").unwrap();
        let first = identity(path);
        fs::write(path, "content and length do not count").unwrap();
        assert_eq!(identity(path), first);
        fs::copy(path, copy).unwrap();
        assert_ne!(identity(copy), first);
        // A new name is the same file; the old name has the copy.
        fs::rename(path, moved).unwrap();
        fs::rename(copy, path).unwrap();
        assert_eq!(identity(moved), first);
        assert_ne!(identity(path), first);
    }
}
