//! Drops a region: removes its file.

use std::fs;
use std::path::{Path, PathBuf};

use nearstate_model::{Error, Result};

use crate::region::file::{AttachOptions, Region};
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
    /// released when the last process has unmapped it. No session opens in it afterwards.
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
        let region = Self::attach_with(path, options)?;
        let resolved = owner::resolve(path, options.any_owner)?;
        let is_unused = || match region.members()?.into_iter().find(|member| member.is_alive) {
            Some(member) => Err(Error::InUse { holder: member.process }),
            None => Ok(()),
        };
        let remove = |path: &Path| {
            fs::remove_file(path).map_err(|error| Error::System {
                detail: format!("{}: cannot remove it", path.display()),
                errno: error.raw_os_error().unwrap_or(0),
            })
        };
        region.shared.close_and_drop(is_unused, || remove(&resolved.file))?;
        // The links lead nowhere now.
        resolved.links.iter().try_for_each(|link| remove(link))?;
        Ok(RemovedRegion { file: resolved.file, links: resolved.links })
    }
}
