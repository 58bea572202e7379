//! A bucket: one line of 64 bytes with eight entries.
//!
//! ```text
//! byte  0          16                          48            64
//!       | 8 tags   | 8 numbers of record lines | unused      |
//! ```
//!
//! A tag is 0 (never used), 1 (removed), or a bit that is always set and 15 bits of the key's hash.
//! Two words of four tags are compared at a time and the entry is selected without a branch: a
//! branch on the position would be predicted wrongly, and the next reads would not overlap with
//! this one.

/// Bytes of a cache line.
pub(super) const LINE_BYTES: usize = 64;

pub(super) type Line = [u8; LINE_BYTES];

/// Entries of a bucket.
pub(super) const ENTRIES: usize = 8;

/// Bytes of the tags.
const TAGS_BYTES: usize = 16;
const NUMBER_BYTES: usize = 4;
const _: () = assert!(TAGS_BYTES + ENTRIES * NUMBER_BYTES <= LINE_BYTES, "a bucket is one line");

/// The entry was never used: no search goes beyond its bucket.
const NEVER_USED: u16 = 0;
/// The entry was removed: a search goes on.
const REMOVED: u16 = 1;
const IS_USED: u16 = 1 << 15;

/// The lowest and the highest bit of each tag of a word.
const LOWS: u64 = 0x0001_0001_0001_0001;
const HIGHS: u64 = 0x8000_8000_8000_8000;

/// The tag of a hash: its highest bits, because the lowest select the bucket.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a few instructions of the read that is measured")]
pub(super) const fn tag_of(hash: u64) -> u16 {
    let [.., low, high] = hash.to_le_bytes();
    u16::from_le_bytes([low, high]) | IS_USED
}

#[inline(always)]
#[expect(clippy::inline_always, reason = "as above")]
fn words(line: &Line) -> [u64; 2] {
    let (words, _) = line.as_chunks::<8>();
    [0, 1].map(|at| words.get(at).copied().map_or(0, u64::from_le_bytes))
}

/// The first word, to request the line.
#[inline(always)]
#[expect(clippy::inline_always, reason = "as above")]
pub(super) fn first_word(line: &Line) -> u64 {
    let [first, _] = words(line);
    first
}

/// Entries with this tag: bit 8 n + 7 for entry n. The lowest bit is exact; an entry behind it can
/// be wrong, because the subtraction borrows, so the caller compares keys.
#[inline(always)]
#[expect(clippy::inline_always, reason = "as above")]
pub(super) fn matches(line: &Line, tag: u16) -> u64 {
    let [even, odd] = words(line).map(|word| {
        let differing = word ^ u64::from(tag).wrapping_mul(LOWS);
        differing.wrapping_sub(LOWS) & !differing & HIGHS
    });
    (even >> 8) | odd
}

/// The number of the lowest entry of [`matches`].
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

/// The place of an entry's tag among the eight: entries alternate between the two words.
const fn place(entry: usize) -> usize {
    entry / 2 + entry % 2 * 4
}

fn tag(line: &Line, entry: usize) -> u16 {
    let (tags, _) = line.as_chunks::<2>();
    tags.get(place(entry)).copied().map_or(NEVER_USED, u16::from_le_bytes)
}

fn set_tag(line: &mut Line, entry: usize, tag: u16) {
    let (tags, _) = line.as_chunks_mut::<2>();
    if let Some(bytes) = tags.get_mut(place(entry)) {
        *bytes = tag.to_le_bytes();
    }
}

/// Every entry with this tag.
pub(super) fn with_tag(line: &Line, wanted: u16) -> impl Iterator<Item = usize> {
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
pub(super) fn fill(line: &mut Line, entry: usize, tag: u16, number: u32) {
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
            fill(&mut line, entry, tag_of(entry as u64), 0);
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
