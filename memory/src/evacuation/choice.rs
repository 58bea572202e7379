//! Chooses the chunks that an evacuation empties (`docs/decisions/015-evacuation.md`).
//!
//! A cell that is larger than a chunk needs neighbours all of which become empty. What cannot be
//! moved is found by a look at the headers before anything is moved, and a session remembers what
//! it found until the number of allocated units of the chunk changes.

use std::ops::Range;

use nearstate_model::{Result, invariant};

use crate::atomic::Ordering;
use crate::heap::bitmap::Bitmap;
use crate::heap::cell::{self, Cell, CellKind};
use crate::heap::chunk::{ChunkIndex, ChunkState, chunks_used, reserve, state_of};
use crate::heap::{class, held};
use crate::layout::{CHUNK_UNITS, CLASS_EXTENT, Corruption, LINE, ordinary_chunks};
use crate::member::arena::BUMP_SMALL_CELL_MAX;
use crate::member::evacuated::SurveyedChunk;
use crate::member::{Member, pin};

/// The share of the heap by which its free units must grow before an evacuation that made no room
/// is tried again.
const GROWTH_SHARE: u64 = 256;

/// Chunks at which one choice looks: 25 ms if all of them are full.
const SURVEYED_MAX: u64 = 512;

/// Groups of neighbours at which one choice looks. Each costs a pass over the chunks in use.
const WINDOWS_SURVEYED_MAX: u32 = 32;

const _: () = assert!(GROWTH_SHARE != 0, "a share divides");

/// Whether a choice looks at what the chunks contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Survey {
    Yes,
    /// Only what is known: the caller has no time, or needs no long range.
    No,
}

/// The chunks that are worth emptying for a cell.
#[derive(Debug, Default)]
pub(super) struct Choice {
    /// Those to empty. None: there are none, or nothing has come free since that was in vain.
    pub(super) chunks: Vec<ChunkIndex>,
    /// The neighbours that the cell needs, the empty ones included. Empty for a cell that fits into
    /// one chunk.
    pub(super) window: Range<u64>,
    /// No chunk was chosen, and not all of them were looked at: the next choice continues.
    pub(super) is_partial: bool,
}

/// A chunk that may be emptied.
#[derive(Clone, Copy, Debug)]
struct EvacuationCandidate {
    chunk: ChunkIndex,
    used: u64,
    /// It keeps what cannot be moved, as its word says.
    has_fixed: bool,
    /// The longest run that it can have, as far as is known.
    longest: u64,
    /// It was looked at, with as many allocated units.
    is_surveyed: bool,
}

/// True for a cell that is not cut from a bump range for many: it needs a run of its own.
pub(super) const fn needs_run(units: u64) -> bool {
    units * LINE > BUMP_SMALL_CELL_MAX
}

impl Member {
    /// The free units that ordinary allocations may use.
    pub(super) fn free_units(&self) -> Result<u64> {
        let map = self.map();
        let used = chunks_used(map)?;
        let mut free = (ordinary_chunks(map.chunks()) - used) * CHUNK_UNITS;
        for chunk in (0..used).map(ChunkIndex) {
            free += state_of(map, chunk)?.free();
        }
        for chunk in reserve(map) {
            free = free.saturating_sub(state_of(map, chunk)?.used);
        }
        Ok(free.saturating_sub(self.kept_for_stalled()))
    }

    /// Moving records has made no room for a cell of so many units: it is not tried again for one
    /// of that size before more is free.
    pub(super) fn note_vain(&self, units: u64) -> Result<()> {
        invariant!(units != 0, "there was no room for no unit");
        let (known, _) = self.evacuated.vain.get();
        let units = if known == 0 { units } else { known.min(units) };
        self.evacuated.vain.set((units, self.free_units()?));
        Ok(())
    }

