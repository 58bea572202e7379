//! A part of a divided collection: a run of its elements in the order of their hashes, in a block
//! cell of the record (`docs/decisions/018-collections.md`).
//!
//! ```text
//! elements u32 | elements x hash u32 | elements x end u32 (set) | bytes
//!                                    | elements x { end of the name u32, end of the value u32 }
//! ```
//!
//! An end is relative to the first byte after the ends. All numbers are little-endian.

use std::ops::Range;

use nearstate_memory::Corruption;
use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::VALUE_BYTES_MAX;
use nearstate_model::{Error, Result, invariant};

const CUT: Corruption = Corruption("a part of a collection is cut short");

/// The largest part: two elements with the largest value. No part grows beyond its limit, which is
/// far below, unless one of its elements does.
const BYTES_MAX: usize = 2 * VALUE_BYTES_MAX - (64 << 10);

/// Members without values, or fields with values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Set,
    Hash,
}

impl Shape {
    /// Strings of an element.
    pub(crate) const fn strings(self) -> usize {
        match self {
            Self::Set => 1,
            Self::Hash => 2,
        }
    }
}

/// A member or a field: its name, and the value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Element<'a> {
    pub(crate) hash: u32,
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
}

/// The hash by which an element is found.
#[inline]
pub(crate) fn hash_of(seed: u64, name: &[u8]) -> u32 {
    (nearstate_memory::hash(seed, name) >> 32) as u32
}

/// A change of a part: where its element is or belongs, and the new element.
pub(crate) type PartChange<'e> = (std::result::Result<usize, usize>, Option<Element<'e>>);

/// A part without elements.
pub(crate) const EMPTY: &[u8] = &[0; 4];

/// The halves of a part, and the first hash of the second one.
type Halves = (Vec<u8>, u32, Vec<u8>);

/// Reads a part. Total: any bytes give elements or an error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    shape: Shape,
    hashes: &'a [[u8; 4]],
    ends: &'a [[u8; 4]],
    bytes: &'a [u8],
}

impl<'a> Part<'a> {
    #[inline]
    pub(crate) fn parse(shape: Shape, part: &'a [u8]) -> Result<Self, Corruption> {
        let (count, rest) = part.split_first_chunk::<4>().ok_or(CUT)?;
        let count = u32::from_le_bytes(*count) as usize;
        let (hashes, rest) = rest.split_at_checked(count.checked_mul(4).ok_or(CUT)?).ok_or(CUT)?;
        let ends = count * 4 * shape.strings();
        let (ends, bytes) = rest.split_at_checked(ends).ok_or(CUT)?;
        let ((hashes, _), (ends, _)) = (hashes.as_chunks::<4>(), ends.as_chunks::<4>());
        debug_assert!(hashes.len() == count, "each element has a hash");
        debug_assert!(ends.len() == count * shape.strings(), "each string has an end");
        Ok(Self { shape, hashes, ends, bytes })
    }

