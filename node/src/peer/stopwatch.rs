//! Time that has passed.

use std::time::Duration;

use nearstate_store::since_boot;

/// A moment, to which the time that has passed since is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Duration);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(since_boot())
    }

    pub(crate) fn elapsed(self) -> Duration {
        since_boot().saturating_sub(self.0)
    }
}
