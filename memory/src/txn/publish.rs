//! Changes one record: the steps of `spec/region.md`, section 3, from the bucket's lock on.

use nearstate_model::invariant::guaranteed;
use nearstate_model::{Error, Result, invariant};

use crate::atomic::AtomicU64;
use crate::crash::{crash_point, is_planted};
use crate::heap::cell::{self, Cell, CellHeader, CellKind, LINE_FIRST, LINE_WORDS};
use crate::index::bucket::{
    LAST, WORDS, at_of, control, depth_of, entry, entry_tag, hash_tag, is_intent, is_link,
    is_version, link, load, next_version, publish_before_reads, stamp_of, units_of, version_count,
};
use crate::index::key_equality::is_equal;
use crate::index::known_slot::{KnownSlot, WriteTarget};
use crate::index::lookup::{CHAIN_MAX, has_key_at, link_slot, walk_chain};
use crate::layout::{Corruption, LINE};
use crate::member::Member;
use crate::member::arena::{Arena, LockSlot, close_undo_record, op, undo, write_undo};
use crate::member::lock;
use crate::region::index_table::IndexTable;
use crate::region::map::Map;
use crate::txn::bucket_lock::LockedBucket;
use crate::txn::fill::PendingCell;

/// What the caller decides about the record that it sees under the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteDecision {
    /// Publish the new cell in its place.
    Publish,
    /// Remove the record.
    Remove,
    /// Change nothing.
    Keep,
}

/// The result of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOutcome {
    /// The caller's decision.
    pub decision: WriteDecision,
    /// Version of the record before, if it existed.
    pub version_before: Option<u64>,
    /// Version of the record after, if one was published.
    pub version_after: Option<u64>,
}

/// The first line of a record's cell.
pub(crate) type RecordLine<'m> = &'m [AtomicU64; 8];

/// The slot of a key in a locked bucket, or the place for a new one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotLookup<'m> {
    /// Offset of the word that holds the key's entry; 0 if there is none.
    pub(crate) entry_at: u64,
    pub(crate) entry: u64,
    /// The first line of the cell to which the entry leads. Not the cell: that is five words, which
    /// would travel through memory.
    pub(crate) line: Option<RecordLine<'m>>,
    /// Offset of the first empty word; 0 if there is none.
    pub(crate) empty_at: u64,
    /// Offset of the chain's last word, and its value.
    pub(crate) last_at: u64,
    pub(crate) last: u64,
    /// Number of entries in the chain.
    pub(crate) entries: u32,
}

impl<'m> SlotLookup<'m> {
    /// The slot of a key that has a record.
    #[inline]
    const fn found(entry_at: u64, entry: u64, line: RecordLine<'m>) -> Self {
        let (line, empty_at, last_at, last, entries) = (Some(line), 0, 0, 0, 0);
        Self { entry_at, entry, line, empty_at, last_at, last, entries }
    }
}

