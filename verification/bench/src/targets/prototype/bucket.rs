//! A bucket: one line of 64 bytes with eight entries.
//!
//! ```text
//! byte  0        8                           40           64
//!       | 8 tags | 8 numbers of record lines | unused      |
//! ```
//!
//! A tag is 0 (never used), 1 (removed), or a bit that is always set and seven bits of the key's
//! hash. All tags are compared as one word and the entry is selected without a branch: a branch on
//! the position would be predicted wrongly, and the next reads would not overlap with this one.
//! About one read in thirty compares its key with another one first.

/// Bytes of a cache line.
pub(super) const LINE_BYTES: usize = 64;

pub(super) type Line = [u8; LINE_BYTES];

/// Entries of a bucket.
pub(super) const ENTRIES: usize = 8;

/// Bytes of the tags.
const TAGS_BYTES: usize = ENTRIES;
const NUMBER_BYTES: usize = 4;
const _: () = assert!(TAGS_BYTES + ENTRIES * NUMBER_BYTES <= LINE_BYTES, "a bucket is one line");

/// The entry was never used: no search goes beyond its bucket.
const NEVER_USED: u8 = 0;
/// The entry was removed: a search goes on.
const REMOVED: u8 = 1;
const IS_USED: u8 = 1 << 7;

/// The lowest and the highest bit of each tag.
const LOWS: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// The tag of a hash: its highest bits, because the lowest select the bucket.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a few instructions of the read that is measured")]
pub(super) const fn tag_of(hash: u64) -> u8 {
    let [.., highest] = hash.to_le_bytes();
    highest | IS_USED
}

/// All tags.
#[inline(always)]
#[expect(clippy::inline_always, reason = "as above")]
pub(super) fn tags(line: &Line) -> u64 {
    line.first_chunk().copied().map_or(0, u64::from_le_bytes)
}

/// Entries with this tag: bit 8 n + 7 for entry n. The lowest bit is exact; one behind it can be
/// wrong, because the subtraction borrows, so the caller compares keys.
#[inline(always)]
#[expect(clippy::inline_always, reason = "as above")]
pub(super) fn matches(line: &Line, tag: u8) -> u64 {
    let differing = tags(line) ^ u64::from(tag).wrapping_mul(LOWS);
    differing.wrapping_sub(LOWS) & !differing & HIGHS
}

/// The number of the lowest entry of [`matches()`].
#[inline(always)]
#[expect(clippy::inline_always, reason = "as above")]
pub(super) const fn lowest(matches: u64) -> usize {
    matches.trailing_zeros() as usize >> 3
}

/// The record line of an entry.
#[inline(always)]
#[expect(clippy::inline_always, reason = "as above")]
pub(super) fn number(line: &Line, entry: usize) -> u32 {
    let (numbers, _) = line.as_chunks::<NUMBER_BYTES>();
    let at = TAGS_BYTES / NUMBER_BYTES + entry % ENTRIES;
    numbers.get(at).copied().map_or(0, u32::from_le_bytes)
}

/// Replaces the record line of an entry: one store.
#[inline(always)]
#[expect(clippy::inline_always, reason = "as above")]
pub(super) fn set_number(line: &mut Line, entry: usize, number: u32) {
    let (numbers, _) = line.as_chunks_mut::<NUMBER_BYTES>();
    if let Some(bytes) = numbers.get_mut(TAGS_BYTES / NUMBER_BYTES + entry % ENTRIES) {
        *bytes = number.to_le_bytes();
    }
}

fn tag(line: &Line, entry: usize) -> u8 {
    line.get(entry % ENTRIES).copied().unwrap_or(NEVER_USED)
}

fn set_tag(line: &mut Line, entry: usize, tag: u8) {
    if let Some(byte) = line.get_mut(entry % ENTRIES) {
        *byte = tag;
    }
}

/// Every entry with this tag.
pub(super) fn with_tag(line: &Line, wanted: u8) -> impl Iterator<Item = usize> {
    (0..ENTRIES).filter(move |entry| tag(line, *entry) == wanted)
}

/// Every entry that leads to a record.
pub(super) fn used(line: &Line) -> impl Iterator<Item = usize> {
    (0..ENTRIES).filter(|entry| tag(line, *entry) >= IS_USED)
}

/// True if a search ends at this bucket.
pub(super) fn is_last(line: &Line) -> bool {
    with_tag(line, NEVER_USED).next().is_some()
}

/// An entry without a record.
pub(super) fn free(line: &Line) -> Option<usize> {
    (0..ENTRIES).find(|entry| tag(line, *entry) < IS_USED)
}

/// Fills an entry: the tag last, which makes it visible.
pub(super) fn fill(line: &mut Line, entry: usize, tag: u8, number: u32) {
    set_number(line, entry, number);
    set_tag(line, entry, tag);
}

/// Empties an entry. Only a full bucket has been passed by searches, which must pass it again.
pub(super) fn empty(line: &mut Line, entry: usize) {
    let tag = if is_last(line) { NEVER_USED } else { REMOVED };
    set_tag(line, entry, tag);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_is_found_by_its_tag() {
        for entry in 0..ENTRIES {
            let mut line = [0; LINE_BYTES];
            fill(&mut line, entry, IS_USED | 7, 1000);
            for other in (0..ENTRIES).filter(|other| *other != entry) {
                fill(&mut line, other, IS_USED | 8, 1);
            }
            let found = matches(&line, IS_USED | 7);
            assert_eq!((lowest(found), number(&line, entry)), (entry, 1000));
            assert_eq!(with_tag(&line, IS_USED | 7).collect::<Vec<_>>(), [entry]);
            assert_eq!(matches(&line, IS_USED | 9), 0);
        }
    }

    #[test]
    fn a_removed_entry_of_a_full_bucket_does_not_end_a_search() {
        let mut line = [0; LINE_BYTES];
        assert!(is_last(&line) && used(&line).next().is_none());
        for entry in 0..ENTRIES {
            assert_eq!(free(&line), Some(entry));
            fill(&mut line, entry, tag_of((entry as u64) << 56), 0);
        }
        assert!(!is_last(&line) && free(&line).is_none());
        empty(&mut line, 3);
        assert!(!is_last(&line) && free(&line) == Some(3));
        assert_eq!(used(&line).count(), ENTRIES - 1);
    }

    #[test]
    fn an_emptied_entry_of_a_bucket_that_was_never_full_ends_a_search() {
        let mut line = [0; LINE_BYTES];
        fill(&mut line, 0, IS_USED, 0);
        empty(&mut line, 0);
        assert_eq!(line[..TAGS_BYTES], [0; TAGS_BYTES]);
    }
}
