//! The region's file, by a descriptor that is kept or by a new one.

use std::fs::{File, OpenOptions};
use std::path::Path;

use nearstate_model::{Error, Result};

use super::liveness;

/// The region's file for one task.
#[derive(Debug)]
pub(crate) enum RegionFile<'m> {
    /// The descriptor that the mapping keeps.
    Held(&'m File),
    /// A new descriptor.
    Reopened(File),
}

impl RegionFile<'_> {
    pub(crate) const fn file(&self) -> &File {
        match self {
            Self::Held(file) => file,
            Self::Reopened(file) => file,
        }
    }
}

/// How to open the region's file again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReopenSource<'m> {
    pub(crate) path: &'m Path,
    pub(crate) key: (u64, u64),
    /// The number of a descriptor of this process.
    pub(crate) descriptor: i32,
}

impl ReopenSource<'_> {
    pub(crate) fn open(&self) -> Result<File> {
        let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
        if let Ok(anew) = open(self.path)
            && liveness::file_key(&anew)? == self.key
        {
            return Ok(anew);
        }
        let anew = open(Path::new(&format!("/proc/self/fd/{}", self.descriptor)));
        anew.map_err(|error| Error::System {
            detail: format!(
                "{}: the region cannot be opened once more: is it still at its path, and are \
                 there descriptors left (ulimit -n)?",
                self.path.display()
            ),
            errno: error.raw_os_error().unwrap_or(0),
        })
    }
}
