//! A collection (set or hash) that is divided into parts: the table of its parts in the record's
//! cell, and reads through it (`docs/decisions/018-collections.md`).
//!
//! ```text
//! ff ff ff ff | elements u64 | parts x first hash u32 | parts x elements u32
//! ```
//!
//! Part `p` is the child `p` of the record.

use nearstate_memory::{Cell, Corruption};
use nearstate_model::invariant;
use nearstate_model::invariant::guaranteed;

use crate::record::parts::{Element, Part, Shape, hash_of};

/// The first bytes of the value of a divided collection: no count of a flat one.
const MARK: [u8; 4] = [0xff; 4];
const HEAD: usize = 4 + 8;

/// The largest number of parts: a cell counts its children in 13 bits.
pub(crate) const PARTS_MAX: usize = (1 << 13) - 1;

const LOCATED: &str = "a part was located among those that replace stored ones";
const BAD_TABLE: Corruption = Corruption("the table of a collection's parts is damaged");

/// Bytes above which a part is split, in a collection of this many parts. It balances the copies of
/// a part and of the table (16 bytes for each part). The doublings at the end keep the number of
/// parts below its limit.
pub(crate) const fn part_bytes_max(parts: usize) -> usize {
    match parts {
        0..64 => 1 << 10,
        64..4096 => 16 * parts,
        _ => (64 << 10) << ((parts - 4096) / 512),
    }
}

const _: () = assert!(part_bytes_max(63) == part_bytes_max(64) && part_bytes_max(4095) < 64 << 10);
const _: () = assert!(part_bytes_max(PARTS_MAX) == 8 << 20, "the last limit");

/// True if a value of a set or a hash is that of a divided one.
#[inline]
pub(crate) fn is_divided(value: &[u8]) -> bool {
    value.first_chunk::<4>() == Some(&MARK)
}

/// The table of parts of a divided collection; empty for one that a transaction creates.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PartTable<'a> {
    pub(crate) elements: u64,
    firsts: &'a [[u8; 4]],
    counts: &'a [[u8; 4]],
}

impl<'a> PartTable<'a> {
    #[inline]
    pub(crate) fn parse(value: &'a [u8]) -> Result<Self, Corruption> {
        let rest = value.strip_prefix(&MARK).ok_or(BAD_TABLE)?;
        let (elements, rest) = rest.split_first_chunk::<8>().ok_or(BAD_TABLE)?;
        let (numbers, cut) = rest.as_chunks::<4>();
        let (firsts, counts) = numbers.split_at_checked(numbers.len() / 2).ok_or(BAD_TABLE)?;
        if !cut.is_empty() || firsts.len() != counts.len() {
            return Err(BAD_TABLE);
        }
        Ok(Self { elements: u64::from_le_bytes(*elements), firsts, counts })
    }

    #[inline]
    pub(crate) const fn parts(&self) -> usize {
        self.firsts.len()
    }

    #[inline]
    pub(crate) fn first(&self, part: usize) -> Option<u32> {
        self.firsts.get(part).map(|first| u32::from_le_bytes(*first))
    }

    /// The number of elements of a part.
    pub(crate) fn count(&self, part: usize) -> Option<u32> {
        self.counts.get(part).map(|count| u32::from_le_bytes(*count))
    }

    /// The part with the elements of a hash; `None` without parts.
    #[inline]
    fn part_of(&self, hash: u32) -> Option<usize> {
        let behind = self.firsts.partition_point(|first| u32::from_le_bytes(*first) <= hash);
        (!self.firsts.is_empty()).then(|| behind.saturating_sub(1))
    }

    /// The encoded firsts and counts of some parts.
    pub(crate) fn run(&self, from: usize, to: usize) -> Option<(&'a [u8], &'a [u8])> {
        let (firsts, counts) = (self.firsts.get(from..to)?, self.counts.get(from..to)?);
        Some((firsts.as_flattened(), counts.as_flattened()))
    }
}

