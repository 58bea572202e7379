//! Small text files of a tree that may be hostile: not too large, not a device.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nearstate_model::{Error, Result};

/// Reads a file of at most `bytes_max` bytes. `None` if it does not exist. Ends at the first NUL,
/// which some kernels write after the line.
///
/// # Errors
/// `BadArgument`: no regular file, too large, not UTF-8. `System`: it cannot be read.
pub(crate) fn read(path: &Path, bytes_max: u64) -> Result<Option<String>> {
    let Some(mut file) = open(path)? else { return Ok(None) };
    match file.metadata() {
        Ok(found) if found.is_file() => {}
        Ok(_) => return Err(refused(path, "is not a regular file; give a file")),
        Err(e) => return failed(path, &e),
    }
    let mut bytes = Vec::with_capacity(BUFFER_BYTES);
    match file.by_ref().take(bytes_max + 1).read_to_end(&mut bytes) {
        Ok(_) => text(path, bytes, bytes_max),
        Err(e) => failed(path, &e),
    }
}

/// Reads an attribute of this machine's `/sys`, as [`read`] does, in three system calls instead of
/// five: the kernel has only regular files there, and gives all of an attribute at once.
///
/// # Errors
/// Those of [`read`].
pub(crate) fn read_attribute(path: &Path, bytes_max: u64) -> Result<Option<String>> {
    let Some(mut file) = open(path)? else { return Ok(None) };
    let mut bytes = Vec::new();
    let mut buffer = [0; BUFFER_BYTES];
    while bytes.len() as u64 <= bytes_max {
        let count = match file.read(&mut buffer) {
            Ok(count) => count,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return failed(path, &e),
        };
        bytes.extend_from_slice(buffer.get(..count).unwrap_or_default());
        if count < BUFFER_BYTES {
            break;
        }
    }
    text(path, bytes, bytes_max)
}

fn open(path: &Path) -> Result<Option<File>> {
    // A large machine has thousands of these files: one look-up of the path for each.
    match OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(e) => failed(path, &e),
    }
}

fn text(path: &Path, mut bytes: Vec<u8>, bytes_max: u64) -> Result<Option<String>> {
    if bytes.len() as u64 > bytes_max {
        let why = format!("is larger than {bytes_max} bytes; it is no such file");
        return Err(refused(path, &why));
    }
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    bytes.truncate(end);
    let no_text = |_| refused(path, "is not a text; it is no such file");
    String::from_utf8(bytes).map(Some).map_err(no_text)
}

#[cold]
fn refused(path: &Path, why: &str) -> Error {
    Error::BadArgument { detail: format!("{} {why}", path.display()) }
}

fn failed<T>(path: &Path, e: &std::io::Error) -> Result<Option<T>> {
    // What a kernel lists but does not have: EINVAL, ENODEV (a processor that went offline).
    let absent = [ErrorKind::NotFound, ErrorKind::NotADirectory, ErrorKind::InvalidInput];
    if absent.contains(&e.kind()) || e.raw_os_error() == Some(ENODEV) {
        return Ok(None);
    }
    Err(Error::System {
        detail: format!("cannot read {}", path.display()),
        errno: e.raw_os_error().unwrap_or_default(),
    })
}

/// `No such device`.
const ENODEV: i32 = 19;

/// Opening a pipe or a device does not wait. The same number on all architectures with NUMA that
/// Rust supports.
const O_NONBLOCK: i32 = 0o4000;

/// A page: the files of `/sys` are rarely larger.
const BUFFER_BYTES: usize = 4096;
