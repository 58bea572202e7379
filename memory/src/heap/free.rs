//! Gives memory back to the chunks, and completes what an undo record says about chunks
//! (`docs/decisions/013-heap.md`; `spec/region.md`, sections 4 and 6).

use std::time::Duration;

use nearstate_model::{Error, Result, invariant};

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::heap::bitmap::{Bitmap, UnitRun, is_allocated, joined_units, mark};
use crate::heap::cell::{self, WORD_NEXT, WORD_RETIRED};
use crate::heap::chunk::{ChunkIndex, ChunkState, is_held_by};
use crate::heap::{class, watched};
use crate::layout::{Corruption, LINE, QUEUES, chunk_words_at, ordinary_chunks};
use crate::member::arena::{Arena, Bump, LockSlot, SET_ASIDE, undo};
use crate::member::{LOCK_WAIT_SHORT, Member, lock};

/// Cells that one harvest takes: enough that its lock and its search are a small part of their use.
pub(crate) const HARVEST_CELLS: u64 = 32;

/// What a free range is taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FreeSource {
    /// The head of the queue of a class, or of the queue [`SET_ASIDE`].
    Queue(u8),
    /// The front of a bump range: all of it.
    Bump(Bump),
    /// Nothing has it any more: the rest of a range of several chunks.
    Rest,
}

const _: () = assert!(QUEUES == 128, "a class is a source below 128");
const _: () = assert!(SET_ASIDE as usize >= QUEUES, "the set-aside cells have no class");

impl FreeSource {
    const fn encode(self) -> u64 {
        match self {
            Self::Queue(SET_ASIDE) => 131,
            Self::Queue(class) => class as u64,
            Self::Bump(Bump::Small) => 128,
            Self::Bump(Bump::Large) => 129,
            Self::Rest => 130,
        }
    }

    const fn decode(word: u64) -> Result<Self, Corruption> {
        match word {
            class @ 0..128 => Ok(Self::Queue(class as u8)),
            131 => Ok(Self::Queue(SET_ASIDE)),
            128 => Ok(Self::Bump(Bump::Small)),
            129 => Ok(Self::Bump(Bump::Large)),
            130 => Ok(Self::Rest),
            _ => Err(Corruption("an undo record frees from what does not exist")),
        }
    }
}