/// The encoded table of parts with these firsts and counts.
pub(crate) fn encode_table(elements: u64, firsts: &[u8], counts: &[u8]) -> Vec<u8> {
    invariant!(firsts.len() == counts.len(), "a table has not a count for each part");
    debug_assert!(firsts.len().is_multiple_of(4), "a part begins with a hash of four bytes");
    let mut out = Vec::with_capacity(HEAD + firsts.len() + counts.len());
    out.extend_from_slice(&MARK);
    out.extend_from_slice(&elements.to_le_bytes());
    out.extend_from_slice(firsts);
    out.extend_from_slice(counts);
    out
}

/// Parts of a stored collection that a transaction has replaced.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replaced {
    /// The replaced parts: the first, and the one after the last. Both are 0 in a collection
    /// without stored parts.
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// The new parts; at least one, unless no element is left.
    pub(crate) parts: Vec<OwnPart>,
}

/// A part that a transaction has made.
#[derive(Clone, Debug)]
pub(crate) struct OwnPart {
    pub(crate) first: u32,
    /// Shared with the transaction's own views.
    #[expect(clippy::rc_buffer, reason = "an `Arc<[u8]>` would copy each changed part once more")]
    pub(crate) bytes: std::sync::Arc<Vec<u8>>,
}

/// The location of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartLocation {
    /// The child of the record with this number.
    Stored(usize),
    /// `replaced[.0].parts[.1]`.
    Own(usize, usize),
}

/// The location of the part with the elements of a hash; `None` without parts.
#[inline]
pub(crate) fn locate(
    table: &PartTable<'_>,
    replaced: &[Replaced],
    hash: u32,
) -> Option<PartLocation> {
    debug_assert!(replaced.is_sorted_by_key(|range| range.to), "ranges of parts are in order");
    let child = table.part_of(hash);
    let at = child.map_or(0, |child| replaced.partition_point(|range| range.to <= child));
    match (child, replaced.get(at)) {
        (Some(child), range) if range.is_none_or(|range| child < range.from) => {
            Some(PartLocation::Stored(child))
        }
        (_, Some(range)) if !range.parts.is_empty() => {
            let behind = range.parts.partition_point(|part| part.first <= hash);
            Some(PartLocation::Own(at, behind.saturating_sub(1)))
        }
        _ => None,
    }
}

/// A divided collection: the stored parts, and those that a transaction has replaced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Collection<'v> {
    pub(crate) shape: Shape,
    pub(crate) seed: u64,
    pub(crate) table: PartTable<'v>,
    pub(crate) cell: Option<Cell<'v>>,
    pub(crate) replaced: &'v [Replaced],
    pub(crate) elements: u64,
}

impl<'v> Collection<'v> {
    /// The collection in a record's cell, whose value this is.
    pub(crate) fn stored(
        shape: Shape,
        cell: Cell<'v>,
        value: &'v [u8],
    ) -> Result<Self, Corruption> {
        let table = PartTable::parse(value)?;
        let (seed, elements) = (cell.seed()?, table.elements);
        Ok(Self { shape, seed, table, cell: Some(cell), replaced: &[], elements })
    }

    /// True if the table counts as many elements in its parts as it has in all.
    pub(crate) fn has_its_count(&self) -> bool {
        let counts = self.table.counts.iter().map(|count| u64::from(u32::from_le_bytes(*count)));
        counts.sum::<u64>() == self.table.elements
    }

    /// The number of elements.
    pub(crate) fn len(&self) -> usize {
        // The count is read from the region.
        usize::try_from(self.elements).unwrap_or(usize::MAX)
    }

