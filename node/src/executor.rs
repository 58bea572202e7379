//! The executor of a core: tasks that run to completion on one thread, in three classes, with a
//! time slice that is checked with the cycle counter after every poll.
//!
//! ```
//! use nearstate_node::executor::{TaskClass, ExecutorConfig, Executor, TaskEvent, yield_now};
//! use std::rc::Rc;
//!
//! # fn main() -> nearstate_model::Result<()> {
//! let executor = Executor::new(&ExecutorConfig::default())?;
//! let event = Rc::new(TaskEvent::default());
//! let waited = Rc::clone(&event);
//! let waiter = executor.spawn(TaskClass::Request, "waiter", async move {
//!     waited.wait().await;
//!     7
//! });
//! let answer = executor.run(async move {
//!     yield_now().await;
//!     event.set();
//!     waiter.await
//! });
//! assert_eq!(answer, Some(7));
//! # Ok(())
//! # }
//! ```
//!
//! # How the time of a core is divided
//!
//! A *round* polls tasks until none is ready or [`ROUND`] is over. Then the runtime checks sockets
//! and timers, and the next round starts. In a round:
//!
//! 1. **Control** tasks first (heartbeats, replication, shutdown), but after [`CONTROL_IN_A_ROW`]
//!    polls of them a request is polled.
//! 2. **Requests**, in the order of their wakeups.
//! 3. **Background** tasks, one slice of [`BACKGROUND_SLICE`], when no other task is ready. If
//!    others are always ready, background tasks get [`BACKGROUND_SHARE`] percent of the time.
//!
//! A task yields at an `await`. A task that computes for long calls [`is_due`] or [`yield_if_due`]
//! every few dozen steps. The watchdog counts and names tasks that do not.
//!
//! # How a core sleeps
//!
//! There is no periodic tick. Without a ready task the thread sleeps until a socket, a deadline or
//! another thread wakes it. Before that it may busy-poll for as long as a sleep would cost
//! ([`SpinPolicy`]), if work has been arriving at shorter intervals.
//!
//! Shared memory that another process writes causes no wakeup. A task registers such a source with
//! [`watch_source`]: rounds check it, idle cores check it, and before the core sleeps, the other
//! process is told that it must send a wakeup.
//!
//! # Wakers
//!
//! A task's waker is created once and borrowed by each poll. A wakeup on the core's own thread
//! pushes a number to a queue: no reference count, no atomic instruction. A wakeup from another
//! thread pushes to a lock-free queue, and writes to an eventfd if the core sleeps. A thread has at
//! most one executor.

mod run;
mod spawn;
mod timer;
mod event;
mod inbox;
mod context;
mod poll_source;
mod waker;
mod deadlines;
mod ready;
mod spin;
mod metrics;
mod class;

use std::time::Duration;

pub use class::TaskClass;
pub use event::{EventWait, TaskEvent};
pub use inbox::{Inbox, InboxSender, inbox};
pub use metrics::{ExecutorMetrics, ExecutorStats, LongPoll, PollStamp};
pub use poll_source::PollSource;
pub use run::Executor;
pub use spawn::{
    TaskHandle, YieldNow, become_class, is_due, spawn, watch_source, yield_if_due, yield_now,
};
pub use spin::SpinPolicy;
pub use timer::{Sleep, Timeout, sleep, sleep_until, timeout};

use crate::clock::Clock;

/// How long tasks are polled before the sockets are checked again. A new request waits at most this
/// long, provided that tasks keep their slices.
pub const ROUND: Duration = Duration::from_micros(200);

/// How long a control or request task may run before it [is due](is_due): a quarter of a round.
pub const REQUEST_SLICE: Duration = Duration::from_micros(50);

/// The same for background tasks. A request that arrives meanwhile waits this long. Measured: the
/// median latency rises from 55 to 65 us during a saturating scan with slices of 20 to 50 us, and
/// to 549 us with 500 us.
pub const BACKGROUND_SLICE: Duration = Duration::from_micros(30);

/// Percent of the time that background tasks get when others are always ready. Without it,
/// reclamation would stop and the region would fill up.
pub const BACKGROUND_SHARE: u32 = 5;

/// After this many consecutive polls of control tasks a request is polled.
pub const CONTROL_IN_A_ROW: u32 = 32;

/// How long an idle core polls shared memory ([`PollSource`]) before it checks the sockets again.
/// The check is a system call, for which clients of rings wait; clients of sockets wait for this.
pub const POLL_SOURCE_SPIN: Duration = Duration::from_micros(4);

/// A source that was silent for this long is armed for a wakeup and removed from the list: polling
/// many silent sources would delay the active ones.
pub const POLL_SOURCE_IDLE_MAX: Duration = Duration::from_micros(50);

/// A longer poll is counted and its task named: five rounds.
pub const LONG_POLL: Duration = Duration::from_millis(1);

/// The configuration of an executor.
#[derive(Clone, Debug)]
pub struct ExecutorConfig {
    /// The clock.
    pub clock: Clock,
    /// Whether to busy-poll before sleeping.
    pub spin: SpinPolicy,
    /// Polls longer than this are counted as long.
    pub long_poll: Duration,
    /// Called for each long poll. Tests let it panic.
    pub on_long_poll: fn(&LongPoll),
}

impl Default for ExecutorConfig {
    fn default() -> Self {
        Self {
            clock: Clock::new(),
            spin: SpinPolicy::default(),
            long_poll: LONG_POLL,
            on_long_poll: |_| (),
        }
    }
}

#[cfg(test)]
mod tests;
