//! Moves live records together, so that scattered free units become runs
//! (`docs/decisions/015-evacuation.md`).
//!
//! A move is a put of the same bytes with the same version. It needs no step that a put does not
//! have, except that a chain of overflow lines is replaced as a whole.

mod lent;
mod waiting;
mod joining;
mod moving;
mod choice;

use std::cell::{Cell as Private, RefCell};
use std::collections::HashSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use nearstate_model::{Error, Result, invariant};

use crate::crash::crash_point;
use crate::evacuation::choice::{Choice, Survey, needs_run};
use crate::evacuation::moving::{SWEPT_BUCKETS, SWEPT_BUCKETS_BACKGROUND};
use crate::heap::chunk::{ChunkIndex, chunks_used, state_of};
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

/// Looks at a heap in which no chunk came free before it is tried again although no chunk is
/// fuller or emptier: a bucket may have been locked, and what a session reuses changes its place.
const LOOKS_SETTLED: u32 = 64;

/// Evacuations for one operation: it may need several cells, each of which needs a run.
const EVACUATIONS_MAX: u32 = 3;

/// The same for cells above 8 KiB. Each empties other chunks than the ones before. What cannot be
/// moved is looked for before, so few are in vain; the bound is for what changes meanwhile.
const EVACUATIONS_FOR_RUNS_MAX: u32 = 8;

/// How long a caller waits for readers of what it has moved: longer than the time slice of a reader
/// that is not running. What they hold after that comes free later.
const READERS_WAIT_MAX: Duration = Duration::from_millis(100);

/// The pause between two looks at the pins. Each look advances the epoch, and a reader that many
/// epochs have passed counts as stalled.
const READERS_PAUSE: Duration = Duration::from_micros(100);

const _: () = assert!(BACKGROUND_SHARE != 0, "a share divides");
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

