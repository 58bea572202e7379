//! Sources in shared memory that another process changes without a wakeup.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use crate::executor::ready::TaskWaiter;

/// A source of work that the core polls.
pub trait PollSource {
    /// True if there is work. Costs a few nanoseconds; called often.
    fn is_ready(&self) -> bool;

    /// Tells the other process that a wakeup is needed from now on. `false`: work has arrived
    /// meanwhile, and no wakeup will follow.
    fn arm(&self) -> bool;

    /// True while the source is in the core's list.
    fn is_registered(&self) -> &Cell<bool>;
}

struct PollSourceEntry {
    what: Rc<dyn PollSource>,
    waiter: TaskWaiter,
    since: u64,
}

impl PollSourceEntry {
    /// Removes the source from the list and wakes its task.
    fn wake(self) {
        self.what.is_registered().set(false);
        self.waiter.wake();
    }
}

/// The poll sources of a core.
#[derive(Default)]
pub(crate) struct PollSources {
    list: RefCell<Vec<PollSourceEntry>>,
}

impl fmt::Debug for PollSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollSources").field("count", &self.list.borrow().len()).finish()
    }
}

impl PollSources {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.list.borrow().is_empty()
    }

    /// Adds a source that is not in the list.
    #[inline]
    pub(crate) fn add(&self, what: Rc<dyn PollSource>, waiter: TaskWaiter, since: u64) {
        self.list.borrow_mut().push(PollSourceEntry { what, waiter, since });
    }

    /// Wakes the tasks of ready sources; true if there was one. Arms and removes sources that have
    /// been in the list since before `oldest`.
    #[inline]
    pub(crate) fn poll(&self, oldest: u64) -> bool {
        if self.is_empty() {
            return false;
        }
        self.remove_ready(|entry| entry.since < oldest)
    }

    /// Arms and removes all sources. False if one of them became ready meanwhile.
    pub(crate) fn arm_all(&self) -> bool {
        self.is_empty() || !self.remove_ready(|_| true)
    }

    fn remove_ready(&self, must_arm: impl Fn(&PollSourceEntry) -> bool) -> bool {
        let mut list = self.list.borrow_mut();
        let mut is_ready = false;
        let mut index = 0;
        while let Some(entry) = list.get(index) {
            if entry.what.is_ready() || must_arm(entry) && !entry.what.arm() {
                list.swap_remove(index).wake();
                is_ready = true;
            } else if must_arm(entry) {
                list.swap_remove(index).what.is_registered().set(false);
            } else {
                index += 1;
            }
        }
        is_ready
    }
}