    /// The chunks whose records are worth moving to make room for a cell of this many units: not
    /// more than `most`, or as many as the cell needs. None if they do not fit elsewhere, or if
    /// that was tried with as little free memory.
    pub(super) fn chunks_to_empty(
        &self,
        units: u64,
        most: usize,
        survey: Survey,
    ) -> Result<Choice> {
        invariant!(units != 0, "chunks are emptied, and no room is wanted");
        let free = self.free_units()?;
        if free < units + units / 4 || self.is_vain(units, free) {
            return Ok(Choice::default());
        }
        self.forget_if_changed()?;
        let count = units.div_ceil(CHUNK_UNITS);
        let mut candidates = self.candidates(count)?;
        if count == 1 {
            return self.choose_single(&mut candidates, (units, free), most, survey);
        }
        self.choose_neighbours(&mut candidates, (count as usize, free), survey)
    }

    /// True if moving records for such a cell was in vain, and since then little has come free.
    fn is_vain(&self, units: u64, free: u64) -> bool {
        let (vain_units, vain_free) = self.evacuated.vain.get();
        if vain_units == 0 || units < vain_units {
            return false;
        }
        let vain_free = vain_free.min(free);
        let ordinary = ordinary_chunks(self.map().chunks());
        if free < vain_free + ordinary * CHUNK_UNITS / GROWTH_SHARE {
            self.evacuated.vain.set((vain_units, vain_free));
            return true;
        }
        self.evacuated.vain.set((0, 0));
        self.evacuated.chunks_left.set(None);
        self.forget_surveys();
        false
    }

    /// All chunks are looked at again.
    pub(super) fn forget_surveys(&self) {
        self.evacuated.surveyed.borrow_mut().clear();
    }

