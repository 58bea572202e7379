//! Process identity for messages, and the lock that tells other processes that this one is alive.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::ptr::NonNull;
use std::time::{SystemTime, UNIX_EPOCH};

use nearstate_model::limits::MEMBERS_MAX;
use nearstate_model::{Error, Result, invariant};

use crate::system::{self, LockMode, failure, lock_byte};

/// First of the bytes of the file that processes keep locked while they are alive.
const LIVENESS_BYTE: u64 = 1 << 62;

const _: () = assert!(LIVENESS_BYTE + MEMBERS_MAX as u64 <= i64::MAX as u64, "an offset of a file");

/// Process id and name for messages. No decision depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessIdentity {
    pub(crate) pid: u32,
    pub(crate) name: [u8; 16],
}

impl ProcessIdentity {
    /// This process.
    pub(crate) fn current() -> Self {
        let mut name = [0; 16];
        if let Ok(text) = fs::read("/proc/self/comm") {
            for (to, from) in name.iter_mut().zip(text.iter().filter(|b| **b != b'\n')) {
                *to = *from;
            }
        }
        Self { pid: std::process::id(), name }
    }

    /// The command name.
    pub(crate) fn text(&self) -> String {
        let bytes: Vec<u8> = self.name.iter().copied().take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// A lock on one byte of the file that only a mapping holds. The kernel releases it when the memory
/// of this process ends (kill, exit, exec), and not when a descriptor is closed. A forked child
/// does not hold it (`spec/region.md`, section 7).
#[derive(Debug)]
pub(crate) struct LivenessLock {
    /// `None` in a forked child, which does not have the page.
    page: Option<NonNull<u8>>,
    bytes: u64,
    number: u64,
}

// SAFETY: the page is never read or written; it only keeps the open file alive.
unsafe impl Send for LivenessLock {}
// SAFETY: as above.
unsafe impl Sync for LivenessLock {}

impl LivenessLock {
    /// Opens the file again by its path, and locks a byte through it.
    pub(crate) fn acquire(
        path: &Path,
        file: &File,
        page: u64,
        is_used: impl Fn(u64) -> bool,
    ) -> Result<Self> {
        let own = OpenOptions::new().read(true).write(true).open(path).map_err(|error| {
            Error::System {
                detail: format!("{}: cannot open the region a second time", path.display()),
                errno: error.raw_os_error().unwrap_or(0),
            }
        })?;
        Self::acquire_through(&own, path, file, page, is_used)
    }

    /// Locks the first byte that is free and that `is_used` does not name, through a second open
    /// file of the region, of which no other process has a descriptor.
    pub(crate) fn acquire_through(
        own: &File,
        path: &Path,
        file: &File,
        page: u64,
        is_used: impl Fn(u64) -> bool,
    ) -> Result<Self> {
        if !is_same(own, file) {
            return Err(Error::NotARegion {
                path: path.to_owned(),
                detail: "replaced while it was being attached: try again".to_owned(),
            });
        }
        for number in 1..=MEMBERS_MAX as u64 {
            if !is_used(number) && lock_byte(own.as_fd(), LIVENESS_BYTE + number, LockMode::Try)? {
                if !is_locked(file, number)? {
                    // The lock would last as long as the descriptor, in every process that has it.
                    return Err(Error::BadArgument {
                        detail: format!(
                            "{}: its two descriptors are one open file; open it twice",
                            path.display()
                        ),
                    });
                }
                let page_at = system::map_lock_page(own.as_fd(), page)?;
                return Ok(Self { page: Some(page_at), bytes: page, number });
            }
        }
        Err(Error::Full { detail: format!("{MEMBERS_MAX} processes are attached") })
    }

    /// Forgets the page, in a forked child. Its address may belong to another mapping there.
    pub(crate) const fn forget(&mut self) {
        self.page = None;
    }

    /// The number of its byte, from 1.
    pub(crate) const fn number(&self) -> u64 {
        debug_assert!(self.number != 0, "locks are numbered from 1");
        self.number
    }
}

impl Drop for LivenessLock {
    fn drop(&mut self) {
        if let Some(page) = self.page {
            // SAFETY: no other code has the address of the page, which was mapped by this process.
            unsafe { system::unmap(page, self.bytes) };
        }
    }
}

/// True if the process that holds the lock with this number is alive.
pub(crate) fn is_locked(file: &File, number: u64) -> Result<bool> {
    invariant!((1..=MEMBERS_MAX as u64).contains(&number), "no process has liveness lock {number}");
    system::is_byte_locked(file.as_fd(), LIVENESS_BYTE + number)
}

/// True if both are the same file.
pub(crate) fn is_same(one: &File, other: &File) -> bool {
    match (one.metadata(), other.metadata()) {
        (Ok(a), Ok(b)) => a.dev() == b.dev() && a.ino() == b.ino(),
        _ => false,
    }
}

/// Device and inode of a file.
pub(crate) fn file_key(file: &File) -> Result<(u64, u64)> {
    let data = file.metadata().map_err(|_| failure("cannot stat the region's file"))?;
    Ok((data.dev(), data.ino()))
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}
