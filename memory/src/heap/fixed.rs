//! Places cells that stay where they are in chunks of their own: counters, rings, and the short
//! segments of indexes. Elsewhere each of them would keep its chunk from becoming a part of a long
//! free range (`docs/decisions/015-evacuation.md`).
//!
//! The bit *fixed* of a chunk's word is a hint: other cells are put elsewhere as long as there is
//! room. If such a chunk cannot be had, a cell is placed like any other.

use nearstate_model::{Error, Result, invariant};

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::heap::bitmap::{Bitmap, UnitRun};
use crate::heap::chunk::{ChunkIndex, ChunkState, chunks_used, state_of};
use crate::heap::class;
use crate::layout::{CHUNK_BYTES, CHUNK_UNITS, LINE, ordinary_chunks};
use crate::member::Member;
use crate::member::arena::Bump;

/// The largest cell that is placed like this, half a chunk. A larger one fills most of its chunks.
const FIXED_BYTES_MAX: u64 = CHUNK_BYTES / 2;

/// Chunk words that one search reads: 64 lines.
const SEARCH_WINDOW: u64 = 512;

/// Cells that are placed like any other after a search in vain, without another one.
const VAIN_CELLS: u32 = 64;

const _: () = assert!(FIXED_BYTES_MAX < CHUNK_BYTES, "such a cell lies in one chunk");
const _: () = assert!(FIXED_BYTES_MAX.is_multiple_of(LINE), "a cell has whole units");
const _: () = assert!(VAIN_CELLS > 0, "a search in vain has a pause");

/// True for a cell that lies in a chunk of cells that stay.
const fn is_placed(bytes: u64) -> bool {
    bytes <= FIXED_BYTES_MAX
}

impl Member {
    /// Allocates a pending cell of at least `bytes` that will not be moved.
    ///
    /// Cost: the lock of a chunk and a pass over its bitmap, 0.5 us; a search of some chunks for
    /// each new one.
    ///
    /// # Errors
    /// As [`Member::allocate`].
    pub(crate) fn allocate_fixed(&self, bytes: u64) -> Result<u64> {
        debug_assert!(self.is_in_operation(), "another member may be taking cells");
        let Some(class) = class::class_of(bytes).filter(|class| is_placed(class::bytes_of(*class)))
        else {
            let at = self.allocate(bytes)?;
            self.note_fixed(at, bytes)?;
            return Ok(at);
        };
        let take = |chunk, state: &mut ChunkState| self.harvest_one(chunk, class, state);
        if !self.take_in_fixed(class::bytes_of(class) / LINE, take)? {
            return self.allocate(bytes);
        }
        let queue = self.arena().queue(class)?;
        let head = queue.head.load(Ordering::Relaxed);
        invariant!(head != 0, "a harvest of class {class} brought no cell");
        self.arena().pop(queue, head)?;
        crash_point!("alloc.done");
        Ok(head)
    }

    /// Takes a range for a short segment of an index as the large bump range, which is empty. False
    /// if the segment is long, or there is no room: then it is placed like a large cell.
    pub(crate) fn take_fixed_range(&self, bytes: u64) -> Result<bool> {
        if !is_placed(bytes) {
            return Ok(false);
        }
        invariant!(bytes.is_multiple_of(LINE), "a segment of {bytes} bytes has whole units");
        self.take_in_fixed(bytes / LINE, |chunk, state| {
            let (words, units) = (chunk.bitmap(self.map())?, bytes / LINE);
            let Some((run, used)) = self.fixed_run(chunk, units, state)? else { return Ok(false) };
            self.claim(Bump::Large, chunk, UnitRun { units: units as u32, ..run })?;
            *state = state.after_taking(&Bitmap::load(words), used + units);
            state.has_fixed = true;
            Ok(true)
        })
    }

