//! Fetches of a key set: what the thread that fetches and the requests that wait have in common.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use nearstate_node::clock::Clock;
use tokio::sync::watch;

/// The state of fetches.
pub(crate) struct FetchState {
    /// Changes when a fetch has ended.
    pub(crate) ended: watch::Sender<u64>,
    /// Changes when a request wants a fetch.
    pub(crate) wanted: watch::Sender<u64>,
    pub(crate) clock: Clock,
    /// When the last fetch ended, in nanoseconds of the clock; 0: none has ended.
    pub(crate) ended_at: AtomicU64,
    /// The least time between two fetches.
    pub(crate) interval_min: Duration,
}

impl FetchState {
    /// The current time, in nanoseconds of the clock.
    pub(crate) fn now(&self) -> u64 {
        self.clock.nanos(self.clock.now())
    }
}
