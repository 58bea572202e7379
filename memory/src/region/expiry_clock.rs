//! The clock by which the records of a region expire: that of its host, shifted.
//!
//! A region that was never a copy has the clock of its host, and its word is 0. A copy takes over
//! the clock of its source: what has expired there has expired here, although the clocks of the two
//! hosts differ. It keeps it when its host becomes the owner, and approaches the clock of that host
//! by a hundredth of the time that passes (`docs/decisions/042-expiry-clock.md`).

use crate::atomic::Ordering;
use crate::clock::is_reached;
use crate::layout::{Corruption, EXPIRY_CLOCK, seal, unseal};
use crate::region::map::Map;

/// The largest shift: 1,000 years in milliseconds. More is an error of a clock that no shift
/// corrects.
pub const CLOCK_SHIFT_MAX_MS: u64 = 1000 * 366 * 24 * 3600 * 1000;

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

/// Of a word that is not 0.
#[cold]
fn opened(word: u64) -> Result<i64, Corruption> {
    unseal(word, "the clock of expiry has a flipped bit").map(decode)
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

    /// Stores the shift, limited to [`CLOCK_SHIFT_MAX_MS`].
    pub(crate) fn set_clock_shift_ms(&self, shift_ms: i64) -> Result<(), Corruption> {
        let value = encode(shift_ms);
        debug_assert!(value < 1 << 48, "a shift has 48 bits");
        // Nothing else depends on it, so it needs no order.
        self.word(EXPIRY_CLOCK)?.store(if value == 0 { 0 } else { seal(value) }, Ordering::Relaxed);
        Ok(())
    }

    /// True if this time of the clock of expiry has come. Exact to a millisecond.
    #[inline]
    pub(crate) fn is_past(&self, time_ms: u64) -> Result<bool, Corruption> {
        let shift_ms = self.clock_shift_ms()?;
        Ok(is_reached(time_ms.saturating_add_signed(-shift_ms)))
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
