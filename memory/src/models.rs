//! The small lock-free parts, model-checked: loom runs each model under every interleaving of its
//! threads (with at most [`PREEMPTIONS`] forced switches) and every value that a load may return.
//!
//! A model that cannot fail proves nothing. `NEARSTATE_MUTANT` plants one of [`MUTANTS`] in the
//! code that the models run, and the last test verifies that each mutant makes its model fail.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p nearstate-memory --lib` runs them. Cells are
//! `UnsafeCell`s of loom, which report every unordered access.

mod fence;
mod idle;
mod log;
mod log_wake;
mod member_slot;
mod name_table;
mod pin_interval;
mod pipe;
mod removal;
mod thread_guard;
mod usage;
mod watched;

use std::process::Command;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::atomic::{AtomicU64, Ordering, fence, mutant};
use crate::index::bucket::{
    COMMITTED, abort, at_of, begin, control, decide, depth_of, entry, entry_tag, intent, is_intent,
    is_link, is_unmoved, link, load, publish, stamp_of, status_of,
};
use crate::layout::{HEAP, seal};
use crate::member::{lock, pin};
use crate::region::linear_hash::step;
use crate::ring::words::{EntryRead, RingWords, must_wake_waiters, register_waiter};

/// Forced switches in one run. The known errors of such protocols need two.
const PREEMPTIONS: usize = 3;

/// The mutants, and for each the model that must fail.
const MUTANTS: &[(&str, &str)] = &[
    ("lock-relaxed", LOCK),
    ("unlock-relaxed", LOCK),
    ("publish-relaxed", PUBLISH),
    ("publish-relaxed", SPLIT),
    ("load-relaxed", PUBLISH),
    ("pin-no-fence", REUSE),
    ("pin-no-fence", MOVED),
    ("advance-no-barrier", MOVED),
    ("reuse-early", MOVED),
    ("retire-no-fence", MOVED),
    ("birth-unchecked", INTERVAL),
    ("birth-unchecked", BATCH),
    ("extend-no-fence", INTERVAL),
    ("extend-no-reload", INTERVAL),
    ("extend-in-line", REMOVED_LINE),
    ("birth-unchecked", REMOVED_LINE),
    ("pin-no-fence", INTERVAL),
    ("unpin-relaxed", REUSE),
    ("scan-relaxed", REUSE),
    ("miss-unchecked", SPLIT),
    ("hold-relaxed", SPLIT),
    ("begin-relaxed", SPLIT),
    ("decide-relaxed", DECISION),
    ("status-relaxed", DECISION),
    ("decide-early", DECISION),
    ("publish-relaxed", DECISION),
    ("decide-store", ABORT),
    ("tail-relaxed", RING),
    ("read-relaxed", RING),
    ("reserve-late", RING),
    ("reserve-no-fence", RING),
    ("intact-no-fence", RING),
    ("intact-unchecked", RING),
    ("guard-leave-relaxed", GUARD),
    ("guard-no-fence", GUARD),
    ("guard-unchecked", GUARD),
    ("register_waiter-no-fence", SLEEP),
    ("wake-no-fence", SLEEP),
];

const LOCK: &str = "a_lock_excludes_and_its_next_owner_sees_every_write";
const PUBLISH: &str = "a_reader_that_sees_an_entry_sees_a_complete_cell";
const REUSE: &str = "a_pinned_cell_is_not_reused";
const MOVED: &str = "a_pinned_cell_is_not_reused_by_another_member";
const INTERVAL: &str = "pin_interval::a_stopped_reader_keeps_only_what_it_may_use";
const BATCH: &str = "pin_interval::a_batch_uses_only_what_its_pin_holds";
const REMOVED_LINE: &str = "pin_interval::a_reader_of_a_removed_line_uses_no_reused_cell";
const SPLIT: &str = "a_split_hides_no_key";
const DECISION: &str = "a_reader_sees_all_of_a_transaction_or_nothing";
const GUARD: &str = "thread_guard::calls_of_two_threads_never_overlap";
const ABORT: &str = "a_transaction_is_committed_or_aborted_and_all_see_which";
const RING: &str = "a_ring_reader_gets_complete_entries_in_order_or_learns_what_it_missed";
const SLEEP: &str = "no_waiter_sleeps_while_there_is_an_entry";

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.max_branches = 10_000;
    builder.check(model);
}