impl Member {
    /// Changes the record of a key. Under the bucket's lock `choose` gets the current record and
    /// returns a decision; `draft` is published if it says so. All cells that stay pending are
    /// freed.
    ///
    /// The commit is one store (`spec/region.md`, section 2). Cost: an uncontended
    /// compare-and-swap, the line of the bucket, the header of the old record, and lines of this
    /// member.
    ///
    /// # Errors
    /// `Stalled`, `Full`, `Damaged`, and the errors of `choose`. Nothing was changed then.
    #[inline]
    pub fn write_record(
        &self,
        table: &IndexTable,
        hash: u64,
        key: &[u8],
        draft: Option<PendingCell>,
        choose: impl FnOnce(Option<Cell<'_>>) -> Result<WriteDecision>,
    ) -> Result<WriteOutcome> {
        let target = WriteTarget::new(hash, key, KnownSlot::Unknown);
        self.operation(|| self.write_target(table, target, draft, choose))
    }

    /// As [`Member::write_record`], in an operation, for a record that the caller may have read
    /// under a pin that is still held. If its entry is unchanged, nothing is searched or compared.
    ///
    /// # Errors
    /// As [`Member::write_record`].
    #[inline]
    pub fn write_target(
        &self,
        table: &IndexTable,
        target: WriteTarget<'_>,
        draft: Option<PendingCell>,
        choose: impl FnOnce(Option<Cell<'_>>) -> Result<WriteDecision>,
    ) -> Result<WriteOutcome> {
        invariant!(self.is_in_operation(), "another member may be taking cells");
        let bucket = match self.lock_bucket(table, target.hash, target.place) {
            Ok(locked) => locked,
            Err(error) => {
                self.free_pending()?;
                return Err(error);
            }
        };
        let done = self.write_locked(bucket, target, draft, choose);
        // The stamp may have been raised: the lock word holds the current one.
        let payload = bucket.word.load(crate::atomic::Ordering::Relaxed);
        let arena = self.arena();
        let (changed, retired, crowd) = match done {
            Ok(done) => done,
            Err(error) => {
                // After the commit only corruption can stop the work. Published cells must not
                // be freed.
                if arena.get(undo::OP) != op::NONE {
                    close_undo_record(&arena);
                }
                self.release_word(bucket.word, LockSlot::Bucket, payload);
                self.free_pending()?;
                return Err(error);
            }
        };
        // A commit is visible to all processes since its one store.
        self.release_word(bucket.word, LockSlot::Bucket, payload);
        match changed.decision {
            WriteDecision::Keep => self.free_pending()?,
            WriteDecision::Publish | WriteDecision::Remove => {
                let mut tidied = match retired {
                    Some(class) => {
                        self.trim_queue(&arena, class).and_then(|()| self.trim_next_queue(&arena))
                    }
                    None => Ok(()),
                };
                if changed.decision == WriteDecision::Remove
                    && is_link(load(self.map().word(link_slot(bucket.at))?))
                {
                    tidied = tidied.and_then(|()| self.compact_bucket(bucket.at));
                }
                if crowd >= CROWDED_ENTRIES {
                    tidied = tidied.and_then(|()| self.split_some(table, crowd));
                }
                // The change is committed. A failure to trim a queue or to grow the index (a
                // busy lock, no room, corruption elsewhere) is not a failure of this call.
                if tidied.is_err() && arena.get(undo::OP) == op::NONE {
                    self.free_pending()?;
                }
            }
        }
        // If a page was lost during the operation, the change may be lost too.
        self.check_not_truncated()?;
        Ok(changed)
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its answer would travel through memory")]
    fn write_locked(
        &self,
        LockedBucket { at: bucket_at, word: lock_word, payload }: LockedBucket<'_>,
        target: WriteTarget<'_>,
        draft: Option<PendingCell>,
        choose: impl FnOnce(Option<Cell<'_>>) -> Result<WriteDecision>,
    ) -> Result<(WriteOutcome, Option<u8>, u32)> {
        debug_assert!(
            self.has_lock(LockSlot::Bucket),
            "a record changes without its bucket's lock"
        );
        let map = self.map();
        let (place, hash) = (locate_target(map, bucket_at, target)?, target.hash);
        let old = place.line.map(|line| Cell::of_line(map, units_of(place.entry), line));
        let before = old.map(|cell| cell.version());
        let decision = choose(old)?;
        let mut done =
            (WriteOutcome { decision, version_before: before, version_after: None }, None, 0);
        match (decision, old, draft) {
            (WriteDecision::Publish, _, None) => {
                invariant!("a caller publishes a record without a pending cell")
            }
            (WriteDecision::Publish, _, Some(draft)) => {
                let version = match target.version_imposed {
                    0 => next_version(before, stamp_of(payload))?,
                    imposed => imposed,
                };
                debug_assert!(is_version(version), "version {version:#x} of a write");
                if self.may_use_reserve.get() {
                    let bytes_before = old.map_or(Ok(0), |cell| cell.taken_bytes())?;
                    let bytes_after = Cell::new(map, draft.at)?.taken_bytes()?;
                    self.check_growth(bytes_before, bytes_after)?;
                }
                let new = entry(hash_tag(hash), draft.at);
                self.store_if_planted("commit-incomplete", place.entry_at, new)?;
                cell::seal(map, draft.at, version, draft.body_crc)?;
                crash_point!("publish.sealed");
                done.1 = self.publish_entry(&place, new)?;
                done.0.version_after = Some(version);
                done.2 = place.entries + u32::from(old.is_none());
            }
            (WriteDecision::Remove, Some(_), _) => {
                // Each removal changes the stamp, so that a walk detects it.
                let last = before.unwrap_or(0).max(target.version_imposed);
                let stamp = (stamp_of(payload) + 1).max(version_count(last));
                let raised = control(depth_of(payload), stamp);
                lock::hold_with(lock_word, self.lock_owner(), raised);
                crash_point!("remove.stamped");
                done.1 = self.publish_entry(&place, 0)?;
                // A second time, so that a walk that began in between starts again. If the process
                // dies in between, a walk can return a key twice that is deleted and created during
                // the walk.
                let raised = control(depth_of(payload), stamp + 1);
                lock::hold_with(lock_word, self.lock_owner(), raised);
            }
            // A removal of an absent record changes nothing.
            (WriteDecision::Remove | WriteDecision::Keep, _, _) => {
                done.0.decision = WriteDecision::Keep;
            }
        }
        debug_assert_eq!(
            done.0.version_after.is_some(),
            done.0.decision == WriteDecision::Publish,
            "a published record has a version"
        );
        Ok(done)
    }

    /// Stores `new` in the slot of the key, or in an empty word. Returns the class of the retired
    /// record.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its answer would travel through memory")]
    fn publish_entry(&self, place: &SlotLookup<'_>, new: u64) -> Result<Option<u8>> {
        let (map, arena) = (self.map(), self.arena());
        if place.entry_at == 0 && place.empty_at == 0 {
            self.publish_in_new_line(&arena, place, new)?;
            return Ok(None);
        }
        let (at, old) = match place.entry_at {
            0 => (place.empty_at, 0),
            found => (found, place.entry),
        };
        self.store_if_planted("commit-unrecorded", at, new)?;
        write_undo(&arena, at, old, new, op::RECORD);
        crash_point!("publish.recorded");
        publish_before_reads(map.word(at)?, new);
        crash_point!("publish.committed");
        self.unlock_if_planted(LockSlot::Bucket)?;
        let class = match place.line {
            Some(line) => retire_cell(&arena, (old, line), new, Disposal::Retired)?,
            None => None,
        };
        crash_point!("publish.retired");
        close_undo_record(&arena);
        Ok(class)
    }

    /// The chain is full: its last word becomes a link to a new line that holds the displaced entry
    /// and the new one.
    #[cold]
    fn publish_in_new_line(
        &self,
        arena: &Arena<'_>,
        place: &SlotLookup<'_>,
        new: u64,
    ) -> Result<()> {
        invariant!(place.entry_at == 0 && place.empty_at == 0, "the chain has room already");
        invariant!(place.last_at != 0, "a chain has a last word");
        invariant!(new != 0, "an empty word is added to a chain");
        invariant!(self.has_lock(LockSlot::Bucket), "a chain grows without its bucket's lock");
        if place.entries >= ENTRIES_MAX {
            return Err(Error::Full {
                detail: "the index has no room to grow: delete records, or create a larger region"
                    .to_owned(),
                heap: None,
            });
        }
        let line = self.new_line(&[place.last, new])?;
        write_undo(arena, place.last_at, place.last, link(line), op::WORD);
        crash_point!("publish.recorded");
        publish_before_reads(self.map().word(place.last_at)?, link(line));
        crash_point!("publish.committed");
        close_undo_record(arena);
        Ok(())
    }

    /// Allocates a pending overflow line with these entries (at most five).
    pub(crate) fn new_line(&self, entries: &[u64]) -> Result<u64> {
        self.fill_line(self.allocate(LINE)?, entries)
    }

    /// Makes a pending cell an overflow line with these entries (at most five). Returns it.
    pub(crate) fn fill_line(&self, at: u64, entries: &[u64]) -> Result<u64> {
        invariant!(entries.len() <= LINE_WORDS as usize, "{} entries in one line", entries.len());
        let head = CellHeader {
            kind: CellKind::OverflowLine,
            flags: 0,
            namespace: 0,
            body: 0,
            key: 0,
            children: 0,
            hash: 0,
        };
        let word = self.map().word(at)?;
        let class = word.load(crate::atomic::Ordering::Relaxed) & 0xff;
        word.store(class | cell::kind_in_head(head.kind), crate::atomic::Ordering::Relaxed);
        for index in 0..LINE_WORDS {
            // The words behind the last entry are empty.
            let value = entries.get(index as usize).copied().unwrap_or(0);
            self.map()
                .word(at + LINE_FIRST + 8 * index)?
                .store(value, crate::atomic::Ordering::Relaxed);
        }
        Ok(at)
    }
}

/// The most entries of a bucket. Its chain must stay shorter than the limit of every walk.
pub(crate) const ENTRIES_MAX: u32 = (CHAIN_MAX - 2) * (LINE_WORDS as u32 - 1);

const _: () = assert!(ENTRIES_MAX > LAST as u32, "a full bucket can grow a chain");
const _: () = assert!(ENTRIES_OF.len() == 128 && WORDS == LAST + 1);

/// A bucket with this many entries after an insert is crowded: the index grows by one bucket.
pub(crate) const CROWDED_ENTRIES: u32 = 6;

/// As [`locate`], for a record that may have been read. If its word is unchanged, the key is not
/// compared again: the reader's pin has protected the cell, and with it the key, since then.
#[inline(always)]
#[expect(clippy::inline_always, reason = "its answer would travel through memory")]
pub(crate) fn locate_target<'m>(
    map: &'m Map,
    bucket_at: u64,
    of: WriteTarget<'_>,
) -> Result<SlotLookup<'m>, Corruption> {
    if let KnownSlot::Read(token) | KnownSlot::Probed(token) = of.known
        && token.slot_at & !(LINE - 1) == bucket_at
        && load(map.word(token.slot_at)?) == token.word
    {
        let (cell, line) = Cell::with_line(map, units_of(token.word))?;
        if matches!(of.known, KnownSlot::Read(_)) || has_key(cell, &of)? {
            return Ok(SlotLookup::found(token.slot_at, token.word, line));
        }
    }
    locate(map, bucket_at, of.hash, of.key)
}

/// True if a record has this key. The caller holds the lock of its bucket.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a call would cost 1 % of a put")]
fn has_key(cell: Cell<'_>, of: &WriteTarget<'_>) -> Result<bool, Corruption> {
    Ok(cell.hash_low() == of.hash as u32 && is_equal(cell.key()?, of.key))
}

/// Finds the key in a locked bucket, or room for it.
///
/// The usual cases, a key in the bucket's line and an absent key, take no branch on a position:
/// positions are random, and a misprediction would wait for the line.
#[inline]
pub(crate) fn locate<'m>(
    map: &'m Map,
    bucket_at: u64,
    hash: u64,
    key: &[u8],
) -> Result<SlotLookup<'m>, Corruption> {
    let tag = hash_tag(hash);
    let [_, entries @ ..] = map.words::<WORDS>(bucket_at)?;
    let (mut index, mut found, mut last) = (0, 0, 0);
    // Each word is done with before the next is loaded: seven at once do not fit into registers.
    for (place, word) in (0..).zip(entries) {
        last = load(word);
        let is_it = entry_tag(last) == tag;
        index = if is_it { place } else { index };
        found = if is_it { last } else { found };
    }
    if found == 0 && !is_link(last) {
        // No entry has the tag, and the chain has no more lines: the key is absent.
        return Ok(room(bucket_at, entries));
    }
    if found != 0 && !is_intent(found) {
        let (cell, line) = Cell::with_line(map, units_of(found))?;
        if cell.hash_low() == hash as u32 && is_equal(cell.key()?, key) {
            return Ok(SlotLookup::found(bucket_at + 8 + 8 * index, found, line));
        }
    }
    locate_in_chain(map, bucket_at, hash, key)
}