    /// The part at a location.
    #[inline]
    pub(crate) fn part(&self, location: PartLocation) -> Result<Part<'v>, Corruption> {
        Part::parse(self.shape, self.part_bytes(location)?)
    }

    #[inline]
    fn part_bytes(&self, location: PartLocation) -> Result<&'v [u8], Corruption> {
        match location {
            PartLocation::Stored(child) => {
                let cell = guaranteed(self.cell, "stored parts are those of a cell");
                // A damaged table may have more parts than the record has children.
                let child = u64::try_from(child).map_err(|_| BAD_TABLE)?;
                if child >= cell.children() { Err(BAD_TABLE) } else { cell.block(child) }
            }
            PartLocation::Own(range, part) => {
                let range = guaranteed(self.replaced.get(range), LOCATED);
                Ok(&guaranteed(range.parts.get(part), LOCATED).bytes)
            }
        }
    }

    /// The element with a name.
    #[inline]
    pub(crate) fn find(&self, name: &[u8]) -> Option<Element<'v>> {
        let hash = hash_of(self.seed, name);
        let part = self.part(locate(&self.table, self.replaced, hash)?).ok()?;
        part.find(hash, name).ok().and_then(|index| part.element(index))
    }

    /// The part with the elements of a hash, and the first hash of the next part.
    fn part_from(&self, hash: u32) -> Option<(Part<'v>, Option<u32>)> {
        let location = locate(&self.table, self.replaced, hash)?;
        Some((self.part(location).ok()?, self.first_after(location, hash)))
    }

    /// The first hash of the part after this one, which has the elements of a hash. `None` behind
    /// the last part.
    pub(crate) fn first_after(&self, location: PartLocation, hash: u32) -> Option<u32> {
        let next = match location {
            PartLocation::Stored(child) => self.table.first(child + 1),
            PartLocation::Own(range, part) => {
                let range = guaranteed(self.replaced.get(range), LOCATED);
                let own = range.parts.get(part + 1).map(|part| part.first);
                own.or_else(|| self.table.first(range.to))
            }
        };
        // A damaged table must not lead back.
        next.filter(|next| *next > hash)
    }

    /// All elements with a hash from this one on, in the order of their hashes. Damage ends the
    /// walk.
    pub(crate) fn walk_from(&self, hash: u32) -> ElementWalk<'v> {
        let mut walk = ElementWalk { of: *self, part: None, index: 0, next: Some(hash) };
        walk.enter();
        if let Some(part) = walk.part {
            walk.index = part.first_from(hash);
        }
        walk
    }

    /// Calls `each` with elements from a cursor on, at least `count` of them. Returns the next
    /// cursor: the hash at which the next call begins, or 0 at the end.
    pub(crate) fn scan(&self, cursor: u64, count: u64, mut each: impl FnMut(Element<'v>)) -> u64 {
        // A cursor of another scan may be any number.
        let Ok(from) = u32::try_from(cursor) else { return 0 };
        // Each call makes progress: at least one element, and no damaged hash leads back.
        let (mut left, mut last) = (count.max(1), None);
        for element in self.walk_from(from) {
            if element.hash < last.unwrap_or(from) {
                return 0;
            }
            // Elements of one hash are returned together.
            if left == 0 && last != Some(element.hash) {
                return u64::from(element.hash);
            }
            last = Some(element.hash);
            left = left.saturating_sub(1);
            each(element);
        }
        0
    }

    /// The elements at these indices, in their order.
    pub(crate) fn select(&self, indices: &[usize]) -> Vec<Element<'v>> {
        let mut sorted: Vec<(usize, usize)> =
            indices.iter().copied().enumerate().map(|(place, index)| (index, place)).collect();
        sorted.sort_unstable();
        let mut out = vec![None; indices.len()];
        let mut wanted = sorted.into_iter().peekable();
        let (mut next, mut start) = (Some(0), 0);
        while let (Some(hash), Some(_)) = (next, wanted.peek()) {
            // The table knows how many elements a stored part has.
            let location = locate(&self.table, self.replaced, hash);
            let end = match location {
                Some(PartLocation::Stored(child)) => {
                    self.table.count(child).map(|count| start + count as usize)
                }
                _ => None,
            };
            if let (Some(PartLocation::Stored(child)), Some(end)) = (location, end)
                && wanted.peek().is_some_and(|(index, _)| *index >= end)
            {
                start = end;
                next = self.table.first(child + 1).filter(|next| *next > hash);
                continue;
            }
            let Some((part, after)) = self.part_from(hash) else { break };
            while let Some((index, place)) = wanted.next_if(|(at, _)| *at < start + part.len()) {
                debug_assert!(index >= start, "element {index} lies in an earlier part");
                let slot = guaranteed(out.get_mut(place), "each index has a place");
                *slot = part.element(index - start);
            }
            start += part.len();
            next = after;
        }
        out.into_iter().flatten().collect()
    }

    /// Checks everything that a reader relies on.
    pub(crate) fn check(&self) -> Result<(), Corruption> {
        let cell = guaranteed(self.cell, "a stored collection has a cell");
        if self.table.parts() as u64 != cell.children() || self.table.first(0) != Some(0) {
            return Err(BAD_TABLE);
        }
        let mut elements = 0;
        for index in 0..self.table.parts() {
            let first = self.table.first(index).ok_or(BAD_TABLE)?;
            let last =
                self.table.first(index + 1).map_or(Some(u32::MAX), |next| next.checked_sub(1));
            let part = self.part(PartLocation::Stored(index))?;
            part.check(self.seed, first, last.ok_or(BAD_TABLE)?)?;
            if self.table.count(index).map(u64::from) != Some(part.len() as u64) {
                return Err(BAD_TABLE);
            }
            elements += part.len() as u64;
        }
        if elements == self.elements { Ok(()) } else { Err(BAD_TABLE) }
    }
}

