//! Moves the records, blocks and overflow lines of some units out of closing chunks.

use nearstate_model::{Error, Result, invariant};

use super::{ClosingChunks, Evacuation};
use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::heap::cell::{self, Cell, CellKind, LINE_FIRST, LINE_WORDS, WORD_HEAD, WORD_RETIRED};
use crate::heap::cell::{CELL_HEADER_BYTES, WORD_VERSION};
use crate::heap::chunk::{ChunkIndex, chunks_used, state_of};
use crate::heap::class::{self, CLASSES};
use crate::heap::held;
use crate::heap::refill::no_room;
use crate::heap::reuse::retired_word;
use crate::index::bucket::{
    WORDS, at_of, depth_of, entry, hash_tag, is_intent, is_link, link, load, publish,
};
use crate::index::lookup::{CHAIN_MAX, find_bucket, hash_of, link_slot, walk_chain};
use crate::index::split::finish_lines;
use crate::layout::{CHUNK_UNITS, Corruption, LINE, ordinary_chunks};
use crate::member::Member;
use crate::member::arena::{LockSlot, close_undo_record, op, undo, write_undo};
use crate::member::pin::{self, NEVER_READ};
use crate::region::index_table::IndexTable;
use crate::region::linear_hash::step;
use crate::txn::publish::finish_record;

/// The class of overflow lines.
const CLASS_LINE: u8 = 0;
const _: () = assert!(class::bytes_of(CLASS_LINE) == LINE, "an overflow line is a line");

/// Buckets whose chains an evacuation looks at for empty lines before its operation runs again: 4
/// MiB of the index, a few milliseconds.
pub(super) const SWEPT_BUCKETS: u64 = 1 << 16;

/// The same for one in the background, whose core serves others: some tens of microseconds.
pub(super) const SWEPT_BUCKETS_BACKGROUND: u64 = 1 << 10;

/// What is live at a unit, and where the index leads to it.
pub(super) enum LiveCell<'a> {
    /// A record.
    Record(&'a IndexTable, Cell<'a>),
    /// An overflow line of the bucket at this offset.
    Line(u64),
    /// An overflow line without entries, which does not say to which bucket it belongs.
    EmptyLine,
}

impl Member {
    /// Moves what is live in some units of the closing chunks. True if no unit is left.
    ///
    /// Only the index says what is live: the memory of queues and of bump ranges, and the bodies of
    /// large cells, contain bytes that look like headers. Such a header leads to a bucket that does
    /// not lead back. Until then, what it says is used only where the file has pages.
    pub(super) fn move_some(&self, evacuation: &mut Evacuation, units: u64) -> Result<bool> {
        let mut left = units.div_ceil(u64::from(u64::BITS));
        invariant!(self.has_no_lock(), "records are moved while this member holds a lock");
        invariant!(self.is_in_operation(), "records are moved outside of an operation");
        invariant!(evacuation.unit <= CHUNK_UNITS, "a walk is behind the end of its chunk");
        while let Some(chunk) = evacuation.closing.chunks.get(evacuation.chunk).copied() {
            if evacuation.unit >= CHUNK_UNITS {
                (evacuation.chunk, evacuation.unit) = (evacuation.chunk + 1, 0);
                continue;
            }
            if left == 0 {
                return Ok(false);
            }
            if !state_of(self.map(), chunk)?.has_pages {
                // A segment of an index fills it: there is no cell, and not all of it has pages.
                evacuation.unit = CHUNK_UNITS;
                continue;
            }
            invariant!(evacuation.unit.is_multiple_of(64), "a walk goes by words of the bitmap");
            let word = evacuation.unit / u64::from(u64::BITS);
            let first = chunk.start() + word * u64::from(u64::BITS) * LINE;
            let allocated = chunk.bitmap(self.map())?.get(word as usize).map_or(0, load);
            self.move_units(first, allocated, &evacuation.closing)?;
            evacuation.unit = (word + 1) * u64::from(u64::BITS);
            left -= 1;
            if evacuation.closing.full_class.get() == 0 {
                return Ok(true); // No room for any cell.
            }
        }
        Ok(true)
    }

