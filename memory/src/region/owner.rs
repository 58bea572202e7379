//! The owner of a file or a socket, of its directory, and of the symbolic links that its path
//! contains.
//!
//! In a directory that every user may write, another user can create the file or a link first. A
//! process that attaches such a file shares its memory with that user, and one that creates a
//! region through such a link writes where the user wants. The owner of the directory can replace
//! the file at any time.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
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

/// Refuses a file in another user's directory, unless `any_owner`.
///
/// # Errors
/// `BadArgument` with the owner's name.
pub(crate) fn check_directory(path: &Path, resolved: &ResolvedPath, any_owner: bool) -> Result<()> {
    let directory = resolved.file.parent().filter(|_| resolved.is_plain);
    let found = directory.and_then(|directory| Some((directory, fs::metadata(directory).ok()?)));
    match found {
        Some((directory, found)) => {
            let what = format!("the directory {}", directory.display());
            check(path, &what, found.uid(), any_owner)
        }
        // Opening the file tells what is wrong.
        None => Ok(()),
    }
}

/// Refuses a Unix socket that belongs to a user other than the effective user and root, is in such
/// a user's directory, or is reached through such a user's symbolic link, unless `any_owner`. The
/// socket need not exist.
///
/// # Errors
/// `BadArgument` with the owner's name.
pub fn check_socket_path(path: &Path, any_owner: bool) -> Result<()> {
    let resolved = resolve(path, any_owner)?;
    check_directory(path, &resolved, any_owner)?;
    match fs::symlink_metadata(&resolved.file) {
        Ok(found) => check(path, "the socket", found.uid(), any_owner),
        Err(_) => Ok(()),
    }
}

/// Refuses the process at the other end of a socket if its user is neither the effective user nor
/// root, unless `any_owner`. Unlike [`check_socket_path`], it cannot be deceived by a file that is
/// replaced meanwhile.
///
/// # Errors
/// `BadArgument` with the user's name.
pub fn check_socket_peer(path: &Path, user: u32, any_owner: bool) -> Result<()> {
    check(path, "the process that listens there", user, any_owner)
}

/// The directory of this user's regions, unless a path is given: `/dev/shm/nearstate-UID`.
pub fn user_directory() -> PathBuf {
    Path::new(SHARED_MEMORY).join(format!("nearstate-{}", effective_user()))
}

const SHARED_MEMORY: &str = "/dev/shm";

/// Creates a directory that only this user can use, unless it exists. Every user may write its
/// parent, so an existing one is verified.
///
/// # Errors
/// `BadArgument` if another user could change what is in it, `System`.
pub fn create_user_directory(path: &Path) -> Result<()> {
    let refused = |detail: String| Error::BadArgument {
        detail: format!("{}: {detail}, or choose another region.path", path.display()),
    };
    if let Some(parent) = path.parent() {
        let found = fs::metadata(parent)
            .map_err(|_| failure(format!("cannot stat {}", parent.display())))?;
        check(path, &format!("the directory {}", parent.display()), found.uid(), false)?;
        // Without the sticky bit every user can rename the directory and put another one there.
        if found.mode() & 0o022 != 0 && found.mode() & STICKY == 0 {
            return Err(refused(format!(
                "every user can replace it, because {} has mode {:o}: run `chmod +t {0}`",
                parent.display(),
                found.mode() & 0o7777
            )));
        }
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(failure(format!("cannot create the directory {}", path.display())));
        }
        Ok(()) | Err(_) => {}
    }
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
        .open(path)
        .and_then(|directory| directory.metadata());
    let Ok(found) = opened else {
        // A link, a file, or a directory that this user cannot read.
        let owner = fs::symlink_metadata(path).map_or(0, |found| found.uid());
        return Err(refused(format!(
            "it is no directory of this user (it belongs to {}): remove it",
            name_of(owner)
        )));
    };
    if found.uid() != effective_user() {
        return Err(refused(format!("it belongs to {}: remove it", name_of(found.uid()))));
    }
    if found.mode() & 0o077 != 0 {
        return Err(refused(format!(
            "it has mode {:o}, and other users can use it: run `chmod 700 {}`",
            found.mode() & 0o7777,
            path.display()
        )));
    }
    Ok(())
}

const STICKY: u32 = 0o1000;

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
    use std::os::unix::fs::PermissionsExt;

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

    #[test]
    fn the_directory_of_a_user_is_nobody_elses() {
        let base = std::env::temp_dir().join(format!("nearstate-base-{}", std::process::id()));
        let mode = |path: &Path, mode: u32| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        fs::create_dir(&base).unwrap();
        let own = base.join("own");
        mode(&base, 0o777);
        let refused = |path: &Path| create_user_directory(path).unwrap_err().to_string();
        assert!(refused(&own).contains("chmod +t"));
        mode(&base, 0o1777);
        for _ in 0..2 {
            create_user_directory(&own).unwrap();
            assert_eq!(fs::metadata(&own).unwrap().mode() & 0o777, 0o700);
        }
        mode(&own, 0o750);
        assert!(refused(&own).contains("chmod 700"));
        mode(&own, 0o700);
        std::os::unix::fs::symlink(&own, base.join("link")).unwrap();
        fs::write(base.join("file"), "").unwrap();
        for name in ["link", "file"] {
            assert!(refused(&base.join(name)).contains("no directory"), "{name}");
        }
        if effective_user() == 0 {
            std::os::unix::fs::chown(&own, Some(65_533), None).unwrap();
            assert!(refused(&own).contains("65533"));
        }
        fs::remove_dir_all(&base).unwrap();
    }
}
