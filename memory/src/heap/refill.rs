//! Takes small cells from the chunks: a new bump range, or cells of one class from the free runs of
//! a fragmented chunk (`docs/decisions/013-heap.md`).

use std::time::Duration;

use nearstate_model::{Error, Result, invariant};

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::heap::bitmap::{Bitmap, UnitRun, mark};
use crate::heap::cell::{self, WORD_HEAD, WORD_NEXT, WORD_RETIRED};
use crate::heap::chunk::{ChunkIndex, ChunkState, chunks_used, state_of};
use crate::heap::class;
use crate::heap::free::{HARVEST_CELLS, close_claim, link_batch, mark_batch};
use crate::heap::set_aside;
use crate::layout::{LINE, QUEUES, ordinary_chunks};
use crate::member::arena::{BUMP_SMALL_CELL_MAX, Bump, LockSlot, undo};
use crate::member::pin::NEVER_READ;
use crate::member::{LOCK_WAIT_SHORT, Member};

/// A run that holds fewer cells than this is harvested together with other runs of its chunk.
const BUMP_CELLS_MIN: u64 = 8;

/// Chunk words that a search reads before it takes fresh memory: 64 lines. A search of the whole
/// table follows only when there is no fresh memory.
pub(crate) const SEARCH_WINDOW: u64 = 512;

/// Refills for which a search of all chunks that was in vain is not repeated: it costs as much as
/// some writes. Others may have freed memory meanwhile.
const VAIN_REFILLS: u32 = 64;

/// Looks at a class that has lost no cell since the first of them before its cells are freed: what
/// the member reuses soon stays. Otherwise, after the cells of all classes were freed once, each
/// refill would free those of the classes that had no turn since the last one.
const STALE_LOOKS: u32 = 8;

/// Cells of another class that one refill frees at most.
const STALE_CELLS: u64 = 256;

/// Classes that one refill looks at: each class has its turn every 16 refills.
const STALE_CLASSES: usize = QUEUES / 16;

/// Which chunks a search accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// Partly used, with a run that may be long enough.
    Partial,
    /// No unit is allocated.
    Empty,
    /// As `Partial`, and its records are being moved elsewhere, or it keeps what cannot be moved.
    Avoided,
}

/// What a search for one cell has met.
#[derive(Debug, Default)]
struct ChunkSearch {
    /// How long the search waits for the lock of a chunk. `None`: not at all.
    wait_max: Option<Duration>,
    /// No chunk had room lately: a long run is not cut for small cells if there are short ones.
    is_scarce: bool,
    /// A chunk is avoided.
    has_avoided: bool,
    /// A process has locked a chunk that may have room.
    has_met_lock: bool,
    /// The chunks that were looked at in vain.
    seen: u64,
    /// The file system has no pages for a chunk. Chunks with pages may still have room.
    no_pages: Option<Error>,
}

impl Member {
    /// Refills the small bump range, which is empty, or the queue of the class.
    pub(crate) fn refill(&self, class: u8) -> Result<()> {
        let bytes = class::bytes_of(class);
        invariant!(bytes != 0 && bytes <= BUMP_SMALL_CELL_MAX, "cells of {bytes} bytes are small");
        self.finish_free()?;
        self.free_stale(class)?;
        self.revisit_set_aside(set_aside::BATCH)?;
        self.keep_reserve(bytes / LINE)?;
        let is_scarce = self.is_scarce();
        let mut search = ChunkSearch { is_scarce, ..ChunkSearch::default() };
        if is_scarce && self.split_kept(class)?
            || self.take_near(class, &mut search)?
            || self.take_fresh(class, &mut search)?
        {
            return Ok(());
        }
        self.note_scarcity();
        search.is_scarce = true;
        let is_done = !is_scarce && self.split_kept(class)?
            || !self.is_first_try(class) && self.search_all(class, &mut search)?
            || self.take_lent(class, &mut search)?;
        if is_done { Ok(()) } else { Err(self.no_room_after(search)) }
    }

