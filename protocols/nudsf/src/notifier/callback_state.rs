//! What failed at a target (a host of callbacks), and what is sent to it next. A pure state: times
//! are arguments.
//!
//! | what fails | what waits |
//! |---|---|
//! | a notification is refused for now | its order: those of its record for its callback |
//! | one is not answered, and others are | its callback |
//! | none of a batch is answered | the target |
//!
//! An entry is sent again when neither its order nor its callback waits.
//! Others are read on. After some batches without an answer, one notification probes the target,
//! each time that of a callback that does not wait.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::limits::{
    ATTEMPTS_MIN, BATCH_MAX, FAILURES_MAX, LANES_WAITING_MAX, RETRY_MAX, RETRY_MIN,
    UNDELIVERED_MS_MAX,
};

/// Failures in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DeliveryFailures {
    count: u32,
    /// When the first one was.
    since: Duration,
    /// When the next attempt is due.
    retry: Duration,
}

impl DeliveryFailures {
    fn after(before: Option<Self>, now: Duration) -> Self {
        let count = before.map_or(0, |before| before.count).saturating_add(1);
        let since = before.map_or(now, |before| before.since);
        Self { count, since, retry: now + retry_pause(count) }
    }

    /// True after enough attempts over a long time. It is the time since the first failed attempt:
    /// neither a node that was down nor a clock that was set counts.
    fn is_given_up(&self, now: Duration) -> bool {
        let lasted = now.saturating_sub(self.since);
        self.count >= ATTEMPTS_MIN && lasted >= Duration::from_millis(UNDELIVERED_MS_MAX)
    }
}

/// An order or a callback that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FailedLane {
    failures: DeliveryFailures,
    /// The first entry that has failed, which is tried again; `None`: it was dropped, and the next
    /// one is not read yet.
    entry: Option<u128>,
}

/// What is known of a target that has failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallbackState {
    /// Those without any answer.
    unanswered: Option<DeliveryFailures>,
    /// Orders and callbacks, by their numbers.
    lanes: BTreeMap<u64, FailedLane>,
    /// All entries before this one belong to lanes that wait.
    pub(crate) read_from: u128,
}

impl CallbackState {
    /// True if nothing has failed since the last success.
    pub(crate) fn is_clear(&self) -> bool {
        self.unanswered.is_none() && self.lanes.is_empty()
    }

    /// The most entries of the next batch.
    pub(crate) fn batch_max(&self) -> usize {
        match self.unanswered {
            Some(failures) if failures.count >= FAILURES_MAX => 1,
            Some(_) | None => BATCH_MAX,
        }
    }

    /// How long the target waits.
    pub(crate) fn pause(&self, now: Duration) -> Option<Duration> {
        let pause = self.unanswered?.retry.saturating_sub(now);
        Some(pause).filter(|pause| !pause.is_zero())
    }

    /// How long it is until a lane is tried again; `None`: none waits.
    pub(crate) fn next_retry(&self, now: Duration) -> Option<Duration> {
        let waiting = self.lanes.values().filter(|lane| lane.entry.is_some());
        let first = waiting.map(|lane| lane.failures.retry).min()?;
        Some(first.saturating_sub(now))
    }

    pub(crate) fn is_waiting(&self, lane: u64) -> bool {
        self.lanes.get(&lane).is_some_and(|lane| lane.entry.is_some())
    }

    /// True if more lanes may wait: entries behind those that do are read.
    pub(crate) fn reads_on(&self) -> bool {
        self.lanes.values().filter(|lane| lane.entry.is_some()).count() < LANES_WAITING_MAX
    }

    /// The lanes, with their entries, that are to be tried again; the longest waiting first.
    pub(crate) fn due(&self, now: Duration) -> Vec<(u64, u128)> {
        let entry = |(lane, failed): (&u64, &FailedLane)| {
            let is_due = failed.failures.retry <= now;
            failed.entry.filter(|_| is_due).map(|entry| (failed.failures.retry, *lane, entry))
        };
        let mut due: Vec<_> = self.lanes.iter().filter_map(entry).collect();
        due.sort_unstable();
        due.into_iter().map(|(_, lane, entry)| (lane, entry)).collect()
    }

    /// The target has answered.
    pub(crate) fn answered(&mut self) {
        self.unanswered = None;
    }

    /// No notification of a batch was answered.
    pub(crate) fn unanswered(&mut self, now: Duration) {
        self.unanswered = Some(DeliveryFailures::after(self.unanswered, now));
    }

