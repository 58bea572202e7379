//! Model of a search for memory that is in vain, and of a process that frees some
//! (`heap/watched.rs`).

use super::{check, start, wait_for};
use crate::atomic::{AtomicU64, Ordering, fence, mutant};
use crate::heap::watched::{count_of, is_watched_for, note, watch};

const WATCHED: &str = "watched::memory_that_came_free_is_not_refused";

/// The mutants, and for each the model that must fail.
pub(super) const MUTANTS: &[(&str, &str)] = &[
    ("watched-no-fence", WATCHED),
    ("watched-no-barrier", WATCHED),
    ("watched-unnoted", WATCHED),
    ("watched-uncounted", WATCHED),
];

/// Units of the memory that is wanted.
const UNITS: u64 = 3;

struct Words {
    watched: AtomicU64,
    /// Memory that can be found.
    free: AtomicU64,
    /// What its process answers after it has freed it.
    answered: AtomicU64,
}

/// Loom has no asymmetric barrier, so both sides are fenced.
fn free(words: &Words, units: u64) {
    words.free.store(1, Ordering::Relaxed);
    note(&words.watched, units, true);
    words.answered.store(1, Ordering::Release);
}

fn refuse(words: &Words) {
    let count = watch(&words.watched, UNITS);
    if !mutant("watched-no-barrier") {
        fence(Ordering::SeqCst);
    }
    if words.free.load(Ordering::Acquire) == 1 {
        return;
    }
    // The search was in vain. The next refusal looks at the word only.
    let is_answered = words.answered.load(Ordering::Acquire) == 1;
    let seen = words.watched.load(Ordering::Acquire);
    let is_known = count_of(seen) == count && is_watched_for(seen, UNITS);
    assert!(!is_answered || !is_known, "memory is free, and the caller knows that");
}

#[test]
fn memory_that_came_free_is_not_refused() {
    for searches in [1, 2] {
        check(move || {
            let words = loom::sync::Arc::new(Words {
                watched: AtomicU64::new(0),
                free: AtomicU64::new(0),
                answered: AtomicU64::new(0),
            });
            let freeing = start(&words, |words: &Words| free(words, UNITS));
            let refusing = [0, 1].map(|search| {
                start(&words, move |words: &Words| {
                    if search < searches {
                        refuse(words);
                    }
                })
            });
            wait_for([freeing]);
            wait_for(refusing);
        });
    }
}