    /// Moves what is live in 64 units, of which these are allocated.
    fn move_units(&self, first: u64, allocated: u64, closing: &ClosingChunks) -> Result<()> {
        invariant!(first.is_multiple_of(64 * LINE), "a word of a bitmap stands for 64 units");
        let map = self.map();
        let units = (0..u64::from(u64::BITS)).filter(|unit| allocated >> unit & 1 == 1);
        for unit in units.clone() {
            map.prefetch(first + unit * LINE);
        }
        invariant!(!self.has_pin(), "records are moved under a pin, so none of them comes free");
        let pin = self.pin()?;
        let mut lines = Vec::new();
        for at in units.map(|unit| first + unit * LINE) {
            self.check_not_truncated()?;
            // A damaged cell or bucket stays as it is, and the others are moved.
            match self.live_cell(at) {
                Ok(Some(LiveCell::Record(table, record))) => {
                    // A record with many blocks here is tried once.
                    if closing.kept.borrow().contains(&record.at()) {
                        continue;
                    }
                    let moved = closing.moved.get();
                    match self.move_record(table, &record, closing) {
                        Err(Error::Damaged { .. }) => self.check_not_truncated()?,
                        other => other?,
                    }
                    if closing.moved.get() == moved {
                        closing.kept.borrow_mut().insert(record.at());
                    }
                }
                Ok(Some(LiveCell::Line(bucket_at))) if !lines.contains(&bucket_at) => {
                    lines.push(bucket_at);
                }
                Ok(Some(LiveCell::EmptyLine)) => closing.has_empty_line.set(true),
                Ok(_) => {}
                Err(Error::Damaged { .. }) => self.check_not_truncated()?,
                Err(error) => return Err(error),
            }
        }
        drop(pin);
        for bucket_at in lines {
            self.move_lines(bucket_at, closing)?;
        }
        Ok(())
    }

