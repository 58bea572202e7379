//! Models of the log (`log/words.rs`): a writer that is passed over, the memory of an entry that
//! the floor has passed, and a writer that sleeps for a lap.

use loom::cell::UnsafeCell;
use loom::sync::Arc;

use super::{LIVE, REUSED, check, read, start, wait_for, write};
use crate::atomic::{AtomicU64, Ordering, fence};
use crate::index::bucket::{ABORTED, COMMITTED, abort, decide, status_of};
use crate::layout::seal;
use crate::log::words::{Claim, LogSlot, LogWords};
use crate::member::pin;

pub(super) const MUTANTS: &[(&str, &str)] = &[
    ("claim-store", PASSED),
    ("claim-void", PASSED),
    ("claim-relaxed", PASSED),
    ("decide-store", PASSED),
    ("floor-unchecked", FLOOR),
    ("claim-store", LAP),
    ("claim-kept", LAP),
];

const PASSED: &str = "log::a_position_has_an_entry_or_is_a_hole_and_all_see_which";
const FLOOR: &str = "log::an_entry_is_not_reused_while_it_is_read";
const LAP: &str = "log::a_writer_that_slept_for_a_lap_replaces_nothing";

/// Words of the ring.
const WORDS: u64 = 4;
/// Where the transactions are, in units.
const UNITS: [u64; 2] = [5, 6];

struct Log {
    tail: AtomicU64,
    floor: AtomicU64,
    ring: Vec<AtomicU64>,
    /// The position, the content and the status of the transaction.
    position: UnsafeCell<u64>,
    content: UnsafeCell<u64>,
    status: AtomicU64,
    /// Where the writer has claimed its position last.
    claimed: AtomicU64,
    epoch: AtomicU64,
    pin: AtomicU64,
    far_end: AtomicU64,
}

impl Log {
    fn new(tail: u64) -> Arc<Self> {
        let log = Self {
            tail: AtomicU64::new(tail),
            floor: AtomicU64::new(0),
            ring: (0..WORDS).map(|_| AtomicU64::new(0)).collect(),
            position: UnsafeCell::new(0),
            content: UnsafeCell::new(0),
            status: AtomicU64::new(0),
            claimed: AtomicU64::new(0),
            epoch: AtomicU64::new(seal(2)),
            pin: AtomicU64::new(0),
            far_end: AtomicU64::new(0),
        };
        Arc::new(log)
    }

    fn words(&self) -> LogWords<'_> {
        LogWords { tail: &self.tail, floor: &self.floor, ring: &self.ring }
    }

    /// L1 to L5 of the first transaction.
    fn commit(&self) {
        write(&self.content, LIVE);
        let words = self.words();
        for _ in 0..2 {
            let position = words.draw();
            write(&self.position, position);
            if words.claim(position, UNITS[0]) == Claim::Made {
                self.claimed.store(position, Ordering::Relaxed);
                if !decide(&self.status) {
                    words.give_back(position, UNITS[0]);
                }
                return;
            }
        }
        abort(&self.status);
    }

    /// Reads a position without patience. True if it has an entry.
    fn consume(&self, position: u64) -> Option<bool> {
        let words = self.words();
        loop {
            match words.read(position, || true) {
                LogSlot::Unused => return None,
                LogSlot::Drawn(seen) => {
                    let _ = words.void(position, seen);
                }
                LogSlot::Claimed(units) => {
                    assert_eq!(units, UNITS[0]);
                    assert_eq!(read(&self.position), position);
                    let status = abort(&self.status);
                    if status == COMMITTED {
                        assert_eq!(read(&self.content), LIVE);
                    }
                    return Some(status == COMMITTED);
                }
                LogSlot::Hole => return Some(false),
                LogSlot::Lost => unreachable!("the floor was not raised"),
            }
        }
    }
}

