//! Moves live records together, so that scattered free units become runs
//! (`docs/decisions/015-evacuation.md`).
//!
//! A move is a put of the same bytes with the same version. It needs no step that a put does not
//! have, except that a chain of overflow lines is replaced as a whole.

use std::cell::{Cell as Private, RefCell};
use std::time::{Duration, Instant};

use nearstate_model::{Error, Result, invariant};

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::heap::cell::{self, Cell, CellKind, LINE_FIRST, LINE_WORDS, WORD_HEAD, WORD_RETIRED};
use crate::heap::cell::{CELL_HEADER_BYTES, WORD_VERSION};
use crate::heap::chunk::{ChunkIndex, chunks_used, reserve, state_of};
use crate::heap::class::CLASSES;
use crate::heap::refill::no_room;
use crate::index::bucket::{at_of, entry, hash_tag, is_link, link, load, publish};
use crate::index::lookup::{CHAIN_MAX, hash_of, link_slot, walk_chain};
use crate::index::split::finish_lines;
use crate::layout::{CHUNK_UNITS, Corruption, ordinary_chunks};
use crate::member::Member;
use crate::member::arena::{LockSlot, op, undo, write_undo};
use crate::member::pin::{self, NEVER_READ};
use crate::region::index_table::IndexTable;
use crate::txn::publish::finish_record;

/// The most chunks that one evacuation empties, as a share of the heap: a walk over the index then
/// costs less than the moves that it leads to, and a caller waits for no more than that.
const CHUNKS_SHARE: u64 = 8;

/// The fewest chunks that one evacuation may empty: one in a small heap would not be worth the
/// walk.
const CHUNKS_MIN: usize = 4;

/// The share of the heap by which its free units must grow before an evacuation that made no room
/// is tried again.
const GROWTH_SHARE: u64 = 256;

/// Evacuations for one operation: it may need several cells, each of which needs a run.
const EVACUATIONS_MAX: u32 = 3;

/// How long a caller waits for readers of what it has moved: longer than the time slice of a reader
/// that is not running. What they hold after that comes free later.
const READERS_WAIT_MAX: Duration = Duration::from_millis(100);

/// Buckets of which records are collected before any is looked at, so that their headers arrive
/// together.
const BUCKETS_AHEAD: u64 = 8;

/// An evacuation that goes on: which chunks are being emptied, and how far the walk is.
#[derive(Debug)]
pub struct Evacuation {
    closing: ClosingChunks,
    /// The allocated units of the chunks when it began.
    before: u64,
    namespace: usize,
    bucket: u64,
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
    /// The records of some buckets, to reuse its memory.
    records: RefCell<Vec<u64>>,
    /// The number of records that were moved.
    moved: Private<u64>,
    /// The least class for which there was no room elsewhere.
    full_class: Private<u8>,
}

impl ClosingChunks {
    fn new(chunks: Vec<ChunkIndex>, chunk_count: u64) -> Self {
        let mut bits = vec![0; chunk_count.div_ceil(64) as usize];
        for chunk in &chunks {
            let Some(word) = bits.get_mut((chunk.0 / 64) as usize) else {
                invariant!("{chunk:?} lies outside the heap")
            };
            *word |= 1 << (chunk.0 % 64);
        }
        Self {
            bits,
            chunks,
            records: RefCell::default(),
            moved: Private::new(0),
            full_class: Private::new(CLASSES),
        }
    }

    /// True if an offset lies in one of them.
    fn contains(&self, map: &crate::region::map::Map, at: u64) -> Result<bool, Corruption> {
        let chunk = ChunkIndex::of(map, at)?.0;
        Ok(self.bits.get((chunk / 64) as usize).is_some_and(|word| word >> (chunk % 64) & 1 == 1))
    }
}

impl Member {
    /// After `Full`: moves live records together if that makes room for what was wanted. True if
    /// the operation should run again. `evacuations` counts the calls for one operation.
    ///
    /// While this member has a pin, nothing that it moves could be reused.
    /// [`Member::evacuate_if_due`] does the work later.
    #[cold]
    pub(crate) fn evacuate_after_full(&self, evacuations: u32) -> Result<bool> {
        invariant!(self.has_no_lock(), "records are moved while this member holds a lock");
        if self.has_pin() {
            self.is_evacuation_due.set(!self.chunks_to_empty(self.wanted_units.get())?.is_empty());
            return Ok(false);
        }
        self.is_evacuation_due.set(false);
        let chunks = self.chunks_to_empty(self.wanted_units.get())?;
        let has_room =
            evacuations <= EVACUATIONS_MAX && !chunks.is_empty() && self.evacuate(chunks)?;
        if !has_room {
            self.vain_units.set(self.free_units()?);
        }
        Ok(has_room)
    }

