//! Moves live records together, so that scattered free units become runs
//! (`docs/decisions/015-evacuation.md`).
//!
//! A move is a put of the same bytes with the same version. It needs no step that a put does not
//! have, except that a chain of overflow lines is replaced as a whole.

mod lent;
mod waiting;
mod joining;
mod moving;

use std::cell::{Cell as Private, RefCell};
use std::collections::HashSet;
use std::time::{Duration, Instant};

use nearstate_model::{Error, Result, invariant};

use crate::crash::crash_point;
use crate::evacuation::moving::{SWEPT_BUCKETS, SWEPT_BUCKETS_BACKGROUND};
use crate::heap::chunk::{ChunkIndex, chunks_used, reserve, state_of};
use crate::heap::class::CLASSES;
use crate::heap::held;
use crate::layout::{CHUNK_UNITS, Corruption, ordinary_chunks};
use crate::member::pin;
use crate::member::{LOCK_WAIT_SHORT, Member};

/// The most chunks that an evacuation empties in the background, as a share of the heap.
const BACKGROUND_SHARE: u64 = 8;

/// The most chunks that an operation empties before it runs again, unless its cell needs more
/// neighbours: 2 MiB, 30 ms if all of it are records of 64 bytes.
const CHUNKS_AT_ONCE: usize = 8;

/// The share of the heap by which its free units must grow before an evacuation that made no room
/// is tried again.
const GROWTH_SHARE: u64 = 256;

/// Looks at a heap in which no chunk came free before it is tried again although no chunk is
/// fuller or emptier: a bucket may have been locked, and what a session reuses changes its place.
const LOOKS_SETTLED: u32 = 64;

/// Evacuations for one operation: it may need several cells, each of which needs a run.
const EVACUATIONS_MAX: u32 = 3;

/// How long a caller waits for readers of what it has moved: longer than the time slice of a reader
/// that is not running. What they hold after that comes free later.
const READERS_WAIT_MAX: Duration = Duration::from_millis(100);

/// The pause between two looks at the pins. Each look advances the epoch, and a reader that many
/// epochs have passed counts as stalled.
const READERS_PAUSE: Duration = Duration::from_micros(100);

const _: () = assert!(BACKGROUND_SHARE != 0 && GROWTH_SHARE != 0, "shares divide");
const _: () = assert!(READERS_PAUSE.as_nanos() < READERS_WAIT_MAX.as_nanos(), "pauses end");

/// An evacuation in progress: its chunks, and how far it is.
#[derive(Debug)]
pub struct Evacuation {
    closing: ClosingChunks,
    /// The allocated units of the chunks when it began.
    before: u64,
    /// The chunks of the heap in use when it began.
    in_use: usize,
    /// The place of the current chunk among the closing ones.
    chunk: usize,
    /// The first unit of it that was not looked at.
    unit: u64,
}

impl Evacuation {
    /// The number of records that it has moved.
    pub fn moved(&self) -> u64 {
        self.closing.moved.get()
    }
}

/// The chunks that are being emptied: one bit for each chunk of the heap.
#[derive(Debug)]
struct ClosingChunks {
    bits: Vec<u64>,
    chunks: Vec<ChunkIndex>,
    /// The number of records that were moved.
    moved: Private<u64>,
    /// The records that could not be moved.
    kept: RefCell<HashSet<u64>>,
    /// The least class for which there was no room elsewhere.
    full_class: Private<u8>,
    /// A unit is an overflow line without entries.
    has_empty_line: Private<bool>,
    /// Records are moved away from behind a free cell: into free cells of their class only, and
    /// their old cells are set aside, from where they come free first.
    is_join: bool,
}

impl ClosingChunks {
    fn new(chunks: Vec<ChunkIndex>, chunk_count: u64) -> Self {
        let mut bits = vec![0; chunk_count.div_ceil(64) as usize];
        for chunk in &chunks {
            let Some(word) = bits.get_mut((chunk.0 / 64) as usize) else {
                invariant!("{chunk:?} lies outside the heap")
            };
            invariant!(*word >> (chunk.0 % 64) & 1 == 0, "{chunk:?} is emptied twice at once");
            *word |= 1 << (chunk.0 % 64);
        }
        Self {
            bits,
            chunks,
            moved: Private::new(0),
            kept: RefCell::default(),
            full_class: Private::new(CLASSES),
            has_empty_line: Private::new(false),
            is_join: false,
        }
    }

