//! Moves what an operation has stored in the reserve of a full heap to where it has made room, so
//! that the reserve is whole for the next operation (`docs/decisions/013-heap.md`).
//!
//! A record that is replaced by one of its size leaves a free range of that size. Without the move,
//! records of all sizes would fill the reserve, and the free memory would be ranges elsewhere of
//! which each is too short for most records.

use std::time::Instant;

use nearstate_model::{Error, Result, invariant};

use super::moving::LiveCell;
use super::{ClosingChunks, Evacuation, READERS_PAUSE, READERS_WAIT_MAX};
use crate::heap::cell;
use crate::heap::chunk::{ChunkIndex, chunks_used, lent, reserve, state_of};
use crate::heap::refusal::pins;
use crate::index::bucket::load;
use crate::layout::{CHUNK_UNITS, LINE, ordinary_chunks};
use crate::member::pin::DISTANCE;
use crate::member::{AfterFull, Member, pin};

/// The share of the reserve that may be lent before a chunk is compacted: what is left takes the
/// records of one, and what operations need meanwhile.
const COMPACT_SHARE: u64 = 8;

/// The most chunks that are compacted after an operation: a millisecond.
const COMPACTIONS_MAX: u32 = 4;

/// The share of it by which more must be lent before that is done again: it may have been in vain.
const COMPACT_STEP_SHARE: u64 = 64;

/// A return that brings back a smaller share of what is lent is in vain.
const RETURN_SHARE: u64 = 8;

/// Uses of the reserve after which a return that was in vain is tried again although the same
/// readers are stalled: others may have freed memory. It reads all of the reserve.
const VAIN_RETURNS: u32 = 64;

/// Writes after a return in vain until the next look at the readers: it takes a barrier.
const VAIN_WRITES: u32 = 16;

/// The most waits before an operation is refused: other operations may take what one of them has
/// freed, and each of them ends.
pub(super) const WAITS_MAX: u32 = 8;

impl Member {
    /// After a write: does what waited for the end of this member's last pin, or of readers that a
    /// return met. A failure leaves it for the next use of the reserve, and is none of the caller.
    ///
    /// Cost: one load, unless the heap is or was full.
    #[inline]
    pub fn return_lent_if_due(&self) {
        if self.refusals.lent.is_due.get() {
            self.return_lent_late();
        }
    }

    /// The writes since the return in vain may have needed no reserve: without this, it would still
    /// be lent when the next reader begins.
    #[cold]
    fn return_lent_late(&self) {
        if self.has_pin() {
            return;
        }
        let known = &self.refusals.lent;
        known.writes.set(known.writes.get().wrapping_add(1));
        if known.vain_left.get() == 0 || known.writes.get().is_multiple_of(VAIN_WRITES) {
            let _ = self.return_lent();
        }
    }

    /// Before an operation uses the reserve: if much of it is lent, and no operation has brought it
    /// back, there may be no room for this one. A failure is found again by the operation. While
    /// this member has a pin, [`Member::return_lent_if_due`] does the work, and the operation that
    /// is refused runs again if that has brought something back.
    ///
    /// Cost: a word for each chunk of the reserve, unless much is lent.
    #[cold]
    pub(crate) fn restore_reserve(&self) -> Result<()> {
        let known = &self.refusals.lent;
        known.has_returned.set(false);
        let is_due = known.is_due.get() || self.is_compaction_due(lent(self.map())?);
        known.is_due.set(is_due);
        if is_due && !self.has_pin() {
            let _ = self.return_lent();
            self.check_usable()?;
        }
        Ok(())
    }