    /// The target has not answered for long: its old entries are dropped.
    pub(crate) fn is_given_up(&self, now: Duration) -> bool {
        self.unanswered.is_some_and(|failures| failures.is_given_up(now))
    }

    /// An entry was delivered or rejected, or no longer exists: its lanes go on behind it.
    pub(crate) fn passed(&mut self, lane: u64, entry: u128) {
        if let Some(failed) = self.lanes.remove(&lane) {
            self.read_from = self.read_from.min(failed.entry.unwrap_or(entry)).min(entry);
        }
    }

    /// The host refuses an entry of an order for now. Its callback has answered, and does not wait
    /// for this entry any more. True if old entries of the order are to be given up.
    pub(crate) fn refused(
        &mut self,
        (order, callback): (u64, u64),
        entry: u128,
        now: Duration,
    ) -> bool {
        let waits = self.lanes.get(&callback).map(|lane| lane.entry);
        if waits.is_some_and(|waits| waits.is_none_or(|waits| waits == entry)) {
            self.passed(callback, entry);
        }
        self.failed(order, entry, now)
    }

    /// True if the entry of a lane is not sent yet, as one of its two lanes waits for longer: then
    /// this one waits as long.
    pub(crate) fn is_postponed(&mut self, lane: u64, both: [u64; 2], now: Duration) -> bool {
        let waiting = both.iter().filter_map(|lane| self.lanes.get(lane));
        let waiting = waiting.filter(|lane| lane.entry.is_some());
        let until = waiting.map(|lane| lane.failures.retry).max().filter(|until| *until > now);
        if let (Some(lane), Some(until)) = (self.lanes.get_mut(&lane), until) {
            lane.failures.retry = until;
        }
        until.is_some()
    }

    /// An entry has failed. True if old entries of the lane are to be given up.
    pub(crate) fn failed(&mut self, lane: u64, entry: u128, now: Duration) -> bool {
        if self.lanes.len() >= 2 * LANES_WAITING_MAX {
            self.lanes.retain(|_, lane| lane.entry.is_some());
        }
        let before = self.lanes.get(&lane);
        let failures = DeliveryFailures::after(before.map(|lane| lane.failures), now);
        // Another one may have failed before, and nothing behind it has priority.
        let first = before.and_then(|lane| lane.entry).map_or(entry, |first| first.min(entry));
        self.lanes.insert(lane, FailedLane { failures, entry: Some(first) });
        failures.is_given_up(now)
    }

    /// An entry was dropped: its lane goes on behind it, and is still failing.
    pub(crate) fn dropped(&mut self, lane: u64, entry: u128) {
        let lane = self.lanes.get_mut(&lane).filter(|lane| lane.entry == Some(entry));
        if let Some(lane) = lane {
            lane.entry = None;
            self.read_from = self.read_from.min(entry);
        }
    }
}

