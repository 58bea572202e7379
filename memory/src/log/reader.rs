//! Readers of the log, and what its consumer has acknowledged.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nearstate_model::{Error, Result, invariant};

use crate::atomic::{AtomicU64, Ordering};
use crate::crash::crash_point;
use crate::heap::cell::Cell;
use crate::heap::held;
use crate::index::bucket::{ABORTED, COMMITTED, abort, status_of};
use crate::layout::{
    Corruption, LOG_FLOOR, LOG_FLOOR_LIMIT, LOG_GAP_COUNT, LOG_GAP_UNKNOWN, LOG_GAPS, LOG_GAPS_MAX,
    LOG_REPLICATED, LOG_TAIL, LOG_WAKE,
};
use crate::log::entry::LogEntry;
use crate::log::wake::{announce_in, must_wake_sleepers, register_sleeper};
use crate::log::words::LogSlot;
use crate::log::{budget, log_words};
use crate::member::{Member, Pin};
use crate::region::file::{Region, Shared};
use crate::region::map::Map;
use crate::system::{futex_wait, futex_wake};

/// A writer that needs longer than this between two steps of its commit is passed over. It is a
/// hundred times as long as the steps take.
const WRITER_DELAY_MAX: Duration = Duration::from_micros(100);
/// The longest single sleep of a waiter: a consumer that was killed after its acknowledgement wakes
/// none.
pub(crate) const SLEEP_MAX: Duration = Duration::from_millis(100);
/// How long a reader looks again and again before it yields: as long as two system calls.
const SPIN_MAX: Duration = Duration::from_micros(2);

/// The part of what the log may hold that [`Region::hold_log`] keeps.
const HOLD_SHARE: u64 = 2;

/// What a reader finds at its position.
#[derive(Clone, Copy, Debug)]
pub enum LogRead<'m> {
    /// Nothing yet.
    Empty,
    /// The next entry.
    Entry(LogEntry<'m>),
    /// The log has given up entries before they were read: at most so many.
    Lost {
        /// Their number. Positions that never had an entry count as well.
        entries: u64,
    },
}

/// What the consumer of the log has done with a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PositionState {
    /// Nothing yet.
    Pending,
    /// It has acknowledged it.
    Acknowledged,
    /// It has acknowledged a later one, and has not read this one.
    Lost,
    /// The log was ended before it has, and what others have of it will not be known; or it is too
    /// old, or of another log.
    Unknown,
}

/// A reader of the log.
#[derive(Clone, Debug)]
pub struct LogReader {
    next: u64,
    /// The tail at a moment, and the moment.
    waiting: (u64, Option<Instant>),
    /// Entries that were lost since the last acknowledgement: the first and the last position.
    lost: Option<(u64, u64)>,
}

impl LogReader {
    /// The position of the next entry.
    pub const fn next_position(&self) -> u64 {
        self.next
    }

    /// True if a writer has had [`WRITER_DELAY_MAX`] to decide this position. Those that wait for
    /// one reader at the same time wait together.
    fn has_waited(&mut self, position: u64, tail: &AtomicU64) -> bool {
        if let (up_to, Some(since)) = self.waiting
            && position <= up_to
        {
            return since.elapsed() > WRITER_DELAY_MAX;
        }
        debug_assert!(position == self.next, "a reader waits for another position than its own");
        self.waiting = (tail.load(Ordering::Acquire), Some(Instant::now()));
        false
    }

    /// Between two looks at a writer that has drawn its position. A writer that runs decides within
    /// a microsecond. A reader that yields to another thread may run milliseconds later.
    fn pause(&self) {
        match self.waiting {
            (_, Some(since)) if since.elapsed() < SPIN_MAX => std::hint::spin_loop(),
            _ => std::thread::yield_now(),
        }
    }
}

impl Region {
    /// A reader of this process needs the log behind a position: a log that keeps entries forgets
    /// none of them before the reader says a higher one, whatever is acknowledged and released by
    /// sessions of this attachment. No writer is refused for it: a log that holds half as much as
    /// it may, or a heap that is full, loses what was acknowledged all the same. `None`: no reader
    /// needs it. There is one such reader.
    pub fn hold_log(&self, position: Option<u64>) {
        self.shared.log_hold.store(position.unwrap_or(u64::MAX), Ordering::Release);
    }
}

impl Member {
    /// What was loaded where zeros have a meaning: a missing page reads as zeros. Cost: one load.
    #[inline]
    pub(crate) fn checked<T>(&self, loaded: T) -> Result<T> {
        self.check_not_truncated()?;
        Ok(loaded)
    }

