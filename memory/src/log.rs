//! The log of the host: one order of all transactions of logged namespaces
//! (`docs/decisions/021-log.md`; `spec/region.md`, section 11).
//!
//! An entry is the cell of its transaction. Writers place it with all locks held, before the
//! decision. Consumers read it where it is, under a pin.

pub(crate) mod at_rest;
mod declared;
pub(crate) mod begins;
pub(crate) mod wait;
pub(crate) mod reader;
pub(crate) mod wake;
pub(crate) mod entry;
pub(crate) mod words;

use std::ptr::NonNull;

use nearstate_model::limits::MEMBERS_MAX;
use nearstate_model::{Error, Result, invariant};

use crate::atomic::{AtomicU64, Ordering};
use crate::clock::judged_ms;
use crate::crash::crash_point;
use crate::heap::cell::{self, CellKind, WORD_HEAD, WORD_VERSION};
use crate::heap::held;
use crate::index::intent::{JUDGED, LOG_CHECK, LOG_HELD, LOG_SUM, POSITION, TxnCell, TxnLine};
use crate::layout::{
    CHUNK_BYTES, Corruption, LINE, LOG_FLOOR, LOG_KEEPS, LOG_TAIL, LOG_UNITS, LOG_WORDS,
};
use crate::log::entry::{LogEntry, check_value};
use crate::log::words::{Claim, LogSlot, LogWords, WORDS_RESERVED};
use crate::member::Member;
use crate::member::arena::{close_undo_record, op, undo, write_undo};
use crate::region::map::Map;

/// Words of the ring: the fewest that leave room beside the reserve, and as many as a second of a
/// million transactions needs.
const WORDS_MIN: u64 = 1 << 16;
const WORDS_MAX: u64 = 1 << 20;
/// The ring takes at most this part of the heap, as far as [`WORDS_MIN`] allows.
const WORDS_SHARE: u64 = 64;
/// The part of the heap that the log may hold.
const HELD_SHARE: u64 = 16;
/// The part of that which becomes free when the log holds more.
const FREED_SHARE: u64 = 32;
/// An entry that holds more than this part of what the log may hold is large: it waits until the
/// log holds half of that at most. What it holds was live before, so a large record can be deleted
/// in a full heap, however large it is.
const LARGE_SHARE: u64 = 8;
/// How often a writer that finds its position void draws another one.
const DRAWS_MAX: u32 = 3;
/// A commit with such a position lowers what the log holds, if it is too much; and one whose
/// session has added this part of what the log may hold.
const FLOOR_EVERY: u64 = 64;
const LOOK_SHARE: u64 = 64;
const _: () = assert!(WORDS_MIN > 2 * WORDS_RESERVED && WORDS_MIN.is_power_of_two());
const _: () = assert!(FLOOR_EVERY < WORDS_RESERVED);
const _: () = assert!(WORDS_MAX.is_power_of_two() && WORDS_MIN <= WORDS_MAX);
const _: () = assert!(LARGE_SHARE > 2 && FREED_SHARE > 1, "a share is a part of the budget");
const _: () = assert!(MEMBERS_MAX as u64 <= WORDS_RESERVED, "each session has a word in reserve");
const _: () = assert!(POSITION + 8 == JUDGED && JUDGED + 8 == LINE, "the last words of the head");
const _: () = assert!(budget(LOOK_SHARE) >= LOOK_SHARE, "a look is not due at each entry");

/// After an abort, before its cell is retired: the position of a transaction becomes a hole.
/// Idempotent. Recovery calls it for a dead member.
pub(crate) fn give_back(txn: TxnCell<'_>) -> Result<(), Corruption> {
    let position = txn.word(POSITION)?.load(Ordering::Acquire);
    if position != 0
        && let Some(log) = log_words(txn.map())?
    {
        log.give_back(position, txn.at / LINE);
        crash_point!("log.given_back");
    }
    Ok(())
}

/// The words of the log, if there is one.
pub(crate) fn log_words(map: &Map) -> Result<Option<LogWords<'_>>, Corruption> {
    match map.word(LOG_WORDS)?.load(Ordering::Acquire) {
        0 => Ok(None),
        at => log_words_at(map, at).map(Some),
    }
}

