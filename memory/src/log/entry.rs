//! An entry of the log: the cell of its transaction.

use crate::atomic::{AtomicU64, Ordering};
use crate::heap::cell::{self, Cell, CellKind, WORD_HEAD, WORD_RETIRED};
use crate::index::bucket::at_of;
use crate::index::intent::{
    JUDGED, LINE_BASE, LINE_MARK, LINE_NEW, LINE_OLD, LINE_SLOT, LINES_MAX, LOG_CHECK, LOG_HELD,
    LOG_SUM, POSITION, STATUS, TxnCell, TxnLine,
};
use crate::layout::{Corruption, HEAP, LINE};
use crate::member::pin;
use crate::region::map::Map;

/// Bits of the mark of a record in a logged transaction: `1 | expiry:1 | 0:14 | number:16 |
/// namespace:32`.
const MARK: u64 = 1 << 63;
const MARK_EXPIRY: u64 = 1 << 62;
const MARK_NUMBER_SHIFT: u32 = 32;

const _: () = assert!(LINES_MAX <= 1 << 16, "the number of a record has 16 bits");
const _: () = assert!(MARK_NUMBER_SHIFT + 16 <= MARK_EXPIRY.trailing_zeros(), "fields are apart");
const _: () = assert!(log_mark(1, 2, true) == MARK | MARK_EXPIRY | 2 << MARK_NUMBER_SHIFT | 1);

/// The mark of a logged record, for [`crate::RecordAccess::log_mark`]. `number` is its place in the
/// transaction.
#[inline]
pub const fn log_mark(namespace: u32, number: u16, is_expiry: bool) -> u64 {
    debug_assert!(namespace != u32::MAX, "no namespace has this number");
    let flags = if is_expiry { MARK | MARK_EXPIRY } else { MARK };
    flags | (number as u64) << MARK_NUMBER_SHIFT | namespace as u64
}

/// A committed transaction in the log.
#[derive(Clone, Copy, Debug)]
pub struct LogEntry<'m> {
    position: u64,
    txn: TxnCell<'m>,
}

/// A record that a transaction of the log has changed.
#[derive(Clone, Copy, Debug)]
pub struct LoggedRecord<'m> {
    /// The number of its namespace.
    pub namespace: u32,
    /// The version before, 0 if the record did not exist.
    pub base_version: u64,
    /// True if it was removed because it had expired.
    pub is_expiry: bool,
    /// The version before.
    pub old: OldRecord<'m>,
    /// The version after, if it exists.
    pub new: Option<Cell<'m>>,
}

/// The version of a record before a transaction. Its line is not looked at before it is opened:
/// the writer has linked it since, so a reader on another processor waits for the line, and most
/// changes do not need it.
#[derive(Clone, Copy, Debug)]
pub struct OldRecord<'m>(Option<(&'m Map, u64)>);

impl<'m> OldRecord<'m> {
    /// The record did not exist.
    pub const NONE: Self = Self(None);

    /// The version before, if the record existed.
    ///
    /// # Errors
    /// `Corruption`: the entry names no record.
    #[inline]
    pub fn open(self) -> Result<Option<Cell<'m>>, Corruption> {
        let Some((map, entry)) = self.0 else { return Ok(None) };
        record_at(map, entry)
    }
}

/// The record that an index entry names, if it names one.
#[inline]
fn record_at(map: &Map, entry: u64) -> Result<Option<Cell<'_>>, Corruption> {
    if entry == 0 {
        return Ok(None);
    }
    let cell = Cell::new(map, at_of(entry))?;
    if cell.kind()? != CellKind::Record {
        return Err(Corruption("an entry of the log names a cell that is no record"));
    }
    Ok(Some(cell))
}

impl<'m> LogEntry<'m> {
    /// The entry at a position, in these units.
    pub(crate) fn at(map: &'m Map, position: u64, units: u64) -> Result<Self, Corruption> {
        const WRONG: Corruption = Corruption("a word of the log leads to no transaction of it");
        let at = units * LINE;
        if at < HEAP {
            return Err(WRONG);
        }
        let txn = TxnCell::of(map, at);
        let kind = cell::kind_of(cell::word(map, at, WORD_HEAD)?.load(Ordering::Relaxed))?;
        if kind != CellKind::Transaction
            || !txn.is_logged()?
            || txn.word(POSITION)?.load(Ordering::Acquire) != position
        {
            return Err(WRONG);
        }
        Ok(Self { position, txn })
    }