    /// The floor that leaves the reader of [`Region::hold_log`] what it needs, and at most `floor`.
    /// It gets no more than a part of the log: a writer that finds it full would let the floor pass
    /// what followers need as well.
    fn unheld_floor(&self, floor: u64) -> Result<u64> {
        let needed = self.shared().log_hold.load(Ordering::Acquire).saturating_add(1);
        if needed >= floor {
            return Ok(floor);
        }
        let Some(log) = log_words(self.map())? else { return Ok(floor) };
        let first = needed.max(log.floor.load(Ordering::Acquire));
        let words = log.tail.load(Ordering::Acquire).saturating_sub(first);
        let has_room = words < log.ring.len() as u64 / HOLD_SHARE
            && self.log_held(&log)? <= budget(self.map().chunks()) / HOLD_SHARE;
        Ok(if has_room { needed } else { floor })
    }

    /// A reader of the log, behind what was acknowledged last.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn log_reader(&self) -> Result<LogReader> {
        self.check_usable()?;
        let acknowledged = self.map().word(LOG_REPLICATED)?.load(Ordering::Acquire);
        Ok(LogReader { next: acknowledged + 1, waiting: (0, None), lost: None })
    }

    /// A reader of the log that begins behind a position.
    ///
    /// # Errors
    /// `Forked`.
    pub fn log_reader_behind(&self, position: u64) -> Result<LogReader> {
        self.check_usable()?;
        Ok(LogReader { next: position + 1, waiting: (0, None), lost: None })
    }

    /// Reads the next entry, under a pin that the caller keeps while it uses it. Waits at most
    /// 100 us for a writer that has drawn its position and not decided: then it is passed over, and
    /// tries again at another position.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn read_log<'m>(&'m self, reader: &mut LogReader, pin: &Pin<'m>) -> Result<LogRead<'m>> {
        self.check_usable()?;
        debug_assert!(pin.is_of(self), "the pin is one of this session");
        let map = self.map();
        let Some(log) = log_words(map)? else { return Ok(LogRead::Empty) };
        loop {
            let position = reader.next;
            match log.read(position, || self.keep_protected()) {
                LogSlot::Unused => return Ok(LogRead::Empty),
                LogSlot::Hole => reader.next += 1,
                LogSlot::Lost => {
                    let floor = log.floor.load(Ordering::Acquire).max(position + 1);
                    let first = reader.lost.map_or(position, |(first, _)| first);
                    invariant!(first < floor, "position {floor} follows the lost one {first}");
                    reader.lost = Some((first, floor - 1));
                    reader.next = floor;
                    return Ok(LogRead::Lost { entries: floor - position });
                }
                LogSlot::Drawn(_) if !reader.has_waited(position, log.tail) => reader.pause(),
                LogSlot::Drawn(seen) => {
                    let _ = log.void(position, seen); // Or it was claimed just now.
                }
                LogSlot::Claimed(units) => {
                    let entry = match LogEntry::at(map, position, units) {
                        Ok(entry) => entry,
                        Err(damage) => {
                            reader.next += 1;
                            return Err(damage.into());
                        }
                    };
                    let status = entry.status()?;
                    let decided = match status_of(status) {
                        0 if reader.has_waited(position, log.tail) => abort(status),
                        0 => {
                            reader.pause();
                            continue;
                        }
                        decided => decided,
                    };
                    reader.next += 1;
                    match decided {
                        COMMITTED => return Ok(LogRead::Entry(entry)),
                        ABORTED => {}
                        _ => {
                            return Err(Corruption("a transaction of the log has no status").into());
                        }
                    }
                }
            }
        }
    }

    /// Acknowledges everything that was read, and wakes those that wait for it. What was lost is
    /// recorded first, so that no receipt for it ever counts as replicated.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn acknowledge_log(&self, reader: &mut LogReader) -> Result<()> {
        self.check_usable()?;
        let map = self.map();
        if let Some((first, last)) = reader.lost {
            self.record_gap(first, last)?;
            reader.lost = None;
        }
        invariant!(reader.next != 0, "a reader of the log begins behind position 0");
        let limit = map.word(LOG_FLOOR_LIMIT)?;
        if limit.load(Ordering::Relaxed) != 0 {
            // It was stored for followers, and this consumer counts now.
            limit.store(0, Ordering::Release);
        }
        map.word(LOG_REPLICATED)?.fetch_max(reader.next - 1, Ordering::AcqRel);
        crash_point!("log.acknowledged");
        if held::keeps(map)? {
            map.word(LOG_FLOOR)?.fetch_max(self.unheld_floor(reader.next)?, Ordering::AcqRel);
        }
        let word = map.word(LOG_WAKE)?;
        if must_wake_sleepers(word) {
            futex_wake(word);
        }
        self.check_not_truncated()
    }

    /// The positions of a range are lost: their receipts answer so.
    pub(crate) fn record_gap(&self, first: u64, last: u64) -> Result<(), Corruption> {
        invariant!(first <= last, "a gap of the log ends before it begins");
        self.store_gap((first, last))
    }

    /// Stores the words of a gap.
    pub(crate) fn store_gap(&self, (first, last): (u64, u64)) -> Result<(), Corruption> {
        let map = self.map();
        let gaps = map.word(LOG_GAP_COUNT)?;
        let count = gaps.load(Ordering::Acquire);
        let at = LOG_GAPS + 16 * (count % LOG_GAPS_MAX);
        map.word(at)?.store(first, Ordering::Relaxed);
        map.word(at + 8)?.store(last, Ordering::Relaxed);
        crash_point!("log.gap_stored");
        gaps.store(count + 1, Ordering::Release);
        crash_point!("log.gap_counted");
        Ok(())
    }

    /// The words of the gap that was recorded last.
    pub(crate) fn last_gap(&self) -> Result<Option<(u64, u64)>, Corruption> {
        let map = self.map();
        let Some(last) = map.word(LOG_GAP_COUNT)?.load(Ordering::Acquire).checked_sub(1) else {
            return Ok(None);
        };
        let [first, last] = map.words(LOG_GAPS + 16 * (last % LOG_GAPS_MAX))?;
        Ok(Some((first.load(Ordering::Acquire), last.load(Ordering::Acquire))))
    }

    /// Another host has everything up to a position: it counts as replicated. Wakes those that wait
    /// for it.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn acknowledge_log_to(&self, position: u64) -> Result<()> {
        self.check_usable()?;
        let map = self.map();
        let position = position.min(self.log_tail()?);
        map.word(LOG_REPLICATED)?.fetch_max(position, Ordering::AcqRel);
        crash_point!("log.acknowledged");
        let word = map.word(LOG_WAKE)?;
        if must_wake_sleepers(word) {
            futex_wake(word);
        }
        self.check_not_truncated()
    }

    /// No reader needs the entries up to a position: a log that keeps entries may forget them. When
    /// it is full, it may forget what each follower that counts has, and no more.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn release_log_to(&self, position: u64, counted: u64) -> Result<()> {
        let map = self.map();
        if held::keeps(map)? {
            let tail = self.log_tail()?;
            let floor = self.unheld_floor(position.min(tail) + 1)?;
            for (at, floor) in [(LOG_FLOOR_LIMIT, counted.min(tail) + 1), (LOG_FLOOR, floor)] {
                let word = map.word(at)?;
                // Each source does so again and again, and writers load the line.
                if word.load(Ordering::Relaxed) < floor {
                    word.fetch_max(floor, Ordering::AcqRel);
                }
            }
        }
        Ok(())
    }

    /// The highest position that was drawn. A transaction on which something depends that was read
    /// before is not behind it.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn log_tail(&self) -> Result<u64> {
        self.checked(self.map().word(LOG_TAIL)?.load(Ordering::Acquire))
    }

    /// The lowest position that the log keeps; 0 and 1 if it has forgotten none.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn log_floor_position(&self) -> Result<u64> {
        self.checked(self.map().word(LOG_FLOOR)?.load(Ordering::Acquire))
    }

    /// The highest position that was acknowledged.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn log_acknowledged(&self) -> Result<u64> {
        self.checked(self.map().word(LOG_REPLICATED)?.load(Ordering::Acquire))
    }

    /// What the consumer has done with a position. Two loads, if it has lost nothing.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn position_state(&self, position: u64) -> Result<PositionState> {
        self.checked(position_state(self.map(), position)?)
    }

    /// Waits for acknowledgements on another thread.
    pub fn log_waiter(&self) -> LogWaiter {
        LogWaiter { shared: Arc::clone(self.shared()) }
    }

    /// The position of the transaction that has published a record, if its cell tells: else it is
    /// not behind [`Member::log_tail`].
    ///
    /// # Errors
    /// `Corruption`.
    pub fn position_of(&self, record: &Cell<'_>) -> Result<Option<u64>, Corruption> {
        held::position_of(self.map(), record.at())
    }
}

