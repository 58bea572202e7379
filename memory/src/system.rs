//! The system calls of a region. A failure is returned as an error that names the call or its
//! purpose.

pub(crate) mod pages;

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::time::Duration;

use nearstate_model::{Error, Result, invariant};

use crate::atomic::AtomicU64;
use crate::clock::since_boot;
use crate::system::pages::COMMIT_PIECE;

pub(crate) use crate::system::pages::{allocate, commit, commit_keeping, release};

/// `membarrier(2)` commands: the libc crate does not name them.
const MEMBARRIER_GLOBAL_EXPEDITED: i32 = 1 << 1;
const MEMBARRIER_REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;

/// The last error of this thread. `detail` says what failed.
#[cold]
pub(crate) fn failure(detail: impl Into<String>) -> Error {
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    Error::System { detail: detail.into(), errno }
}

/// Alignment of a mapping, so that the kernel may back it with huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Maps the whole file, shared, readable and writable, at an address where huge pages fit.
pub(crate) fn map_shared(fd: BorrowedFd<'_>, bytes: u64) -> Result<NonNull<u8>> {
    let too_large = || Error::BadArgument { detail: "a region larger than memory".to_owned() };
    let length = usize::try_from(bytes).map_err(|_| too_large())?;
    let reserved = length.checked_add(HUGE_PAGE_BYTES).ok_or_else(too_large)?;
    let refused = || {
        failure(format!(
            "cannot map {bytes} bytes: raise the address-space limit (ulimit -v) or create a \
             smaller region"
        ))
    };
    // SAFETY: a new mapping without access, at an address that the kernel chooses.
    let reservation = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            reserved,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if reservation == libc::MAP_FAILED {
        return Err(refused());
    }
    let before = (reservation as usize).next_multiple_of(HUGE_PAGE_BYTES) - reservation as usize;
    // SAFETY: `before` is less than HUGE_PAGE_BYTES, so the address is inside the reservation.
    let base = unsafe { reservation.cast::<u8>().add(before) };
    // SAFETY: replaces a part of the new reservation.
    let mapped = unsafe {
        libc::mmap(
            base.cast(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED,
            fd.as_raw_fd(),
            0,
        )
    };
    if mapped == libc::MAP_FAILED {
        let error = refused();
        // SAFETY: no other code has an address in the reservation.
        unsafe { libc::munmap(reservation, reserved) };
        return Err(error);
    }
    invariant!((base as usize).is_multiple_of(HUGE_PAGE_BYTES), "huge pages fit the mapping");
    trim(reservation.cast(), before);
    // SAFETY: the reservation is HUGE_PAGE_BYTES longer than the mapping, so it contains its end.
    trim(unsafe { base.add(length) }, HUGE_PAGE_BYTES - before);
    NonNull::new(base).ok_or_else(refused)
}

/// Unmaps the reserved address space around the mapping.
fn trim(from: *mut u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the range is an unused part of the reservation of `map_shared`.
        unsafe { libc::munmap(from.cast::<c_void>(), bytes) };
    }
}

/// Asks the kernel to back a committed range with 2 MiB pages, independent of its general policy
/// (Linux 6.1, `MADV_COLLAPSE`). Returns the number of bytes that have such pages now.
pub(crate) fn collapse(base: NonNull<u8>, from: u64, to: u64) -> u64 {
    const MADV_COLLAPSE: i32 = 25;
    let huge = HUGE_PAGE_BYTES as u64;
    let mut done = 0;
    let mut at = from.next_multiple_of(huge);
    while at + huge <= to {
        // SAFETY: the caller's range is inside the mapping.
        let address = unsafe { base.as_ptr().add(at as usize) };
        // SAFETY: the kernel copies the pages and changes no visible byte.
        let refused =
            unsafe { libc::madvise(address.cast::<c_void>(), HUGE_PAGE_BYTES, MADV_COLLAPSE) };
        done += if refused == 0 { huge } else { 0 };
        at += huge;
    }
    done
}

/// Unmaps what [`map_shared`] or [`fork_guard`] mapped.
///
/// # Safety
/// Nothing may refer to the range any more.
pub(crate) unsafe fn unmap(base: NonNull<u8>, bytes: u64) {
    // SAFETY: the caller guarantees that this process mapped the range and that no code uses it.
    unsafe { libc::munmap(base.as_ptr().cast::<c_void>(), bytes as usize) };
}

