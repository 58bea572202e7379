//! Makes a free run for one small cell: moves a few records away from behind a free cell, each into
//! a free cell of its own class (`docs/decisions/015-evacuation.md`).
//!
//! That is a small part of the work of emptying chunks, and the member keeps the free cells of the
//! other classes, which its next writes need.

use std::time::Duration;

use nearstate_model::{Error, Result, invariant};

use super::ClosingChunks;
use super::moving::LiveCell;
use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::heap::bitmap::{Bitmap, UnitRun, is_allocated};
use crate::heap::cell::{self, CellKind};
use crate::heap::chunk::ChunkIndex;
use crate::heap::class;
use crate::heap::kept::CLASS_SMALL_MAX;
use crate::layout::LINE;
use crate::member::arena::{BUMP_SMALL_CELL_MAX, Bump};
use crate::member::{ALL_ASIDE, Member, pin};

/// The most records that are moved for one cell.
const RECORDS_MAX: u32 = 3;

/// Classes of small cells.
const CLASSES_SMALL: usize = CLASS_SMALL_MAX as usize + 1;

/// How often the free cells at the heads of all queues are looked at: then the next ones.
const ROUNDS: u32 = 4;

/// How long it waits for readers of what it has moved: longer than a read takes. Otherwise chunks
/// are emptied.
const READERS_WAIT_MAX: Duration = Duration::from_millis(1);

/// Cells that stalled readers hold, with which it is not tried: all of them would be looked at.
const SET_ASIDE_MAX: u64 = 64;

/// A free cell at the head of a queue, and the units behind it that are long enough with it.
#[derive(Clone, Copy, Debug)]
struct JoinPlace {
    class: u8,
    at: u64,
    end: u64,
    records: u32,
}

impl Member {
    /// After an operation found no room for a small cell, and before anything is reclaimed: makes
    /// the small bump range a run that is long enough. False if there is none.
    ///
    /// Cost: a line for each free cell that is looked at, the copies of up to three records, and
    /// two barriers.
    ///
    /// # Errors
    /// `Forked`, `SessionStopped`, `Stalled`, `Damaged`, `System`. Nothing was lost then.
    #[cold]
    pub(crate) fn joins_run(&self) -> Result<bool> {
        let units = self.wanted_units.get();
        if self.has_pin() || units * LINE > BUMP_SMALL_CELL_MAX {
            return Ok(false);
        }
        invariant!(units != 0 && self.has_no_lock(), "a run of {units} units is made under a lock");
        let done = self.operation(|| {
            self.revisit_set_aside(2 * SET_ASIDE_MAX)?;
            if self.arena().set_aside().count.load(Ordering::Relaxed) > SET_ASIDE_MAX {
                return Ok(false);
            }
            self.keep_rest()?;
            // What the reserve has lent must stay free. Refused before anything is freed.
            self.keep_reserve(units)?;
            let Some(place) = self.place_to_join(units)? else { return Ok(false) };
            let joined = self.join_at(place, units);
            if joined != Ok(true) {
                // What a reader holds now comes free when its view ends.
                self.aside_to_revisit.set(ALL_ASIDE);
            }
            joined
        });
        match done {
            Err(Error::Damaged { .. } | Error::Full { .. } | Error::Stalled { .. }) => {
                self.check_usable()?;
                self.check_not_truncated()?;
                self.free_pending()?;
                Ok(false)
            }
            other => other,
        }
    }

    /// The free cell behind which the fewest records must be moved.
    fn place_to_join(&self, units: u64) -> Result<Option<JoinPlace>> {
        let arena = self.arena();
        for _ in 0..ROUNDS {
            // The free cells that can be taken now, one of each class.
            let mut heads = [0; CLASSES_SMALL];
            for (class, head) in (0..).zip(&mut heads) {
                let queue = arena.queue(class)?;
                let first = queue.head.load(Ordering::Relaxed);
                if first != 0 && self.is_head_reusable(queue, class, first)? {
                    *head = first;
                }
            }
            let mut best: Option<JoinPlace> = None;
            for (class, _) in (0..).zip(&heads).filter(|(_, head)| **head != 0) {
                let place = self.records_behind(&heads, class, units)?;
                let records = best.map_or(u32::MAX, |best| best.records);
                best = place.filter(|place| place.records <= records).or(best);
            }
            if best.is_some() {
                return Ok(best);
            }
            for (class, head) in (0..).zip(heads).filter(|(_, head)| *head != 0) {
                let queue = arena.queue(class)?;
                arena.requeue(queue, queue, head)?;
            }
        }
        Ok(None)
    }

