//! Moves cells of an arena between the pending list, the queues of retired cells and the bump
//! ranges.
//!
//! Only one member does this for its arena, or its recoverer. A kill can interrupt any step.

use nearstate_model::invariant;

use crate::atomic::{AtomicU64, Ordering};
use crate::crash::crash_point;
use crate::heap::cell::{self, CellKind, WORD_HEAD, WORD_NEXT, WORD_RETIRED};
use crate::heap::{class, watched};
use crate::layout::{CLASS_EXTENT, Corruption, HEAP, LINE, SUPER_EPOCH};
use crate::member::arena::{Arena, Bump, Queue, op, undo};
use crate::member::pin;
use crate::region::map::Map;

/// Bit of the undo record's cell in transit: it moves to the queue of what the log holds. The
/// offsets of cells are multiples of a line.
pub(crate) const TO_HELD: u64 = 1;

/// The most cells that one operation has pending: the records of a transaction with their blocks. A
/// longer list is a cycle caused by corruption.
const PENDING_MAX: usize = 8 << 20;

impl<'m> Arena<'m> {
    /// Removes the head of a queue. It becomes pending.
    pub(crate) fn pop(&self, queue: Queue<'_>, cell: u64) -> Result<(), Corruption> {
        self.pop_line(queue, (cell, cell::first_line(self.map, cell)?));
        Ok(())
    }

    /// As [`Arena::pop`], given the first line of the cell.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every write")]
    pub(crate) fn pop_line(&self, queue: Queue<'_>, (cell, line): (u64, &[AtomicU64; 8])) {
        debug_assert!(queue.head.load(Ordering::Relaxed) == cell, "only a head is removed");
        let [_, next, ..] = line;
        self.set(undo::POP, cell);
        crash_point!("pop.recorded");
        queue.head.store(next.load(Ordering::Relaxed), Ordering::Release);
        crash_point!("pop.unlinked");
        let count = queue.count.load(Ordering::Relaxed);
        queue.count.store(count.saturating_sub(1), Ordering::Relaxed);
        crash_point!("pop.counted");
        self.pend(cell, line);
    }

    /// Cuts a cell from the front of a bump range that has pages for it. It becomes pending.
    #[inline]
    pub(crate) fn cut(&self, which: Bump, class: u8, bytes: u64) -> Result<u64, Corruption> {
        invariant!(bytes.is_multiple_of(LINE) && bytes != 0, "a cell of {bytes} bytes is cut");
        debug_assert!(
            class == CLASS_EXTENT || class::bytes_of(class) == bytes,
            "the header of a cell has its class"
        );
        let cell = self.get(which.front());
        let line @ [head, ..] = cell::first_line(self.map, cell)?;
        head.store(u64::from(class), Ordering::Relaxed);
        crash_point!("cut.classed");
        self.set(undo::POP, cell);
        crash_point!("pop.recorded");
        self.set(which.front(), cell + bytes);
        crash_point!("pop.unlinked");
        self.pend(cell, line);
        Ok(cell)
    }

    /// Adds a cell in transit to the pending list.
    #[inline]
    fn pend(&self, cell: u64, [_, next, retired, ..]: &[AtomicU64; 8]) {
        let pending = self.get(undo::PENDING);
        next.store(pending, Ordering::Release);
        crash_point!("pop.chained");
        let birth = pin::birth_epoch(self.map.superblock_word::<SUPER_EPOCH>());
        retired.store(birth, Ordering::Release);
        crash_point!("pop.linked");
        self.set(undo::PENDING, cell);
        crash_point!("pop.pending");
        self.set(undo::POP, 0);
    }

    /// Appends a cell to the queue of its class, with the current epoch. `line` is its first line.
    #[inline]
    fn append(&self, (cell, line): (u64, &[AtomicU64; 8])) -> Result<(), Corruption> {
        self.set(undo::POP, cell);
        crash_point!("append.recorded");
        self.link_line((cell, line), None)?;
        watched::note_retired(self.map, self.is_fenced);
        self.set(undo::POP, 0);
        crash_point!("append.done");
        Ok(())
    }

    /// Links a cell at the tail of its queue: retired in the current epoch, or with the given word.
    fn link(&self, cell: u64, retired: Option<u64>) -> Result<(), Corruption> {
        self.link_line((cell, cell::first_line(self.map, cell)?), retired)
    }

