//! Takes ranges of the heap that can reach over several chunks: large cells and segments of the
//! index (`docs/decisions/013-heap.md`).

use std::ops::Range;

use nearstate_model::{Error, Result, invariant};

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::heap::bitmap::{Bitmap, mark};
use crate::heap::chunk::{ChunkIndex, ChunkState, chunks_used};
use crate::heap::free::close_claim;
use crate::heap::refill::no_room;
use crate::heap::set_aside;
use crate::layout::{CHUNK_UNITS, LINE, ordinary_chunks};
use crate::member::arena::{Bump, undo};
use crate::member::{LOCK_WAIT_SHORT, Member, lock};

/// How often a claim starts again behind a chunk of which another member took a part. Each time
/// that member made progress.
const CLAIMS_MAX: u32 = 16;

/// Which chunks a search for a range skips.
#[derive(Clone, Copy, Debug)]
struct SpanSearch {
    /// Those whose lock is held, those that are closing, and for a cell that can be moved, those
    /// that keep what cannot.
    skips_busy: bool,
    /// It is for a cell that can be moved.
    is_movable: bool,
    /// Those without pages.
    needs_pages: bool,
}

impl Member {
    /// Takes a range as the large bump range, which is empty. It has pages, except the chunks that
    /// an extent fills.
    pub(crate) fn take_span(&self, bytes: u64, is_extent: bool) -> Result<()> {
        invariant!(bytes != 0 && bytes.is_multiple_of(LINE), "a range of {bytes} bytes");
        self.finish_free()?;
        self.revisit_set_aside(set_aside::BATCH)?;
        self.keep_reserve(bytes / LINE)?;
        let ordinary = ordinary_chunks(self.map().chunks());
        let is_lent = self.may_use_reserve.get() && self.is_known_full(bytes / LINE)?;
        let first = if is_lent { ordinary } else { 0 };
        let hint = self.span_chunk.get().max(first);
        // Chunks whose lock is busy come last: their holder may be stopped. So do closing ones.
        let mut no_pages = None;
        for skips_busy in [true, false] {
            let may_use = self.may_use_reserve.get();
            let reserve = if may_use { self.lendable_end() } else { ordinary };
            for chunks in [hint..ordinary, first..ordinary, ordinary..reserve] {
                let (needs_pages, is_movable) = (no_pages.is_some(), !is_extent);
                let search = SpanSearch { skips_busy, is_movable, needs_pages };
                match self.take_span_in(chunks, bytes, is_extent, search) {
                    Ok(true) => return Ok(()),
                    Ok(false) => {}
                    // The file system is full. Chunks with pages may still have room.
                    Err(error @ Error::Full { .. }) => no_pages = Some(error),
                    Err(error) => return Err(error),
                }
            }
        }
        // The file system may have pages next time.
        self.refusals.is_incomplete.set(self.refusals.is_incomplete.get() | no_pages.is_some());
        Err(no_pages.unwrap_or_else(no_room))
    }

    /// Takes a range in some chunks. False if there is none.
    fn take_span_in(
        &self,
        mut chunks: Range<u64>,
        bytes: u64,
        is_extent: bool,
        search: SpanSearch,
    ) -> Result<bool> {
        let ordinary = ordinary_chunks(self.map().chunks());
        for _ in 0..CLAIMS_MAX {
            let found = self.find_span(chunks.clone(), bytes / LINE, search)?;
            let Some(start) = found else { return Ok(false) };
            match self.claim_span(start, bytes, is_extent)? {
                None => {
                    let last = ChunkIndex::of(self.map(), start + bytes - LINE)?.0;
                    invariant!(last >= chunks.start, "a search has found a chunk before its range");
                    self.span_chunk.set(if last < ordinary { last } else { 0 });
                    return Ok(true);
                }
                Some(taken) => {
                    self.empty_bump(Bump::Large)?;
                    // Otherwise the search would have no end.
                    invariant!(taken.0 >= chunks.start, "a search does not go forward");
                    chunks.start = taken.0 + 1;
                }
            }
        }
        Ok(false)
    }