impl Member {
    /// Runs `work` with the lock of a chunk held. `None` if a living process holds it, with no
    /// `wait_max` also if a dead one does.
    pub(crate) fn under_chunk<T>(
        &self,
        chunk: ChunkIndex,
        wait_max: Option<Duration>,
        work: impl FnOnce(&mut ChunkState) -> Result<T>,
    ) -> Result<Option<T>> {
        let at = chunk.word_at(self.map());
        let payload = if let Some(bound) = wait_max {
            match self.acquire_within(at, LockSlot::Leaf, bound) {
                Ok(payload) => payload,
                Err(Error::Stalled { .. }) => {
                    self.refusals.is_incomplete.set(true);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        } else {
            self.name_lock(at, LockSlot::Leaf);
            let taken = lock::try_take(self.map().word(at)?, self.lock_owner());
            let Ok(payload) = taken else {
                self.unname_lock(LockSlot::Leaf);
                self.refusals.is_incomplete.set(true);
                return Ok(None);
            };
            payload
        };
        crash_point!("chunk.locked");
        invariant!(self.has_lock(LockSlot::Leaf), "the lock of a chunk is not recorded");
        let mut state = ChunkState::decode_locked(payload, chunk.bitmap(self.map())?);
        let done = work(&mut state);
        if done.is_err() {
            // What was begun under the lock ends under it. Damage that prevents it is in `done`.
            let _ = recover(&self.arena(), self.lock_owner());
            state = state.after_failure(&Bitmap::load(chunk.bitmap(self.map())?));
            self.note_recovered_bumps();
        }
        self.release(at, LockSlot::Leaf, state.encode())?;
        done.map(Some)
    }

    /// Frees what is left of a bump range.
    pub(crate) fn empty_bump(&self, which: Bump) -> Result<()> {
        debug_assert!(self.is_in_operation(), "another member may be taking cells");
        self.check_bump(which)?;
        let emptied = self.empty_checked_bump(which);
        self.note_bump_front(which, self.arena().get(which.front()));
        emptied
    }

    fn empty_checked_bump(&self, which: Bump) -> Result<()> {
        let arena = self.arena();
        let (front, end) = arena.bump(which);
        if front >= end {
            return Ok(());
        }
        let wait_max = if which == Bump::Small { None } else { Some(LOCK_WAIT_SHORT) };
        if self.free_range(wait_max, FreeSource::Bump(which), front, end)? {
            return Ok(());
        }
        if which == Bump::Small {
            // A living process keeps the lock of the chunk. The rest becomes cells of the queues.
            return Ok(arena.carve(which)?);
        }
        // A part of a claim that was given up. It may have no pages, so it cannot become cells.
        let chunk = ChunkIndex::of(self.map(), front)?;
        let word = self.map().word(chunk.word_at(self.map()))?.load(Ordering::Acquire);
        match lock::owner_of(word) {
            0 => Err(Error::Full {
                detail: "a chunk of the heap is busy: try again".to_owned(),
                heap: None,
            }),
            owner => Err(Error::Stalled { holder: self.holder(lock::member_of(owner))? }),
        }
    }

    /// Frees cells from the head of a queue that no reader can hold, at most `most`. Cells that a
    /// stalled reader holds are set aside. Stops at a chunk that a living process has locked.
    pub(crate) fn free_queue(&self, number: u8, most: u64) -> Result<()> {
        debug_assert!(self.is_in_operation(), "another member may be taking cells");
        let arena = self.arena();
        let queue = arena.numbered_queue(number)?;
        let (mut left, mut set_aside) = (most, 0);
        while left > 0 && self.finish_free()? {
            let head = queue.head.load(Ordering::Relaxed);
            let is_reusable = head != 0 && self.is_head_reusable(queue, number, head)?;
            if head != 0 && number != SET_ASIDE && self.is_set_aside(head)? {
                // A queue of more cells than the heap has units is a cycle.
                set_aside += 1;
                if set_aside > self.map().len() / LINE {
                    return Err(Corruption("a queue of retired cells has no end").into());
                }
                arena.requeue(queue, arena.set_aside(), head)?;
                continue;
            }
            if !is_reusable {
                return Ok(());
            }
            let chunk = ChunkIndex::of(self.map(), head)?;
            let bytes = cell::bytes_at(self.map(), head)?;
            if head + bytes > chunk.end() {
                if !self.free_range(None, FreeSource::Queue(number), head, head + bytes)? {
                    return Ok(());
                }
                left -= 1;
                continue;
            }
            let freed = self.under_chunk(chunk, None, |state| {
                let (mut cell, mut end, mut count) = (head, head + bytes, 0);
                while count < left && cell >= chunk.start() && end <= chunk.end() {
                    self.free_part(chunk, state, FreeSource::Queue(number), cell, end)?;
                    count += 1;
                    cell = queue.head.load(Ordering::Relaxed);
                    if cell == 0 || !self.is_head_reusable(queue, number, cell)? {
                        break;
                    }
                    end = cell + cell::bytes_at(self.map(), cell)?;
                }
                Ok(count)
            })?;
            match freed {
                Some(count) => {
                    invariant!((1..=left).contains(&count), "{count} of {left} cells were freed");
                    left -= count;
                }
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Frees a range, which can reach over several chunks. If its first chunk is busy, the range
    /// stays where it is, and the result is false.
    fn free_range(
        &self,
        wait_max: Option<Duration>,
        source: FreeSource,
        at: u64,
        to: u64,
    ) -> Result<bool> {
        if !self.finish_free()? {
            return Ok(false);
        }
        let chunk = ChunkIndex::of(self.map(), at)?;
        let part = self
            .under_chunk(chunk, wait_max, |state| self.free_part(chunk, state, source, at, to))?;
        self.finish_free()?;
        Ok(part.is_some())
    }

    /// Frees the part of a range that lies in a locked chunk. The rest of it stays recorded.
    fn free_part(
        &self,
        chunk: ChunkIndex,
        state: &mut ChunkState,
        source: FreeSource,
        at: u64,
        to: u64,
    ) -> Result<()> {
        invariant!(self.has_lock(LockSlot::Leaf), "a bitmap changes without its lock");
        let arena = self.arena();
        if arena.get(undo::FREE_AT) != 0 {
            // A flipped bit in the undo record: what was freed last has no end.
            return Err(Error::from(Corruption("a range that is being freed is forgotten")));
        }
        // The range comes from a list in shared memory. Units that are free have another owner
        // soon.
        let run = chunk.checked_run(at, to)?;
        if !is_allocated(chunk.bitmap(self.map())?, run) {
            return self.give_up_part(chunk, state, source, (at, to));
        }
        arena.set(undo::FREE_TO, to);
        arena.set(undo::FREE_SOURCE, source.encode());
        arena.set(undo::FREE_AT, at);
        crash_point!("free.recorded");
        if let Err(damage) = take_from_source(&arena, source, at, to) {
            arena.set(undo::FREE_AT, 0);
            return Err(damage.into());
        }
        crash_point!("free.cut");
        if matches!(source, FreeSource::Queue(_)) {
            // A flipped bit of a link must not make it a cell of a queue again.
            cell::word(self.map(), at, WORD_RETIRED)?.store(0, Ordering::Release);
            crash_point!("free.unstamped");
        }
        self.free_recorded_part(chunk, state)
    }

    /// A range is to be freed, and a part of it is free already. If the bitmap has lost a bit, the
    /// chunk is given up, and the range leaves its source: what is left of its bits stays set.
    /// Otherwise the source leads to memory of others, and is given up.
    #[cold]
    fn give_up_part(
        &self,
        chunk: ChunkIndex,
        state: &mut ChunkState,
        source: FreeSource,
        (at, to): (u64, u64),
    ) -> Result<()> {
        let bitmap = Bitmap::load(chunk.bitmap(self.map())?);
        if state.is_given_up {
            return Ok(take_from_source(&self.arena(), source, at, to)?);
        }
        let lost_bit = state.verify(&bitmap);
        match source {
            _ if lost_bit.is_err() => {
                take_from_source(&self.arena(), source, at, to)?;
                state.is_given_up = true;
            }
            FreeSource::Queue(number) => {
                self.arena().numbered_queue(number)?.head.store(0, Ordering::Release);
            }
            FreeSource::Bump(which) => self.arena().set_bump(which, 0, 0),
            FreeSource::Rest => {}
        }
        lost_bit?;
        Err(Error::from(Corruption("a cell that is free already is freed")))
    }

    fn free_recorded_part(&self, chunk: ChunkIndex, state: &mut ChunkState) -> Result<()> {
        let (run, joined) = clear_recorded(&self.arena(), chunk)?;
        state.used = state.used.saturating_sub(u64::from(run.units));
        state.is_closing &= state.used != 0;
        state.has_fixed &= state.used != 0;
        // No other run has become longer. A bound that is higher than that leads a search here in
        // vain.
        state.longest = state.longest.max(joined).min(state.free());
        let (vain_class, left) = self.vain_search.get();
        if left != 0 && joined * LINE >= class::bytes_of(vain_class) {
            self.vain_search.set((vain_class, 0));
        }
        Ok(())
    }

    /// Continues to free a range of several chunks. False if the lock of its next chunk is busy:
    /// then nothing else can be freed.
    pub(crate) fn finish_free(&self) -> Result<bool> {
        let arena = self.arena();
        while arena.get(undo::FREE_AT) != 0 {
            let chunk = ChunkIndex::of(self.map(), arena.get(undo::FREE_AT))?;
            let freed = self.under_chunk(chunk, Some(LOCK_WAIT_SHORT), |state| {
                self.free_recorded_part(chunk, state)
            })?;
            if freed.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Closes the record of a range that is being taken. A flipped bit in `CHUNK_TO` leads to no range.
pub(crate) fn close_claim(arena: &Arena<'_>) {
    arena.set(undo::CHUNK_TO, 0);
    arena.set(undo::CHUNK_AT, 0);
}

/// Removes a range from where it stands.
fn take_from_source(
    arena: &Arena<'_>,
    source: FreeSource,
    at: u64,
    to: u64,
) -> Result<(), Corruption> {
    debug_assert!(at < to && at.is_multiple_of(LINE), "an empty range is freed");
    match source {
        FreeSource::Queue(number) => {
            let queue = arena.numbered_queue(number)?;
            let next = cell::word(arena.map, at, WORD_NEXT)?.load(Ordering::Relaxed);
            queue.head.store(next, Ordering::Release);
            let count = queue.count.load(Ordering::Relaxed);
            queue.count.store(count.saturating_sub(1), Ordering::Relaxed);
        }
        FreeSource::Bump(which) => arena.set(which.front(), to),
        FreeSource::Rest => {}
    }
    Ok(())
}

/// Clears the bits of the recorded range in the chunk of its first byte, which is locked. Returns
/// the units that came free, and the length of the run that they are a part of.
fn clear_recorded(arena: &Arena<'_>, chunk: ChunkIndex) -> Result<(UnitRun, u64), Corruption> {
    let (at, to) = (arena.get(undo::FREE_AT), arena.get(undo::FREE_TO));
    let run = chunk.checked_run(at, to)?;
    let words = chunk.bitmap(arena.map)?;
    mark(words, run, false);
    let joined = joined_units(words, run);
    // While it is recorded: if this process is killed before, its recoverer tells of it. What the
    // reserve gets back is seen in its words.
    if chunk.0 < ordinary_chunks(arena.map.chunks()) {
        watched::note_run(arena.map, joined, arena.is_fenced);
    }
    crash_point!("free.marked");
    arena.set(undo::FREE_SOURCE, FreeSource::Rest.encode());
    if to > chunk.end() {
        arena.set(undo::FREE_AT, chunk.end());
    } else {
        arena.set(undo::FREE_AT, 0);
        // A flipped bit in `FREE_AT` leads to no range.
        arena.set(undo::FREE_TO, 0);
    }
    crash_point!("free.done");
    Ok((run, joined))
}

/// Links a chain of cells before the head of the queue of its class.
pub(crate) fn link_batch(
    arena: &Arena<'_>,
    class: u8,
    first: u64,
    last: u64,
) -> Result<(), Corruption> {
    invariant!(first != 0 && last != 0, "a batch has a first and a last cell");
    let queue = arena.queue(class)?;
    let head = queue.head.load(Ordering::Relaxed);
    if head == first {
        return Ok(()); // Recovery: it is linked.
    }
    cell::word(arena.map, last, WORD_NEXT)?.store(head, Ordering::Release);
    crash_point!("harvest.cleared");
    if head == 0 {
        queue.tail.store(last, Ordering::Release);
        crash_point!("harvest.tail");
    }
    queue.head.store(first, Ordering::Release);
    Ok(())
}

/// Marks the units of a chain of cells of one chunk as allocated.
pub(crate) fn mark_batch(arena: &Arena<'_>, first: u64, last: u64) -> Result<(), Corruption> {
    let chunk = ChunkIndex::of(arena.map, first)?;
    let words = chunk.bitmap(arena.map)?;
    let mut cell = first;
    for _ in 0..HARVEST_CELLS {
        let end = cell.saturating_add(cell::bytes_at(arena.map, cell)?);
        if end > chunk.end() {
            return Err(Corruption("a batch of cells lies in several chunks"));
        }
        mark(words, chunk.checked_run(cell, end)?, true);
        if cell == last {
            return Ok(());
        }
        cell = cell::word(arena.map, cell, WORD_NEXT)?.load(Ordering::Acquire);
    }
    Err(Corruption("a batch of cells has no end"))
}

/// Recovery: completes what an undo record says about chunks. Only then do their locks have owners
/// that can be released. `owner` is the dead member's.
pub(crate) fn recover(arena: &Arena<'_>, owner: u64) -> Result<(), Corruption> {
    recover_claim(arena, owner)?;
    crash_point!("recover.chunk");
    recover_batch(arena, owner)?;
    crash_point!("recover.batch");
    recover_free(arena, owner)?;
    crash_point!("recover.free");
    refresh_lock(arena, owner)
}

/// A recorded range belongs to the member: it becomes the bump range.
fn recover_claim(arena: &Arena<'_>, owner: u64) -> Result<(), Corruption> {
    let (word, to) = (arena.get(undo::CHUNK_AT), arena.get(undo::CHUNK_TO));
    if to == 0 {
        // Not opened yet, or not closed completely.
        close_claim(arena);
        return Ok(());
    }
    let (start, which) = (word & !1, if word & 1 != 0 { Bump::Large } else { Bump::Small });
    let mut at = start;
    while at < to {
        let chunk = ChunkIndex::of(arena.map, at)?;
        // A chunk whose lock was released is marked. Others may change its bitmap.
        if is_held_by(arena.map, chunk, owner)? {
            mark(chunk.bitmap(arena.map)?, chunk.checked_run(at, to)?, true);
        }
        at = chunk.end();
    }
    arena.set_bump(which, start, to);
    close_claim(arena);
    Ok(())
}

/// A recorded batch belongs to the member: it stands in the queue.
fn recover_batch(arena: &Arena<'_>, owner: u64) -> Result<(), Corruption> {
    let (first, last) = (arena.get(undo::BATCH_FIRST), arena.get(undo::BATCH_LAST));
    if first != 0 {
        if !is_held_by(arena.map, ChunkIndex::of(arena.map, first)?, owner)? {
            return Err(Corruption("a batch of cells is recorded, and its chunk is not locked"));
        }
        mark_batch(arena, first, last)?;
        link_batch(arena, cell::class_at(arena.map, first)?, first, last)?;
        arena.set(undo::BATCH_FIRST, 0);
    }
    Ok(())
}

/// A range that left its source is free. The rest of a range of several chunks, whose next chunk is
/// not locked, stays recorded: the next member of this slot frees it.
fn recover_free(arena: &Arena<'_>, owner: u64) -> Result<(), Corruption> {
    let at = arena.get(undo::FREE_AT);
    if at == 0 {
        arena.set(undo::FREE_TO, 0);
        return Ok(());
    }
    let chunk = ChunkIndex::of(arena.map, at)?;
    if !is_held_by(arena.map, chunk, owner)? {
        return Ok(());
    }
    let is_still_there = match FreeSource::decode(arena.get(undo::FREE_SOURCE))? {
        FreeSource::Queue(number) => {
            arena.numbered_queue(number)?.head.load(Ordering::Acquire) == at
        }
        FreeSource::Bump(which) => {
            let (front, end) = arena.bump(which);
            front == at && front < end
        }
        FreeSource::Rest => false,
    };
    if is_still_there {
        arena.set(undo::FREE_AT, 0);
        arena.set(undo::FREE_TO, 0);
    } else {
        clear_recorded(arena, chunk)?;
    }
    Ok(())
}

/// The payload of a chunk lock that the member holds becomes what the bitmap says.
fn refresh_lock(arena: &Arena<'_>, owner: u64) -> Result<(), Corruption> {
    let map = arena.map;
    let at = arena.get(undo::lock(LockSlot::Leaf));
    let words = chunk_words_at(map.chunks());
    if at < words || at >= words + 8 * map.chunks() {
        return Ok(());
    }
    let word = map.word(at)?;
    let seen = word.load(Ordering::Acquire);
    if lock::owner_of(seen) == owner {
        let chunk = ChunkIndex((at - words) / 8);
        // Units that the member freed are not counted in the word yet: a bit that was lost before
        // cannot be told from them.
        let before = ChunkState::decode(seen & lock::PAYLOAD);
        let found = ChunkState::of(&Bitmap::load(chunk.bitmap(map)?), before.has_pages);
        let has_fixed = before.has_fixed && found.used != 0;
        let state = ChunkState { is_given_up: before.is_given_up, has_fixed, ..found };
        lock::hold_with(word, owner, state.encode());
    }
    Ok(())
}