    /// As [`Arena::link`], given the first line of the cell.
    #[inline]
    fn link_line(
        &self,
        (cell, [head, next, word, ..]): (u64, &[AtomicU64; 8]),
        retired: Option<u64>,
    ) -> Result<(), Corruption> {
        let queue = self.queue(head.load(Ordering::Relaxed) as u8)?;
        next.store(0, Ordering::Release);
        crash_point!("append.cleared");
        let retired = if let Some(retired) = retired {
            retired
        } else {
            let now = pin::retire_epoch(self.map.superblock_word::<SUPER_EPOCH>(), self.is_fenced);
            pin::retire(word.load(Ordering::Relaxed), now)
        };
        word.store(retired, Ordering::Release);
        crash_point!("append.stamped");
        self.link_last(queue, cell);
        Ok(())
    }

    /// Links a cell, which has no link yet, at the tail of a queue. If the tail has a flipped bit,
    /// the queue begins anew with this cell: what it contained stays allocated until the repair.
    #[inline]
    pub(crate) fn link_last(&self, queue: Queue<'_>, cell: u64) {
        link_behind(queue, self.tail_link(queue, cell), cell);
    }

    /// The link of a queue's last cell, if it has one to which another cell can be linked, or is by
    /// an append that was interrupted.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    pub(crate) fn tail_link(&self, queue: Queue<'_>, cell: u64) -> Option<&'m AtomicU64> {
        match queue.head.load(Ordering::Relaxed) {
            0 => None,
            _ => link_of_tail(self.map, queue.tail.load(Ordering::Relaxed), cell),
        }
    }

    /// Recovery: a cell in transit is where it came from, has arrived, or moves to its queue.
    pub(crate) fn finish_transit(&self) -> Result<(), Corruption> {
        let cell = self.get(undo::POP);
        if cell & TO_HELD != 0 {
            self.finish_hold(cell & !TO_HELD)?;
            self.set(undo::POP, 0);
        } else if cell != 0 {
            let queue = self.queue(cell::class_at(self.map, cell)?)?;
            let head = queue.head.load(Ordering::Acquire);
            // The end of a used-up range can be the beginning of another member's cell.
            let is_front = |which| {
                let (cur, end) = self.bump(which);
                cur == cell && cur < end
            };
            let is_still_there = head == cell
                || self.held().head.load(Ordering::Acquire) == cell
                || is_front(Bump::Small)
                || is_front(Bump::Large)
                || self.taken_from()?.map_or(Ok(false), |from| from.holds_first(cell))?;
            let is_last = |queue: Queue<'_>| {
                queue.head.load(Ordering::Acquire) != 0
                    && queue.tail.load(Ordering::Acquire) == cell
            };
            let is_pending = self.get(undo::PENDING) == cell;
            if !is_still_there
                && !is_last(queue)
                && !is_pending
                && !self.finish_set_aside(cell, is_last(self.set_aside()))?
            {
                self.link(cell, None)?;
            }
            // It may have been retired, and the dead member may not have told of it.
            watched::note_retired(self.map, self.is_fenced);
            self.set(undo::POP, 0);
        }
        Ok(())
    }

    /// Recovery: true if a cell in transit is in the queue of what stalled readers hold, or is its
    /// last cell. A predecessor may lead to it already: then it must not be in another queue.
    fn finish_set_aside(&self, cell: u64, is_last: bool) -> Result<bool, Corruption> {
        let queue = self.set_aside();
        let head = queue.head.load(Ordering::Acquire);
        if head == 0 || head == cell || is_last {
            return Ok(head != 0);
        }
        let tail = queue.tail.load(Ordering::Acquire);
        let is_linked = cell::word(self.map, tail, WORD_NEXT)?.load(Ordering::Acquire) == cell;
        if is_linked {
            self.link_last(queue, cell);
        }
        Ok(is_linked)
    }

    /// Moves every pending cell to the queue of its class.
    pub(crate) fn roll_back(&self) -> Result<(), Corruption> {
        for _ in 0..PENDING_MAX {
            let cell = self.get(undo::PENDING);
            if cell == 0 {
                return Ok(());
            }
            let next = cell::word(self.map, cell, WORD_NEXT)?.load(Ordering::Acquire);
            // No reader has seen an unpublished cell, except the lines of a transaction.
            let kind =
                cell::kind_of(cell::word(self.map, cell, WORD_HEAD)?.load(Ordering::Relaxed));
            let is_seen = matches!(kind, Ok(CellKind::Transaction));
            let epoch = if is_seen { None } else { Some(pin::NEVER_READ) };
            // Marked as in transit first, so that it is not lost between the two stores.
            self.set(undo::POP, cell);
            self.set(undo::PENDING, next);
            self.link(cell, epoch)?;
            self.set(undo::POP, 0);
        }
        Err(Corruption("a member's list of pending cells has no end"))
    }

    /// Moves the head of a queue to the tail of another one. It stays retired as it is; one that
    /// the log held is retired in the current epoch.
    pub(crate) fn requeue(
        &self,
        from: Queue<'_>,
        to: Queue<'_>,
        cell: u64,
    ) -> Result<(), Corruption> {
        let line @ [_, _, retired, ..] = cell::first_line(self.map, cell)?;
        self.requeue_line(from, to, (cell, line, retired.load(Ordering::Relaxed)));
        Ok(())
    }

    /// As [`Arena::requeue`], given the first line of the cell, and its word `retired`.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a caller knows whether the log held the cell")]
    pub(crate) fn requeue_line(
        &self,
        from: Queue<'_>,
        to: Queue<'_>,
        (cell, [_, link, retired, ..], word): (u64, &[AtomicU64; 8], u64),
    ) {
        debug_assert!(retired.load(Ordering::Relaxed) == word, "the word is that of the cell");
        debug_assert!(pin::is_retired(word), "a cell in a queue is retired");
        self.set(undo::POP, cell);
        crash_point!("aside.recorded");
        from.head.store(link.load(Ordering::Relaxed), Ordering::Release);
        crash_point!("aside.unlinked");
        let count = from.count.load(Ordering::Relaxed);
        from.count.store(count.saturating_sub(1), Ordering::Relaxed);
        link.store(0, Ordering::Release);
        crash_point!("aside.cleared");
        if pin::is_held(word) {
            let now = pin::retire_epoch(self.map.superblock_word::<SUPER_EPOCH>(), self.is_fenced);
            retired.store(pin::retire(word, now), Ordering::Release);
            crash_point!("aside.released");
        }
        self.link_last(to, cell);
        if pin::is_held(word) {
            watched::note_retired(self.map, self.is_fenced);
        }
        self.set(undo::POP, 0);
        crash_point!("aside.done");
    }

    /// Moves a cell from the front of the small bump range of another arena to the queue of what
    /// stalled readers hold, all of which is looked at again.
    pub(crate) fn take_front(&self, from: &Self, cell: u64, bytes: u64) -> Result<(), Corruption> {
        invariant!(bytes != 0 && bytes.is_multiple_of(LINE), "a cell of {bytes} bytes is taken");
        self.set(undo::POP, cell);
        crash_point!("take.recorded");
        from.set(Bump::Small.front(), cell + bytes);
        crash_point!("take.cut");
        cell::word(self.map, cell, WORD_NEXT)?.store(0, Ordering::Release);
        cell::word(self.map, cell, WORD_RETIRED)?.store(pin::NEVER_READ, Ordering::Release);
        self.link_last(self.set_aside(), cell);
        self.set(undo::POP, 0);
        crash_point!("take.done");
        Ok(())
    }

    /// True if a cell is the head of a queue of its class or of the set-aside cells, or the front
    /// of the small bump range.
    fn holds_first(&self, cell: u64) -> Result<bool, Corruption> {
        let class = self.queue(cell::class_at(self.map, cell)?)?;
        let (front, end) = self.bump(Bump::Small);
        Ok(class.head.load(Ordering::Acquire) == cell
            || self.held().head.load(Ordering::Acquire) == cell
            || self.set_aside().head.load(Ordering::Acquire) == cell
            || front == cell && front < end)
    }

    /// Retires an unlinked cell, unless it is retired already. Returns its class. A cell whose
    /// class has a flipped bit stays allocated until the repair: as a larger cell it would contain
    /// its neighbours.
    #[inline]
    pub(crate) fn retire(&self, cell: u64) -> Result<u8, Corruption> {
        self.retire_line((cell, cell::first_line(self.map, cell)?))
    }

    /// As [`Arena::retire`], given the first line of the cell.
    #[inline]
    pub(crate) fn retire_line(
        &self,
        (cell, line): (u64, &[AtomicU64; 8]),
    ) -> Result<u8, Corruption> {
        let [head, _, retired, ..] = line;
        if !pin::is_retired(retired.load(Ordering::Acquire)) && cell::has_class_of_size(line) {
            self.append((cell, line))?;
        }
        Ok(head.load(Ordering::Relaxed) as u8)
    }

    /// As [`Arena::retire`], into the queue of the cells that are set aside: they come free there
    /// without waiting for those of their class.
    pub(crate) fn retire_aside(&self, cell: u64) -> Result<(), Corruption> {
        let line @ [_, next, retired, ..] = cell::first_line(self.map, cell)?;
        let word = retired.load(Ordering::Acquire);
        if pin::is_retired(word) || !cell::has_class_of_size(line) {
            return Ok(());
        }
        self.set(undo::POP, cell);
        crash_point!("join.recorded");
        next.store(0, Ordering::Release);
        let now = pin::retire_epoch(self.map.superblock_word::<SUPER_EPOCH>(), self.is_fenced);
        retired.store(pin::retire(word, now), Ordering::Release);
        crash_point!("join.stamped");
        self.link_last(self.set_aside(), cell);
        watched::note_retired(self.map, self.is_fenced);
        crash_point!("join.linked");
        self.set(undo::POP, 0);
        Ok(())
    }

    /// Turns the content of a bump range into free cells, so that the range is empty.
    pub(crate) fn carve(&self, which: Bump) -> Result<(), Corruption> {
        loop {
            let (cur, end) = self.bump(which);
            let Some(class) = class::class_within(end.saturating_sub(cur)) else {
                return Ok(());
            };
            invariant!(class::bytes_of(class) <= end - cur, "class {class} exceeds its range");
            let pending = self.get(undo::PENDING);
            let cell = self.cut(which, class, class::bytes_of(class))?;
            // Only this cell is freed. What was pending stays pending.
            self.set(undo::POP, cell);
            self.set(undo::PENDING, pending);
            self.link(cell, Some(pin::NEVER_READ))?;
            self.set(undo::POP, 0);
        }
    }
}

