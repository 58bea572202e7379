//! One clock for all processes of a run: nanoseconds of `CLOCK_MONOTONIC`.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds since the machine started, or 0 if the kernel does not have this clock.
pub fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
        seconds * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap_or(0)
    })
}

/// The processor time of this thread, or 0 if the kernel does not have this clock.
pub(crate) fn thread_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}
