//! The clock of the cores: the cycle counter where it can be trusted, else the kernel's monotonic
//! clock; in tests one that stands until it is moved.
//!
//! A reading is a number of *ticks* since some moment. Ticks are only compared with each other, and
//! turned into time where somebody wants to read them: after every poll there is a reading, and
//! nothing else of a poll costs as much.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A sample of ticks that is long enough for an exact rate: its length in nanoseconds is the rate.
const SAMPLE: u64 = 1 << 32;

/// Tells time in ticks. Cheap to clone. The first one of a process measures the counter's rate, in
/// about a millisecond.
#[derive(Clone, Debug)]
pub struct Clock {
    source: Source,
    /// Nanoseconds in [`SAMPLE`] ticks.
    rate: u64,
}

#[derive(Clone, Debug)]
enum Source {
    Counter(quanta::Clock),
    Virtual(Arc<AtomicU64>),
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock {
    /// The machine's clock.
    pub fn new() -> Self {
        let counter = quanta::Clock::new();
        let rate = counter.delta_as_nanos(0, SAMPLE).max(1);
        Self { source: Source::Counter(counter), rate }
    }

    /// A clock that begins at 0, has a tick for each nanosecond and moves only when told. Its
    /// clones show the same time. An executor that has nothing to do moves it to its next deadline.
    pub fn new_virtual() -> Self {
        Self { source: Source::Virtual(Arc::default()), rate: SAMPLE }
    }

    /// The reading of this moment.
    #[inline]
    pub fn now(&self) -> u64 {
        match &self.source {
            Source::Counter(counter) => counter.raw(),
            Source::Virtual(ticks) => ticks.load(Ordering::Relaxed),
        }
    }

    /// How many ticks a time takes.
    pub fn ticks(&self, time: Duration) -> u64 {
        let ticks = time.as_nanos() * u128::from(SAMPLE) / u128::from(self.rate);
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    /// How many nanoseconds some ticks take.
    pub fn nanos(&self, ticks: u64) -> u64 {
        let nanos = u128::from(ticks) * u128::from(self.rate) / u128::from(SAMPLE);
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }

    /// How long some ticks take.
    pub fn time(&self, ticks: u64) -> Duration {
        Duration::from_nanos(self.nanos(ticks))
    }

    /// Moves a virtual clock forward to a reading; never back, and the machine's clock not at all.
    pub fn advance_to(&self, ticks: u64) {
        if let Source::Virtual(now) = &self.source {
            now.fetch_max(ticks, Ordering::Relaxed);
        }
    }

    /// Moves a virtual clock forward by a time.
    pub fn advance(&self, time: Duration) {
        self.advance_to(self.now().saturating_add(self.ticks(time)));
    }

    /// True of a clock that moves only when told.
    pub fn is_virtual(&self) -> bool {
        matches!(self.source, Source::Virtual(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_and_time_turn_into_each_other() {
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
    fn the_machines_clock_goes_on() {
        let clock = Clock::new();
        let before = clock.now();
        clock.advance(Duration::from_secs(1000));
        let after = clock.now();
        assert!(after >= before && clock.time(after - before) < Duration::from_secs(1000));
    }
}
