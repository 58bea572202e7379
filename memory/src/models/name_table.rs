//! Model of the table of names (`region/catalog.rs`) against a creation, also one that is killed.

use loom::sync::Arc;

use super::{check, start, wait_for};
use crate::atomic::{AtomicU64, Ordering};
use crate::member::lock;
use crate::region::catalog::{begin_change, changes, end_change, is_settled};

pub(super) const MUTANTS: &[(&str, &str)] =
    &[("names-no-odd", TABLE), ("names-odd-valid", TABLE), ("names-end-relaxed", TABLE)];

const TABLE: &str = "name_table::a_table_that_is_valid_under_the_lock_has_every_name";

/// A catalog of one entry: 1 if it has a namespace.
struct Catalog {
    lock: AtomicU64,
    changes: AtomicU64,
    entry: AtomicU64,
}

impl Catalog {
    fn locked(&self, owner: u64) -> u64 {
        loop {
            match lock::try_take(&self.lock, owner) {
                Ok(payload) => return payload,
                Err(_) => loom::thread::yield_now(),
            }
        }
    }

    /// C1 to C3. If its process is killed, recovery releases the lock.
    fn create(&self, is_killed: bool) {
        let payload = self.locked(1);
        let before = begin_change(&self.changes).unwrap();
        self.entry.store(1, Ordering::Release);
        if !is_killed {
            end_change(&self.changes, before);
        }
        lock::release(&self.lock, payload);
    }

    /// T1 to T3 without the lock, then a creation that looks the name up in the table.
    fn read_and_look_up(&self) {
        let now = changes(&self.changes).unwrap();
        let in_table = self.entry.load(Ordering::Acquire);
        let valid_for = is_settled(now).then_some(now);
        let payload = self.locked(2);
        let mut now = changes(&self.changes).unwrap();
        if !is_settled(now) {
            now = end_change(&self.changes, now);
        }
        let entry = self.entry.load(Ordering::Acquire);
        if valid_for == Some(now) {
            assert_eq!(in_table, entry, "the table lacks a name");
        }
        lock::release(&self.lock, payload);
    }
}

#[test]
fn a_table_that_is_valid_under_the_lock_has_every_name() {
    for is_killed in [false, true] {
        check(move || {
            let shared = Arc::new(Catalog {
                lock: AtomicU64::new(0),
                changes: AtomicU64::new(0),
                entry: AtomicU64::new(0),
            });
            let creating = start(&shared, move |catalog| catalog.create(is_killed));
            let reading = start(&shared, Catalog::read_and_look_up);
            wait_for([creating, reading]);
        });
    }
}
