//! A copy of a region at one instant, while the process that uses it is stopped. Written to another
//! file, it is the region that a kill at this instant would leave: no process holds a lock of it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

use crate::error_context::ErrorContext as _;

/// The bytes of a sparse file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RegionCopy {
    bytes: u64,
    /// What is not a hole.
    parts: Vec<(u64, Vec<u8>)>,
}

impl RegionCopy {
    pub(crate) fn of(path: &Path) -> Result<Self, String> {
        Self::read(path).context(path.display())
    }

    fn read(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let mut parts = Vec::new();
        let mut from = 0;
        while let Some(start) = seek(&file, from, Whence::SeekData)? {
            let end = seek(&file, start, Whence::SeekHole)?.unwrap_or(bytes);
            let mut part = vec![0; usize::try_from(end - start).map_err(io::Error::other)?];
            file.read_exact_at(&mut part, start)?;
            parts.push((start, part));
            from = end;
        }
        Ok(Self { bytes, parts })
    }

    /// Writes a file with this content, in place of an older one.
    pub(crate) fn write(&self, path: &Path) -> Result<(), String> {
        let write = || {
            if path.exists() {
                std::fs::remove_file(path)?;
            }
            let mut options = OpenOptions::new();
            let file = options.write(true).create_new(true).mode(0o600).open(path)?;
            file.set_len(self.bytes)?;
            self.parts.iter().try_for_each(|(at, part)| file.write_all_at(part, *at))
        };
        write().context(path.display())
    }
}

/// Where the next data or the next hole begins; `None` behind the last one.
fn seek(file: &File, from: u64, whence: Whence) -> io::Result<Option<u64>> {
    match lseek(file, from.cast_signed(), whence) {
        Ok(at) => Ok(Some(at.cast_unsigned())),
        Err(Errno::ENXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
