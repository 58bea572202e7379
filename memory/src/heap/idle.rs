//! Takes free cells from the queues of members that carry out no operation, for a member that finds
//! the heap full (`docs/decisions/017-idle-memory.md`; `member/idle.rs`).

use nearstate_model::{Result, invariant};

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::heap::cell::{self, WORD_HEAD};
use crate::heap::class;
use crate::heap::held::{floor, is_released};
use crate::heap::reuse::retired_word;
use crate::layout::{Corruption, LINE, arena_at};
use crate::member::arena::{Arena, Bump, LockSlot, SET_ASIDE, undo};
use crate::member::idle::is_idle;
use crate::member::{ALL_ASIDE, Member};
use crate::region::member_table::{member_slots_used, state, state_of};

/// Bytes that are taken from idle members before the caller tries again: four chunks. The larger,
/// the fewer searches of the heap; the smaller, the fewer members lose what they would use soon.
const TAKEN_AT_ONCE: u64 = 1 << 20;

impl Member {
    /// Takes free cells from members that are between two operations, until they are
    /// [`TAKEN_AT_ONCE`]. Members before `first` are skipped; it becomes the next one. False if
    /// there was nothing to take.
    ///
    /// Cost: a line for each queue of each member, and for each member that has cells a lock, a
    /// barrier (0.2 to 20 us), and some 10 ns for each cell.
    pub(crate) fn take_from_idle(&self, first: &mut u32) -> Result<bool> {
        invariant!(!self.has_lock(LockSlot::Leaf), "cells are taken under the lock of a chunk");
        let (mut bytes, mut has_advanced) = (0, false);
        while bytes < TAKEN_AT_ONCE && *first < member_slots_used(self.map())? {
            let index = *first;
            *first += 1;
            let word = state_of(self.map(), index)?.load(Ordering::Acquire);
            if index == self.index() || state::of(word) != state::ALIVE {
                continue;
            }
            let arena = Arena::new(self.map(), index, self.shared().is_fenced)?;
            if arena.get(undo::ACTIVE) != 0 {
                self.note_skipped(index);
            } else if !arena.is_empty()? {
                if !std::mem::replace(&mut has_advanced, true) {
                    // What was retired just now can be reused after two epochs.
                    self.advance()?;
                    self.advance()?;
                }
                bytes += self.take_from(index, &arena)?;
            }
        }
        Ok(bytes != 0)
    }

    /// Takes the free cells of a member, unless it is in an operation. Returns their bytes.
    fn take_from(&self, index: u32, from: &Arena<'_>) -> Result<u64> {
        invariant!(index != self.index(), "member {index} takes cells of itself");
        let at = arena_at(index) + undo::TAKER.offset();
        let Some(payload) = self.try_acquire(at, LockSlot::Leaf)? else {
            self.refusals.is_incomplete.set(true);
            return Ok(0);
        };
        crash_point!("take.locked");
        let taken = if is_idle(from.word(undo::ACTIVE), || self.heavy_barrier()) {
            self.take_cells(from)
        } else {
            self.note_skipped(index);
            Ok(0)
        };
        if taken.is_err() {
            // The cell in transit arrives before the lock is released. Damage that prevents it is
            // in `taken`.
            let _ = self.arena().finish_transit();
        }
        self.release(at, LockSlot::Leaf, payload)?;
        taken
    }

    /// Remembers a member that may have memory when its operation has ended.
    fn note_skipped(&self, index: u32) {
        let mut skipped = self.refusals.skipped.borrow_mut();
        if !skipped.contains(&index) {
            skipped.push(index);
        }
    }

    fn take_cells(&self, from: &Arena<'_>) -> Result<u64> {
        let own = self.arena();
        self.aside_to_revisit.set(ALL_ASIDE);
        let mut bytes = 0;
        // A queue of more cells than the heap has units is a cycle.
        let mut left = self.map().len() / LINE;
        let (of_the_log, floor) = (from.held(), floor(self.map())?);
        loop {
            let head = of_the_log.head.load(Ordering::Relaxed);
            if head == 0 || !is_released(self.map(), head, floor).unwrap_or(false) {
                break;
            }
            left = left.checked_sub(1).ok_or(Corruption("a queue has no end"))?;
            bytes += cell::bytes_at(self.map(), head)?;
            // It is retired now, behind what this member has retired before.
            own.requeue(of_the_log, own.queue(cell::class_at(self.map(), head)?)?, head)?;
            crash_point!("take.moved");
        }
        for number in 0..=SET_ASIDE {
            let queue = from.numbered_queue(number)?;
            loop {
                let head = queue.head.load(Ordering::Relaxed);
                if head == 0 {
                    break;
                }
                // Damage of another member's queue is left to that member.
                let Ok(retired) = retired_word(self.map(), number, head) else { break };
                if self.is_reusable(retired) {
                    bytes += cell::bytes_at(self.map(), head)?;
                } else if number == SET_ASIDE || !self.is_set_aside(head)? {
                    break;
                }
                left = left.checked_sub(1).ok_or(Corruption("a queue has no end"))?;
                // Not behind cells of this member that cannot be reused yet.
                own.requeue(queue, own.set_aside(), head)?;
                crash_point!("take.moved");
            }
        }
        loop {
            let (front, end) = from.bump(Bump::Small);
            let Some(class) = class::class_within(end.saturating_sub(front)) else { break };
            cell::word(self.map(), front, WORD_HEAD)?.store(u64::from(class), Ordering::Relaxed);
            own.take_front(from, front, class::bytes_of(class))?;
            bytes += class::bytes_of(class);
        }
        Ok(bytes)
    }
}