/// As [`Arena::link_last`], given the link of the tail ([`Arena::tail_link`]). The offset of the
/// cell may be one that a damaged region contains.
#[inline]
pub(crate) fn link_behind(queue: Queue<'_>, link: Option<&AtomicU64>, cell: u64) {
    if let Some(link) = link {
        link.store(cell, Ordering::Release);
        crash_point!("append.tail");
        queue.tail.store(cell, Ordering::Release);
    } else {
        queue.tail.store(cell, Ordering::Release);
        crash_point!("append.tail");
        queue.head.store(cell, Ordering::Release);
    }
    crash_point!("append.linked");
    let count = queue.count.load(Ordering::Relaxed);
    queue.count.store(count.wrapping_add(1), Ordering::Relaxed);
}

/// The link of a cell that is the last one of a queue, or to which `next` was linked by an append
/// that was interrupted.
#[inline]
fn link_of_tail(map: &Map, tail: u64, next: u64) -> Option<&AtomicU64> {
    let Ok([_, link, retired, ..]) = cell::first_line(map, tail) else { return None };
    let seen = link.load(Ordering::Relaxed);
    let is_tail = tail >= HEAP
        && (seen == 0 || seen == next)
        && pin::is_retired(retired.load(Ordering::Relaxed));
    is_tail.then_some(link)
}

/// After a line was linked: removes it from the head of the pending list, and only it.
pub(crate) fn finish_line(arena: &Arena<'_>, line: u64) -> Result<(), Corruption> {
    if arena.get(undo::PENDING) == line {
        let next = cell::word(arena.map, line, WORD_NEXT)?.load(Ordering::Acquire);
        arena.set(undo::PENDING, next);
    }
    arena.set(undo::OP, op::NONE);
    Ok(())
}
