//! The executor of a core: tasks that run to completion on one thread, in three classes, with a
//! budget that is judged by the cycle counter after every poll.
//!
//! ```
//! use nearstate_node::executor::{TaskClass, ExecutorConfig, Executor, TaskEvent, yield_now};
//! use std::rc::Rc;
//!
//! # fn main() -> nearstate_model::Result<()> {
//! let executor = Executor::new(&ExecutorConfig::default())?;
//! let event = Rc::new(TaskEvent::default());
//! let waited = Rc::clone(&event);
//! let told = executor.spawn(TaskClass::Request, "waiter", async move {
//!     waited.wait().await;
//!     7
//! });
//! let answer = executor.run(async move {
//!     yield_now().await;
//!     event.set();
//!     told.await
//! });
//! assert_eq!(answer, Some(7));
//! # Ok(())
//! # }
//! ```
//!
//! # How a core's time is given
//!
//! A *round* polls tasks until none is ready or [`ROUND`] is over; then sockets and timers of the
//! runtime are looked at, and the next round begins. In a round:
//!
//! 1. **Control** first (heartbeats, replication, shutdown), but after [`CONTROL_IN_A_ROW`] polls
//!    of
//!    it a request is polled.
//! 2. **Requests**, first come first served.
//! 3. **Background**, one slice of [`BACKGROUND_SLICE`], when no other is ready. If others are
//!    always
//!    ready, background work gets [`BACKGROUND_SHARE`] percent of the time.
//!
//! A task gives way at an `await`. One that computes for long asks [`is_due`] or
//! [`yield_if_due`] every few dozen steps. The watchdog counts and names whoever does not.
//!
//! # How it sleeps
//!
//! Nothing ticks. Without a ready task the thread sleeps until a socket, a deadline or another
//! thread wakes it. Before that it may look for new work for as long as a sleep would cost
//! ([`SpinPolicy`]), if work has been coming in shorter intervals than that.
//!
//! What comes through memory that another process writes wakes nobody: a task may [`watch_source`] for
//! it. Rounds look, idle cores look, and before the core sleeps the other process is told.
//!
//! # Wakers
//!
//! A task's waker is made once and lent to each poll. To wake on the core's own thread is to push a
//! number to a queue: no reference count, no atomic instruction. From another thread it is a push
//! to a lock-free queue, and a write to an eventfd if the core has said that it sleeps. There is
//! one executor on a thread.

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
pub use inbox::{Inbox, Outbox, inbox};
pub use metrics::{ExecutorMetrics, ExecutorStats, LongPoll, PollStamp};
pub use poll_source::PollSource;
pub use run::Executor;
pub use spawn::{
    TaskHandle, YieldNow, become_class, is_due, spawn, watch_source, yield_if_due, yield_now,
};
pub use spin::SpinPolicy;
pub use timer::{Sleep, Timeout, sleep, sleep_until, timeout};

use crate::clock::Clock;

/// How long tasks are polled before the sockets are looked at again. A request that has just come
/// waits for so long at most, tasks that keep to their slices provided.
pub const ROUND: Duration = Duration::from_micros(200);

/// How long a control or request task may compute before it [is due](is_due): a quarter of a round.
pub const REQUEST_SLICE: Duration = Duration::from_micros(50);

/// The same for background tasks. A request that comes meanwhile waits for so long: measured, p50
/// goes from 55 to 65 us beside a saturating scan with 20 to 50 us, and to 549 us with 500 us.
pub const BACKGROUND_SLICE: Duration = Duration::from_micros(30);

/// The percentage of the time that background work gets although others are always ready. Cleaning
/// that never runs would let the region fill up.
pub const BACKGROUND_SHARE: u32 = 5;

/// Polls of control tasks after which a request is polled although control is still ready.
pub const CONTROL_IN_A_ROW: u32 = 32;

/// How long an idle core looks at shared memory ([`PollSource`]) before it looks at the sockets again.
/// That is a system call, which a ring's client would wait for; and a socket's client waits for
/// this.
pub const POLL_SOURCE_SPIN: Duration = Duration::from_micros(4);

/// Who has been looked out for so long in vain is put to sleep: a look at many that are silent
/// would cost those that are not.
pub const POLL_SOURCE_IDLE_MAX: Duration = Duration::from_micros(50);

/// A poll that lasts longer is counted, and its task named: five rounds.
pub const LONG_POLL: Duration = Duration::from_millis(1);

/// How an executor behaves.
#[derive(Clone, Debug)]
pub struct ExecutorConfig {
    /// Tells the time.
    pub clock: Clock,
    /// Whether to look for work for a while before sleeping.
    pub spin: SpinPolicy,
    /// From which length on a poll is counted as long.
    pub long_poll: Duration,
    /// What is done about a long poll beside counting it. Tests let it panic.
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
