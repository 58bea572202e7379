//! The clock by which the records of a region expire: that of its host, shifted.
//!
//! A region that was never a copy, and belongs to no cluster, has the clock of its host, and its
//! words are 0. A copy takes over the clock of its source: what has expired there has expired here,
//! although the clocks of the two hosts differ. It keeps it when its host becomes the owner, and
//! approaches the clock of that host by a hundredth of the time that passes
//! (`docs/decisions/042-expiry-clock.md`).
//!
//! Such a clock is *anchored*: what counts is how far it is ahead of `CLOCK_BOOTTIME`, which no
//! step of the wall clock changes. The shift is derived from that, for readers: with it, one
//! reading of the wall clock's page tells that a time has not come.
//!
//! ```text
//! step of the wall clock   readers                            exact readings of the clock
//! forward                  a time seems to have come: they    store the shift that the anchor
//!                          judge by the anchor                gives: writers with a time to live,
//! back                     a time seems to come later,        sources, the node at each tick of
//!                          until the shift is stored          its driver
//! ```
//!
//! ```text
//! node                                  reader
//! C1  anchor                            D1  boot is the present one     (acquire)
//! C2  boot = the present one (release)  D2  anchor
//! ```
//!
//! D1 that sees C2 sees C1, so D2 reads no anchor of another boot.

use crate::atomic::{AtomicU64, Ordering, mutant};
use crate::clock::{self, is_reached, may_be_reached, note_judged, present_boot, wall_ahead_ms};
use crate::layout::{Corruption, EXPIRY_ANCHOR, EXPIRY_BOOT, EXPIRY_CLOCK, seal, unseal};
use crate::region::map::Map;

/// The largest shift: 1,000 years in milliseconds. More is an error of a clock that no shift
/// corrects.
pub const CLOCK_SHIFT_MAX_MS: u64 = 1000 * 366 * 24 * 3600 * 1000;

/// A shift that differs by at most this from what the anchor gives is kept: two readings of both
/// clocks, of a millisecond each.
pub const SHIFT_KEPT_MS: u64 = 2;

/// The difference between a coarse and an exact reading of a clock, and some milliseconds between
/// two readings: a larger one is worth a look whether the wall clock was stepped.
const STEP_SEEN_MS: u64 = 20;

/// The word of a shift, before it is sealed: `milliseconds << 1 | the clock is behind`.
fn encode(shift_ms: i64) -> u64 {
    let distance = shift_ms.unsigned_abs().min(CLOCK_SHIFT_MAX_MS);
    distance << 1 | u64::from(shift_ms < 0)
}

fn decode(value: u64) -> i64 {
    // 47 bits.
    let distance = (value >> 1).cast_signed();
    if value & 1 == 0 { distance } else { -distance }
}

fn unsealed(word: u64) -> Result<u64, Corruption> {
    unseal(word, "the clock of expiry has a flipped bit")
}

/// Of a word that is not 0.
#[cold]
fn opened(word: u64) -> Result<i64, Corruption> {
    unsealed(word).map(decode)
}

/// D1 and D2. `None`: nothing was stored in this boot.
pub(crate) fn anchor_of(
    [anchor, boot]: [&AtomicU64; 2],
    present: u64,
) -> Result<Option<i64>, Corruption> {
    let order = if mutant("anchor-boot-relaxed") { Ordering::Relaxed } else { Ordering::Acquire };
    match boot.load(order) {
        0 => Ok(None),
        word if unsealed(word)? != present => Ok(None),
        _ => opened(anchor.load(Ordering::Relaxed)).map(Some),
    }
}

/// C1 and C2.
pub(crate) fn store_anchor([anchor, boot]: [&AtomicU64; 2], present: u64, anchor_ms: i64) {
    anchor.store(seal(encode(anchor_ms)), Ordering::Relaxed);
    let order = if mutant("anchor-relaxed") { Ordering::Relaxed } else { Ordering::Release };
    boot.store(seal(present), order);
}

impl Map {
    /// How far the clock of expiry is ahead of that of the host, in milliseconds. Cost: a load.
    #[inline]
    pub(crate) fn clock_shift_ms(&self) -> Result<i64, Corruption> {
        match self.word(EXPIRY_CLOCK)?.load(Ordering::Relaxed) {
            0 => Ok(0),
            word => opened(word),
        }
    }

    fn store_shift(&self, shift_ms: i64) -> Result<(), Corruption> {
        let value = encode(shift_ms);
        debug_assert!(value < 1 << 48, "a shift has 48 bits");
        // Nothing else depends on it, so it needs no order.
        self.word(EXPIRY_CLOCK)?.store(if value == 0 { 0 } else { seal(value) }, Ordering::Relaxed);
        Ok(())
    }

    /// Stores the shift of a clock that is not anchored, limited to [`CLOCK_SHIFT_MAX_MS`].
    pub(crate) fn set_clock_shift_ms(&self, shift_ms: i64) -> Result<(), Corruption> {
        self.store_shift(shift_ms)
    }

