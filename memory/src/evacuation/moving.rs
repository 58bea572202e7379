//! Moves the records and the overflow lines of some buckets out of closing chunks.

use nearstate_model::{Error, Result, invariant};

use super::{ClosingChunks, Evacuation};
use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::heap::cell::{self, Cell, CellKind, LINE_FIRST, LINE_WORDS, WORD_HEAD, WORD_RETIRED};
use crate::heap::cell::{CELL_HEADER_BYTES, WORD_VERSION};
use crate::heap::refill::no_room;
use crate::index::bucket::{at_of, depth_of, entry, hash_tag, is_link, link, load, publish};
use crate::index::lookup::{CHAIN_MAX, find_bucket, hash_of, link_slot, walk_chain};
use crate::index::split::finish_lines;
use crate::layout::{Corruption, LINE};
use crate::member::Member;
use crate::member::arena::{LockSlot, finish_word, op, undo, write_undo};
use crate::member::pin::NEVER_READ;
use crate::region::index_table::IndexTable;
use crate::region::linear_hash::step;
use crate::txn::publish::finish_record;

/// Buckets of which records are collected before any is looked at, so that their headers arrive
/// together.
const BUCKETS_AHEAD: u64 = 8;

impl Member {
    /// Moves the records of some buckets. True if no bucket is left.
    pub(super) fn move_some(&self, evacuation: &mut Evacuation, buckets: u64) -> Result<bool> {
        let mut left = buckets;
        while left != 0 {
            let index = u32::try_from(evacuation.namespace)
                .map_err(|_| Corruption("too many namespaces"))?;
            if index >= self.catalog_entries()? {
                return Ok(true);
            }
            let Some(table) = self.entry_table(index)? else {
                (evacuation.namespace, evacuation.bucket) = (evacuation.namespace + 1, 0);
                continue;
            };
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
            let collected = records.len();
            if self.collect_bucket(table, bucket, count, &mut records).is_err() {
                records.truncate(collected); // The check reports a damaged bucket.
            }
        }
        self.check_not_truncated()?;
        for at in &records {
            self.map().prefetch(*at);
        }
        for at in &records {
            let record = self.cell_at(*at)?;
            // A damaged record stays where it is, and the others are moved.
            if self.is_in(closing, &record).unwrap_or(false) {
                match self.move_record(table, &record, closing) {
                    Err(Error::Damaged { .. }) => self.check_not_truncated()?,
                    other => other?,
                }
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
        let map = self.map();
        if closing.contains(map, record.at())? {
            return Ok(true);
        }
        for index in 0..record.children() {
            let child = record.child(index)?;
            // A counter stays where it is.
            if closing.contains(map, child)? && Cell::new(map, child)?.kind()? == CellKind::Block {
                return Ok(true);
            }
        }
        Ok(false)
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
            finish_word(&self.arena());
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
        // No other member waits for what a full heap needs to be described and searched again.
        self.is_brief.set(true);
        let done = self.move_lines_locked(slot, closing);
        self.is_brief.set(false);
        if done.is_err() && self.arena().get(undo::OP) != op::NONE {
            finish_word(&self.arena());
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