/// The place of a new key in a bucket without overflow lines, whose lock is held.
#[inline]
fn room(bucket_at: u64, words: &[AtomicU64; LAST]) -> SlotLookup<'static> {
    // One bit for each empty word, and the number of entries that they leave.
    let (mut empty, mut last) = (0_u32, 0);
    for (place, word) in words.iter().enumerate() {
        last = load(word);
        empty |= u32::from(last == 0) << place;
    }
    let entries = guaranteed(ENTRIES_OF.get(empty as usize).copied(), "a line has seven entries");
    let place = u64::from(empty.trailing_zeros());
    let empty_at = if empty == 0 { 0 } else { bucket_at + 8 + 8 * place };
    let last_at = link_slot(bucket_at);
    let entries = u32::from(entries);
    SlotLookup { entry_at: 0, entry: 0, line: None, empty_at, last_at, last, entries }
}

/// The number of entries of a bucket line, by the set of its empty words.
#[expect(clippy::indexing_slicing, reason = "evaluated at compile time")]
const ENTRIES_OF: [u8; 1 << LAST] = {
    let mut entries = [0; 1 << LAST];
    let mut set = 0;
    while set < entries.len() {
        entries[set] = (LAST as u32 - set.count_ones()) as u8;
        set += 1;
    }
    entries
};

