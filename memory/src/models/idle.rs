//! Model of the members that take cells of idle ones (`member/idle.rs`).

use loom::cell::UnsafeCell;

use super::{check, start, wait_for, write};
use crate::atomic::{AtomicU64, Ordering, fence};
use crate::member::{idle, lock};

const IDLE: &str = "idle::cells_are_taken_only_between_two_operations";

/// The mutants, and for each the model that must fail.
pub(super) const MUTANTS: &[(&str, &str)] = &[
    ("active-no-fence", IDLE),
    ("taker-unchecked", IDLE),
    ("taker-relaxed", IDLE),
    ("taker-no-barrier", IDLE),
    ("active-unchecked", IDLE),
    ("idle-relaxed", IDLE),
];

/// The words of an arena, and what belongs to its member: the content of its queues.
struct Words {
    active: AtomicU64,
    taker: AtomicU64,
    queues: UnsafeCell<u64>,
}

/// Loom has no asymmetric barrier, so both sides are fenced.
fn own(words: &Words, operations: u64) {
    for number in 0..operations {
        // A member that meets a taker waits. That it stays idle meanwhile is the same here.
        let has_begun = idle::begin(&words.active, &words.taker, true);
        if has_begun {
            write(&words.queues, number);
        }
        idle::end(&words.active);
    }
}

fn take(words: &Words, me: u64) {
    if me == 0 {
        return; // No member.
    }
    let Ok(payload) = lock::try_take(&words.taker, me) else { return };
    let barrier = || {
        fence(Ordering::SeqCst);
        true
    };
    if idle::is_idle(&words.active, barrier) {
        write(&words.queues, me);
    }
    lock::release(&words.taker, payload);
}

#[test]
fn cells_are_taken_only_between_two_operations() {
    for (operations, takers) in [(2, [1, 0]), (1, [1, 2])] {
        check(move || {
            let words = loom::sync::Arc::new(Words {
                active: AtomicU64::new(0),
                taker: AtomicU64::new(0),
                queues: UnsafeCell::new(0),
            });
            let owner = start(&words, move |words: &Words| own(words, operations));
            let takers = takers.map(|me| start(&words, move |words| take(words, me)));
            wait_for([owner]);
            wait_for(takers);
        });
    }
}
