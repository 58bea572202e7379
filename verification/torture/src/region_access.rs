//! The region under test and its sessions.

use std::path::{Path, PathBuf};

use nearstate_store::{CreateOptions, Error, Region, Schema, Session};

use crate::error_context::ErrorContext as _;

/// Creates a folder, unless it exists.
pub(crate) fn create_folder(folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).context(folder.display())
}

/// Removes the folder of a run, unless the run has failed.
pub(crate) fn clean_up<E>(
    result: Result<(), E>,
    folder: &Path,
    failed: impl FnOnce(E) -> String,
) -> Result<(), String> {
    result.map_err(failed)?;
    std::fs::remove_dir_all(folder).context("cannot clean up")
}

/// Creates an empty region in a folder, in place of an older one; returns its path.
pub(crate) fn create_region(folder: &Path) -> Result<PathBuf, String> {
    create_region_with(folder, None)
}

/// As [`create_region`], with this seed of the hash of keys.
pub(crate) fn create_region_with(folder: &Path, hash_seed: Option<u64>) -> Result<PathBuf, String> {
    create_folder(folder)?;
    let path = folder.join("region");
    if path.exists() {
        std::fs::remove_file(&path).context(path.display())?;
    }
    let options = CreateOptions { bytes_max: 64 << 20, hash_seed, ..CreateOptions::default() };
    drop(Region::create(&path, &options).context("create")?);
    Ok(path)
}

/// Attaches a region, which recovers dead sessions, and opens a session.
pub(crate) fn open_session(path: &Path) -> Result<Session, String> {
    let region = Region::attach(path).context("attach")?;
    region.session().context("session")
}

/// Puts records into a namespace until the region is full.
pub(crate) fn fill(session: &Session, name: &str, bytes: usize) -> Result<(), String> {
    let namespace = session.namespace(name, &Schema::default()).context(name)?;
    let value = vec![b'x'; bytes];
    for number in 0_u32.. {
        if !unless_full(session.put(namespace, &number.to_be_bytes(), &value))? {
            break;
        }
    }
    Ok(())
}

/// False if a write is refused because the region is full.
pub(crate) fn unless_full<T>(done: Result<T, Error>) -> Result<bool, String> {
    match done {
        Ok(_) => Ok(true),
        Err(Error::Full { .. }) => Ok(false),
        Err(error) => Err(error.to_string()),
    }
}