    /// No chunk: some records are moved away from behind a free cell.
    fn of_join() -> Self {
        Self { is_join: true, ..Self::new(Vec::new(), 0) }
    }

    /// True if an offset lies in one of them.
    fn contains(&self, map: &crate::region::map::Map, at: u64) -> Result<bool, Corruption> {
        let chunk = ChunkIndex::of(map, at)?.0;
        debug_assert!(
            self.is_join || chunk < 64 * self.bits.len() as u64,
            "each chunk of the heap has a bit"
        );
        Ok(self.bits.get((chunk / 64) as usize).is_some_and(|word| word >> (chunk % 64) & 1 == 1))
    }
}

impl Member {
    /// As [`Member::evacuate_after_full`]. A region that is damaged somewhere has no room; what the
    /// operation needs may be sound.
    #[cold]
    pub(crate) fn makes_room(&self, evacuations: u32) -> Result<bool> {
        if self.wanted_units.get() == 0 {
            return Ok(false); // It is not the heap that is full.
        }
        let Ok(has_room) = self.evacuate_after_full(evacuations) else {
            self.check_usable()?;
            self.check_not_truncated()?;
            self.free_pending()?;
            return Ok(false);
        };
        if !self.has_pin() {
            self.wanted_units.set(0);
        }
        Ok(has_room)
    }

    /// After `Full`: moves live records together if that makes room for what was wanted. True if
    /// the operation should run again. `evacuations` counts the calls for one operation.
    ///
    /// While this member has a pin, nothing that it moves could be reused.
    /// [`Member::evacuate_if_due`] does the work later.
    #[cold]
    fn evacuate_after_full(&self, evacuations: u32) -> Result<bool> {
        invariant!(self.has_no_lock(), "records are moved while this member holds a lock");
        // Before records are moved: what the log holds costs only its consumers.
        let has_given_up = held::give_up_log(self.map())?;
        if self.has_pin() {
            let chunks = self.chunks_to_empty(self.wanted_units.get(), CHUNKS_AT_ONCE)?;
            self.is_evacuation_due.set(has_given_up || !chunks.is_empty());
            return Ok(false);
        }
        if has_given_up && evacuations <= EVACUATIONS_MAX {
            self.operation(|| self.reclaim())?;
            return Ok(true);
        }
        self.is_evacuation_due.set(false);
        if evacuations <= 1 {
            self.evacuated.tried_chunks.borrow_mut().clear();
        }
        let (mut has_room, wanted) = (false, self.wanted_units.get());
        // One that moves nothing, because only large cells are in its chunks, is followed by one of
        // others.
        for _ in evacuations..=EVACUATIONS_MAX {
            let chunks = self.chunks_to_empty(wanted, CHUNKS_AT_ONCE)?;
            has_room = !chunks.is_empty() && self.evacuate(chunks)?;
            if has_room {
                break;
            }
        }
        if !has_room {
            self.vain_units.set(self.free_units()?);
        }
        Ok(has_room)
    }

    /// True if an operation found no room while this member had a pin, and moving records can make
    /// some.
    #[inline]
    pub fn is_evacuation_due(&self) -> bool {
        self.is_evacuation_due.get() && !self.has_pin()
    }

    /// Moves the records that [`Member::is_evacuation_due`] tells of. A failure makes no room and
    /// is no failure of the caller.
    ///
    /// Cost: that of emptying [`CHUNKS_AT_ONCE`] chunks.
    ///
    /// # Errors
    /// `Forked`, `SessionStopped`, `Damaged` (the file is truncated). Nothing was lost then.
    #[cold]
    pub fn evacuate_if_due(&self) -> Result<()> {
        self.check_usable()?;
        if self.is_evacuation_due() {
            self.makes_room(1)?;
        }
        self.is_evacuation_due.set(false);
        Ok(())
    }

    /// Moving records has not made room for a transaction that was run again after it: it is not
    /// tried again until more is free.
    ///
    /// # Errors
    /// `Damaged`.
    #[cold]
    pub fn note_vain_evacuation(&self) -> Result<()> {
        self.is_evacuation_due.set(false);
        self.vain_units.set(self.free_units()?);
        Ok(())
    }

