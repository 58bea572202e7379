//! Wakeups: on the core's own thread by a number, from another thread through a queue and, if the
//! core sleeps, a wakeup of its runtime.
//!
//! ```text
//! other thread                                core
//! F1  is_sent := true (swap, acq_rel)         C1  is_parked := true
//! F2  push to `woken`                         C2  fence seq_cst       (pairs with F3)
//! F3  fence seq_cst     (pairs with C2)       C3  `woken` has something: is_parked := false, go on
//! F4  is_parked was true: wake the runtime    C4  else sleep
//!
//! Either C3 sees the push of F2, or F4 sees C1. The core empties the queue before it polls, and
//! resets is_sent (swap, acq_rel: pairs with F1) before it puts the task into its own queue. A
//! thread
//! that found is_sent set in F1 has published its data before that, and the following poll sees it.
//! ```

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

use crossbeam_queue::SegQueue;

use crate::executor::ready::{self, TaskId};

/// The part of an executor that other threads use.
#[derive(Debug)]
pub(crate) struct RemoteWakes {
    /// The number of the executor.
    executor: u64,
    woken: SegQueue<Arc<TaskWaker>>,
    is_parked: AtomicBool,
    /// Wakes the runtime of the core.
    outer: Mutex<Option<Waker>>,
}

impl RemoteWakes {
    pub(crate) fn new(executor: u64) -> Self {
        Self {
            executor,
            woken: SegQueue::new(),
            is_parked: AtomicBool::new(false),
            outer: Mutex::new(None),
        }
    }

    /// Moves the tasks that other threads have woken to the core's own queues. Returns their
    /// number.
    #[inline]
    pub(crate) fn collect(&self) -> u64 {
        let mut count = 0;
        while let Some(waker) = self.woken.pop() {
            waker.is_sent.swap(false, Ordering::AcqRel);
            ready::push(waker.id);
            count += 1;
        }
        count
    }

    /// Announces that the core is about to sleep. `false`: it must not, because a task was woken.
    pub(crate) fn park(&self, outer: &Waker) -> bool {
        {
            let mut kept = self.outer.lock().unwrap_or_else(PoisonError::into_inner);
            if !kept.as_ref().is_some_and(|kept| kept.will_wake(outer)) {
                *kept = Some(outer.clone());
            }
        }
        self.is_parked.store(true, Ordering::Relaxed); // C1
        fence(Ordering::SeqCst); // C2, pairs with F3
        if self.woken.is_empty() {
            return true;
        }
        self.is_parked.store(false, Ordering::Relaxed); // C3
        false
    }

    /// Announces that the core is awake.
    #[inline]
    pub(crate) fn unpark(&self) {
        if self.is_parked.load(Ordering::Relaxed) {
            self.is_parked.store(false, Ordering::Relaxed);
        }
    }

    fn send(&self, waker: Arc<TaskWaker>) {
        self.woken.push(waker); // F2
        fence(Ordering::SeqCst); // F3, pairs with C2
        if self.is_parked.load(Ordering::Relaxed) && self.is_parked.swap(false, Ordering::Relaxed) {
            let outer = self.outer.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(outer) = outer {
                outer.wake(); // F4
            }
        }
    }
}

/// The waker of a task: created once, borrowed by each poll.
#[derive(Debug)]
pub(crate) struct TaskWaker {
    remote: Arc<RemoteWakes>,
    id: TaskId,
    /// The waker is in `woken`, where it is at most once.
    is_sent: AtomicBool,
}

impl TaskWaker {
    pub(crate) fn new(remote: Arc<RemoteWakes>, id: TaskId) -> Arc<Self> {
        Arc::new(Self { remote, id, is_sent: AtomicBool::new(false) })
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    #[inline]
    fn wake_by_ref(self: &Arc<Self>) {
        if ready::executor() == self.remote.executor {
            ready::push(self.id);
        } else if !self.is_sent.swap(true, Ordering::AcqRel) {
            self.remote.send(Arc::clone(self)); // after F1
        }
    }
}
