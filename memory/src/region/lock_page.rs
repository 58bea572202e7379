//! A mapping that keeps an open file, and with it the file's locks, for exactly as long as the
//! memory of this process exists: until it is killed, exits or calls exec, and not until a
//! descriptor is closed. No forked child has it.
//!
//! A fork by another thread can copy the descriptor, between `open` and `close`, and the mapping,
//! between `mmap` and `madvise(MADV_DONTFORK)`. The copy would keep the locks of a dead process.
//! Two measures exclude it, whichever system call forks:
//!
//! - **The descriptor** is only in the descriptor table of a thread that does nothing else and has
//!   a table of its own. A fork copies the table of the thread that forks. In a process with one
//!   thread no other thread can fork, so that thread does the work, with signals blocked.
//! - **The mapping**: before `mmap`, the thread writes a private page, the canary; after
//!   `MADV_DONTFORK` it writes the page again. A fork that copied the mapping also made the canary
//!   copy-on-write, under the same lock of the kernel, so the second write faults. The kernel
//!   counts faults per thread. If the count grew, the mapping is removed and the work repeated.
//!
//! ```text
//! this thread                          a fork in another thread
//! A1  write the canary                 F1  lock the memory map
//! A2  mmap          (memory-map lock)  F2  copy the mappings without DONTFORK, protect the canary
//! A3  MADV_DONTFORK (memory-map lock)  F3  flush the TLB, unlock
//! A4  write the canary; no fault?      F4  allocate a process id
//! A5  lock bytes of the file
//! ```
//!
//! The lock of the memory map orders F1..F3 with A2 and A3: a copy of the mapping implies that
//! F1..F3 lie between them, so A4 faults. The process id says nothing: F4 may follow A5. The file
//! is locked last, so a copy that was found holds no lock.
//!
//! Not covered: a child that *shares* the memory (`CLONE_VM` without an exec), which counts as part
//! of the process, and a process whose kernel or seccomp profile permits neither
//! `close_range(CLOSE_RANGE_UNSHARE)` nor `unshare(CLONE_FILES)`, for the descriptor.

use std::ffi::c_void;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::thread::Builder;

use nearstate_model::{Error, Result};

use crate::system::{failure, map_shared, unmap, with_signals_blocked};

/// Copies of the mapping by forks of other threads before attaching fails. One fork takes at least
/// ten times as long as the mapping is unprotected.
const TRIES_MAX: u32 = 1000;

/// Bytes of the stack of the thread that opens the file.
const STACK_BYTES: usize = 128 << 10;

/// The page of the mapping. It is never read or written.
#[derive(Debug)]
pub(crate) struct LockPage {
    /// `None` in a forked child, which does not have the page.
    page: Option<NonNull<u8>>,
    bytes: u64,
}

// SAFETY: the page is never read or written; it only keeps the open file alive.
unsafe impl Send for LockPage {}
// SAFETY: as above.
unsafe impl Sync for LockPage {}