#[inline]
pub(crate) fn position_state(map: &Map, position: u64) -> Result<PositionState, Corruption> {
    // A demotion loses positions that were never acknowledged.
    let is_behind = map.word(LOG_REPLICATED)?.load(Ordering::Acquire) < position;
    let otherwise = if is_behind { PositionState::Pending } else { PositionState::Acknowledged };
    match map.word(LOG_GAP_COUNT)?.load(Ordering::Acquire) {
        0 => Ok(otherwise),
        _ if position == 0 => Ok(PositionState::Acknowledged),
        _ => state_among_gaps(map, position, otherwise),
    }
}

#[cold]
fn state_among_gaps(
    map: &Map,
    position: u64,
    otherwise: PositionState,
) -> Result<PositionState, Corruption> {
    loop {
        let count = map.word(LOG_GAP_COUNT)?.load(Ordering::Acquire);
        let mut oldest = u64::MAX;
        let mut found = None;
        // In their order, so that the first answer of a receipt stays. The place of the next gap
        // may be half written.
        for gap in count.saturating_sub(LOG_GAPS_MAX - 1)..count {
            let [first, last] = map.words(LOG_GAPS + 16 * (gap % LOG_GAPS_MAX))?;
            let (word, last) = (first.load(Ordering::Acquire), last.load(Ordering::Acquire));
            let first = word & !LOG_GAP_UNKNOWN;
            if found.is_none() && (first..=last).contains(&position) {
                let is_lost = first == word;
                found = Some(if is_lost { PositionState::Lost } else { PositionState::Unknown });
            }
            oldest = oldest.min(first);
        }
        // Of older gaps nothing is known.
        if count >= LOG_GAPS_MAX && position < oldest {
            found = Some(PositionState::Unknown);
        }
        if map.word(LOG_GAP_COUNT)?.load(Ordering::Acquire) == count {
            return Ok(found.unwrap_or(otherwise));
        }
    }
}

