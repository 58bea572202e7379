//! Allocates cells: from the member's own queue, from a pool, from its bump range, from the
//! frontier, and as a last resort from wherever a free cell is left (`spec/region.md`, sections 3
//! and 6).
//!
//! An allocated cell is *pending* until a record that contains it is published, or until it is
//! freed.

use std::time::Duration;

use nearstate_model::{Error, Result, invariant};

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::heap::cell::{self, WORD_HEAD, WORD_NEXT, WORD_RETIRED, WORD_VERSION};
use crate::heap::class::{self, CLASSES};
use crate::layout::{
    CLASS_EXTENT, Corruption, LINE, MEMBER_PIN, MEMBER_STATE, POOL_HEAD, QUEUES, SUPER_FRONTIER,
    SUPER_FRONTIER_LOCK, member_at, pool_at, seal, unseal,
};
use crate::member::arena::{Arena, BUMP_SMALL_CELL_MAX, Bump, LockSlot, direction, op, undo};
use crate::member::pin;
use crate::member::{LOCK_WAIT_MAX, LOCK_WAIT_SHORT, Member};
use crate::region::member_table::{member_slots_used, state};

/// Bytes that a member takes from the frontier at once for small cells. Large enough that taking is
/// rare (every 240 records of 1 KiB), small enough that 10,000 sessions hold at most 2.5 GiB.
const CHUNK_BYTES: u64 = 256 << 10;

/// Bytes of retired cells of one class that a member collects before it advances the epoch. The
/// barrier costs some microseconds, and waiting cells should stay in the second-level cache.
const PRESSURE_BYTES: u64 = 256 << 10;

/// A queue that exceeds the pressure by this factor moves to the pool as a whole. Another process
/// can then insert what this one deletes.
const QUEUE_EXCESS: u64 = 6;

/// Cells taken from a pool at once. Their headers are cache misses, and the pool is locked
/// meanwhile.
const POOL_BATCH: u64 = 32;

/// Bytes of a new cell that are prefetched before the copy: what one core can have in flight. The
/// processor's sequential prefetch loads the rest.
const PREFETCH_BYTES: u64 = 2048;

const _: () = assert!(CHUNK_BYTES.is_multiple_of(LINE) && CHUNK_BYTES >= BUMP_SMALL_CELL_MAX);
const _: () = assert!(QUEUE_EXCESS > 1, "a queue keeps what its member needs");
const _: () = assert!(POOL_BATCH > 0 && PREFETCH_BYTES.is_multiple_of(LINE));

const FRONTIER: &str = "the heap's frontier has a flipped bit";

/// How many cells of a class are retired before the epoch advances.
#[inline]
const fn pressure_of(class: u8) -> u64 {
    debug_assert!((class as usize) < QUEUES, "a class has a queue");
    let cells = PRESSURE_BYTES / if class < CLASSES { class::bytes_of(class) } else { u64::MAX };
    if cells == 0 {
        1
    } else if cells > 256 {
        256
    } else {
        cells
    }
}

impl Member {
    /// Allocates a pending cell of at least `bytes` (header included).
    ///
    /// Cost: some stores to lines of this member; a barrier every few hundred calls; a system call
    /// that extends the file every 256 KiB.
    ///
    /// # Errors
    /// `Full`, `ValueTooLarge`, `Stalled`, `Damaged`, `System`.
    #[inline]
    pub fn allocate(&self, bytes: u64) -> Result<u64> {
        let Some(class) = class::class_of(bytes) else {
            return Err(Error::ValueTooLarge { bytes: bytes as usize });
        };
        let arena = self.arena()?;
        let queue = arena.queue(class)?;
        let head = queue.head.load(Ordering::Relaxed);
        if head != 0 && self.is_reusable(head)? {
            arena.pop(queue, head)?;
            self.prefetch_cell(queue.head.load(Ordering::Relaxed), bytes);
            crash_point!("alloc.done");
            return Ok(head);
        }
        let cell = self.allocate_slowly(&arena, class)?;
        crash_point!("alloc.done");
        Ok(cell)
    }

    /// Prefetches the lines of the cell that the next call will return. They were last used long
    /// ago, and the work until then hides the misses.
    #[inline]
    fn prefetch_cell(&self, at: u64, bytes: u64) {
        let mut line = 0;
        while line < bytes.min(PREFETCH_BYTES) {
            self.map().prefetch(at + line);
            line += LINE;
        }
    }