    /// How far the clock of expiry is ahead of [`lease_clock`](crate::lease_clock), in
    /// milliseconds. `None`: it is not anchored, or was in another boot.
    pub(crate) fn clock_anchor_ms(&self) -> Result<Option<i64>, Corruption> {
        let words = [self.word(EXPIRY_ANCHOR)?, self.word(EXPIRY_BOOT)?];
        present_boot().map_or(Ok(None), |boot| anchor_of(words, boot))
    }

    /// From now on the clock of expiry is so far ahead of [`lease_clock`](crate::lease_clock), and
    /// of the wall clock as it is now. Without a known boot it is not anchored.
    pub(crate) fn anchor_clock(&self, anchor_ms: i64, shift_ms: i64) -> Result<(), Corruption> {
        let words = [self.word(EXPIRY_ANCHOR)?, self.word(EXPIRY_BOOT)?];
        if let Some(boot) = present_boot() {
            store_anchor(words, boot, anchor_ms);
            debug_assert!(anchor_of(words, boot)?.is_some(), "it is anchored in this boot");
        }
        self.store_shift(shift_ms)
    }

    /// The shift that the anchor gives. It is stored if the wall clock was stepped.
    #[cold]
    fn corrected(&self, anchor_ms: i64) -> Result<i64, Corruption> {
        let present = self.clock_shift_ms()?;
        let Some(host_ms) = wall_ahead_ms() else { return Ok(present) };
        let shift_ms = anchor_ms.saturating_sub(host_ms);
        if shift_ms.abs_diff(present) <= SHIFT_KEPT_MS {
            return Ok(present);
        }
        self.store_shift(shift_ms)?;
        Ok(shift_ms)
    }

    /// Milliseconds since 1970 by the clock of expiry. An anchored clock that a step of the wall
    /// clock has moved for readers is set right.
    pub(crate) fn expiry_now_ms(&self) -> Result<u64, Corruption> {
        let (mut shift_ms, host_ms) = (self.clock_shift_ms()?, clock::now_ms());
        let told = host_ms.saturating_add_signed(shift_ms);
        let Some(anchor_ms) = self.clock_anchor_ms()? else { return Ok(told) };
        let now = clock::lease_clock_ms().saturating_add_signed(anchor_ms);
        if now.abs_diff(told) > STEP_SEEN_MS {
            shift_ms = self.corrected(anchor_ms)?;
        }
        note_judged(now.saturating_add_signed(-shift_ms));
        Ok(now)
    }

    /// As [`Map::expiry_now_ms`], at the last tick of the system clock (1 to 4 ms ago) if the clock
    /// is not anchored.
    #[inline]
    pub(crate) fn expiry_now_ms_coarse(&self) -> Result<u64, Corruption> {
        if self.word(EXPIRY_BOOT)?.load(Ordering::Relaxed) != 0 {
            return self.expiry_now_ms();
        }
        Ok(clock::now_ms_coarse().saturating_add_signed(self.clock_shift_ms()?))
    }

    /// True if this time of the clock of expiry has come. Exact to a millisecond.
    #[inline]
    pub(crate) fn is_past(&self, time_ms: u64) -> Result<bool, Corruption> {
        let host_ms = time_ms.saturating_add_signed(-self.clock_shift_ms()?);
        Ok(may_be_reached(host_ms) && self.is_past_exactly(time_ms, host_ms)?)
    }

    /// By the anchor, if there is one.
    #[cold]
    fn is_past_exactly(&self, time_ms: u64, host_ms: u64) -> Result<bool, Corruption> {
        let Some(anchor_ms) = self.clock_anchor_ms()? else { return Ok(is_reached(host_ms)) };
        let now = clock::lease_clock_ms().saturating_add_signed(anchor_ms);
        let shift_ms = self.clock_shift_ms()?;
        note_judged(now.saturating_add_signed(-shift_ms));
        Ok(time_ms <= now)
    }

    /// For the check: none of the words is damaged.
    pub(crate) fn check_clock(&self) -> Result<(), Corruption> {
        self.clock_shift_ms()?;
        for at in [EXPIRY_ANCHOR, EXPIRY_BOOT] {
            match self.word(at)?.load(Ordering::Relaxed) {
                0 => {}
                word => drop(unsealed(word)?),
            }
        }
        Ok(())
    }

    /// For the repair: the clock of expiry is that of the host.
    pub(crate) fn clear_clock(&self) -> Result<(), Corruption> {
        for at in [EXPIRY_BOOT, EXPIRY_ANCHOR, EXPIRY_CLOCK] {
            self.word(at)?.store(0, Ordering::Relaxed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shift_is_read_as_it_was_stored() {
        for shift_ms in [0, 1, -1, 30_000, -30_000, CLOCK_SHIFT_MAX_MS.cast_signed()] {
            assert_eq!(decode(encode(shift_ms)), shift_ms);
            assert!(encode(shift_ms) < 1 << 48, "{shift_ms}");
        }
        assert_eq!(decode(encode(i64::MIN)), -CLOCK_SHIFT_MAX_MS.cast_signed());
    }
}
