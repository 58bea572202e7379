//! The word of those that wait for acknowledgements (`spec/region.md`, section 11;
//! `docs/decisions/044-replication-waits.md`).
//!
//! ```text
//! waiter                                      process that acknowledges
//! S1  awaited := 1; loads, and does not sleep A1  replicated := position
//! S2  sleeps := 1                             A2  fence
//! S3  fence                                   A3  both := 0, if one is 1, and one more wake-up if
//! S4  sleep only if the position is pending       `sleeps` was: then wake all
//!     and the low half is the one of S2
//! ```
//!
//! Either A3 sees S2 or S4 sees A1, so no waiter sleeps behind its acknowledgement. A waiter
//! between S1 and S2 costs A3 no system call. A3 is repeated until no other thread has changed the
//! word meanwhile: S1 of one waiter changes the word of another one that sleeps.
//!
//! ```text
//! waiter, the first one                       source that has sent everything
//! S1  awaited := 1                            D1  asleep := 1 in the word of the doorbell
//! B1  fence                                   D2  fence
//! B2  asleep is 1: make it 0 and wake all     D3  sleep only if none is awaited and the low half
//!                                                 of the doorbell is the one of D1
//! ```
//!
//! Either B2 sees D1 or D3 sees S1, so no source sleeps while a process waits. A process that finds
//! another one announced rings nothing: that one does, or the source sleeps at its socket.
//!
//! *Sleeps* is the bit of the waiters of a ring, and the kernel compares the low half only. So a
//! process of an earlier build, which knows no other bit, sleeps and is woken as before.

use crate::atomic::{AtomicU64, Ordering, fence, mutant};
use crate::layout::{Corruption, LOG_DOORBELL, LOG_WAKE};
use crate::region::map::Map;
use crate::ring::words::{must_wake_waiters, register_waiter};
use crate::system::futex_wake;

/// A waiter sleeps, or is about to.
const SLEEPS: u64 = 1;

/// A waiter looks again and again, or has announced that a thread will wait. Not in the half that
/// the kernel compares.
const AWAITED: u64 = 1 << 32;

const _: () = assert!(SLEEPS == 1, "the sum with it clears the bit and counts a wake-up");
const _: () = assert!(AWAITED > u32::MAX as u64, "the kernel does not compare it");

/// S1. True if no other waiter has done so since the last acknowledgement.
pub(crate) fn announce(word: &AtomicU64) -> bool {
    word.fetch_or(AWAITED, Ordering::AcqRel) & AWAITED == 0
}

/// S1, B1 and B2: whether the waiter is the first one, and whether it has to wake sources.
pub(crate) fn announce_at(word: &AtomicU64, doorbell: &AtomicU64) -> (bool, bool) {
    if mutant("ring-before") {
        let must_wake = must_wake_waiters(doorbell);
        return (announce(word), must_wake);
    }
    let is_first = announce(word);
    (is_first, is_first && must_wake_waiters(doorbell))
}

/// Announces a waiter to the sources of a region's log. True if it is the first one.
pub(crate) fn announce_in(map: &Map) -> Result<bool, Corruption> {
    let doorbell = map.word(LOG_DOORBELL)?;
    let (is_first, must_wake) = announce_at(map.word(LOG_WAKE)?, doorbell);
    if must_wake {
        futex_wake(doorbell);
    }
    Ok(is_first)
}

/// D1 to D3: with what a source has to sleep, or `None` if a process waits.
pub(crate) fn register_source(word: &AtomicU64, doorbell: &AtomicU64) -> Option<u32> {
    let seen = register_waiter(doorbell);
    (!is_awaited(word)).then_some(seen)
}

/// True if a waiter has announced itself since the last acknowledgement. A hint.
pub(crate) fn is_announced(word: &AtomicU64) -> bool {
    word.load(Ordering::Relaxed) & AWAITED != 0
}

/// True if an acknowledgement may be waited for. A hint, without the fence of A2.
pub(crate) fn is_awaited(word: &AtomicU64) -> bool {
    word.load(Ordering::Relaxed) & (AWAITED | SLEEPS) != 0
}

/// S2 and S3. The low half of the word, with which the kernel compares it.
pub(crate) fn register_sleeper(word: &AtomicU64) -> u32 {
    let seen = word.fetch_or(SLEEPS, Ordering::AcqRel) | SLEEPS;
    if !mutant("sleeper-no-fence") {
        fence(Ordering::SeqCst);
    }
    seen as u32
}

/// A2 and A3. True if a waiter may sleep and the caller has to wake it.
pub(crate) fn must_wake_sleepers(word: &AtomicU64) -> bool {
    if !mutant("acknowledge-no-fence") {
        fence(Ordering::SeqCst);
    }
    let mut seen = word.load(Ordering::Relaxed);
    loop {
        if seen & (AWAITED | SLEEPS) == 0 {
            return false;
        }
        let is_asleep = seen & SLEEPS != 0 && !mutant("sleeper-not-counted");
        let low = (seen as u32).wrapping_add(u32::from(is_asleep));
        let next = (seen & !AWAITED & !u64::from(u32::MAX)) | u64::from(low);
        match word.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return is_asleep,
            Err(_) if mutant("acknowledge-once") => return false,
            Err(changed) => seen = changed,
        }
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_that_does_not_sleep_costs_no_wake_up() {
        let word = AtomicU64::new(u64::from(u32::MAX - 1));
        assert!(!is_awaited(&word) && !must_wake_sleepers(&word));
        assert!(announce(&word) && is_awaited(&word) && is_announced(&word));
        assert!(!announce(&word), "another one is the first");
        assert!(!must_wake_sleepers(&word) && !is_awaited(&word));
        // Both, at the highest number of wake-ups.
        assert!(announce(&word));
        let seen = register_sleeper(&word);
        assert_eq!(seen, u32::MAX);
        assert!(must_wake_sleepers(&word));
        assert_eq!(word.load(Ordering::Relaxed), 0, "a wake-up more, and no bit of the upper half");
    }

    #[test]
    fn a_sleeper_alone_is_awaited_and_leaves_the_first_place_to_another_one() {
        let word = AtomicU64::new(0);
        register_sleeper(&word);
        assert!(is_awaited(&word) && !is_announced(&word) && announce(&word));
    }

    /// As `ring::words`: the word of a build that knows one bit.
    #[test]
    fn earlier_builds_wake_and_are_woken() {
        use crate::ring::words::{must_wake_waiters, register_waiter};
        let word = AtomicU64::new(0);
        let seen = register_waiter(&word);
        assert!(is_awaited(&word) && must_wake_sleepers(&word));
        assert_ne!(word.load(Ordering::Relaxed) as u32, seen);
        announce(&word);
        let seen = register_sleeper(&word);
        assert!(must_wake_waiters(&word));
        assert_ne!(word.load(Ordering::Relaxed) as u32, seen);
    }
}