    /// What lies behind a free cell of this member, if it is long enough with it and consists of
    /// free units and of records for each of which this member keeps a free cell.
    ///
    /// Behind a cell begins another one, or free units, or a bump range, whose bytes can look like
    /// a record. The move asks the index.
    fn records_behind(
        &self,
        heads: &[u64; CLASSES_SMALL],
        class: u8,
        units: u64,
    ) -> Result<Option<JoinPlace>> {
        let map = self.map();
        let at = heads.get(class as usize).copied().unwrap_or(0);
        let chunk = ChunkIndex::of(map, at)?;
        if !self.may_take_from(chunk)? {
            return Ok(None);
        }
        let words = chunk.bitmap(map)?;
        let (mut end, mut records) = (at + class::bytes_of(class), 0);
        // The free cells of each class that are used: the first one is freed itself.
        let mut needed = [0_u64; CLASSES_SMALL];
        if let Some(needed) = needed.get_mut(class as usize) {
            *needed = 1;
        }
        while end < at + LINE * units {
            if end >= chunk.end() {
                return Ok(None);
            }
            if !is_allocated(words, chunk.run(end, end + LINE)) {
                end += LINE;
                continue;
            }
            let [head, _, birth, ..] = cell::first_line(map, end)?;
            let (head, birth) = (head.load(Ordering::Relaxed), birth.load(Ordering::Relaxed));
            let other = head as u8;
            let is_record = birth != 0
                && !pin::is_retired(birth)
                && cell::kind_of(head) == Ok(CellKind::Record)
                && !self.safe_epochs.borrow().would_hold(birth);
            let Some(needed) = needed.get_mut(other as usize) else { return Ok(None) };
            let has_cell = heads.get(other as usize).is_some_and(|at| *at != 0)
                && self.arena().queue_count(other) > *needed;
            if !is_record || !has_cell || records == RECORDS_MAX {
                return Ok(None);
            }
            *needed += 1;
            debug_assert!(*needed <= u64::from(RECORDS_MAX) + 1, "a cell for each record");
            (end, records) = (end + class::bytes_of(other), records + 1);
        }
        Ok((end <= chunk.end()).then_some(JoinPlace { class, at, end, records }))
    }

    fn join_at(&self, place: JoinPlace, units: u64) -> Result<bool> {
        let map = self.map();
        let chunk = ChunkIndex::of(map, place.at)?;
        let words = chunk.bitmap(map)?;
        let closing = ClosingChunks::of_join();
        invariant!(
            place.end <= chunk.end() && place.at + LINE * units <= place.end,
            "a run of {units} units is joined within its chunk"
        );
        invariant!(place.records <= RECORDS_MAX, "{} records are moved", place.records);
        // First, because a record behind it may need the next cell of the same queue.
        self.free_queue(place.class, 1)?;
        let head = self.arena().queue(place.class)?.head.load(Ordering::Relaxed);
        if head == place.at {
            // Its chunk is busy. The move of a record would take this very cell.
            return Ok(false);
        }
        crash_point!("join.freed");
        let mut at = place.at + class::bytes_of(place.class);
        while at < place.end {
            if !is_allocated(words, chunk.run(at, at + LINE)) {
                at += LINE;
                continue;
            }
            let reading = self.pin()?;
            let Some(LiveCell::Record(table, record)) = self.live_cell(at)? else {
                return Ok(false);
            };
            let (moved, bytes) = (closing.moved.get(), cell::bytes_at(map, at)?);
            if record.at() != at {
                return Ok(false);
            }
            self.move_record(table, &record, &closing)?;
            drop(reading);
            if closing.moved.get() == moved {
                return Ok(false);
            }
            at += bytes;
        }
        invariant!(at >= place.end, "the whole run is looked at");
        crash_point!("join.moved");
        let _ = self.wait_for_readers(READERS_WAIT_MAX)?;
        self.aside_to_revisit.set(ALL_ASIDE);
        self.revisit_set_aside(2 * SET_ASIDE_MAX)?;
        self.claim_joined(chunk, place.at, units)
    }

    /// Makes the run of free units at an offset the small bump range.
    fn claim_joined(&self, chunk: ChunkIndex, at: u64, units: u64) -> Result<bool> {
        let first = chunk.run(at, at + LINE).start;
        self.keep_reserve(units)?;
        // More than is wanted, unless the reserve needs it.
        let most = units.max(self.shared().claim_units());
        let most = if self.keep_reserve(most).is_ok() { most } else { units };
        invariant!(most >= units, "a run of {most} units is claimed for {units}");
        let claimed = self.under_chunk(chunk, None, |state| {
            let words = chunk.bitmap(self.map())?;
            let bitmap = Bitmap::load(words);
            if state.is_given_up || state.is_closing {
                return Ok(false);
            }
            let used = state.verify(&bitmap)?;
            let holds = |run: &UnitRun| run.start <= first && first < run.end();
            let Some(run) = bitmap.free_runs().find(holds) else { return Ok(false) };
            if u64::from(run.units) < units {
                return Ok(false);
            }
            let run = UnitRun { units: run.units.min(most as u32), ..run };
            invariant!(run.units >= 1 && u64::from(run.units) >= units, "the run is long enough");
            match self.commit_chunk(chunk, state) {
                Err(Error::Full { .. }) => return Ok(false),
                other => other?,
            }
            invariant!(state.has_pages, "cells are cut from a chunk without pages");
            self.claim(Bump::Small, chunk, run)?;
            *state = state.after_taking(&Bitmap::load(words), used + u64::from(run.units));
            Ok(true)
        })?;
        Ok(claimed == Some(true))
    }
}