    /// Before an operation is refused that may use the reserve: waits for the readers that hold
    /// what was replaced, and brings back what the reserve has lent. True if it should run again.
    /// `waits` counts the calls for one operation.
    ///
    /// A reader for which a wait was in vain is not waited for again.
    ///
    /// Cost: at most [`READERS_WAIT_MAX`] for each reader, and a return.
    ///
    /// # Errors
    /// `Forked`, `SessionStopped`, `Damaged` (the file is truncated).
    #[cold]
    pub(crate) fn waits_for_lent(&self, waits: &mut u32) -> Result<bool> {
        invariant!(!self.has_pin(), "two members with pins would wait for each other");
        invariant!(!self.may_use_reserve.get(), "what the reserve has lent is moved into it");
        let known = &self.refusals.lent;
        known.has_returned.set(false);
        if *waits >= WAITS_MAX || *waits == 0 && self.is_wait_vain()? {
            return Ok(false);
        }
        *waits += 1;
        let has_ended = self.wait_for_new_readers()?;
        known.vain_left.set(0);
        known.compacted_at.set(0);
        let _ = self.return_lent();
        self.check_usable()?;
        known.vain_wait.set(if known.has_returned.get() { 0 } else { lent(self.map())? });
        Ok(has_ended || known.has_returned.get())
    }

    /// As [`Member::waits_for_lent`], for an operation that was refused while this member had a
    /// pin, which has ended.
    ///
    /// # Errors
    /// As [`Member::waits_for_lent`].
    #[cold]
    pub fn waits_for_lent_if_due(&self, waits: &mut u32) -> Result<bool> {
        if !self.refusals.lent.is_wait_due.replace(false) || self.has_pin() {
            return Ok(false);
        }
        self.waits_for_lent(waits)
    }

    /// True if the last wait has brought nothing back, as much is lent as then, and no other reader
    /// than those for which this member has waited holds anything.
    fn is_wait_vain(&self) -> Result<bool> {
        let known = &self.refusals.lent;
        if known.vain_wait.get() == 0 || known.vain_wait.get() != lent(self.map())? {
            return Ok(false);
        }
        self.advance()?;
        let old = self.old_readers(pin::birth_epoch(self.epoch()))?;
        Ok(*known.waited_for.borrow() == old)
    }

    /// Waits until no reader can hold what was retired until now, except those for which this
    /// member has waited before. True if none is left.
    fn wait_for_new_readers(&self) -> Result<bool> {
        self.operation(|| self.free_all())?;
        let retired = pin::birth_epoch(self.epoch());
        let since = Instant::now();
        loop {
            // Others, which have the processor meanwhile, may be what it waits for.
            std::thread::park_timeout(READERS_PAUSE);
            self.advance()?;
            let old: Vec<u64> = self.old_readers(retired)?;
            let mut waited_for = self.refusals.lent.waited_for.borrow_mut();
            waited_for.retain(|start| old.contains(start));
            let is_late = since.elapsed() > READERS_WAIT_MAX;
            if is_late || old.iter().all(|start| waited_for.contains(start)) {
                let is_free = old.is_empty();
                *waited_for = old;
                return Ok(is_free);
            }
        }
    }

    /// The starts of the pins that may hold what was retired in this epoch.
    fn old_readers(&self, retired: u64) -> Result<Vec<u64>> {
        let is_old = |pin: &(u32, u64)| pin.1 < retired + DISTANCE;
        Ok(pins(self.map())?.filter(is_old).map(|(_, start)| start).collect())
    }

    /// True if the reserve has got something back since the last operation that needed it began: an
    /// operation that was refused may run again.
    pub fn has_returned_lent(&self) -> bool {
        self.refusals.lent.has_returned.get()
    }

    /// After an operation that has used the reserve, and has freed what it has replaced: moves the
    /// records of the reserve to free ranges elsewhere. What finds none stays, and is tried again
    /// after the next such operation. While this member has a pin, what it moves could not come
    /// free: [`Member::return_lent_if_due`] does the work later.
    ///
    /// Cost: some words, and a copy for each record; two barriers.
    ///
    /// # Errors
    /// `Forked`, `SessionStopped`, `Damaged`, `System`. Nothing was lost then.
    #[cold]
    pub(crate) fn return_lent(&self) -> Result<()> {
        let chunks = self.lent_chunks()?;
        self.refusals.lent.is_due.set(!chunks.is_empty());
        if chunks.is_empty() || self.has_pin() || self.is_return_vain()? {
            return Ok(());
        }
        self.refusals.lent.is_due.set(false);
        // What is allocated for the moves is none of the operation that is refused.
        let (is_known, wanted) = (self.refusals.is_known.replace(false), self.wanted_units.get());
        let after_full = self.after_full.replace(AfterFull::Error);
        let done = self.operation(|| {
            // What a transaction has replaced was held by its own pin.
            self.free_all()?;
            let before = lent(self.map())?;
            self.move_lent(chunks)?;
            self.compact_if_due()?;
            self.note_return(before)
        });
        self.refusals.is_known.set(is_known);
        self.wanted_units.set(wanted);
        self.after_full.set(after_full);
        done
    }

