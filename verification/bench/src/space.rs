//! Free space in the folder in memory for the files of targets. A process that touches a page of a
//! mapped file without space is killed (SIGBUS), so the free space is checked before the start.

use crate::reaper::system;
use crate::table::count_text;
use nearstate_model::{Error, Result};
use rustix::fs::statvfs;
use std::path::{Path, PathBuf};

/// The folder of `--dir` as an absolute path.
pub fn folder(dir: &Path) -> Result<PathBuf> {
    let whole = dir.canonicalize().map_err(|e| {
        system(&format!("--dir {}: give a folder that is there", dir.display()), &e)
    })?;
    if whole.is_dir() {
        return Ok(whole);
    }
    Err(bad_argument!("--dir {}: it is no folder: give one in memory", dir.display()))
}

/// Free bytes in a folder; `None` if the file system has no limit.
pub fn free_bytes(dir: &Path) -> Result<Option<u64>> {
    let seen = statvfs(dir).map_err(|e| {
        system(&format!("looking at the room in --dir {}", dir.display()), &e.into())
    })?;
    Ok((seen.f_blocks > 0).then(|| seen.f_bavail.saturating_mul(seen.f_frsize)))
}

/// Checks that the files of these targets, each with its size, fit into the free space.
pub fn fits(dir: &Path, targets: &[(&str, u64)], records: u64, free: Option<u64>) -> Result<()> {
    let needed = targets.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let Some(free) = free.filter(|free| *free < needed) else { return Ok(()) };
    let names: Vec<&str> =
        targets.iter().filter(|(_, bytes)| *bytes > 0).map(|(name, _)| *name).collect();
    Err(Error::Full {
        detail: format!(
            "--dir {} has room for {} KiB, and {} may spec {} KiB for {} records: give fewer \
             --records or --targets, or a --dir with more room (a container's /dev/shm has 64 MiB \
             unless it was started with --shm-size)",
            dir.display(),
            count_text(free >> 10),
            names.join(", "),
            count_text(needed.div_ceil(1024)),
            count_text(records)
        ),
        heap: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_what_would_help() {
        let fits = |free| fits(Path::new("/f"), &[("region", 700), ("null", 0)], 9, free);
        assert!(fits(None).is_ok() && fits(Some(700)).is_ok());
        let refused = fits(Some(699)).unwrap_err().to_string();
        for word in ["--dir /f", "region may spec 1 KiB", "9 records", "--shm-size"] {
            assert!(refused.contains(word), "{refused}");
        }
    }

    #[test]
    fn a_folder_has_its_full_name_and_some_room() {
        let here = folder(Path::new(".")).unwrap();
        assert!(here.is_absolute());
        assert!(free_bytes(&here).is_ok());
        let none = folder(Path::new("nowhere/at/all")).unwrap_err().to_string();
        assert!(none.contains("--dir nowhere/at/all"), "{none}");
        let file = folder(Path::new("/dev/null")).unwrap_err().to_string();
        assert!(file.contains("no folder"), "{file}");
    }
}
