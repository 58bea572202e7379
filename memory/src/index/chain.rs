//! The chain of a bucket: its line and the overflow lines behind it.

use crate::atomic::{AtomicU64, Ordering};
use crate::heap::cell::{LINE_FIRST, LINE_WORDS, WORD_HEAD};
use crate::index::bucket::{LAST, WORDS, at_of, is_link, load};
use crate::layout::{Corruption, LINE};
use crate::region::map::Map;

/// The longest chain of overflow lines that a reader follows. A sound index has one or two lines
/// per chain; a longer chain is a cycle caused by corruption.
pub(crate) const CHAIN_MAX: u32 = 1024;

pub(super) const CHAIN: Corruption = Corruption("a bucket's chain has no end");

/// An overflow line in use has a kind in its first word.
pub(crate) const ZERO_LINE: Corruption =
    Corruption("an overflow line of an index is zeros: records to which it led are not found");

/// Of an overflow line in which a key was not found, and which is linked or protected.
#[inline]
pub(super) fn check_line(map: &Map, at: u64) -> Result<(), Corruption> {
    if map.word(at + WORD_HEAD)?.load(Ordering::Relaxed) == 0 { Err(ZERO_LINE) } else { Ok(()) }
}

/// Calls `each` with the offset and the value of every word of a bucket's chain that can hold an
/// entry, in order. Follows links and does not pass them on. Stops when `each` returns false. The
/// caller holds the lock of the bucket, or no other process uses the region. An overflow line of
/// zeros is an error.
pub(crate) fn walk_chain(
    map: &Map,
    bucket_at: u64,
    each: impl FnMut(u64, u64) -> Result<bool, Corruption>,
) -> Result<(), Corruption> {
    walk_chain_with(map, bucket_at, load, each)
}

/// As [`walk_chain`], with the function that loads the words.
pub(crate) fn walk_chain_with(
    map: &Map,
    bucket_at: u64,
    load: impl Fn(&AtomicU64) -> u64,
    mut each: impl FnMut(u64, u64) -> Result<bool, Corruption>,
) -> Result<(), Corruption> {
    debug_assert!(bucket_at.is_multiple_of(LINE), "a bucket is a line");
    let (mut at, mut words) = (bucket_at + 8, WORDS as u64 - 1);
    for _ in 0..CHAIN_MAX {
        let mut next = 0;
        for index in 0..words {
            let value = load(map.word(at + 8 * index)?);
            if index == words - 1 && is_link(value) {
                next = at_of(value);
            } else if !each(at + 8 * index, value)? {
                return Ok(());
            }
        }
        if next == 0 {
            return Ok(());
        }
        check_line(map, next)?;
        debug_assert!(next.is_multiple_of(LINE), "a link leads to a line");
        (at, words) = (next + LINE_FIRST, LINE_WORDS);
    }
    Err(CHAIN)
}

/// Offset of the last word of a bucket, which holds its link if it has one.
pub(crate) const fn link_slot(bucket_at: u64) -> u64 {
    debug_assert!(bucket_at.is_multiple_of(LINE), "a bucket is a line");
    bucket_at + 8 * LAST as u64
}
