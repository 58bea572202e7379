//! Small trees in a temporary folder, with faults planted for the checks to find.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A tree that is removed when it goes out of scope.
pub(crate) struct Planted {
    root: PathBuf,
}

impl Planted {
    /// An empty tree.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("xtask-{}-{number}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        Self { root }
    }

    /// A workspace: for each folder the folders it depends on. A crate's name is the last part of
    /// its folder's name.
    pub(crate) fn workspace(edges: &[(&str, &[&str])]) -> Self {
        let planted = Self::new();
        let folders: Vec<&str> = edges.iter().map(|(folder, _)| *folder).collect();
        planted
            .file("Cargo.toml", &format!("[workspace]\nresolver = \"3\"\nmembers = {folders:?}"));
        for (folder, used) in edges {
            let name = folder.rsplit('/').next().unwrap();
            let mut manifest = format!(
                "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n\
                 [dependencies]\n"
            );
            for other in *used {
                let up = "../".repeat(folder.matches('/').count() + 1);
                let name = other.rsplit('/').next().unwrap();
                writeln!(manifest, "{name} = {{ path = \"{up}{other}\" }}").unwrap();
            }
            planted.file(&format!("{folder}/Cargo.toml"), &manifest);
            let source = "//! A planted crate.\n#![forbid(unsafe_code)]\n";
            planted.file(&format!("{folder}/src/lib.rs"), source);
        }
        planted
    }

    /// The root of the tree.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Writes a file with its folders.
    pub(crate) fn file(&self, name: &str, text: &str) {
        self.bytes(name, text.as_bytes());
    }

    /// Writes a file with its folders.
    pub(crate) fn bytes(&self, name: &str, bytes: &[u8]) {
        let path = self.root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        // A tree that remains in the temporary folder is harmless.
        fs::remove_dir_all(&self.root).unwrap_or_default();
    }
}
