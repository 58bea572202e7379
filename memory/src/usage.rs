//! What the records of a namespace take, and its limits (`docs/decisions/016-namespaces.md`).
//!
//! The usage is the sum of sixteen words of the catalog entry, in units. Each is a lock word: its
//! payload changes only under its lock, so recovery can repeat the change of a killed process.
//!
//! ```text
//! growing commit, holds word a               growing commit, holds word b
//! A1  a := a + growth        (release)       B1  b := b + growth        (release)
//! A2  fence                                  B2  fence
//! A3  sum of all words <= limit: decide      B3  sum of all words <= limit: decide
//! A4  else: a := its value before            B4  else: b := its value before
//! ```
//!
//! Of two fences one is the later one, and the sum that follows it contains the growth of the
//! other. So the commits that are decided never exceed the limit together. A commit that takes less
//! than before changes its word only after its decision: a sum contains no memory that may still
//! be needed.
//!
//! The records that exist when a namespace gets its first limit are counted bucket by bucket, in
//! the order of the reversed bits of their hashes. A bucket of depth d is one range of this order,
//! and a split divides its range, so one number tells which records are counted:
//!
//! ```text
//! count, holds the bucket and word a         commit, holds the bucket of its record
//! C1  add up the records of the bucket       W1  counted: load it
//! C2  counted := end of the range            W2  the record is below it: its change is added to a
//!     (the commit), a := a + sum                 word; else it is not
//! ```
//!
//! `counted` passes a record only under the lock of its bucket. What a writer has changed before
//! is in the sum, what it changes later is added by itself.

use nearstate_model::Result;

use crate::atomic::{AtomicU64, Ordering, fence, mutant};
use crate::heap::cell::Cell;
use crate::index::bucket::{at_of, is_intent};
use crate::index::lookup::walk_chain;
use crate::layout::{
    CATALOG_COUNTED, CATALOG_HARD_LIMIT, CATALOG_SOFT_LIMIT, CATALOG_USAGE, Corruption, LINE,
    USAGE_STRIPES, catalog_at, namespace_flags, unseal,
};
use crate::member::lock::{self, PAYLOAD};
use crate::region::catalog::flags_of;
use crate::region::index_table::IndexTable;
use crate::region::map::Map;

/// Bits of a position: the lowest ones of a hash, reversed. An index has at most 2^42 buckets.
const POSITION_BITS: u32 = 47;
const _: () = assert!(POSITION_BITS < 48, "the number behind the last position can be sealed");

/// The position behind all records.
pub(crate) const ALL_COUNTED: u64 = 1 << POSITION_BITS;

/// The limits of a namespace, in bytes of memory. 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceLimits {
    /// Above it the namespace is reported as too large. Nothing is refused.
    pub soft_bytes: u64,
    /// A write that would exceed it is refused, unless it takes no more memory than what it
    /// replaces.
    pub hard_bytes: u64,
}

impl NamespaceLimits {
    /// True if there is no limit.
    pub const fn is_none(&self) -> bool {
        self.soft_bytes == 0 && self.hard_bytes == 0
    }
}

/// What the records of a namespace with limits take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceUsage {
    /// Bytes of the memory that its records occupy, index entries not included.
    pub used_bytes: u64,
    /// Its limits.
    pub limits: NamespaceLimits,
    /// False while its records are being counted for the first time.
    pub is_complete: bool,
}

impl NamespaceUsage {
    /// True if the soft limit is exceeded.
    pub const fn is_above_soft_limit(&self) -> bool {
        self.limits.soft_bytes != 0 && self.used_bytes > self.limits.soft_bytes
    }
}

/// The place of a hash in the order in which records are counted.
pub(crate) const fn position_of(hash: u64) -> u64 {
    hash.reverse_bits() >> (u64::BITS - POSITION_BITS)
}

/// A hash at a position.
pub(crate) const fn hash_at(position: u64) -> u64 {
    debug_assert!(position < ALL_COUNTED, "a position behind the last bucket has no hash");
    (position << (u64::BITS - POSITION_BITS)).reverse_bits()
}