    /// True if the last return brought little back, and the readers that were stalled then are
    /// still: they hold what was replaced.
    fn is_return_vain(&self) -> Result<bool> {
        let known = &self.refusals.lent;
        let left = known.vain_left.get();
        if left == 0 {
            return Ok(false);
        }
        self.advance()?;
        let is_vain = *known.vain_readers.borrow() == self.stalled_readers();
        known.vain_left.set(if is_vain { left - 1 } else { 0 });
        Ok(is_vain)
    }

    /// After a return: whether it was in vain. `before` units were lent.
    fn note_return(&self, before: u64) -> Result<()> {
        let (known, readers) = (&self.refusals.lent, self.stalled_readers());
        let returned = before.saturating_sub(lent(self.map())?);
        known.has_returned.set(returned != 0);
        let is_vain = !readers.is_empty() && returned * RETURN_SHARE < before;
        known.vain_left.set(if is_vain { VAIN_RETURNS } else { 0 });
        known.is_due.set(is_vain);
        known.vain_readers.replace(readers);
        Ok(())
    }

    /// The starts of the stalled pins.
    fn stalled_readers(&self) -> Vec<u64> {
        self.safe_epochs.borrow().stalled.iter().map(|pin| pin.start).collect()
    }

    /// True if a reader began before the last two barriers: it may be stopped.
    fn has_old_reader(&self) -> Result<bool> {
        let began = pin::birth_epoch(self.epoch());
        self.advance()?;
        self.advance()?;
        Ok(self.safe.get() < began)
    }

    /// Compacts some chunks, if much stays lent.
    fn compact_if_due(&self) -> Result<()> {
        for _ in 0..COMPACTIONS_MAX {
            let before = lent(self.map())?;
            // A reader holds what is moved: both chunks would stay full until it ends.
            if !self.is_compaction_due(before) || self.has_old_reader()? {
                break;
            }
            self.compact_one_chunk()?;
            self.move_lent(self.lent_chunks()?)?;
            let after = lent(self.map())?;
            // In vain: it is tried again when more is lent.
            let step = self.reserve_units() / COMPACT_STEP_SHARE;
            self.refusals.lent.compacted_at.set(if after < before { 0 } else { after + step });
        }
        Ok(())
    }

    /// Moves the records of the reserve to free ranges elsewhere.
    fn move_lent(&self, chunks: Vec<ChunkIndex>) -> Result<()> {
        self.refusals.lent.is_returning.set(true);
        let moved = self.move_all(&mut walk_of(self, chunks), |walk| self.move_longest(walk));
        self.refusals.lent.is_returning.set(false);
        moved
    }