    #[inline]
    fn is_reusable(&self, cell: u64) -> Result<bool, Corruption> {
        let retired = cell::word(self.map(), cell, WORD_RETIRED)?.load(Ordering::Relaxed);
        Ok(pin::is_reusable(retired, self.safe.get()))
    }

    fn allocate_slowly(&self, arena: &Arena<'_>, class: u8) -> Result<u64> {
        invariant!(class < CLASSES, "class {class} does not exist");
        let queue = arena.queue(class)?;
        if self.is_pool_better(class, queue.head.load(Ordering::Relaxed))? {
            match self.refill_from_pool(class, LOCK_WAIT_SHORT) {
                // A living process holds the pool: fresh memory is used instead.
                Ok(()) | Err(Error::Stalled { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let head = queue.head.load(Ordering::Relaxed);
        if head != 0 {
            self.pressure.set(self.pressure.get() + 1);
            // A new member knows no safe epoch. Without one query each short-lived session would
            // take fresh memory while the pools are full.
            if self.safe.get() == 0 || self.pressure.get() >= pressure_of(class) {
                self.advance()?;
            }
            if self.is_reusable(head)? {
                arena.pop(queue, head)?;
                return Ok(head);
            }
        }
        match self.allocate_fresh(class) {
            Err(Error::Full { detail }) => self.allocate_last_resort(arena, class, &detail),
            other => other,
        }
    }

    /// True if a pool has a cell and the member's own queue has none that can be reused. Reads
    /// without the lock; a wrong answer only costs time.
    fn is_pool_better(&self, class: u8, head: u64) -> Result<bool, Corruption> {
        let pool = self.map().word(pool_at(class) + POOL_HEAD)?.load(Ordering::Acquire);
        if pool == 0 || head == 0 {
            return Ok(pool != 0);
        }
        Ok(!self.is_reusable(head)? && self.is_reusable(pool)?)
    }

    /// Allocates from the bump range, which is refilled from the frontier.
    fn allocate_fresh(&self, class: u8) -> Result<u64> {
        let bytes = class::bytes_of(class);
        let which = if bytes <= BUMP_SMALL_CELL_MAX { Bump::Small } else { Bump::Large };
        self.refill(which, bytes)?;
        Ok(self.arena()?.cut(which, class, bytes)?)
    }

    /// Makes a bump range hold `bytes` that have pages.
    fn refill(&self, which: Bump, bytes: u64) -> Result<()> {
        invariant!(
            bytes != 0 && bytes.is_multiple_of(LINE),
            "a cell of {bytes} bytes is requested"
        );
        let arena = self.arena()?;
        let (mut cur, mut end, mut committed) = arena.bump(which);
        if end.saturating_sub(cur) < bytes {
            self.commit_rest(which)?;
            arena.carve(which)?;
            let chunk = if which == Bump::Small { CHUNK_BYTES.max(bytes) } else { bytes };
            self.take_chunk(which, chunk)?;
            (cur, end, committed) = arena.bump(which);
        }
        if cur + bytes > committed {
            let from = committed.max(cur);
            let more = (cur + bytes - from).max(CHUNK_BYTES).min(end - from);
            self.map().commit(from, more)?;
            arena.set_bump(which, cur, end, from + more);
        }
        Ok(())
    }

    /// Runs `work` with a leaf lock held, and releases the lock also after an error.
    fn under_leaf(&self, at: u64, work: impl FnOnce() -> Result<()>) -> Result<()> {
        self.acquire(at, LockSlot::Leaf)?;
        let done = work();
        self.release(at, LockSlot::Leaf, 0)?;
        done
    }

    /// Takes `[frontier, frontier + bytes)` as the content of an empty bump range.
    fn take_chunk(&self, which: Bump, bytes: u64) -> Result<()> {
        self.under_leaf(SUPER_FRONTIER_LOCK, || self.take_chunk_locked(which, bytes))
    }

    fn take_chunk_locked(&self, which: Bump, bytes: u64) -> Result<()> {
        invariant!(bytes != 0 && bytes.is_multiple_of(LINE), "a chunk of {bytes} bytes is taken");
        invariant!(self.has_lock(LockSlot::Leaf), "the frontier moves without its lock");
        let arena = self.arena()?;
        let word = self.map().word(SUPER_FRONTIER)?;
        let at = unseal(word.load(Ordering::Acquire), FRONTIER)? * LINE;
        let to = at.saturating_add(bytes);
        if to > self.map().len() {
            return Err(Error::Full {
                detail: "the region has reached the size it was created with".to_owned(),
            });
        }
        arena.set(undo::CHUNK_AT, at | u64::from(which == Bump::Large));
        arena.set(undo::CHUNK_TO, to);
        crash_point!("chunk.recorded");
        word.store(seal(to / LINE), Ordering::Release);
        crash_point!("chunk.taken");
        arena.set_bump(which, at, to, at);
        crash_point!("chunk.bumped");
        arena.set(undo::CHUNK_TO, 0);
        crash_point!("chunk.done");
        Ok(())
    }

    /// Allocates a pending extent: `bytes` of address space of which only the first line is
    /// guaranteed to have pages.
    pub(crate) fn allocate_extent(&self, bytes: u64) -> Result<u64> {
        invariant!(bytes > LINE && bytes.is_multiple_of(LINE), "an extent of {bytes} bytes");
        let arena = self.arena()?;
        let queue = arena.queue(CLASS_EXTENT)?;
        let head = queue.head.load(Ordering::Relaxed);
        if head != 0 && self.is_reusable(head)? && cell::bytes_at(self.map(), head)? == bytes {
            arena.pop(queue, head)?;
            return Ok(head);
        }
        self.commit_rest(Bump::Large)?;
        arena.carve(Bump::Large)?;
        match self.take_chunk(Bump::Large, bytes) {
            Ok(()) => {}
            Err(Error::Full { .. }) => return self.allocate_extent_from_free(bytes),
            Err(error) => return Err(error),
        }
        let at = arena.get(Bump::Large.front());
        self.map().commit(at, LINE)?;
        cell::word(self.map(), at, WORD_VERSION)?.store(bytes / LINE, Ordering::Relaxed);
        let cell = arena.cut(Bump::Large, CLASS_EXTENT, bytes)?;
        let head = u64::from(CLASS_EXTENT) | (cell::CellKind::Extent as u64) << 8;
        cell::word(self.map(), cell, WORD_HEAD)?.store(head, Ordering::Relaxed);
        Ok(cell)
    }

    /// The heap has no fresh room: a free cell that is large enough becomes the extent. It keeps
    /// its class, and all of it has pages.
    fn allocate_extent_from_free(&self, bytes: u64) -> Result<u64> {
        let cell = self.allocate(bytes)?;
        let word = cell::word(self.map(), cell, WORD_HEAD)?;
        let class = word.load(Ordering::Relaxed) & 0xff;
        word.store(class | (cell::CellKind::Extent as u64) << 8, Ordering::Relaxed);
        Ok(cell)
    }

    /// Adds pages to the rest of a bump range, so that it can be carved. Cells cut from it before
    /// belong to others and are not touched.
    fn commit_rest(&self, which: Bump) -> Result<()> {
        let arena = self.arena()?;
        let (cur, end, committed) = arena.bump(which);
        let from = committed.max(cur);
        if from < end {
            self.map().commit(from, end - from)?;
        }
        arena.set_bump(which, cur, end, end);
        Ok(())
    }

    /// Frees every pending cell. Nothing that contains them was published.
    ///
    /// # Errors
    /// `Forked`, `Damaged`.
    pub fn free_pending(&self) -> Result<()> {
        // The pending cells of a forked child belong to its parent, which may be publishing them.
        self.check_usable()?;
        self.operation(|| Ok(self.arena()?.roll_back()?))
    }

    /// Moves the queue of a class to the pool if it is too long. Never while the undo record names
    /// an operation: recovery must find the retired cells where they were put.
    #[inline]
    pub(crate) fn trim_queue(&self, arena: &Arena<'_>, class: u8) -> Result<()> {
        self.pressure.set(self.pressure.get() + 1);
        let count = arena.queue(class)?.count.load(Ordering::Relaxed);
        if count > QUEUE_EXCESS * pressure_of(class) {
            self.queue_to_pool(class, Duration::ZERO)?;
        }
        Ok(())
    }

    /// Moves the whole queue of a class to its pool. The cells keep their epochs. If `wait` is zero
    /// and the pool is locked, nothing is moved.
    fn queue_to_pool(&self, class: u8, wait: Duration) -> Result<()> {
        if class == CLASS_EXTENT {
            return Err(Error::from(Corruption("a retired record has the class of extents")));
        }
        let arena = self.arena()?;
        let queue = arena.queue(class)?;
        let first = queue.head.load(Ordering::Relaxed);
        if first == 0 {
            return Ok(());
        }
        let last = queue.tail.load(Ordering::Relaxed);
        let pool = pool_at(class);
        if wait.is_zero() {
            if self.try_acquire(pool, LockSlot::Leaf)?.is_none() {
                return Ok(()); // All stays in our queue, and the next cell of it tries again.
            }
        } else {
            self.acquire_within(pool, LockSlot::Leaf, wait)?;
        }
        let done = self.push_batch(class, first, last);
        self.release(pool, LockSlot::Leaf, 0)?;
        done
    }

    fn push_batch(&self, class: u8, first: u64, last: u64) -> Result<()> {
        if last == 0 {
            return Err(Error::from(Corruption("a queue has a head and no tail")));
        }
        invariant!(self.has_lock(LockSlot::Leaf), "cells move to a pool without its lock");
        invariant!(first != 0, "an empty batch moves to a pool");
        let arena = self.arena()?;
        let queue = arena.queue(class)?;
        arena.set(undo::BATCH_FIRST, first);
        arena.set(undo::BATCH_LAST, last);
        arena.set(undo::BATCH_DIRECTION, direction::TO_POOL);
        crash_point!("push_batch.recorded");
        queue.head.store(0, Ordering::Release);
        crash_point!("push_batch.cut");
        let head = self.map().word(pool_at(class) + POOL_HEAD)?;
        let next = cell::word(self.map(), last, WORD_NEXT)?;
        next.store(head.load(Ordering::Acquire), Ordering::Release);
        crash_point!("push_batch.linked");
        head.store(first, Ordering::Release);
        crash_point!("push_batch.pooled");
        queue.count.store(0, Ordering::Relaxed);
        crash_point!("push_batch.counted");
        arena.set(undo::BATCH_DIRECTION, direction::NONE);
        crash_point!("push_batch.done");
        Ok(())
    }

    /// Moves some cells of a pool to the front of the queue of their class.
    fn refill_from_pool(&self, class: u8, wait: Duration) -> Result<()> {
        invariant!((class as usize) < QUEUES, "class {class} has no pool");
        let head = self.map().word(pool_at(class) + POOL_HEAD)?;
        if head.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let pool = pool_at(class);
        self.acquire_within(pool, LockSlot::Leaf, wait)?;
        let done = self.pop_batch(class);
        self.release(pool, LockSlot::Leaf, 0)?;
        done
    }

    fn pop_batch(&self, class: u8) -> Result<()> {
        invariant!(self.has_lock(LockSlot::Leaf), "cells leave a pool without its lock");
        let head = self.map().word(pool_at(class) + POOL_HEAD)?;
        let arena = self.arena()?;
        let queue = arena.queue(class)?;
        let first = head.load(Ordering::Acquire);
        let (mut last, mut next, mut count) = (0, first, 0);
        while next != 0 && count < POOL_BATCH {
            last = next;
            next = cell::word(self.map(), last, WORD_NEXT)?.load(Ordering::Acquire);
            count += 1;
        }
        invariant!(count <= POOL_BATCH, "a batch of {count} cells");
        if count > 0 {
            arena.set(undo::BATCH_FIRST, first);
            arena.set(undo::BATCH_LAST, last);
            arena.set(undo::BATCH_DIRECTION, direction::FROM_POOL);
            crash_point!("pop_batch.recorded");
            head.store(next, Ordering::Release);
            crash_point!("pop_batch.cut");
            link_batch(&arena, class, first, last)?;
            crash_point!("pop_batch.linked");
            let before = queue.count.load(Ordering::Relaxed);
            queue.count.store(before.wrapping_add(count), Ordering::Relaxed);
        }
        arena.set(undo::BATCH_DIRECTION, direction::NONE);
        crash_point!("pop_batch.done");
        Ok(())
    }

    /// Moves all queues to the pools: the last step of detaching.
    pub(crate) fn queues_to_pools(&self) -> Result<()> {
        let arena = self.arena()?;
        for class in (0..QUEUES as u8).filter(|class| *class != CLASS_EXTENT) {
            if arena.queue(class)?.head.load(Ordering::Relaxed) != 0 {
                self.queue_to_pool(class, LOCK_WAIT_MAX)?;
            }
        }
        Ok(())
    }

    /// The heap is full: searches for a cell in everything that is left.
    #[cold]
    fn allocate_last_resort(&self, arena: &Arena<'_>, class: u8, detail: &str) -> Result<u64> {
        self.recover_the_dead()?;
        self.drain_free_arenas()?;
        self.advance()?;
        self.advance()?;
        let queue = arena.queue(class)?;
        for _ in 0..2 {
            let head = queue.head.load(Ordering::Relaxed);
            if head != 0 && self.is_reusable(head)? {
                arena.pop(queue, head)?;
                return Ok(head);
            }
            self.refill_from_pool(class, LOCK_WAIT_MAX)?;
        }
        if let Ok(cell) = self.allocate_fresh(class) {
            return Ok(cell);
        }
        for wider in class + 1..CLASSES {
            let queue = arena.queue(wider)?;
            for _ in 0..2 {
                let head = queue.head.load(Ordering::Relaxed);
                if head != 0 && self.is_reusable(head)? {
                    return self.split_cell(arena, wider, head, class);
                }
                self.refill_from_pool(wider, LOCK_WAIT_MAX)?;
            }
        }
        Err(Error::Full { detail: self.describe_full(detail)? })
    }

    /// A free cell of a wider class becomes the small bump range, from which the requested cell is
    /// cut.
    fn split_cell(&self, arena: &Arena<'_>, wider: u8, cell: u64, class: u8) -> Result<u64> {
        invariant!(wider > class, "class {wider} is not wider than class {class}");
        let bytes = class::bytes_of(wider);
        let (cur, end, committed) = arena.bump(Bump::Small);
        if cur < end && committed < end {
            // The rest of the bump range has no pages and cannot get any, so it cannot be carved.
            // The wider cell is used whole.
            arena.pop(arena.queue(wider)?, cell)?;
            return Ok(cell);
        }
        arena.carve(Bump::Small)?;
        arena.pop(arena.queue(wider)?, cell)?;
        let next = cell::word(self.map(), cell, WORD_NEXT)?.load(Ordering::Relaxed);
        // As after taking a chunk: the range belongs to this member, so recovery makes it the bump
        // range.
        arena.set(undo::CHUNK_AT, cell);
        arena.set(undo::CHUNK_TO, cell + bytes);
        crash_point!("chunk.recorded");
        arena.set(undo::PENDING, next);
        arena.set_bump(Bump::Small, cell, cell + bytes, cell + bytes);
        crash_point!("chunk.bumped");
        arena.set(undo::CHUNK_TO, 0);
        Ok(arena.cut(Bump::Small, class, class::bytes_of(class))?)
    }

    /// Moves the free cells in the arenas of free slots to the pools.
    fn drain_free_arenas(&self) -> Result<()> {
        for index in 0..member_slots_used(self.map())? {
            let word = self.map().word(member_at(index) + MEMBER_STATE)?;
            if state::of(word.load(Ordering::Acquire)) != state::FREE {
                continue;
            }
            let arena = Arena::new(self.map(), index, self.shared().is_fenced)?;
            let is_empty = (0..QUEUES as u8)
                .filter(|class| *class != CLASS_EXTENT)
                .all(|class| arena.queue(class).is_ok_and(|q| q.head.load(Ordering::Acquire) == 0));
            if !is_empty {
                self.drain_slot(index)?;
            }
        }
        Ok(())
    }

    /// Text of the error for a full heap. Names the member whose pin prevents reuse, if there is
    /// one.
    fn describe_full(&self, detail: &str) -> Result<String> {
        let epoch = unseal(self.epoch().load(Ordering::Acquire), "the epoch")?;
        let mut oldest = None;
        for index in 0..member_slots_used(self.map())? {
            let pin = self.map().word(member_at(index) + MEMBER_PIN)?.load(Ordering::Acquire);
            if pin != 0
                && pin.saturating_add(2) < epoch
                && oldest.is_none_or(|(least, _)| pin < least)
            {
                oldest = Some((pin, index));
            }
        }
        Ok(match oldest {
            Some((_, index)) => format!(
                "{detail}, and a view of {} prevents the reuse of deleted records: let it run or \
                 end it",
                self.holder(index)?
            ),
            None => format!("{detail}: delete records, or create a larger region"),
        })
    }
}

/// Links a chain of cells before the head of the queue of its class. The chain was retired earlier
/// than the member's own cells, and the oldest cells are reused first.
fn link_batch(arena: &Arena<'_>, class: u8, first: u64, last: u64) -> Result<(), Corruption> {
    invariant!(first != 0 && last != 0, "a batch has a first and a last cell");
    let queue = arena.queue(class)?;
    let head = queue.head.load(Ordering::Relaxed);
    if head == first {
        return Ok(()); // Recovery: it is linked.
    }
    cell::word(arena.map, last, WORD_NEXT)?.store(head, Ordering::Release);
    crash_point!("pop_batch.cleared");
    if head == 0 {
        queue.tail.store(last, Ordering::Release);
        crash_point!("pop_batch.tail");
    }
    queue.head.store(first, Ordering::Release);
    Ok(())
}

/// Recovery: a recorded chunk was taken or not. A taken chunk becomes the bump range.
pub(crate) fn finish_chunk(arena: &Arena<'_>) -> Result<(), Corruption> {
    let to = arena.get(undo::CHUNK_TO);
    if to == 0 {
        return Ok(());
    }
    let frontier = unseal(arena.map.word(SUPER_FRONTIER)?.load(Ordering::Acquire), FRONTIER)?;
    if frontier * LINE >= to {
        let recorded = arena.get(undo::CHUNK_AT);
        let (at, is_large) = (recorded & !1, recorded & 1 != 0);
        if arena.get(undo::PENDING) == at {
            let next = cell::word(arena.map, at, WORD_NEXT)?.load(Ordering::Acquire);
            arena.set(undo::PENDING, next);
        }
        // A split wider cell has pages. A chunk of the frontier gets them on use.
        let which = if is_large { Bump::Large } else { Bump::Small };
        arena.set_bump(which, at, to, at);
    }
    arena.set(undo::CHUNK_TO, 0);
    Ok(())
}

/// Recovery: a batch between a queue and a pool is moved back or completed.
pub(crate) fn finish_batch(arena: &Arena<'_>, me: u64) -> Result<(), Corruption> {
    let direction = arena.get(undo::BATCH_DIRECTION);
    let (first, last) = (arena.get(undo::BATCH_FIRST), arena.get(undo::BATCH_LAST));
    if direction == direction::NONE || first == 0 || last == 0 {
        arena.set(undo::BATCH_DIRECTION, direction::NONE);
        return Ok(());
    }
    let class = cell::class_at(arena.map, first)?;
    let queue = arena.queue(class)?;
    let pool = pool_at(class);
    let is_ours =
        crate::member::lock::owner_of(arena.map.word(pool)?.load(Ordering::Acquire)) == me;
    let head = arena.map.word(pool + POOL_HEAD)?;
    if is_ours && direction == direction::TO_POOL && queue.head.load(Ordering::Acquire) != first {
        if head.load(Ordering::Acquire) != first {
            let next = cell::word(arena.map, last, WORD_NEXT)?;
            next.store(head.load(Ordering::Acquire), Ordering::Release);
            head.store(first, Ordering::Release);
        }
        queue.count.store(0, Ordering::Relaxed);
    }
    if is_ours && direction == direction::FROM_POOL && head.load(Ordering::Acquire) != first {
        link_batch(arena, class, first, last)?;
    }
    arena.set(undo::BATCH_DIRECTION, direction::NONE);
    Ok(())
}

/// The operation of an undo record, if it is a known one.
pub(crate) fn undo_operation(arena: &Arena<'_>) -> Result<u64, Corruption> {
    match arena.get(undo::OP) {
        known @ (op::NONE
        | op::RECORD
        | op::WORD
        | op::SPLIT
        | op::TXN
        | op::LINE
        | op::SET_ONCE) => Ok(known),
        _ => Err(Corruption("an undo record names an operation that does not exist")),
    }
}
