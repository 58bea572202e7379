//! Advisory locks: shared locks on numbers, visible to all processes.
//!
//! As the liveness lock (`region/liveness.rs`), an advisory lock is a lock on bytes of the region's
//! file that only a mapping holds (`region/lock_page.rs`). The kernel releases it when its owner
//! drops it, at the latest with the process, and a forked child does not hold it. Unlike a liveness
//! lock it is shared: several sessions can hold it at the same time. Nothing is stored in the
//! region's memory, so nothing needs recovery.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use nearstate_model::{Error, Result};

use crate::atomic::Ordering;
use crate::layout::SUPER_PAGE;
use crate::member::Member;
use crate::region::file::Shared;
use crate::region::lock_page::LockPage;
use crate::system::{self, LockMode, lock_byte};

/// First of the bytes of the file that stand for numbers.
const ADVISORY_BYTE: u64 = 1 << 60;

/// Number of such bytes. Two numbers that share a byte share their lock. With 2^48 bytes this is
/// rare, and it only makes others wait longer than needed.
const ADVISORY_BYTES: u64 = 1 << 48;

/// The byte of the lock of the process that follows another region.
const FOLLOWER_BYTE: u64 = ADVISORY_BYTE + ADVISORY_BYTES;

const _: () = assert!(FOLLOWER_BYTE < 1 << 61, "the creation lock comes next");

/// Shared locks on some numbers, until they are dropped.
#[derive(Debug)]
pub struct AdvisoryLock {
    page: LockPage,
    shared: Arc<Shared>,
}

impl Drop for AdvisoryLock {
    fn drop(&mut self) {
        if self.shared.map.is_forked() {
            self.page.forget();
        }
    }
}

impl Member {
    /// Takes shared locks on some numbers, which mean the same in all processes.
    ///
    /// Cost: the file is opened and one of its pages mapped: about ten microseconds, and in
    /// a process with several threads a short-lived thread.
    ///
    /// # Errors
    /// `System`: no more files or mappings, or another program locks bytes of the region.
    pub fn lock_advisory(&self, numbers: impl Iterator<Item = u64>) -> Result<AdvisoryLock> {
        if self.map().is_forked() {
            return Err(Error::Forked);
        }
        let bytes = self.map().word(SUPER_PAGE)?.load(Ordering::Relaxed);
        let numbers: Vec<u64> = numbers.collect();
        let source = self.map().reopen_source()?;
        let path = self.map().path();
        let lock = |own: &File| {
            for number in &numbers {
                if !lock_byte(own.as_fd(), byte_of(*number), LockMode::Share)? {
                    return Err(Error::System {
                        detail: format!(
                            "{}: another program has locked bytes of it: let only nearstate use it",
                            path.display()
                        ),
                        errno: 0,
                    });
                }
            }
            Ok(())
        };
        let (page, ()) = LockPage::new(bytes, || source.open(), lock)?;
        Ok(AdvisoryLock { page, shared: Arc::clone(self.shared()) })
    }

    /// Takes the lock of the one process that changes what this region follows, until it is
    /// dropped.
    ///
    /// # Errors
    /// `BadArgument`: another process has it; `System`.
    pub fn lock_follower(&self) -> Result<AdvisoryLock> {
        if self.map().is_forked() {
            return Err(Error::Forked);
        }
        let bytes = self.map().word(SUPER_PAGE)?.load(Ordering::Relaxed);
        let source = self.map().reopen_source()?;
        let path = self.map().path();
        let lock = |own: &File| {
            if lock_byte(own.as_fd(), FOLLOWER_BYTE, LockMode::Try)? {
                return Ok(());
            }
            let path = path.display();
            let detail = format!("{path}: another process follows with it: stop that one first");
            Err(Error::BadArgument { detail })
        };
        let (page, ()) = LockPage::new(bytes, || source.open(), lock)?;
        Ok(AdvisoryLock { page, shared: Arc::clone(self.shared()) })
    }

    /// True if any session, including this one, holds a lock on this number.
    ///
    /// # Errors
    /// `System`.
    pub fn is_advisory_locked(&self, number: u64) -> Result<bool> {
        self.map().with_file(|file| system::is_byte_locked(file.as_fd(), byte_of(number)))
    }
}

const fn byte_of(number: u64) -> u64 {
    let byte = ADVISORY_BYTE + number % ADVISORY_BYTES;
    debug_assert!(byte < FOLLOWER_BYTE, "an advisory lock is not that of the follower");
    byte
}
