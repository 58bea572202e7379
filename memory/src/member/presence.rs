//! Who is at work on something that several may be at work on at once, in any process.
//!
//! As an anchor is (`life.rs`), a presence is a lock of bytes of the region's file that a mapping
//! holds and nothing else: it goes when its owner drops it, at the latest with the process, and a
//! forked child does not have it. Unlike an anchor's bytes these are shared: each who is there has
//! them, and whoever wants to know asks the kernel. Nothing of it is in the region's memory, so
//! nothing has to be put in order after a death.
//!
//! A process that another thread forks while a presence is being made has it as well, until it ends
//! or runs another program: others are careful for as long.

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

use nearstate_model::{Error, Result};

use crate::atomic::Ordering;
use crate::layout::SUPER_PAGE;
use crate::member::Member;
use crate::region::file::Shared;
use crate::system::{self, Lock, lock_byte};

/// First of the bytes of the file that stand for things to be at work on.
const THING_BYTE: u64 = 1 << 60;

/// So many bytes stand for them. Two things that share one look as if whoever is at work on one was
/// at work on both: among 2^48 that hardly happens, and it only makes others more careful.
const THINGS: u64 = 1 << 48;

/// That somebody is at work on some things, until it is dropped.
#[derive(Debug)]
pub struct AdvisoryLock {
    page: NonNull<u8>,
    bytes: u64,
    shared: Arc<Shared>,
}

// SAFETY: the page is never read or written; it only keeps the open file alive.
unsafe impl Send for AdvisoryLock {}
// SAFETY: as above.
unsafe impl Sync for AdvisoryLock {}

impl Drop for AdvisoryLock {
    fn drop(&mut self) {
        // A forked child does not have the page; something else may be at its address by now.
        if !self.shared.map.is_forked() {
            // SAFETY: nobody has the address of the page, which was mapped by this process.
            unsafe { system::unmap(self.page, self.bytes) };
        }
    }
}

impl Member {
    /// From now on others see that somebody is at work on these things. Each is said by a number
    /// that all processes know it by.
    ///
    /// Cost: the file is opened, and a page of it mapped: some ten microseconds.
    ///
    /// # Errors
    /// `System`: no more files or mappings, or another program locks bytes of the region.
    pub fn lock_advisory(&self, things: impl Iterator<Item = u64>) -> Result<AdvisoryLock> {
        if self.map().is_forked() {
            return Err(Error::Forked);
        }
        let own = self.map().reopen()?;
        for thing in things {
            if !lock_byte(own.as_fd(), byte_of(thing), Lock::Share)? {
                return Err(Error::System {
                    detail: format!(
                        "{}: another program has locked bytes of it: let only nearstate use it",
                        self.map().path().display()
                    ),
                    errno: 0,
                });
            }
        }
        let bytes = self.map().word(SUPER_PAGE)?.load(Ordering::Relaxed);
        let page = system::map_anchor(own.as_fd(), bytes)?;
        Ok(AdvisoryLock { page, bytes, shared: Arc::clone(self.shared()) })
    }

    /// True if anybody is at work on this, the caller included.
    ///
    /// # Errors
    /// `System`.
    pub fn is_advisory_locked(&self, thing: u64) -> Result<bool> {
        self.map().with_file(|file| system::is_byte_locked(file.as_fd(), byte_of(thing)))
    }
}

const fn byte_of(thing: u64) -> u64 {
    THING_BYTE + thing % THINGS
}
