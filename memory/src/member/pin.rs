//! Pins and the epoch (`spec/region.md`, section 6): how a reader protects what it reads from reuse
//! without a lock, a fence or a shared line.
//!
//! ```text
//! reader                              reclaimer
//! P1  e = epoch        (acquire)      U1  unlink the cell
//! P2  pin = e                         U2  r = epoch, kept in the cell
//! P3  light barrier    pairs with A2  A1  e = epoch
//! P4  load entries, cells             A2  heavy barrier            pairs with P3
//! P5  pin = 0          (release)      A3  epoch: e -> e + 1  (CAS, release)
//!                                     A4  safe = least pin, or e + 1
//!                                     A5  reuse the cell if r + 2 <= safe
//! ```
//!
//! The heavy barrier is `membarrier(2)`. The light barrier only prevents the compiler from moving
//! P4 before P2. In a fenced region both are full fences.

use crate::atomic::{AtomicU64, Ordering, compiler_fence, fence, mutant};
use crate::crash::crash_point;
use crate::layout::{Corruption, seal, unseal};

const EPOCH: &str = "the epoch word has a flipped bit";

/// The retirement epoch of a cell that no reader has seen: before the first epoch of a region.
pub(crate) const NEVER_READ: u64 = 1;

/// Pins the current epoch.
#[inline]
pub(crate) fn pin(epoch: &AtomicU64, pin: &AtomicU64, is_fenced: bool) {
    let now = epoch.load(Ordering::Acquire) >> 16;
    pin.store(now, Ordering::Relaxed);
    if is_fenced && !mutant("pin-no-fence") {
        full_fence();
    } else {
        compiler_fence(Ordering::SeqCst);
    }
}

/// Out of line, so that the usual read path contains no locked instruction.
#[cold]
#[inline(never)]
fn full_fence() {
    fence(Ordering::SeqCst);
}

/// Ends a pin: nothing that was read through it is used any more.
#[inline]
pub(crate) fn unpin(pin: &AtomicU64) {
    let order = if mutant("unpin-relaxed") { Ordering::Relaxed } else { Ordering::Release };
    pin.store(0, order);
}

/// The epoch to store in a cell that was unlinked just now.
#[inline]
pub(crate) fn retire_epoch(epoch: &AtomicU64, is_fenced: bool) -> u64 {
    if is_fenced && !mutant("retire-no-fence") {
        fence(Ordering::SeqCst);
    } else {
        // U1 precedes U2 in program order; the barrier A2 of other members does the rest.
        compiler_fence(Ordering::SeqCst);
    }
    epoch.load(Ordering::Acquire) >> 16
}

/// Advances the epoch by one and returns it. `heavy` is the barrier A2. If it fails, the epoch is
/// not changed and the result is 0: nothing below is safe.
///
/// # Errors
/// A flipped bit in the epoch's word.
pub(crate) fn advance(epoch: &AtomicU64, heavy: impl Fn() -> bool) -> Result<u64, Corruption> {
    let seen = epoch.load(Ordering::Acquire);
    let now = unseal(seen, EPOCH)?;
    if !mutant("advance-no-barrier") && !heavy() {
        return Ok(0); // No barrier, nothing is safe.
    }
    match epoch.compare_exchange(seen, seal(now + 1), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            crash_point!("epoch.moved");
            Ok(now + 1)
        }
        Err(other) => unseal(other, EPOCH),
    }
}

/// The epoch that is safe after an advance to `now`: the minimum of it and all pins.
pub(crate) fn safe<'a>(now: u64, pins: impl Iterator<Item = &'a AtomicU64>) -> u64 {
    let order = if mutant("scan-relaxed") { Ordering::Relaxed } else { Ordering::Acquire };
    pins.map(|pin| pin.load(order)).filter(|pin| *pin != 0).fold(now, u64::min)
}

/// True if a cell that was retired in epoch `retired` may be reused.
#[inline]
pub(crate) fn is_reusable(retired: u64, safe: u64) -> bool {
    let distance = if mutant("reuse-early") { 1 } else { 2 };
    retired.saturating_add(distance) <= safe
}
