//! The region under test and its sessions.

use std::path::{Path, PathBuf};

use nearstate_store::{CreateOptions, Error, Region, Session};

/// Creates a folder, unless it exists.
pub(crate) fn create_folder(folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))
}

/// Removes the folder of a run, unless the run has failed.
pub(crate) fn clean_up<E>(
    result: Result<(), E>,
    folder: &Path,
    failed: impl FnOnce(E) -> String,
) -> Result<(), String> {
    result.map_err(failed)?;
    std::fs::remove_dir_all(folder).map_err(|e| format!("cannot clean up: {e}"))
}

/// Creates an empty region in a folder, in place of an older one; returns its path.
pub(crate) fn create_region(folder: &Path) -> Result<PathBuf, String> {
    create_folder(folder)?;
    let path = folder.join("region");
    if path.exists() {
        std::fs::remove_file(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    drop(Region::create(&path, &options).map_err(|e| format!("create: {e}"))?);
    Ok(path)
}

/// Attaches a region, which recovers dead sessions, and opens a session.
pub(crate) fn open_session(path: &Path) -> Result<Session, String> {
    let region = Region::attach(path).map_err(|e| format!("attach: {e}"))?;
    region.session().map_err(|e| format!("session: {e}"))
}

/// Turns an error of the store into a text that begins with `context`.
pub(crate) fn text(context: &str) -> impl Fn(Error) -> String + '_ {
    move |error| format!("{context}: {error}")
}