    /// As [`Member::refill`], of chunks of the reserve only.
    pub(crate) fn refill_lent(&self, class: u8) -> Result<()> {
        debug_assert!(self.may_use_reserve.get(), "the reserve lends to what may use it");
        self.finish_free()?;
        let mut search = ChunkSearch { wait_max: Some(LOCK_WAIT_SHORT), ..ChunkSearch::default() };
        let is_done = self.take_lent(class, &mut search)?;
        if is_done { Ok(()) } else { Err(self.no_room_after(search)) }
    }

    fn no_room_after(&self, search: ChunkSearch) -> Error {
        let Some(no_pages) = search.no_pages else { return no_room() };
        // The file system may have pages next time.
        self.refusals.is_incomplete.set(true);
        no_pages
    }

    /// Takes memory of the chunk used last, or of one of those behind it.
    fn take_near(&self, class: u8, search: &mut ChunkSearch) -> Result<bool> {
        let (vain_class, left) = self.vain_search.get();
        let hint = ChunkIndex(self.chunk.get());
        let used = chunks_used(self.map())?;
        if hint.0 < used
            && suits(state_of(self.map(), hint)?, Wanted::Partial, class, false)
            && self.take_from_chunk(hint, class, search)?
        {
            return Ok(true);
        }
        if left != 0 && class >= vain_class {
            self.vain_search.set((vain_class, left - 1));
            return Ok(false);
        }
        for wanted in [Wanted::Partial, Wanted::Empty] {
            if self.search(SEARCH_WINDOW, wanted, class, search)? {
                return Ok(true);
            }
        }
        search.seen = used.min(SEARCH_WINDOW);
        Ok(false)
    }

