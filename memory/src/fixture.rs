//! A region file for tests that create one.

use std::path::{Path, PathBuf};

/// The path of a region in memory, which dropping removes.
pub(crate) struct TestRegionPath(PathBuf);

impl TestRegionPath {
    /// A path of this process with `name` in it, on `/dev/shm` if there is one.
    pub(crate) fn new(name: &str) -> Self {
        let base = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
        Self(Path::new(base).join(format!("nearstate-{name}-{}", std::process::id())))
    }

    /// The path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TestRegionPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
