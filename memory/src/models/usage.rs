//! Models of the usage of a namespace (`usage.rs`): commits that grow it together, a commit that is
//! rolled back, and the count of the records that it has.

use loom::sync::Arc;

use super::{check, start, take, wait_for};
use crate::atomic::{AtomicU64, Ordering, mutant};
use crate::layout::seal;
use crate::member::lock;
use crate::usage::{ALL_COUNTED, changed, is_counted, parse_counted, reserve, units_in};

pub(super) const MUTANTS: &[(&str, &str)] = &[
    ("usage-no-fence", GROWTH),
    ("usage-unreserved", GROWTH),
    ("usage-early-shrink", SHRINK),
    ("count-unlocked", COUNT),
    ("count-early", COUNT),
];

const GROWTH: &str = "usage::two_commits_do_not_exceed_a_limit_together";
const SHRINK: &str = "usage::a_delete_that_is_rolled_back_lends_no_memory";
const COUNT: &str = "usage::each_record_is_counted_once";

const LIMIT: u64 = 10;

struct Usage {
    words: [AtomicU64; 2],
    /// Units that were added by decided commits.
    added: AtomicU64,
}

impl Usage {
    fn new(before: u64) -> Arc<Self> {
        let words = [AtomicU64::new(0), AtomicU64::new(before)];
        Arc::new(Self { words, added: AtomicU64::new(0) })
    }

    /// A commit of owner `index + 1`, which other reasons may roll back.
    fn commit(&self, index: usize, delta: i64, is_rolled_back: bool) {
        let (word, me) = (&self.words[index], index as u64 + 1);
        let before = take(word, me);
        let grows = reserve(word, me, before, delta);
        let is_refused = grows && units_in(&self.words) > LIMIT;
        if is_refused || is_rolled_back {
            lock::release(word, before);
        } else {
            let added = delta.max(0).cast_unsigned();
            self.added.fetch_add(added, Ordering::Relaxed);
            lock::release(word, changed(before, delta));
        }
    }
}

#[test]
fn two_commits_do_not_exceed_a_limit_together() {
    check(|| {
        let shared = Usage::new(0);
        let one = start(&shared, |usage| usage.commit(0, 6, false));
        let other = start(&shared, |usage| usage.commit(1, 6, false));
        wait_for([one, other]);
        let added = shared.added.load(Ordering::Relaxed);
        assert!(added <= LIMIT, "{added} units of {LIMIT}");
        assert_eq!(units_in(&shared.words), added);
    });
}

#[test]
fn a_delete_that_is_rolled_back_lends_no_memory() {
    check(|| {
        let shared = Usage::new(8);
        let deleting = start(&shared, |usage| usage.commit(1, -8, true));
        let growing = start(&shared, |usage| usage.commit(0, 6, false));
        wait_for([deleting, growing]);
        assert_eq!(shared.added.load(Ordering::Relaxed), 0, "the deleted record is back");
        assert_eq!(units_in(&shared.words), 8);
    });
}

/// A bucket with one record, and the words of its namespace.
struct Counted {
    control: AtomicU64,
    units: AtomicU64,
    counted: AtomicU64,
    words: [AtomicU64; 2],
}

impl Counted {
    fn is_counted(&self) -> bool {
        is_counted(parse_counted(self.counted.load(Ordering::Acquire)).unwrap(), 0)
    }

    fn add(&self, index: usize, delta: i64) {
        let before = take(&self.words[index], index as u64 + 1);
        lock::release(&self.words[index], changed(before, delta));
    }

    fn count(&self) {
        let payload = (!mutant("count-unlocked")).then(|| take(&self.control, 1));
        let units = self.units.load(Ordering::Relaxed);
        self.counted.store(seal(ALL_COUNTED), Ordering::Release);
        self.add(0, units.cast_signed());
        if let Some(payload) = payload {
            lock::release(&self.control, payload);
        }
    }

    fn replace(&self, units: u64) {
        let early = mutant("count-early").then(|| self.is_counted());
        let payload = take(&self.control, 2);
        let before = self.units.load(Ordering::Relaxed);
        if early.unwrap_or_else(|| self.is_counted()) {
            self.add(1, units.cast_signed() - before.cast_signed());
        }
        self.units.store(units, Ordering::Relaxed);
        lock::release(&self.control, payload);
    }
}

#[test]
fn each_record_is_counted_once() {
    check(|| {
        let shared = Arc::new(Counted {
            control: AtomicU64::new(0),
            units: AtomicU64::new(3),
            counted: AtomicU64::new(seal(0)),
            words: [AtomicU64::new(0), AtomicU64::new(0)],
        });
        let counting = start(&shared, Counted::count);
        let writing = start(&shared, |counted| counted.replace(5));
        wait_for([counting, writing]);
        assert_eq!(units_in(&shared.words), 5);
    });
}
