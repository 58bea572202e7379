//! The records of one value of a tag with equality lookups only: their keys, distributed by hash
//! over parts that are small enough to be rewritten with each change.
//!
//! ```text
//! part of a value = a record of the internal namespace:   depth u8 | entries
//! entry = bytes of the key u16 | mark u16 | key          (little-endian)
//!
//! part  0 ( depth 0 )      all keys; the only part of a value that few records have
//! part  0 ( 1 ), 1 ( 1 )   it became too large: keys whose hash ends in 1 moved to part 1
//! part  0 ( 1 ), 1 ( 2 ), 3 ( 2 )    and so on: part p of depth d has the keys with
//!                                    hash mod 2^d == p
//! ```
//!
//! The depth of a part states which keys it owns, as the fences of a leaf do in an ordered index.
//! A reader that guesses a part can therefore validate it without reading another part, and changes
//! of different parts never conflict.
//!
//! - A part that does not exist was joined with its origin: the number without its top bit. Part 0
//!   may be missing only if no record has the value.
//! - In the order of the reversed bits of the hashes, each part has one range of keys. An iteration
//!   in that order returns each key once, even if parts are split and joined meanwhile.
//! - Of two parts that could be joined, none is empty. So the last part is removed with the last
//!   key.

use nearstate_memory::Corruption;
use nearstate_model::invariant;
use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::KEY_BYTES_MAX;

/// The size of the entries above which a part is split: about ten keys of subscribers. A change
/// copies its part, and changes of one part conflict: reasons for small parts. The overhead of each
/// record and of its bucket is a reason for large ones.
pub(crate) const PART_BYTES: usize = 256;

/// The largest depth. A part of this depth is not split: only keys with 32 equal bits of a randomly
/// seeded hash would fill it.
pub(crate) const DEPTH_MAX: u8 = 32;

const ENTRY_HEAD: usize = 4;
const _: () = assert!(KEY_BYTES_MAX <= u16::MAX as usize, "an entry counts its key in 16 bits");
const _: () = assert!(DEPTH_MAX as u32 <= u32::BITS, "the number of a part has 32 bits");
const CUT: Corruption = Corruption("a part of a tag's postings is cut short");

/// A record in a list of postings: its key and the key's hash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posting<'a> {
    pub(crate) hash: u64,
    pub(crate) key: &'a [u8],
}

impl Posting<'_> {
    /// Distinguishes most keys without a comparison: bits that do not depend on the part.
    #[inline]
    const fn mark(&self) -> u16 {
        (self.hash >> 48) as u16
    }
}

/// A part in its stored form. Any bytes are a part or damage, detected here or when an entry is
/// read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostingsPart<'a> {
    pub(crate) depth: u8,
    pub(crate) entries: &'a [u8],
}

impl<'a> PostingsPart<'a> {
    #[inline]
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Corruption> {
        match bytes.split_first() {
            Some((depth, entries)) if *depth <= DEPTH_MAX => Ok(Self { depth: *depth, entries }),
            Some(_) => Err(Corruption("a part of a tag's postings is deeper than any can be")),
            None => Err(CUT),
        }
    }

    /// The part of a hash if it is not part `number`.
    #[inline]
    pub(crate) fn step(&self, number: u32, hash: u64) -> Option<u32> {
        let own = low(hash, self.depth);
        (own != number).then(|| {
            let next = step_on(number, own);
            debug_assert!(next != number, "a step from part {number} leads elsewhere");
            next
        })
    }

    /// The range of a record's entry.
    #[inline]
    pub(crate) fn find(&self, posting: Posting<'_>) -> Result<Option<(usize, usize)>, Corruption> {
        let wanted = u32::from(posting.mark()) << 16 | u32::from(length(posting.key));
        let mut at = 0;
        while let Some((head, after)) =
            self.entries.get(at..).and_then(<[u8]>::split_first_chunk::<ENTRY_HEAD>)
        {
            let head = u32::from_le_bytes(*head);
            let end = at + ENTRY_HEAD + (head & 0xffff) as usize;
            if head == wanted && after.get(..posting.key.len()) == Some(posting.key) {
                return Ok(Some((at, end)));
            }
            at = end;
        }
        if at == self.entries.len() { Ok(None) } else { Err(CUT) }
    }

