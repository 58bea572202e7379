//! What a session asks the clock of expiry of its region.

use nearstate_model::Result;

use crate::clock;
use crate::layout::Corruption;
use crate::member::Member;

impl Member {
    /// Milliseconds since 1970 by the clock of expiry at the last tick of the system clock (1 to
    /// 4 ms ago).
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn expiry_now_ms_coarse(&self) -> Result<u64, Corruption> {
        Ok(clock::now_ms_coarse().saturating_add_signed(self.map().clock_shift_ms()?))
    }

    /// As [`Member::expiry_now_ms_coarse`], exact. Slower.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn expiry_now_ms(&self) -> Result<u64, Corruption> {
        Ok(clock::now_ms().saturating_add_signed(self.map().clock_shift_ms()?))
    }

    /// True if this time of the clock of expiry has come. Exact to a millisecond.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn is_past(&self, time_ms: u64) -> Result<bool, Corruption> {
        self.map().is_past(time_ms)
    }

    /// How far the clock of expiry is ahead of that of the host, in milliseconds.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn clock_shift_ms(&self) -> Result<i64, Corruption> {
        self.map().clock_shift_ms()
    }

    /// Shifts the clock of expiry, by at most [`CLOCK_SHIFT_MAX_MS`](crate::CLOCK_SHIFT_MAX_MS).
    /// Only the follower of a copy, or the node of an owner, calls it: two that do so at the same
    /// time overwrite each other.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn set_clock_shift_ms(&self, shift_ms: i64) -> Result<()> {
        self.check_usable()?;
        self.map().set_clock_shift_ms(shift_ms)?;
        self.check_not_truncated()
    }
}
