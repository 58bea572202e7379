//! The wall clock of the host, and the clocks of expiry of its copies, which no step of it moves
//! (`docs/decisions/042-expiry-clock.md`).

use std::time::Duration;

use nearstate_cluster::MemberRole;
use nearstate_store::{CLOCK_DIFFERENCE_MIN_MS, lease_clock, wall_ahead_ms};

use super::super::notice::ClusterNotice;
use super::Driver;

/// The share of the time that passes by which the clock of expiry of an owned partition moves
/// towards that of the host, so that no time to live is wrong by more.
const CLOCK_SHARE: u32 = 100;

/// The wall clock of this host, and what the clocks of expiry may approach it by.
#[derive(Debug)]
pub(super) struct HostClock {
    /// How far it is ahead of the clock of leases, as it was read last. `None`: never.
    ahead_ms: Option<i64>,
    /// When the clocks of expiry have moved last.
    moved: Duration,
}

impl HostClock {
    pub(super) const fn new(now: Duration) -> Self {
        Self { ahead_ms: None, moved: now }
    }

    /// Takes a reading. Returns by how much the clock was stepped since the last one, if at all.
    fn read(&mut self, ahead_ms: Option<i64>) -> Option<i64> {
        let before = self.ahead_ms;
        self.ahead_ms = ahead_ms.or(before);
        let by_ms = ahead_ms?.saturating_sub(before?);
        (by_ms.unsigned_abs() >= CLOCK_DIFFERENCE_MIN_MS).then_some(by_ms)
    }

    /// The whole milliseconds by which the clocks of expiry may move now. What is left of one
    /// counts the next time.
    fn due_ms(&mut self, now: Duration) -> u64 {
        let due = now.saturating_sub(self.moved).as_millis() / u128::from(CLOCK_SHARE);
        let due_ms = u64::try_from(due).unwrap_or(u64::MAX);
        self.moved += Duration::from_millis(due_ms) * CLOCK_SHARE;
        due_ms
    }
}

impl Driver {
    /// A step is corrected at the next tick, for owners and members.
    pub(super) fn keep_clocks(&mut self) {
        if let Some(by_ms) = self.clock.read(wall_ahead_ms()) {
            self.notice(&ClusterNotice::ClockStepped { by_ms });
        }
        let due_ms = self.clock.due_ms(lease_clock());
        for (partition, (copy, _)) in &self.copies {
            let is_owner = self.host.role(*partition) == Some(MemberRole::Serving);
            let most_ms = match (is_owner, self.config.is_host_clock) {
                (false, _) => 0,
                (true, false) => due_ms,
                (true, true) => u64::MAX,
            };
            // A damaged word is reported by the check, and by each read of a record that expires.
            let _ = copy.shared.copy.keep_clock(most_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_approaches_by_a_hundredth_of_the_time_whatever_the_ticks() {
        for tick in [18, 75, 100, 625, 5_000] {
            let start = Duration::from_secs(1000);
            let (mut clock, mut now, mut moved) = (HostClock::new(start), start, 0);
            while now < start + Duration::from_secs(600) {
                now += Duration::from_millis(tick);
                moved += clock.due_ms(now);
                let passed = u64::try_from(now.saturating_sub(start).as_millis()).unwrap();
                assert_eq!(moved, passed / 100, "ticks of {tick} ms");
            }
        }
    }

    #[test]
    fn a_step_is_told_once_and_a_clock_that_could_not_be_read_is_none() {
        let mut clock = HostClock::new(Duration::ZERO);
        let readings = [Some(5_000), Some(5_001), None, Some(65_000), None, Some(65_001), Some(2)];
        let told = readings.map(|ahead_ms| clock.read(ahead_ms));
        assert_eq!(told, [None, None, None, Some(59_999), None, None, Some(-64_999)]);
    }
}
