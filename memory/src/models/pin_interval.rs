//! Model of a pin whose end moves: a reader uses a version that was born after its pin began only
//! after it has moved the end, and a reclaimer sees that.

use loom::cell::UnsafeCell;
use loom::sync::Arc;

use super::{AT, Heap, LIVE, REUSED, TAG, check, heap, read, start, wait_for, write};
use crate::atomic::{AtomicU64, fence};
use crate::index::bucket::{at_of, entry, is_link, link, load, publish};
use crate::layout::seal;
use crate::member::pin;

const INTERVAL: &str = "pin_interval::a_stopped_reader_keeps_only_what_it_may_use";
const BATCH: &str = "pin_interval::a_batch_uses_only_what_its_pin_holds";
const OLD_VIEW: &str = "pin_interval::a_reader_with_an_old_view_keeps_only_what_it_may_use";
const REMOVED_LINE: &str = "pin_interval::a_reader_of_a_removed_line_uses_no_reused_cell";

/// The mutants, and for each the model that must fail.
pub(super) const MUTANTS: &[(&str, &str)] = &[
    ("birth-unchecked", INTERVAL),
    ("extend-no-fence", INTERVAL),
    ("extend-no-reload", INTERVAL),
    ("pin-no-fence", INTERVAL),
    ("birth-unchecked", BATCH),
    ("far-end-late", OLD_VIEW),
    ("extend-no-fence", OLD_VIEW),
    ("extend-no-reload", OLD_VIEW),
    ("birth-unchecked", OLD_VIEW),
    ("extend-in-line", REMOVED_LINE),
    ("birth-unchecked", REMOVED_LINE),
];

/// An entry that leads to the first or to the second version of a record.
struct TwoVersions {
    heap: Heap,
    second: UnsafeCell<u64>,
}

const SECOND_AT: u64 = AT + 64;

impl TwoVersions {
    fn look(&self) {
        let Heap { epoch, word, pin, .. } = &self.heap;
        let seen = std::cell::Cell::new(pin::pin(epoch, pin, true));
        let found = pin::load_protected(
            || load(word),
            || pin::is_within(epoch, seen.get()),
            || seen.set(pin::extend(epoch, self.heap.pin_words(), true)),
        );
        match found {
            0 => {}
            found if at_of(found) == AT => assert_eq!(read(&self.heap.cell), LIVE, "reused"),
            _ => assert_eq!(read(&self.second), LIVE, "the second version was reused"),
        }
        pin::unpin(pin);
    }

    /// A read under an old view, which has begun two epochs before. The end of the pin is in the
    /// second word then.
    fn look_under_an_old_view(&self) {
        let Heap { epoch, word, pin, .. } = &self.heap;
        let seen = std::cell::Cell::new(seal(2));
        let found = pin::load_protected(
            || load(word),
            || pin::is_within(epoch, seen.get()),
            || seen.set(pin::extend(epoch, self.heap.pin_words(), true)),
        );
        match found {
            0 => {}
            found if at_of(found) == AT => assert_eq!(read(&self.heap.cell), LIVE, "reused"),
            _ => assert_eq!(read(&self.second), LIVE, "the second version was reused"),
        }
        pin::unpin(pin);
    }

    /// A batch: all entries are loaded, then the epoch, then the cells, also if the pin was
    /// extended in between.
    fn look_in_batch(&self) {
        let Heap { epoch, word, pin, .. } = &self.heap;
        let seen = pin::pin(epoch, pin, true);
        let probes = [load(word), load(word)];
        if pin::is_within(epoch, seen) {
            pin::extend(epoch, self.heap.pin_words(), true);
            for probe in probes.into_iter().filter(|probe| *probe != 0) {
                let cell = if at_of(probe) == AT { &self.heap.cell } else { &self.second };
                assert_eq!(read(cell), LIVE, "a probed cell was reused");
            }
        }
        pin::unpin(pin);
    }

    /// Replaces the first version in the epoch after that of the reader, and removes the second
    /// one. Returns the words of both cells.
    fn write(&self) -> [u64; 2] {
        let Heap { epoch, word, .. } = &self.heap;
        self.heap.advance();
        let born = pin::birth_epoch(epoch);
        write(&self.second, LIVE);
        publish(word, entry(TAG, SECOND_AT));
        let first = pin::retire(2, pin::retire_epoch(epoch, true));
        publish(word, 0);
        [first, pin::retire(born, pin::retire_epoch(epoch, true))]
    }
}

