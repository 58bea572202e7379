//! A lock word: `owner:16 | payload:48`. Acquired by one compare-and-swap, released by one store.

use nearstate_model::invariant;

use crate::atomic::{AtomicU64, Ordering, mutant};

const OWNER_SHIFT: u32 = 48;

const _: () = assert!(OWNER_SHIFT == 48, "an owner has 16 bits, a payload 48");

/// The part of a lock word that is not its owner.
pub(crate) const PAYLOAD: u64 = (1 << OWNER_SHIFT) - 1;

/// The owner of a lock word: member index + 1, or 0.
#[inline]
pub(crate) const fn owner_of(word: u64) -> u64 {
    word >> OWNER_SHIFT
}

/// The member that an owner stands for. `owner` is not 0.
#[inline]
pub(crate) fn member_of(owner: u64) -> u32 {
    invariant!((1..1 << 16).contains(&owner), "{owner:#x} is no owner of a lock");
    owner as u32 - 1
}

/// Tries once. Returns the payload, or the current owner.
///
/// The acquire pairs with the release of [`release`] (O6 in `spec/region.md`).
#[inline]
pub(crate) fn try_take(word: &AtomicU64, me: u64) -> Result<u64, u64> {
    debug_assert!(me != 0 && me >> 16 == 0, "an owner is a member slot + 1");
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

/// Changes the payload of a lock that `me` holds, and keeps the lock.
#[inline]
pub(crate) fn hold_with(word: &AtomicU64, me: u64, payload: u64) {
    debug_assert!(me != 0 && me >> 16 == 0, "an owner is a member slot + 1");
    let order = if mutant("hold-relaxed") { Ordering::Relaxed } else { Ordering::Release };
    word.store(me << OWNER_SHIFT | payload & PAYLOAD, order);
}

/// Releases a lock with this payload.
#[inline]
pub(crate) fn release(word: &AtomicU64, payload: u64) {
    let order = if mutant("unlock-relaxed") { Ordering::Relaxed } else { Ordering::Release };
    word.store(payload & PAYLOAD, order);
}
