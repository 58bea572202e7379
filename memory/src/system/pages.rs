//! Gives ranges of a region's file their pages, and takes them back.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nearstate_model::{Error, Result};

use crate::system::failure;

/// Allocates pages for the range. On a file system without `fallocate` it writes zeros instead, so
/// the range must not contain data yet.
pub(crate) fn commit(fd: BorrowedFd<'_>, from: u64, bytes: u64) -> Result<()> {
    commit_with(fd, (from, bytes), write_zeros)
}

/// As [`commit`], and each byte keeps its value: on a file system without `fallocate` it writes
/// what it has read. So nothing else may change the range meanwhile.
pub(crate) fn commit_keeping(fd: BorrowedFd<'_>, from: u64, bytes: u64) -> Result<()> {
    commit_with(fd, (from, bytes), rewrite)
}

/// The range is allocated in pieces: on tmpfs a signal makes the kernel undo the current piece.
fn commit_with(
    fd: BorrowedFd<'_>,
    (from, bytes): (u64, u64),
    write: fn(BorrowedFd<'_>, u64, u64) -> Result<()>,
) -> Result<()> {
    let mut at = from;
    while at < from + bytes {
        let piece = (from + bytes - at).min(COMMIT_PIECE);
        if !allocate(fd, at, piece)? {
            write(fd, at, piece)?;
        }
        at += piece;
    }
    Ok(())
}

#[cfg(test)]
thread_local! {
    /// True in a test of a file system without `fallocate`.
    pub(crate) static WITHOUT_FALLOCATE: std::cell::Cell<bool> =
        const { std::cell::Cell::new(false) };
}

/// Bytes of one `fallocate`: less than a millisecond of zeroing.
pub(super) const COMMIT_PIECE: u64 = 2 << 20;

/// Allocates pages for a range, and changes no byte. False if the file system has no `fallocate`.
pub(crate) fn allocate(fd: BorrowedFd<'_>, from: u64, bytes: u64) -> Result<bool> {
    #[cfg(test)]
    if WITHOUT_FALLOCATE.get() {
        return Ok(false);
    }
    match fallocate(fd, libc::FALLOC_FL_KEEP_SIZE, from, bytes) {
        Some(libc::ENOSPC | libc::EDQUOT | libc::ENOMEM) => Err(Error::Full {
            detail: format!(
                "the file system of the region has no room for {bytes} more bytes: enlarge it \
                 (tmpfs: mount -o remount,size=..., hugetlbfs: vm.nr_hugepages) or delete records"
            ),
            heap: None,
        }),
        other => is_supported(other, "cannot reserve space for the region"),
    }
}

/// Removes the pages of a range from a file: it reads as zeros. False if the file system has no
/// holes.
pub(crate) fn release(fd: BorrowedFd<'_>, from: u64, bytes: u64) -> Result<bool> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    is_supported(fallocate(fd, mode, from, bytes), "cannot release memory of the region")
}

fn is_supported(error: Option<i32>, what: &str) -> Result<bool> {
    match error {
        None => Ok(true),
        Some(libc::EOPNOTSUPP | libc::ENOSYS) => Ok(false),
        Some(_) => Err(failure(what)),
    }
}

/// Calls `fallocate(2)` until no signal interrupts it. Returns its error.
fn fallocate(fd: BorrowedFd<'_>, mode: i32, from: u64, bytes: u64) -> Option<i32> {
    loop {
        // SAFETY: the call accesses no memory of this process, and the descriptor is open.
        let done = unsafe {
            libc::fallocate(fd.as_raw_fd(), mode, from.cast_signed(), bytes.cast_signed())
        };
        match (done, io::Error::last_os_error().raw_os_error()) {
            (0, _) => return None,
            (_, Some(libc::EINTR)) => {}
            (_, error) => return error,
        }
    }
}

fn write_zeros(fd: BorrowedFd<'_>, from: u64, bytes: u64) -> Result<()> {
    let mut at = from;
    while at < from + bytes {
        at += write_part(fd, at, &[0; WRITE_BYTES], from + bytes - at)?;
    }
    Ok(())
}

/// Writes what the range contains.
fn rewrite(fd: BorrowedFd<'_>, from: u64, bytes: u64) -> Result<()> {
    let mut at = from;
    while at < from + bytes {
        let mut part = [0; WRITE_BYTES];
        // SAFETY: `part` outlives the call and has as many bytes.
        let read = unsafe {
            libc::pread(
                fd.as_raw_fd(),
                part.as_mut_ptr().cast::<c_void>(),
                part.len(),
                at.cast_signed(),
            )
        };
        if read <= 0 {
            return Err(failure("cannot read the region's file"));
        }
        at += write_part(fd, at, &part, (from + bytes - at).min(read.unsigned_abs() as u64))?;
    }
    Ok(())
}

/// Bytes of one write into a file system without `fallocate`.
const WRITE_BYTES: usize = 4096;

/// Writes at most the first `bytes` bytes of a part. Returns how many were written.
fn write_part(fd: BorrowedFd<'_>, at: u64, part: &[u8; WRITE_BYTES], bytes: u64) -> Result<u64> {
    let bytes = bytes.min(WRITE_BYTES as u64);
    // SAFETY: `part` outlives the call and has at least `bytes` bytes.
    let written = unsafe {
        libc::pwrite(
            fd.as_raw_fd(),
            part.as_ptr().cast::<c_void>(),
            bytes as usize,
            at.cast_signed(),
        )
    };
    if written <= 0 {
        return Err(failure("cannot write pages of the region's file"));
    }
    Ok(written.unsigned_abs() as u64)
}
