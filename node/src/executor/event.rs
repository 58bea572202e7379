//! Suspend and resume between tasks of one core.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::executor::ready::Waiter;

/// Shut, it holds tasks up; open, it lets them pass. Shut at first. For one core: tell other
/// threads' tasks through an [`crate::executor::Inbox`].
#[derive(Debug, Default)]
pub struct Gate {
    is_open: Cell<bool>,
    waiters: RefCell<Vec<Waiter>>,
}

impl Gate {
    /// Opens it. Everybody who waits is woken.
    #[inline]
    pub fn open(&self) {
        self.is_open.set(true);
        let mut waiters = self.waiters.borrow_mut();
        while let Some(waiter) = waiters.pop() {
            waiter.wake();
        }
    }

    /// Shuts it, for those who come from now on or were woken and have not passed yet.
    #[inline]
    pub fn shut(&self) {
        self.is_open.set(false);
    }

    /// True if it is open.
    pub fn is_open(&self) -> bool {
        self.is_open.get()
    }

    /// Waits until it is open.
    pub fn pass(&self) -> Pass<'_> {
        Pass { gate: self, shuts: false }
    }

    /// Waits until it is open, and shuts it: of those who wait, one passes each time that it is
    /// opened. An opening that nobody waited for is kept for the next.
    pub fn pass_and_shut(&self) -> Pass<'_> {
        Pass { gate: self, shuts: true }
    }
}

/// See [`Gate::pass`].
#[derive(Debug)]
#[must_use = "a future does nothing unless awaited"]
pub struct Pass<'gate> {
    gate: &'gate Gate,
    shuts: bool,
}

impl Future for Pass<'_> {
    type Output = ();

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.gate.is_open.get() {
            if self.shuts {
                self.gate.is_open.set(false);
            }
            return Poll::Ready(());
        }
        let waiter = Waiter::of(cx);
        let mut waiters = self.gate.waiters.borrow_mut();
        // A task that was woken by something else comes again: it is known already.
        if !waiters.iter().any(|known| known.is(&waiter)) {
            waiters.push(waiter);
        }
        Poll::Pending
    }
}
