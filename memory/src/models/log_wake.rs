//! Model of the processes that wait for an acknowledgement (`log/wake.rs`).

use super::{check, start, wait_for};
use crate::atomic::{AtomicU64, Ordering};
use crate::log::wake::{announce, must_wake_sleepers, register_sleeper};

const AWAITED: &str = "log_wake::no_waiter_sleeps_behind_its_acknowledgement";

/// The mutants, and for each the model that must fail.
pub(super) const MUTANTS: &[(&str, &str)] = &[
    ("sleeper-no-fence", AWAITED),
    ("acknowledge-no-fence", AWAITED),
    ("acknowledge-once", AWAITED),
    ("sleeper-not-counted", AWAITED),
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