/// Maps a private page that the kernel zeroes in a forked child.
pub(crate) fn fork_guard() -> Result<NonNull<AtomicU64>> {
    // SAFETY: a new anonymous mapping at an address that the kernel chooses.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            GUARD_BYTES as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return Err(failure("cannot map the page that detects a fork"));
    }
    // SAFETY: the page was mapped above, and no other code has its address.
    if unsafe { libc::madvise(page, GUARD_BYTES as usize, libc::MADV_WIPEONFORK) } != 0 {
        return Err(failure("madvise(MADV_WIPEONFORK) failed: it needs Linux 4.14 or later"));
    }
    NonNull::new(page.cast()).ok_or_else(|| failure("the kernel mapped address zero"))
}

/// Bytes of the page of [`fork_guard`].
pub(crate) const GUARD_BYTES: u64 = 4096;

const _: () = assert!(HUGE_PAGE_BYTES.is_power_of_two(), "a mapping is aligned to it");
const _: () =
    assert!(COMMIT_PIECE.is_multiple_of(HUGE_PAGE_BYTES as u64), "pieces are whole pages");

/// Maps the pages of a range with one call instead of one page fault each. Errors are ignored: the
/// pages are then mapped on first access.
pub(crate) fn prefault(base: NonNull<u8>, from: u64, bytes: u64) {
    let page = 4096;
    let start = from & !(page - 1);
    let end = (from + bytes).next_multiple_of(page);
    // SAFETY: the caller's range is inside the mapping, and so is the address.
    let address = unsafe { base.as_ptr().add(start as usize) };
    // SAFETY: the call maps pages and changes no byte of them.
    unsafe {
        libc::madvise(address.cast::<c_void>(), (end - start) as usize, libc::MADV_POPULATE_WRITE)
    };
}

/// The first range at or after `from` that has data, or `None` if there is none. On a file system
/// without holes the whole file is one range.
pub(crate) fn next_data(fd: BorrowedFd<'_>, from: u64) -> Option<(u64, u64)> {
    // SAFETY: changes only the file offset, which no other code uses.
    let start = unsafe { libc::lseek(fd.as_raw_fd(), from.cast_signed(), libc::SEEK_DATA) };
    if start < 0 {
        return None;
    }
    // SAFETY: as above.
    let end = unsafe { libc::lseek(fd.as_raw_fd(), start, libc::SEEK_HOLE) };
    (end > start).then(|| (start.unsigned_abs(), end.unsigned_abs()))
}

/// What to do with the lock of a byte of the file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LockMode {
    /// Take it exclusively, or fail if it is held.
    Try,
    /// Take it shared, or fail if it is held exclusively.
    Share,
    /// Release it.
    Release,
}

/// Changes the open-file-description lock on one byte of the file. The kernel releases the lock
/// when the last descriptor and the last mapping of this open file are gone.
///
/// Returns false if [`LockMode::Try`] or [`LockMode::Share`] found the byte locked.
pub(crate) fn lock_byte(fd: BorrowedFd<'_>, byte: u64, mode: LockMode) -> Result<bool> {
    invariant!(byte <= i64::MAX.cast_unsigned(), "byte {byte:#x} is no offset of a file");
    let mut range = flock(byte);
    let command = match mode {
        LockMode::Try => libc::F_OFD_SETLK,
        LockMode::Share => {
            range.l_type = libc::F_RDLCK as i16;
            libc::F_OFD_SETLK
        }
        LockMode::Release => {
            range.l_type = libc::F_UNLCK as i16;
            libc::F_OFD_SETLK
        }
    };
    loop {
        // SAFETY: `range` is a complete `flock` that outlives the call.
        if unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut range) } == 0 {
            return Ok(true);
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EAGAIN | libc::EACCES) => return Ok(false),
            _ => return Err(failure("cannot lock the region's file (fcntl F_OFD_SETLK)")),
        }
    }
}

/// True if another open file description has locked the byte, shared or exclusively.
pub(crate) fn is_byte_locked(fd: BorrowedFd<'_>, byte: u64) -> Result<bool> {
    is_in_conflict(fd, byte..byte + 1, libc::F_WRLCK)
}

/// True if another open file description has locked the byte exclusively.
pub(crate) fn is_byte_write_locked(fd: BorrowedFd<'_>, byte: u64) -> Result<bool> {
    is_any_byte_write_locked(fd, byte..byte + 1)
}

/// True if another open file description has locked one of the bytes exclusively.
pub(crate) fn is_any_byte_write_locked(fd: BorrowedFd<'_>, bytes: Range<u64>) -> Result<bool> {
    is_in_conflict(fd, bytes, libc::F_RDLCK)
}