/// The pause after so many failures.
fn retry_pause(failures: u32) -> Duration {
    let factor = 1_u32 << failures.saturating_sub(1).min(16);
    RETRY_MIN.saturating_mul(factor).min(RETRY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_millis(UNDELIVERED_MS_MAX);

    #[test]
    fn pauses_double_up_to_their_limit() {
        assert_eq!([1, 2, 3].map(retry_pause), [1, 2, 4].map(|factor| RETRY_MIN * factor));
        assert_eq!([20, u32::MAX].map(retry_pause), [RETRY_MAX; 2]);
    }

    #[test]
    fn a_lane_that_fails_waits_and_others_are_read_on() {
        let (mut state, start) = (CallbackState::default(), Duration::from_secs(100));
        assert!(!state.failed(7, 40, start));
        assert!(state.is_waiting(7) && !state.is_waiting(8) && state.reads_on());
        assert_eq!((state.due(start), state.next_retry(start)), (vec![], Some(RETRY_MIN)));
        state.read_from = 90;
        assert!(!state.failed(8, 80, start + RETRY_MIN / 2));
        let later = start + 2 * RETRY_MIN;
        assert_eq!(state.due(later), [(7, 40), (8, 80)]);
        // Again: it waits twice as long. The other one is delivered, and goes on behind its entry.
        assert!(!state.failed(7, 40, later));
        assert_eq!(state.next_retry(later), Some(Duration::ZERO));
        state.passed(8, 80);
        assert_eq!((state.read_from, state.next_retry(later)), (80, Some(2 * RETRY_MIN)));
        state.passed(7, 40);
        assert_eq!((state.read_from, state.is_clear()), (40, true));
        for lane in 0..LANES_WAITING_MAX as u64 {
            assert!(state.reads_on());
            state.failed(lane, 1, start);
        }
        assert!(!state.reads_on(), "the number of lanes that wait is bounded");
    }

    #[test]
    fn an_entry_of_two_lanes_is_not_sent_before_both_are_due() {
        let (order, callback, start) = (7, 3, Duration::from_secs(100));
        // It is not answered, and then refused: the callback answers again.
        let mut state = CallbackState { read_from: 90, ..CallbackState::default() };
        state.failed(callback, 40, start);
        let later = start + RETRY_MIN;
        assert!(!state.is_postponed(callback, [order, callback], later));
        state.refused((order, callback), 40, later);
        assert_eq!((state.due(later), state.is_waiting(callback)), (vec![], false));
        assert_eq!((state.next_retry(later), state.read_from), (Some(RETRY_MIN), 40));
        // It is refused, and then not answered: the order waits for the callback.
        let last = later + RETRY_MIN;
        state.failed(callback, 40, last);
        assert_eq!(state.due(last), [(order, 40)]);
        assert!(state.is_postponed(order, [order, callback], last));
        assert_eq!((state.due(last), state.next_retry(last)), (vec![], Some(RETRY_MIN)));
        let end = last + RETRY_MIN;
        assert_eq!(state.due(end), [(callback, 40), (order, 40)]);
        assert!(!state.is_postponed(order, [order, callback], end));
        // Another entry of the callback still waits for an answer.
        state.refused((8, callback), 50, end);
        assert!(state.is_waiting(callback) && state.is_waiting(8));
    }

    #[test]
    fn a_callback_waits_for_the_first_of_its_entries_that_have_failed() {
        let (order, callback, start) = (7, 3, Duration::from_secs(100));
        let mut state = CallbackState::default();
        // An order of the callback waits for its entry 50, and then the callback for another's 40.
        state.refused((order, callback), 50, start);
        state.failed(callback, 40, start);
        state.read_from = 90;
        let later = start + RETRY_MIN;
        // The one of the order is sent, and not answered.
        state.failed(callback, 50, later);
        let last = later + 2 * RETRY_MIN;
        assert_eq!(state.due(last), [(order, 50), (callback, 40)]);
        // It is delivered: the callback is read from its first entry on.
        state.passed(order, 50);
        state.passed(callback, 50);
        assert_eq!((state.read_from, state.is_clear()), (40, true));
    }

    #[test]
    fn the_circuit_closes_with_an_answer_only() {
        let (mut state, mut now) = (CallbackState::default(), Duration::from_secs(100));
        for _ in 0..FAILURES_MAX {
            assert_eq!(state.batch_max(), BATCH_MAX);
            state.unanswered(now);
            now += state.pause(now).unwrap();
            assert_eq!(state.pause(now), None);
        }
        // An hour later its entries are dropped, and it is still probed with one.
        now += HOUR;
        state.unanswered(now);
        assert!(state.is_given_up(now));
        state.failed(7, 40, now);
        state.dropped(7, 40);
        state.passed(9, 50);
        assert_eq!((state.batch_max(), state.pause(now)), (1, Some(retry_pause(6))));
        state.answered();
        assert_eq!((state.batch_max(), state.pause(now)), (BATCH_MAX, None));
    }

    #[test]
    fn an_entry_is_given_up_an_hour_after_the_first_failed_attempt_and_after_some() {
        let (mut state, start) = (CallbackState::default(), Duration::from_secs(1_000_000));
        // Attempts, and then a long pause: the node was not there.
        assert!(!state.failed(7, 40, start), "the first failure, however old the entry is");
        for attempt in 2..ATTEMPTS_MIN {
            assert!(!state.failed(7, 40, start + 2 * HOUR), "{attempt} attempts");
        }
        assert!(state.failed(7, 40, start + 2 * HOUR));
        state.dropped(7, 40);
        assert!(!state.is_waiting(7));
        assert!(state.failed(7, 41, start + 2 * HOUR), "the lane has failed for an hour");
        state.passed(7, 41);
        for _ in 0..2 * ATTEMPTS_MIN {
            assert!(!state.failed(7, 42, start + 2 * HOUR), "it has been delivered since");
        }
        assert!(!state.is_given_up(start + 3 * HOUR), "the target answers");
    }
}
