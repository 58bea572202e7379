//! The clock by which the records of a region expire (`docs/decisions/042-expiry-clock.md`).
//!
//! It is the clock of the host unless the region is, or was, a copy: a copy takes over the clock of
//! its source, and keeps it when its host becomes the owner. So a record that was told as absent
//! stays absent after a fail-over, and none ends early, although the clocks of the hosts differ.
//! In such a region, and in one of a cluster, it is anchored: a step of the host's wall clock
//! changes it by nothing.

use std::time::Duration;

use nearstate_memory::{SHIFT_KEPT_MS, lease_clock_ms, since_boot, wall_ahead_ms};
use nearstate_model::Result;

use crate::session::Session;

/// Differences between the clocks of a source and its copy below this are not corrected: a message
/// takes as long, and hosts whose clocks are kept by NTP differ by less.
pub const CLOCK_DIFFERENCE_MIN_MS: u64 = 100;

/// How long a measured difference counts. The largest one of this time is the one of the message
/// that was on its way for the shortest time.
const MEASURED_FOR: Duration = Duration::from_secs(5);

/// What a follower has measured of the clock of its source, on one connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct SourceClock {
    /// The largest differences in the present interval, and in the one before, in milliseconds.
    present: Option<i64>,
    before: Option<i64>,
    /// When the present interval began, by [`since_boot`].
    begun: Duration,
}

impl SourceClock {
    /// A message of the source said `source_ms` at a moment at which a clock of this host that no
    /// step changes says `host_ms`, and [`since_boot`] `at`. Returns how far the source is ahead.
    fn measure(&mut self, source_ms: u64, host_ms: u64, at: Duration) -> i64 {
        let ahead = source_ms.cast_signed().saturating_sub(host_ms.cast_signed());
        if at.saturating_sub(self.begun) >= MEASURED_FOR {
            (self.before, self.present, self.begun) = (self.present, None, at);
        }
        self.present = self.present.max(Some(ahead));
        self.present.max(self.before).unwrap_or(ahead)
    }
}

impl Session {
    /// Milliseconds since 1970 by the clock by which the records of the region expire: an expiry
    /// time that is this and a time to live ends after that time also if the host's clock differs
    /// from that of the host that owned the partition before.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn now_ms(&self) -> Result<u64> {
        Ok(self.member.expiry_now_ms()?)
    }

    /// As [`Session::now_ms`], at the last tick of the system clock (1 to 4 ms ago). Cost: two
    /// loads and a read of the kernel's clock page.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn now_ms_coarse(&self) -> Result<u64> {
        Ok(self.member.expiry_now_ms_coarse()?)
    }

    /// How far the clock by which the records of the region expire is ahead of that of this host,
    /// in milliseconds. 0 unless the region is or was a copy, or belongs to a cluster and the clock
    /// of its host was stepped.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn clock_shift_ms(&self) -> Result<i64> {
        Ok(self.member.clock_shift_ms()?)
    }

    /// True if an expiry time has come. 0 never comes.
    pub(crate) fn has_passed(&self, expires_ms: u64) -> Result<bool> {
        Ok(expires_ms != 0 && self.member.is_past(expires_ms)?)
    }

    /// The source of this copy says what its clock of expiry tells: this region takes it over.
    /// Differences below [`CLOCK_DIFFERENCE_MIN_MS`] are none.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn follow_clock(&self, clock: &mut SourceClock, source_ms: u64) -> Result<()> {
        let anchor = clock.measure(source_ms, lease_clock_ms(), since_boot());
        let Some(host) = wall_ahead_ms() else { return Ok(()) };
        let (ahead, present) = (anchor.saturating_sub(host), self.clock_shift_ms()?);
        let shift = if ahead.unsigned_abs() < CLOCK_DIFFERENCE_MIN_MS { 0 } else { ahead };
        // A few milliseconds are those of the message.
        let differs = shift == 0 && present != 0
            || shift.abs_diff(present) >= CLOCK_DIFFERENCE_MIN_MS / 10
            || self.member.clock_anchor_ms()?.is_none();
        if differs {
            self.member.anchor_clock(host.saturating_add(shift), shift)?;
        }
        Ok(())
    }

    /// Moves the clock of expiry towards that of this host, by at most so many milliseconds.
    /// Returns how far it is ahead now. Called by the node of an owner: with a hundredth of the
    /// time that has passed, a time to live is wrong by a hundredth at most. If the clock is
    /// anchored and that of the host was stepped, it is ahead by the opposite of the step.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn approach_host_clock(&self, most_ms: u64) -> Result<i64> {
        let present = self.clock_shift_ms()?;
        let Some(anchor) = self.member.clock_anchor_ms()? else {
            let shift = approached(present, most_ms);
            if shift != present {
                self.member.set_clock_shift_ms(shift)?;
            }
            return Ok(shift);
        };
        let Some(host) = wall_ahead_ms() else { return Ok(present) };
        let ahead = anchor.saturating_sub(host);
        // Less is what two readings of the clocks differ by.
        let ahead = if ahead.abs_diff(present) <= SHIFT_KEPT_MS { present } else { ahead };
        let shift = approached(ahead, most_ms);
        if shift != present {
            self.member.anchor_clock(anchor.saturating_add(shift.saturating_sub(ahead)), shift)?;
        }
        Ok(shift)
    }

    /// As [`Session::approach_host_clock`], and anchors a clock of expiry that is not: from then on
    /// no step of this host's clock moves it. Called by the node of a cluster, also for a copy, and
    /// then with 0.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn keep_clock(&self, most_ms: u64) -> Result<i64> {
        if self.member.clock_anchor_ms()?.is_none()
            && let Some(host) = wall_ahead_ms()
        {
            let shift = self.clock_shift_ms()?;
            self.member.anchor_clock(host.saturating_add(shift), shift)?;
        }
        self.approach_host_clock(most_ms)
    }
}

/// A shift that is smaller by at most so many milliseconds.
fn approached(shift_ms: i64, most_ms: u64) -> i64 {
    let left = shift_ms.unsigned_abs().saturating_sub(most_ms).cast_signed();
    if shift_ms < 0 { -left } else { left }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_that_was_fastest_tells_the_difference() {
        let mut clock = SourceClock::default();
        let at = Duration::from_secs;
        assert_eq!(clock.measure(31_000, 1_000, at(10)), 30_000);
        // One that was on its way for 2 s.
        assert_eq!(clock.measure(32_000, 4_000, at(12)), 30_000);
        // The clock of the source was set back by 20 s: known after two intervals.
        assert_eq!(clock.measure(16_000, 6_000, at(14)), 30_000);
        assert_eq!(clock.measure(17_000, 7_000, at(16)), 30_000);
        assert_eq!(clock.measure(22_000, 12_000, at(22)), 10_000);
        // It was set forward: known at once.
        assert_eq!(clock.measure(43_000, 13_000, at(23)), 30_000);
    }
}
