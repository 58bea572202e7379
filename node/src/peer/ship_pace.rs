//! The times of a source that serves one follower.

use std::time::Duration;

use super::limits::{BEAT_INTERVAL, GATHER_BYTES_MAX, GATHER_MAX, LOOK_INTERVAL, TAIL_INTERVAL};
use super::stopwatch::Stopwatch;

/// When a source looks, sends and sleeps.
pub(super) struct ShipPace {
    /// The processor on which this thread runs, as waiters were told.
    pub(super) cpu: u64,
    pub(super) looked: Option<Stopwatch>,
    /// When something was sent or received.
    pub(super) active: Stopwatch,
    /// The position of the last entry that was sent, and of the last one that was written to be
    /// sent.
    pub(super) sent: u64,
    pub(super) written: u64,
    /// The log was read up to this position, and when its last entry was read.
    pub(super) read: u64,
    pub(super) read_at: Stopwatch,
    /// When the end of the log was looked at.
    pub(super) tail_looked: Stopwatch,
    /// A process has waited since the last acknowledgement; between that and the one before.
    pub(super) waits: [bool; 2],
    /// Processes may wait for entries up to this position, although none is marked as waiting.
    pub(super) awaited: u64,
    /// When the first entry was written that was not sent yet.
    pub(super) gathering: Option<Stopwatch>,
    /// [`GATHER_MAX`].
    pub(super) gather_max: Duration,
    pub(super) beat: Stopwatch,
    /// The position of the last position message.
    pub(super) told: Option<u64>,
    pub(super) stamp: u64,
    /// The floor of the last position message.
    pub(super) floor: u64,
    /// The longest time between two position messages.
    pub(super) interval: Duration,
    /// The highest stamp that was answered.
    pub(super) answered: u64,
    /// The first answer on this connection was not told yet. Before it is, a member does not take
    /// the owner for one that hears it: the rest of its lease may be short after a restart.
    pub(super) owes_answer: bool,
}

impl ShipPace {
    /// `interval`: what a lease needs.
    pub(super) fn new(interval: Option<Duration>) -> Self {
        let now = Stopwatch::start();
        let interval = interval.map_or(BEAT_INTERVAL, |most| most.min(BEAT_INTERVAL));
        let (told, sent, written, read, awaited) = (None, 0, 0, 0, 0);
        let (stamp, floor, answered) = (0, 0, 0);
        Self {
            cpu: 0,
            looked: None,
            active: now,
            sent,
            written,
            read,
            read_at: now,
            tail_looked: now,
            waits: [false; 2],
            awaited,
            gathering: None,
            gather_max: GATHER_MAX,
            beat: now,
            told,
            stamp,
            floor,
            interval,
            answered,
            owes_answer: false,
        }
    }

    /// True if the first of the entries that were not sent, of so many bytes, was written less than
    /// [`GATHER_MAX`] ago, and no process waits for one of them. While others are in flight they
    /// need not wait: what is committed until the acknowledgement leaves together anyway.
    pub(super) fn gathers(&self, unsent: usize, is_in_flight: bool, is_awaited: bool) -> bool {
        let is_early = |since: Stopwatch| since.elapsed() < self.gather_max;
        let is_free = !is_in_flight && !is_awaited && self.awaited <= self.sent;
        is_free && unsent < GATHER_BYTES_MAX && self.gathering.is_some_and(is_early)
    }

    /// True if a process has waited since the last acknowledgement but one: the next commits are
    /// probably waited for as well.
    pub(super) const fn expects_wait(&self) -> bool {
        let [since_last, before] = self.waits;
        since_last || before
    }

    /// True while the answer to a position message is outstanding: a source sleeps at its socket
    /// then, and not where processes that wait wake it.
    pub(super) const fn expects_answer(&self) -> bool {
        self.stamp > self.answered
    }

    /// Whether a process waits at present.
    pub(super) const fn note_wait(&mut self, is_awaited: bool) {
        let [since_last, _] = &mut self.waits;
        *since_last |= is_awaited;
    }

    /// An entry was acknowledged.
    pub(super) const fn note_acknowledged(&mut self) {
        let [since_last, _] = self.waits;
        self.waits = [false, since_last];
    }

