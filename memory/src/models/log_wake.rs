//! Model of the processes that wait for an acknowledgement (`log/wake.rs`).

use super::{check, start, wait_for};
use crate::atomic::{AtomicU64, Ordering};
use crate::log::wake::{
    announce, announce_at, must_wake_sleepers, register_sleeper, register_source,
};

const DOORBELL: &str = "log_wake::no_source_sleeps_while_a_process_waits";
const AWAITED: &str = "log_wake::no_waiter_sleeps_behind_its_acknowledgement";

/// The mutants, and for each the model that must fail.
pub(super) const MUTANTS: &[(&str, &str)] = &[
    ("sleeper-no-fence", AWAITED),
    ("acknowledge-no-fence", AWAITED),
    ("acknowledge-once", AWAITED),
    ("sleeper-not-counted", AWAITED),
    ("register_waiter-no-fence", DOORBELL),
    ("wake-no-fence", DOORBELL),
    ("ring-before", DOORBELL),
];

struct Words {
    /// The position that was acknowledged.
    replicated: AtomicU64,
    /// The futex word.
    wake: AtomicU64,
    /// For each waiter the low half with which it sleeps, or 0.
    asleep: [AtomicU64; 2],
}

/// Waits for position 1. One that announces itself looks once before it sleeps.
fn wait(words: &Words, waiter: usize, announces: bool) {
    let is_pending = || words.replicated.load(Ordering::Acquire) == 0;
    if announces {
        announce(&words.wake);
        if !is_pending() {
            return;
        }
    }
    let seen = register_sleeper(&words.wake);
    if is_pending() {
        words.asleep[waiter].store(u64::from(seen), Ordering::Relaxed);
    }
}

#[test]
fn no_waiter_sleeps_behind_its_acknowledgement() {
    check(|| {
        let words = loom::sync::Arc::new(Words {
            replicated: AtomicU64::new(0),
            wake: AtomicU64::new(0),
            asleep: [AtomicU64::new(0), AtomicU64::new(0)],
        });
        let waiting = [true, false].map(|announces| {
            start(&words, move |words: &Words| wait(words, usize::from(announces), announces))
        });
        let acknowledging = start(&words, |words: &Words| {
            words.replicated.fetch_max(1, Ordering::AcqRel);
            must_wake_sleepers(&words.wake);
        });
        wait_for(waiting);
        wait_for([acknowledging]);
        // As in the model of rings: a waiter whose half of the word is unchanged sleeps on.
        let low = u64::from(words.wake.load(Ordering::Relaxed) as u32);
        for asleep in &words.asleep {
            let seen = asleep.load(Ordering::Relaxed);
            assert!(seen == 0 || seen != low, "a waiter sleeps and was not woken");
        }
    });
}

/// Two processes wait, and a source that has sent everything goes to sleep. Only the first process
/// rings.
#[test]
fn no_source_sleeps_while_a_process_waits() {
    check(|| {
        // The word of waits, the doorbell, and the low half with which the source sleeps, or 0.
        let words = loom::sync::Arc::new([0, 0, 0].map(AtomicU64::new));
        let waiting = [0, 1].map(|_| {
            start(&words, |[word, doorbell, _]: &[AtomicU64; 3]| {
                announce_at(word, doorbell);
            })
        });
        let resting = start(&words, |[word, doorbell, asleep]: &[AtomicU64; 3]| {
            let seen = register_source(word, doorbell).map_or(0, u64::from);
            asleep.store(seen, Ordering::Relaxed);
        });
        wait_for(waiting);
        wait_for([resting]);
        let [_, doorbell, asleep] = &*words;
        let seen = asleep.load(Ordering::Relaxed);
        let low = u64::from(doorbell.load(Ordering::Relaxed) as u32);
        assert!(seen == 0 || seen != low, "a source sleeps and was not woken");
    });
}
