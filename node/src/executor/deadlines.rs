//! The deadlines of an executor: a binary heap. A cancelled deadline stays in the heap as a stale
//! key until it is reached, or until stale keys are the majority. So setting and cancelling a
//! timeout for every request costs a push and a store.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use nearstate_model::invariant::guaranteed;

use crate::executor::ready::TaskWaiter;

/// Identifies a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DeadlineKey {
    slot: u32,
    generation: u32,
}

#[derive(Debug, Default)]
struct DeadlineSlot {
    generation: u32,
    waiter: Option<TaskWaiter>,
}

/// The deadlines of an executor.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    heap: BinaryHeap<Reverse<(u64, DeadlineKey)>>,
    slots: Vec<DeadlineSlot>,
    vacant: Vec<u32>,
}

impl Deadlines {
    /// The next deadline; `u64::MAX` if there is none.
    pub(crate) fn next(&mut self) -> u64 {
        while let Some(Reverse((at, key))) = self.heap.peek() {
            if self.is_live(*key) {
                return *at;
            }
            self.heap.pop();
        }
        u64::MAX
    }

    pub(crate) fn insert(&mut self, at: u64, waiter: TaskWaiter) -> DeadlineKey {
        if self.heap.len() > 64 + 2 * (self.slots.len() - self.vacant.len()) {
            let (heap, slots) = (&mut self.heap, &self.slots);
            heap.retain(|Reverse((_, key))| is_live(slots, *key));
        }
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(DeadlineSlot::default());
            let last = u32::try_from(self.slots.len() - 1).ok();
            guaranteed(last, "a core has fewer than 2^32 deadlines")
        });
        let slot = guaranteed(self.slots.get_mut(index as usize), "a vacant slot exists");
        debug_assert!(slot.waiter.is_none(), "a slot has at most one waiter");
        slot.waiter = Some(waiter);
        let key = DeadlineKey { slot: index, generation: slot.generation };
        self.heap.push(Reverse((at, key)));
        key
    }

    /// Replaces the waiter of a deadline. `false`: the deadline has passed.
    pub(crate) fn replace(&mut self, key: DeadlineKey, waiter: TaskWaiter) -> bool {
        let place = self.slots.get_mut(key.slot as usize);
        let Some(place) = place.filter(|place| place.generation == key.generation) else {
            return false;
        };
        place.waiter = Some(waiter);
        true
    }

    pub(crate) fn cancel(&mut self, key: DeadlineKey) {
        drop(self.take(key));
    }

    /// The next waiter whose deadline is not after `now`.
    pub(crate) fn pop(&mut self, now: u64) -> Option<TaskWaiter> {
        loop {
            let Reverse((at, key)) = *self.heap.peek()?;
            let is_live = self.is_live(key);
            if is_live && at > now {
                return None;
            }
            self.heap.pop();
            if let Some(waiter) = self.take(key) {
                return Some(waiter);
            }
        }
    }

    fn is_live(&self, key: DeadlineKey) -> bool {
        is_live(&self.slots, key)
    }

    fn take(&mut self, key: DeadlineKey) -> Option<TaskWaiter> {
        let place = self.slots.get_mut(key.slot as usize)?;
        if place.generation != key.generation {
            return None;
        }
        place.generation = place.generation.wrapping_add(1);
        self.vacant.push(key.slot);
        place.waiter.take()
    }
}

fn is_live(slots: &[DeadlineSlot], key: DeadlineKey) -> bool {
    slots.get(key.slot as usize).is_some_and(|place| place.generation == key.generation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::ready::TaskId;

    fn waiter(index: u32) -> TaskWaiter {
        TaskWaiter::Task(TaskId { index, generation: 0 })
    }

    fn index(waiter: &TaskWaiter) -> u32 {
        match waiter {
            TaskWaiter::Task(id) => id.index,
            TaskWaiter::Other(_) => u32::MAX,
        }
    }

    #[test]
    fn deadlines_pass_in_order_and_a_cancelled_one_wakes_no_task() {
        let mut deadlines = Deadlines::default();
        let keys: Vec<_> = [30, 10, 20]
            .into_iter()
            .zip(0..)
            .map(|(at, i)| deadlines.insert(at, waiter(i)))
            .collect();
        assert_eq!(deadlines.next(), 10);
        deadlines.cancel(keys[1]);
        assert_eq!(deadlines.next(), 20);
        assert!(deadlines.replace(keys[2], waiter(7)) && !deadlines.replace(keys[1], waiter(8)));
        assert!(deadlines.pop(19).is_none());
        let passed: Vec<_> = std::iter::from_fn(|| deadlines.pop(30)).map(|w| index(&w)).collect();
        assert_eq!(passed, [7, 0]);
        assert_eq!(deadlines.next(), u64::MAX);
    }

    #[test]
    fn a_million_cancelled_deadlines_take_no_memory() {
        let mut deadlines = Deadlines::default();
        for at in 0..1_000_000 {
            let key = deadlines.insert(u64::MAX - at, waiter(0));
            deadlines.cancel(key);
        }
        assert!(deadlines.heap.len() < 100 && deadlines.slots.len() < 10);
    }
}
