//! Grows the index by one bucket: bucket `q = n` takes from bucket `p = n - 2^level` the keys whose
//! next hash bit is set (`spec/region.md`, section 4, "split"; orderings O2 to O4).

use nearstate_model::{Error, Result, invariant};

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::heap::cell::{Cell, LINE_FIRST, LINE_WORDS};
use crate::index::bucket::{
    LAST, WORDS, at_of, control, depth_of, is_link, link, load, publish, stamp_of,
};
use crate::index::lookup::{CHAIN_MAX, link_slot, walk_chain};
use crate::layout::{
    CATALOG_BUCKETS, CATALOG_COMMITTED, CATALOG_SPLIT, Corruption, LINE, SEGMENTS, catalog_at,
    seal, unseal,
};
use crate::member::arena::{Arena, LockSlot, close_undo_record, op, undo, write_undo};
use crate::member::lock;
use crate::member::{LOCK_WAIT_SHORT, Member};
use crate::region::index_table::{
    IndexTable, buckets_of, first_of, segment_of, segment_slot, segment_word,
};
use crate::region::map::Map;

/// Lines of a segment that get pages at once: 256 KiB.
const COMMIT_LINES: u64 = 4096;

/// A chain of this length means that splitting has not kept up. The inserter then waits briefly for
/// the lock instead of leaving the work to its holder.
const CROWDED_WAIT_ENTRIES: u32 = 24;

/// A bucket with at most this many entries loses its overflow lines: two less than its line holds,
/// so that the next insert does not need a new one. So does a bucket whose overflow lines are
/// empty, however many entries its own line has.
const COMPACTED_MAX: u32 = LAST as u32 - 2;

/// Inserts into crowded buckets after which the index tries again to grow, when it found no room
/// for a segment: the search reads the words of all chunks.
const GROWTH_PAUSE: u32 = 256;

/// The most buckets that one insert adds when its own bucket is crowded.
const SPLITS_MAX: u32 = 2;

/// The bucket that is split when an index has so many, the new bucket, and the depth of the former
/// before.
const fn split_of(buckets: u64) -> (u64, u64, u32) {
    let level = buckets.ilog2();
    (buckets - (1 << level), buckets, level)
}

/// Entries of a bucket that move to another one: few, unless splitting has not kept up.
#[derive(Debug, Default)]
struct MovingEntries {
    few: [u64; MOVING_FEW],
    count: usize,
    /// All of them, if they are more.
    many: Vec<u64>,
}

/// As many entries as the line of a bucket and two overflow lines have.
const MOVING_FEW: usize = 16;

impl MovingEntries {
    fn push(&mut self, entry: u64) {
        if let Some(place) = self.few.get_mut(self.count) {
            *place = entry;
        } else {
            if self.many.is_empty() {
                self.many.extend_from_slice(&self.few);
            }
            self.many.push(entry);
        }
        self.count += 1;
    }

    fn as_slice(&self) -> &[u64] {
        self.few.get(..self.count).unwrap_or(&self.many)
    }
}

