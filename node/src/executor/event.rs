//! A manual-reset event: suspends and resumes tasks of one core.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::executor::ready::TaskWaiter;

/// A flag that tasks wait for. Initially not set. It works on one core only; use an
/// [`crate::executor::Inbox`] between threads.
#[derive(Debug, Default)]
pub struct TaskEvent {
    is_set: Cell<bool>,
    waiters: RefCell<Vec<TaskWaiter>>,
}

impl TaskEvent {
    /// Sets the event and wakes every waiting task.
    #[inline]
    pub fn set(&self) {
        self.is_set.set(true);
        let mut waiters = self.waiters.borrow_mut();
        while let Some(waiter) = waiters.pop() {
            waiter.wake();
        }
    }

    /// Resets the event. Tasks that were woken but not polled yet wait again.
    #[inline]
    pub fn reset(&self) {
        self.is_set.set(false);
    }

    /// True if the event is set.
    pub fn is_set(&self) -> bool {
        self.is_set.get()
    }

    /// Waits until the event is set.
    pub fn wait(&self) -> EventWait<'_> {
        EventWait { event: self, resets: false }
    }

    /// Waits until the event is set, and resets it: each [`TaskEvent::set`] releases one waiter. A
    /// set event without a waiter releases the next one.
    pub fn wait_and_reset(&self) -> EventWait<'_> {
        EventWait { event: self, resets: true }
    }
}

/// See [`TaskEvent::wait`].
#[derive(Debug)]
#[must_use = "a future does nothing unless awaited"]
pub struct EventWait<'event> {
    event: &'event TaskEvent,
    resets: bool,
}

impl Future for EventWait<'_> {
    type Output = ();

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.event.is_set.get() {
            if self.resets {
                self.event.is_set.set(false);
            }
            return Poll::Ready(());
        }
        let waiter = TaskWaiter::of(cx);
        let mut waiters = self.event.waiters.borrow_mut();
        // A task that something else woke polls again and is in the list already.
        if !waiters.iter().any(|known| known.is(&waiter)) {
            waiters.push(waiter);
        }
        Poll::Pending
    }
}