/// An iterator over the elements of a divided collection.
#[derive(Clone, Debug)]
pub(crate) struct ElementWalk<'v> {
    of: Collection<'v>,
    part: Option<Part<'v>>,
    index: usize,
    /// The first hash of the next part.
    next: Option<u32>,
}

impl ElementWalk<'_> {
    /// Continues with the next part.
    fn enter(&mut self) {
        let found = self.next.and_then(|hash| self.of.part_from(hash));
        self.index = 0;
        (self.part, self.next) = match found {
            Some((part, next)) => (Some(part), next),
            None => (None, None),
        };
    }
}

impl<'v> Iterator for ElementWalk<'v> {
    type Item = Element<'v>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(element) = self.part?.element(self.index) {
                self.index += 1;
                return Some(element);
            }
            self.enter();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::record::parts::encode;

    proptest! {
        /// Hashes and first hashes in any order: a scan ends, and each cursor is behind the last
        /// one.
        #[test]
        fn damaged_hashes_lead_no_scan_back(
            parts in prop::collection::vec(
                (prop_oneof![0..40_u32, any::<u32>()],
                 prop::collection::vec(prop_oneof![0..40_u32, any::<u32>()], 0..12)), 1..6),
            count in 0..5_u64,
            from in prop_oneof![Just(0), any::<u64>()],
        ) {
            let elements: usize = parts.iter().map(|(_, hashes)| hashes.len()).sum();
            let own = parts.iter().map(|(first, hashes)| {
                let all: Vec<Element<'_>> = hashes
                    .iter()
                    .map(|hash| Element { hash: *hash, name: b"name", value: b"" })
                    .collect();
                let bytes = Arc::new(encode(Shape::Set, &all).unwrap());
                OwnPart { first: *first, bytes }
            });
            let replaced = [Replaced { from: 0, to: 0, parts: own.collect() }];
            let collection = Collection {
                shape: Shape::Set,
                seed: 7,
                table: PartTable::default(),
                cell: None,
                replaced: &replaced,
                elements: elements as u64,
            };
            let (mut cursor, mut calls) = (from, 0);
            loop {
                let next = collection.scan(cursor, count, |_| {});
                calls += 1;
                prop_assert!(calls <= elements + 1, "{calls} calls for {elements} elements");
                if next == 0 {
                    break;
                }
                prop_assert!(next > cursor, "{cursor} is followed by {next}");
                cursor = next;
            }
        }
    }
}
