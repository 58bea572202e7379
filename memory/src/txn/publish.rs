//! Changing the record of a key: the steps of `spec/region.md`, section 3, from the bucket's lock
//! on.

use nearstate_model::{Error, Result};

use crate::crash::crash_point;
use crate::heap::cell::{self, Cell, CellHeader, CellKind, LINE_FIRST, LINE_WORDS};
use crate::index::bucket::{
    LAST, VERSION_MAX, WORDS, at_of, control, depth_of, entry, is_intent, is_link, link, load,
    publish, stamp_of, tag_in, tag_of,
};
use crate::index::lookup::{CHAIN_MAX, ReadToken, find_bucket, is_equal, link_slot, walk_chain};
use crate::layout::{Corruption, LINE};
use crate::member::Member;
use crate::member::arena::{Arena, finish_word, op, slot, undo, write_undo};
use crate::member::lock;
use crate::region::index_table::IndexTable;
use crate::region::linear_hash::step;
use crate::region::map::Map;

/// What the caller wants done with the record that it was shown under the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteDecision {
    /// Publish the new cell in its place.
    Publish,
    /// Remove the record.
    Remove,
    /// Leave it: the answer is no.
    Keep,
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOutcome {
    /// What the caller decided.
    pub decision: WriteDecision,
    /// Version of the record before, if there was one.
    pub version_before: Option<u64>,
    /// Version of the record after, if one was published.
    pub version_after: Option<u64>,
}

/// A new record cell: filled, pending, not yet known to anybody.
#[derive(Clone, Copy, Debug)]
pub struct PendingCell {
    /// Offset of the cell.
    pub at: u64,
    /// CRC-32 of its body.
    pub body_crc: u32,
}

/// The key of a record, and what its reader knows of it.
#[derive(Clone, Copy, Debug)]
pub struct WriteTarget<'k> {
    /// Hash of the key.
    pub hash: u64,
    /// The key.
    pub key: &'k [u8],
    /// What was found, under a pin that still holds.
    pub token: Option<ReadToken>,
}

/// Where a key stands, or would stand, in a locked bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotLookup {
    /// Word that holds the key's entry; 0 if there is none.
    pub(crate) entry_at: u64,
    pub(crate) entry: u64,
    /// First empty word; 0 if there is none.
    pub(crate) empty_at: u64,
    /// Last word of the chain, and its entry.
    pub(crate) last_at: u64,
    pub(crate) last: u64,
    /// Entries in the chain.
    pub(crate) entries: u32,
}

impl Member {
    /// Allocates a cell and fills its header; the caller writes the body.
    ///
    /// # Errors
    /// As [`Member::allocate`]; `Forked`, `Damaged`.
    #[inline]
    pub fn allocate_cell(&self, head: &CellHeader) -> Result<u64> {
        // Here begins every write. What was read before a fork is still in the child, but the arena
        // is its parent's: a cell that both take from it would have two owners.
        self.check_usable()?;
        let at = self.allocate(cell::CELL_HEADER_BYTES + u64::from(head.body))?;
        cell::begin(self.map(), at, head)?;
        crash_point!("fill.header");
        Ok(at)
    }