    /// Begins to move the records out of the chunks with the fewest allocated units, if at least
    /// `share_min` percent of the memory in partly used chunks is free. `None` if less is free, if
    /// this member has a pin, or if its last evacuation made no chunk free and since then neither
    /// has a chunk become fuller or emptier nor has the log let go of records; but every 64th look
    /// tries. [`Member::continue_evacuation`] does the work.
    ///
    /// Cost: the words of all chunks, 32 bytes for each MiB of the heap.
    ///
    /// # Errors
    /// `Forked`, `SessionStopped`, `Damaged`, `System`.
    pub fn begin_evacuation(&self, share_min: u64) -> Result<Option<Evacuation>> {
        self.check_usable()?;
        let (mut free, mut units) = (0, 0);
        for chunk in (0..chunks_used(self.map())?).map(ChunkIndex) {
            let state = state_of(self.map(), chunk)?;
            if state.used != 0 {
                (free, units) = (free + state.free(), units + CHUNK_UNITS);
            }
        }
        invariant!(free <= units, "{free} units are free in chunks of {units}");
        if self.has_pin() || free < CHUNK_UNITS || free * 100 < units * share_min {
            return Ok(None);
        }
        let (settled, looks) = self.settled_heap.get();
        if settled != 0 && looks != 0 && settled == self.heap_filling()? {
            self.settled_heap.set((settled, looks - 1));
            return Ok(None);
        }
        let most = ordinary_chunks(self.map().chunks()) / BACKGROUND_SHARE;
        let chunks = self.chunks_to_empty(1, CHUNKS_AT_ONCE.max(most as usize))?;
        if chunks.is_empty() {
            return Ok(None);
        }
        self.operation(|| self.begin(chunks)).map(Some)
    }

    /// Moves what is live in some more units of 64 bytes. True if nothing is left to do, or if this
    /// member has a pin: then the chunks are open again, and what was moved out of them comes free.
    ///
    /// Cost: for each allocated unit 10 to 100 ns, and the copies of the records that are moved.
    ///
    /// # Errors
    /// `Forked`, `SessionStopped`, `Stalled`, `Damaged`, `System`. The evacuation is over then.
    pub fn continue_evacuation(&self, evacuation: &mut Evacuation, units: u64) -> Result<bool> {
        self.check_usable()?;
        let mut has_begun = false;
        let done = self.operation(|| {
            has_begun = true;
            let has_pin = self.has_pin();
            let done = if has_pin { Ok(true) } else { self.move_some(evacuation, units) };
            if matches!(done, Ok(false)) {
                return done;
            }
            let is_whole = !has_pin && done.is_ok();
            let done = done.and_then(|_| {
                if has_pin {
                    Ok(())
                } else {
                    self.sweep_if_due(evacuation, SWEPT_BUCKETS_BACKGROUND)
                }
            });
            self.end(evacuation, done)?;
            self.free_all()?;
            // One that moves records to and fro would be repeated for ever.
            let is_vain = is_whole && self.chunks_in_use()? >= evacuation.in_use;
            let settled = if is_vain { self.heap_filling()? } else { 0 };
            self.settled_heap.set((settled, LOOKS_SETTLED));
            Ok(true)
        });
        if !has_begun {
            self.open_chunks(evacuation)?;
        }
        done
    }

    /// Ends an evacuation that is not over: its chunks are open again.
    ///
    /// # Errors
    /// As [`Member::continue_evacuation`].
    pub fn give_up_evacuation(&self, evacuation: &Evacuation) -> Result<()> {
        self.check_usable()?;
        self.open_chunks(evacuation)
    }

    /// The number of ordinary chunks with allocated units.
    fn chunks_in_use(&self) -> Result<usize> {
        let mut count = 0;
        for chunk in (0..chunks_used(self.map())?).map(ChunkIndex) {
            count += usize::from(state_of(self.map(), chunk)?.used != 0);
        }
        Ok(count)
    }

