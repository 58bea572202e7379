//! `LATENCY`: times of slow requests, by kind of event.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Samples of an event, one per second, as in Redis.
pub const SAMPLES_MAX: usize = 160;

/// The slow requests of one second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencySample {
    /// Unix time in seconds.
    pub at_seconds: u64,
    /// The longest time in this second.
    pub millis: u64,
}

/// The samples of one event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencySeries {
    /// The oldest first.
    pub samples: VecDeque<LatencySample>,
    /// The longest time since the last reset.
    pub millis_max: u64,
}

/// All events, by name.
#[derive(Debug, Default)]
pub struct LatencyMonitor {
    events: Mutex<BTreeMap<&'static str, LatencySeries>>,
}

impl LatencyMonitor {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, LatencySeries>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a time.
    pub fn add(&self, event: &'static str, at_seconds: u64, millis: u64) {
        let mut events = self.lock();
        let series = events.entry(event).or_default();
        series.millis_max = series.millis_max.max(millis);
        match series.samples.back_mut() {
            Some(last) if last.at_seconds == at_seconds => last.millis = last.millis.max(millis),
            _ => series.samples.push_back(LatencySample { at_seconds, millis }),
        }
        if series.samples.len() > SAMPLES_MAX {
            series.samples.pop_front();
        }
    }

    /// The samples of an event.
    pub fn series(&self, event: &[u8]) -> Option<LatencySeries> {
        self.lock().get(std::str::from_utf8(event).ok()?).cloned()
    }

    /// All events that have samples.
    pub fn all(&self) -> Vec<(&'static str, LatencySeries)> {
        self.lock().iter().map(|(event, series)| (*event, series.clone())).collect()
    }

    /// Removes an event. Returns whether it existed.
    pub fn reset(&self, event: &[u8]) -> bool {
        let Ok(event) = std::str::from_utf8(event) else { return false };
        self.lock().remove(event).is_some()
    }

    /// Removes all events. Returns their number.
    pub fn reset_all(&self) -> usize {
        std::mem::take(&mut *self.lock()).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_one_sample_and_the_oldest_are_dropped() {
        let monitor = LatencyMonitor::default();
        for (at, millis) in [(1, 5), (1, 9), (1, 7), (2, 3)] {
            monitor.add("command", at, millis);
        }
        let sample = |at_seconds, millis| LatencySample { at_seconds, millis };
        let series = monitor.series(b"command").unwrap_or_default();
        assert_eq!(series.samples, [sample(1, 9), sample(2, 3)]);
        assert_eq!(series.millis_max, 9);
        (10..400).for_each(|second| monitor.add("fast-command", second, 1));
        let series = monitor.series(b"fast-command").unwrap_or_default();
        assert_eq!((series.samples.len(), series.samples.front()), (160, Some(&sample(240, 1))));
        assert_eq!(monitor.all().len(), 2);
        assert!(monitor.reset(b"command") && !monitor.reset(b"command"));
        assert!(!monitor.reset(b"\xff"));
        assert_eq!((monitor.reset_all(), monitor.series(b"fast-command")), (1, None));
    }
}