/// The end of the range of a bucket of this depth that begins at a position.
pub(crate) fn range_end(start: u64, depth: u32) -> Result<u64, Corruption> {
    match POSITION_BITS.checked_sub(depth).map(|bits| 1_u64 << bits) {
        Some(size) if start.is_multiple_of(size) && start + size <= ALL_COUNTED => Ok(start + size),
        _ => Err(Corruption("the count of a namespace's records ends inside a bucket")),
    }
}

/// Up to which position records are counted. `None`: the namespace has no count.
pub(crate) fn counted(map: &Map, number: u32) -> Result<Option<u64>, Corruption> {
    parse_counted(map.word(catalog_at(number) + CATALOG_COUNTED)?.load(Ordering::Acquire))
}

/// As [`counted`], of the word.
pub(crate) fn parse_counted(word: u64) -> Result<Option<u64>, Corruption> {
    if word == 0 {
        return Ok(None);
    }
    match unseal(word, "the count of a namespace's records has a flipped bit")? {
        position if position <= ALL_COUNTED => Ok(Some(position)),
        _ => Err(Corruption("a namespace has more records counted than it can have")),
    }
}

/// A limit in units, from its word.
pub(crate) fn parse_limit(word: u64) -> Result<u64, Corruption> {
    if word == 0 { Ok(0) } else { unseal(word, "a limit of a namespace has a flipped bit") }
}

/// The limits of a namespace.
pub(crate) fn limits(map: &Map, number: u32) -> Result<NamespaceLimits, Corruption> {
    let bytes = |which: u64| -> Result<u64, Corruption> {
        let word = map.word(catalog_at(number) + which)?.load(Ordering::Acquire);
        Ok(parse_limit(word)?.saturating_mul(LINE))
    };
    Ok(NamespaceLimits {
        soft_bytes: bytes(CATALOG_SOFT_LIMIT)?,
        hard_bytes: bytes(CATALOG_HARD_LIMIT)?,
    })
}

/// The offset of a usage word. Members with adjacent indexes use different ones.
pub(crate) const fn stripe_at(number: u32, stripe: u64) -> u64 {
    catalog_at(number) + CATALOG_USAGE + 8 * (stripe % USAGE_STRIPES as u64)
}

/// The usage words of a namespace.
pub(crate) fn stripes(map: &Map, number: u32) -> Result<&[AtomicU64], Corruption> {
    map.slice(stripe_at(number, 0), USAGE_STRIPES as u64)
}

/// The payload of a usage word after a change.
pub(crate) const fn changed(payload: u64, delta: i64) -> u64 {
    payload.wrapping_add(delta.cast_unsigned()) & PAYLOAD
}

/// The units in these usage words. Of concurrent commits some are contained.
pub(crate) fn units_in(words: &[AtomicU64]) -> u64 {
    let sum = words
        .iter()
        .fold(0_u64, |sum, word| sum.wrapping_add(word.load(Ordering::Acquire) & PAYLOAD));
    // A sum of words that change meanwhile can be below zero.
    let sum = (sum << 16).cast_signed() >> 16;
    u64::try_from(sum).unwrap_or(0)
}

/// A1 and A2: the caller, `me`, holds the word and may change what its namespace takes. The sums of
/// later calls contain what it adds. Returns false if it adds nothing.
pub(crate) fn reserve(word: &AtomicU64, me: u64, before: u64, delta: i64) -> bool {
    debug_assert!(before <= PAYLOAD, "a usage has an owner");
    if delta <= 0 && !mutant("usage-early-shrink") || mutant("usage-unreserved") {
        return delta > 0;
    }
    lock::hold_with(word, me, changed(before, delta));
    if !mutant("usage-no-fence") {
        fence(Ordering::SeqCst);
    }
    delta > 0
}