    /// Removes the next key from the front of entries.
    pub(crate) fn next(entries: &mut &'a [u8]) -> Result<Option<&'a [u8]>, Corruption> {
        if entries.is_empty() {
            return Ok(None);
        }
        let (head, rest) = entries.split_first_chunk::<ENTRY_HEAD>().ok_or(CUT)?;
        let bytes = (u32::from_le_bytes(*head) & 0xffff) as usize;
        let (key, rest) = rest.split_at_checked(bytes).ok_or(CUT)?;
        debug_assert!(rest.len() < entries.len(), "taking an entry advances");
        *entries = rest;
        Ok(Some(key))
    }

    /// Encodes it with one more entry.
    #[inline]
    pub(crate) fn with(&self, posting: Posting<'_>, out: &mut Vec<u8>) {
        begin(self.depth, self.entries, out);
        append(posting, out);
        let bytes = 1 + self.entries.len() + ENTRY_HEAD + posting.key.len();
        invariant!(out.len() == bytes, "a part of {bytes} bytes is composed as {}", out.len());
    }

    /// Encodes it without an entry.
    pub(crate) fn without(&self, (from, to): (usize, usize), out: &mut Vec<u8>) {
        invariant!(from < to && to <= self.entries.len(), "entry {from}..{to} was found");
        let (before, after) = (self.entries.get(..from), self.entries.get(to..));
        begin(self.depth, guaranteed(before, "the entry lies in its part"), out);
        out.extend_from_slice(guaranteed(after, "the entry lies in its part"));
    }

    /// Splits it by the next bit of the hashes; false if it is small enough, cannot be split, or if
    /// one half would be empty.
    pub(crate) fn split(
        &self,
        hash: impl Fn(&[u8]) -> u64,
        halves: (&mut Vec<u8>, &mut Vec<u8>),
    ) -> Result<bool, Corruption> {
        if self.entries.len() <= PART_BYTES || self.depth == DEPTH_MAX {
            return Ok(false);
        }
        invariant!(self.depth < DEPTH_MAX, "a part of depth {} is split", self.depth);
        let (stay, go) = halves;
        begin(self.depth + 1, &[], stay);
        begin(self.depth + 1, &[], go);
        let mut rest = self.entries;
        while let Some(key) = Self::next(&mut rest)? {
            let posting = Posting { hash: hash(key), key };
            let is_going = posting.hash >> self.depth & 1 != 0;
            append(posting, if is_going { go } else { stay });
        }
        let bytes = self.entries.len() + 2;
        invariant!(stay.len() + go.len() == bytes, "two halves of {bytes} bytes have each entry");
        Ok(stay.len() > 1 && go.len() > 1)
    }
}

/// The number of the part that a split of this one creates.
pub(crate) const fn sibling(number: u32, depth: u8) -> u32 {
    assert!(depth < DEPTH_MAX, "a part of the greatest depth is not split");
    number | (1 << depth)
}

/// The low bits of a hash.
#[inline]
pub(crate) const fn low(hash: u64, depth: u8) -> u32 {
    debug_assert!(depth <= DEPTH_MAX, "no part is deeper");
    low_32(hash & ((1 << (depth & 63)) - 1))
}

/// The lower half of a number.
const fn low_32(all: u64) -> u32 {
    let [a, b, c, d, ..] = all.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// The part with which a missing part was joined: the number without its top bit.
pub(crate) const fn above(number: u32) -> u32 {
    match number {
        0 => 0,
        _ => number & !(1 << number.ilog2()),
    }
}

/// The part that a split of `number` created for the keys of `own`: by the lowest bit that is new
/// in it.
#[cold]
const fn step_on(number: u32, own: u32) -> u32 {
    let known = 32 - number.leading_zeros();
    let rest = (own as u64) >> known;
    if rest == 0 {
        return above(number); // A guess that never was a part of this key.
    }
    let bit = known + rest.trailing_zeros();
    low_32(own as u64 & ((2 << bit) - 1))
}

fn begin(depth: u8, entries: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.push(depth);
    out.extend_from_slice(entries);
}

/// Encodes a part with these entries.
pub(crate) fn compose(depth: u8, entries: &[u8], out: &mut Vec<u8>) {
    debug_assert!(depth <= DEPTH_MAX, "no part is deeper");
    begin(depth, entries, out);
    invariant!(out.len() == 1 + entries.len(), "a part is composed whole");
}

#[inline]
fn append(posting: Posting<'_>, out: &mut Vec<u8>) {
    let head = u32::from(posting.mark()) << 16 | u32::from(length(posting.key));
    out.extend_from_slice(&head.to_le_bytes());
    out.extend_from_slice(posting.key);
}

/// The key is that of a record or of an entry: both store its length in 16 bits.
#[inline]
fn length(key: &[u8]) -> u16 {
    guaranteed(u16::try_from(key.len()).ok(), "a key is at most KEY_BYTES_MAX bytes")
}

/// The start of a part in the order of an iteration.
pub(crate) const fn start_of(number: u32) -> u64 {
    (number as u64).reverse_bits()
}

/// The end of a part in the order of an iteration: `None` for the last one.
pub(crate) const fn end_of(number: u32, depth: u8) -> Option<u64> {
    debug_assert!(depth <= DEPTH_MAX, "no part is deeper");
    if depth == 0 { None } else { start_of(number).checked_add(1 << (64 - depth as u32)) }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn hash(key: &[u8]) -> u64 {
        nearstate_memory::hash(7, key)
    }

    fn posting(key: &[u8]) -> Posting<'_> {
        Posting { hash: hash(key), key }
    }

    fn keys(part: &PostingsPart<'_>) -> Vec<Vec<u8>> {
        let (mut rest, mut out) = (part.entries, Vec::new());
        while let Some(key) = PostingsPart::next(&mut rest).unwrap() {
            out.push(key.to_vec());
        }
        out
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_part_or_damage_and_never_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..60),
            key in prop::collection::vec(any::<u8>(), 0..4),
            number: u32,
        ) {
            if let Ok(part) = PostingsPart::parse(&bytes) {
                let _ = (part.find(posting(&key)), part.step(number, hash(&key)));
                let mut out = Vec::new();
                part.with(posting(&key), &mut out);
                if let Ok(Some(entry)) = part.find(posting(&key)) {
                    part.without(entry, &mut out);
                }
                let mut rest = part.entries;
                while let Ok(Some(_)) = PostingsPart::next(&mut rest) {}
                let _ = part.split(hash, (&mut Vec::new(), &mut Vec::new()));
            }
        }