/// Starts a thread of a model. The main thread of the model only waits, because loom explores fewer
/// interleavings of the thread that starts the others.
fn start<T: 'static>(shared: &Arc<T>, work: impl FnOnce(&T) + 'static) -> thread::JoinHandle<()> {
    let shared = Arc::clone(shared);
    thread::spawn(move || work(&shared))
}

fn wait_for<const N: usize>(threads: [thread::JoinHandle<()>; N]) {
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Reads a cell. Loom fails if a write is not ordered with the read.
fn read(cell: &UnsafeCell<u64>) -> u64 {
    // SAFETY: the protocol under test orders all writes with this read, or loom ends the run.
    cell.with(|bytes| unsafe { *bytes })
}

/// Writes a cell. Loom fails if another access is not ordered with the write.
fn write(cell: &UnsafeCell<u64>, value: u64) {
    // SAFETY: the protocol under test orders all accesses with this one, or loom ends the run.
    cell.with_mut(|bytes| unsafe { *bytes = value });
}

/// Takes a lock. Lets other threads run while it is held.
fn take(word: &AtomicU64, me: u64) -> u64 {
    loop {
        match lock::try_take(word, me) {
            Ok(payload) => return payload,
            Err(owner) => {
                assert_ne!(owner, me, "a lock that was not taken is owned by this thread");
                thread::yield_now();
            }
        }
    }
}

#[test]
fn a_lock_excludes_and_its_next_owner_sees_every_write() {
    const KEPT: u64 = 7 << 40;
    check(|| {
        let shared = Arc::new((AtomicU64::new(KEPT), UnsafeCell::new(0)));
        let work = |shared: &(AtomicU64, UnsafeCell<u64>), me| {
            let payload = take(&shared.0, me);
            let seen = read(&shared.1);
            assert_eq!(payload, KEPT + seen, "payload and data were written under one lock");
            write(&shared.1, seen + 1);
            // The payload changes while the lock is held, and the release keeps it.
            lock::hold_with(&shared.0, me, payload + 1);
            assert_eq!(lock::owner_of(shared.0.load(Ordering::Relaxed)), me);
            lock::release(&shared.0, payload + 1);
        };
        wait_for([1, 2].map(|me| start(&shared, move |shared| work(shared, me))));
        assert_eq!(take(&shared.0, 3), KEPT + 2);
        assert_eq!(read(&shared.1), 2);
    });
}

const AT: u64 = HEAP + 640;
const TAG: u64 = 0x1234;

#[test]
fn a_reader_that_sees_an_entry_sees_a_complete_cell() {
    check(|| {
        let shared = Arc::new((AtomicU64::new(0), [UnsafeCell::new(0), UnsafeCell::new(0)]));
        let writing = start(&shared, |(word, cell)| {
            write(&cell[0], 11);
            write(&cell[1], 22);
            publish(word, entry(TAG, AT));
        });
        let reading = start(&shared, |(word, cell)| {
            let seen = load(word);
            if seen != 0 {
                assert_eq!((entry_tag(seen), at_of(seen)), (TAG, AT));
                assert_eq!((read(&cell[0]), read(&cell[1])), (11, 22));
            }
        });
        wait_for([writing, reading]);
    });
}

/// The state that a transaction of two records shares with readers: entry words, new cells, status.
struct TwoRecords {
    words: [AtomicU64; 2],
    cells: [UnsafeCell<u64>; 2],
    status: AtomicU64,
}

impl TwoRecords {
    /// The version of a record that a reader sees: 0 the old one, 1 the new one, with a complete
    /// cell.
    fn version(&self, which: usize) -> u64 {
        let word = load(&self.words[which]);
        if word == 0 || is_intent(word) && status_of(&self.status) != COMMITTED {
            return 0;
        }
        assert_eq!(read(&self.cells[which]), LIVE);
        1
    }
}

#[test]
fn a_reader_sees_all_of_a_transaction_or_nothing() {
    check(|| {
        let shared = Arc::new(TwoRecords {
            words: [AtomicU64::new(0), AtomicU64::new(0)],
            cells: [UnsafeCell::new(0), UnsafeCell::new(0)],
            status: AtomicU64::new(0),
        });
        let writing = start(&shared, |records| {
            records.cells.iter().for_each(|cell| write(cell, LIVE));
            if mutant("decide-early") {
                let _ = decide(&records.status);
            }
            records.words.iter().for_each(|word| publish(word, intent(TAG, AT)));
            assert!(decide(&records.status), "no other thread aborts");
            records.words.iter().for_each(|word| publish(word, entry(TAG, AT)));
        });
        let reading = start(&shared, |records| {
            let first = records.version(1);
            assert!(records.version(0) >= first, "the second record is older than the first");
        });
        let other = start(&shared, |records| {
            let first = records.version(0);
            assert!(records.version(1) >= first, "the second record is older than the first");
        });
        wait_for([writing, reading, other]);
    });
}

#[test]
fn a_transaction_is_committed_or_aborted_and_all_see_which() {
    check(|| {
        let shared = Arc::new(TwoRecords {
            words: [AtomicU64::new(0), AtomicU64::new(0)],
            cells: [UnsafeCell::new(0), UnsafeCell::new(0)],
            status: AtomicU64::new(0),
        });
        let writing = start(&shared, |records| {
            records.cells.iter().for_each(|cell| write(cell, LIVE));
            records.words.iter().for_each(|word| publish(word, intent(TAG, AT)));
            let new = if decide(&records.status) { entry(TAG, AT) } else { 0 };
            records.words.iter().for_each(|word| publish(word, new));
        });
        let aborting = start(&shared, |records| {
            // A helper acts on what it has found. A second look at the status agrees.
            if is_intent(load(&records.words[1])) {
                let first = abort(&records.status);
                assert_eq!(abort(&records.status), first, "the decision has changed");
                assert_eq!(u64::from(records.version(0) == 1), u64::from(first == COMMITTED));
            }
        });
        let reading = start(&shared, |records| {
            let first = records.version(1);
            assert!(records.version(0) >= first, "the second record is older than the first");
        });
        wait_for([writing, aborting, reading]);
        let versions = [shared.version(0), shared.version(1)];
        let is_committed = status_of(&shared.status) == COMMITTED;
        assert_eq!(versions, [u64::from(is_committed); 2], "the records and the status differ");
    });
}

/// The state that readers and reclaimers share: the epoch, an entry, its cell, the reader's pin.
struct Heap {
    epoch: AtomicU64,
    word: AtomicU64,
    cell: UnsafeCell<u64>,
    pin: AtomicU64,
    /// The pool through which a retired cell moves to another member: the epoch of the cell.
    pool: AtomicU64,
}

const LIVE: u64 = 77;
const REUSED: u64 = 99;

fn heap() -> Arc<Heap> {
    Arc::new(Heap {
        epoch: AtomicU64::new(seal(2)),
        word: AtomicU64::new(entry(TAG, AT)),
        cell: UnsafeCell::new(LIVE),
        pin: AtomicU64::new(0),
        pool: AtomicU64::new(0),
    })
}

impl Heap {
    fn look(&self) {
        pin::pin(&self.epoch, &self.pin, true);
        if load(&self.word) != 0 {
            assert_eq!(read(&self.cell), LIVE, "a cell was reused under a pin");
        }
        pin::unpin(&self.pin);
    }

    fn unlink(&self) -> u64 {
        publish(&self.word, 0);
        pin::retire_epoch(&self.epoch, true)
    }

    fn advance(&self) -> u64 {
        let heavy = || {
            fence(Ordering::SeqCst);
            true
        };
        let now = pin::advance(&self.epoch, heavy).unwrap();
        pin::SafeEpochs::scan(now, std::iter::once(&self.pin)).all
    }

    fn advance_twice(&self) -> u64 {
        self.advance();
        self.advance()
    }
}

#[test]
fn a_pinned_cell_is_not_reused() {
    check(|| {
        let shared = heap();
        let reading = start(&shared, Heap::look);
        let reclaiming = start(&shared, |heap| {
            let retired = heap.unlink();
            let safe = heap.advance_twice();
            if pin::is_reusable(retired, safe) {
                write(&heap.cell, REUSED);
            }
        });
        wait_for([reading, reclaiming]);
        // Without a pin, two advances make a retired cell reusable.
        assert!(pin::is_reusable(2, shared.advance()));
    });
}

#[test]
fn a_pinned_cell_is_not_reused_by_another_member() {
    check(|| {
        let shared = heap();
        let reading = start(&shared, Heap::look);
        let giving = start(&shared, |heap| {
            let retired = heap.unlink();
            heap.pool.store(retired, Ordering::Release);
        });
        let taking = start(&shared, |heap| {
            // This member determines the safe epoch before it gets the cell.
            let safe = heap.advance_twice();
            let retired = heap.pool.load(Ordering::Acquire);
            if retired != 0 && pin::is_reusable(retired, safe) {
                write(&heap.cell, REUSED);
            }
        });
        wait_for([reading, giving, taking]);
    });
}

/// The smallest buckets that the protocol allows, with an overflow line. `p` has its control word,
/// one entry and its last word, which links to a line of one entry.
struct SplitBuckets {
    p: [AtomicU64; 3],
    line: AtomicU64,
    q: [AtomicU64; 2],
}

const DEPTH: u32 = 3;
/// Hashes of bucket 0 at depth 3. At depth 4 the first one moves to bucket 8.
const MOVES: u64 = TAG << 48 | 8;
const STAYS: u64 = (TAG + 1) << 48;
const MOVES_AT: u64 = HEAP + 64;
const STAYS_AT: u64 = HEAP + 128;
const LINE_AT: u64 = HEAP + 192;
const SPLITTER: u64 = 5;

fn buckets() -> Arc<SplitBuckets> {
    Arc::new(SplitBuckets {
        p: [
            AtomicU64::new(control(DEPTH, 0)),
            AtomicU64::new(entry(TAG, MOVES_AT)),
            AtomicU64::new(link(LINE_AT)),
        ],
        line: AtomicU64::new(entry(TAG + 1, STAYS_AT)),
        q: [AtomicU64::new(0), AtomicU64::new(0)],
    })
}

impl SplitBuckets {
    /// S1 to S6 in the order of `split.rs`.
    fn split(&self) {
        let payload = lock::try_take(&self.p[0], SPLITTER).unwrap();
        let deeper = control(DEPTH + 1, stamp_of(payload));
        lock::hold_with(&self.q[0], SPLITTER, deeper);
        self.q[1].store(load(&self.p[1]), Ordering::Relaxed);
        lock::hold_with(&self.p[0], SPLITTER, deeper);
        publish(&self.p[1], 0);
        publish(&self.p[1], load(&self.line));
        let stamped = control(DEPTH + 1, stamp_of(deeper) + 1);
        lock::hold_with(&self.p[0], SPLITTER, stamped);
        publish(&self.p[2], 0);
        lock::release(&self.q[0], deeper);
        lock::release(&self.p[0], stamped);
    }

    /// The lookup of `index/lookup.rs`: the offset of the key's cell, or 0.
    fn find(&self, hash: u64) -> u64 {
        loop {
            let mut bucket = 0;
            let (before, word) = loop {
                let word = if bucket == 0 { &self.p[0] } else { &self.q[0] };
                let seen = begin(word);
                match step(hash, bucket, depth_of(seen)) {
                    None => break (seen, word),
                    Some(next) => {
                        assert!(bucket == 0 && next == 8, "sent from {bucket} to {next}");
                        bucket = next;
                    }
                }
            };
            let words = if bucket == 0 { &self.p[1..] } else { &self.q[1..] };
            for word in words {
                let mut found = load(word);
                if is_link(found) {
                    found = load(&self.line);
                }
                if entry_tag(found) == hash >> 48 {
                    return at_of(found);
                }
            }
            if is_unmoved(word, before) {
                return 0;
            }
        }
    }
}

fn split_against_a_reader_of(hash: u64, at: u64) {
    check(move || {
        let shared = buckets();
        let splitting = start(&shared, SplitBuckets::split);
        let reading = start(&shared, move |buckets| {
            assert_eq!(buckets.find(hash), at, "a reader missed an existing key");
        });
        wait_for([splitting, reading]);
        assert_eq!(shared.find(hash), at);
        let payload = lock::try_take(&shared.p[0], 1);
        assert_eq!(payload, Ok(control(DEPTH + 1, 1)));
    });
}

#[test]
fn a_split_hides_no_key() {
    split_against_a_reader_of(MOVES, MOVES_AT);
    split_against_a_reader_of(STAYS, STAYS_AT);
}

/// The smallest ring for entries with one word of payload.
struct RingModel {
    reserved: AtomicU64,
    tail: AtomicU64,
    oldest: AtomicU64,
    words: Vec<AtomicU64>,
}

/// Words of the ring, and of each entry: a quarter of the ring.
const RING_WORDS: u64 = 12;
const ENTRY_WORDS: u64 = 3;

impl RingModel {
    /// A ring with this many entries.
    fn with(entries: u64) -> Arc<Self> {
        let zero = || AtomicU64::new(0);
        let ring = Arc::new(Self {
            reserved: AtomicU64::new(2),
            tail: zero(),
            oldest: zero(),
            words: (0..RING_WORDS).map(|_| zero()).collect(),
        });
        for number in 0..entries {
            ring.append(number);
        }
        ring
    }

    fn words(&self) -> RingWords<'_> {
        let Self { reserved, tail, oldest, words } = self;
        RingWords { reserved, tail, oldest, words }
    }

    fn append(&self, number: u64) {
        let tail = ENTRY_WORDS * number;
        self.words().append(tail, &payload(number)).unwrap();
    }

    /// Reads from an entry on until the ring is empty. An overwritten entry is no error; a wrong
    /// one is.
    fn follow(&self, mut number: u64) {
        let (mut at, mut out) = (ENTRY_WORDS * number, Vec::new());
        for _ in 0..4 {
            match self.words().read_at(at, &mut out).unwrap() {
                EntryRead::Empty => return,
                EntryRead::Entry { number: seen, end } => {
                    assert_eq!((seen, end), (number, at + ENTRY_WORDS));
                    assert_eq!(out, payload(number), "the words of two entries");
                    (at, number) = (end, number + 1);
                }
                EntryRead::Overwritten => {
                    let position = self.words().position_at(&self.tail).unwrap();
                    assert!(position.1 > number && position.0 == ENTRY_WORDS * position.1);
                    (at, number) = position;
                }
            }
        }
    }
}