    /// A check value of how full each chunk is, and of what the log names, which cannot be moved.
    /// It is not 0.
    fn heap_filling(&self) -> Result<u64> {
        let mut sum = held::floor(self.map())?;
        for chunk in (0..chunks_used(self.map())?).map(ChunkIndex) {
            let used = state_of(self.map(), chunk)?.used;
            // A unit more and a unit less elsewhere must not cancel out.
            sum = (sum ^ used).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        Ok(sum | 1)
    }

    /// The free units that ordinary allocations may use.
    fn free_units(&self) -> Result<u64> {
        let map = self.map();
        let used = chunks_used(map)?;
        let mut free = (ordinary_chunks(map.chunks()) - used) * CHUNK_UNITS;
        for chunk in (0..used).map(ChunkIndex) {
            free += state_of(map, chunk)?.free();
        }
        for chunk in reserve(map) {
            free = free.saturating_sub(state_of(map, chunk)?.used);
        }
        Ok(free)
    }

    /// The chunks whose records are worth moving to make room for a cell of this many units: not
    /// more than `most`, or as many as the cell needs. None if they do not fit elsewhere, or if
    /// that was tried with as little free memory.
    fn chunks_to_empty(&self, units: u64, most: usize) -> Result<Vec<ChunkIndex>> {
        invariant!(units != 0, "chunks are emptied, and no room is wanted");
        let map = self.map();
        let ordinary = ordinary_chunks(map.chunks());
        let free = self.free_units()?;
        let vain = self.vain_units.get().min(free);
        self.vain_units.set(vain);
        if free < units + units / 4
            || vain != 0 && free < vain + ordinary * CHUNK_UNITS / GROWTH_SHARE
        {
            return Ok(Vec::new());
        }
        let used = |chunk: ChunkIndex| state_of(map, chunk).map(|state| state.used);
        let mut candidates = Vec::new();
        for chunk in (0..chunks_used(map)?).map(ChunkIndex) {
            candidates.push((used(chunk)?, chunk));
        }
        let mut chosen = neighbours(&candidates, units.div_ceil(CHUNK_UNITS) as usize);
        let tried = self.evacuated.tried_chunks.borrow();
        candidates.retain(|(used, chunk)| {
            (1..CHUNK_UNITS).contains(used)
                && !tried.contains(&chunk.0)
                && !chosen.iter().any(|(_, other)| other == chunk)
        });
        drop(tried);
        candidates.sort_unstable();
        chosen.append(&mut candidates);
        let most = most.max(units.div_ceil(CHUNK_UNITS) as usize);
        let (mut moved, mut room) = (0, free);
        let mut chunks = Vec::new();
        for (used, chunk) in chosen.into_iter().take(most) {
            // What is free in the chunk itself is no room for its records. An eighth is lost to
            // runs that are too short.
            (moved, room) = (moved + used, room.saturating_sub(CHUNK_UNITS - used));
            if moved + moved / 8 > room {
                break;
            }
            chunks.push(chunk);
        }
        Ok(chunks)
    }

    /// Moves the records out of some chunks. True if one of them has become empty, or some of its
    /// units free.
    fn evacuate(&self, chunks: Vec<ChunkIndex>) -> Result<bool> {
        self.operation(|| self.evacuate_chunks(chunks))
    }

    fn evacuate_chunks(&self, chunks: Vec<ChunkIndex>) -> Result<bool> {
        invariant!(!self.has_pin(), "records are moved under a pin, so none of them comes free");
        invariant!(self.is_in_operation(), "records are moved outside of an operation");
        let mut evacuation = self.begin(chunks)?;
        let done = self.move_some(&mut evacuation, u64::MAX);
        let done = done.and_then(|_| self.sweep_if_due(&evacuation, SWEPT_BUCKETS));
        self.end(&evacuation, done)?;
        self.wait_for_readers(READERS_WAIT_MAX)?;
        self.free_all()?;
        let Evacuation { closing, before, .. } = evacuation;
        // What is left in them cannot be moved: the next evacuation of this operation takes others.
        self.evacuated.tried_chunks.borrow_mut().extend(closing.chunks.iter().map(|chunk| chunk.0));
        Ok(closing.moved.get() != 0 || self.units_of(&closing.chunks)? < before)
    }

    /// Removes empty overflow lines of at most this many buckets, if one was found.
    fn sweep_if_due(&self, evacuation: &Evacuation, most: u64) -> Result<()> {
        let closing = &evacuation.closing;
        if closing.has_empty_line.get() { self.remove_empty_lines(closing, most) } else { Ok(()) }
    }

    fn begin(&self, chunks: Vec<ChunkIndex>) -> Result<Evacuation> {
        invariant!(self.is_in_operation(), "chunks are closed outside of an operation");
        invariant!(self.has_no_lock(), "an evacuation begins while this member holds a lock");
        invariant!(!chunks.is_empty(), "an evacuation empties no chunk");
        let before = self.units_of(&chunks)?;
        // What this member and others keep in these chunks comes free first.
        self.reclaim()?;
        let closing = ClosingChunks::new(chunks, self.map().chunks());
        let in_use = self.chunks_in_use()?;
        let evacuation = Evacuation { closing, before, in_use, chunk: 0, unit: 0 };
        let mut closed = Ok(());
        for chunk in &evacuation.closing.chunks {
            closed = closed.and_then(|()| self.set_closing(*chunk, true));
        }
        crash_point!("evacuate.closed");
        if closed.is_err() {
            self.end(&evacuation, Ok(()))?;
        }
        closed.map(|()| evacuation)
    }

    /// Clears the bit *closing* of the chunks. Changes no queue, so it is no operation that others
    /// delay who take cells of this member.
    fn open_chunks(&self, evacuation: &Evacuation) -> Result<()> {
        // `set_closing` waits: with a lock held, two members could wait for each other.
        invariant!(self.has_no_lock(), "chunks are opened while this member holds a lock");
        let mut opened = Ok(());
        for chunk in &evacuation.closing.chunks {
            opened = opened.and(self.set_closing(*chunk, false));
        }
        crash_point!("evacuate.opened");
        opened
    }

    fn end(&self, evacuation: &Evacuation, done: Result<()>) -> Result<()> {
        match done.and(self.open_chunks(evacuation)) {
            // No room is left elsewhere. What was moved is moved.
            Err(Error::Full { .. } | Error::Stalled { .. }) => self.free_pending(),
            other => other,
        }
    }

    /// Waits until no reader can hold what was retired until now, except stalled ones.
    fn wait_for_readers(&self, most: Duration) -> Result<()> {
        invariant!(!self.has_pin(), "a member waits until its own pin has ended");
        let since = Instant::now();
        let retired = pin::birth_epoch(self.epoch());
        self.advance()?;
        let stalled = self.safe_epochs.borrow().stalled.clone();
        loop {
            self.advance()?;
            if self.safe_epochs.borrow().is_safe_but_for(retired, &stalled)
                || since.elapsed() > most
            {
                return Ok(());
            }
            std::thread::park_timeout(READERS_PAUSE);
        }
    }

    /// The allocated units of some chunks.
    fn units_of(&self, chunks: &[ChunkIndex]) -> Result<u64> {
        let mut units = 0;
        for chunk in chunks {
            units += state_of(self.map(), *chunk)?.used;
        }
        Ok(units)
    }

    /// Sets or clears the bit *closing* of a chunk. A chunk that is busy is not closed, and waited
    /// for before it is opened: only one whose holder is stopped stays closed.
    fn set_closing(&self, chunk: ChunkIndex, is_closing: bool) -> Result<()> {
        let wait_max = if is_closing { None } else { Some(LOCK_WAIT_SHORT) };
        let done = self.under_chunk(chunk, wait_max, |state| {
            debug_assert!(self.is_in_operation() || !is_closing, "a chunk closes in no operation");
            state.is_closing = is_closing && state.used != 0;
            Ok(())
        });
        done.map(drop)
    }
}

/// As many neighbours as a large cell needs, with the fewest allocated units among all such. None
/// for a cell that fits into one chunk.
fn neighbours(chunks: &[(u64, ChunkIndex)], count: usize) -> Vec<(u64, ChunkIndex)> {
    if count < 2 {
        return Vec::new();
    }
    let Some(last) = chunks.len().checked_sub(count) else { return Vec::new() };
    let used = |place: usize| chunks.get(place).map_or(0, |(used, _)| *used);
    let mut sum: u64 = (0..count).map(used).sum();
    let mut best = (sum, 0);
    for first in 1..=last {
        sum = sum - used(first - 1) + used(first + count - 1);
        best = best.min((sum, first));
    }
    invariant!(best.1 + count <= chunks.len(), "neighbours lie outside the chunks that were read");
    chunks.iter().skip(best.1).take(count).copied().collect()
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;
