//! The cells of an arena on their way: pending, in a queue of retired ones, cut from a bump range.
//! All of it is done by one member only, or by the one that recovers it; every step can be cut
//! short by a kill.

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::heap::cell::{self, WORD_HEAD, WORD_NEXT, WORD_RETIRED};
use crate::heap::class;
use crate::layout::{Corruption, SUPER_EPOCH};
use crate::member::arena::{Arena, Bump, Queue, op, undo};
use crate::member::pin;

/// Cells that one operation has pending at the most: the records of a transaction with their
/// blocks. A longer list is a circle that damage made.
const PENDING_MAX: usize = 8 << 20;

impl Arena<'_> {
    /// Takes the head of a queue: it becomes pending.
    #[inline]
    pub(crate) fn pop(&self, queue: Queue<'_>, cell: u64) -> Result<(), Corruption> {
        self.set(undo::POP, cell);
        crash_point!("pop.noted");
        let next = cell::word(self.map, cell, WORD_NEXT)?;
        queue.head.store(next.load(Ordering::Relaxed), Ordering::Release);
        crash_point!("pop.unlinked");
        let count = queue.count.load(Ordering::Relaxed);
        queue.count.store(count.saturating_sub(1), Ordering::Relaxed);
        crash_point!("pop.counted");
        self.pend(cell)
    }

    /// Cuts a cell from the front of a bump range that has pages for it: it becomes pending.
    #[inline]
    pub(crate) fn cut(&self, which: Bump, class: u8, bytes: u64) -> Result<u64, Corruption> {
        let cell = self.get(which as usize);
        cell::word(self.map, cell, WORD_HEAD)?.store(u64::from(class), Ordering::Relaxed);
        crash_point!("cut.classed");
        self.set(undo::POP, cell);
        crash_point!("pop.noted");
        self.set(which as usize, cell + bytes);
        crash_point!("pop.unlinked");
        self.pend(cell)?;
        Ok(cell)
    }

    /// Puts a cell in transit on the pending list.
    #[inline]
    fn pend(&self, cell: u64) -> Result<(), Corruption> {
        let pending = self.get(undo::PENDING);
        cell::word(self.map, cell, WORD_NEXT)?.store(pending, Ordering::Release);
        crash_point!("pop.chained");
        cell::word(self.map, cell, WORD_RETIRED)?.store(0, Ordering::Release);
        crash_point!("pop.linked");
        self.set(undo::PENDING, cell);
        crash_point!("pop.pending");
        self.set(undo::POP, 0);
        Ok(())
    }

    /// Links a cell at the tail of the queue of its class, with the present epoch.
    #[inline]
    pub(crate) fn append(&self, cell: u64) -> Result<(), Corruption> {
        self.set(undo::POP, cell);
        crash_point!("append.noted");
        self.link(cell)?;
        self.set(undo::POP, 0);
        crash_point!("append.done");
        Ok(())
    }

    fn link(&self, cell: u64) -> Result<(), Corruption> {
        let queue = self.queue(cell::class_at(self.map, cell)?)?;
        cell::word(self.map, cell, WORD_NEXT)?.store(0, Ordering::Release);
        crash_point!("append.cleared");
        let epoch = pin::retire_epoch(self.map.word(SUPER_EPOCH)?, self.is_fenced);
        cell::word(self.map, cell, WORD_RETIRED)?.store(epoch, Ordering::Release);
        crash_point!("append.stamped");
        if queue.head.load(Ordering::Relaxed) == 0 {
            queue.tail.store(cell, Ordering::Release);
            crash_point!("append.tail");
            queue.head.store(cell, Ordering::Release);
        } else {
            let tail = queue.tail.load(Ordering::Relaxed);
            cell::word(self.map, tail, WORD_NEXT)?.store(cell, Ordering::Release);
            crash_point!("append.tail");
            queue.tail.store(cell, Ordering::Release);
        }
        crash_point!("append.linked");
        let count = queue.count.load(Ordering::Relaxed);
        queue.count.store(count.wrapping_add(1), Ordering::Relaxed);
        Ok(())
    }

    /// Recovery: a cell in transit is where it came from, or arrived, or goes to its queue.
    pub(crate) fn finish_transit(&self) -> Result<(), Corruption> {
        let cell = self.get(undo::POP);
        if cell != 0 {
            let queue = self.queue(cell::class_at(self.map, cell)?)?;
            let head = queue.head.load(Ordering::Acquire);
            // The end of a used-up range may be where somebody else's cell begins.
            let is_front = |which| {
                let (cur, end, _) = self.bump(which);
                cur == cell && cur < end
            };
            let is_still_there = head == cell || is_front(Bump::Small) || is_front(Bump::Large);
            let is_tail = head != 0 && queue.tail.load(Ordering::Acquire) == cell;
            if !is_still_there && !is_tail && self.get(undo::PENDING) != cell {
                self.link(cell)?;
            }
            self.set(undo::POP, 0);
        }
        Ok(())
    }

    /// Every pending cell goes to the queue of its class.
    pub(crate) fn roll_back(&self) -> Result<(), Corruption> {
        for _ in 0..PENDING_MAX {
            let cell = self.get(undo::PENDING);
            if cell == 0 {
                return Ok(());
            }
            let next = cell::word(self.map, cell, WORD_NEXT)?.load(Ordering::Acquire);
            // In transit first, so that it is not lost between the two.
            self.set(undo::POP, cell);
            self.set(undo::PENDING, next);
            self.link(cell)?;
            self.set(undo::POP, 0);
        }
        Err(Corruption("a member's list of pending cells has no end"))
    }

    /// Retires a cell that was unlinked, unless it is retired already.
    #[inline]
    pub(crate) fn retire(&self, cell: u64) -> Result<(), Corruption> {
        if cell::word(self.map, cell, WORD_RETIRED)?.load(Ordering::Acquire) == 0 {
            self.append(cell)?;
        }
        Ok(())
    }

    /// Takes the front of a bump range as free cells, so that it is empty. All of it has pages.
    pub(crate) fn carve(&self, which: Bump) -> Result<(), Corruption> {
        loop {
            let (cur, end, _) = self.bump(which);
            let Some(class) = class::class_within(end.saturating_sub(cur)) else {
                return Ok(());
            };
            let pending = self.get(undo::PENDING);
            let cell = self.cut(which, class, class::bytes_of(class))?;
            // Only this cell goes back; what was pending stays.
            self.set(undo::POP, cell);
            self.set(undo::PENDING, pending);
            self.link(cell)?;
            self.set(undo::POP, 0);
        }
    }
}

/// After a line was linked: it alone leaves the pending list, whose head it is.
pub(crate) fn finish_line(arena: &Arena<'_>, line: u64) -> Result<(), Corruption> {
    if arena.get(undo::PENDING) == line {
        let next = cell::word(arena.map, line, WORD_NEXT)?.load(Ordering::Acquire);
        arena.set(undo::PENDING, next);
    }
    arena.set(undo::OP, op::NONE);
    Ok(())
}
