//! A lock word: `owner:16 | payload:48`. Taken by one compare-and-swap, released by one store.

use crate::atomic::{AtomicU64, Ordering, mutant};

const OWNER_SHIFT: u32 = 48;

/// The part of a lock word that is not its owner.
pub(crate) const PAYLOAD: u64 = (1 << OWNER_SHIFT) - 1;

/// Who owns a lock word: member index + 1, or 0 for nobody.
#[inline]
pub(crate) const fn owner_of(word: u64) -> u64 {
    word >> OWNER_SHIFT
}

/// Tries once. Returns the payload, or the owner that has it.
///
/// The acquire pairs with the release of [`release`] (O6 in `spec/region.md`).
#[inline]
pub(crate) fn try_take(word: &AtomicU64, me: u64) -> Result<u64, u64> {
    let seen = word.load(Ordering::Relaxed);
    if owner_of(seen) != 0 {
        return Err(owner_of(seen));
    }
    let success = if mutant("lock-relaxed") { Ordering::Relaxed } else { Ordering::Acquire };
    match word.compare_exchange(seen, seen | me << OWNER_SHIFT, success, Ordering::Relaxed) {
        Ok(_) => Ok(seen),
        Err(now) => Err(owner_of(now)),
    }
}

/// Changes the payload of a lock that `me` owns, and keeps it.
#[inline]
pub(crate) fn hold_with(word: &AtomicU64, me: u64, payload: u64) {
    let order = if mutant("hold-relaxed") { Ordering::Relaxed } else { Ordering::Release };
    word.store(me << OWNER_SHIFT | payload & PAYLOAD, order);
}

/// Gives a lock back with this payload, and lets no later load of this thread overtake what was
/// written before: a commit is there for everybody before its caller reads anything else.
#[inline]
pub(crate) fn release_before_reads(word: &AtomicU64, payload: u64) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    {
        // A locked exchange drains the store buffer for half of what a fence costs.
        word.swap(payload & PAYLOAD, Ordering::SeqCst);
    }
    #[cfg(any(not(target_arch = "x86_64"), loom))]
    {
        release(word, payload);
        crate::atomic::fence(Ordering::SeqCst);
    }
}

/// Gives a lock back with this payload.
#[inline]
pub(crate) fn release(word: &AtomicU64, payload: u64) {
    let order = if mutant("unlock-relaxed") { Ordering::Relaxed } else { Ordering::Release };
    word.store(payload & PAYLOAD, order);
}
