//! The clock of the cores: the cycle counter where it is reliable, else the kernel's monotonic
//! clock; in tests a virtual clock.
//!
//! A reading is a number of *ticks* since an arbitrary moment. Readings are compared with each
//! other, and converted to time only for output. The executor reads the clock after every poll, so
//! a reading is the largest cost of a poll.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Ticks that are converted to nanoseconds to measure the rate: many enough for an exact result.
const SAMPLE: u64 = 1 << 32;

/// Tells time in ticks. Cheap to clone. The first clock of a process measures the rate of the
/// counter, which takes about a millisecond.
#[derive(Clone, Debug)]
pub struct Clock {
    source: ClockSource,
    /// Nanoseconds in [`SAMPLE`] ticks.
    rate: u64,
}

#[derive(Clone, Debug)]
enum ClockSource {
    Counter(quanta::Clock),
    Virtual(Arc<AtomicU64>),
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock {
    /// The clock of the machine.
    pub fn new() -> Self {
        let counter = quanta::Clock::new();
        let rate = counter.delta_as_nanos(0, SAMPLE).max(1);
        Self { source: ClockSource::Counter(counter), rate }
    }

    /// A virtual clock: starts at 0, has one tick per nanosecond, and moves only when told. Clones
    /// share the time. An idle executor moves it to the next deadline.
    pub fn new_virtual() -> Self {
        Self { source: ClockSource::Virtual(Arc::default()), rate: SAMPLE }
    }

    /// The current reading.
    #[inline]
    pub fn now(&self) -> u64 {
        match &self.source {
            ClockSource::Counter(counter) => counter.raw(),
            ClockSource::Virtual(ticks) => ticks.load(Ordering::Relaxed),
        }
    }

    /// Converts a time to ticks.
    pub fn ticks(&self, time: Duration) -> u64 {
        let ticks = time.as_nanos() * u128::from(SAMPLE) / u128::from(self.rate);
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    /// Converts ticks to nanoseconds.
    pub fn nanos(&self, ticks: u64) -> u64 {
        let nanos = u128::from(ticks) * u128::from(self.rate) / u128::from(SAMPLE);
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }

    /// Converts ticks to a time.
    pub fn time(&self, ticks: u64) -> Duration {
        Duration::from_nanos(self.nanos(ticks))
    }

    /// Moves a virtual clock forward to a reading; never backward. No effect on the clock of the
    /// machine.
    pub fn advance_to(&self, ticks: u64) {
        if let ClockSource::Virtual(now) = &self.source {
            now.fetch_max(ticks, Ordering::Relaxed);
        }
    }

    /// Moves a virtual clock forward by a time.
    pub fn advance(&self, time: Duration) {
        self.advance_to(self.now().saturating_add(self.ticks(time)));
    }

    /// True for a virtual clock.
    pub fn is_virtual(&self) -> bool {
        matches!(self.source, ClockSource::Virtual(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_and_times_convert_both_ways() {
        for clock in [Clock::new(), Clock::new_virtual()] {
            for time in [Duration::from_micros(30), Duration::from_secs(3600)] {
                let there_and_back = clock.time(clock.ticks(time));
                assert!(time.abs_diff(there_and_back) < Duration::from_nanos(2), "{time:?}");
            }
        }
    }

    #[test]
    fn a_virtual_clock_moves_only_forward_and_for_all_its_clones() {
        let clock = Clock::new_virtual();
        let other = clock.clone();
        clock.advance(Duration::from_micros(5));
        clock.advance_to(2);
        assert_eq!(other.now(), 5000);
    }

    #[test]
    fn the_real_clock_advances() {
        let clock = Clock::new();
        let before = clock.now();
        clock.advance(Duration::from_secs(1000));
        let after = clock.now();
        assert!(after >= before && clock.time(after - before) < Duration::from_secs(1000));
    }
}
