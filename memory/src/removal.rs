//! Drops a region: removes its file.

use std::fs;
use std::path::Path;

use nearstate_model::{Error, Result};

use crate::region::file::Region;

impl Region {
    /// Drops a region: removes its file. Its memory is released when the last process has unmapped
    /// it. No session opens in it afterwards.
    ///
    /// # Errors
    /// `InUse` while a living process has a session, `Stalled` while another process that drops the
    /// region is stopped, `NotARegion`, `System`.
    pub fn remove(path: &Path) -> Result<()> {
        let region = Self::attach(path)?;
        let is_unused = || match region.members()?.into_iter().find(|member| member.is_alive) {
            Some(member) => Err(Error::InUse { holder: member.process }),
            None => Ok(()),
        };
        let remove = || {
            fs::remove_file(path).map_err(|error| Error::System {
                detail: format!("{}: cannot remove it", path.display()),
                errno: error.raw_os_error().unwrap_or(0),
            })
        };
        region.shared.close_and_drop(is_unused, remove)
    }
}