/// What a namespace takes, and its limits. `None`: it has none.
pub(crate) fn usage(map: &Map, number: u32) -> Result<Option<NamespaceUsage>, Corruption> {
    let flags = flags_of(map, number)?;
    if flags & namespace_flags::LIMITED == 0 {
        return Ok(None);
    }
    Ok(Some(NamespaceUsage {
        used_bytes: units_in(stripes(map, number)?).saturating_mul(LINE),
        limits: limits(map, number)?,
        is_complete: counted(map, number)? == Some(ALL_COUNTED),
    }))
}

/// The units that the records of a bucket occupy. The caller holds its lock, or no session is
/// attached.
pub(crate) fn units_of_bucket(map: &Map, bucket_at: u64) -> Result<u64, Corruption> {
    let mut units = 0;
    walk_chain(map, bucket_at, |_, entry| {
        if entry != 0 && !is_intent(entry) {
            units += Cell::new(map, at_of(entry))?.taken_bytes()? / LINE;
        }
        Ok(true)
    })?;
    Ok(units)
}

/// The units that the counted records of a namespace occupy, of a region without sessions.
pub(crate) fn units_counted(map: &Map, number: u32, counted: u64) -> Result<u64, Corruption> {
    let table = IndexTable::new(map, number)?;
    let mut units = 0;
    for bucket in 0..table.buckets() {
        if position_of(bucket) < counted {
            units += units_of_bucket(map, table.bucket_at(map, bucket)?)?;
        }
    }
    Ok(units)
}

/// Loads the position up to which records are counted, for a record at `position`.
#[inline]
pub(crate) fn is_counted(counted: Option<u64>, position: u64) -> bool {
    counted.is_some_and(|counted| position < counted)
}

const _: () = assert!(USAGE_STRIPES.is_power_of_two());

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::layout::seal;
    use crate::region::linear_hash::DEPTH_FIRST;

    #[test]
    fn the_ranges_of_buckets_are_the_whole_order_and_a_split_divides_one() {
        for depth in DEPTH_FIRST..12 {
            let mut ranges: Vec<(u64, u64)> = (0..1_u64 << depth)
                .map(|bucket| {
                    let start = position_of(bucket);
                    assert_eq!(hash_at(start), bucket);
                    (start, range_end(start, depth).unwrap())
                })
                .collect();
            ranges.sort_unstable();
            assert_eq!(ranges.first().map(|range| range.0), Some(0));
            assert_eq!(ranges.last().map(|range| range.1), Some(ALL_COUNTED));
            assert!(ranges.windows(2).all(|pair| pair[0].1 == pair[1].0));
        }
        // The halves of bucket 5 of depth 3.
        let (start, end) = (position_of(5), range_end(position_of(5), 3).unwrap());
        let middle = position_of(5 | 1 << 3);
        assert_eq!(range_end(start, 4), Ok(middle));
        assert_eq!(range_end(middle, 4), Ok(end));
        assert!(range_end(middle, 3).is_err() && range_end(0, 48).is_err());
    }

    #[test]
    fn a_sum_wraps_in_each_word_and_not_in_all() {
        let words: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
        let add = |index: usize, delta| {
            let before = words[index].load(Ordering::Relaxed);
            words[index].store(changed(before, delta), Ordering::Relaxed);
        };
        add(0, 70);
        add(1, -30);
        assert_eq!(units_in(&words), 40);
        words[2].store(7 << 48 | 2, Ordering::Relaxed);
        assert_eq!(units_in(&words), 42, "an owner is not counted");
        add(1, -100);
        assert_eq!(units_in(&words), 0, "below zero for a moment");
    }

    #[test]
    fn a_word_of_a_count_has_no_second_meaning() {
        assert_eq!(parse_counted(0), Ok(None));
        for position in [0, 1 << 44, ALL_COUNTED] {
            assert_eq!(parse_counted(seal(position)), Ok(Some(position)));
        }
        assert!(parse_counted(seal(ALL_COUNTED + 1)).is_err() && parse_counted(1).is_err());
    }
}