/// The words of the log in the cell at an offset.
fn log_words_at(map: &Map, at: u64) -> Result<LogWords<'_>, Corruption> {
    let count = cell::word(map, at, WORD_VERSION)?.load(Ordering::Relaxed);
    if !count.is_power_of_two() || !(WORDS_MIN..=WORDS_MAX).contains(&count) {
        return Err(Corruption("the log has a number of words that no log has"));
    }
    let ring = map.slice(at.saturating_add(LINE), count)?;
    debug_assert!(ring.len() as u64 == count, "the slice is the ring");
    Ok(LogWords { tail: map.word(LOG_TAIL)?, floor: map.word(LOG_FLOOR)?, ring })
}

/// The number of words of the log in a heap with so many chunks.
fn words_for(chunks: u64) -> u64 {
    let share = chunks * CHUNK_BYTES / WORDS_SHARE / 8;
    (1 << share.max(1).ilog2()).clamp(WORDS_MIN, WORDS_MAX)
}

/// The units that the log may hold in a heap with so many chunks.
const fn budget(chunks: u64) -> u64 {
    chunks * CHUNK_BYTES / LINE / HELD_SHARE
}

/// Repeats a claim whose word the floor has not passed, if the log may lose entries.
#[cold]
fn claim_of_full(
    map: &Map,
    log: LogWords<'_>,
    (position, units): (u64, u64),
) -> Result<Claim, Corruption> {
    if held::keeps(map)? {
        return Ok(Claim::Full);
    }
    log.raise_floor(position - log.ring.len() as u64 + 1);
    Ok(log.claim(position, units))
}