impl Member {
    /// Grows the index after an insert that found `crowd` entries in its bucket. Without room to
    /// grow, chains get longer instead: that is slower, and not an error.
    pub(crate) fn split_some(&self, table: &IndexTable, crowd: u32) -> Result<()> {
        if self.may_use_reserve.get() {
            return Ok(()); // The reserve is not for the index.
        }
        let pause = self.growth_pause.get();
        if pause != 0 {
            self.growth_pause.set(pause - 1);
            return Ok(());
        }
        let times = if crowd > WORDS as u32 { SPLITS_MAX } else { 1 };
        for _ in 0..times {
            match self.split_once(table, crowd >= CROWDED_WAIT_ENTRIES) {
                Ok(()) => {}
                // A living process holds what this needs. A later insert grows the index.
                Err(error @ (Error::Full { .. } | Error::Stalled { .. })) => {
                    if matches!(error, Error::Full { .. }) {
                        self.growth_pause.set(GROWTH_PAUSE);
                    }
                    return self.free_pending();
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn split_once(&self, table: &IndexTable, is_pressing: bool) -> Result<()> {
        let at = catalog_at(table.index()) + CATALOG_SPLIT;
        if is_pressing {
            self.acquire_within(at, LockSlot::Split, LOCK_WAIT_SHORT)?;
        } else {
            self.name_lock(at, LockSlot::Split);
            if lock::try_take(self.map().word(at)?, self.lock_owner()).is_err() {
                // Another member grows this index.
                self.unname_lock(LockSlot::Split);
                return Ok(());
            }
        }
        crash_point!("split.locked");
        let split = self.split_under_lock(table);
        self.release(at, LockSlot::Split, 0)?;
        split
    }

    fn split_under_lock(&self, table: &IndexTable) -> Result<()> {
        invariant!(self.has_lock(LockSlot::Split), "an index grows without its split lock");
        let n = table.refresh(self.map())?;
        let (p, q, level) = split_of(n);
        invariant!(p < q, "bucket {p} is split into {q}");
        if segment_of(q) >= SEGMENTS || level >= 32 {
            return Ok(()); // Four thousand million buckets: chains grow from here on.
        }
        self.commit_bucket(table, q)?;
        let p_at = table.bucket_at(self.map(), p)?;
        // Cached if this member has made the last split.
        self.prefetch_headers(p_at)?;
        // A process that is stopped while it writes to p must not stop inserts into other buckets.
        let Some(payload) = self.try_acquire(p_at, LockSlot::Bucket)? else { return Ok(()) };
        let done = self.split_locked(table, p_at, payload, level, q);
        let payload = self.map().word(p_at)?.load(Ordering::Relaxed);
        self.release(p_at, LockSlot::Bucket, payload)?;
        crash_point!("split.unlocked");
        if done.is_err() && self.arena().get(undo::OP) == op::NONE {
            self.free_pending()?;
        }
        done?;
        self.prefetch_next_splits(table, q + 1)
    }

    /// Prefetches the headers of the records of a bucket's line, which show which entries move when
    /// it is split.
    fn prefetch_headers(&self, at: u64) -> Result<(), Corruption> {
        for entry in self.map().words::<WORDS>(at)?.iter().skip(1).map(load) {
            if entry != 0 {
                self.map().prefetch(at_of(entry));
            }
        }
        Ok(())
    }

    /// After a split to `n` buckets, which some inserts separate from the next one: prefetches what
    /// the next split reads, and the line with which that one will do the same.
    fn prefetch_next_splits(&self, table: &IndexTable, n: u64) -> Result<()> {
        let (p, q, _) = split_of(n);
        let map = self.map();
        self.prefetch_headers(table.bucket_at(map, p)?)?;
        map.prefetch(table.bucket_at(map, split_of(n + 1).0)?);
        // A bucket of a segment that does not exist has no line yet.
        map.prefetch(LINE.wrapping_mul(table.known_line(q)));
        Ok(())
    }

    /// Makes sure that the line of bucket `q` has pages.
    fn commit_bucket(&self, table: &IndexTable, q: u64) -> Result<()> {
        let segment = segment_of(q);
        let index = table.index();
        if self.map().word(segment_slot(index, segment))?.load(Ordering::Acquire) == 0 {
            self.add_segment(index, segment)?;
        }
        let word = self.map().word(catalog_at(index) + CATALOG_COMMITTED)?;
        let committed = word.load(Ordering::Acquire);
        if q >= unseal(committed, "the count of buckets with pages has a flipped bit")? {
            invariant!(first_of(segment) <= q, "bucket {q} lies before its segment {segment}");
            let left = first_of(segment) + buckets_of(segment) - q;
            invariant!(left > 0, "bucket {q} lies behind its segment {segment}");
            let lines = left.min(COMMIT_LINES);
            self.map().commit(table.bucket_at(self.map(), q)?, lines * LINE)?;
            word.store(seal(q + lines), Ordering::Release);
            crash_point!("segment.committed");
        }
        Ok(())
    }

    /// Allocates and publishes a segment, under the split lock, or, for the first one, the attach
    /// lock.
    pub(crate) fn add_segment(&self, index: u32, segment: usize) -> Result<()> {
        invariant!(segment < SEGMENTS, "an index has no segment {segment}");
        let at = self.allocate_extent((buckets_of(segment) + 1) * LINE, segment == 0)?;
        let word_at = segment_slot(index, segment);
        let sealed = segment_word(at);
        write_undo(&self.arena(), word_at, 0, sealed, op::SET_ONCE);
        publish(self.map().word(word_at)?, sealed);
        crash_point!("segment.published");
        close_undo_record(&self.arena());
        Ok(())
    }

    fn split_locked(
        &self,
        table: &IndexTable,
        p_at: u64,
        payload: u64,
        level: u32,
        q: u64,
    ) -> Result<()> {
        invariant!(level < 48 && q >= 1 << level, "bucket {q} is split off at level {level}");
        invariant!(self.has_lock(LockSlot::Bucket), "bucket {q} takes entries of an unlocked one");
        if depth_of(payload) != level {
            return Err(Error::from(Corruption("a bucket's depth does not fit the bucket count")));
        }
        let map = self.map();
        let arena = self.arena();
        let mut moving = MovingEntries::default();
        walk_chain(map, p_at, |_, entry| {
            if entry != 0 && is_moving(map, entry, level)? {
                moving.push(entry);
            }
            Ok(true)
        })?;
        let q_at = table.bucket_at(map, q)?;
        self.name_lock(q_at, LockSlot::NewBucket);
        if let Err(error) =
            self.fill_bucket(q_at, control(level + 1, stamp_of(payload)), moving.as_slice())
        {
            // The new bucket is locked last, so it is not locked yet.
            self.unname_lock(LockSlot::NewBucket);
            return Err(error);
        }
        crash_point!("split.built");
        arena.set(undo::SPLIT_NAMESPACE, u64::from(table.index()));
        arena.set(undo::SPLIT_BUCKET, p_at);
        write_undo(&arena, link_slot(p_at), 0, u64::from(level) << 48 | q, op::SPLIT);
        crash_point!("split.recorded");
        let committed = control(level + 1, stamp_of(payload));
        lock::hold_with(map.word(p_at)?, self.lock_owner(), committed);
        crash_point!("split.committed");
        arena.set(undo::PENDING, 0);
        let finished = finish(&arena, self.lock_owner()).and_then(|()| table.refresh(map));
        self.release(q_at, LockSlot::NewBucket, committed)?;
        finished.map(drop).map_err(Error::from)
    }

    /// Fills a bucket that readers cannot reach yet. Locked by this member.
    fn fill_bucket(&self, at: u64, payload: u64, entries: &[u64]) -> Result<()> {
        invariant!(self.has_lock(LockSlot::NewBucket), "a new bucket is filled without its lock");
        invariant!(entries.iter().all(|entry| *entry != 0), "an empty word moves to a new bucket");
        let line = self.map().words::<WORDS>(at)?;
        let (inline, rest) = match entries.len() {
            0..=LAST => (entries, [].as_slice()),
            _ => entries.split_at(LAST - 1),
        };
        invariant!(inline.len() + rest.len() == entries.len(), "each entry has one place");
        invariant!(rest.is_empty() || inline.len() < LAST, "the last word is kept for the link");
        let last = self.build_chain(rest, || self.allocate(LINE))?;
        let [first, words @ ..] = line;
        lock::hold_with(first, self.lock_owner(), payload);
        for (index, word) in words.iter().enumerate() {
            // Words without an entry are empty.
            word.store(inline.get(index).copied().unwrap_or(0), Ordering::Relaxed);
            crash_point!("split.filling");
        }
        if last != 0 {
            line[LAST].store(last, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Builds overflow lines for these entries, from the last to the first, of pending cells.
    /// Returns the link to the first.
    pub(crate) fn build_chain(
        &self,
        entries: &[u64],
        allocate: impl Fn() -> Result<u64>,
    ) -> Result<u64> {
        let room = LINE_WORDS as usize;
        let mut next = 0;
        let mut rest = entries;
        while !rest.is_empty() {
            let take = if next == 0 { room.min(rest.len()) } else { (room - 1).min(rest.len()) };
            let (before, these) = rest.split_at(rest.len() - take);
            invariant!(!these.is_empty(), "an overflow line without entries is built");
            let mut words = [0; LINE_WORDS as usize];
            for (word, entry) in words.iter_mut().zip(these) {
                *word = *entry;
            }
            if next != 0 {
                let [.., last] = &mut words;
                *last = next;
            }
            next = link(self.fill_line(allocate()?, &words)?);
            rest = before;
        }
        Ok(next)
    }
}

impl Member {
    /// After a removal: removes the overflow lines of a bucket if they are empty, or if all entries
    /// fit into its line with room to spare. An empty line does not say to which bucket it belongs,
    /// so it keeps its chunk from large cells until a search finds it. A bucket whose lock is busy
    /// keeps them until the next removal.
    #[cold]
    pub(crate) fn compact_bucket(&self, at: u64) -> Result<()> {
        let Some(_) = self.try_acquire(at, LockSlot::Bucket)? else { return Ok(()) };
        let done = self.compact_locked(at);
        let payload = self.map().word(at)?.load(Ordering::Relaxed);
        self.release(at, LockSlot::Bucket, payload)?;
        Ok(done?)
    }

    fn compact_locked(&self, at: u64) -> Result<(), Corruption> {
        let (mut entries, mut in_lines) = (0, 0);
        walk_chain(self.map(), at, |place, entry| {
            entries += u32::from(entry != 0);
            in_lines += u32::from(entry != 0 && !(at..at + LINE).contains(&place));
            Ok(true)
        })?;
        let last = load(self.map().word(link_slot(at))?);
        if !is_link(last) || in_lines != 0 && entries > COMPACTED_MAX {
            return Ok(());
        }
        let arena = self.arena();
        arena.set(undo::SPLIT_BUCKET, at);
        write_undo(&arena, link_slot(at), last, 0, op::COMPACT);
        crash_point!("compact.recorded");
        finish_compaction(&arena, self.lock_owner()).inspect_err(|_| arena.set(undo::OP, op::NONE))
    }
}

/// Removes the overflow lines of the recorded bucket, which is locked. Idempotent: recovery runs it
/// again.
pub(crate) fn finish_compaction(arena: &Arena<'_>, owner: u64) -> Result<(), Corruption> {
    let at = arena.get(undo::SPLIT_BUCKET);
    let recorded = arena.get(undo::OLD);
    let cut = arena.map.word(link_slot(at))?;
    if load(cut) == recorded {
        compact(arena, owner, at, recorded)?;
    }
    if load(cut) != recorded {
        retire_lines(arena, recorded)?;
    }
    arena.set(undo::OP, op::NONE);
    crash_point!("compact.done");
    Ok(())
}

/// After the overflow lines of a bucket were replaced: retires the old ones. Idempotent: recovery
/// runs it again.
pub(crate) fn finish_lines(arena: &Arena<'_>, old: u64) -> Result<(), Corruption> {
    retire_lines(arena, old)?;
    crash_point!("lines.retired");
    close_undo_record(arena);
    Ok(())
}

/// True if the record of this entry moves to the new bucket.
fn is_moving(map: &Map, entry: u64, level: u32) -> Result<bool, Corruption> {
    let bit = Cell::new(map, at_of(entry))?.hash_low().checked_shr(level);
    Ok(bit.ok_or(Corruption("a recorded split has a level that no bucket has"))? & 1 == 1)
}

/// True if the split in the undo record is committed.
pub(crate) fn is_committed(arena: &Arena<'_>) -> Result<bool, Corruption> {
    let level = (arena.get(undo::NEW) >> 48) as u32;
    let control = arena.map.word(arena.get(undo::SPLIT_BUCKET))?.load(Ordering::Acquire);
    match depth_of(control) {
        depth if depth == level => Ok(false),
        depth if depth == level + 1 => Ok(true),
        _ => Err(Corruption("a recorded split has a bucket of neither depth")),
    }
}

/// Completes a committed split. Idempotent: recovery runs it again.
pub(crate) fn finish(arena: &Arena<'_>, owner: u64) -> Result<(), Corruption> {
    let recorded = arena.get(undo::NEW);
    let (level, q) = ((recorded >> 48) as u32, recorded & ((1 << 48) - 1));
    let p_at = arena.get(undo::SPLIT_BUCKET);
    clean(arena, owner, p_at, level)?;
    let index = u32::try_from(arena.get(undo::SPLIT_NAMESPACE))
        .map_err(|_| Corruption("a recorded split names no namespace"))?;
    let word = arena.map.word(catalog_at(index) + CATALOG_BUCKETS)?;
    let n = unseal(word.load(Ordering::Acquire), "a namespace's bucket count has a flipped bit")?;
    if n == q {
        word.store(seal(q + 1), Ordering::Release);
    }
    crash_point!("split.counted");
    arena.set(undo::OP, op::NONE);
    Ok(())
}

/// Removes the moved entries from `p`, and moves the remaining entries of overflow lines into its
/// line if they fit.
fn clean(arena: &Arena<'_>, owner: u64, p_at: u64, level: u32) -> Result<(), Corruption> {
    let map = arena.map;
    walk_chain(map, p_at, |at, entry| {
        if entry != 0 && is_moving(map, entry, level)? {
            publish(map.word(at)?, 0);
            crash_point!("split.zeroing");
        }
        Ok(true)
    })?;
    // The stamp changes when entries leave, so that a walk over p detects it (O3).
    let control_word = map.word(p_at)?;
    let seen = control_word.load(Ordering::Relaxed);
    lock::hold_with(control_word, owner, control(depth_of(seen), stamp_of(seen) + 1));
    crash_point!("split.zeroed");
    let cut = link_slot(p_at);
    let last = load(map.word(cut)?);
    if is_link(last) {
        compact(arena, owner, p_at, last)?;
    }
    // The lines of a removed link are unreachable now.
    let old = arena.get(undo::OLD);
    if old != 0 && load(map.word(cut)?) != old {
        retire_lines(arena, old)?;
    }
    Ok(())
}

fn compact(arena: &Arena<'_>, owner: u64, p_at: u64, last: u64) -> Result<(), Corruption> {
    let map = arena.map;
    let line = map.words::<WORDS>(p_at)?;
    let inline: Vec<u64> = line[1..LAST].iter().map(load).collect();
    let mut missing = Vec::new();
    walk_chain(map, p_at, |at, entry| {
        let is_overflow = !(p_at..p_at + LINE).contains(&at);
        if is_overflow && entry != 0 && !inline.contains(&entry) {
            missing.push(entry);
        }
        Ok(true)
    })?;
    let room = inline.iter().filter(|entry| **entry == 0).count();
    if missing.len() > room + 1 {
        return Ok(());
    }
    let mut rest = missing.into_iter();
    for word in line[1..LAST].iter().filter(|word| load(word) == 0) {
        // Room that is left stays empty.
        publish(word, rest.next().unwrap_or(0));
        crash_point!("split.doubling");
    }
    crash_point!("split.doubled");
    let control_word = line[0].load(Ordering::Relaxed);
    let stamped = control(depth_of(control_word), stamp_of(control_word) + 1);
    lock::hold_with(&line[0], owner, stamped);
    crash_point!("split.stamped");
    arena.set(undo::OLD, last);
    publish(&line[LAST], rest.next().unwrap_or(0));
    if rest.next().is_some() {
        // The words changed under the lock of this member: another process has written to them.
        return Err(Corruption("a bucket's line lost the room for its entries"));
    }
    crash_point!("split.cut");
    Ok(())
}

/// Retires the lines that a link leads to.
fn retire_lines(arena: &Arena<'_>, first: u64) -> Result<(), Corruption> {
    let mut next = first;
    for _ in 0..CHAIN_MAX {
        if !is_link(next) {
            return Ok(());
        }
        let at = at_of(next);
        next = load(arena.map.word(at + LINE_FIRST + 8 * (LINE_WORDS - 1))?);
        arena.retire(at)?;
    }
    Err(Corruption("a bucket's chain has no end"))
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_move_are_kept_in_their_order_however_many_they_are() {
        let mut moving = MovingEntries::default();
        for count in 1..=3 * MOVING_FEW as u64 {
            moving.push(count);
            assert!(moving.as_slice().iter().copied().eq(1..=count), "{count} entries");
            assert_eq!(moving.many.is_empty(), count <= MOVING_FEW as u64, "{count} entries");
        }
    }

    #[test]
    fn each_split_makes_one_bucket_of_the_first_that_was_not_split_at_its_depth() {
        for (buckets, expected) in [(4, (0, 4, 2)), (5, (1, 5, 2)), (7, (3, 7, 2)), (8, (0, 8, 3))]
        {
            assert_eq!(split_of(buckets), expected);
        }
    }
}