/// What the consumer of the log has done at a moment: a waiter sleeps until it is something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogProgress {
    replicated: u64,
    gaps: u64,
}

impl LogProgress {
    /// How many ranges of positions were lost. While it stays, no position behind one that is
    /// pending becomes decided.
    pub const fn gaps(self) -> u64 {
        self.gaps
    }
}

/// Waits for acknowledgements without a session. Several threads can use it at the same time.
#[derive(Clone, Debug)]
pub struct LogWaiter {
    pub(crate) shared: Arc<Shared>,
}

impl LogWaiter {
    /// What the consumer has done so far. Load it before the states that depend on it.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn progress(&self) -> Result<LogProgress> {
        let load = |at| Ok::<_, Corruption>(self.shared.map.word(at)?.load(Ordering::Acquire));
        self.checked(LogProgress { replicated: load(LOG_REPLICATED)?, gaps: load(LOG_GAP_COUNT)? })
    }

    /// Sleeps until the consumer has done more than `known`, `is_over` is true after
    /// [`LogWaiter::wake`], or 100 ms have passed: a consumer that was killed wakes none.
    ///
    /// # Errors
    /// `Damaged`, `Forked`, `System`.
    pub fn wait(&self, known: LogProgress, is_over: impl Fn() -> bool) -> Result<()> {
        self.check_usable()?;
        let word = self.shared.map.word(LOG_WAKE)?;
        let seen = register_sleeper(word);
        if !is_over() && self.progress()? == known {
            futex_wait(word, seen, SLEEP_MAX)?;
        }
        Ok(())
    }

    /// A task of this process waits from now on. A source of the log sends at once what is waited
    /// for, before a thread sleeps for the task.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn announce(&self) -> Result<()> {
        announce_in(&self.shared.map)?;
        Ok(())
    }

    /// Wakes everything that waits for acknowledgements. Each looks again.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn wake(&self) -> Result<()> {
        let word = self.shared.map.word(LOG_WAKE)?;
        if must_wake_sleepers(word) {
            futex_wake(word);
        }
        Ok(())
    }

    /// True in a process that was forked from the one that attached.
    pub fn is_forked(&self) -> bool {
        self.shared.map.is_forked()
    }

    /// As [`Member::checked`].
    #[inline]
    pub(crate) fn checked<T>(&self, loaded: T) -> Result<T> {
        self.check_usable()?;
        self.shared.check_not_truncated()?;
        Ok(loaded)
    }

    fn check_usable(&self) -> Result<()> {
        if self.is_forked() { Err(Error::Forked) } else { Ok(()) }
    }
}
