//! Timers. Dropping one cancels it.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::executor::context;
use crate::executor::deadlines::DeadlineKey;
use crate::executor::ready::TaskWaiter;

/// Waits for a time. A sleeping core wakes up within a millisecond of it.
///
/// # Panics
/// Outside of a core.
#[track_caller]
pub fn sleep(time: Duration) -> Sleep {
    context::with(|context| {
        sleep_until(context.clock.now().saturating_add(context.clock.ticks(time)))
    })
}

/// Waits for a reading of the core's [clock](crate::clock::Clock).
pub fn sleep_until(at: u64) -> Sleep {
    Sleep { at, key: None }
}

/// See [`sleep`].
#[derive(Debug)]
#[must_use = "a future does nothing unless awaited"]
pub struct Sleep {
    at: u64,
    key: Option<DeadlineKey>,
}

impl Sleep {
    /// The reading that it waits for.
    pub fn at(&self) -> u64 {
        self.at
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        context::with(|context| {
            if context.clock.now() >= self.at {
                return Poll::Ready(());
            }
            let waiter = TaskWaiter::of(cx);
            match self.key {
                Some(key) if context.wait_again(key, waiter.clone()) => {}
                _ => self.key = Some(context.wait_until(self.at, waiter)),
            }
            Poll::Pending
        })
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            // Without an executor there is nothing to cancel.
            context::try_with(|context| context.cancel_wait(key));
        }
    }
}

/// Waits for a future with a time limit. `None`: the time is over, and the future was dropped.
pub fn timeout<F: Future>(time: Duration, future: F) -> Timeout<F> {
    Timeout { future: Box::pin(future), sleep: sleep(time) }
}

/// See [`timeout`].
#[derive(Debug)]
#[must_use = "a future does nothing unless awaited"]
pub struct Timeout<F> {
    future: Pin<Box<F>>,
    sleep: Sleep,
}

impl<F: Future> Future for Timeout<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = self.future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        Pin::new(&mut self.sleep).poll(cx).map(|()| None)
    }
}
