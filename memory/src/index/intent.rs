//! Intents and the cell of a transaction (`spec/region.md`, section 9): what a reader sees of a
//! commit in progress.
//!
//! ```text
//! writer (holds every lock)                 reader (has a pin)
//! W1  fill the write lines                  R1  w = word              (acquire)
//! W2  word := intent        (release)       R2  w is an intent: load its line
//! W3  status := committed   (release)       R3  status                (acquire)
//! W4  word := new           (release)       R4  committed: the line's new, else its old
//! ```
//!
//! W2 pairs with R1: the line is complete. W3 pairs with R3: a reader that sees one record of a
//! transaction sees all of them from then on, because R3 of every other record loads the same
//! status, and W4 comes after it.

use std::ops::Range;

use nearstate_model::invariant;
use nearstate_model::limits::APPLIED_RECORDS_MAX;

use crate::atomic::{AtomicU64, Ordering};
use crate::crash::crash_point;
use crate::heap::held::TXN_POSITION;
use crate::index::bucket::{
    ABORTED, COMMITTED, abort, at_of, control, depth_of, is_intent, load, publish, stamp_of,
    status_of,
};
use crate::layout::{Corruption, LINE};
use crate::member::lock;
use crate::region::map::Map;

// Words of the transaction's cell: its first line, and the line of each access.
pub(crate) const STATUS: u64 = 24;
pub(crate) const LINES: u64 = 32;
/// How many of the lines are events. They come last. The high half: how many are usage words, which
/// precede them.
pub(crate) const EVENTS: u64 = 40;
/// The position in the log, or 0; of a logged transaction.
pub(crate) const POSITION: u64 = TXN_POSITION;
/// `writer:16 | time:48`, in milliseconds since 1970; of a logged transaction.
pub(crate) const JUDGED: u64 = 56;
/// Bit of [`EVENTS`]: the transaction is logged, and a line follows that only its log reads.
const LOGGED: u64 = 1 << 63;
// Words of the line of the log.
/// The units that the log has ever held, with this entry.
pub(crate) const LOG_SUM: u64 = 0;
/// The units that this entry holds.
pub(crate) const LOG_HELD: u64 = 8;
/// The check value of the lines of the records.
pub(crate) const LOG_CHECK: u64 = 16;
pub(crate) const LINE_LOCK: u64 = 0;
pub(crate) const LINE_SLOT: u64 = 8;
pub(crate) const LINE_OLD: u64 = 16;
pub(crate) const LINE_NEW: u64 = 24;
pub(crate) const LINE_OWNER: u64 = 32;
pub(crate) const LINE_RING: u64 = 40;
/// Of a record in a logged transaction: its version before, or 0.
pub(crate) const LINE_BASE: u64 = LINE_RING;
pub(crate) const LINE_TAIL: u64 = 48;
/// Of a record in a logged transaction: 0 if the record is not in the log, else bit 63, bit 62 for
/// an expiry, and the number of its namespace.
pub(crate) const LINE_MARK: u64 = LINE_TAIL;
pub(crate) const LINE_SOURCE: u64 = 56;

const _: () = assert!(STATUS == 24 && LINES == 32 && EVENTS == 40, "words of the first line");
const _: () = assert!(LINES.is_multiple_of(8) && EVENTS + 8 <= LINE, "the head is one line");
const _: () = assert!(LINE_LOCK < LINE_SLOT && LINE_SLOT < LINE_OLD && LINE_OLD < LINE_NEW);
const _: () = assert!(LINE_NEW < LINE_OWNER && LINE_OWNER < LINE_RING && LINE_RING < LINE_TAIL);
const _: () = assert!(LINE_TAIL < LINE_SOURCE && LINE_SOURCE + 8 == LINE, "a line has eight words");
const _: () = assert!(2 * APPLIED_RECORDS_MAX as u64 <= LINES_MAX);

/// The most lines of a transaction cell. A higher count is corrupt.
pub(crate) const LINES_MAX: u64 = 1 << 16;

/// The number of lines of each kind, as in [`EVENTS`].
pub(crate) const fn kinds(events: u64, usages: u64, is_logged: bool) -> u64 {
    usages << 32 | events | if is_logged { LOGGED } else { 0 }
}

/// The entry that an intent stands for: the new one if its transaction is committed, else the old
/// one. 0 is no record.
#[cold]
pub(crate) fn resolve(map: &Map, word: u64) -> Result<u64, Corruption> {
    let [_, _, old, new, owner, ..] = map.words::<8>(at_of(word))?;
    let status = map.word(owner.load(Ordering::Relaxed).saturating_add(STATUS))?;
    let decided = if status_of(status) == COMMITTED { new } else { old };
    let found = decided.load(Ordering::Relaxed);
    if is_intent(found) { Err(Corruption("an intent leads to an intent")) } else { Ok(found) }
}

/// A line of a transaction's cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TxnLine<'m>(&'m [AtomicU64; 8]);

impl<'m> TxnLine<'m> {
    /// The line with these words.
    #[inline]
    pub(crate) const fn of(words: &'m [AtomicU64; 8]) -> Self {
        Self(words)
    }

    #[inline]
    fn word(&self, which: u64) -> &AtomicU64 {
        match self.0.get(which as usize / 8) {
            Some(word) => word,
            None => invariant!("a write line has no word {which}"),
        }
    }

    /// Stores one of its words. Release: a recoverer that reads this value also reads everything
    /// stored before it.
    #[inline]
    pub(crate) fn set(self, which: u64, value: u64) {
        self.word(which).store(value, Ordering::Release);
        crash_point!("txn.line");
    }