    /// The number of elements.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.hashes.len()
    }

    #[inline]
    fn hash(&self, index: usize) -> Option<u32> {
        self.hashes.get(index).map(|hash| u32::from_le_bytes(*hash))
    }

    /// The end of the strings before this one.
    #[inline]
    fn start(&self, string: usize) -> Option<usize> {
        match string.checked_sub(1) {
            None => Some(0),
            Some(before) => self.ends.get(before).map(|end| u32::from_le_bytes(*end) as usize),
        }
    }

    #[inline]
    fn string(&self, string: usize) -> Option<&'a [u8]> {
        self.bytes.get(self.start(string)?..self.start(string + 1)?)
    }

    #[inline]
    fn name(&self, index: usize) -> Option<&'a [u8]> {
        self.string(index * self.shape.strings())
    }

    /// The element at an index; `None` behind the last one, or if it is damaged.
    #[inline]
    pub(crate) fn element(&self, index: usize) -> Option<Element<'a>> {
        let (hash, name) = (self.hash(index)?, self.name(index)?);
        let value = match self.shape {
            Shape::Set => &[],
            Shape::Hash => self.string(2 * index + 1)?,
        };
        Some(Element { hash, name, value })
    }

    /// The index of an element, or the index at which it would be inserted.
    #[inline]
    pub(crate) fn find(&self, hash: u32, name: &[u8]) -> std::result::Result<usize, usize> {
        let mut index = self.hashes.partition_point(|known| u32::from_le_bytes(*known) < hash);
        // Elements of one hash are rare.
        while self.hash(index) == Some(hash) {
            match self.name(index).unwrap_or_default().cmp(name) {
                std::cmp::Ordering::Less => index += 1,
                std::cmp::Ordering::Equal => return Ok(index),
                std::cmp::Ordering::Greater => return Err(index),
            }
        }
        Err(index)
    }

    /// The index of the first element with this hash or a higher one.
    pub(crate) fn first_from(&self, hash: u32) -> usize {
        self.hashes.partition_point(|known| u32::from_le_bytes(*known) < hash)
    }

    /// The part with some changes, which are in the order of the elements. Each is at the index
    /// that [`Part::find`] has returned: an element in addition to those of the part, or instead of
    /// the one at its index; `None` removes that one.
    pub(crate) fn changed(&self, changes: &[PartChange<'_>]) -> Result<Vec<u8>> {
        let mut pieces = Vec::with_capacity(2 * changes.len() + 1);
        let mut done = 0;
        for (found, element) in changes {
            let (at, after) = match *found {
                Ok(index) => (index, index + 1),
                Err(index) => (index, index),
            };
            // Damaged elements may be out of order.
            let kept = done..at;
            if kept.start > kept.end {
                return Err(CUT.into());
            }
            pieces.push(Piece::Run(*self, kept));
            pieces.extend(element.map(Piece::One));
            done = after;
        }
        pieces.push(Piece::Run(*self, done..self.len()));
        compose(self.shape, &pieces)
    }

    /// The elements of this part and of the one after it.
    pub(crate) fn joined(&self, next: &Part<'_>) -> Result<Vec<u8>> {
        invariant!(self.shape == next.shape, "parts of a set and of a hash are joined");
        let (one, other) = (Piece::Run(*self, 0..self.len()), Piece::Run(*next, 0..next.len()));
        compose(self.shape, &[one, other])
    }

    /// Two halves of about the same size, between two different hashes; the second begins with the
    /// hash that is returned. `None` if all hashes are equal.
    pub(crate) fn halves(&self) -> Result<Option<Halves>> {
        let head = 4 * (1 + self.shape.strings());
        let bytes_before = |index: usize| {
            let strings = self.start(index * self.shape.strings()).unwrap_or(self.bytes.len());
            strings + head * index
        };
        let half = bytes_before(self.len()) / 2;
        // The distance of each possible place from the middle; parts are split rarely.
        let places = (1..self.len()).filter(|index| self.hash(index - 1) != self.hash(*index));
        let Some(place) = places.min_by_key(|index| bytes_before(*index).abs_diff(half)) else {
            return Ok(None);
        };
        let first = self.hash(place).ok_or(CUT)?;
        invariant!((1..self.len()).contains(&place), "a half of a part is empty");
        let (one, other) = (Piece::Run(*self, 0..place), Piece::Run(*self, place..self.len()));
        Ok(Some((compose(self.shape, &[one])?, first, compose(self.shape, &[other])?)))
    }

    /// Checks everything that a reader relies on, for hashes from `first` to `last`.
    pub(crate) fn check(&self, seed: u64, first: u32, last: u32) -> Result<(), Corruption> {
        let mut before: Option<Element<'_>> = None;
        for index in 0..self.len() {
            let element = self.element(index).ok_or(CUT)?;
            if element.hash != hash_of(seed, element.name)
                || !(first..=last).contains(&element.hash)
            {
                return Err(Corruption("an element is in the wrong part of its collection"));
            }
            if before.is_some_and(|b| (b.hash, b.name) >= (element.hash, element.name)) {
                return Err(Corruption("the elements of a collection are not in order"));
            }
            before = Some(element);
        }
        let end = self.start(self.ends.len());
        if before.is_some() && end == Some(self.bytes.len()) { Ok(()) } else { Err(CUT) }
    }
}

