//! The executor of this thread, as its tasks and wakers use it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use crate::clock::Clock;
use crate::executor::class::TaskClass;
use crate::executor::deadlines::{DeadlineKey, Deadlines};
use crate::executor::metrics::ExecutorMetrics;
use crate::executor::poll_source::PollSources;
use crate::executor::ready::{self, Task, TaskId, TaskWaiter};
use crate::executor::waker::{RemoteWakes, TaskWaker};

/// The part of the executor that tasks and wakers of this thread use.
pub(crate) struct ExecutorContext {
    pub(crate) clock: Clock,
    pub(crate) remote: Arc<RemoteWakes>,
    pub(crate) metrics: Arc<ExecutorMetrics>,
    pub(crate) poll_sources: PollSources,
    deadlines: RefCell<Deadlines>,
    /// A lower bound of all deadlines, so that most polls do not touch the heap.
    deadline_next: Cell<u64>,
    /// The current task ends with this poll.
    is_current_cancelled: Cell<bool>,
}

impl fmt::Debug for ExecutorContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecutorContext").field("metrics", &self.metrics).finish_non_exhaustive()
    }
}

thread_local! {
    static CONTEXT: RefCell<Option<Rc<ExecutorContext>>> = const { RefCell::new(None) };
}

/// Calls a function with the executor of this thread.
///
/// # Panics
/// If this thread has no executor: the caller is not a task.
#[inline]
#[track_caller]
pub(crate) fn with<T>(call: impl FnOnce(&Rc<ExecutorContext>) -> T) -> T {
    CONTEXT
        .with_borrow(|context| {
            let context = context.as_ref();
            assert!(
                context.is_some(),
                "no executor on this thread: only tasks of a core may call this"
            );
            context.map(call)
        })
        .unwrap_or_else(|| unreachable!("asserted above"))
}

/// Calls a function with the executor of this thread, if there is one.
pub(crate) fn try_with<T>(call: impl FnOnce(&Rc<ExecutorContext>) -> T) -> Option<T> {
    CONTEXT
        .try_with(|context| {
            context.try_borrow().ok().and_then(|context| context.as_ref().map(call))
        })
        .ok()
        .flatten()
}

/// Installs the executor of this thread. `false`: there is one already.
pub(crate) fn install(context: &Rc<ExecutorContext>, executor: u64) -> bool {
    CONTEXT.with_borrow_mut(|place| {
        if place.is_some() {
            return false;
        }
        *place = Some(Rc::clone(context));
        ready::install(executor);
        true
    })
}

/// Removes the executor of this thread with all its tasks.
pub(crate) fn uninstall() {
    ready::set_current(ready::CurrentTask::default());
    ready::install(0);
    CONTEXT.set(None);
}

impl ExecutorContext {
    pub(crate) fn new(
        clock: Clock,
        remote: Arc<RemoteWakes>,
        metrics: Arc<ExecutorMetrics>,
    ) -> Self {
        Self {
            clock,
            remote,
            metrics,
            poll_sources: PollSources::default(),
            deadlines: RefCell::default(),
            deadline_next: Cell::new(u64::MAX),
            is_current_cancelled: Cell::new(false),
        }
    }

    /// Starts a task. It is ready.
    pub(crate) fn start(
        &self,
        class: TaskClass,
        name: &'static str,
        future: Pin<Box<dyn Future<Output = ()>>>,
    ) -> TaskId {
        let id = ready::allocate(class);
        let waker = Waker::from(TaskWaker::new(Arc::clone(&self.remote), id));
        let name = self.metrics.number_of(name);
        ready::put(Box::new(Task { id, class, future, waker, name }));
        ready::push(id);
        id
    }

    /// True if the current task ends with this poll.
    #[inline]
    pub(crate) fn is_current_cancelled(&self) -> bool {
        self.is_current_cancelled.get()
    }

    /// Ends a completed task: drops it and frees its slot.
    pub(crate) fn end(&self, task: Box<Task>) {
        self.is_current_cancelled.set(false);
        // While it is dropped, it is not the current task, and its wakers have no effect.
        ready::set_current(ready::CurrentTask::default());
        drop(ready::remove(task.id));
        drop(task);
    }

    /// Cancels a task. One that cancels itself ends with its current poll.
    pub(crate) fn cancel(&self, id: TaskId) {
        let current = ready::current();
        if current.waker != 0 && current.id == id {
            self.is_current_cancelled.set(true);
        } else {
            drop(ready::remove(id));
        }
    }

    /// True if a deadline may have passed.
    #[inline]
    pub(crate) fn has_passed_deadline(&self, now: u64) -> bool {
        now >= self.deadline_next.get()
    }

    /// Wakes the tasks whose deadlines have passed.
    #[inline]
    pub(crate) fn pass_deadlines(&self, now: u64) {
        if self.has_passed_deadline(now) {
            self.pass_deadlines_slow(now);
        }
    }

    #[cold]
    fn pass_deadlines_slow(&self, now: u64) {
        loop {
            let passed = self.deadlines.borrow_mut().pop(now);
            let Some(waiter) = passed else { break };
            waiter.wake();
        }
        self.deadline_next.set(self.deadlines.borrow_mut().next());
    }

    /// The next deadline; `u64::MAX` if there is none.
    pub(crate) fn deadline_next(&self) -> u64 {
        if self.deadline_next.get() < u64::MAX {
            self.deadline_next.set(self.deadlines.borrow_mut().next());
        }
        self.deadline_next.get()
    }

    pub(crate) fn wait_until(&self, at: u64, waiter: TaskWaiter) -> DeadlineKey {
        self.deadline_next.set(self.deadline_next.get().min(at));
        self.deadlines.borrow_mut().insert(at, waiter)
    }

    pub(crate) fn wait_again(&self, key: DeadlineKey, waiter: TaskWaiter) -> bool {
        self.deadlines.borrow_mut().replace(key, waiter)
    }

    pub(crate) fn cancel_wait(&self, key: DeadlineKey) {
        self.deadlines.borrow_mut().cancel(key);
    }
}