    /// Moves the records of the closing chunks, the longest first: a short one would take the range
    /// that only a long one needs. Those of the last chunk come before all others: the next
    /// compaction needs it, and they were a chunk's, so that they fit into one.
    fn move_longest(&self, walk: &Evacuation) -> Result<()> {
        let (map, mut found) = (self.map(), Vec::new());
        let last = ChunkIndex(map.chunks() - 1);
        let reading = self.pin()?;
        for chunk in &walk.closing.chunks {
            for (word, bits) in (0..).zip(chunk.bitmap(map)?.iter().map(load)) {
                let units = (0..u64::from(u64::BITS)).filter(|unit| bits >> unit & 1 == 1);
                for unit in units {
                    let at = chunk.start() + LINE * (word * u64::from(u64::BITS) + unit);
                    if !matches!(self.live_cell(at), Ok(Some(LiveCell::Record(..)))) {
                        continue;
                    }
                    match cell::bytes_at(map, at) {
                        Ok(bytes) => found.push((*chunk == last, bytes, at)),
                        // It stays, and the others are moved.
                        Err(_) => self.check_not_truncated()?,
                    }
                }
            }
        }
        drop(reading);
        found.sort_unstable_by(|one, other| other.cmp(one));
        for (.., at) in found {
            let reading = self.pin()?;
            if let Ok(Some(LiveCell::Record(table, record))) = self.live_cell(at)
                && !walk.closing.kept.borrow().contains(&record.at())
            {
                let moved = walk.moved();
                match self.move_record(table, &record, &walk.closing) {
                    Err(Error::Damaged { .. }) => self.check_not_truncated()?,
                    other => other?,
                }
                if walk.moved() == moved {
                    walk.closing.kept.borrow_mut().insert(record.at());
                }
            }
            drop(reading);
        }
        Ok(())
    }

    /// Is much of the reserve lent, and more than after the last compaction? A process that was
    /// faster may have taken the range that a record has left, so that a record stays in the
    /// reserve for each.
    fn is_compaction_due(&self, lent: u64) -> bool {
        let (reserve, again_at) = (self.reserve_units(), self.refusals.lent.compacted_at.get());
        lent * COMPACT_SHARE > reserve && lent >= again_at.min(reserve / 2)
    }

    /// Moves the records of the chunk with the most free units into the reserve, whose last chunk
    /// is lent to nothing else. Then the chunk is one run, which takes them all back, and as
    /// many of the others as its free units are worth.
    fn compact_one_chunk(&self) -> Result<()> {
        let mut best: Option<(u64, ChunkIndex)> = None;
        for chunk in (0..chunks_used(self.map())?).map(ChunkIndex) {
            let state = state_of(self.map(), chunk)?;
            let is_candidate = state.has_pages
                && !state.is_given_up
                && !state.is_closing
                && (1..CHUNK_UNITS).contains(&state.used);
            if is_candidate && best.is_none_or(|(free, _)| free < state.free()) {
                best = Some((state.free(), chunk));
            }
        }
        let Some((_, chunk)) = best else { return Ok(()) };
        let mut walk = walk_of(self, vec![chunk]);
        self.set_closing(chunk, true)?;
        self.may_use_reserve.set(true);
        self.refusals.lent.is_compacting.set(true);
        let moved = self.move_all(&mut walk, |_| Ok(()));
        self.refusals.lent.is_compacting.set(false);
        self.may_use_reserve.set(false);
        moved.and(self.set_closing(chunk, false))
    }

    /// Moves what it can, after `first`, and frees what was there.
    fn move_all(
        &self,
        walk: &mut Evacuation,
        first: impl FnOnce(&Evacuation) -> Result<()>,
    ) -> Result<()> {
        match first(walk).and_then(|()| self.move_some(walk, u64::MAX)) {
            Ok(_) => {}
            Err(Error::Full { .. } | Error::Stalled { .. }) => self.free_pending()?,
            Err(error) => return Err(error),
        }
        if walk.moved() == 0 { Ok(()) } else { self.free_all() }
    }

    fn reserve_units(&self) -> u64 {
        (self.map().chunks() - ordinary_chunks(self.map().chunks())) * CHUNK_UNITS
    }

    /// The chunks of the reserve with allocated units.
    fn lent_chunks(&self) -> Result<Vec<ChunkIndex>> {
        let mut lent = Vec::new();
        for chunk in reserve(self.map()) {
            let state = state_of(self.map(), chunk)?;
            if state.used != 0 && !state.is_given_up {
                lent.push(chunk);
            }
        }
        Ok(lent)
    }
}

fn walk_of(member: &Member, chunks: Vec<ChunkIndex>) -> Evacuation {
    let closing = ClosingChunks::new(chunks, member.map().chunks());
    Evacuation { closing, before: 0, in_use: 0, chunk: 0, unit: 0 }
}
