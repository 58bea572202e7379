//! The clock by which the records of a region expire (`docs/decisions/042-expiry-clock.md`).
//!
//! It is the clock of the host unless the region is, or was, a copy: a copy takes over the clock of
//! its source, and keeps it when its host becomes the owner. So a record that was told as absent
//! stays absent after a fail-over, and none ends early, although the clocks of the hosts differ.

use std::time::Duration;

use nearstate_memory::since_boot;
use nearstate_model::{Result, invariant};

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
    /// A message of the source said `source_ms` at a moment at which this host's clock says
    /// `host_ms`, and [`since_boot`] `at`. Returns how far the source is ahead.
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
    /// in milliseconds. 0 unless the region is or was a copy.
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
        let ahead = clock.measure(source_ms, nearstate_memory::now_ms(), since_boot());
        let small = ahead.unsigned_abs() < CLOCK_DIFFERENCE_MIN_MS;
        let (shift, present) = (if small { 0 } else { ahead }, self.clock_shift_ms()?);
        // A few milliseconds are those of the message.
        if shift == 0 && present != 0 || shift.abs_diff(present) >= CLOCK_DIFFERENCE_MIN_MS / 10 {
            self.member.set_clock_shift_ms(shift)?;
        }
        Ok(())
    }

    /// Moves the clock of expiry towards that of this host, by at most so many milliseconds.
    /// Returns how far it is ahead now. Called by the node of an owner: with a hundredth of the
    /// time that has passed, a time to live is wrong by a hundredth at most.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn approach_host_clock(&self, most_ms: u64) -> Result<i64> {
        let present = self.clock_shift_ms()?;
        if present == 0 {
            return Ok(0);
        }
        let left = present.unsigned_abs().saturating_sub(most_ms).cast_signed();
        let shift = if present < 0 { -left } else { left };
        invariant!(shift.unsigned_abs() <= present.unsigned_abs(), "{shift} approaches {present}");
        self.member.set_clock_shift_ms(shift)?;
        Ok(shift)
    }
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
