//! How old the first entry of a log is that a member does not have: its lag as a time.
//!
//! The driver notes the end of the log at each of its ticks. A member that has everything up to an
//! end that was noted lags by less than the time since the next note, which is the answer.

use std::collections::VecDeque;

use nearstate_cluster::Monotonic;

/// Notes that are kept. At 16 ticks in each lease this is 64 leases, 19 s or more. A member that is
/// further behind lags by at least that.
const NOTES_MAX: usize = 1024;

/// The ends of a log at some times. A note is kept only if the log has grown since the last one.
#[derive(Clone, Debug, Default)]
pub(super) struct TailNotes(VecDeque<(Monotonic, u64)>);

impl TailNotes {
    /// Notes the end of the log.
    pub(super) fn note(&mut self, now: Monotonic, tail: u64) {
        if self.0.back().is_some_and(|(_, last)| *last == tail) {
            return;
        }
        // The end falls when the log is another one: nothing is known of its entries' times.
        if self.0.back().is_some_and(|(_, last)| *last > tail) {
            self.0.clear();
        }
        if self.0.len() >= NOTES_MAX {
            self.0.pop_front();
        }
        self.0.push_back((now, tail));
    }

    /// The milliseconds since the first note behind the position; 0 if there is none. `None`:
    /// nothing was noted.
    pub(super) fn lag_ms(&self, now: Monotonic, position: u64) -> Option<u64> {
        if self.0.is_empty() {
            return None;
        }
        let behind = self.0.partition_point(|(_, tail)| *tail <= position);
        let lag = self.0.get(behind).map_or(0, |(at, _)| now.0.saturating_sub(at.0));
        Some(lag / 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Monotonic {
        Monotonic(ms * 1_000_000)
    }

    #[test]
    fn a_lag_is_the_age_of_the_first_entry_that_is_missing() {
        let mut notes = TailNotes::default();
        assert_eq!(notes.lag_ms(ms(50), 10), None, "no lag and an unknown one differ");
        notes.note(ms(100), 10);
        notes.note(ms(200), 20);
        notes.note(ms(300), 20);
        notes.note(ms(400), 30);
        assert_eq!(notes.lag_ms(ms(1000), 30), Some(0));
        assert_eq!(notes.lag_ms(ms(1000), 29), Some(600));
        // Position 20 was the end from 200 ms on; what is missing came until 400 ms.
        assert_eq!(notes.lag_ms(ms(1000), 20), Some(600));
        assert_eq!(notes.lag_ms(ms(1000), 15), Some(800));
        assert_eq!(notes.lag_ms(ms(1000), 0), Some(900));
    }

    #[test]
    fn an_idle_log_gets_no_notes_and_an_old_one_is_forgotten() {
        let mut notes = TailNotes::default();
        for now in 0..10 {
            notes.note(ms(now), 7);
        }
        assert_eq!(notes.0.len(), 1);
        for tail in 8..8 + 2 * NOTES_MAX as u64 {
            notes.note(ms(tail), tail);
        }
        assert_eq!(notes.0.len(), NOTES_MAX);
        // Another log begins at a lower position.
        notes.note(ms(9000), 5);
        assert_eq!(notes.lag_ms(ms(9010), 4), Some(10));
        assert_eq!(notes.0.len(), 1);
    }
}