    /// The word of its status.
    pub(crate) fn status(&self) -> Result<&'m AtomicU64, Corruption> {
        self.txn.word(STATUS)
    }

    /// Its position: entries are in the order of their commits.
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// The slot of the session that has written it.
    ///
    /// # Errors
    /// `Corruption`.
    pub fn writer(&self) -> Result<u32, Corruption> {
        Ok((self.txn.word(JUDGED)?.load(Ordering::Relaxed) >> 48) as u32)
    }

    /// The time by which it was judged whether a record has expired, in milliseconds since 1970.
    ///
    /// # Errors
    /// `Corruption`.
    pub fn time_ms(&self) -> Result<u64, Corruption> {
        Ok(self.txn.word(JUDGED)?.load(Ordering::Relaxed) & (u64::MAX >> 16))
    }

    /// A check value of what it says. Two entries of one position that differ in a record or a
    /// version have different ones.
    ///
    /// # Errors
    /// `Corruption`.
    pub fn check_value(&self) -> Result<u64, Corruption> {
        let mut sum = self.position;
        for line in self.txn.all_lines()?.iter().map(TxnLine::of) {
            let mark = mark_of(line);
            if mark != 0 {
                let new = line.get(LINE_NEW);
                let version = match new {
                    0 => 0,
                    entry => Cell::new(self.txn.map(), at_of(entry))?.version(),
                };
                sum = mix(mix(mix(sum, mark), line.get(LINE_BASE)), version);
            }
        }
        Ok(mix(sum, self.time_ms()?))
    }

    /// The records of logged namespaces that it has changed, in the order in which the transaction
    /// names them.
    ///
    /// # Errors
    /// `Corruption`: its lines are not those that were written.
    pub fn records(&self) -> Result<Vec<LoggedRecord<'m>>, Corruption> {
        let lines = self.checked_lines()?;
        let mut records = Vec::with_capacity(lines.len());
        for line in lines.iter().map(TxnLine::of).filter(|line| mark_of(*line) != 0) {
            records.push((mark_of(line) >> MARK_NUMBER_SHIFT, self.record(line)?));
        }
        records.sort_by_key(|(flags_and_number, _)| *flags_and_number as u16);
        Ok(records.into_iter().map(|(_, record)| record).collect())
    }

    /// As [`LogEntry::records`], if it has one line: then that is usually its one record, and
    /// nothing is allocated. `None` if it has several lines.
    ///
    /// # Errors
    /// As [`LogEntry::records`].
    pub fn single_record(&self) -> Result<Option<LoggedRecord<'m>>, Corruption> {
        let [line] = self.checked_lines()? else { return Ok(None) };
        let line = TxnLine::of(line);
        (mark_of(line) != 0).then(|| self.record(line)).transpose()
    }

    fn checked_lines(&self) -> Result<&'m [[AtomicU64; 8]], Corruption> {
        let lines = self.txn.all_lines()?;
        if self.txn.log_line()?.get(LOG_CHECK) != check_value(lines.iter()) ^ self.position {
            return Err(Corruption("an entry of the log is not the one that was written"));
        }
        Ok(lines)
    }

    fn record(&self, line: TxnLine<'m>) -> Result<LoggedRecord<'m>, Corruption> {
        let mark = mark_of(line);
        let old = line.get(LINE_OLD);
        Ok(LoggedRecord {
            namespace: mark as u32,
            base_version: line.get(LINE_BASE),
            is_expiry: mark & MARK_EXPIRY != 0,
            old: OldRecord((old != 0).then_some((self.txn.map(), old))),
            new: record_at(self.txn.map(), line.get(LINE_NEW))?,
        })
    }

    /// The units that the log had ever held with this entry.
    pub(crate) fn sum(&self) -> Result<u64, Corruption> {
        Ok(self.txn.log_line()?.get(LOG_SUM))
    }

    /// True if the log holds its cell: until the floor has passed it.
    pub(crate) fn is_held(&self) -> Result<bool, Corruption> {
        let word = cell::word(self.txn.map(), self.txn.at, WORD_RETIRED)?;
        Ok(pin::is_held(word.load(Ordering::Acquire)))
    }

    /// The units that the log had ever held before this entry.
    pub(crate) fn sum_before(&self) -> Result<u64, Corruption> {
        let line = self.txn.log_line()?;
        Ok(line.get(LOG_SUM).saturating_sub(line.get(LOG_HELD)))
    }
}

/// The mark of a line of a logged transaction; 0 for a line that is not of a record that the log
/// has. Lines of usage words and of events have no slot, and other words in place of the mark.
pub(crate) fn mark_of(line: TxnLine<'_>) -> u64 {
    let mark = line.get(LINE_MARK);
    if line.get(LINE_SLOT) != 0 && mark & MARK != 0 { mark } else { 0 }
}

const fn mix(sum: u64, word: u64) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    (sum ^ word).wrapping_mul(FACTOR).rotate_left(29)
}

/// A check value of what an entry says: any flipped bit changes it. The position is added to it.
pub(crate) fn check_value<'l>(lines: impl Iterator<Item = &'l [AtomicU64; 8]>) -> u64 {
    lines.map(TxnLine::of).filter(|line| mark_of(*line) != 0).fold(0, |sum, line| {
        let words = [LINE_SLOT, LINE_OLD, LINE_NEW, LINE_BASE, LINE_MARK];
        check_of(sum, words.map(|which| line.get(which)))
    })
}

/// As [`check_value`], of the entry whose earlier lines have the value `sum`, with one line more:
/// its slot, the old entry, the new one, the version before, and the mark.
#[inline]
pub(crate) fn check_of(sum: u64, said: [u64; 5]) -> u64 {
    debug_assert!(said.first() != Some(&0), "a line that changes a record has a slot");
    debug_assert!(said.last().is_some_and(|mark| mark & MARK != 0), "the log has the record");
    said.into_iter().fold(sum, mix)
}