    #[inline]
    pub(crate) fn get(self, which: u64) -> u64 {
        self.word(which).load(Ordering::Acquire)
    }
}

/// How a transaction ended. No process changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxnOutcome {
    Committed,
    Aborted,
}

/// The cell of a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TxnCell<'m> {
    map: &'m Map,
    pub(crate) at: u64,
}

impl<'m> TxnCell<'m> {
    pub(crate) const fn of(map: &'m Map, at: u64) -> Self {
        Self { map, at }
    }

    pub(crate) const fn map(&self) -> &'m Map {
        self.map
    }

    pub(crate) fn word(&self, which: u64) -> Result<&'m AtomicU64, Corruption> {
        self.map.word(self.at.saturating_add(which))
    }

    pub(crate) fn lines(&self) -> Result<u64, Corruption> {
        match self.word(LINES)?.load(Ordering::Acquire) {
            lines if lines <= LINES_MAX => Ok(lines),
            _ => Err(Corruption("a transaction has too many lines")),
        }
    }

    /// The number of lines that are events, which are the last ones, and of lines that are usage
    /// words.
    pub(crate) fn events_and_usages(&self) -> Result<(u64, u64), Corruption> {
        let word = self.word(EVENTS)?.load(Ordering::Acquire);
        Ok((word & u64::from(u32::MAX), (word & !LOGGED) >> 32))
    }

    /// True if the transaction is one of the log.
    pub(crate) fn is_logged(&self) -> Result<bool, Corruption> {
        Ok(self.word(EVENTS)?.load(Ordering::Acquire) & LOGGED != 0)
    }

    /// The line behind the last one, which a logged transaction has.
    pub(crate) fn log_line(&self) -> Result<TxnLine<'m>, Corruption> {
        self.line(self.lines()?)
    }

    /// The lines that are events.
    pub(crate) fn event_lines(&self) -> Result<Range<u64>, Corruption> {
        let (lines, (events, _)) = (self.lines()?, self.events_and_usages()?);
        Ok(lines.saturating_sub(events)..lines)
    }

    /// The lines that are usage words of namespaces (`usage.rs`).
    pub(crate) fn usage_lines(&self) -> Result<Range<u64>, Corruption> {
        let (end, (_, usages)) = (self.event_lines()?.start, self.events_and_usages()?);
        Ok(end.saturating_sub(usages)..end)
    }

    #[inline]
    pub(crate) const fn line_at(&self, index: u64) -> u64 {
        debug_assert!(index < LINES_MAX, "the line belongs to the transaction");
        self.at + LINE * (index + 1)
    }

    /// The lines of its accesses, usage words and events.
    #[inline]
    pub(crate) fn all_lines(&self) -> Result<&'m [[AtomicU64; 8]], Corruption> {
        let words = self.map.slice(self.line_at(0), LINE / 8 * self.lines()?)?;
        Ok(words.as_chunks().0)
    }

    /// The line of an access or of an event.
    #[inline]
    pub(crate) fn line(&self, index: u64) -> Result<TxnLine<'m>, Corruption> {
        Ok(TxnLine(self.map.line(self.line_at(index) / LINE)?))
    }

    pub(crate) fn set(&self, index: u64, which: u64, value: u64) -> Result<(), Corruption> {
        self.line(index)?.set(which, value);
        Ok(())
    }

    pub(crate) fn get(&self, index: u64, which: u64) -> Result<u64, Corruption> {
        Ok(self.line(index)?.get(which))
    }

    /// Aborts the transaction, unless it is committed. The writer and every process that finishes
    /// its work decide by the same compare-and-swap.
    pub(crate) fn abort_unless_committed(&self) -> Result<TxnOutcome, Corruption> {
        match abort(self.word(STATUS)?) {
            ABORTED => Ok(TxnOutcome::Aborted),
            COMMITTED => Ok(TxnOutcome::Committed),
            _ => Err(Corruption("a transaction has a status that does not exist")),
        }
    }

    /// Replaces the intent of each line that is still in place by the given word of the line.
    pub(crate) fn replace_intents(&self, which: u64) -> Result<(), Corruption> {
        let (mut lock_at, mut line_at) = (0, self.at);
        for line in self.all_lines()? {
            let line = TxnLine::of(line);
            line_at += LINE;
            let lock = line.get(LINE_LOCK);
            lock_at = if lock == 0 { lock_at } else { lock };
            self.replace_intent((line_at, line), lock_at, which)?;
        }
        Ok(())
    }

    /// As [`TxnCell::replace_intents`], of one line, whose record is in the bucket with this lock.
    #[inline]
    pub(crate) fn replace_intent(
        &self,
        (line_at, line): (u64, TxnLine<'_>),
        lock_at: u64,
        which: u64,
    ) -> Result<(), Corruption> {
        let slot = line.get(LINE_SLOT);
        if slot == 0 {
            return Ok(());
        }
        let word = self.map.word(slot)?;
        let seen = load(word);
        if is_intent(seen) && at_of(seen) == line_at {
            let entry = line.get(which);
            publish(word, entry);
            crash_point!("txn.replacing");
            if entry == 0 {
                self.raise_stamp(lock_at)?;
            }
        }
        Ok(())
    }

    /// After an entry was removed: a walk that began before reads the bucket again.
    pub(crate) fn raise_stamp(&self, lock_at: u64) -> Result<(), Corruption> {
        let word = self.map.word(lock_at)?;
        let seen = word.load(Ordering::Relaxed);
        let raised = control(depth_of(seen), stamp_of(seen) + 1);
        lock::hold_with(word, lock::owner_of(seen), raised);
        Ok(())
    }
}