fn payload(number: u64) -> [u8; 8] {
    (number + 1).wrapping_mul(0x0101_0101_0101_0101).to_le_bytes()
}

/// The ring has three entries. The reader begins with entry `first`, and the writer appends two
/// entries: the first overwrites the number of entry 0, the second overwrites all of it.
fn ring_against_a_reader_from(first: u64) {
    check(move || {
        let shared = RingModel::with(3);
        let writing = start(&shared, |ring| {
            ring.append(3);
            ring.append(4);
        });
        let reading = start(&shared, move |ring| ring.follow(first));
        wait_for([writing, reading]);
        shared.follow(2);
        assert_eq!(shared.words().position_at(&shared.tail), Ok((5 * ENTRY_WORDS, 5)));
        assert_eq!(shared.words().position_at(&shared.oldest), Ok((2 * ENTRY_WORDS, 2)));
    });
}

#[test]
fn a_ring_reader_gets_complete_entries_in_order_or_learns_what_it_missed() {
    ring_against_a_reader_from(0);
    ring_against_a_reader_from(3);
}

#[test]
fn no_waiter_sleeps_while_there_is_an_entry() {
    check(|| {
        // The tail, and the futex word.
        let shared = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let sleeper = Arc::new(AtomicU64::new(0));
        let asleep = Arc::clone(&sleeper);
        let waiting = start(&shared, move |(tail, word)| {
            let expected = register_waiter(word);
            if tail.load(Ordering::Acquire) == 0 {
                asleep.store(u64::from(expected), Ordering::Relaxed);
            }
        });
        let appending = [1, 2].map(|entry| {
            start(&shared, move |(tail, word)| {
                tail.store(entry, Ordering::Release);
                must_wake_waiters(word);
            })
        });
        wait_for([waiting]);
        wait_for(appending);
        // A waiter whose word is unchanged sleeps forever. A changed word means that the waiter was
        // woken, or that the kernel did not let it sleep.
        let expected = sleeper.load(Ordering::Relaxed);
        let word = shared.1.load(Ordering::Relaxed);
        assert!(expected == 0 || word != expected, "a waiter sleeps and was not woken");
    });
}

/// Runs one model with a mutant, or with none. True if the model held.
fn holds(model: &str, mutant: &str) -> bool {
    let name = format!("models::{model}");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--test-threads=1"])
        .env("NEARSTATE_MUTANT", mutant)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("running 1 test"), "no model has the name {model}: {text}");
    output.status.success()
}

#[test]
fn every_mutant_makes_its_model_fail() {
    if std::env::var_os("NEARSTATE_MUTANT").is_some() {
        return; // A mutant was planted from outside, to examine one failure.
    }
    let some = [MUTANTS, idle::MUTANTS, log::MUTANTS, member_slot::MUTANTS, name_table::MUTANTS];
    let more = [pipe::MUTANTS, removal::MUTANTS, usage::MUTANTS, fence::MUTANTS, watched::MUTANTS];
    let survivors: Vec<_> = (some.into_iter().chain(more).chain([log_wake::MUTANTS]).flatten())
        .filter(|(mutant, model)| holds(model, mutant))
        .map(|(mutant, model)| format!("{mutant} in {model}"))
        .collect();
    assert!(survivors.is_empty(), "no model detects these mutants: {survivors:#?}");
    assert!(holds(LOCK, "none"), "a model fails without a mutant");
}
