//! Cells that only a stalled reader prevents from being reused (`spec/region.md`, section 6).
//!
//! They leave the queues of their classes, whose other cells are then reusable again, and wait in a
//! queue of their own until the pins have changed.

use nearstate_model::{Result, invariant};

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::layout::Corruption;
use crate::member::arena::{Arena, Queue, SET_ASIDE};
use crate::member::{ALL_ASIDE, Member};

/// Cells that one call sets aside or looks at again: some microseconds of work.
pub(crate) const BATCH: u64 = 64;

impl Member {
    /// The head of a queue, if it may be reused. Cells before it that stalled readers hold are set
    /// aside, some at a time.
    pub(crate) fn reusable_head(
        &self,
        arena: &Arena<'_>,
        queue: Queue<'_>,
        class: u8,
    ) -> Result<Option<u64>, Corruption> {
        for _ in 0..BATCH {
            let head = queue.head.load(Ordering::Relaxed);
            if head == 0 || self.is_head_reusable(queue, class, head)? {
                return Ok(Some(head).filter(|head| *head != 0));
            }
            if !self.is_set_aside(head)? {
                return Ok(None);
            }
            arena.requeue(queue, arena.set_aside(), head)?;
            crash_point!("aside.moved");
        }
        Ok(None)
    }

    /// Looks at cells that were set aside before the pins have changed, at most `most`, and frees
    /// those that no reader holds any more.
    pub(crate) fn revisit_set_aside(&self, most: u64) -> Result<()> {
        if self.aside_to_revisit.get() == 0 {
            return Ok(());
        }
        let arena = self.arena();
        let queue = arena.set_aside();
        let left = match self.aside_to_revisit.get() {
            // The count is a hint: a kill can leave it too low.
            ALL_ASIDE => queue.count.load(Ordering::Relaxed).saturating_add(1),
            left => left,
        };
        let count = left.min(most);
        // All that stay are looked at once: a count in shared memory can be wrong.
        let mut first_kept = None;
        for _ in 0..count {
            let head = queue.head.load(Ordering::Relaxed);
            if head == 0 || first_kept == Some(head) {
                self.aside_to_revisit.set(0);
                return Ok(());
            }
            if self.is_head_reusable(queue, SET_ASIDE, head)? {
                self.free_queue(SET_ASIDE, 1)?;
                if queue.head.load(Ordering::Relaxed) != head {
                    continue;
                }
            }
            // A reader holds it, or its chunk is busy.
            first_kept = first_kept.or(Some(head));
            arena.requeue(queue, queue, head)?;
        }
        invariant!(count <= left, "{count} of {left} cells were looked at");
        self.aside_to_revisit.set(left - count);
        Ok(())
    }
}