    /// The log was read up to a position, and has no other entry at present.
    pub(super) fn note_read(&mut self, position: u64) {
        self.tail_looked = Stopwatch::start();
        if position > self.read {
            self.read = position;
            self.read_at = self.tail_looked;
        }
    }

    /// True if a source that spins may look at the end of the log, and does so.
    pub(super) fn looks_at_tail(&mut self) -> bool {
        let is_due = self.tail_looked.elapsed() >= TAIL_INTERVAL;
        if is_due {
            self.tail_looked = Stopwatch::start();
        }
        is_due
    }

    /// Something was written to be sent. The last entry is the one at `last`.
    pub(super) fn note_written(&mut self, last: u64) {
        if last > self.written {
            self.written = last;
            self.gathering.get_or_insert_with(Stopwatch::start);
        }
    }

    /// True if a position message is to be sent: some time has passed, or everything up to
    /// `position` was sent and no message has said so, neither the last entry, at `last`, nor
    /// another position message.
    pub(super) fn is_due(&self, position: u64, last: u64) -> bool {
        self.beat.elapsed() >= self.interval
            || self.told.is_none_or(|told| position > told.max(last))
    }

    /// True if it is time to look at the catalog.
    pub(super) fn looks(&mut self) -> bool {
        if self.looked.is_some_and(|looked| looked.elapsed() < LOOK_INTERVAL) {
            return false;
        }
        self.looked = Some(Stopwatch::start());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_gather_from_the_first_one_on_and_messages_without_entries_do_not() {
        let mut pace = ShipPace::new(None);
        pace.gather_max = Duration::from_hours(1);
        pace.note_written(0);
        assert!(!pace.gathers(81, false, false), "a position message");
        pace.note_written(7);
        assert!(pace.gathers(1, false, false) && !pace.gathers(GATHER_BYTES_MAX, false, false));
        assert!(!pace.gathers(1, true, false), "entries are in flight");
        assert!(!pace.gathers(1, false, true), "a process waits");
        // One waited for entry 7 when entry 6 was acknowledged, and is marked again only later.
        (pace.sent, pace.awaited) = (6, 7);
        assert!(!pace.gathers(1, false, false));
        (pace.sent, pace.awaited) = (6, 6);
        assert!(pace.gathers(1, false, false));
        let first = pace.gathering;
        pace.note_written(8);
        assert_eq!(format!("{:?}", pace.gathering), format!("{first:?}"), "the first one counts");
        pace.gather_max = Duration::ZERO;
        assert!(!pace.gathers(1, false, false));
    }

    #[test]
    fn a_wait_is_expected_until_the_second_acknowledgement_behind_one() {
        let mut pace = ShipPace::new(None);
        pace.note_wait(false);
        assert!(!pace.expects_wait());
        pace.note_wait(true);
        pace.note_wait(false);
        assert!(pace.expects_wait(), "it has waited since the last acknowledgement");
        pace.note_acknowledged();
        assert!(pace.expects_wait());
        pace.note_acknowledged();
        assert!(!pace.expects_wait());
    }

    #[test]
    fn an_answer_is_expected_to_the_last_position_message() {
        let mut pace = ShipPace::new(None);
        assert!(!pace.expects_answer());
        pace.stamp = 7;
        assert!(pace.expects_answer());
        pace.answered = 7;
        assert!(!pace.expects_answer());
    }

    #[test]
    fn a_position_message_says_what_no_entry_says() {
        let mut pace = ShipPace::new(Some(Duration::from_hours(1)));
        pace.interval = Duration::from_hours(1);
        // The first one begins the lease.
        assert!(pace.is_due(7, 7));
        pace.told = Some(7);
        // The follower acknowledges the entry at 8 by itself.
        assert!(!pace.is_due(7, 7) && !pace.is_due(8, 8));
        // Position 9 has no entry, and may be waited for.
        assert!(pace.is_due(9, 8));
        pace.told = Some(9);
        assert!(!pace.is_due(9, 8));
        pace.interval = Duration::ZERO;
        assert!(pace.is_due(9, 8));
    }
}
