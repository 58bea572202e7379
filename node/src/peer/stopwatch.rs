//! Time that has passed.

use std::time::Duration;

/// A moment, to which the time that has passed since is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(quanta::Instant);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(quanta::Instant::now())
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}