impl Member {
    /// As [`log_words`]. What its cell says is verified once: the words of a log are as many as its
    /// heap has chunks for.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of each logged write")]
    pub(crate) fn known_log_words(&self) -> Result<Option<LogWords<'_>>, Corruption> {
        let map = self.map();
        let at = map.word(LOG_WORDS)?.load(Ordering::Acquire);
        if let Some((known_at, ring)) = self.log.ring.get()
            && known_at == at
        {
            // SAFETY: words of the map, which `shared` keeps mapped while this member exists.
            let ring = unsafe { ring.as_ref() };
            return Ok(Some(LogWords {
                tail: map.word(LOG_TAIL)?,
                floor: map.word(LOG_FLOOR)?,
                ring,
            }));
        }
        if at == 0 { Ok(None) } else { self.verified_log_words(at).map(Some) }
    }

    #[cold]
    fn verified_log_words(&self, at: u64) -> Result<LogWords<'_>, Corruption> {
        debug_assert!(at != 0, "a log has its words in a cell");
        let log = log_words_at(self.map(), at)?;
        self.log.ring.set(Some((at, NonNull::from(log.ring))));
        Ok(log)
    }

    /// Creates the log, unless it exists. No cell may be pending.
    ///
    /// # Errors
    /// `Full`, `Stalled`, `Damaged`, `Forked`.
    pub fn open_log(&self) -> Result<()> {
        self.check_usable()?;
        if self.map().word(LOG_WORDS)?.load(Ordering::Acquire) != 0 {
            return Ok(());
        }
        invariant!(self.has_no_lock(), "the log is created while this member holds a lock");
        self.operation(|| {
            let (map, arena) = (self.map(), self.arena());
            let at = match self.create_log() {
                Ok(at) => at,
                Err(error) => {
                    self.free_pending()?;
                    return Err(error);
                }
            };
            write_undo(&arena, LOG_WORDS, 0, at, op::SET_ONCE);
            crash_point!("log.recorded");
            let word = map.word(LOG_WORDS)?;
            if word.compare_exchange(0, at, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                crash_point!("log.published");
                close_undo_record(&arena);
                return Ok(());
            }
            arena.set(undo::OP, op::NONE);
            self.free_pending()
        })
    }

    fn create_log(&self) -> Result<u64> {
        let map = self.map();
        let count = words_for(map.chunks());
        invariant!(count.is_power_of_two(), "a log of {count} words");
        let at = self.allocate(LINE + 8 * count)?;
        let class = cell::word(map, at, WORD_HEAD)?.load(Ordering::Relaxed) & 0xff;
        let head = class | cell::kind_in_head(CellKind::Extent);
        cell::word(map, at, WORD_HEAD)?.store(head, Ordering::Relaxed);
        cell::word(map, at, WORD_VERSION)?.store(count, Ordering::Relaxed);
        let ring = map.slice(at + LINE, count)?;
        let log = LogWords { tail: map.word(LOG_TAIL)?, floor: map.word(LOG_FLOOR)?, ring };
        let first = log.first_word();
        for word in ring {
            word.store(first, Ordering::Relaxed);
        }
        Ok(at)
    }

    /// With all locks held, before anything is changed: checks that the log has room for an entry
    /// that holds so many units. `must_keep`: a namespace that it changes must lose no entry.
    ///
    /// # Errors
    /// `Behind`, `Damaged`.
    pub(crate) fn check_log_room(&self, units: u64, must_keep: bool) -> Result<()> {
        let log = log_words(self.map())?.ok_or(NO_LOG)?;
        self.check_room_in(log, units, must_keep)
    }

    /// As [`Member::check_log_room`], given the words of the log.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of each logged write")]
    pub(crate) fn check_room_in(
        &self,
        log: LogWords<'_>,
        units: u64,
        must_keep: bool,
    ) -> Result<()> {
        let tail = log.tail.load(Ordering::Acquire);
        if held::keeps(self.map())? {
            if self.has_known_room(log, tail, units)? {
                return Ok(());
            }
            return self.check_room_kept(log, tail, (units, must_keep));
        }
        if must_keep {
            return self.check_room_kept(log, tail, (units, must_keep));
        }
        if !log.has_words(tail) {
            log.raise_floor(tail.saturating_sub(log.ring.len() as u64 / 2));
        }
        Ok(())
    }

    /// True if a log that keeps entries has room, by what this member knows of an earlier floor:
    /// the usual case.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    fn has_known_room(&self, log: LogWords<'_>, tail: u64, units: u64) -> Result<bool> {
        let (most, (known, sum)) = (budget(self.map().chunks()), self.log.floor.get());
        let all = self.map().word(LOG_UNITS)?.load(Ordering::Relaxed);
        debug_assert!(units != 0, "an entry of the log holds its own cell");
        Ok(!self.may_use_reserve.get()
            && known != 0
            && units <= most / LARGE_SHARE
            && log.has_words(tail)
            && all.checked_sub(sum).is_some_and(|held| held <= most))
    }

    /// As [`Member::check_room_in`], of a log that keeps entries, or shall, given the tail that was
    /// loaded before that was known.
    #[inline(never)]
    fn check_room_kept(
        &self,
        log: LogWords<'_>,
        tail: u64,
        (units, must_keep): (u64, bool),
    ) -> Result<()> {
        let (map, most) = (self.map(), budget(self.map().chunks()));
        let held_max = if units > most / LARGE_SHARE { most / 2 } else { most };
        if must_keep && !held::keeps(map)? {
            self.set_log_keeps(true)?;
        }
        invariant!(units != 0, "an entry of the log holds nothing");
        if !held::keeps(map)? {
            // It was relaxed meanwhile.
            if !log.has_words(tail) {
                log.raise_floor(tail.saturating_sub(log.ring.len() as u64 / 2));
            }
            return Ok(());
        }
        if self.may_use_reserve.get() {
            // The entry would hold what was lent until it is acknowledged.
            return Err(behind("the heap is full, and"));
        }
        for is_last in [false, true] {
            if log.has_words(tail) && !self.holds_more_than(&log, held_max)? {
                return Ok(());
            }
            if !is_last {
                // A consumer that was killed may have left it behind, and it may be held for a
                // follower that joins.
                log.raise_floor(held::floor_limit(map)?);
            }
        }
        Err(behind("it is full, and"))
    }

    /// True if the log holds more units than these. What it had held before an earlier floor, which
    /// this member knows, is not more than what it had held before the present one: the first entry
    /// at the floor is looked at only if that is not enough.
    fn holds_more_than(&self, log: &LogWords<'_>, most: u64) -> Result<bool> {
        let all = self.map().word(LOG_UNITS)?.load(Ordering::Relaxed);
        let (known, sum) = self.log.floor.get();
        if known != 0 && all.checked_sub(sum).is_some_and(|held| held <= most) {
            return Ok(false);
        }
        Ok(self.log_held(log)? > most)
    }

    /// The units that the log holds.
    fn log_held(&self, log: &LogWords<'_>) -> Result<u64> {
        let floor = log.floor.load(Ordering::Acquire);
        let (known, mut sum) = self.log.floor.get();
        if known != floor || floor == 0 {
            let _held = self.pin()?;
            sum = self.sum_at(log, floor.max(1))?.1;
            self.log.floor.set((floor, sum));
        }
        Ok(self.map().word(LOG_UNITS)?.load(Ordering::Relaxed).saturating_sub(sum))
    }

    /// The first entry at or behind a position, and what the log had ever held before it. Without
    /// one, the end of the log. The caller has a pin.
    fn sum_at(&self, log: &LogWords<'_>, from: u64) -> Result<(u64, u64), Corruption> {
        let mut position = from;
        loop {
            match log.read(position, || self.keep_protected()) {
                LogSlot::Unused => {
                    let all = self.map().word(LOG_UNITS)?.load(Ordering::Relaxed);
                    return Ok((position, all));
                }
                LogSlot::Claimed(units) => {
                    let entry = LogEntry::at(self.map(), position, units)?;
                    return Ok((position, entry.sum_before()?));
                }
                LogSlot::Drawn(_) | LogSlot::Hole => position += 1,
                // Others raise the floor as well.
                LogSlot::Lost => position = (position + 1).max(log.floor.load(Ordering::Acquire)),
            }
        }
    }

    /// If the log holds more than it may and can lose entries, lets the floor pass the oldest ones,
    /// so that a thirty-second of what it may hold becomes free: as many cells as the next commits
    /// use, because queues that get longer are given back to the chunks.
    #[cold]
    fn shrink_log(&self) -> Result<()> {
        let Some(log) = log_words(self.map())? else { return Ok(()) };
        self.log.units.set(0);
        self.shrink_log_beyond(&log, budget(self.map().chunks()))
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn shrink_log_to(&self, most: u64) -> Result<()> {
        match log_words(self.map())? {
            Some(log) => self.shrink_log_beyond(&log, most),
            None => Ok(()),
        }
    }

    /// Makes the positions that are drawn next holes.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn void_next_positions(&self, count: u64) -> Result<()> {
        let log = log_words(self.map())?.ok_or(NO_LOG)?;
        let tail = log.tail.load(Ordering::Relaxed);
        for position in tail + 1..=tail + count {
            let word = log.ring.get(position as usize % log.ring.len());
            let seen = word.map_or(0, |word| word.load(Ordering::Relaxed));
            invariant!(log.void(position, seen), "nothing else writes");
        }
        Ok(())
    }

    fn shrink_log_beyond(&self, log: &LogWords<'_>, most: u64) -> Result<()> {
        let map = self.map();
        // As in `held::give_up_log`: first the tail.
        let tail = log.tail.load(Ordering::Acquire);
        if held::keeps(map)? || !self.holds_more_than(log, most)? {
            return Ok(());
        }
        let _held = self.pin()?;
        let all = map.word(LOG_UNITS)?.load(Ordering::Relaxed);
        let kept = most - most / FREED_SHARE;
        invariant!(kept <= most, "the log frees less than nothing");
        let mut floor = log.floor.load(Ordering::Acquire).max(1);
        let mut stride = 1;
        loop {
            // Most entries are passed without a look at them: each look is a cache miss.
            let (position, sum) = self.sum_at(log, floor + stride - 1)?;
            let is_enough = position > tail || all.saturating_sub(sum) <= kept;
            invariant!(stride.is_power_of_two(), "a search has a stride of {stride}");
            match (is_enough, stride) {
                (true, 1) => {
                    log.raise_floor(position.min(tail + 1));
                    crash_point!("log.raised");
                    return Ok(());
                }
                (true, _) => stride /= 2,
                (false, _) => (floor, stride) = (position + 1, 2 * stride),
            }
        }
    }

    /// After the intents, before the decision: gives a transaction its position. False if it was
    /// passed over too often: it is aborted then.
    ///
    /// # Errors
    /// `Behind`: then it is aborted as well.
    pub(crate) fn place_in_log(&self, txn: TxnCell<'_>, units: u64) -> Result<bool> {
        let log = log_words(self.map())?.ok_or(NO_LOG)?;
        let check = check_value(txn.all_lines()?.iter());
        let head = cell::first_line(self.map(), txn.at)?;
        Ok(self.place_in(log, (txn.at, head, txn.log_line()?), check, units)? != 0)
    }

    /// As [`Member::place_in_log`], given the words of the log, the transaction with its first line
    /// and the one for the log, and the check value of its other lines. Returns its position, or 0.
    ///
    /// # Errors
    /// As [`Member::place_in_log`].
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    pub(crate) fn place_in(
        &self,
        log: LogWords<'_>,
        (txn_at, head, line): (u64, &[AtomicU64; 8], TxnLine<'_>),
        check: u64,
        units: u64,
    ) -> Result<u64> {
        invariant!(units != 0, "an entry of the log holds nothing");
        debug_assert!(txn_at.is_multiple_of(LINE), "a cell begins at a line");
        let (map, [.., its_position, its_judged]) = (self.map(), head);
        line.set(LOG_HELD, units);
        let judged_at = judged_ms();
        self.note_commit_time(judged_at);
        let now_ms = judged_at.saturating_add_signed(map.clock_shift_ms()?);
        let judged = u64::from(self.index()) << 48 | now_ms & (u64::MAX >> 16);
        its_judged.store(judged, Ordering::Relaxed);
        // Nothing that grows with the transaction follows the first draw: consumers wait.
        let sum = map.word(LOG_UNITS)?.fetch_add(units, Ordering::Relaxed) + units;
        line.set(LOG_SUM, sum);
        for _ in 0..DRAWS_MAX {
            let position = log.draw();
            crash_point!("log.drawn");
            line.set(LOG_CHECK, check ^ position);
            its_position.store(position, Ordering::Release);
            crash_point!("log.placed");
            let mut claim = log.claim(position, txn_at / LINE);
            if claim == Claim::Full {
                claim = claim_of_full(map, log, (position, txn_at / LINE))?;
            }
            match claim {
                Claim::Made => {
                    crash_point!("log.claimed");
                    return Ok(position);
                }
                Claim::Missed => {}
                Claim::Full => return Err(behind("it is full, and")),
            }
        }
        Ok(0)
    }

    /// After a logged commit that holds so many units and cells, with no lock held: lets the floor
    /// pass entries if the log holds too much, and retires what it holds no longer: as many units
    /// and cells, and some cells `more`.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    pub(crate) fn tidy_log(
        &self,
        position: u64,
        (units, cells): (u64, u64),
        more: u64,
    ) -> Result<()> {
        let since = self.log.units.get() + units;
        self.log.units.set(since);
        let is_due = since > budget(self.map().chunks()) / LOOK_SHARE;
        if is_due || position.is_multiple_of(FLOOR_EVERY) {
            self.shrink_log()?;
        }
        self.release_held(cells + more, units).map(drop)
    }

    /// The number of changes of whether the log keeps entries, for [`Member::relax_log`].
    ///
    /// # Errors
    /// `Damaged`.
    pub fn log_policy(&self) -> Result<u64, Corruption> {
        Ok(self.map().word(LOG_KEEPS)?.load(Ordering::Acquire))
    }

    /// From now on the log loses no entry that was not acknowledged: commits are refused instead.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn keep_log(&self) -> Result<()> {
        self.set_log_keeps(true)?;
        self.check_not_truncated()
    }

    fn set_log_keeps(&self, keeps: bool) -> Result<(), Corruption> {
        let word = self.map().word(LOG_KEEPS)?;
        let changed = |word: u64| (word & !1).wrapping_add(2) | u64::from(keeps);
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| Some(changed(word)))
            .map(drop)
            .or(Ok(()))
    }

    /// From now on the log may lose entries, unless its policy has changed since `policy` was read.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn relax_log(&self, policy: u64) -> Result<()> {
        let word = self.map().word(LOG_KEEPS)?;
        let relaxed = (policy & !1).wrapping_add(2);
        // Otherwise another session wants it to keep entries.
        let _ = word.compare_exchange(policy, relaxed, Ordering::AcqRel, Ordering::Acquire);
        self.check_not_truncated()
    }
}

#[cold]
fn behind(why: &str) -> Error {
    Error::Behind {
        detail: format!(
            "the log must not lose entries, {why} its consumer has not acknowledged them: try \
             again when it has (in a cluster, when all members that count have them), or declare \
             that the log may lose entries"
        ),
    }
}

const NO_LOG: Corruption = Corruption("a namespace is logged, and the region has no log");
