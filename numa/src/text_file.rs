//! Small text files of a tree that may be hostile: not too large, not a device.

use std::fs::OpenOptions;
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
    // What a kernel lists but does not have: EINVAL, ENODEV (a processor that went offline).
    let absent = [ErrorKind::NotFound, ErrorKind::NotADirectory, ErrorKind::InvalidInput];
    let failed = |e: &std::io::Error| {
        if absent.contains(&e.kind()) || e.raw_os_error() == Some(ENODEV) {
            return Ok(None);
        }
        Err(Error::System {
            detail: format!("cannot read {}", path.display()),
            errno: e.raw_os_error().unwrap_or_default(),
        })
    };
    let refused = |why: &str| Error::BadArgument { detail: format!("{} {why}", path.display()) };
    // A large machine has thousands of these files: one look-up of the path for each.
    let mut file = match OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path) {
        Ok(file) => file,
        Err(e) => return failed(&e),
    };
    match file.metadata() {
        Ok(found) if found.is_file() => {}
        Ok(_) => return Err(refused("is not a regular file; give a file")),
        Err(e) => return failed(&e),
    }
    let mut bytes = Vec::with_capacity(BUFFER_BYTES);
    if let Err(e) = file.by_ref().take(bytes_max + 1).read_to_end(&mut bytes) {
        return failed(&e);
    }
    if bytes.len() as u64 > bytes_max {
        return Err(refused(&format!("is larger than {bytes_max} bytes; it is no such file")));
    }
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    bytes.truncate(end);
    String::from_utf8(bytes).map(Some).map_err(|_| refused("is not a text; it is no such file"))
}

/// `No such device`.
const ENODEV: i32 = 19;

/// Opening a pipe or a device does not wait. The same number on all architectures with NUMA that
/// Rust supports.
const O_NONBLOCK: i32 = 0o4000;

/// A page: the files of `/sys` are not larger, and are read with one call and one for their end.
const BUFFER_BYTES: usize = 4096;