/// As [`locate`], if the key is absent, is in an overflow line, or shares its tag with another key.
#[inline(never)]
fn locate_in_chain<'m>(
    map: &'m Map,
    bucket_at: u64,
    hash: u64,
    key: &[u8],
) -> Result<SlotLookup<'m>, Corruption> {
    let tag = hash_tag(hash);
    let (empty_at, last_at, last, entries) = (0, 0, 0, 0);
    let mut place =
        SlotLookup { entry_at: 0, entry: 0, line: None, empty_at, last_at, last, entries };
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
        // Under the lock an intent belongs to the lock's holder and to another key.
        if entry_tag(value) == tag && !is_intent(value) {
            let (cell, line) = Cell::with_line(map, units_of(value))?;
            if has_key_at(&cell, hash, key)? {
                place.entry_at = at;
                place.entry = value;
                place.line = Some(line);
                return Ok(false);
            }
        }
        Ok(true)
    })?;
    Ok(place)
}

/// After the commit: retires the cells that only `old` has, and closes the undo record. Idempotent:
/// recovery calls it as well. Returns the class of the old cell.
#[inline]
pub(crate) fn finish_record(
    arena: &Arena<'_>,
    old: u64,
    new: u64,
) -> Result<Option<u8>, Corruption> {
    let class = retire_record(arena, old, new, Disposal::Retired)?;
    crash_point!("publish.retired");
    close_undo_record(arena);
    Ok(class)
}