    /// Takes units in a chunk for cells that stay, or in one that becomes such a chunk. `take` runs
    /// under the lock of the chunk, and returns false if its run is too short. False if there is
    /// none.
    fn take_in_fixed(
        &self,
        units: u64,
        take: impl Fn(ChunkIndex, &mut ChunkState) -> Result<bool>,
    ) -> Result<bool> {
        invariant!(units != 0 && units <= CHUNK_UNITS, "{units} units lie in no chunk");
        let (hint, pause) = self.fixed_chunk.get();
        if pause != 0 || self.may_use_reserve.get() {
            self.fixed_chunk.set((hint, pause.saturating_sub(1)));
            return Ok(false);
        }
        if !self.finish_free()? || self.keep_reserve(units).is_err() {
            return Ok(false);
        }
        for is_fixed in [true, false] {
            let used = chunks_used(self.map())?;
            let mut chunk = if hint < used { hint } else { 0 };
            for _ in 0..used.min(SEARCH_WINDOW) {
                let state = state_of(self.map(), ChunkIndex(chunk))?;
                let suits = if is_fixed {
                    state.has_fixed && !state.is_closing && state.longest >= units
                } else {
                    state.used == 0
                };
                if suits && self.take_fixed(ChunkIndex(chunk), &take)? {
                    return Ok(true);
                }
                chunk = if chunk + 1 < used { chunk + 1 } else { 0 };
            }
        }
        if let Ok(Some(chunk)) = self.add_chunk()
            && self.take_fixed(chunk, &take)?
        {
            return Ok(true);
        }
        self.check_usable()?;
        self.fixed_chunk.set((hint, VAIN_CELLS));
        Ok(false)
    }

    fn take_fixed(
        &self,
        chunk: ChunkIndex,
        take: &impl Fn(ChunkIndex, &mut ChunkState) -> Result<bool>,
    ) -> Result<bool> {
        let taken = self.under_chunk(chunk, None, |state| {
            if state.is_given_up || state.used != 0 && !state.has_fixed {
                return Ok(false);
            }
            match self.commit_chunk(chunk, state) {
                // The file system is full.
                Err(Error::Full { .. }) => return Ok(false),
                other => other?,
            }
            take(chunk, state)
        });
        let is_taken = taken? == Some(true);
        if is_taken {
            self.fixed_chunk.set((chunk.0, 0));
        }
        Ok(is_taken)
    }

    /// Takes one cell of a class into its queue, as the head.
    fn harvest_one(&self, chunk: ChunkIndex, class: u8, state: &mut ChunkState) -> Result<bool> {
        let units = class::bytes_of(class) / LINE;
        let Some((run, used)) = self.fixed_run(chunk, units, state)? else { return Ok(false) };
        let count = self.harvest(chunk, class, std::iter::once(run), 1)?;
        invariant!(count == 1, "one cell became {count}");
        // The bound of the longest run stays one.
        *state = ChunkState { used: used + units, has_fixed: true, is_closing: false, ..*state };
        Ok(true)
    }

    /// The first run of a locked chunk that is long enough, and the chunk's allocated units.
    fn fixed_run(
        &self,
        chunk: ChunkIndex,
        units: u64,
        state: &mut ChunkState,
    ) -> Result<Option<(UnitRun, u64)>> {
        let bitmap = Bitmap::load(chunk.bitmap(self.map())?);
        let used = state.verify(&bitmap)?;
        let run = bitmap.free_runs().find(|run| u64::from(run.units) >= units);
        if run.is_none() {
            state.longest = bitmap.longest();
        }
        Ok(run.map(|run| (run, used)))
    }

    /// Notes that a large cell which is not moved begins and ends in chunks of the heap.
    pub(crate) fn note_fixed(&self, at: u64, bytes: u64) -> Result<()> {
        if is_placed(bytes) {
            return Ok(());
        }
        let first = ChunkIndex::of(self.map(), at)?;
        let last = ChunkIndex::of(self.map(), at + bytes - 1)?;
        for chunk in [Some(first), (last != first).then_some(last)].into_iter().flatten() {
            self.set_fixed(chunk)?;
        }
        Ok(())
    }

    /// Sets the hint of a chunk, unless it is busy.
    fn set_fixed(&self, chunk: ChunkIndex) -> Result<()> {
        if chunk.0 < ordinary_chunks(self.map().chunks()) && !state_of(self.map(), chunk)?.has_fixed
        {
            self.under_chunk(chunk, None, |state| {
                state.has_fixed = state.used != 0;
                Ok(())
            })?;
        }
        Ok(())
    }
}
