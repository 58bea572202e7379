//! Looking out for what another process writes into shared memory.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use crate::executor::ready::TaskWaiter;

/// Something that changes without a wake.
pub trait PollSource {
    /// True if there is something to do. A few nanoseconds; asked often.
    fn is_ready(&self) -> bool;

    /// Tells the other process that from now on a wake is needed. `false`: something has come
    /// meanwhile, and none is.
    fn arm(&self) -> bool;

    /// True while it is on the list.
    fn is_registered(&self) -> &Cell<bool>;
}

struct PollSourceEntry {
    what: Rc<dyn PollSource>,
    waiter: TaskWaiter,
    since: u64,
}

impl PollSourceEntry {
    /// Off the list, its task woken.
    fn come(self) {
        self.what.is_registered().set(false);
        self.waiter.wake();
    }
}

/// Whatever is looked out for on this core.
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

    /// Puts one on the list that is not there.
    #[inline]
    pub(crate) fn add(&self, what: Rc<dyn PollSource>, waiter: TaskWaiter, since: u64) {
        self.list.borrow_mut().push(PollSourceEntry { what, waiter, since });
    }

    /// Wakes the tasks of those where something has come; true if there was one. Who has been on
    /// the list since before `oldest` is put to sleep.
    #[inline]
    pub(crate) fn look(&self, oldest: u64) -> bool {
        if self.is_empty() {
            return false;
        }
        self.take_off(|entry| entry.since < oldest)
    }

    /// Puts all to sleep. False if something has come meanwhile.
    pub(crate) fn all_asleep(&self) -> bool {
        self.is_empty() || !self.take_off(|_| true)
    }

    fn take_off(&self, is_to_sleep: impl Fn(&PollSourceEntry) -> bool) -> bool {
        let mut list = self.list.borrow_mut();
        let mut is_ready = false;
        let mut index = 0;
        while let Some(entry) = list.get(index) {
            if entry.what.is_ready() || is_to_sleep(entry) && !entry.what.arm() {
                list.swap_remove(index).come();
                is_ready = true;
            } else if is_to_sleep(entry) {
                list.swap_remove(index).what.is_registered().set(false);
            } else {
                index += 1;
            }
        }
        is_ready
    }
}