    /// What the index leads to at an offset: a record, the record of a block, or an overflow line.
    /// The caller has a pin.
    pub(super) fn live_cell(&self, at: u64) -> Result<Option<LiveCell<'_>>> {
        let map = self.map();
        let birth = cell::word(map, at, WORD_RETIRED)?.load(Ordering::Relaxed);
        if birth == 0 || pin::is_retired(birth) {
            return Ok(None);
        }
        let Ok(kind) = cell::kind_of(cell::word(map, at, WORD_HEAD)?.load(Ordering::Relaxed))
        else {
            return Ok(None); // Bytes of a body.
        };
        match kind {
            CellKind::Record | CellKind::Block => self.record_of(at, kind),
            CellKind::OverflowLine => self.bucket_of_line(at),
            // The stripes of a counter change in place, and so do rings and the segments of an
            // index. A transaction ends soon.
            CellKind::Counter
            | CellKind::Ring
            | CellKind::Extent
            | CellKind::Transaction
            | CellKind::Free => Ok(None),
        }
    }

    /// The record that a cell is, or of which it is a block.
    fn record_of(&self, at: u64, kind: CellKind) -> Result<Option<LiveCell<'_>>> {
        let cell = self.cell_at(at)?;
        let Some((table, bucket_at)) = self.bucket_of_cell(&cell)? else { return Ok(None) };
        let mut records = Vec::with_capacity(WORDS);
        // Not those that a transaction is changing.
        self.collect_chain(bucket_at, &mut records, |word| {
            Ok(if is_intent(word) { 0 } else { at_of(word) })
        })?;
        if kind == CellKind::Record {
            if !records.contains(&at) {
                return Ok(None);
            }
            // Its header was read before it was protected.
            return Ok(Some(LiveCell::Record(table, self.cell_at(at)?)));
        }
        for record_at in records {
            let record = self.cell_at(record_at)?;
            if record.hash_low() == cell.hash_low() {
                for index in 0..record.children() {
                    if record.child(index)? == at {
                        return Ok(Some(LiveCell::Record(table, record)));
                    }
                }
            }
        }
        Ok(None)
    }

    /// The bucket in which the index leads to a record, if this is one, or to the record of this
    /// block. `None`: it is neither.
    fn bucket_of_cell(&self, cell: &Cell<'_>) -> Result<Option<(&IndexTable, u64)>> {
        let entry = cell.namespace()?;
        if entry >= self.catalog_entries()? {
            return Ok(None);
        }
        let Some(table) = self.entry_table(entry)? else { return Ok(None) };
        // A bucket's number consists of the lowest bits of the hash.
        let (_, bucket_at, _) = find_bucket(self.map(), table, u64::from(cell.hash_low()))?;
        Ok(Some((table, bucket_at)))
    }

    /// The bucket that leads to an overflow line: that of the records to which the line leads.
    fn bucket_of_line(&self, at: u64) -> Result<Option<LiveCell<'_>>> {
        let map = self.map();
        // An empty line is in the chain of those behind it.
        let (mut found, mut line_at) = (None, at);
        for _ in 0..CHAIN_MAX {
            let words = map.words::<{ LINE_WORDS as usize }>(line_at + LINE_FIRST)?;
            found = words.iter().map(load).find(|word| *word != 0 && !is_link(*word));
            let last = words.last().map_or(0, load);
            if found.is_some() || !is_link(last) || !self.may_be_cell(at_of(last))? {
                break;
            }
            line_at = at_of(last);
        }
        let Some(entry) = found else { return Ok(Some(LiveCell::EmptyLine)) };
        if is_intent(entry) {
            return Ok(None);
        }
        if !self.may_be_cell(at_of(entry))? {
            return Ok(None);
        }
        let record = self.cell_at(at_of(entry))?;
        if record.kind()? != CellKind::Record {
            return Ok(None);
        }
        let Some((_, bucket_at)) = self.bucket_of_cell(&record)? else { return Ok(None) };
        let mut next = load(map.word(link_slot(bucket_at))?);
        for _ in 0..CHAIN_MAX {
            if !is_link(next) {
                return Ok(None);
            }
            if at_of(next) == at {
                return Ok(Some(LiveCell::Line(bucket_at)));
            }
            next = load(map.word(at_of(next) + LINE_FIRST + 8 * (LINE_WORDS - 1))?);
        }
        Ok(None)
    }

    /// Whether a cell can be at an offset that bytes of a value could have made up: they could lead
    /// to a page that the file does not have.
    fn may_be_cell(&self, at: u64) -> Result<bool> {
        let map = self.map();
        let chunk = ChunkIndex::of(map, at)?;
        let is_used = chunk.0 < chunks_used(map)? || chunk.0 >= ordinary_chunks(map.chunks());
        Ok(is_used && at.is_multiple_of(LINE) && state_of(map, chunk)?.has_pages)
    }

    /// Replaces a record by a copy with the same version, if it is still the current one.
    pub(super) fn move_record(
        &self,
        table: &IndexTable,
        record: &Cell<'_>,
        closing: &ClosingChunks,
    ) -> Result<()> {
        if !record.is_whole()? {
            return Ok(()); // The check reports it where it is.
        }
        invariant!(self.has_pin(), "a record is moved without a pin that protects it");
        let map = self.map();
        let hash = hash_of(map, record.key()?)?;
        let copy = match self.copy_record(record, closing) {
            Ok(Some(copy)) => copy,
            // A damaged block. Or no room: the records of other sizes may find some.
            Ok(None) | Err(Error::Full { .. }) => return self.free_pending(),
            Err(error) => {
                self.free_pending()?;
                return Err(error);
            }
        };
        crash_point!("evacuate.copied");
        let (old, new) = (entry(hash_tag(hash), record.at()), entry(hash_tag(hash), copy));
        let Some((bucket_at, payload)) = self.try_lock_bucket(table, hash)? else {
            return self.free_pending(); // Its writer is faster, or stopped.
        };
        let mut slot = 0;
        let found = walk_chain(map, bucket_at, |at, word| {
            slot = if word == old { at } else { slot };
            Ok(slot == 0)
        });
        // An entry of the log names it, or its blocks.
        let is_named = held::is_named(map, record.at());
        slot = if is_named == Ok(false) { slot } else { 0 };
        let done = found.and(is_named).and_then(|_| {
            if slot != 0 {
                let arena = self.arena();
                write_undo(&arena, slot, old, new, op::RECORD);
                crash_point!("publish.recorded");
                publish(map.word(slot)?, new);
                crash_point!("publish.committed");
                if closing.is_join {
                    arena.retire_aside(record.at())?;
                    crash_point!("join.retired");
                    close_undo_record(&arena);
                } else {
                    finish_record(&arena, old, new)?;
                }
                closing.moved.set(closing.moved.get() + 1);
                crash_point!("evacuate.moved");
            }
            Ok(())
        });
        self.close_after(&done);
        self.release(bucket_at, LockSlot::Bucket, payload)?;
        if slot == 0 {
            self.free_pending()?;
        }
        done?;
        // The old cells come free during the walk, so that its end takes no longer than any other
        // part of it.
        self.trim_queue(&self.arena(), cell::class_at(map, record.at())?)
    }

    /// Locks the bucket that holds a hash. `None` if a living process has locked it.
    fn try_lock_bucket(&self, table: &IndexTable, hash: u64) -> Result<Option<(u64, u64)>> {
        loop {
            let (bucket, at, _) = find_bucket(self.map(), table, hash)?;
            let Some(payload) = self.try_acquire(at, LockSlot::Bucket)? else { return Ok(None) };
            if step(hash, bucket, depth_of(payload)).is_none() {
                return Ok(Some((at, payload)));
            }
            self.release(at, LockSlot::Bucket, payload)?;
        }
    }

    /// After the commit only corruption can stop the work. Published cells must not be freed.
    fn close_after(&self, done: &Result<(), Corruption>) {
        if done.is_err() && self.arena().get(undo::OP) != op::NONE {
            close_undo_record(&self.arena());
        }
    }

    /// A pending copy of a record. Its blocks in closing chunks are copied too. `None` if one of
    /// them is damaged.
    fn copy_record(&self, record: &Cell<'_>, closing: &ClosingChunks) -> Result<Option<u64>> {
        let map = self.map();
        let copy = self.copy_cell(record, closing)?;
        let mut has_moved_blocks = false;
        for index in 0..record.children() {
            let child = Cell::new(map, record.child(index)?)?;
            // The stripes of a counter change in place, at any time.
            if child.kind()? == CellKind::Block && closing.contains(map, child.at())? {
                if !child.is_whole()? {
                    return Ok(None); // Its size may be wrong.
                }
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
        Ok(Some(copy))
    }

    /// A pending copy of a cell.
    fn copy_cell(&self, from: &Cell<'_>, closing: &ClosingChunks) -> Result<u64> {
        invariant!(!self.has_lock(LockSlot::Bucket), "a record is copied under its bucket's lock");
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
        invariant!(class < CLASSES, "a cell of class {class} is moved");
        let arena = self.arena();
        let queue = arena.queue(class)?;
        let head = queue.head.load(Ordering::Relaxed);
        if closing.is_join {
            if head == 0 || !self.is_head_reusable(queue, class, head)? {
                return Err(no_room());
            }
            arena.pop(queue, head)?;
            return Ok(head);
        }
        // Cells that came from a fragmented chunk stand before those that were retired.
        if head != 0 && retired_word(self.map(), class, head) == Ok(NEVER_READ) {
            arena.pop(queue, head)?;
            return Ok(head);
        }
        self.allocate_fresh(class).inspect_err(|error| {
            if matches!(error, Error::Full { .. }) {
                closing.full_class.set(class);
            }
        })
    }

    /// Rebuilds the overflow lines of a bucket if one of them is in a closing chunk. A bucket
    /// whose lock is busy keeps its lines.
    pub(super) fn move_lines(&self, bucket_at: u64, closing: &ClosingChunks) -> Result<()> {
        let slot = link_slot(bucket_at);
        if !is_link(load(self.map().word(slot)?)) {
            return Ok(());
        }
        let Some(payload) = self.try_acquire(bucket_at, LockSlot::Bucket)? else { return Ok(()) };
        // No other member waits for what a full heap needs to be described and searched again.
        invariant!(!self.is_brief.get(), "the lines of two buckets are moved at once");
        self.is_brief.set(true);
        let done = self.move_lines_locked(slot, closing);
        self.is_brief.set(false);
        if done.is_err() && self.arena().get(undo::OP) != op::NONE {
            close_undo_record(&self.arena());
        }
        self.release(bucket_at, LockSlot::Bucket, payload)?;
        if done.is_err() {
            self.free_pending()?;
        }
        match done {
            // No room for its lines, or a damaged one: they stay where they are.
            Err(Error::Full { .. } | Error::Damaged { .. }) => self.check_not_truncated(),
            other => other,
        }
    }

    fn move_lines_locked(&self, slot: u64, closing: &ClosingChunks) -> Result<()> {
        invariant!(self.has_lock(LockSlot::Bucket), "lines are moved without the bucket's lock");
        let map = self.map();
        let old = load(map.word(slot)?);
        let (mut next, mut entries, mut is_in) = (old, Vec::new(), false);
        let mut lines = 0;
        while is_link(next) {
            let line_at = at_of(next);
            is_in |= closing.contains(map, line_at)?;
            if cell::kind_of(map.word(line_at)?.load(Ordering::Relaxed))? != CellKind::OverflowLine
                || cell::bytes_at(map, line_at)? != LINE
            {
                return Err(Error::from(Corruption("an overflow line has another kind or size")));
            }
            let words = map.words::<{ LINE_WORDS as usize }>(line_at + LINE_FIRST)?;
            next = 0;
            let before = entries.len();
            for word in words.iter().map(load) {
                if is_link(word) {
                    next = word;
                } else if word != 0 {
                    entries.push(word);
                }
            }
            is_in |= entries.len() == before;
            lines += 1;
            if lines > CHAIN_MAX {
                return Err(Error::from(Corruption("a bucket's chain has no end")));
            }
        }
        if !is_in || entries.is_empty() {
            return Ok(());
        }
        // Not of lines that this member has retired: they lie in the closing chunks, too.
        let new = self.build_chain(&entries, || self.allocate_elsewhere(CLASS_LINE, closing))?;
        invariant!(is_link(new) && new != link(0), "a chain of {} entries", entries.len());
        let arena = self.arena();
        write_undo(&arena, slot, old, new, op::LINES);
        crash_point!("lines.recorded");
        publish(map.word(slot)?, new);
        crash_point!("lines.replaced");
        finish_lines(&arena, old)?;
        Ok(())
    }

    /// Builds the chains of some buckets that have empty overflow lines again, without these.
    /// Continues where the last call has ended, with at most `most` buckets. A damaged bucket or
    /// index stays as it is.
    ///
    /// A removal leaves a line empty if other lines of its bucket are not. A transaction that was
    /// undone leaves one as well.
    pub(super) fn remove_empty_lines(&self, closing: &ClosingChunks, most: u64) -> Result<()> {
        invariant!(self.has_no_lock(), "chains are built again while this member holds a lock");
        let entries = self.catalog_entries()?;
        let (mut entry, mut bucket) = self.evacuated.swept.get();
        let mut left = most;
        // Once around at most.
        for _ in 0..=entries {
            if entry >= entries {
                (entry, bucket) = (0, 0);
            }
            let from = bucket;
            let swept = self.sweep_index((entry, &mut bucket), left, closing);
            left -= bucket.saturating_sub(from).min(left);
            // Behind a damaged bucket the index goes on.
            let is_same = left == 0 || swept.is_err() && bucket > from;
            (entry, bucket) = if is_same { (entry, bucket) } else { (entry + 1, 0) };
            self.evacuated.swept.set((entry, bucket));
            match swept {
                Err(Error::Damaged { .. }) => self.check_not_truncated()?,
                other => other?,
            }
            if left == 0 {
                break;
            }
        }
        Ok(())
    }

    /// The part of [`Member::remove_empty_lines`] in one index, from a bucket on, which it
    /// advances.
    fn sweep_index(
        &self,
        (entry, bucket): (u32, &mut u64),
        most: u64,
        closing: &ClosingChunks,
    ) -> Result<()> {
        let Some(table) = self.entry_table(entry)? else { return Ok(()) };
        let end = table.refresh(self.map())?.min(bucket.saturating_add(most));
        while *bucket < end {
            let bucket_at = table.bucket_at(self.map(), *bucket)?;
            *bucket += 1;
            if self.has_empty_line(bucket_at)? {
                self.move_lines(bucket_at, closing)?;
                // All of them are empty.
                if self.has_empty_line(bucket_at)? {
                    self.compact_bucket(bucket_at)?;
                }
            }
        }
        Ok(())
    }

    /// Whether a bucket's chain seems to have a line without entries. Without its lock: the lines
    /// may be others meanwhile, or bytes of a value.
    fn has_empty_line(&self, bucket_at: u64) -> Result<bool> {
        let map = self.map();
        let pin = self.pin()?;
        let mut next = load(map.word(link_slot(bucket_at))?);
        let mut is_empty = false;
        for _ in 0..CHAIN_MAX {
            if !is_link(next) || !self.may_be_cell(at_of(next)).unwrap_or(false) {
                break;
            }
            let words = map.words::<{ LINE_WORDS as usize }>(at_of(next) + LINE_FIRST)?;
            is_empty = words.iter().map(load).all(|word| word == 0 || is_link(word));
            if is_empty {
                break;
            }
            next = words.last().map_or(0, load);
        }
        drop(pin);
        Ok(is_empty)
    }
}