    /// Writes a part of a draft's body. `offset` counts from the end of the header.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn write_body(&self, at: u64, offset: u64, bytes: &[u8]) -> Result<()> {
        self.map().write(at + cell::CELL_HEADER_BYTES + offset, bytes)?;
        crash_point!("fill.part");
        Ok(())
    }

    /// What was written of a draft's body: for a checksum of all its parts at once.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn pending_body(&self, at: u64, bytes: u64) -> Result<&[u8]> {
        Ok(self.map().bytes(at + cell::CELL_HEADER_BYTES, bytes)?)
    }

    /// Completes a block cell: its version is 0 and it never changes.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn seal_block(&self, at: u64, body_crc: u32) -> Result<()> {
        cell::seal(self.map(), at, 0, body_crc)?;
        crash_point!("fill.block");
        Ok(())
    }

    /// Changes the record of a key. Under the bucket's lock `decide` sees the record that is there
    /// and says what to do; `draft` is published if it says so. Whatever stays pending is given up.
    ///
    /// The commit is one store (`spec/region.md`, section 2). Cost: an uncontended
    /// compare-and-swap, the line of the bucket, the header of the old record, and lines of this
    /// member.
    ///
    /// # Errors
    /// `Stalled`, `Full`, `Damaged`, and what `decide` returns. Nothing was changed then.
    #[inline]
    pub fn write_record(
        &self,
        table: &IndexTable,
        hash: u64,
        key: &[u8],
        draft: Option<PendingCell>,
        decide: impl FnOnce(Option<Cell<'_>>) -> Result<WriteDecision>,
    ) -> Result<WriteOutcome> {
        self.write_target(table, WriteTarget { hash, key, token: None }, draft, decide)
    }

    /// As [`Member::write_record`], of a record that the caller may have read under a pin that still
    /// holds: if it is still where it was, nothing is searched or compared.
    ///
    /// # Errors
    /// As [`Member::write_record`].
    #[inline]
    pub fn write_target(
        &self,
        table: &IndexTable,
        target: WriteTarget<'_>,
        draft: Option<PendingCell>,
        decide: impl FnOnce(Option<Cell<'_>>) -> Result<WriteDecision>,
    ) -> Result<WriteOutcome> {
        self.check_usable()?;
        let (bucket_at, payload) = match self.lock_bucket(table, target.hash) {
            Ok(locked) => locked,
            Err(error) => {
                self.free_pending()?;
                return Err(error);
            }
        };
        let done = self.write_locked((bucket_at, payload), target, draft, decide);
        // The stamp may have been raised: the lock word says what it is now.
        let payload = self.map().word(bucket_at)?.load(crate::atomic::Ordering::Relaxed);
        let arena = self.arena()?;
        let (changed, retired, crowd) = match done {
            Ok(done) => done,
            Err(error) => {
                // After the commit only damage can stop it: what was published must not be freed.
                if arena.get(undo::OP) != op::NONE {
                    finish_word(&arena);
                }
                self.release(bucket_at, slot::BUCKET, payload)?;
                self.free_pending()?;
                return Err(error);
            }
        };
        if changed.decision == WriteDecision::Keep {
            self.release(bucket_at, slot::BUCKET, payload)?;
        } else {
            self.release_bucket(bucket_at, payload)?;
        }
        match changed.decision {
            WriteDecision::Keep => self.free_pending()?,
            WriteDecision::Publish | WriteDecision::Remove => {
                let mut tidied = retired.map_or(Ok(()), |class| self.trim_queue(&arena, class));
                if crowd >= CROWD {
                    tidied = tidied.and_then(|()| self.split_some(table, crowd));
                }
                // The change is made: whatever kept the pool or the index from being tidied (a lock
                // of somebody else, no room, damage elsewhere) is not this caller's failure.
                if tidied.is_err() && arena.get(undo::OP) == op::NONE {
                    self.free_pending()?;
                }
            }
        }
        // A page that went away meanwhile may have taken the change with it.
        self.check_not_truncated()?;
        Ok(changed)
    }

    /// Locks the bucket that holds a hash. Returns the offset of its line and its payload.
    #[inline]
    fn lock_bucket(&self, table: &IndexTable, hash: u64) -> Result<(u64, u64)> {
        loop {
            let (bucket, at, _) = find_bucket(self.map(), table, hash)?;
            let payload = self.acquire(at, slot::BUCKET)?;
            if step(hash, bucket, depth_of(payload)).is_none() {
                return Ok((at, payload));
            }
            // It was split while we waited.
            self.release(at, slot::BUCKET, payload)?;
        }
    }

    #[inline]
    fn write_locked(
        &self,
        (bucket_at, payload): (u64, u64),
        target: WriteTarget<'_>,
        draft: Option<PendingCell>,
        decide: impl FnOnce(Option<Cell<'_>>) -> Result<WriteDecision>,
    ) -> Result<(WriteOutcome, Option<u8>, u32)> {
        let map = self.map();
        let (place, hash) = (locate_target(map, bucket_at, target)?, target.hash);
        let old = match place.entry_at {
            0 => None,
            _ => Some(Cell::new(map, at_of(place.entry))?),
        };
        let before = old.map(|cell| cell.version());
        let decision = decide(old)?;
        let mut done =
            (WriteOutcome { decision, version_before: before, version_after: None }, None, 0);
        match (decision, old, draft) {
            (WriteDecision::Publish, _, Some(draft)) => {
                let version = before.unwrap_or_else(|| stamp_of(payload)).saturating_add(1);
                if version > VERSION_MAX {
                    return Err(Error::Full {
                        detail: format!("the record has changed {VERSION_MAX} times"),
                    });
                }
                cell::seal(map, draft.at, version, draft.body_crc)?;
                crash_point!("publish.sealed");
                done.1 = self.publish_entry(&place, entry(tag_of(hash), draft.at))?;
                done.0.version_after = Some(version);
                done.2 = place.entries + u32::from(old.is_none());
            }
            (WriteDecision::Remove, Some(_), _) => {
                // It changes with every removal, so that a walk sees one.
                let stamp = (stamp_of(payload) + 1).max(before.unwrap_or(0));
                let raised = control(depth_of(payload), stamp);
                lock::hold_with(map.word(bucket_at)?, self.lock_owner(), raised);
                crash_point!("remove.stamped");
                done.1 = self.publish_entry(&place, 0)?;
                // Once more, so that a walk that began in between looks again. After a death in
                // between it may meet a key twice that was deleted and created during the walk.
                let raised = control(depth_of(payload), stamp + 1);
                lock::hold_with(map.word(bucket_at)?, self.lock_owner(), raised);
            }
            (WriteDecision::Publish | WriteDecision::Remove | WriteDecision::Keep, _, _) => {
                done.0.decision = WriteDecision::Keep;
            }
        }
        Ok(done)
    }

    /// Puts `new` where the key's entry is, or where there is room. Returns the class of the record
    /// that was retired.
    #[inline]
    fn publish_entry(&self, place: &SlotLookup, new: u64) -> Result<Option<u8>> {
        let map = self.map();
        let arena = self.arena()?;
        if place.entry_at == 0 && place.empty_at == 0 {
            self.publish_in_new_line(&arena, place, new)?;
            return Ok(None);
        }
        let (at, old) = match place.entry_at {
            0 => (place.empty_at, 0),
            found => (found, place.entry),
        };
        let class = if old == 0 { None } else { Some(cell::class_at(map, at_of(old))?) };
        write_undo(&arena, at, old, new, op::RECORD);
        crash_point!("publish.noted");
        publish(map.word(at)?, new);
        crash_point!("publish.committed");
        finish_record(&arena, old, new)?;
        Ok(class)
    }

    /// The chain is full: its last word becomes a link to a new line with the displaced entry and
    /// the new one.
    #[cold]
    fn publish_in_new_line(&self, arena: &Arena<'_>, place: &SlotLookup, new: u64) -> Result<()> {
        if place.entries >= ENTRIES_MAX {
            return Err(Error::Full {
                detail: "the index has no room to grow: delete records, or create a larger region"
                    .to_owned(),
            });
        }
        let line = self.new_line(&[place.last, new])?;
        write_undo(arena, place.last_at, place.last, link(line), op::WORD);
        crash_point!("publish.noted");
        publish(self.map().word(place.last_at)?, link(line));
        crash_point!("publish.committed");
        finish_word(arena);
        Ok(())
    }

    /// A pending overflow line with these entries (at most five).
    pub(crate) fn new_line(&self, entries: &[u64]) -> Result<u64> {
        let head =
            CellHeader { kind: CellKind::TxnLine, flags: 0, body: 0, key: 0, children: 0, hash: 0 };
        let at = self.allocate(LINE)?;
        let word = self.map().word(at)?;
        let class = word.load(crate::atomic::Ordering::Relaxed) & 0xff;
        word.store(class | (head.kind as u64) << 8, crate::atomic::Ordering::Relaxed);
        for index in 0..LINE_WORDS {
            let value = entries.get(index as usize).copied().unwrap_or(0);
            self.map()
                .word(at + LINE_FIRST + 8 * index)?
                .store(value, crate::atomic::Ordering::Relaxed);
        }
        Ok(at)
    }
}

/// The most entries of a bucket: its chain must stay shorter than what every walk allows.
pub(crate) const ENTRIES_MAX: u32 = (CHAIN_MAX - 2) * (LINE_WORDS as u32 - 1);

/// A bucket with this many entries after an insert is crowded: the index grows by a bucket.
pub(crate) const CROWD: u32 = 6;

/// As [`locate`], of a record that may have been read. What still has its word is not compared
/// again: the reader's pin has kept the cell, and with it the key, since then.
#[inline]
pub(crate) fn locate_target(
    map: &Map,
    bucket_at: u64,
    of: WriteTarget<'_>,
) -> Result<SlotLookup, Corruption> {
    if let Some(token) = of.token
        && token.slot_at & !(LINE - 1) == bucket_at
        && load(map.word(token.slot_at)?) == token.word
    {
        let (entry_at, found) = (token.slot_at, token.word);
        return Ok(SlotLookup {
            entry_at,
            entry: found,
            empty_at: 0,
            last_at: 0,
            last: 0,
            entries: 0,
        });
    }
    locate(map, bucket_at, of.hash, of.key)
}

/// Numbers of a bucket line's entries.
const PLACES: [u64; LAST] = [0, 1, 2, 3, 4, 5, 6];

/// Finds the key in a locked bucket, and room for it.
///
/// The usual cases, a key that stands in the bucket's line and one that is not there, take no
/// branch on where things stand: that place is random, and a wrong guess would wait for the line.
#[inline]
pub(crate) fn locate(
    map: &Map,
    bucket_at: u64,
    hash: u64,
    key: &[u8],
) -> Result<SlotLookup, Corruption> {
    let tag = tag_of(hash);
    let [_, entries @ ..] = map.words::<WORDS>(bucket_at)?;
    let words = entries.each_ref().map(load);
    let (mut index, mut found) = (0, 0);
    for (place, word) in (0..).zip(words) {
        let is_it = tag_in(word) == tag;
        index = if is_it { place } else { index };
        found = if is_it { word } else { found };
    }
    let [.., last] = words;
    if found == 0 && !is_link(last) {
        // No entry has the tag, and there are no others: the key is not there.
        return Ok(room(bucket_at, words));
    }
    if found != 0 && !is_intent(found) {
        let cell = Cell::new(map, at_of(found))?;
        if cell.hash_low() == hash as u32 && is_equal(cell.key()?, key) {
            let entry_at = bucket_at + 8 + 8 * index;
            let (empty_at, last_at, last, entries) = (0, 0, 0, 0);
            return Ok(SlotLookup { entry_at, entry: found, empty_at, last_at, last, entries });
        }
    }
    locate_in_chain(map, bucket_at, hash, key)
}

/// Where a key that is not there would stand in a bucket without overflow lines.
#[inline]
fn room(bucket_at: u64, words: [u64; LAST]) -> SlotLookup {
    let (mut empty_at, mut entries) = (0, 0);
    for (place, word) in PLACES.into_iter().zip(words).rev() {
        empty_at = if word == 0 { bucket_at + 8 + 8 * place } else { empty_at };
        entries += u32::from(word != 0);
    }
    let [.., last] = words;
    SlotLookup { entry_at: 0, entry: 0, empty_at, last_at: link_slot(bucket_at), last, entries }
}

/// As [`locate`], where the key is not there, or in an overflow line, or shares its tag with
/// another.
#[inline(never)]
fn locate_in_chain(
    map: &Map,
    bucket_at: u64,
    hash: u64,
    key: &[u8],
) -> Result<SlotLookup, Corruption> {
    let tag = tag_of(hash);
    let mut place =
        SlotLookup { entry_at: 0, entry: 0, empty_at: 0, last_at: 0, last: 0, entries: 0 };
    walk_chain(map, bucket_at, |at, value| {
        place.last_at = at;
        place.last = value;
        if value == 0 {
            if place.empty_at == 0 {
                place.empty_at = at;
            }
            return Ok(true);
        }
        place.entries += 1;
        // An intent under the lock is the lock holder's own, for another key.
        if tag_in(value) == tag && !is_intent(value) {
            let cell = Cell::new(map, at_of(value))?;
            if cell.hash_low() == hash as u32 && is_equal(cell.key()?, key) {
                place.entry_at = at;
                place.entry = value;
                return Ok(false);
            }
        }
        Ok(true)
    })?;
    Ok(place)
}

/// After the commit: retires what `old` has and `new` has not, and clears the note. Idempotent, and
/// so also what recovery does.
#[inline]
pub(crate) fn finish_record(arena: &Arena<'_>, old: u64, new: u64) -> Result<(), Corruption> {
    retire_record(arena, old, new)?;
    crash_point!("publish.retired");
    finish_word(arena);
    Ok(())
}

/// Retires what the record `old` has and `new` has not. Both may be 0. Idempotent.
#[inline]
pub(crate) fn retire_record(arena: &Arena<'_>, old: u64, new: u64) -> Result<(), Corruption> {
    if old != 0 {
        let cell = Cell::new(arena.map, at_of(old))?;
        if cell.children() > 0 {
            retire_children(arena, cell, new)?;
        }
        arena.retire(cell.at())?;
    }
    Ok(())
}

#[inline]
fn retire_children(arena: &Arena<'_>, old: Cell<'_>, new: u64) -> Result<(), Corruption> {
    // The usual change leaves all of them.
    if new != 0 && Cell::new(arena.map, at_of(new))?.children_bytes()? == old.children_bytes()? {
        return Ok(());
    }
    retire_some_children(arena, old, new)
}

#[cold]
fn retire_some_children(arena: &Arena<'_>, old: Cell<'_>, new: u64) -> Result<(), Corruption> {
    let mut kept = Vec::new();
    if new != 0 {
        let cell = Cell::new(arena.map, at_of(new))?;
        for index in 0..cell.children() {
            kept.push(cell.child(index)?);
        }
        kept.sort_unstable();
    }
    for index in 0..old.children() {
        let child = old.child(index)?;
        if kept.binary_search(&child).is_err() {
            arena.retire(child)?;
        }
    }
    Ok(())
}
