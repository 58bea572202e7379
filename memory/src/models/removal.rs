//! Model of the removal of a namespace (`region/catalog_use.rs`) against writers and readers with
//! an old handle.

use loom::cell::UnsafeCell;
use loom::sync::Arc;

use super::{TAG, check, read, start, wait_for, write};
use crate::atomic::{AtomicU64, mutant};
use crate::index::bucket::{at_of, control, entry, load, publish};
use crate::layout::HEAP;
use crate::member::lock;
use crate::region::catalog_use::{
    EntryUse, begin_removal, cancel_removal, commit_removal, is_current, keep, use_word,
};

pub(super) const MUTANTS: &[(&str, &str)] = &[
    ("leaving-ignored", WRITER),
    ("removal-store", WRITER),
    ("keep-unlocked", WRITER),
    ("removal-no-lock", WRITER),
    ("load-relaxed", READER),
    ("generation-early", READER),
];

const WRITER: &str = "removal::a_record_is_refused_or_keeps_its_namespace";
const READER: &str = "removal::an_old_handle_reads_nothing_of_the_next_namespace";

/// A catalog entry with a bucket of one entry, and the cells of two records: one of the first
/// namespace, one of the second.
struct Entry {
    word: AtomicU64,
    control: AtomicU64,
    slot: AtomicU64,
    cells: [UnsafeCell<u64>; 2],
    /// 1: the writer's record was acknowledged.
    acknowledged: AtomicU64,
}

const AT: [u64; 2] = [HEAP, HEAP + 64];

fn model() -> Arc<Entry> {
    Arc::new(Entry {
        word: AtomicU64::new(use_word(0, EntryUse::Live)),
        control: AtomicU64::new(control(3, 0)),
        slot: AtomicU64::new(0),
        cells: [UnsafeCell::new(0), UnsafeCell::new(0)],
        acknowledged: AtomicU64::new(0),
    })
}

impl Entry {
    fn lock(&self, owner: u64) -> u64 {
        loop {
            match lock::try_take(&self.control, owner) {
                Ok(payload) => return payload,
                Err(_) => loom::thread::yield_now(),
            }
        }
    }

    /// A put into the namespace with this generation. True if it was acknowledged.
    fn put(&self, generation: u32, owner: u64) -> bool {
        let cell = self.cells.get(generation as usize).unwrap();
        write(cell, u64::from(generation) + 1);
        let early = mutant("keep-unlocked").then(|| keep(&self.word, generation).unwrap());
        let payload = self.lock(owner);
        let is_kept = early.unwrap_or_else(|| keep(&self.word, generation).unwrap());
        if is_kept {
            publish(&self.slot, entry(TAG, AT[generation as usize]));
        }
        lock::release(&self.control, payload);
        is_kept
    }

    /// D1 to D3.
    fn remove(&self, owner: u64) -> bool {
        if !begin_removal(&self.word, 0).unwrap() {
            return false;
        }
        let payload = (!mutant("removal-no-lock")).then(|| self.lock(owner));
        let is_empty = load(&self.slot) == 0;
        if let Some(payload) = payload {
            lock::release(&self.control, payload);
        }
        if !is_empty {
            cancel_removal(&self.word, 0);
            return false;
        }
        commit_removal(&self.word, 0, EntryUse::Free)
    }

    /// The next namespace of the entry.
    fn create(&self) {
        self.word.store(use_word(1, EntryUse::Live), crate::atomic::Ordering::Release);
    }

    /// A read by a handle of the first namespace.
    fn read_old(&self) {
        let early = mutant("generation-early").then(|| is_current(&self.word, 0));
        let found = load(&self.slot);
        if early.unwrap_or_else(|| is_current(&self.word, 0)) && found != 0 {
            assert_eq!(at_of(found), AT[0], "a record of the next namespace was read");
            assert_eq!(read(&self.cells[0]), 1);
        }
    }
}

#[test]
fn a_record_is_refused_or_keeps_its_namespace() {
    check(|| {
        let shared = model();
        let writing = start(&shared, |entry| {
            if entry.put(0, 1) {
                entry.acknowledged.store(1, crate::atomic::Ordering::Release);
            }
        });
        let removing = start(&shared, |entry| {
            if entry.remove(2) {
                entry.create();
            }
        });
        wait_for([writing, removing]);
        let is_acknowledged = shared.acknowledged.load(crate::atomic::Ordering::Acquire) == 1;
        let is_removed = !is_current(&shared.word, 0);
        assert_ne!(is_acknowledged, is_removed, "a record without namespace, or a lost namespace");
        assert_eq!(load(&shared.slot) != 0, is_acknowledged);
    });
}

#[test]
fn an_old_handle_reads_nothing_of_the_next_namespace() {
    check(|| {
        let shared = model();
        let removing = start(&shared, |entry| {
            if entry.remove(2) {
                entry.create();
                assert!(entry.put(1, 2), "the next namespace is live");
            }
        });
        let reading = start(&shared, Entry::read_old);
        wait_for([removing, reading]);
    });
}
