//! What a session asks the clock of expiry of its region.

use nearstate_model::Result;

use crate::layout::Corruption;
use crate::member::Member;

impl Member {
    /// Milliseconds since 1970 by the clock of expiry, at the last tick of the system clock (1 to
    /// 4 ms ago) unless it is anchored.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn expiry_now_ms_coarse(&self) -> Result<u64, Corruption> {
        self.map().expiry_now_ms_coarse()
    }

    /// As [`Member::expiry_now_ms_coarse`], exact. Slower.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn expiry_now_ms(&self) -> Result<u64, Corruption> {
        self.map().expiry_now_ms()
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

    /// How far the clock of expiry is ahead of [`lease_clock`](crate::lease_clock), in
    /// milliseconds. `None`: it is not anchored, so a step of the wall clock moves it.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn clock_anchor_ms(&self) -> Result<Option<i64>, Corruption> {
        self.map().clock_anchor_ms()
    }

    /// Anchors the clock of expiry: from now on it is so far ahead of
    /// [`lease_clock`](crate::lease_clock), and by `shift_ms` of the wall clock, whose difference
    /// the caller has measured ([`wall_ahead_ms`](crate::wall_ahead_ms)). The shift is at most
    /// [`CLOCK_SHIFT_MAX_MS`](crate::CLOCK_SHIFT_MAX_MS). Only the follower of a copy, or the node
    /// of an owner, calls it: two that do so at the same time overwrite each other.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn anchor_clock(&self, anchor_ms: i64, shift_ms: i64) -> Result<()> {
        self.check_usable()?;
        self.map().anchor_clock(anchor_ms, shift_ms)?;
        self.check_not_truncated()
    }

    /// Shifts a clock of expiry that is not anchored, as [`Member::anchor_clock`].
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn set_clock_shift_ms(&self, shift_ms: i64) -> Result<()> {
        self.check_usable()?;
        self.map().set_clock_shift_ms(shift_ms)?;
        self.check_not_truncated()
    }
}