    /// True if an operation found no room while this member had a pin, and moving records can make
    /// some.
    #[inline]
    pub fn is_evacuation_due(&self) -> bool {
        self.is_evacuation_due.get()
    }

    /// Moves the records that [`Member::is_evacuation_due`] tells of, if this member has no pin
    /// now.
    ///
    /// Cost: a walk over all records, and copies of at most an eighth of the heap.
    ///
    /// # Errors
    /// `Forked`, `SessionStopped`, `Stalled`, `Damaged`, `System`. Nothing was lost then.
    #[cold]
    pub fn evacuate_if_due(&self) -> Result<()> {
        self.check_usable()?;
        if !self.has_pin() {
            self.evacuate_after_full(1)?;
        }
        Ok(())
    }

    /// Begins to move the records out of the chunks with the fewest allocated units, if at least
    /// `share_min` percent of the memory in partly used chunks is free. `None` if less is free, or
    /// if this member has a pin. [`Member::continue_evacuation`] does the work.
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
        if self.has_pin() || free < CHUNK_UNITS || free * 100 < units * share_min {
            return Ok(None);
        }
        let chunks = self.chunks_to_empty(1)?;
        if chunks.is_empty() {
            return Ok(None);
        }
        self.operation(|| self.begin(chunks)).map(Some)
    }

    /// Moves the records of some more buckets. True if nothing is left to do: then the chunks are
    /// open again, and what was moved out of them comes free. Does nothing while this member has a
    /// pin.
    ///
    /// Cost: for each bucket 0.1 to 1 us, and the copies of the records that are moved.
    ///
    /// # Errors
    /// `Forked`, `SessionStopped`, `Stalled`, `Damaged`, `System`. The evacuation is over then.
    pub fn continue_evacuation(&self, evacuation: &mut Evacuation, buckets: u64) -> Result<bool> {
        self.check_usable()?;
        if self.has_pin() {
            return Ok(false);
        }
        self.operation(|| {
            let done = self.move_some(evacuation, buckets);
            if matches!(done, Ok(false)) {
                return done;
            }
            self.end(evacuation, done.map(drop))?;
            self.free_all()?;
            Ok(true)
        })
    }

    /// Ends an evacuation that is not over: its chunks are open again.
    ///
    /// # Errors
    /// As [`Member::continue_evacuation`].
    pub fn give_up_evacuation(&self, evacuation: &Evacuation) -> Result<()> {
        self.check_usable()?;
        self.operation(|| self.end(evacuation, Ok(())))
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

    /// The chunks whose records are worth moving to make room for a cell of this many units. None
    /// if they do not fit elsewhere, or if that was tried with as little free memory.
    fn chunks_to_empty(&self, units: u64) -> Result<Vec<ChunkIndex>> {
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
        candidates.retain(|(used, chunk)| {
            (1..CHUNK_UNITS).contains(used) && !chosen.iter().any(|(_, other)| other == chunk)
        });
        candidates.sort_unstable();
        chosen.append(&mut candidates);
        let most = ((ordinary / CHUNKS_SHARE) as usize).max(CHUNKS_MIN);
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
        let mut evacuation = self.begin(chunks)?;
        let done = self.move_some(&mut evacuation, u64::MAX);
        self.end(&evacuation, done.map(drop))?;
        self.wait_for_readers()?;
        self.free_all()?;
        let Evacuation { closing, before, .. } = evacuation;
        Ok(closing.moved.get() != 0 || self.units_of(&closing.chunks)? < before)
    }

    fn begin(&self, chunks: Vec<ChunkIndex>) -> Result<Evacuation> {
        let before = self.units_of(&chunks)?;
        // What this member and others keep in these chunks comes free first.
        self.reclaim()?;
        for chunk in &chunks {
            self.set_closing(*chunk, true)?;
        }
        crash_point!("evacuate.closed");
        let closing = ClosingChunks::new(chunks, self.map().chunks());
        Ok(Evacuation { closing, before, namespace: 0, bucket: 0 })
    }

    fn end(&self, evacuation: &Evacuation, done: Result<()>) -> Result<()> {
        for chunk in &evacuation.closing.chunks {
            self.set_closing(*chunk, false)?;
        }
        crash_point!("evacuate.opened");
        match done {
            // No room is left elsewhere. What was moved is moved.
            Err(Error::Full { .. } | Error::Stalled { .. }) => self.free_pending(),
            other => other,
        }
    }

    /// Waits until no reader can hold what was retired until now, except stalled ones.
    fn wait_for_readers(&self) -> Result<()> {
        let since = Instant::now();
        let retired = pin::birth_epoch(self.epoch());
        loop {
            self.advance()?;
            let is_safe = self.safe_epochs.borrow().recent >= retired + 2;
            if is_safe || since.elapsed() > READERS_WAIT_MAX {
                return Ok(());
            }
            std::thread::yield_now();
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

    /// Sets or clears the bit *closing* of a chunk. A chunk that is busy stays as it is.
    fn set_closing(&self, chunk: ChunkIndex, is_closing: bool) -> Result<()> {
        let done = self.under_chunk(chunk, None, |state| {
            state.is_closing = is_closing && state.used != 0;
            Ok(())
        });
        done.map(drop)
    }

    /// Moves the records of some buckets. True if no bucket is left.
    fn move_some(&self, evacuation: &mut Evacuation, buckets: u64) -> Result<bool> {
        let mut left = buckets;
        while left != 0 {
            if evacuation.namespace >= self.namespace_count()? {
                return Ok(true);
            }
            let index = u32::try_from(evacuation.namespace)
                .map_err(|_| Corruption("too many namespaces"))?;
            let table = self.table(index)?;
            let count = self.bucket_count(table)?;
            let first = evacuation.bucket;
            let end = count.min(first + BUCKETS_AHEAD.min(left));
            if first >= end {
                (evacuation.namespace, evacuation.bucket) = (evacuation.namespace + 1, 0);
                continue;
            }
            self.move_buckets(table, (first, end, count), &evacuation.closing)?;
            evacuation.bucket = end;
            left -= end - first;
            if evacuation.closing.full_class.get() == 0 {
                return Ok(true); // No room for any cell.
            }
        }
        Ok(false)
    }

    /// Moves the records and the overflow lines of the buckets from `first` to `end`.
    fn move_buckets(
        &self,
        table: &IndexTable,
        (first, end, count): (u64, u64, u64),
        closing: &ClosingChunks,
    ) -> Result<()> {
        let pin = self.pin()?;
        let mut records = closing.records.take();
        records.clear();
        for bucket in first..end {
            self.collect_bucket(table, bucket, count, &mut records)?;
        }
        for at in &records {
            self.map().prefetch(*at);
        }
        for at in &records {
            let record = self.cell_at(*at)?;
            if self.is_in(closing, &record)? {
                self.move_record(table, &record, closing)?;
            }
        }
        closing.records.replace(records);
        drop(pin);
        for bucket in first..end {
            self.move_lines(table.bucket_at(self.map(), bucket)?, closing)?;
        }
        Ok(())
    }

    /// True if a record or a block of it lies in a closing chunk.
    fn is_in(&self, closing: &ClosingChunks, record: &Cell<'_>) -> Result<bool, Corruption> {
        let mut is_in = closing.contains(self.map(), record.at())?;
        for index in 0..record.children() {
            is_in |= closing.contains(self.map(), record.child(index)?)?;
        }
        Ok(is_in)
    }

    /// Replaces a record by a copy with the same version, if it is still the current one.
    fn move_record(
        &self,
        table: &IndexTable,
        record: &Cell<'_>,
        closing: &ClosingChunks,
    ) -> Result<()> {
        if !record.is_whole()? {
            return Ok(()); // The check reports it where it is.
        }
        let map = self.map();
        let hash = hash_of(map, record.key()?)?;
        let copy = match self.copy_record(record, closing) {
            Ok(copy) => copy,
            // The records of other sizes may find room.
            Err(Error::Full { .. }) => return self.free_pending(),
            Err(error) => {
                self.free_pending()?;
                return Err(error);
            }
        };
        crash_point!("evacuate.copied");
        let (old, new) = (entry(hash_tag(hash), record.at()), entry(hash_tag(hash), copy));
        let (bucket_at, payload) = match self.lock_bucket(table, hash) {
            Ok(locked) => locked,
            Err(error) => {
                self.free_pending()?;
                return Err(error);
            }
        };
        let mut slot = 0;
        let found = walk_chain(map, bucket_at, |at, word| {
            slot = if word == old { at } else { slot };
            Ok(slot == 0)
        });
        let done = found.and_then(|()| {
            if slot != 0 {
                let arena = self.arena();
                write_undo(&arena, slot, old, new, op::RECORD);
                crash_point!("publish.recorded");
                publish(map.word(slot)?, new);
                crash_point!("publish.committed");
                finish_record(&arena, old, new)?;
                closing.moved.set(closing.moved.get() + 1);
                crash_point!("evacuate.moved");
            }
            Ok(())
        });
        self.release(bucket_at, LockSlot::Bucket, payload)?;
        if slot == 0 {
            self.free_pending()?;
        }
        done?;
        // The old cells come free during the walk, so that its end takes no longer than any other
        // part of it.
        self.trim_queue(&self.arena(), cell::class_at(map, record.at())?)
    }

    /// A pending copy of a record. Its blocks in closing chunks are copied too.
    fn copy_record(&self, record: &Cell<'_>, closing: &ClosingChunks) -> Result<u64> {
        let map = self.map();
        let copy = self.copy_cell(record, closing)?;
        let mut has_moved_blocks = false;
        for index in 0..record.children() {
            let child = Cell::new(map, record.child(index)?)?;
            // The stripes of a counter change in place, at any time.
            if child.kind()? == CellKind::Block && closing.contains(map, child.at())? {
                let block = self.copy_cell(&child, closing)?;
                let offset_at = copy + CELL_HEADER_BYTES + 8 * index;
                map.write(offset_at, &block.to_le_bytes())?;
                has_moved_blocks = true;
            }
        }
        if has_moved_blocks {
            let body_crc = crc32fast::hash(Cell::new(map, copy)?.body()?);
            cell::seal(map, copy, record.version(), body_crc)?;
        }
        Ok(copy)
    }

    /// A pending copy of a cell.
    fn copy_cell(&self, from: &Cell<'_>, closing: &ClosingChunks) -> Result<u64> {
        let map = self.map();
        let bytes = from.body()?.len() as u64 + CELL_HEADER_BYTES - WORD_VERSION;
        let to = self.allocate_elsewhere(cell::class_at(map, from.at())?, closing)?;
        map.write(to + WORD_VERSION, map.bytes(from.at() + WORD_VERSION, bytes)?)?;
        let head = cell::word(map, from.at(), WORD_HEAD)?.load(Ordering::Relaxed);
        cell::word(map, to, WORD_HEAD)?.store(head, Ordering::Relaxed);
        Ok(to)
    }

    /// Allocates a cell that this member has not retired: such a one may lie in a closing chunk.
    fn allocate_elsewhere(&self, class: u8, closing: &ClosingChunks) -> Result<u64> {
        if class >= closing.full_class.get() {
            return Err(no_room()); // Without the search, which was in vain.
        }
        let arena = self.arena();
        let queue = arena.queue(class)?;
        let head = queue.head.load(Ordering::Relaxed);
        // Cells that came from a fragmented chunk stand before those that were retired.
        if head != 0
            && cell::word(self.map(), head, WORD_RETIRED)?.load(Ordering::Relaxed) == NEVER_READ
        {
            arena.pop(queue, head)?;
            return Ok(head);
        }
        self.allocate_fresh(class).inspect_err(|error| {
            if matches!(error, Error::Full { .. }) {
                closing.full_class.set(class);
            }
        })
    }

    /// Builds the overflow lines of a bucket anew if one of them lies in a closing chunk. A bucket
    /// whose lock is busy keeps its lines.
    fn move_lines(&self, bucket_at: u64, closing: &ClosingChunks) -> Result<()> {
        let slot = link_slot(bucket_at);
        if !is_link(load(self.map().word(slot)?)) {
            return Ok(());
        }
        let Some(payload) = self.try_acquire(bucket_at, LockSlot::Bucket)? else { return Ok(()) };
        let done = self.move_lines_locked(slot, closing);
        self.release(bucket_at, LockSlot::Bucket, payload)?;
        if done.is_err() && self.arena().get(undo::OP) == op::NONE {
            self.free_pending()?;
        }
        done
    }

    fn move_lines_locked(&self, slot: u64, closing: &ClosingChunks) -> Result<()> {
        let map = self.map();
        let old = load(map.word(slot)?);
        let (mut next, mut entries, mut is_in) = (old, Vec::new(), false);
        let mut lines = 0;
        while is_link(next) {
            let line_at = at_of(next);
            is_in |= closing.contains(map, line_at)?;
            let words = map.words::<{ LINE_WORDS as usize }>(line_at + LINE_FIRST)?;
            next = 0;
            for word in words.iter().map(load) {
                if is_link(word) {
                    next = word;
                } else if word != 0 {
                    entries.push(word);
                }
            }
            lines += 1;
            if lines > CHAIN_MAX {
                return Err(Error::from(Corruption("a bucket's chain has no end")));
            }
        }
        if !is_in || entries.is_empty() {
            return Ok(());
        }
        let new = self.build_chain(&entries)?;
        invariant!(is_link(new) && new != link(0), "a chain of {} entries", entries.len());
        let arena = self.arena();
        write_undo(&arena, slot, old, new, op::LINES);
        crash_point!("lines.recorded");
        publish(map.word(slot)?, new);
        crash_point!("lines.replaced");
        finish_lines(&arena, old)?;
        Ok(())
    }
}

/// As many neighbours as a large cell needs, with the fewest allocated units among all such. None
/// for a cell that fits into one chunk.
fn neighbours(chunks: &[(u64, ChunkIndex)], count: usize) -> Vec<(u64, ChunkIndex)> {
    if count < 2 {
        return Vec::new();
    }
    let used = |window: &[(u64, ChunkIndex)]| window.iter().map(|(used, _)| *used).sum::<u64>();
    chunks.windows(count).min_by_key(|window| used(window)).unwrap_or_default().to_vec()
}