/// What becomes of cells that were replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposal {
    /// They are retired.
    Retired,
    /// The log holds them.
    Held,
}

/// Retires the cells that the record `old` has and `new` does not, or lets the log hold them. Both
/// may be 0. Idempotent. Returns the class of the old cell.
#[inline]
pub(crate) fn retire_record(
    arena: &Arena<'_>,
    old: u64,
    new: u64,
    disposal: Disposal,
) -> Result<Option<u8>, Corruption> {
    if old == 0 {
        return Ok(None);
    }
    retire_cell(arena, (old, arena.map.line(units_of(old))?), new, disposal)
}

/// As [`retire_record`], given the first line of the old record's cell.
#[inline]
fn retire_cell(
    arena: &Arena<'_>,
    (old, line): (u64, RecordLine<'_>),
    new: u64,
    disposal: Disposal,
) -> Result<Option<u8>, Corruption> {
    let cell = Cell::of_line(arena.map, units_of(old), line);
    if cell.children() > 0 {
        each_replaced_child(arena.map, cell, new, |child| dispose(arena, child, disposal))?;
    }
    match disposal {
        Disposal::Retired if is_planted("retire-left-out") => Ok(None),
        Disposal::Retired => Ok(Some(arena.retire_line((cell.at(), line))?)),
        Disposal::Held => arena.hold(cell.at()).map(|()| None),
    }
}

fn dispose(arena: &Arena<'_>, cell: u64, disposal: Disposal) -> Result<(), Corruption> {
    match disposal {
        Disposal::Retired => arena.retire(cell).map(drop),
        Disposal::Held => arena.hold(cell),
    }
}

/// The bytes and the number of the cells that the record `old` has and `new` does not.
pub(crate) fn replaced(map: &Map, old: u64, new: u64) -> Result<(u64, u64), Corruption> {
    match old {
        0 => Ok((0, 0)),
        _ => replaced_cell(map, Cell::at_units(map, units_of(old))?, new),
    }
}

/// As [`replaced`], given the cell of the old record.
#[inline]
pub(crate) fn replaced_cell(map: &Map, old: Cell<'_>, new: u64) -> Result<(u64, u64), Corruption> {
    let (mut bytes, mut cells) = (cell::bytes_at(map, old.at())?, 1);
    if old.children() != 0 {
        each_replaced_child(map, old, new, |child| {
            (bytes, cells) = (bytes + cell::bytes_at(map, child)?, cells + 1);
            Ok(())
        })?;
    }
    Ok((bytes, cells))
}

/// Calls `each` for the children that the record `old` has and `new` does not.
#[inline]
fn each_replaced_child(
    map: &Map,
    old: Cell<'_>,
    new: u64,
    each: impl FnMut(u64) -> Result<(), Corruption>,
) -> Result<(), Corruption> {
    // The usual change keeps all of them.
    if new != 0 && Cell::new(map, at_of(new))?.children_bytes()? == old.children_bytes()? {
        return Ok(());
    }
    each_of_some_children(map, old, new, each)
}

#[cold]
fn each_of_some_children(
    map: &Map,
    old: Cell<'_>,
    new: u64,
    mut each: impl FnMut(u64) -> Result<(), Corruption>,
) -> Result<(), Corruption> {
    const SAME: &str = "both records have the children that are the same";
    let mut kept: Vec<[u8; 8]> = Vec::new();
    let (mut same, mut same_last) = (0, 0);
    if new != 0 {
        let cell = Cell::new(map, at_of(new))?;
        // A change of one of many parts keeps those before it and those behind it in their order.
        let (one, other) = (old.children_bytes()?, cell.children_bytes()?);
        let ((one, _), (other, _)) = (one.as_chunks::<8>(), other.as_chunks::<8>());
        same = one.iter().zip(other).take_while(|pair| pair.0 == pair.1).count();
        let one = guaranteed(one.get(same..), SAME);
        let other = guaranteed(other.get(same..), SAME);
        same_last = one.iter().rev().zip(other.iter().rev()).take_while(|(a, b)| a == b).count();
        kept.extend(guaranteed(other.get(..other.len() - same_last), SAME));
        kept.sort_unstable();
    }
    for index in same as u64..old.children() - same_last as u64 {
        let child = old.child(index)?;
        if kept.binary_search(&child.to_le_bytes()).is_err() {
            // The offset is read from the region: a stray one must not change another record.
            let cell = Cell::new(map, child)?;
            if !matches!(cell.kind()?, CellKind::Block | CellKind::Counter) {
                return Err(Corruption("a record owns a cell that is not a block"));
            }
            each(child)?;
        }
    }
    Ok(())
}