#[test]
fn a_stopped_reader_keeps_only_what_it_may_use() {
    check_reader(TwoVersions::look);
}

#[test]
fn a_batch_uses_only_what_its_pin_holds() {
    check_reader(TwoVersions::look_in_batch);
}

#[test]
fn a_reader_with_an_old_view_keeps_only_what_it_may_use() {
    check_reader_from(
        || Heap {
            epoch: AtomicU64::new(seal(4)),
            pin: AtomicU64::new(2),
            // Of a former pin of the slot.
            far_end: AtomicU64::new(2),
            ..Arc::try_unwrap(heap()).ok().unwrap()
        },
        TwoVersions::look_under_an_old_view,
    );
}

fn check_reader(look: fn(&TwoVersions)) {
    check_reader_from(|| Arc::try_unwrap(heap()).ok().unwrap(), look);
}

fn check_reader_from(heap: fn() -> Heap, look: fn(&TwoVersions)) {
    check(move || {
        let shared = Arc::new(TwoVersions { heap: heap(), second: UnsafeCell::new(0) });
        let reading = start(&shared, look);
        let writing = start(&shared, |both| {
            let [first, second] = both.write();
            both.heap.advance();
            let heavy = || {
                fence(crate::atomic::Ordering::SeqCst);
                true
            };
            let now = pin::advance(&both.heap.epoch, heavy).unwrap();
            let safe = pin::SafeEpochs::scan(now, std::iter::once(both.heap.pin_words()));
            for (retired, cell) in [(first, &both.heap.cell), (second, &both.second)] {
                if pin::is_reusable(retired, safe.all) || safe.is_reusable(retired) {
                    write(cell, REUSED);
                }
            }
        });
        wait_for([reading, writing]);
    });
}

/// A bucket's word, which links to an overflow line of one entry, and the record that is moved from
/// the line to the bucket.
struct RemovedLine {
    heap: Heap,
    line: AtomicU64,
}

const LINE_AT: u64 = AT + 128;

impl RemovedLine {
    fn look(&self) {
        let Heap { epoch, word, pin, cell, .. } = &self.heap;
        let seen = std::cell::Cell::new(pin::pin(epoch, pin, true));
        let keep = || {
            pin::keep_protected(
                || pin::is_within(epoch, seen.get()),
                || seen.set(pin::extend(epoch, self.heap.pin_words(), true)),
            )
        };
        loop {
            let mut found = load(word);
            if !keep() {
                continue;
            }
            if is_link(found) {
                found = load(&self.line);
                if !keep() {
                    continue;
                }
            }
            if found != 0 {
                assert_eq!(read(cell), LIVE, "the record of a removed line was reused");
            }
            break;
        }
        pin::unpin(pin);
    }

    /// Stores a record in the line, moves it to the bucket, removes the line and then the record.
    fn write(&self) {
        let Heap { epoch, word, cell, .. } = &self.heap;
        self.heap.advance();
        let born = pin::birth_epoch(epoch);
        write(cell, LIVE);
        publish(&self.line, entry(TAG, AT));
        publish(word, entry(TAG, AT));
        publish(word, 0);
        let retired = pin::retire(born, pin::retire_epoch(epoch, true));
        self.heap.advance();
        let heavy = || {
            fence(crate::atomic::Ordering::SeqCst);
            true
        };
        let now = pin::advance(epoch, heavy).unwrap();
        let safe = pin::SafeEpochs::scan(now, std::iter::once(self.heap.pin_words()));
        if pin::is_reusable(retired, safe.all) || safe.is_reusable(retired) {
            write(cell, REUSED);
        }
    }
}

#[test]
fn a_reader_of_a_removed_line_uses_no_reused_cell() {
    check(|| {
        let shared = Arc::new(RemovedLine {
            heap: Arc::try_unwrap(heap()).ok().unwrap(),
            line: AtomicU64::new(0),
        });
        publish(&shared.heap.word, link(LINE_AT));
        let reading = start(&shared, RemovedLine::look);
        let writing = start(&shared, RemovedLine::write);
        wait_for([reading, writing]);
    });
}
