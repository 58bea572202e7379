//! The owner of a region's file, and of the symbolic links that its path contains.
//!
//! In a folder that every user may write, another user can create the file or a link first. A
//! process that attaches such a file shares its memory with that user, and one that creates a
//! region through such a link writes where the user wants.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use nearstate_model::{Error, Result};

use crate::system::{effective_user, failure};

/// Symbolic links that one path may contain, as in the kernel.
const LINKS_MAX: usize = 40;

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResolvedPath {
    /// The file. It need not exist. No part of the path is a symbolic link.
    pub(crate) file: PathBuf,
    /// The symbolic links that lead to the file, if the path's last part is one.
    pub(crate) links: Vec<PathBuf>,
    /// False for a name of the kernel (`/proc/self/fd/3`), which is opened as it is.
    pub(crate) is_plain: bool,
}

/// Follows the symbolic links of a path.
///
/// # Errors
/// `BadArgument` for a link of another user, unless `any_owner`.
pub(crate) fn resolve(path: &Path, any_owner: bool) -> Result<ResolvedPath> {
    let mut file = if path.is_absolute() {
        PathBuf::from("/")
    } else {
        std::env::current_dir().map_err(|_| failure("cannot find the current folder"))?
    };
    let mut parts = parts_of(path);
    let (mut links, mut followed) = (Vec::new(), 0);
    while let Some(part) = parts.pop_front() {
        if part == ".." {
            file.pop();
            continue;
        }
        let candidate = file.join(&part);
        if candidate == Path::new("/proc") {
            return Ok(ResolvedPath { file: path.to_owned(), links, is_plain: false });
        }
        let found = fs::symlink_metadata(&candidate).ok().filter(fs::Metadata::is_symlink);
        let Some(link) = found else {
            file = candidate;
            continue;
        };
        check(path, &format!("the symbolic link {}", candidate.display()), link.uid(), any_owner)?;
        followed += 1;
        let Some(target) = fs::read_link(&candidate).ok().filter(|_| followed <= LINKS_MAX) else {
            return Err(Error::BadArgument {
                detail: format!("{}: too many symbolic links", path.display()),
            });
        };
        if target.is_absolute() {
            file = PathBuf::from("/");
        }
        if parts.is_empty() {
            links.push(candidate);
        }
        for part in parts_of(&target).into_iter().rev() {
            parts.push_front(part);
        }
    }
    Ok(ResolvedPath { file, links, is_plain: true })
}

fn parts_of(path: &Path) -> VecDeque<OsString> {
    let is_step =
        |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().filter(is_step).map(|part| part.as_os_str().to_owned()).collect()
}

/// Refuses the open file of another user, unless `any_owner`.
///
/// # Errors
/// `BadArgument` with the owner's name.
pub(crate) fn check_file(path: &Path, file: &File, any_owner: bool) -> Result<()> {
    let found = file.metadata().map_err(|_| failure("cannot stat the region's file"))?;
    check(path, "the file", found.uid(), any_owner)
}

fn check(path: &Path, what: &str, owner: u32, any_owner: bool) -> Result<()> {
    if any_owner || owner == effective_user() || owner == 0 {
        return Ok(());
    }
    Err(Error::BadArgument {
        detail: format!(
            "{}: {what} belongs to {}, and not to this user or root: use another path, or allow \
             any owner (--any-owner, region.any_owner, any_owner=1)",
            path.display(),
            name_of(owner)
        ),
    })
}

/// The name of a user.
fn name_of(user: u32) -> String {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let number = user.to_string();
    let named = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == number).then_some(name)
    });
    named.map_or(format!("user {user}"), |name| format!("user {name} ({user})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_where_the_kernel_leads_it() {
        let folder = std::env::temp_dir().join(format!("nearstate-owner-{}", std::process::id()));
        fs::create_dir_all(folder.join("a/b")).unwrap();
        let folder = fs::canonicalize(&folder).unwrap();
        let link = |target: &str, name: &str| {
            std::os::unix::fs::symlink(target, folder.join(name)).unwrap();
        };
        link("a/b", "c");
        link("../r", "a/l");
        link("a/l", "m");
        link("loop", "loop");
        fs::write(folder.join("r"), "").unwrap();
        let leads = |name: &str| resolve(&folder.join(name), false).unwrap();
        for name in ["r", "c/../l", "m", "./a/.././r", "c/new", "a/b/../../r"] {
            let found = leads(name).file;
            let wanted = fs::canonicalize(folder.join(name)).unwrap_or(folder.join("a/b/new"));
            assert_eq!(found, wanted, "{name}");
        }
        assert_eq!(leads("m").links, [folder.join("m"), folder.join("a/l")]);
        assert_eq!(leads("c/new").links, [] as [PathBuf; 0]);
        assert!(resolve(&folder.join("loop"), false).is_err());
        assert!(!leads("/proc/self/fd/0").is_plain);
        fs::remove_dir_all(&folder).unwrap();
    }
}
