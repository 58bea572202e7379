//! Model of a hand-over (`cluster.rs`) against a writer of a logged namespace.

use loom::sync::Arc;

use super::{check, start, wait_for};
use crate::atomic::{AtomicU64, Ordering, mutant};
use crate::index::bucket::control;
use crate::member::lock;

pub(super) const MUTANTS: &[(&str, &str)] = &[
    ("fence-unlocked", HAND_OVER),
    ("fence-late", HAND_OVER),
    ("drain-no-lock", HAND_OVER),
    ("unlock-relaxed", HAND_OVER),
];

const HAND_OVER: &str = "fence::no_commit_is_behind_the_end_of_the_log_at_a_hand_over";

struct FencedLog {
    fenced: AtomicU64,
    control: AtomicU64,
    /// The end of the log.
    tail: AtomicU64,
    /// What the hand-over has read of it.
    end: AtomicU64,
}

impl FencedLog {
    fn lock(&self, owner: u64) -> u64 {
        loop {
            match lock::try_take(&self.control, owner) {
                Ok(payload) => return payload,
                Err(_) => loom::thread::yield_now(),
            }
        }
    }

    fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire) != 0
    }

    /// G1 to G3.
    fn commit(&self) {
        let early = mutant("fence-unlocked").then(|| self.is_fenced());
        let payload = self.lock(1);
        if !early.unwrap_or_else(|| self.is_fenced()) {
            // The log orders its own words. Here only the lock does.
            self.tail.store(1, Ordering::Relaxed);
        }
        lock::release(&self.control, payload);
    }

    /// H1 to H3.
    fn hand_over(&self) {
        let is_late = mutant("fence-late");
        if !is_late {
            self.fenced.store(1, Ordering::Release);
        }
        if !mutant("drain-no-lock") {
            let payload = self.lock(2);
            lock::release(&self.control, payload);
        }
        if is_late {
            self.fenced.store(1, Ordering::Release);
        }
        self.end.store(self.tail.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[test]
fn no_commit_is_behind_the_end_of_the_log_at_a_hand_over() {
    check(|| {
        let shared = Arc::new(FencedLog {
            fenced: AtomicU64::new(0),
            control: AtomicU64::new(control(3, 0)),
            tail: AtomicU64::new(0),
            end: AtomicU64::new(0),
        });
        let writing = start(&shared, FencedLog::commit);
        let handing_over = start(&shared, FencedLog::hand_over);
        wait_for([writing, handing_over]);
        let [tail, end] = [&shared.tail, &shared.end].map(|word| word.load(Ordering::Relaxed));
        assert_eq!(tail, end, "a commit that the next owner has not");
    });
}
