//! What a member verifies before it uses memory that its queues and bump ranges name: they lie in
//! shared memory, and a flipped bit of them must not lead to a cell that is in use.

use nearstate_model::Result;
use nearstate_model::invariant::guaranteed;

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::heap::cell::{self, WORD_RETIRED};
use crate::heap::class::class_of;
use crate::layout::{Corruption, HEAP, LINE};
use crate::member::Member;
use crate::member::arena::{Arena, Bump, Queue, SET_ASIDE};
use crate::member::pin;
use crate::region::map::Map;

/// What is left of a bump range with a flipped bit stays allocated until the repair.
const BUMP: Corruption = Corruption("a session's range of unused memory has a flipped bit");

const RANGE: &str = "a session knows both of its ranges";

const HEAD: Corruption = Corruption("a queue of free cells leads to a cell that is not free");

/// The word `retired` of a cell at the head of a queue.
///
/// # Errors
/// `Corruption`: there is no retired cell, or one of another class. Among the set-aside cells,
/// which have any class, the class must be that of the size: as a larger cell it would contain its
/// neighbours.
#[inline]
pub(crate) fn retired_word(map: &Map, number: u8, head: u64) -> Result<u64, Corruption> {
    if head < HEAP {
        return Err(HEAD);
    }
    let [first, _, retired, ..] = cell::first_line(map, head)?;
    let (class, retired) = (first.load(Ordering::Relaxed) as u8, retired.load(Ordering::Relaxed));
    if !pin::is_retired(retired) || pin::is_held(retired) {
        return Err(HEAD);
    }
    let has_class = if number == SET_ASIDE {
        // The header of a cell that was never published can be of any size.
        retired == pin::NEVER_READ || cell::has_class_of_its_size(map, head)?
    } else {
        class == number
    };
    if !has_class {
        return Err(HEAD);
    }
    debug_assert!(head.is_multiple_of(LINE), "a cell begins with a line");
    Ok(retired)
}

/// Bytes of a new cell that are prefetched before the copy: what one core can have in flight. The
/// processor's sequential prefetch loads the rest.
const PREFETCH_BYTES: u64 = 2048;
const _: () = assert!(PREFETCH_BYTES.is_multiple_of(LINE), "whole lines are prefetched");

impl Member {
    /// As [`Member::allocate`], given the class for so many bytes.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the class of most cells is a constant")]
    pub(crate) fn allocate_of(&self, class: u8, bytes: u64) -> Result<u64> {
        let cell = match self.pop_of(class, bytes) {
            Some(head) => head,
            None => self.allocate_slowly(class)?,
        };
        crash_point!("alloc.done");
        Ok(cell)
    }

