//! Tasks as seen from tasks: begin one, wait for it, cancel it, give way.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::executor::class::Class;
use crate::executor::context::{self, Here};
use crate::executor::poll_source::PollSource;
use crate::executor::ready::{self, TaskId, Waiter};

/// Begins a task on the executor of this thread. Dropping the handle leaves the task running.
///
/// # Panics
/// Outside of a core.
#[track_caller]
pub fn spawn<F>(class: Class, name: &'static str, future: F) -> Join<F::Output>
where
    F: Future + 'static,
{
    context::with(|here| spawn_at(here, class, name, future))
}

pub(crate) fn spawn_at<F>(
    here: &Rc<Here>,
    class: Class,
    name: &'static str,
    future: F,
) -> Join<F::Output>
where
    F: Future + 'static,
{
    let end = Rc::new(End {
        output: RefCell::new(None),
        is_over: Cell::default(),
        waiter: RefCell::default(),
    });
    let told = Told(Rc::clone(&end));
    let whole = async move {
        let output = future.await;
        *told.0.output.borrow_mut() = Some(output);
    };
    let id = here.admit(class, name, Box::pin(whole));
    Join { id, end, here: Rc::clone(here) }
}

/// What became of a task.
#[derive(Debug)]
struct End<T> {
    output: RefCell<Option<T>>,
    is_over: Cell<bool>,
    waiter: RefCell<Option<Waiter>>,
}

/// Held by the task: whatever drops it, done or cancelled, tells who waits.
struct Told<T>(Rc<End<T>>);

impl<T> Drop for Told<T> {
    fn drop(&mut self) {
        self.0.is_over.set(true);
        if let Some(waiter) = self.0.waiter.borrow_mut().take() {
            waiter.wake();
        }
    }
}

/// A task's handle. Awaited, it gives the task's output, or `None` if it was cancelled.
#[derive(Debug)]
pub struct Join<T> {
    id: TaskId,
    end: Rc<End<T>>,
    here: Rc<Here>,
}

impl<T> Join<T> {
    /// Ends the task where it waits: what it holds is dropped. Nothing happens if it is done. A
    /// task that cancels itself ends with its present poll.
    pub fn cancel(&self) {
        if !self.is_over() {
            self.here.cancel(self.id);
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

impl<T> Future for Join<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.is_over() {
            return Poll::Ready(self.end.output.borrow_mut().take());
        }
        *self.end.waiter.borrow_mut() = Some(Waiter::of(cx));
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
    context::try_with(|here| {
        let now = here.clock.now();
        let is_awaited = || ready::has_foreground() || here.has_passed_deadline(now);
        now >= current.due && (now >= current.due_alone || is_awaited())
    })
    .unwrap_or(false)
}

/// Makes the task that is being polled one of another class, from its next wake on.
pub fn become_class(class: Class) {
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
pub fn look_out(what: &Rc<impl PollSource + 'static>, cx: &Context<'_>) {
    if !what.is_listed().replace(true) {
        context::with(|here| {
            let what: Rc<dyn PollSource> = Rc::clone(what) as _;
            here.lookouts.add(what, Waiter::of(cx), here.clock.now());
        });
    }
}
