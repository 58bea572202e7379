//! Handles `SIGBUS`: a missing page of a region (its file was truncated) must not end the process.
//!
//! The handler looks up the address in a fixed list of mappings. If the address belongs to a
//! region, it maps a private page of zeros there, marks the region as damaged and returns; the
//! interrupted instruction continues. Every offset is checked on use, so zeros only lead to an
//! error. Any other address is passed to the handler that was installed before.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nearstate_model::{Error, Result, invariant};

use crate::system::failure;

/// Mappings that one process can guard at the same time. A process attaches to few regions. Each
/// attach of the same region counts.
const GUARDED_MAX: usize = 1024;

/// The word of a mapping that is usable. In a forked child the kernel clears it.
pub(crate) const USABLE: u64 = 1;
/// The word after a page was found missing. Not 0, because 0 stands for a forked child.
const DAMAGED: u64 = 2;

const _: () = assert!(USABLE != DAMAGED && USABLE != 0 && DAMAGED != 0, "0 is a forked child");

#[derive(Debug)]
struct Guarded {
    base: AtomicU64,
    bytes: AtomicU64,
    page: AtomicU64,
    /// Address of the word that says whether the mapping is usable.
    usable: AtomicU64,
    is_damaged: AtomicBool,
}

static GUARDED: [Guarded; GUARDED_MAX] = [const {
    Guarded {
        base: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        page: AtomicU64::new(4096),
        usable: AtomicU64::new(0),
        is_damaged: AtomicBool::new(false),
    }
}; GUARDED_MAX];

/// The handler that was installed before. Called for other addresses.
static PREVIOUS: OnceLock<Previous> = OnceLock::new();

struct Previous(libc::sigaction);

// SAFETY: a sigaction is plain data; it is written once, before the handler can run.
unsafe impl Send for Previous {}
// SAFETY: as above; it is only read afterwards.
unsafe impl Sync for Previous {}

/// A mapping's entry in the handler's list, until it is dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    entry: &'static Guarded,
}

impl Guard {
    /// Guards `bytes` from `base`, a mapping with pages of `page` bytes. `usable` is set to another
    /// value than [`USABLE`] once a page is found missing.
    pub(crate) fn new(
        base: NonNull<u8>,
        bytes: u64,
        page: u64,
        usable: NonNull<AtomicU64>,
    ) -> Result<Self> {
        invariant!(page.is_power_of_two(), "a page of {page} bytes");
        invariant!(bytes != 0, "an empty mapping is guarded");
        install()?;
        for entry in &GUARDED {
            let address = base.as_ptr() as u64;
            if entry.base.compare_exchange(0, address, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                entry.is_damaged.store(false, Ordering::Relaxed);
                entry.page.store(page, Ordering::Relaxed);
                entry.usable.store(usable.as_ptr() as u64, Ordering::Relaxed);
                entry.bytes.store(bytes, Ordering::Release);
                return Ok(Self { entry });
            }
        }
        Err(Error::Full {
            detail: format!("this process has {GUARDED_MAX} regions mapped: detach from some"),
            heap: None,
        })
    }

    /// True once a page of the mapping was found missing.
    #[inline]
    pub(crate) fn is_damaged(&self) -> bool {
        self.entry.is_damaged.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.entry.bytes.store(0, Ordering::Release);
        self.entry.base.store(0, Ordering::Release);
    }
}

/// Installs the handler, once. Returns when it is there, also if another thread installs it.
fn install() -> Result<()> {
    static INSTALLED: OnceLock<Result<()>> = OnceLock::new();
    INSTALLED.get_or_init(install_now).clone()
}

fn install_now() -> Result<()> {
    // SAFETY: all-zero bytes are a valid sigaction (default action, empty mask).
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: as above.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: reads the current action into a whole sigaction.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) } != 0 {
        return Err(failure("cannot read the SIGBUS action"));
    }
    let is_first = PREVIOUS.set(Previous(before)).is_ok();
    invariant!(is_first, "the SIGBUS handler is installed twice");
    // SAFETY: `on_signal` has the SA_SIGINFO signature and only does what a handler may.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) } != 0 {
        return Err(failure("cannot install the SIGBUS handler"));
    }
    Ok(())
}

extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid siginfo that lives through the handler.
    let Some(info_ref) = (unsafe { info.as_ref() }) else { return };
    // SAFETY: the address is set for SIGBUS.
    let address = unsafe { info_ref.si_addr() } as u64;
    for entry in &GUARDED {
        let base = entry.base.load(Ordering::Acquire);
        let bytes = entry.bytes.load(Ordering::Acquire);
        if base != 0 && address.wrapping_sub(base) < bytes {
            let page = entry.page.load(Ordering::Relaxed);
            entry.is_damaged.store(true, Ordering::Relaxed);
            let usable = entry.usable.load(Ordering::Relaxed) as *const AtomicU64;
            // SAFETY: the word lives as long as the entry; `Map` drops the guard first.
            if let Some(usable) = unsafe { usable.as_ref() } {
                // A forked child stays one.
                let (from, to, order) = (USABLE, DAMAGED, Ordering::Relaxed);
                let _ = usable.compare_exchange(from, to, order, order);
            }
            // SAFETY: the page is in a guarded mapping, and its file does not contain it any more.
            // Its bytes cannot be read, so replacing it by zeros changes no readable byte.
            let mapped = unsafe {
                libc::mmap(
                    (address & !(page - 1)) as *mut c_void,
                    page as usize,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                    -1,
                    0,
                )
            };
            if mapped != libc::MAP_FAILED {
                return;
            }
        }
    }
    forward(signal, info, context);
}

/// Passes a signal for another address to the previous handler. By default the process ends.
fn forward(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    if let Some(Previous(before)) = PREVIOUS.get() {
        let action = before.sa_sigaction;
        if action != libc::SIG_DFL && action != libc::SIG_IGN {
            if before.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: the previous owner installed this address with SA_SIGINFO.
                let call: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) =
                    unsafe { std::mem::transmute(action) };
                call(signal, info, context);
            } else {
                // SAFETY: the previous owner installed this address as a plain handler.
                let call: extern "C" fn(i32) = unsafe { std::mem::transmute(action) };
                call(signal);
            }
            return;
        }
    }
    // SAFETY: restores the default action; returning repeats the access, which then ends the
    // process.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}