/// What an evacuation has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evacuated {
    /// The chunks have as many allocated units as before.
    Nothing,
    /// Some units are free, but no run is as long as was wanted, or that was not looked for.
    Units,
    /// A long run.
    Run,
    /// Readers hold what was moved.
    Held,
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
        let wanted = self.wanted_units.get();
        if self.has_pin() {
            let choice = self.chunks_to_empty(wanted, CHUNKS_AT_ONCE, Survey::No)?;
            self.is_evacuation_due.set(has_given_up || !choice.chunks.is_empty());
            return Ok(false);
        }
        if has_given_up && evacuations <= EVACUATIONS_MAX {
            self.operation(|| self.reclaim())?;
            return Ok(true);
        }
        self.is_evacuation_due.set(false);
        if evacuations <= 1 {
            self.evacuated.tried_chunks.borrow_mut().clear();
            self.evacuated.wait_until.set(None);
        }
        if needs_run(wanted) {
            self.makes_run(evacuations, wanted)
        } else {
            self.makes_free_units(evacuations, wanted)
        }
    }

    /// As `evacuate_after_full`, for a cell of which many fit into a chunk.
    fn makes_free_units(&self, evacuations: u32, units: u64) -> Result<bool> {
        // One that moves nothing, because only large cells are in its chunks, is followed by one of
        // others.
        for _ in evacuations..=EVACUATIONS_MAX {
            let choice = self.chunks_to_empty(units, CHUNKS_AT_ONCE, Survey::No)?;
            if choice.chunks.is_empty() {
                break;
            }
            if self.operation(|| self.evacuate(choice, units))? != Evacuated::Nothing {
                return Ok(true);
            }
        }
        self.note_vain(units)?;
        Ok(false)
    }

    /// As `evacuate_after_full`, for a cell that needs a run of its own. If the bound ends it
    /// before all chunks were tried, the next operation that is refused continues.
    fn makes_run(&self, evacuations: u32, units: u64) -> Result<bool> {
        let left = &self.evacuated.chunks_left;
        for _ in evacuations..=EVACUATIONS_FOR_RUNS_MAX {
            let choice = self.chunks_to_empty(units, CHUNKS_AT_ONCE, Survey::Yes)?;
            let all = left.get().unwrap_or(ordinary_chunks(self.map().chunks()));
            if choice.chunks.is_empty() && !choice.is_partial || all == 0 {
                self.note_vain(units)?;
                return Ok(false);
            }
            if choice.is_partial {
                break;
            }
            left.set(Some(all.saturating_sub(choice.chunks.len() as u64)));
            match self.operation(|| self.evacuate(choice, units))? {
                Evacuated::Run => {
                    left.set(None);
                    return Ok(true);
                }
                Evacuated::Units | Evacuated::Nothing => {}
                Evacuated::Held => break,
            }
        }
        // A refusal that is remembered would end the work.
        self.refusals.is_incomplete.set(true);
        Ok(false)
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
        self.note_vain(self.wanted_units.get().max(1))
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
        if looks == 0 {
            self.forget_surveys();
        }
        let most = ordinary_chunks(self.map().chunks()) / BACKGROUND_SHARE;
        let most = CHUNKS_AT_ONCE.max(most as usize);
        let chunks = self.chunks_to_empty(1, most, Survey::No)?.chunks;
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
            if is_whole {
                self.note_result(&evacuation.closing)?;
            }
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

    /// Moves the records out of some chunks, to make room for a cell of so many units.
    fn evacuate(&self, choice: Choice, units: u64) -> Result<Evacuated> {
        invariant!(!self.has_pin(), "records are moved under a pin, so none of them comes free");
        invariant!(self.is_in_operation(), "records are moved outside of an operation");
        let Choice { chunks, window, .. } = choice;
        let mut evacuation = self.begin(chunks)?;
        self.evacuated.window.replace(window.clone());
        let done = self.move_some(&mut evacuation, u64::MAX);
        self.evacuated.window.take();
        let done = done.and_then(|_| self.sweep_if_due(&evacuation, SWEPT_BUCKETS));
        self.end(&evacuation, done)?;
        let until = self.evacuated.wait_until.get();
        let until = until.unwrap_or_else(|| Instant::now() + READERS_WAIT_MAX);
        self.evacuated.wait_until.set(Some(until));
        let most = until.saturating_duration_since(Instant::now());
        let have_left = self.wait_for_readers(most)?;
        self.free_all()?;
        let Evacuation { closing, before, .. } = evacuation;
        // What is left in them cannot be moved: the next evacuation of this operation takes others.
        self.evacuated.tried_chunks.borrow_mut().extend(closing.chunks.iter().map(|chunk| chunk.0));
        if have_left {
            self.note_result(&closing)?;
        }
        if needs_run(units) && self.has_run(&closing.chunks, window, units)? {
            return Ok(Evacuated::Run);
        }
        let is_freer = closing.moved.get() != 0 || self.units_of(&closing.chunks)? < before;
        Ok(match (have_left, is_freer) {
            (false, _) if needs_run(units) => Evacuated::Held,
            (_, true) => Evacuated::Units,
            (_, false) => Evacuated::Nothing,
        })
    }

    /// Remembers what stays in the chunks, unless it was room that was missing.
    fn note_result(&self, closing: &ClosingChunks) -> Result<()> {
        if closing.full_class.get() == CLASSES {
            self.note_emptied(&closing.chunks)
        } else {
            Ok(())
        }
    }

    /// True if neighbours are empty, or if one of the chunks may have a run of so many units.
    fn has_run(&self, chunks: &[ChunkIndex], window: Range<u64>, units: u64) -> Result<bool> {
        let is_window = !window.is_empty();
        let end = chunks_used(self.map())?;
        for chunk in window.take_while(|chunk| *chunk < end).map(ChunkIndex) {
            if state_of(self.map(), chunk)?.used != 0 {
                return Ok(false);
            }
        }
        let mut has_run = is_window;
        for chunk in chunks {
            has_run |= state_of(self.map(), *chunk)?.longest >= units;
        }
        Ok(has_run)
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

    /// Waits until no reader can hold what was retired until now, except stalled ones. False if
    /// others still can.
    fn wait_for_readers(&self, most: Duration) -> Result<bool> {
        invariant!(!self.has_pin(), "a member waits until its own pin has ended");
        let since = Instant::now();
        let retired = pin::birth_epoch(self.epoch());
        self.advance()?;
        let stalled = self.safe_epochs.borrow().stalled.clone();
        loop {
            self.advance()?;
            let is_safe = self.safe_epochs.borrow().is_safe_but_for(retired, &stalled);
            if is_safe || since.elapsed() > most {
                return Ok(is_safe);
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

#[cfg(not(loom))]
#[cfg(test)]
mod tests;