    /// Takes memory of a chunk that was never used.
    fn take_fresh(&self, class: u8, search: &mut ChunkSearch) -> Result<bool> {
        while search.no_pages.is_none() {
            match self.add_chunk() {
                Ok(Some(chunk)) if self.take_from_chunk(chunk, class, search)? => return Ok(true),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error @ Error::Full { .. }) => search.no_pages = Some(error),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// True if a search of all chunks was in vain lately, and the caller tries again after it has
    /// freed what is retired.
    fn is_first_try(&self, class: u8) -> bool {
        let (vain_class, left) = self.vain_search.get();
        left != 0 && class >= vain_class && self.tries_again.get()
    }

    /// Searches every chunk, and waits for those that are locked. If that is in vain, the next
    /// refills for such cells do without.
    fn search_all(&self, class: u8, search: &mut ChunkSearch) -> Result<bool> {
        let is_found = self.search_everywhere(class, search)?;
        let (vain_class, left) = self.vain_search.get();
        let vain_class = if left == 0 { class } else { class.min(vain_class) };
        self.vain_search.set((vain_class, if is_found { 0 } else { VAIN_REFILLS }));
        Ok(is_found)
    }

    fn search_everywhere(&self, class: u8, search: &mut ChunkSearch) -> Result<bool> {
        search.wait_max = Some(LOCK_WAIT_SHORT);
        let has_seen_all = search.seen >= chunks_used(self.map())? && !search.has_met_lock;
        for wanted in [Wanted::Partial, Wanted::Empty, Wanted::Avoided] {
            let is_vain = match wanted {
                Wanted::Partial | Wanted::Empty => has_seen_all,
                Wanted::Avoided => !search.has_avoided,
            };
            if !is_vain && self.search(u64::MAX, wanted, class, search)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes memory of the reserve, if the operation may use it.
    fn take_lent(&self, class: u8, search: &mut ChunkSearch) -> Result<bool> {
        if self.may_use_reserve.get() {
            for chunk in (ordinary_chunks(self.map().chunks())..self.lendable_end()).map(ChunkIndex)
            {
                if state_of(self.map(), chunk)?.longest >= class::bytes_of(class) / LINE
                    && self.take_from_chunk(chunk, class, search)?
                {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Frees cells of a class that this member keeps and has not used for some refills: what it
    /// needs now is memory, and cells that stay where they are make free runs short. Looks at some
    /// classes in turn.
    fn free_stale(&self, class: u8) -> Result<()> {
        let arena = self.arena();
        for _ in 0..STALE_CLASSES {
            let other = (self.stale_class.get() + 1) % QUEUES as u8;
            self.stale_class.set(other);
            let head = arena.queue(other)?.head.load(Ordering::Relaxed);
            let Some(seen) = self.queue_heads.get(other as usize) else {
                invariant!("class {other} has no queue")
            };
            // A class in use loses its head to the next allocation.
            let (before, looks) = seen.get();
            let looks = if before == head { looks + 1 } else { 0 };
            seen.set((head, looks));
            if looks >= STALE_LOOKS && head != 0 && other != class {
                return self.free_queue(other, STALE_CELLS);
            }
        }
        Ok(())
    }

    /// Tries at most `most` chunks in a circle, from behind the one used last. True if one had
    /// room.
    fn search(
        &self,
        most: u64,
        wanted: Wanted,
        class: u8,
        search: &mut ChunkSearch,
    ) -> Result<bool> {
        let used = chunks_used(self.map())?;
        let mut chunk = self.chunk.get();
        for _ in 0..most.min(used) {
            chunk = if chunk + 1 < used { chunk + 1 } else { 0 };
            let state = state_of(self.map(), ChunkIndex(chunk))?;
            search.has_avoided |= state.is_avoided();
            let needs_pages = search.no_pages.is_some();
            if suits(state, wanted, class, needs_pages)
                && !(wanted == Wanted::Empty && self.evacuated.window.borrow().contains(&chunk))
                && self.take_from_chunk(ChunkIndex(chunk), class, search)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes a run of a chunk as the small bump range, or cells of the class into its queue. False
    /// if the chunk is busy or has no room.
    fn take_from_chunk(
        &self,
        chunk: ChunkIndex,
        class: u8,
        search: &mut ChunkSearch,
    ) -> Result<bool> {
        let units = class::bytes_of(class) / LINE;
        let taken = self.under_chunk(chunk, search.wait_max, |state| {
            let words = chunk.bitmap(self.map())?;
            let bitmap = Bitmap::load(words);
            if state.is_given_up {
                return Ok(false);
            }
            let used = state.verify(&bitmap)?;
            let longest = bitmap.longest_run().filter(|run| u64::from(run.units) >= units);
            // Only a chunk with room gets pages: an extent may fill it, and commits its own.
            if longest.is_some() {
                match self.commit_chunk(chunk, state) {
                    Err(error @ Error::Full { .. }) => {
                        search.no_pages = Some(error);
                        return Ok(false);
                    }
                    other => other?,
                }
            }
            let mut taken = 0;
            if let Some(longest) = longest {
                taken = if chunk.0 >= ordinary_chunks(self.map().chunks()) {
                    // Exactly one cell: the reserve lends no more than is needed.
                    units * self.harvest(chunk, class, bitmap.free_runs(), 1)?
                } else if !search.is_scarce && u64::from(longest.units) >= BUMP_CELLS_MIN * units {
                    let most = longest.units.min(self.shared().claim_units() as u32);
                    self.claim(Bump::Small, chunk, UnitRun { units: most, ..longest })?;
                    u64::from(most)
                } else if search.is_scarce {
                    units * self.harvest_fitting(chunk, class, &bitmap)?
                } else {
                    units * self.harvest(chunk, class, bitmap.free_runs(), HARVEST_CELLS)?
                };
            }
            *state = state.after_taking(&Bitmap::load(words), used + taken);
            Ok(longest.is_some())
        })?;
        search.has_met_lock |= taken.is_none();
        let is_taken = taken == Some(true);
        if is_taken && chunk.0 < ordinary_chunks(self.map().chunks()) {
            self.chunk.set(chunk.0);
        }
        Ok(is_taken)
    }

    /// Makes a run of a locked chunk the content of a bump range, which is empty.
    pub(crate) fn claim(&self, which: Bump, chunk: ChunkIndex, run: UnitRun) -> Result<()> {
        let arena = self.arena();
        invariant!(self.has_lock(LockSlot::Leaf), "a bitmap changes without its lock");
        // It was emptied before. A flipped bit since then must not be taken for a part of it.
        self.check_bump(which)?;
        let (front, end) = arena.bump(which);
        invariant!(front >= end, "a bump range of {} bytes is lost", end - front);
        let at = chunk.start() + LINE * u64::from(run.start);
        let to = chunk.start() + LINE * u64::from(run.end());
        arena.set(undo::CHUNK_AT, at | u64::from(which == Bump::Large));
        arena.set(undo::CHUNK_TO, to);
        crash_point!("chunk.recorded");
        mark(chunk.bitmap(self.map())?, run, true);
        crash_point!("chunk.marked");
        arena.set_bump(which, at, to);
        self.note_bump(which, at, to);
        crash_point!("chunk.bumped");
        close_claim(&arena);
        crash_point!("chunk.done");
        Ok(())
    }

    /// As [`Member::harvest`], from the runs that the cells fill; without one, from the shortest
    /// that is long enough.
    fn harvest_fitting(&self, chunk: ChunkIndex, class: u8, bitmap: &Bitmap) -> Result<u64> {
        let units = (class::bytes_of(class) / LINE) as u32;
        let runs = || bitmap.free_runs().filter(|run| run.units >= units);
        let shortest = runs().min_by_key(|run| run.units);
        let Some(shortest) = shortest else { invariant!("a harvest of a chunk without room") };
        if shortest.units == units {
            self.harvest(chunk, class, runs().filter(|run| run.units == units), HARVEST_CELLS)
        } else {
            self.harvest(chunk, class, std::iter::once(shortest), HARVEST_CELLS)
        }
    }

    /// Takes cells of a class from free runs of a locked chunk into the queue of the class. Returns
    /// their number.
    pub(crate) fn harvest(
        &self,
        chunk: ChunkIndex,
        class: u8,
        runs: impl Iterator<Item = UnitRun>,
        most: u64,
    ) -> Result<u64> {
        let map = self.map();
        let bytes = class::bytes_of(class);
        let units = (bytes / LINE) as u32;
        let starts =
            runs.flat_map(|run| (0..run.units / units).map(move |cell| run.start + cell * units));
        let (mut first, mut last, mut count) = (0, 0, 0);
        for start in starts.take(most as usize) {
            let at = chunk.start() + LINE * u64::from(start);
            cell::word(map, at, WORD_HEAD)?.store(u64::from(class), Ordering::Relaxed);
            cell::word(map, at, WORD_RETIRED)?.store(NEVER_READ, Ordering::Relaxed);
            if last == 0 {
                first = at;
            } else {
                cell::word(map, last, WORD_NEXT)?.store(at, Ordering::Release);
            }
            (last, count) = (at, count + 1);
        }
        invariant!(self.has_lock(LockSlot::Leaf), "a bitmap changes without its lock");
        invariant!(count > 0, "a harvest of a chunk without room");
        let arena = self.arena();
        arena.set(undo::BATCH_LAST, last);
        arena.set(undo::BATCH_FIRST, first);
        crash_point!("harvest.recorded");
        mark_batch(&arena, first, last)?;
        crash_point!("harvest.marked");
        link_batch(&arena, class, first, last)?;
        crash_point!("harvest.linked");
        let queue = arena.queue(class)?;
        let before = queue.count.load(Ordering::Relaxed);
        queue.count.store(before.wrapping_add(count), Ordering::Relaxed);
        arena.set(undo::BATCH_FIRST, 0);
        crash_point!("harvest.done");
        Ok(count)
    }
}

/// True if a chunk is one that a search accepts for a class.
#[inline]
fn suits(state: ChunkState, wanted: Wanted, class: u8, needs_pages: bool) -> bool {
    (state.has_pages || !needs_pages)
        && match wanted {
            Wanted::Partial | Wanted::Avoided => {
                state.used != 0
                    && state.is_avoided() == (wanted == Wanted::Avoided)
                    && state.longest >= class::bytes_of(class) / LINE
            }
            Wanted::Empty => state.used == 0,
        }
}

/// Why the heap is full, if the file system is not.
pub(crate) const REACHED_SIZE: &str = "the region has reached the size it was created with";

/// The answer of a heap without room, before it is known what could be reclaimed.
#[cold]
pub(crate) fn no_room() -> Error {
    Error::Full { detail: REACHED_SIZE.to_owned(), heap: None }
}
