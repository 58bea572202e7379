//! Tasks as seen from tasks: begin one, wait for it, cancel it, give way.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::executor::class::TaskClass;
use crate::executor::context::{self, ExecutorContext};
use crate::executor::poll_source::PollSource;
use crate::executor::ready::{self, TaskId, TaskWaiter};

/// Begins a task on the executor of this thread. Dropping the handle leaves the task running.
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
        is_over: Cell::default(),
        waiter: RefCell::default(),
    });
    let told = CompletionGuard(Rc::clone(&end));
    let whole = async move {
        let output = future.await;
        *told.0.output.borrow_mut() = Some(output);
    };
    let id = context.admit(class, name, Box::pin(whole));
    TaskHandle { id, end, context: Rc::clone(context) }
}

/// What became of a task.
#[derive(Debug)]
struct Completion<T> {
    output: RefCell<Option<T>>,
    is_over: Cell<bool>,
    waiter: RefCell<Option<TaskWaiter>>,
}

/// Held by the task: whatever drops it, done or cancelled, tells who waits.
struct CompletionGuard<T>(Rc<Completion<T>>);

impl<T> Drop for CompletionGuard<T> {
    fn drop(&mut self) {
        self.0.is_over.set(true);
        if let Some(waiter) = self.0.waiter.borrow_mut().take() {
            waiter.wake();
        }
    }
}

/// A task's handle. Awaited, it gives the task's output, or `None` if it was cancelled.
#[derive(Debug)]
pub struct TaskHandle<T> {
    id: TaskId,
    end: Rc<Completion<T>>,
    context: Rc<ExecutorContext>,
}

impl<T> TaskHandle<T> {
    /// Ends the task where it waits: what it holds is dropped. Nothing happens if it is done. A
    /// task that cancels itself ends with its present poll.
    pub fn cancel(&self) {
        if !self.is_over() {
            self.context.cancel(self.id);
        }
    }

    /// True if the task is done or cancelled.
    pub fn is_over(&self) -> bool {
        self.end.is_over.get()
    }

    /// Polls the task as if something had woken it.
    pub fn wake(&self) {
        if !self.is_over() {
            ready::push(self.id);
        }
    }
}

impl<T> Future for TaskHandle<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.is_over() {
            return Poll::Ready(self.end.output.borrow_mut().take());
        }
        *self.end.waiter.borrow_mut() = Some(TaskWaiter::of(cx));
        Poll::Pending
    }
}

/// Gives way once: whoever else of the class is ready runs first.
pub fn yield_now() -> YieldNow {
    YieldNow { has_given_way: false }
}

/// Gives way if the task [is due](is_due).
#[inline]
pub fn yield_if_due() -> YieldNow {
    YieldNow { has_given_way: !is_due() }
}

/// See [`yield_now`].
#[derive(Debug)]
#[must_use = "a future does nothing unless awaited"]
pub struct YieldNow {
    has_given_way: bool,
}

impl Future for YieldNow {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.has_given_way {
            return Poll::Ready(());
        }
        self.has_given_way = true;
        ready::wake_current(cx);
        Poll::Pending
    }
}

/// True if the task has used up its slice and should give way. 10 ns: ask every few dozen steps.
///
/// A control or request task to which nobody would be polled instead may go on until the round
/// ends, and sockets are looked at again: giving way sooner would serve nobody.
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

/// Makes the task that is being polled one of another class, from its next wake on.
pub fn become_class(class: TaskClass) {
    let current = ready::current();
    if current.waker != 0 {
        ready::reclassify(current.id, class);
    }
}

/// Lets the core look out for this, and wakes the task once something has come. It ends with that,
/// and with [`PollSource::fall_asleep`].
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