/// A piece of a new part.
enum Piece<'a> {
    Run(Part<'a>, Range<usize>),
    One(Element<'a>),
}

/// The encoded part of some pieces, which are in order.
fn compose(shape: Shape, pieces: &[Piece<'_>]) -> Result<Vec<u8>> {
    let strings = shape.strings();
    let (mut count, mut bytes) = (0, 0);
    for piece in pieces {
        match piece {
            Piece::Run(part, run) => {
                count += run.len();
                bytes += part.run_bytes(run).ok_or(CUT)?.len();
            }
            Piece::One(element) => {
                count += 1;
                bytes += element.name.len() + element.value.len();
            }
        }
    }
    let all = 4 + 4 * count * (1 + strings) + bytes;
    if all > BYTES_MAX {
        return Err(Error::ValueTooLarge { bytes: all });
    }
    let mut out = Vec::with_capacity(all);
    out.extend_from_slice(&number(count));
    for piece in pieces {
        match piece {
            Piece::Run(part, run) => {
                let hashes = part.hashes.get(run.clone()).ok_or(CUT)?;
                out.extend_from_slice(hashes.as_flattened());
            }
            Piece::One(element) => out.extend_from_slice(&element.hash.to_le_bytes()),
        }
    }
    let mut end = 0;
    for piece in pieces {
        match piece {
            Piece::Run(part, run) => {
                append_ends(&mut out, part, run, end)?;
                end += part.run_bytes(run).ok_or(CUT)?.len();
            }
            Piece::One(element) => {
                end += element.name.len();
                out.extend_from_slice(&number(end));
                if shape == Shape::Hash {
                    end += element.value.len();
                    out.extend_from_slice(&number(end));
                }
            }
        }
    }
    invariant!(end == bytes, "the strings of a part end at {end} of {bytes} bytes");
    for piece in pieces {
        match piece {
            Piece::Run(part, run) => out.extend_from_slice(part.run_bytes(run).ok_or(CUT)?),
            Piece::One(element) => {
                out.extend_from_slice(element.name);
                out.extend_from_slice(element.value);
            }
        }
    }
    invariant!(out.len() == all, "a part of {all} bytes became {}", out.len());
    Ok(out)
}

/// Appends the ends of a run of elements whose strings begin at `end`. A damaged end is an error:
/// it must not get a new checksum.
fn append_ends(out: &mut Vec<u8>, part: &Part<'_>, run: &Range<usize>, end: usize) -> Result<()> {
    let strings = part.shape.strings();
    let from = part.start(run.start * strings).ok_or(CUT)?;
    let ends = part.ends.get(run.start * strings..run.end * strings).ok_or(CUT)?;
    let from = u32::try_from(from).map_err(|_| CUT)?;
    // Wrapping: the new ends can be below the old ones.
    let offset = u32::from_le_bytes(number(end)).wrapping_sub(from);
    let at = out.len();
    out.resize(at + 4 * ends.len(), 0);
    let (slots, _) = guaranteed(out.get_mut(at..), APPENDED).as_chunks_mut::<4>();
    let (mut before, mut is_rising) = (from, true);
    for (slot, old) in slots.iter_mut().zip(ends) {
        let old = u32::from_le_bytes(*old);
        is_rising &= old >= before;
        before = old;
        *slot = old.wrapping_add(offset).to_le_bytes();
    }
    if is_rising { Ok(()) } else { Err(CUT.into()) }
}

const APPENDED: &str = "the ends were appended";

impl<'a> Part<'a> {
    /// The strings of a run of elements.
    fn run_bytes(&self, run: &Range<usize>) -> Option<&'a [u8]> {
        let strings = self.shape.strings();
        self.bytes.get(self.start(run.start * strings)?..self.start(run.end * strings)?)
    }
}

fn number(number: usize) -> [u8; 4] {
    guaranteed(u32::try_from(number).ok(), "a part counts in 32 bits").to_le_bytes()
}

/// A part with these elements, which are in order.
pub(crate) fn encode(shape: Shape, elements: &[Element<'_>]) -> Result<Vec<u8>> {
    let pieces: Vec<Piece<'_>> = elements.iter().copied().map(Piece::One).collect();
    compose(shape, &pieces)
}

/// Bytes of an element in a part.
pub(crate) const fn bytes_of(shape: Shape, element: &Element<'_>) -> usize {
    4 * (1 + shape.strings()) + element.name.len() + element.value.len()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const SEED: u64 = 7;

    /// Few hashes, so that some are equal.
    fn few(name: &[u8]) -> u32 {
        hash_of(SEED, name) % 7
    }

    proptest! {
        #[test]
        fn a_part_agrees_with_a_sorted_map(
            steps in prop::collection::vec(
                (prop::collection::vec(any::<u8>(), 0..3),
                 prop::option::of(prop::collection::vec(any::<u8>(), 0..9))), 0..60),
            is_set in any::<bool>(),
        ) {
            let shape = if is_set { Shape::Set } else { Shape::Hash };
            let mut model: BTreeMap<(u32, Vec<u8>), Vec<u8>> = BTreeMap::new();
            let mut part = encode(shape, &[]).unwrap();
            for (name, value) in steps {
                let value = value.map(|value| if is_set { Vec::new() } else { value });
                let (hash, read) = (few(&name), Part::parse(shape, &part).unwrap());
                let found = read.find(hash, &name);
                prop_assert_eq!(found.is_ok(), model.contains_key(&(hash, name.clone())));
                let next = match (&value, found) {
                    (Some(value), found) => {
                        let element = Element { hash, name: &name, value };
                        Some(read.changed(&[(found, Some(element))]).unwrap())
                    }
                    (None, Ok(_)) => Some(read.changed(&[(found, None)]).unwrap()),
                    (None, Err(_)) => None,
                };
                part = next.unwrap_or(part);
                match value {
                    Some(value) => model.insert((hash, name), value),
                    None => model.remove(&(hash, name)),
                };
                let read = Part::parse(shape, &part).unwrap();
                let all: Vec<Element<'_>> = (0..).map_while(|at| read.element(at)).collect();
                let model: Vec<Element<'_>> = model.iter().map(|((hash, name), value)| {
                    Element { hash: *hash, name, value }
                }).collect();
                prop_assert_eq!(&all, &model);
                if let Some((one, first, other)) = read.halves().unwrap() {
                    let (one, other) =
                        (Part::parse(shape, &one).unwrap(), Part::parse(shape, &other).unwrap());
                    prop_assert!(one.len() > 0 && other.element(0).unwrap().hash == first);
                    prop_assert!(one.element(one.len() - 1).unwrap().hash < first);
                    prop_assert_eq!(one.joined(&other).unwrap(), part.clone());
                }
            }
        }

        #[test]
        fn any_bytes_are_elements_or_damage(
            bytes in prop::collection::vec(prop_oneof![0..9_u8, any::<u8>()], 0..80),
            is_set in any::<bool>(),
        ) {
            let shape = if is_set { Shape::Set } else { Shape::Hash };
            if let Ok(part) = Part::parse(shape, &bytes) {
                let found = part.find(1, b"m");
                let element = Element { hash: 1, name: b"m", value: b"" };
                // A new part loses nothing: each of its elements can be read.
                let (some, last) = (part.len() / 2, part.len().saturating_sub(1));
                let changed = [
                    part.changed(&[(found, Some(element))]),
                    part.changed(&[(Ok(some), None)]),
                    part.changed(&[(Err(0), Some(element)), (Ok(some), None)]),
                    part.changed(&[(Ok(last), Some(element)), (Err(0), Some(element))]),
                    part.joined(&part),
                ];
                for bytes in changed.into_iter().flatten() {
                    let read = Part::parse(shape, &bytes).unwrap();
                    prop_assert!((0..read.len()).all(|at| read.element(at).is_some()));
                }
                let _ = part.halves();
                let _ = part.check(SEED, 0, u32::MAX);
                let _ = (0..part.len()).filter_map(|at| part.element(at)).count();
            }
        }
    }
}
