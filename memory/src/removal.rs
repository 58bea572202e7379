//! Drops a region: removes its file.

use std::fs;
use std::path::{Path, PathBuf};

use nearstate_model::{Error, Result};

use crate::region::creation_lock::CreationLock;
use crate::region::file::{AttachOptions, Region};
use crate::region::opened_file::{OpenedFile, is_begun, is_named, open_file};
use crate::region::owner;

/// The files that were removed with a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedRegion {
    /// The region's file.
    pub file: PathBuf,
    /// Symbolic links that led to the file, if the path was one.
    pub links: Vec<PathBuf>,
}

impl Region {
    /// Drops a region: removes its file, and the path if that is a symbolic link. Its memory is
    /// released when the last process has unmapped it. No session opens in it afterwards. Also
    /// removes the file of a region whose creation was interrupted.
    ///
    /// # Errors
    /// `InUse` while a living process has a session, `Stalled` while another process that drops the
    /// region is stopped, `BadArgument` if it belongs to another user, `NotARegion`, `System`.
    pub fn remove(path: &Path) -> Result<RemovedRegion> {
        Self::remove_with(path, &AttachOptions::default())
    }

    /// As [`Region::remove`], with options.
    ///
    /// # Errors
    /// As [`Region::remove`].
    pub fn remove_with(path: &Path, options: &AttachOptions) -> Result<RemovedRegion> {
        let resolved = owner::resolve(path, options.any_owner)?;
        if !remove_interrupted(path, &resolved.file, options)? {
            Self::attach_with(path, options)?.remove_file(&resolved.file)?;
        }
        // The links lead nowhere now.
        resolved.links.iter().try_for_each(|link| remove(link))?;
        Ok(RemovedRegion { file: resolved.file, links: resolved.links })
    }

    fn remove_file(&self, file: &Path) -> Result<()> {
        let is_unused = || match self.members()?.into_iter().find(|member| member.is_alive) {
            Some(member) => Err(Error::InUse { holder: member.process }),
            None => Ok(()),
        };
        self.shared.close_and_drop(is_unused, || remove(file))
    }
}

fn remove(path: &Path) -> Result<()> {
    fs::remove_file(path).map_err(|error| Error::System {
        detail: format!("{}: cannot remove it", path.display()),
        errno: error.raw_os_error().unwrap_or(0),
    })
}

/// Removes the file of a region whose creation was interrupted. False if it is another file, or if
/// a process creates the region.
fn remove_interrupted(path: &Path, resolved: &Path, options: &AttachOptions) -> Result<bool> {
    let OpenedFile { file, made: _ } = open_file(path, None, options.any_owner)?;
    if !is_begun(&file, path)? {
        return Ok(false);
    }
    let Some(_lock) = CreationLock::try_acquire(&file)? else { return Ok(false) };
    // Creators that wait for the lock look at the path once more.
    let is_removed = is_begun(&file, path)? && is_named(path, &file)?;
    if is_removed {
        remove(resolved)?;
    }
    Ok(is_removed)
}
