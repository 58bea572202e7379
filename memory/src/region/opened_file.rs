//! A file that is or becomes a region: opened, made, recognised, and removed when the creation of
//! the region fails.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::REGION_BYTES_MIN;
use nearstate_model::{Error, Result};

use crate::layout::{
    FORMAT, HEAP, MAGIC, MEMBERS, SUPER_BYTES, SUPER_FORMAT, SUPER_MAGIC, SUPER_WORDS,
};
use crate::region::owner;
use crate::region::superblock::validate_superblock;

pub(crate) const HAS_MAGIC: &str = "a superblock begins with its magic";

/// A file that may be a region.
#[derive(Debug)]
pub(crate) struct OpenedFile {
    pub(crate) file: File,
    /// Its path, if opening has made it.
    pub(crate) made: Option<PathBuf>,
}

/// Opens a file that may be a region, and makes it if a mode is given.
pub(crate) fn open_file(path: &Path, create: Option<u32>, any_owner: bool) -> Result<OpenedFile> {
    let resolved = owner::resolve(path, any_owner)?;
    owner::check_directory(path, &resolved, any_owner)?;
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .truncate(false)
        .mode(create.unwrap_or(0o600))
        // A link that replaced the file meanwhile is not followed.
        .custom_flags(if resolved.is_plain { libc::O_NOFOLLOW } else { 0 });
    let mut made = None;
    if create.is_some() {
        match options.clone().create_new(true).open(&resolved.file) {
            Ok(file) => made = Some(file),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(creation_failure(path, &resolved.file, &error)),
        }
    }
    let is_made = made.is_some();
    let file = match made {
        Some(file) => file,
        None => options
            .create(create.is_some())
            .open(&resolved.file)
            .map_err(|error| open_failure(path, &error))?,
    };
    owner::check_file(path, &file, any_owner)?;
    if !file.metadata().map_err(|error| open_failure(path, &error))?.is_file() {
        return Err(Error::NotARegion {
            path: path.to_owned(),
            detail: "not a regular file, but a pipe, a socket or a device".to_owned(),
        });
    }
    Ok(OpenedFile { file, made: is_made.then_some(resolved.file) })
}

/// Undoes a creation that has failed: removes the file that it has made, or makes the file that was
/// there empty. The caller holds the creation lock.
pub(crate) fn discard(file: &File, made: Option<&Path>) {
    // If that fails too, the file is one of an interrupted creation. The reason why the region was
    // not created is reported.
    let _ = match made {
        Some(path) => fs::remove_file(path),
        None => file.set_len(0),
    };
}

/// Fails if the process may not make a file of so many bytes: the kernel would end it.
pub(crate) fn check_file_size(path: &Path, bytes: u64) -> Result<()> {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max file size"));
    let soft = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    match soft {
        Some(most) if most < bytes => Err(Error::System {
            detail: format!(
                "{}: the file of the region has {bytes} bytes, and this process may make files of \
                 {most} (raise ulimit -f)",
                path.display()
            ),
            errno: libc::EFBIG,
        }),
        Some(_) | None => Ok(()),
    }
}

/// True if the path leads to this file.
pub(crate) fn is_named(path: &Path, file: &File) -> Result<bool> {
    let own = file.metadata().map_err(|e| open_failure(path, &e))?;
    Ok(fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (own.dev(), own.ino())))
}

/// Sets the mode of a new region's file, from which the process's umask may have removed bits. An
/// empty file that already existed keeps its mode if its owner is another user.
pub(crate) fn set_mode(file: &File, path: &Path, mode: u32) -> Result<()> {
    let found = file.metadata().map_err(|e| open_failure(path, &e))?.permissions().mode();
    if found & 0o777 == mode & 0o777 {
        return Ok(());
    }
    match file.set_permissions(Permissions::from_mode(mode & 0o777)) {
        Err(error) if error.kind() != ErrorKind::PermissionDenied => {
            Err(open_failure(path, &error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// True if the file holds no region yet.
pub(crate) fn is_new(file: &File, path: &Path) -> Result<bool> {
    let length = file.metadata().map_err(|e| open_failure(path, &e))?.len();
    Ok(length == 0 || is_creation_interrupted(file).map_err(|e| open_failure(path, &e))?)
}

/// True for the file of a creator that was killed before its commit point, and for no other file.
/// Files of other programs can begin with zeros and must not be overwritten.
fn is_creation_interrupted(file: &File) -> std::io::Result<bool> {
    let data = file.metadata()?;
    let mut page = vec![0; SUPER_BYTES as usize];
    if data.len() < SUPER_BYTES {
        return Ok(false);
    }
    file.read_exact_at(&mut page, 0)?;
    let is_ours = (0..)
        .step_by(8)
        .zip(page.chunks_exact(8))
        .all(|(at, word)| word == [0; 8] || at != SUPER_MAGIC && SUPER_WORDS.contains(&at));
    let has_superblock_only =
        data.len() >= HEAP + REGION_BYTES_MIN && data.blocks() * 512 <= data.blksize().max(MEMBERS);
    *guaranteed(page.first_chunk_mut(), HAS_MAGIC) = MAGIC.to_le_bytes();
    Ok(is_ours && (has_superblock_only || validate_superblock(&page).is_ok()))
}

/// True if the superblock of such a file was begun. Without one, the file may be another program's.
pub(crate) fn is_begun(file: &File, path: &Path) -> Result<bool> {
    let failed = |error: &std::io::Error| open_failure(path, error);
    let mut word = [0; 8];
    if file.metadata().map_err(|e| failed(&e))?.len() < SUPER_BYTES {
        return Ok(false);
    }
    file.read_exact_at(&mut word, SUPER_FORMAT).map_err(|e| failed(&e))?;
    let is_of_format = u64::from_le_bytes(word) & u64::from(u32::MAX) == u64::from(FORMAT);
    Ok(is_of_format && is_creation_interrupted(file).map_err(|e| failed(&e))?)
}

/// Why a file was not made.
fn creation_failure(path: &Path, file: &Path, error: &std::io::Error) -> Error {
    let errno = error.raw_os_error().unwrap_or(0);
    let directory = file.parent().unwrap_or(Path::new("/")).display();
    let why = match errno {
        libc::ENOENT => format!("the directory {directory} does not exist"),
        libc::EACCES | libc::EPERM => {
            format!("no permission to create files in the directory {directory}")
        }
        libc::EROFS => format!("the directory {directory} is on a read-only file system"),
        _ => return open_failure(path, error),
    };
    Error::System { detail: format!("{}: cannot create the region: {why}", path.display()), errno }
}

fn is_directory_missing(path: &Path) -> bool {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    directory.is_some_and(|directory| !directory.exists())
}

pub(crate) fn open_failure(path: &Path, error: &std::io::Error) -> Error {
    let errno = error.raw_os_error().unwrap_or(0);
    let what = match errno {
        libc::EACCES | libc::EPERM | libc::EROFS => {
            "no permission (attaching needs read and write access: see its mode, chmod, chown)"
        }
        libc::ENOENT if is_directory_missing(path) => "its directory does not exist",
        libc::ENOENT => "there is no such file (create the region first)",
        libc::EMFILE | libc::ENFILE => {
            "no more files can be open (detach from some regions, or raise ulimit -n)"
        }
        libc::ENOTDIR | libc::EISDIR => "not a file's path",
        libc::ENOSPC => "the file system has no room",
        libc::EFBIG => "larger than the file system's largest file",
        _ => "cannot open the region",
    };
    Error::System { detail: format!("{}: {what}", path.display()), errno }
}
