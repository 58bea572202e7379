//! Models of a hand-over (`cluster.rs`) against a writer of a logged namespace, and of two writers
//! that read after their commits.

use loom::sync::Arc;

use super::{check, start, wait_for};
use crate::atomic::{AtomicU64, Ordering, mutant};
use crate::index::bucket::{control, load, publish_before_reads};
use crate::member::lock;

pub(super) const MUTANTS: &[(&str, &str)] = &[
    ("fence-unlocked", HAND_OVER),
    ("fence-late", HAND_OVER),
    ("drain-no-lock", HAND_OVER),
    ("unlock-relaxed", HAND_OVER),
    ("commit-no-fence", COMMITS),
];

const HAND_OVER: &str = "fence::no_commit_is_behind_the_end_of_the_log_at_a_hand_over";

const COMMITS: &str = "fence::a_commit_is_visible_before_its_writer_reads";

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

/// Two buckets: the lock and an entry of each.
type TwoBuckets = [(AtomicU64, AtomicU64); 2];

/// Commits in one bucket, and returns what the other one has then.
fn commit_and_read([(lock, mine), (_, other)]: [&(AtomicU64, AtomicU64); 2], owner: u64) -> u64 {
    let payload = lock::try_take(lock, owner).unwrap();
    publish_before_reads(mine, 1);
    lock::release(lock, payload);
    load(other)
}

#[test]
fn a_commit_is_visible_before_its_writer_reads() {
    check(|| {
        let new = || (AtomicU64::new(control(3, 0)), AtomicU64::new(0));
        let shared: Arc<(TwoBuckets, AtomicU64)> = Arc::new(([new(), new()], AtomicU64::new(0)));
        let [one, two] = [1, 2].map(|owner: u64| {
            start(&shared, move |(buckets, seen)| {
                let [first, second] = buckets;
                let order = if owner == 1 { [first, second] } else { [second, first] };
                if commit_and_read(order, owner) == 0 {
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        wait_for([one, two]);
        let unseen = shared.1.load(Ordering::Relaxed);
        assert!(unseen < 2, "both writers read what was before both commits");
    });
}
