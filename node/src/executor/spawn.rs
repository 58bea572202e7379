//! The interface of tasks to their executor: spawn, join, cancel, yield.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::executor::class::TaskClass;
use crate::executor::context::{self, ExecutorContext};
use crate::executor::poll_source::PollSource;
use crate::executor::ready::{self, TaskId, TaskWaiter};

/// Spawns a task on the executor of this thread. Dropping the handle does not cancel the task.
///
/// # Panics
/// Outside of a core.
#[track_caller]
pub fn spawn<F>(class: TaskClass, name: &'static str, future: F) -> TaskHandle<F::Output>
where
    F: Future + 'static,
{
    context::with(|context| spawn_at(context, class, name, future))
}

pub(crate) fn spawn_at<F>(
    context: &Rc<ExecutorContext>,
    class: TaskClass,
    name: &'static str,
    future: F,
) -> TaskHandle<F::Output>
where
    F: Future + 'static,
{
    let end = Rc::new(Completion {
        output: RefCell::new(None),
        is_finished: Cell::default(),
        waiter: RefCell::default(),
    });
    let guard = CompletionGuard(Rc::clone(&end));
    let whole = async move {
        let output = future.await;
        *guard.0.output.borrow_mut() = Some(output);
    };
    let id = context.start(class, name, Box::pin(whole));
    TaskHandle { id, end, context: Rc::clone(context) }
}

/// The state that a task shares with its handle.
#[derive(Debug)]
struct Completion<T> {
    output: RefCell<Option<T>>,
    is_finished: Cell<bool>,
    waiter: RefCell<Option<TaskWaiter>>,
}

/// Owned by the task: dropped when the task completes or is cancelled, it wakes the waiter.
struct CompletionGuard<T>(Rc<Completion<T>>);

impl<T> Drop for CompletionGuard<T> {
    fn drop(&mut self) {
        self.0.is_finished.set(true);
        if let Some(waiter) = self.0.waiter.borrow_mut().take() {
            waiter.wake();
        }
    }
}

/// The handle of a task. Awaiting it returns the task's output, or `None` if it was cancelled.
#[derive(Debug)]
pub struct TaskHandle<T> {
    id: TaskId,
    end: Rc<Completion<T>>,
    context: Rc<ExecutorContext>,
}

impl<T> TaskHandle<T> {
    /// Cancels the task: what it owns is dropped. No effect on a completed task. A task that
    /// cancels itself ends with its current poll.
    pub fn cancel(&self) {
        if !self.is_finished() {
            self.context.cancel(self.id);
        }
    }

    /// True if the task has completed or was cancelled.
    pub fn is_finished(&self) -> bool {
        self.end.is_finished.get()
    }

    /// Polls the task as if it had been woken.
    pub fn wake(&self) {
        if !self.is_finished() {
            ready::push(self.id);
        }
    }
}

impl<T> Future for TaskHandle<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.is_finished() {
            return Poll::Ready(self.end.output.borrow_mut().take());
        }
        *self.end.waiter.borrow_mut() = Some(TaskWaiter::of(cx));
        Poll::Pending
    }
}

/// Yields once: other ready tasks of the class run first.
pub fn yield_now() -> YieldNow {
    YieldNow { has_yielded: false }
}

/// Yields if the task [is due](is_due).
#[inline]
pub fn yield_if_due() -> YieldNow {
    YieldNow { has_yielded: !is_due() }
}

/// See [`yield_now`].
#[derive(Debug)]
#[must_use = "a future does nothing unless awaited"]
pub struct YieldNow {
    has_yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.has_yielded {
            return Poll::Ready(());
        }
        self.has_yielded = true;
        ready::wake_current(cx);
        Poll::Pending
    }
}

/// True if the task has used its time slice and should yield. Costs 10 ns: call it every few dozen
/// steps.
///
/// A control or request task may continue to the end of the round if no other task waits: yielding
/// earlier would not help any.
#[inline]
pub fn is_due() -> bool {
    let current = ready::current();
    context::try_with(|context| {
        let now = context.clock.now();
        let is_awaited = || ready::has_foreground() || context.has_passed_deadline(now);
        now >= current.due && (now >= current.due_alone || is_awaited())
    })
    .unwrap_or(false)
}

/// Moves the current task to another class, from its next wakeup on.
pub fn become_class(class: TaskClass) {
    let current = ready::current();
    if current.waker != 0 {
        ready::reclassify(current.id, class);
    }
}

/// Registers a poll source, and wakes the task once the source is ready. The registration ends
/// then, or when the source is armed ([`PollSource::arm`]).
///
/// # Panics
/// Outside of a core.
#[inline]
pub fn watch_source(what: &Rc<impl PollSource + 'static>, cx: &Context<'_>) {
    if !what.is_registered().replace(true) {
        context::with(|context| {
            let what: Rc<dyn PollSource> = Rc::clone(what) as _;
            context.poll_sources.add(what, TaskWaiter::of(cx), context.clock.now());
        });
    }
}
