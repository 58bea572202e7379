//! The word that says who has a member's slot: `state:8 | recoverer:16 | incarnation:40`
//! (`spec/region.md`, "Member" and section 4).
//!
//! ```text
//! recoverer                                   next owner of the slot
//! W1  win: alive -> recovering by me (CAS)    C1  state is free     (acquire, pairs with W3)
//! W2  settle what the dead member left        C2  fill the identity
//! W3  free                   (release)        C3  state := alive    (release)
//! ```

use crate::atomic::{AtomicU64, Ordering, mutant};

/// Nobody has it. An arena with free cells may wait in it.
pub(crate) const FREE: u64 = 0;
/// A session has it.
pub(crate) const ALIVE: u64 = 1;
/// Its process is dead and another member is putting its work in order.
pub(crate) const RECOVERING: u64 = 2;

pub(crate) const fn of(word: u64) -> u64 {
    word >> 56
}

pub(crate) const fn recoverer(word: u64) -> u64 {
    word >> 40 & 0xffff
}

pub(crate) const fn make(state: u64, recoverer: u64, incarnation: u64) -> u64 {
    state << 56 | recoverer << 40 | incarnation & 0xff_ffff_ffff
}

pub(crate) const fn incarnation(word: u64) -> u64 {
    word & 0xff_ffff_ffff
}

/// W1: true if recovering the member that was found in state `seen` is up to `me` alone. Acquire,
/// so that the winner sees what a recoverer that died before it has done.
pub(crate) fn win(word: &AtomicU64, seen: u64, me: u64) -> bool {
    let mine = make(RECOVERING, me, incarnation(seen));
    if mutant("win-without-swap") {
        word.store(mine, Ordering::Release);
        return true;
    }
    word.compare_exchange(seen, mine, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// W3: the slot is nobody's, and whoever takes it sees all that was done.
pub(crate) fn free(word: &AtomicU64, seen: u64) {
    let order = if mutant("free-relaxed") { Ordering::Relaxed } else { Ordering::Release };
    word.store(make(FREE, 0, incarnation(seen)), order);
}
