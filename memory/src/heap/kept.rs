//! Splits free cells that a member keeps, while no chunk near the last one has room
//! (`docs/decisions/013-heap.md`).
//!
//! A larger cell becomes the small bump range. What is left of the range after a cell was cut from
//! it becomes cells of the queues again. No bitmap changes, so no lock is needed.

use nearstate_model::{Result, invariant};

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::heap::cell::{self, WORD_NEXT};
use crate::heap::chunk::{ChunkIndex, state_of};
use crate::heap::class;
use crate::layout::{Corruption, ordinary_chunks};
use crate::member::Member;
use crate::member::arena::{Arena, BUMP_SMALL_CELL_MAX, Bump, Queue, undo};

/// Refills that split kept cells first. The next one searches the chunks: others may have freed
/// memory.
const SCARCE_REFILLS: u32 = 16;

/// The largest class of small cells.
pub(crate) const CLASS_SMALL_MAX: u8 = match class::class_within(BUMP_SMALL_CELL_MAX) {
    Some(class) => class,
    None => 0,
};

/// The classes with the most cells of which one is split if it can be reused.
const SPLIT_TRIES: usize = 3;

impl Member {
    /// True if the refill splits kept cells first.
    pub(crate) fn is_scarce(&self) -> bool {
        let left = self.scarce_refills.get();
        self.scarce_refills.set(left.saturating_sub(1));
        left != 0
    }

    /// No chunk near the last one had room.
    pub(crate) fn note_scarcity(&self) {
        self.scarce_refills.set(SCARCE_REFILLS);
    }

    /// Makes a free cell of a larger class the small bump range, which is empty: one of the class
    /// of which this member keeps the most. So it keeps some of each class. False if there is none.
    pub(crate) fn split_kept(&self, class: u8) -> Result<bool> {
        debug_assert!(self.is_in_operation(), "another member may be taking cells");
        debug_assert!(class <= CLASS_SMALL_MAX, "class {class} has no small cells");
        let arena = self.arena();
        let mut tried = [0; SPLIT_TRIES];
        for place in 0..SPLIT_TRIES {
            let mut best = (0, 0);
            for other in class + 1..=CLASS_SMALL_MAX {
                // The count is a hint.
                let count = arena.queue_count(other);
                if count > best.0 && !tried.contains(&other) {
                    best = (count, other);
                }
            }
            let (count, larger) = best;
            if count == 0 {
                break;
            }
            if let Some(seen) = tried.get_mut(place) {
                *seen = larger;
            }
            let queue = arena.queue(larger)?;
            let head = queue.head.load(Ordering::Relaxed);
            if head != 0
                && self.is_head_reusable(queue, larger, head)?
                && self.may_take_from(ChunkIndex::of(self.map(), head)?)?
            {
                // A flipped bit since it was emptied must not be taken for a part of it.
                self.check_bump(Bump::Small)?;
                let bytes = class::bytes_of(larger);
                invariant!(bytes > class::bytes_of(class), "a cell of class {larger} is no larger");
                arena.open_cell(queue, head, bytes)?;
                self.note_bump(Bump::Small, head, head + bytes);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// True for a chunk that is not being emptied, and that lends nothing to an operation that may
    /// not use the reserve.
    pub(crate) fn may_take_from(&self, chunk: ChunkIndex) -> Result<bool> {
        let is_ordinary = chunk.0 < ordinary_chunks(self.map().chunks());
        Ok((is_ordinary || self.may_use_reserve.get()) && !state_of(self.map(), chunk)?.is_closing)
    }

    /// Empties the small bump range: a rest of a cell that was split becomes cells of the queues, a
    /// larger range is freed.
    pub(crate) fn keep_rest(&self) -> Result<()> {
        let arena = self.arena();
        self.check_bump(Bump::Small)?;
        if self.scarce_refills.get() == 0 || arena.room(Bump::Small) > BUMP_SMALL_CELL_MAX {
            return self.empty_bump(Bump::Small);
        }
        let carved = arena.carve(Bump::Small);
        self.note_bump_front(Bump::Small, arena.get(Bump::Small.front()));
        Ok(carved?)
    }
}

impl Arena<'_> {
    /// Makes the head of a queue the content of the small bump range, which is empty. Recovery
    /// finds the cell in transit at the head of its queue, or as the front of the range, or links
    /// it to its queue.
    fn open_cell(&self, queue: Queue<'_>, cell: u64, bytes: u64) -> Result<(), Corruption> {
        let (front, end) = self.bump(Bump::Small);
        invariant!(front >= end, "a bump range of {} bytes is lost", end - front);
        invariant!(bytes <= BUMP_SMALL_CELL_MAX, "{bytes} bytes are no small cell");
        let next = cell::word(self.map, cell, WORD_NEXT)?;
        self.set(undo::POP, cell);
        crash_point!("open.recorded");
        queue.head.store(next.load(Ordering::Relaxed), Ordering::Release);
        crash_point!("open.unlinked");
        let count = queue.count.load(Ordering::Relaxed);
        queue.count.store(count.saturating_sub(1), Ordering::Relaxed);
        self.set_bump(Bump::Small, cell, cell + bytes);
        crash_point!("open.opened");
        self.set(undo::POP, 0);
        crash_point!("open.done");
        Ok(())
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;