fn is_in_conflict(fd: BorrowedFd<'_>, bytes: Range<u64>, wanted: libc::c_int) -> Result<bool> {
    if bytes.is_empty() {
        return Ok(false); // The kernel takes a length of 0 for all bytes up to the end.
    }
    let mut range = flock(bytes.start);
    range.l_len = (bytes.end - bytes.start).cast_signed();
    range.l_type = wanted as i16;
    // SAFETY: `range` is a complete `flock` that outlives the call.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut range) } != 0 {
        return Err(failure("cannot query a lock of the region's file (fcntl F_OFD_GETLK)"));
    }
    Ok(range.l_type != libc::F_UNLCK as i16)
}

/// Excludes the mapping from core dumps. They would contain subscribers' keys, and a dying process
/// would keep its locks while the kernel writes the dump.
pub(crate) fn keep_out_of_dumps(base: NonNull<u8>, bytes: u64) {
    // SAFETY: advice about a mapping of this process; no byte changes.
    unsafe { libc::madvise(base.as_ptr().cast::<c_void>(), bytes as usize, libc::MADV_DONTDUMP) };
}

fn flock(byte: u64) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: byte.cast_signed(),
        l_len: 1,
        l_pid: 0,
    }
}

/// The user id that file permissions of this process depend on.
pub(crate) fn effective_user() -> u32 {
    // SAFETY: the call touches no memory and cannot fail.
    unsafe { libc::geteuid() }
}

/// Registers this process for [`barrier_everywhere`]. False if the kernel has no such barrier.
pub(crate) fn register_barrier() -> bool {
    membarrier(MEMBARRIER_REGISTER_GLOBAL_EXPEDITED)
}

/// A full memory barrier on every processor that runs a thread of a registered process.
pub fn barrier_everywhere() -> bool {
    membarrier(MEMBARRIER_GLOBAL_EXPEDITED)
}

fn membarrier(command: i32) -> bool {
    // SAFETY: membarrier takes three integers and accesses no memory of the caller.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Sleeps until another thread or process wakes the waiters of the word, for at most `bound`.
/// Returns at once if the low half of the word is not `expected`. May return early.
pub(crate) fn futex_wait(word: &AtomicU64, expected: u32, bound: Duration) -> Result<()> {
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(bound.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: bound.subsec_nanos().into(),
    };
    // SAFETY: the word is mapped, and its first four bytes (its low half) are aligned for a futex.
    // The time outlives the call. Not FUTEX_PRIVATE: the waiters are in several processes.
    let done = unsafe {
        libc::syscall(
            libc::SYS_futex,
            std::ptr::from_ref(word).cast::<u32>(),
            libc::FUTEX_WAIT,
            expected,
            &raw const time,
            std::ptr::null::<u32>(),
            0_u32,
        )
    };
    match if done == 0 { Some(0) } else { io::Error::last_os_error().raw_os_error() } {
        // Woken; the word had changed; a signal; the time has passed.
        Some(0 | libc::EAGAIN | libc::EINTR | libc::ETIMEDOUT) => Ok(()),
        _ => Err(failure("cannot wait for an entry of a ring (futex)")),
    }
}

/// The most words that [`futex_wait_any`] waits for: the limit of the kernel.
pub(crate) const FUTEXES_MAX: usize = 128;

/// The longest wait for several words without `futex_waitv` (before Linux 5.16, or forbidden by a
/// container). The call waits for the first word, and its caller then checks the others again.
const SLEEP_WITHOUT_WAITV: Duration = Duration::from_millis(5);

/// A word to wait for (`struct futex_waitv` of the kernel).
#[repr(C)]
struct FutexWaiter {
    expected: u64,
    at: *const AtomicU64,
    flags: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<FutexWaiter>() == 24, "the kernel's struct has 24 bytes");

/// As [`futex_wait`], for several words, each with its expected low half. A wake-up of any of the
/// first [`FUTEXES_MAX`] words ends it.
pub(crate) fn futex_wait_any(words: &[(&AtomicU64, u32)], bound: Duration) -> Result<()> {
    let Some((first, expected)) = words.first() else { return Ok(()) };
    let waiter = |(word, expected): &(&AtomicU64, u32)| FutexWaiter {
        expected: u64::from(*expected),
        at: std::ptr::from_ref(*word),
        flags: libc::FUTEX2_SIZE_U32.cast_unsigned(),
        reserved: 0,
    };
    let waiters: Vec<FutexWaiter> = words.iter().take(FUTEXES_MAX).map(waiter).collect();
    // The system call expects the absolute time of the end.
    let end = since_boot().saturating_add(bound);
    let end = libc::timespec {
        tv_sec: libc::time_t::try_from(end.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: end.subsec_nanos().into(),
    };
    // SAFETY: the words are mapped, and the first four bytes of each (its low half) are aligned for
    // a futex. The array and the time outlive the call. Not FUTEX_PRIVATE, as in `futex_wait`.
    let done = unsafe {
        libc::syscall(
            libc::SYS_futex_waitv,
            waiters.as_ptr(),
            waiters.len(),
            0_u32,
            &raw const end,
            libc::CLOCK_MONOTONIC,
        )
    };
    match if done >= 0 { Some(0) } else { io::Error::last_os_error().raw_os_error() } {
        // Woken; a word had changed; a signal; the time has passed.
        Some(0 | libc::EAGAIN | libc::EINTR | libc::ETIMEDOUT) => Ok(()),
        Some(libc::ENOSYS | libc::EPERM) => {
            futex_wait(first, *expected, bound.min(SLEEP_WITHOUT_WAITV))
        }
        _ => Err(failure("cannot wait for an entry of several rings (futex_waitv)")),
    }
}

/// Wakes all waiters of the word. A failure is ignored: each wait has a time limit.
pub(crate) fn futex_wake(word: &AtomicU64) {
    // SAFETY: as in `futex_wait`. A wake-up accesses no memory.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            std::ptr::from_ref(word).cast::<u32>(),
            libc::FUTEX_WAKE,
            i32::MAX,
        );
    }
}