        #[test]
        fn what_is_entered_is_found_and_goes_again(
            entered in
                prop::collection::btree_set(prop::collection::vec(any::<u8>(), 1..30), 1..20),
        ) {
            let mut bytes = vec![0];
            for key in &entered {
                let mut next = Vec::new();
                let part = PostingsPart::parse(&bytes).unwrap();
                prop_assert_eq!(part.find(posting(key)).unwrap(), None);
                part.with(posting(key), &mut next);
                bytes = next;
            }
            let part = PostingsPart::parse(&bytes).unwrap();
            let found: BTreeSet<_> = keys(&part).into_iter().collect();
            prop_assert_eq!(&found, &entered);
            for key in &entered {
                let mut next = Vec::new();
                let part = PostingsPart::parse(&bytes).unwrap();
                part.without(part.find(posting(key)).unwrap().unwrap(), &mut next);
                bytes = next;
            }
            prop_assert_eq!(bytes, vec![0]);
        }

        #[test]
        fn from_any_guess_the_part_of_a_key_is_found(count in 1_usize..400, seed: u64) {
            // A list that grows by splits.
            let mut parts = BTreeMap::from([(0_u32, vec![0_u8])]);
            let seek = |parts: &BTreeMap<u32, Vec<u8>>, of: u64, mut number: u32| {
                for _ in 0..4 * DEPTH_MAX {
                    let Some(bytes) = parts.get(&number) else {
                        number = above(number);
                        continue;
                    };
                    match PostingsPart::parse(bytes).unwrap().step(number, of) {
                        Some(next) => number = next,
                        None => return number,
                    }
                }
                panic!("no part is responsible");
            };
            for index in 0..count {
                let key = (seed ^ index as u64).to_be_bytes();
                let number = seek(&parts, hash(&key), 0);
                let (mut next, mut stay, mut go) = (Vec::new(), Vec::new(), Vec::new());
                PostingsPart::parse(&parts[&number]).unwrap().with(posting(&key), &mut next);
                let part = PostingsPart::parse(&next).unwrap();
                if part.split(hash, (&mut stay, &mut go)).unwrap() {
                    let new = sibling(number, part.depth);
                    prop_assert!(parts.insert(new, go).is_none());
                    next = stay;
                }
                parts.insert(number, next);
            }
            // In the order of a walk the parts follow each other without a gap.
            let mut at = Some(0);
            let mut all: Vec<_> = parts.iter().collect();
            all.sort_by_key(|(number, _)| start_of(**number));
            for (number, bytes) in all {
                prop_assert_eq!(at, Some(start_of(*number)));
                let part = PostingsPart::parse(bytes).unwrap();
                at = end_of(*number, part.depth);
                for key in keys(&part) {
                    for depth in 0..12 {
                        prop_assert_eq!(seek(&parts, hash(&key), low(hash(&key), depth)), *number);
                    }
                }
            }
            prop_assert_eq!(at, None);
        }
    }
}
