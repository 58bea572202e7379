//! The watched word of the superblock: whether memory came free since a member searched for some in
//! vain (`docs/decisions/015-evacuation.md`).
//!
//! ```text
//! search in vain                          process that frees
//! S1  word: watched := length             F1  the memory can be found
//! S2  heavy barrier     pairs with F2     F2  light barrier         pairs with S2
//! S3  look for memory                     F3  word is watched and the run is long enough:
//! S4  later: the count is that of S1          count := count + 1, not watched (CAS, release)
//! ```
//!
//! Either S3 sees F1, or F3 sees S1. Then S4 sees F3, because a process that was told of the free
//! memory was told after F3.

use crate::atomic::{AtomicU64, Ordering, compiler_fence, fence, mutant};
use crate::layout::{Corruption, LINE, SUPER_WATCHED, seal, unseal};
use crate::member::arena::BUMP_SMALL_CELL_MAX;
use crate::region::map::Map;

/// Bits of the value that have the length. 0: nothing is watched.
const LENGTH_BITS: u32 = 12;
const LENGTH_MASK: u64 = (1 << LENGTH_BITS) - 1;
/// The bits of the word that are not 0 while it is watched.
const IS_WATCHED: u64 = LENGTH_MASK << 16;
/// Bits of a value that can be sealed.
const VALUE_MASK: u64 = (1 << 48) - 1;

const _: () = assert!(BUMP_SMALL_CELL_MAX / LINE <= LENGTH_MASK, "a small cell is a length");

/// The word of a value. That of 0 is 0.
const fn encode(value: u64) -> u64 {
    seal(value & VALUE_MASK) ^ seal(0)
}

/// Verifies a word: of a region that is not attached.
pub(crate) fn verify(word: u64) -> Result<(), Corruption> {
    unseal(word ^ seal(0), "the watched word has a flipped bit").map(drop)
}

/// The number of times that a watch has ended.
pub(crate) const fn count_of(word: u64) -> u64 {
    word >> (16 + LENGTH_BITS)
}

/// The run whose end is watched for memory of so many units. A large cell reaches over chunks: any
/// run may complete its own.
const fn length_of(units: u64) -> u64 {
    if units > BUMP_SMALL_CELL_MAX / LINE { 1 } else { units }
}

/// True while the end of a watch tells of memory for so many units.
pub(crate) const fn is_watched_for(word: u64, units: u64) -> bool {
    debug_assert!(units != 0, "memory of no unit is watched for");
    let length = word >> 16 & LENGTH_MASK;
    length != 0 && length <= length_of(units)
}

/// S1: watches for memory of so many units. Returns the count. The caller executes S2.
pub(crate) fn watch(word: &AtomicU64, units: u64) -> u64 {
    debug_assert!(units != 0, "a cell has a unit");
    let mut seen = word.load(Ordering::Acquire);
    // A flipped bit makes another count, and the store corrects the check value.
    while !is_watched_for(seen, units) || verify(seen).is_err() {
        let new = encode(count_of(seen) << LENGTH_BITS | length_of(units));
        match word.compare_exchange(seen, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => seen = new,
            Err(other) => seen = other,
        }
    }
    debug_assert!(seen & IS_WATCHED != 0, "a watched word has a length");
    count_of(seen)
}

/// F2 and F3: a run of so many units can be found now. `u64::MAX`: what it becomes is not known.
#[inline]
pub(crate) fn note(word: &AtomicU64, units: u64, is_fenced: bool) {
    debug_assert!(units != 0, "no unit came free");
    if is_fenced && !mutant("watched-no-fence") {
        fence(Ordering::SeqCst);
    } else {
        compiler_fence(Ordering::SeqCst);
    }
    let seen = word.load(Ordering::Relaxed);
    if seen & IS_WATCHED != 0 && !mutant("watched-unnoted") {
        end_watch(word, seen, units);
    }
}

#[cold]
#[inline(never)]
fn end_watch(word: &AtomicU64, mut seen: u64, units: u64) {
    debug_assert!(seen & IS_WATCHED != 0, "a watch ends that has begun");
    while seen & IS_WATCHED != 0 && (seen & IS_WATCHED) >> 16 <= units {
        let count = count_of(seen) + u64::from(!mutant("watched-uncounted"));
        match word.compare_exchange(
            seen,
            encode(count << LENGTH_BITS),
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => return,
            Err(other) => seen = other,
        }
    }
}

/// A cell was retired: it comes free when no reader can hold it.
#[inline]
pub(crate) fn note_retired(map: &Map, is_fenced: bool) {
    note(map.superblock_word::<SUPER_WATCHED>(), u64::MAX, is_fenced);
}

/// Units came free, which are a part of a run of so many.
pub(crate) fn note_run(map: &Map, units: u64, is_fenced: bool) {
    note(map.superblock_word::<SUPER_WATCHED>(), units, is_fenced);
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_ends_with_the_first_run_that_is_long_enough() {
        let word = AtomicU64::new(0);
        let load = || word.load(Ordering::Relaxed);
        note(&word, u64::MAX, false);
        assert_eq!(load(), 0, "nothing is watched");
        let count = watch(&word, 20);
        assert!(is_watched_for(load(), 20) && is_watched_for(load(), 30));
        note(&word, 19, false);
        assert_eq!(count_of(load()), count, "a run of 19 units is no memory for 20");
        // Another member wants less.
        assert_eq!(watch(&word, 7), count);
        assert!(is_watched_for(load(), 20) && !is_watched_for(load(), 6));
        note(&word, 8, false);
        assert_eq!(count_of(load()), count + 1);
        assert!(!is_watched_for(load(), 4096));
        // A large cell reaches over chunks.
        watch(&word, 5000);
        note(&word, 1, false);
        assert_eq!(count_of(load()), count + 2);
    }

    #[test]
    fn a_flipped_bit_is_found_and_corrected() {
        let word = AtomicU64::new(0);
        assert_eq!(verify(0), Ok(()));
        watch(&word, 20);
        let sound = word.load(Ordering::Relaxed);
        assert_eq!(verify(sound), Ok(()));
        for bit in 0..64 {
            word.store(sound ^ 1 << bit, Ordering::Relaxed);
            assert!(verify(word.load(Ordering::Relaxed)).is_err(), "bit {bit}");
            watch(&word, 20);
            let corrected = word.load(Ordering::Relaxed);
            assert!(verify(corrected).is_ok() && is_watched_for(corrected, 20), "bit {bit}");
        }
    }
}