#[test]
fn a_position_has_an_entry_or_is_a_hole_and_all_see_which() {
    check(|| {
        let log = Log::new(0);
        let writing = start(&log, Log::commit);
        let seen = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let out = Arc::clone(&seen);
        let reading = start(&log, move |log| {
            for (slot, position) in out.iter().zip(1..) {
                let state = match log.consume(position) {
                    None => 0,
                    Some(false) => 1,
                    Some(true) => 2,
                };
                slot.store(state, Ordering::Relaxed);
                if state == 0 {
                    break;
                }
            }
        });
        wait_for([writing, reading]);
        let is_committed = status_of(&log.status) == COMMITTED;
        let claimed = log.claimed.load(Ordering::Relaxed);
        for (slot, position) in seen.iter().zip(1..) {
            let now = log.consume(position);
            match slot.load(Ordering::Relaxed) {
                0 => {}
                1 => assert_ne!(now, Some(true), "a hole at {position} became an entry"),
                _ => assert_eq!(now, Some(true), "the entry at {position} is gone"),
            }
            let is_here = is_committed && claimed == position;
            assert_eq!(now == Some(true), is_here, "the commit at {claimed}, and {position}");
        }
        assert!(is_committed || status_of(&log.status) == ABORTED);
    });
}

#[test]
fn an_entry_is_not_reused_while_it_is_read() {
    check(|| {
        let log = Log::new(0);
        write(&log.content, LIVE);
        let position = log.words().draw();
        assert_eq!(log.words().claim(position, UNITS[0]), Claim::Made);
        assert!(decide(&log.status));
        let raising = start(&log, |log| log.words().raise_floor(2));
        let owning = start(&log, |log| {
            if log.floor.load(Ordering::Acquire) < 2 {
                return;
            }
            let retired = pin::retire_epoch(&log.epoch, true);
            let mut safe = 0;
            for _ in 0..2 {
                let heavy = || {
                    fence(Ordering::SeqCst);
                    true
                };
                let now = pin::advance(&log.epoch, heavy).unwrap();
                let words = pin::PinWords { pin: &log.pin, far_end: &log.far_end };
                safe = pin::SafeEpochs::scan(now, std::iter::once(words)).all;
            }
            if pin::is_reusable(retired, safe) {
                write(&log.content, REUSED);
            }
        });
        let reading = start(&log, move |log| {
            pin::pin(&log.epoch, &log.pin, true);
            if log.words().read(position, || true) == LogSlot::Claimed(UNITS[0]) {
                assert_eq!(read(&log.content), LIVE, "an entry was reused under a pin");
            }
            pin::unpin(&log.pin);
        });
        wait_for([raising, owning, reading]);
    });
}

#[test]
fn a_writer_that_slept_for_a_lap_replaces_nothing() {
    check(|| {
        // Position 1 was drawn by the writer that sleeps, and 2 to 4 by others.
        let log = Log::new(WORDS);
        let sleeping = start(&log, |log| {
            let _ = log.words().claim(1, UNITS[0]);
        });
        let raising = start(&log, |log| log.words().raise_floor(2));
        let other = start(&log, |log| {
            let position = log.words().draw();
            assert_eq!(position, WORDS + 1);
            let before = log.floor.load(Ordering::Acquire);
            match log.words().claim(position, UNITS[1]) {
                Claim::Made => {
                    let floor = log.floor.load(Ordering::Acquire);
                    assert!(floor > 1, "an entry was replaced before the floor passed it");
                    log.claimed.store(position, Ordering::Relaxed);
                }
                Claim::Full => assert!(before <= 1, "the floor had passed the entry"),
                Claim::Missed => unreachable!("no other writer draws this position"),
            }
        });
        wait_for([sleeping, raising, other]);
        if log.claimed.load(Ordering::Relaxed) != 0 {
            let now = log.words().read(WORDS + 1, || true);
            assert_eq!(now, LogSlot::Claimed(UNITS[1]), "a sleeper replaced a later entry");
        }
    });
}
