//! Random selection for `SPOP`, `SRANDMEMBER`, `HRANDFIELD` and `RANDOMKEY`.

use crate::number::integer_or_refuse;
use crate::reply::error_reply::ErrorReply;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// Limit of the elements of a selection: it runs in one piece, and has some 70 bytes of memory and
/// a search for each. The bytes of one with repetition, whose length depends on the request only,
/// are limited as well.
pub(super) const PICKS_MAX: usize = 1 << 16;
pub(super) const PICKED_BYTES_MAX: usize = 64 << 20;

/// One state for all cores: commands with random selection are rare.
static STATE: AtomicU64 = AtomicU64::new(0);

/// A number below `bound`, or 0. For samples, not for secrets.
pub(super) fn below(bound: usize) -> usize {
    let bound = bound as u64;
    usize::try_from(next().checked_rem(bound).unwrap_or_default()).unwrap_or_default()
}

/// 64 random bits (`SplitMix64`).
pub(super) fn next() -> u64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = STATE.fetch_add(STEP, Ordering::Relaxed);
    if state == 0 {
        // First call: seed differently in each process.
        let seed = nearstate_store::now_ms_coarse() ^ u64::from(std::process::id()) << 42;
        STATE.fetch_add(seed, Ordering::Relaxed);
        state = seed;
    }
    let mut mixed = state.wrapping_add(STEP);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// `count` distinct indices below `all` in random order, or all of them.
pub(super) fn sample(all: usize, count: usize) -> Vec<usize> {
    let count = count.min(all);
    if count < all / 8 {
        // A few of many: repeated picks are rare.
        let (mut places, mut known) = (Vec::with_capacity(count), BTreeSet::new());
        while places.len() < count {
            let place = below(all);
            if known.insert(place) {
                places.push(place);
            }
        }
        return places;
    }
    let mut places: Vec<usize> = (0..all).collect();
    if count < all {
        for at in 0..count {
            places.swap(at, at + below(all - at));
        }
        places.truncate(count);
    }
    places
}

/// Indices of `count` distinct elements, or of all, for a command that removes them.
pub(super) fn sample_to_remove(all: usize, count: usize) -> Result<Vec<usize>, ErrorReply> {
    if count.min(all) > PICKS_MAX {
        return Err(ErrorReply::new(format!(
            "ERR value is out of range: at most {PICKS_MAX} members are removed at once; send \
             several requests"
        )));
    }
    Ok(sample(all, count))
}

/// Requested number of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RandomCount {
    /// Distinct elements, at most this many.
    Different(usize),
    /// This many elements with repetition.
    Any(usize),
}

impl RandomCount {
    /// Parses the count of `HRANDFIELD` and `SRANDMEMBER`. A negative count allows repetition.
    pub(super) fn read(count: &[u8]) -> Result<Self, ErrorReply> {
        let count = integer_or_refuse(count)?;
        if count == i64::MIN {
            let least = -i64::MAX;
            let text =
                format!("ERR value is out of range, value must between {least} and {}", i64::MAX);
            return Err(ErrorReply::new(text));
        }
        let size = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
        Ok(if count < 0 { Self::Any(size) } else { Self::Different(size) })
    }

    /// Indices of the selected elements.
    pub(super) fn places(self, all: usize) -> Result<Vec<usize>, ErrorReply> {
        match self {
            Self::Different(count) if count.min(all) > PICKS_MAX => Err(ErrorReply::new(format!(
                "ERR value is out of range: at most {PICKS_MAX} elements are returned at \
                     random, or all {all} of them"
            ))),
            Self::Different(count) => Ok(sample(all, count)),
            Self::Any(_) if all == 0 => Ok(Vec::new()),
            Self::Any(count) if count > PICKS_MAX => Err(too_many()),
            Self::Any(count) => Ok((0..count).map(|_| below(all)).collect()),
        }
    }

    /// True if each of so many elements is returned once: no selection is necessary.
    pub(super) const fn is_all_of(self, all: usize) -> bool {
        match self {
            Self::Different(count) => count >= all,
            Self::Any(_) => false,
        }
    }

    /// Whether the reply may be longer than the stored value.
    pub(super) const fn allows_repeats(self) -> bool {
        matches!(self, Self::Any(_))
    }
}

/// Error of a selection that is too large.
fn too_many() -> ErrorReply {
    ErrorReply::new(format!(
        "ERR value is out of range: with repetition at most {PICKS_MAX} elements and \
         {PICKED_BYTES_MAX} bytes are returned"
    ))
}

/// Checks the bytes of a selection with repetition.
pub(super) fn bounded(bytes: usize) -> Result<(), ErrorReply> {
    if bytes > PICKED_BYTES_MAX { Err(too_many()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_picks_are_distinct_and_cover_all_elements() {
        let mut seen = [0; 10];
        for _ in 0..1000 {
            let mut some = sample(10, 3);
            for place in &some {
                seen[*place] += 1;
            }
            some.sort_unstable();
            some.dedup();
            assert_eq!(some.len(), 3);
        }
        assert!(seen.iter().all(|times| (100..600).contains(times)), "{seen:?}");
        assert_eq!(sample(3, 9), [0, 1, 2]);
        assert_eq!(sample(0, 9), []);
        assert_eq!(below(0), 0);
    }

    #[test]
    fn random_repetition_is_limited() {
        assert_eq!(RandomCount::read(b"-3").unwrap().places(1).unwrap(), [0, 0, 0]);
        assert_eq!(RandomCount::read(b"-3").unwrap().places(0).unwrap(), []);
        assert_eq!(RandomCount::read(b"9223372036854775807").unwrap().places(2).unwrap(), [0, 1]);
        assert!(RandomCount::read(b"-9223372036854775807").unwrap().places(2).is_err());
        assert!(RandomCount::read(b"-9223372036854775808").is_err());
        let many = RandomCount::Different(PICKS_MAX + 1);
        assert!(many.places(10 * PICKS_MAX).is_err() && many.places(PICKS_MAX).is_ok());
        assert!(many.is_all_of(PICKS_MAX + 1) && !many.is_all_of(PICKS_MAX + 2));
        assert!(sample_to_remove(10 * PICKS_MAX, PICKS_MAX).is_ok());
        assert!(sample_to_remove(10 * PICKS_MAX, PICKS_MAX + 1).is_err());
        assert!(bounded(PICKED_BYTES_MAX).is_ok() && bounded(PICKED_BYTES_MAX + 1).is_err());
    }
}