impl LockPage {
    /// Opens the file with `open`, maps `bytes` of it, and calls `lock`, which locks bytes through
    /// the open file.
    pub(crate) fn new<T: Send>(
        bytes: u64,
        open: impl Fn() -> Result<File> + Sync,
        lock: impl Fn(&File) -> Result<T> + Sync,
    ) -> Result<(Self, T)> {
        let work = || {
            for _ in 0..TRIES_MAX {
                // A child that copied the mapping of the last round has its open file.
                let own = open()?;
                let canary = Canary::new()?;
                let page = Self::map(&own, bytes)?;
                if canary.is_uncopied() {
                    return Ok((page, lock(&own)?));
                }
            }
            Err(Error::System {
                detail: format!(
                    "each of {TRIES_MAX} attempts to attach met a fork of this process: fork less \
                     often while it attaches"
                ),
                errno: libc::EAGAIN,
            })
        };
        with_signals_blocked(|| {
            if is_only_thread() {
                return work();
            }
            std::thread::scope(|scope| {
                let thread = Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, || {
                    unshare_descriptors();
                    work()
                });
                let thread = thread.map_err(|error| Error::System {
                    detail: "cannot create the thread that attaches (ulimit -u, pids.max)"
                        .to_owned(),
                    errno: error.raw_os_error().unwrap_or(0),
                })?;
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })
    }

    /// As [`LockPage::new`], with an open file that the caller received from another process. Forks
    /// since then may have copied its descriptor.
    pub(crate) fn of_received<T>(
        own: &File,
        bytes: u64,
        lock: impl Fn(&File) -> Result<T>,
    ) -> Result<(Self, T)> {
        Ok((Self::map(own, bytes)?, lock(own)?))
    }

    /// Maps the file and keeps the mapping from children that are forked later.
    fn map(own: &File, bytes: u64) -> Result<Self> {
        let at = map_shared(own.as_fd(), bytes)?;
        let page = Self { page: Some(at), bytes };
        let (address, length) = (at.as_ptr().cast::<c_void>(), bytes as usize);
        // SAFETY: advice about our own mapping; no byte changes.
        if unsafe { libc::madvise(address, length, libc::MADV_DONTFORK) } != 0 {
            return Err(failure("madvise(MADV_DONTFORK) failed"));
        }
        Ok(page)
    }

    /// Forgets the page, in a forked child. Its address may belong to another mapping there.
    pub(crate) const fn forget(&mut self) {
        self.page = None;
    }
}

impl Drop for LockPage {
    fn drop(&mut self) {
        if let Some(page) = self.page {
            // SAFETY: no other code has the address of the page, which this process mapped.
            unsafe { unmap(page, self.bytes) };
        }
    }
}

/// A private page that a fork makes copy-on-write.
struct Canary {
    page: NonNull<u8>,
    /// False if the kernel does not count faults: then a copy cannot be detected.
    is_counted: bool,
}

/// Bytes of the canary.
const CANARY_BYTES: usize = 4096;

impl Canary {
    /// Maps the page and writes it.
    fn new() -> Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                CANARY_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(failure(
                "cannot map a page that shows a fork: raise the address-space limit (ulimit -v)",
            ));
        }
        // A huge page could replace this one, and a replaced page is writable again. A kernel
        // without huge pages refuses the advice.
        // SAFETY: advice about our own page.
        unsafe { libc::madvise(page, CANARY_BYTES, libc::MADV_NOHUGEPAGE) };
        let page = NonNull::new(page.cast()).ok_or_else(|| failure("mapped address zero"))?;
        let mut canary = Self { page, is_counted: false };
        // The page is new, so the first write faults.
        canary.is_counted = canary.faults();
        Ok(canary)
    }

    /// True if no fork has copied the memory of this process since the page was written.
    fn is_uncopied(&self) -> bool {
        !self.is_counted || !self.faults()
    }

    /// Writes the page. True if this caused a fault.
    fn faults(&self) -> bool {
        let before = faults_of_this_thread();
        // SAFETY: our own page, mapped and writable; no reference to it exists.
        unsafe { self.page.as_ptr().write_volatile(1) };
        faults_of_this_thread() != before
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        // SAFETY: the page is ours and no code uses it after this.
        unsafe { libc::munmap(self.page.as_ptr().cast::<c_void>(), CANARY_BYTES) };
    }
}

/// The page faults of this thread. An error counts as none.
fn faults_of_this_thread() -> i64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills our own structure.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: all bytes 0 is a valid value, and the kernel only stores numbers.
    let usage = unsafe { usage.assume_init() };
    usage.ru_minflt.wrapping_add(usage.ru_majflt)
}

/// True if this process has one thread. False if that cannot be determined.
fn is_only_thread() -> bool {
    // A directory has a link of its own, one of its parent, and one for each folder in it.
    std::fs::metadata("/proc/self/task").is_ok_and(|folder| folder.nlink() == 3)
}

/// Gives this thread a descriptor table of its own. Without a permitted system call the thread
/// keeps the table of the process.
fn unshare_descriptors() {
    let (first, last) = (3_u32, u32::MAX);
    // SAFETY: in its own table this thread has no descriptor that any code uses.
    let done =
        unsafe { libc::syscall(libc::SYS_close_range, first, last, libc::CLOSE_RANGE_UNSHARE) };
    if done != 0 {
        // SAFETY: the call touches no memory.
        unsafe { libc::unshare(libc::CLONE_FILES) };
    }
}