    /// The first range of free units in some chunks. Reads without locks, so the claim tests it
    /// again. Adds chunks to the heap where the last ones are free.
    fn find_span(&self, chunks: Range<u64>, units: u64, search: SpanSearch) -> Result<Option<u64>> {
        let (mut start, mut have) = (0, 0);
        let ordinary = ordinary_chunks(self.map().chunks());
        for chunk in chunks.map(ChunkIndex) {
            let has_tables = chunk.0 >= ordinary || chunk.0 < chunks_used(self.map())?;
            if !has_tables && (search.needs_pages || self.add_chunk()?.is_none()) {
                return Ok(None);
            }
            let word = self.map().word(chunk.word_at(self.map()))?.load(Ordering::Relaxed);
            let state = ChunkState::decode(word & lock::PAYLOAD);
            let is_avoided = state.is_closing || state.has_fixed && search.is_movable;
            let is_busy = search.skips_busy && (lock::owner_of(word) != 0 || is_avoided);
            if is_busy || search.needs_pages && !state.has_pages {
                have = 0;
            } else if state.used == 0 {
                start = if have == 0 { chunk.start() } else { start };
                have += CHUNK_UNITS;
            } else if state.free() == 0 || have == 0 && state.longest == 0 {
                have = 0;
            } else {
                let bitmap = Bitmap::load(chunk.bitmap(self.map())?);
                // The first run can continue the one of the chunk before, the last one that of the
                // chunk behind.
                let first = bitmap.first_units();
                if have + first >= units && have != 0 {
                    return Ok(Some(start));
                }
                if state.longest >= units {
                    if let Some(run) = bitmap.free_runs().find(|run| u64::from(run.units) >= units)
                    {
                        return Ok(Some(chunk.start() + LINE * u64::from(run.start)));
                    }
                    self.note_longest_run(chunk)?;
                }
                have = bitmap.last_units();
                invariant!(have <= CHUNK_UNITS, "{have} units of a chunk are free");
                start = chunk.end() - LINE * have;
            }
            if have >= units {
                return Ok(Some(start));
            }
        }
        Ok(None)
    }

    /// The word of a chunk says how long its longest run can be at most. A search that found it
    /// shorter corrects the word, unless the chunk is busy.
    #[cold]
    fn note_longest_run(&self, chunk: ChunkIndex) -> Result<()> {
        self.under_chunk(chunk, None, |state| {
            let bitmap = Bitmap::load(chunk.bitmap(self.map())?);
            state.longest = bitmap.longest();
            Ok(())
        })?;
        Ok(())
    }

    /// Takes a range, chunk by chunk. `None`: the large bump range has it. Otherwise the chunk of
    /// which a part is taken or busy: the chunks before it are the large bump range.
    ///
    /// After an error nothing is taken.
    fn claim_span(&self, start: u64, bytes: u64, is_extent: bool) -> Result<Option<ChunkIndex>> {
        let arena = self.arena();
        let end = start + bytes;
        invariant!(
            start.is_multiple_of(LINE) && start < end,
            "a range from {start:#x} to {end:#x}"
        );
        arena.set(undo::CHUNK_AT, start | 1);
        arena.set(undo::CHUNK_TO, start);
        crash_point!("span.recorded");
        let (mut at, mut missing) = (start, Ok(None));
        while at < end && matches!(missing, Ok(None)) {
            let chunk = ChunkIndex::of(self.map(), at)?;
            invariant!(at == start || at == chunk.start(), "a range has a gap before {at:#x}");
            let taken = self.claim_part(chunk, at, end, is_extent && at != start);
            missing = taken.map(|is_taken| (!is_taken).then_some(chunk));
            at = chunk.end();
        }
        let taken_to = arena.get(undo::CHUNK_TO);
        // After an error under a chunk's lock the range is the bump range already.
        if taken_to != 0 {
            arena.set_bump(Bump::Large, start, taken_to);
            self.note_bump(Bump::Large, start, taken_to);
            crash_point!("span.bumped");
            close_claim(&arena);
        }
        if missing.is_err() {
            self.empty_bump(Bump::Large)?;
        }
        missing
    }

    /// Takes the part of a range that lies in a chunk.
    fn claim_part(&self, chunk: ChunkIndex, at: u64, end: u64, is_lazy: bool) -> Result<bool> {
        let arena = self.arena();
        let run = chunk.run(at, end);
        invariant!(run.units != 0, "a range ends before its last chunk");
        let taken = self.under_chunk(chunk, Some(LOCK_WAIT_SHORT), |state| {
            let words = chunk.bitmap(self.map())?;
            let bitmap = Bitmap::load(words);
            if state.is_given_up || !bitmap.is_free(run) {
                return Ok(false);
            }
            let used = state.verify(&bitmap)? + u64::from(run.units);
            if !is_lazy || u64::from(run.units) < CHUNK_UNITS {
                self.commit_chunk(chunk, state)?;
            }
            arena.set(undo::CHUNK_TO, at + LINE * u64::from(run.units));
            crash_point!("span.extended");
            mark(words, run, true);
            *state = state.after_taking(&Bitmap::load(words), used);
            Ok(true)
        });
        Ok(taken? == Some(true))
    }
}