    /// A pending cell of the class for so many bytes, if the queue has one that no reader can hold.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    pub(crate) fn pop_of(&self, class: u8, bytes: u64) -> Option<u64> {
        debug_assert!(self.is_in_operation(), "another member may be taking cells");
        debug_assert!(class_of(bytes) == Some(class), "a cell has the class of its size");
        let arena = self.arena();
        let queue = arena.queue(class).ok()?;
        self.retired_in_a_row.set(0);
        let head = self.pop_reusable(&arena, queue, class)?;
        self.prefetch_cell(queue.head.load(Ordering::Relaxed), bytes);
        Some(head)
    }

    /// Prefetches the lines of the cell that the next call will return, to be written. They were
    /// last used long ago, perhaps by the source of the log on another processor, and the work
    /// until then hides the misses.
    #[inline]
    fn prefetch_cell(&self, at: u64, bytes: u64) {
        self.map().prefetch_to_write(at, bytes.min(PREFETCH_BYTES).div_ceil(LINE));
    }

    /// Takes the head of the queue of a class, which becomes pending, if no reader can hold it.
    /// `None` of one that a pin may hold, and of a damaged one: [`Member::is_head_reusable`] tells
    /// them apart.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every write")]
    fn pop_reusable(&self, arena: &Arena<'_>, queue: Queue<'_>, class: u8) -> Option<u64> {
        let head = queue.head.load(Ordering::Relaxed);
        if head < HEAP {
            return None;
        }
        let line @ [first, _, retired, ..] = cell::first_line(arena.map, head).ok()?;
        let word = retired.load(Ordering::Relaxed);
        if !pin::is_retired(word)
            || pin::is_held(word)
            || first.load(Ordering::Relaxed) as u8 != class
            || !pin::is_reusable(word, self.safe.get())
        {
            return None;
        }
        debug_assert!(retired_word(arena.map, class, head) == Ok(word), "the head is verified");
        arena.pop_line(queue, (head, line));
        Some(head)
    }

    /// True if the head of a queue may be reused. A head that is no retired cell of the queue means
    /// that the link to it has a flipped bit: the queue is given up, so that nothing in use is
    /// taken from it. Its cells stay allocated until the repair.
    #[inline]
    pub(crate) fn is_head_reusable(
        &self,
        queue: Queue<'_>,
        number: u8,
        head: u64,
    ) -> Result<bool, Corruption> {
        let retired = match retired_word(self.map(), number, head) {
            Ok(retired) => retired,
            Err(damage) => {
                queue.head.store(0, Ordering::Release);
                return Err(damage);
            }
        };
        Ok(self.is_reusable(retired))
    }

    /// True if no reader can hold a cell that was retired with this word.
    #[inline]
    pub(crate) fn is_reusable(&self, retired: u64) -> bool {
        pin::is_reusable(retired, self.safe.get()) || self.is_reusable_beside_stalled(retired)
    }

    /// As [`Member::is_reusable`], if a pin began before the cell was retired.
    #[cold]
    fn is_reusable_beside_stalled(&self, retired: u64) -> bool {
        self.safe_epochs.borrow().is_reusable(retired)
    }

    /// True if only stalled readers hold a retired cell.
    pub(crate) fn is_set_aside(&self, cell: u64) -> Result<bool, Corruption> {
        let retired = cell::word(self.map(), cell, WORD_RETIRED)?.load(Ordering::Relaxed);
        Ok(!pin::is_reusable(retired, self.safe.get())
            && self.safe_epochs.borrow().is_set_aside(retired))
    }

    /// Remembers a bump range that this member stores.
    #[inline]
    pub(crate) fn note_bump(&self, which: Bump, front: u64, end: u64) {
        guaranteed(self.bumps.get(which.number()), RANGE).set((front, end));
    }

    /// Remembers that this member has taken a part from the front of a bump range.
    #[inline]
    pub(crate) fn note_bump_front(&self, which: Bump, front: u64) {
        let seen = guaranteed(self.bumps.get(which.number()), RANGE);
        seen.set((front, seen.get().1));
    }

    /// Remembers the bump ranges that a recovery has stored.
    pub(crate) fn note_recovered_bumps(&self) {
        for which in [Bump::Small, Bump::Large] {
            let (front, end) = self.arena().bump(which);
            self.note_bump(which, front, end);
        }
    }

    /// Verifies that a bump range is what this member has stored, or a rest of it: others take
    /// cells from its front while this member carries out no operation. A range that is neither is
    /// given up.
    ///
    /// # Errors
    /// `Corruption`, once.
    #[inline]
    pub(crate) fn check_bump(&self, which: Bump) -> Result<(), Corruption> {
        let (front, end) = self.arena().bump(which);
        let (seen_front, seen_end) = guaranteed(self.bumps.get(which.number()), RANGE).get();
        if end == seen_end && front >= seen_front && front.is_multiple_of(LINE) {
            return Ok(());
        }
        self.give_up_bump(which)
    }

    #[cold]
    fn give_up_bump(&self, which: Bump) -> Result<(), Corruption> {
        self.arena().set_bump(which, 0, 0);
        self.note_bump(which, 0, 0);
        Err(BUMP)
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;