    /// The log or a reader may have let go of what could not be moved.
    fn forget_if_changed(&self) -> Result<()> {
        let readers = self.safe_epochs.borrow().stalled.iter().fold(0, |sum: u64, pin| {
            (sum ^ pin.start).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        let now = (held::floor(self.map())?, readers);
        if self.evacuated.surveyed_under.replace(now) != now {
            self.forget_surveys();
        }
        Ok(())
    }

    /// The chunks in use, and as many behind them as a cell of `count` chunks can need.
    fn candidates(&self, count: u64) -> Result<Vec<EvacuationCandidate>> {
        let map = self.map();
        let used = chunks_used(map)?;
        let known = self.evacuated.surveyed.borrow();
        let mut candidates = Vec::new();
        for chunk in (0..used).map(ChunkIndex) {
            let state = state_of(map, chunk)?;
            let surveyed = known.get(&chunk.0).filter(|seen| seen.used == state.used);
            candidates.push(EvacuationCandidate {
                chunk,
                used: state.used,
                has_fixed: state.has_fixed,
                longest: if is_filled_by_extent(state) {
                    0
                } else {
                    surveyed.map_or(CHUNK_UNITS, |seen| seen.longest)
                },
                is_surveyed: surveyed.is_some(),
            });
        }
        let end = ordinary_chunks(map.chunks()).min(used + count - 1);
        candidates.extend((used..end).map(|chunk| EvacuationCandidate {
            chunk: ChunkIndex(chunk),
            used: 0,
            has_fixed: false,
            longest: CHUNK_UNITS,
            is_surveyed: true,
        }));
        Ok(candidates)
    }

    /// Chunks with the fewest allocated units, for a cell that fits into one.
    fn choose_single(
        &self,
        candidates: &mut Vec<EvacuationCandidate>,
        (units, free): (u64, u64),
        most: usize,
        survey: Survey,
    ) -> Result<Choice> {
        let tried = self.evacuated.tried_chunks.borrow();
        candidates.retain(|one| {
            (1..CHUNK_UNITS).contains(&one.used)
                && one.longest >= units
                && !tried.contains(&one.chunk.0)
        });
        drop(tried);
        candidates.sort_unstable_by_key(|one| (one.has_fixed, one.used, one.chunk));
        let (mut left, mut room) = (SURVEYED_MAX, Room::new(free));
        let mut choice = Choice::default();
        for one in candidates {
            if choice.chunks.len() == most || !room.takes(one.used) {
                break;
            }
            if survey == Survey::Yes {
                if left == 0 {
                    choice.is_partial = choice.chunks.is_empty();
                    break;
                }
                left -= u64::from(!one.is_surveyed);
                self.survey(one)?;
            }
            if one.longest >= units {
                room.take(one.used);
                choice.chunks.push(one.chunk);
            }
        }
        Ok(choice)
    }

    /// Neighbours that can all become empty, with the fewest allocated units.
    fn choose_neighbours(
        &self,
        candidates: &mut [EvacuationCandidate],
        (count, free): (usize, u64),
        survey: Survey,
    ) -> Result<Choice> {
        let mut left = SURVEYED_MAX.max(count as u64);
        for _ in 0..WINDOWS_SURVEYED_MAX {
            let Some(first) = neighbours(candidates, count) else { return Ok(Choice::default()) };
            let Some(window) = candidates.get_mut(first..first + count) else {
                invariant!("neighbours lie outside the chunks that were read")
            };
            let mut can_empty = true;
            if survey == Survey::Yes {
                for one in &mut *window {
                    left = left.saturating_sub(u64::from(!one.is_surveyed));
                    self.survey(one)?;
                    can_empty &= one.longest == CHUNK_UNITS;
                }
            }
            if can_empty {
                return Ok(choice_of(window, free));
            }
            if left == 0 {
                break;
            }
        }
        Ok(Choice { is_partial: true, ..Choice::default() })
    }

    /// Looks at what a chunk contains, unless that is known.
    fn survey(&self, one: &mut EvacuationCandidate) -> Result<()> {
        if one.is_surveyed || one.used == 0 || one.longest == 0 {
            return Ok(());
        }
        one.longest = self.longest_possible(one.chunk)?;
        one.is_surveyed = true;
        let seen = SurveyedChunk { used: one.used, longest: one.longest };
        self.evacuated.surveyed.borrow_mut().insert(one.chunk.0, seen);
        Ok(())
    }

    /// The longest run of units of a chunk without cells that cannot be moved now.
    fn longest_possible(&self, chunk: ChunkIndex) -> Result<u64> {
        let bitmap = Bitmap::load(chunk.bitmap(self.map())?);
        let (mut unit, mut from, mut longest) = (0, 0, 0);
        while unit < CHUNK_UNITS {
            let fixed = if bitmap.is_set(unit as u32) {
                self.fixed_units(chunk.start() + LINE * unit)?
            } else {
                0
            };
            if fixed == 0 {
                unit += 1;
                continue;
            }
            longest = longest.max(unit - from);
            unit += fixed;
            from = unit;
        }
        Ok(longest.max(CHUNK_UNITS.saturating_sub(from)))
    }

    /// The units of the cell at an offset, if it is one that cannot be moved now. 0 for all others.
    ///
    /// Bytes of a body can look like the header of one. Then its chunk is not emptied for a large
    /// cell as long as others can be.
    fn fixed_units(&self, at: u64) -> Result<u64, Corruption> {
        let map = self.map();
        let [head, next, birth, version, ..] = cell::first_line(map, at)?;
        let (head, birth) = (head.load(Ordering::Relaxed), birth.load(Ordering::Relaxed));
        let units = class::bytes_of(head as u8) / LINE;
        if birth == 0 {
            return Ok(0);
        }
        if pin::is_retired(birth) {
            let is_kept = !pin::is_held(birth) && self.safe_epochs.borrow().is_set_aside(birth);
            return Ok(if is_kept { units } else { 0 });
        }
        let Ok(kind) = cell::kind_of(head) else { return Ok(0) };
        let is_fixed = match kind {
            CellKind::Counter | CellKind::Ring => {
                Cell::new(map, at).and_then(|cell| cell.is_whole()).unwrap_or(false)
            }
            CellKind::Extent => {
                let units = version.load(Ordering::Relaxed);
                let is_extent = head as u8 == CLASS_EXTENT
                    && units > 1
                    && units <= ordinary_chunks(map.chunks()) * CHUNK_UNITS;
                return Ok(if is_extent { units } else { 0 });
            }
            CellKind::Record => {
                let next = next.load(Ordering::Relaxed);
                let is_named = held::is_position(map, next)?
                    && next & !held::HAS_POSITION >= held::floor(map)?;
                is_named || self.safe_epochs.borrow().would_hold(birth)
            }
            CellKind::Block | CellKind::OverflowLine | CellKind::Transaction | CellKind::Free => {
                false
            }
        };
        Ok(if is_fixed { units } else { 0 })
    }

    /// After an evacuation that has found room for all that it could move: what is left stays.
    pub(super) fn note_emptied(&self, chunks: &[ChunkIndex]) -> Result<()> {
        let mut known = self.evacuated.surveyed.borrow_mut();
        for chunk in chunks {
            let used = state_of(self.map(), *chunk)?.used;
            if used == 0 {
                known.remove(&chunk.0);
            } else {
                known.insert(chunk.0, SurveyedChunk { used, longest: 0 });
            }
        }
        Ok(())
    }
}

/// The room for what is moved.
#[derive(Clone, Copy, Debug)]
struct Room {
    moved: u64,
    free: u64,
}

impl Room {
    const fn new(free: u64) -> Self {
        Self { moved: 0, free }
    }

    /// Counts the records of a chunk with so many allocated units. What is free in the chunk itself
    /// is no room for them.
    const fn take(&mut self, used: u64) {
        self.moved += used;
        self.free = self.free.saturating_sub(CHUNK_UNITS - used);
    }

    /// True if they fit. An eighth is lost to runs that are too short.
    const fn takes(mut self, used: u64) -> bool {
        self.take(used);
        self.moved + self.moved / 8 <= self.free
    }
}

/// All of some neighbours, if their records fit elsewhere.
fn choice_of(window: &[EvacuationCandidate], free: u64) -> Choice {
    let mut room = Room::new(free);
    for one in window {
        if !room.takes(one.used) {
            return Choice::default();
        }
        room.take(one.used);
    }
    let (Some(first), Some(last)) = (window.first(), window.last()) else {
        return Choice::default();
    };
    let chunks = window.iter().filter(|one| one.used != 0).map(|one| one.chunk).collect();
    Choice { chunks, window: first.chunk.0..last.chunk.0 + 1, is_partial: false }
}

/// Such a chunk contains no cell, and not all of it has pages.
const fn is_filled_by_extent(state: ChunkState) -> bool {
    state.is_given_up || state.used != 0 && !state.has_pages
}

/// The first of as many neighbours as a large cell needs, all of which can become empty as far as
/// is known: those of which the fewest keep what cannot be moved, and of these, those with the
/// fewest allocated units. `None` if there are none.
fn neighbours(chunks: &[EvacuationCandidate], count: usize) -> Option<usize> {
    invariant!(count != 0, "a cell needs a chunk");
    let cost = |place: usize| {
        chunks.get(place).map_or([0; 3], |one| {
            [u64::from(one.longest < CHUNK_UNITS), u64::from(one.has_fixed), one.used]
        })
    };
    let (mut sum, mut best) = ([0_u64; 3], None);
    for last in 0..chunks.len() {
        for (sum, cost) in sum.iter_mut().zip(cost(last)) {
            *sum += cost;
        }
        let Some(first) = (last + 1).checked_sub(count) else { continue };
        let [stuck, ..] = sum;
        if stuck == 0 && best.is_none_or(|(least, _)| sum < least) {
            best = Some((sum, first));
        }
        for (sum, cost) in sum.iter_mut().zip(cost(first)) {
            *sum -= cost;
        }
    }
    best.map(|(_, first)| first)
}
