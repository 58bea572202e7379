//! The state word of a member slot: `state:8 | holder:16 | incarnation:40` (`spec/region.md`,
//! "Member" and section 4).
//!
//! The word names its holder: the liveness number of a process, or the recoverer. One
//! compare-and-swap changes state, holder and incarnation together, so no process can take a slot
//! for that of another process, and no process needs a lock to take a slot.
//!
//! ```text
//! recoverer                                   next owner of the slot
//! W1  win: dead -> recovering by me (CAS)     C1  claim: free -> claiming by me (CAS)
//! W2  finish the dead member's work           C2  fill the identity
//! W3  free                   (release)        C3  claiming -> alive (CAS, release)
//!
//! C1 acquires what W3 released. A process without a slot can also claim the slot of a dead
//! member (C1 from alive or claiming). The new owner then does W2 for its own slot after C3.
//! ```

use crate::atomic::{AtomicU64, Ordering, mutant};

/// No session owns the slot. Its arena may hold free cells.
pub(crate) const FREE: u64 = 0;
/// A session of the process with the holder's number owns the slot.
pub(crate) const ALIVE: u64 = 1;
/// Its process is dead. The member in slot holder - 1 recovers it.
pub(crate) const RECOVERING: u64 = 2;
/// As alive, but the identity in the slot is not yet that of the process.
pub(crate) const CLAIMING: u64 = 3;

/// The liveness number that no process has: a slot that names it belongs to a dead process.
pub(crate) const NO_PROCESS: u64 = 0;

/// The largest liveness number. The slots name at most 16,384 numbers of dead processes, so 49,151
/// processes can be attached even if every slot belongs to a dead one.
pub(crate) const NUMBERS_MAX: u64 = 0xffff;

pub(crate) const fn of(word: u64) -> u64 {
    word >> 56
}

/// The liveness number of the process that owns the slot. Meaningful in states alive and claiming.
pub(crate) const fn process(word: u64) -> u64 {
    word >> 40 & 0xffff
}

/// The recoverer: member slot + 1. Meaningful in state recovering.
pub(crate) const fn recoverer(word: u64) -> u64 {
    word >> 40 & 0xffff
}

/// True if a process owns the slot, dead or alive.
pub(crate) const fn is_owned(word: u64) -> bool {
    of(word) == ALIVE || of(word) == CLAIMING
}

pub(crate) const fn make(state: u64, holder: u64, incarnation: u64) -> u64 {
    debug_assert!(state <= CLAIMING, "a slot has one of four states");
    debug_assert!(holder >> 16 == 0, "a holder has 16 bits");
    state << 56 | holder << 40 | incarnation & 0xff_ffff_ffff
}

/// Holder and incarnation: which session owns a slot.
pub(crate) const fn owner(word: u64) -> u64 {
    word & ((1 << 56) - 1)
}

pub(crate) const fn incarnation(word: u64) -> u64 {
    word & 0xff_ffff_ffff
}

/// C1: claims a slot that was found free, or owned by a dead process, in state `seen`. Returns the
/// word to pass to [`set_alive`], or `None` if the slot has changed. The incarnation grows, so a
/// recoverer that found the dead member cannot win the new one.
pub(crate) fn claim(word: &AtomicU64, seen: u64, process: u64) -> Option<u64> {
    debug_assert!(process != NO_PROCESS, "a living process has a number");
    debug_assert!(of(seen) != RECOVERING, "a slot that is being recovered is not claimed");
    let grown = u64::from(!mutant("claim-same-incarnation"));
    let mine = make(CLAIMING, process, incarnation(seen) + grown);
    if mutant("claim-without-swap") {
        word.store(mine, Ordering::Relaxed);
        return Some(mine);
    }
    let success = if mutant("claim-relaxed") { Ordering::Relaxed } else { Ordering::Acquire };
    word.compare_exchange(seen, mine, success, Ordering::Relaxed).ok().map(|_| mine)
}

/// C3: the identity is complete. False if the slot was taken away, which only happens if the
/// process's liveness lock is lost.
pub(crate) fn set_alive(word: &AtomicU64, claimed: u64) -> bool {
    debug_assert!(of(claimed) == CLAIMING, "a slot is claimed before it is alive");
    let alive = make(ALIVE, process(claimed), incarnation(claimed));
    let success = if mutant("alive-relaxed") { Ordering::Relaxed } else { Ordering::Release };
    word.compare_exchange(claimed, alive, success, Ordering::Relaxed).is_ok()
}

/// True if a slot that was claimed is still that of its claimer, which has found the region open. A
/// repair that ended in between may have made it free.
pub(crate) fn is_claimed(word: &AtomicU64, claimed: u64) -> bool {
    debug_assert!(of(claimed) == CLAIMING, "a slot is claimed before it is alive");
    word.load(Ordering::Relaxed) == claimed || mutant("claim-unverified")
}

/// Gives a slot back that was claimed from state `seen`, before anything else of it was changed:
/// the region is closed. A repair may have made it free, and another session may own it by now:
/// then nothing changes. A slot that was claimed from a dead member stays one of a dead process.
pub(crate) fn give_back(word: &AtomicU64, seen: u64, claimed: u64) {
    debug_assert!(of(claimed) == CLAIMING, "a slot that is alive is not given back");
    let state = if of(seen) == FREE { FREE } else { CLAIMING };
    let left = make(state, NO_PROCESS, incarnation(claimed));
    if mutant("give-back-without-swap") {
        word.store(left, Ordering::Relaxed);
        return;
    }
    let _ = word.compare_exchange(claimed, left, Ordering::Relaxed, Ordering::Relaxed);
}

/// Makes a slot free, in a repair: no session is open, but one that opens may have claimed the slot
/// and be about to [give it back](give_back). True if the slot was not free.
pub(crate) fn reset(word: &AtomicU64) -> bool {
    let mut seen = word.load(Ordering::Acquire);
    loop {
        let free = make(FREE, 0, incarnation(seen));
        if seen == free {
            return false;
        }
        if mutant("reset-without-swap") {
            word.store(free, Ordering::Release);
            return true;
        }
        match word.compare_exchange(seen, free, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return true,
            Err(now) => seen = now,
        }
    }
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

/// Ends a recovery that failed, so that another member may try. The slot does not get the number of
/// the dead process back: during the recovery no slot named that number, so it may belong to a
/// living process now.
pub(crate) fn give_up(word: &AtomicU64, seen: u64) {
    let left = if of(seen) == RECOVERING {
        seen
    } else {
        let number = if mutant("give-up-with-number") { process(seen) } else { NO_PROCESS };
        make(of(seen), number, incarnation(seen))
    };
    word.store(left, Ordering::Release);
}