/// The processor on which this thread runs, if the kernel tells.
pub(crate) fn present_cpu() -> Option<u64> {
    // SAFETY: the call accesses no memory.
    let cpu = unsafe { libc::sched_getcpu() };
    u64::try_from(cpu).ok()
}

/// Creates an event descriptor: readable from a write until it is read. Reads and writes never
/// block, and `exec` closes it.
///
/// # Errors
/// `System` if the process has too many descriptors.
pub fn create_eventfd() -> Result<OwnedFd> {
    // SAFETY: the call accesses no memory.
    let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(failure("cannot create an event descriptor: raise the limit (ulimit -n)"));
    }
    // SAFETY: the descriptor is new, and no other code has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Creates a memory file of this size, allocated and sealed against changes of its size.
pub(crate) fn sealed_memory(bytes: u64) -> Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name ends with a NUL.
    let fd = unsafe { libc::memfd_create(c"nearstate-ring".as_ptr(), flags) };
    if fd < 0 {
        return Err(failure("cannot create the memory of a ring: raise the limit (ulimit -n)"));
    }
    // SAFETY: the descriptor is new, and no other code has it.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the call accesses no memory.
    if unsafe { libc::ftruncate(fd, bytes.cast_signed()) } != 0 {
        return Err(failure("cannot set the size of the memory of a ring"));
    }
    commit(file.as_fd(), 0, bytes)?;
    let seals = SEALS | libc::F_SEAL_SEAL;
    // SAFETY: the call accesses no memory.
    if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } != 0 {
        return Err(failure("cannot seal the memory of a ring"));
    }
    debug_assert!(is_sealed(file.as_fd()), "the client checks the seals");
    Ok(file)
}

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// True if the file is sealed against changes of its size.
pub(crate) fn is_sealed(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: the call accesses no memory.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & SEALS == SEALS
}

/// Signals that an instruction of the thread itself raises. If they are blocked, they end the
/// process.
const SYNCHRONOUS_SIGNALS: [libc::c_int; 5] =
    [libc::SIGBUS, libc::SIGSEGV, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];

/// Runs `call` with signals blocked in this thread. A thread that `call` starts inherits the mask,
/// so the signal handlers of the program run in its own threads only.
pub fn with_signals_blocked<T>(call: impl FnOnce() -> T) -> T {
    struct Before(libc::sigset_t);
    impl Drop for Before {
        fn drop(&mut self) {
            // SAFETY: the kernel has filled the set, which outlives the call.
            unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
            };
        }
    }
    // SAFETY: a `sigset_t` of zeros is valid.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `all` outlives the call.
    unsafe { libc::sigfillset(&raw mut all) };
    for signal in SYNCHRONOUS_SIGNALS {
        // SAFETY: `all` is initialized and outlives the call.
        unsafe { libc::sigdelset(&raw mut all, signal) };
    }
    let mut before = Before(all);
    // SAFETY: both sets outlive the call.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before.0) };
    call()
}

/// Kills this process with SIGKILL, or stops it with SIGSTOP.
#[cfg(feature = "crash-points")]
pub(crate) fn signal_self(is_stop: bool) {
    let signal = if is_stop { libc::SIGSTOP } else { libc::SIGKILL };
    // Directed to this thread, which otherwise runs on until another one has stopped it.
    // SAFETY: a signal to this process, which accesses no memory.
    unsafe { libc::raise(signal) };
}
