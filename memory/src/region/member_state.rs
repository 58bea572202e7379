//! The state word of a member slot: `state:8 | recoverer:16 | incarnation:40` (`spec/region.md`,
//! "Member" and section 4).
//!
//! ```text
//! recoverer                                   next owner of the slot
//! W1  win: alive -> recovering by me (CAS)    C1  state is free     (acquire, pairs with W3)
//! W2  finish the dead member's work           C2  fill the identity
//! W3  free                   (release)        C3  state := alive    (release)
//! ```

use crate::atomic::{AtomicU64, Ordering, mutant};

/// No session owns the slot. Its arena may hold free cells.
pub(crate) const FREE: u64 = 0;
/// A session owns the slot.
pub(crate) const ALIVE: u64 = 1;
/// Its process is dead, and another member recovers it.
pub(crate) const RECOVERING: u64 = 2;

pub(crate) const fn of(word: u64) -> u64 {
    word >> 56
}

pub(crate) const fn recoverer(word: u64) -> u64 {
    word >> 40 & 0xffff
}

pub(crate) const fn make(state: u64, recoverer: u64, incarnation: u64) -> u64 {
    debug_assert!(state <= RECOVERING, "a slot has one of three states");
    debug_assert!(recoverer >> 16 == 0, "a recoverer is a member slot + 1");
    state << 56 | recoverer << 40 | incarnation & 0xff_ffff_ffff
}

pub(crate) const fn incarnation(word: u64) -> u64 {
    word & 0xff_ffff_ffff
}

/// W1: true if `me` alone recovers the member that was found in state `seen`. Acquire: the winner
/// sees the work of a recoverer that died before.
pub(crate) fn win(word: &AtomicU64, seen: u64, me: u64) -> bool {
    debug_assert!(me != 0 && me >> 16 == 0, "a recoverer is a member slot + 1");
    debug_assert!(of(seen) != FREE, "a free slot needs no recovery");
    let claimed = make(RECOVERING, me, incarnation(seen));
    if mutant("win-without-swap") {
        word.store(claimed, Ordering::Release);
        return true;
    }
    word.compare_exchange(seen, claimed, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// W3: frees the slot. Its next owner sees all that was done before.
pub(crate) fn free(word: &AtomicU64, seen: u64) {
    let order = if mutant("free-relaxed") { Ordering::Relaxed } else { Ordering::Release };
    word.store(make(FREE, 0, incarnation(seen)), order);
}
