//! A new collection that is built in steps, so that the caller can do other work in between: its
//! elements are collected in any order, then sorted and encoded a bucket of hashes at a time.

use std::sync::Arc;

use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::{FIELD_NAME_BYTES_MAX, TRANSACTION_BYTES_MAX, VALUE_BYTES_MAX};
use nearstate_model::{Error, Result, invariant};

use crate::record::Form;
use crate::record::collection::{OwnPart, PARTS_MAX, part_bytes_max};
use crate::record::parts::{Element, Part, Shape, bytes_of, encode, hash_of};

/// The buckets of a large collection are selected by this many bits of the hash: at a million
/// elements, a bucket is sorted and encoded in about 100 us.
const BUCKET_BITS: u32 = 10;

const PUSHED: &str = "an element was pushed";

/// A set or a hash that is not in the region yet. Its elements are pushed, then it is encoded, then
/// [`Txn::put_built`] puts it. Of fields with one name, the last one counts.
///
/// [`Txn::put_built`]: crate::Txn::put_built
#[derive(Debug)]
pub struct CollectionBuilder {
    shape: Shape,
    seed: u64,
    buckets: Vec<Bucket>,
    bits: u32,
    /// Bytes of all elements in parts.
    bytes: usize,
    /// The bytes of a part, once the encoding has begun.
    limit: Option<usize>,
    /// The bucket that is encoded next.
    next: usize,
    /// Encoded elements of the last part, which may get more: bucket and index in it.
    run: Vec<(usize, usize)>,
    run_bytes: usize,
    elements: u64,
    parts: Vec<OwnPart>,
}

/// The elements of some hashes.
#[derive(Debug, Default)]
struct Bucket {
    places: Vec<Place>,
    bytes: Vec<u8>,
}

/// An element in the bytes of its bucket.
#[derive(Clone, Copy, Debug)]
struct Place {
    hash: u32,
    from: usize,
    name: usize,
    value: usize,
}

impl Bucket {
    fn element(&self, place: &Place) -> Element<'_> {
        let middle = place.from + place.name;
        let name = guaranteed(self.bytes.get(place.from..middle), PUSHED);
        let value = guaranteed(self.bytes.get(middle..middle + place.value), PUSHED);
        Element { hash: place.hash, name, value }
    }

    /// Sorts the elements. Of those with one name, the last one stays.
    fn sort(&mut self) {
        let mut places = std::mem::take(&mut self.places);
        let key = |place: &Place| {
            let element = self.element(place);
            (element.hash, element.name)
        };
        // Stable: the last one of several is behind the others.
        places.sort_by(|one, next| key(one).cmp(&key(next)));
        places.reverse();
        places.dedup_by(|one, before| key(one) == key(before));
        places.reverse();
        self.places = places;
    }
}

impl CollectionBuilder {
    /// An empty set, or an empty hash; `bits` of a hash select its bucket.
    pub(crate) fn with_bits(shape: Shape, seed: u64, bits: u32) -> Self {
        Self {
            shape,
            seed,
            buckets: (0..1 << bits).map(|_| Bucket::default()).collect(),
            bits,
            bytes: 0,
            limit: None,
            next: 0,
            run: Vec::new(),
            run_bytes: 0,
            elements: 0,
            parts: Vec::new(),
        }
    }

    /// An empty set, or an empty hash, for many elements.
    pub(crate) fn new(shape: Shape, seed: u64) -> Self {
        Self::with_bits(shape, seed, BUCKET_BITS)
    }

    /// Adds a member, whose value is empty, or a field.
    ///
    /// # Errors
    /// `BadName`, `ValueTooLarge`; `TransactionTooLarge`: all elements together; `BadArgument`: the
    /// encoding has begun.
    pub fn push(&mut self, name: &[u8], value: &[u8]) -> Result<()> {
        let bytes = name.len() + value.len();
        if self.shape == Shape::Hash && name.len() > FIELD_NAME_BYTES_MAX {
            return Err(Error::BadName { bytes: name.len() });
        }
        if bytes > VALUE_BYTES_MAX {
            return Err(Error::ValueTooLarge { bytes });
        }
        if self.limit.is_some() {
            let detail = "push all elements before the collection is encoded".to_owned();
            return Err(Error::BadArgument { detail });
        }
        let hash = hash_of(self.seed, name);
        let all = self.bytes + bytes_of(self.shape, &Element { hash, name, value });
        if all > TRANSACTION_BYTES_MAX {
            let detail = format!("a collection of {all} bytes (at most {TRANSACTION_BYTES_MAX})");
            return Err(Error::TransactionTooLarge { detail });
        }
        self.bytes = all;
        // With 0 bits the shift is the width of the hash: all elements are in one bucket.
        let which = hash.checked_shr(u32::BITS - self.bits).unwrap_or(0) as usize;
        let bucket = guaranteed(self.buckets.get_mut(which), "the high bits of a hash");
        let from = bucket.bytes.len();
        bucket.bytes.extend_from_slice(name);
        bucket.bytes.extend_from_slice(value);
        bucket.places.push(Place { hash, from, name: name.len(), value: value.len() });
        Ok(())
    }

    /// Bytes of the elements that were pushed.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its memory.
    pub fn memory_bytes(&self) -> usize {
        size_of_val(self.buckets.as_slice()) + 2 * self.bytes
    }

    /// The number of different elements; 0 before the encoding.
    pub fn len(&self) -> usize {
        guaranteed(usize::try_from(self.elements).ok(), "elements are counted one by one")
    }

    /// True if there are no elements; also before the encoding.
    pub const fn is_empty(&self) -> bool {
        self.elements == 0
    }

    pub(crate) const fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) const fn seed(&self) -> u64 {
        self.seed
    }

    /// A set or a hash.
    pub const fn form(&self) -> Form {
        match self.shape {
            Shape::Set => Form::Set,
            Shape::Hash => Form::Blocks,
        }
    }

    /// Encodes some of the elements: of a million about a thousand. True at the end.
    ///
    /// # Errors
    /// None that a caller can cause.
    pub fn encode_some(&mut self) -> Result<bool> {
        let limit = *self.limit.get_or_insert_with(|| planned_part_bytes(self.bytes));
        let which = self.next;
        let Some(bucket) = self.buckets.get_mut(which) else { return Ok(true) };
        bucket.sort();
        self.next += 1;
        let count = bucket.places.len();
        self.elements += count as u64;
        for index in 0..count {
            let element = self.element((which, index));
            let (hash, more) = (element.hash, bytes_of(self.shape, &element));
            let is_same = self.run.last().is_some_and(|last| self.element(*last).hash == hash);
            let is_full = self.run_bytes + more > limit && self.parts.len() + 1 < PARTS_MAX;
            if is_full && !is_same && !self.run.is_empty() {
                self.end_part()?;
            }
            self.run.push((which, index));
            self.run_bytes += more;
        }
        invariant!(self.parts.len() <= PARTS_MAX, "a collection has {} parts", self.parts.len());
        let is_done = self.next == self.buckets.len();
        if is_done && !self.run.is_empty() {
            self.end_part()?;
        }
        // Elements before the run are encoded.
        let kept = self.run.first().map_or(self.next, |(first, _)| *first);
        invariant!(kept <= self.next, "the run begins in a bucket that was not read");
        let encoded = guaranteed(self.buckets.get_mut(..kept), "the run is in the buckets");
        for bucket in encoded.iter_mut().rev() {
            if bucket.places.capacity() == 0 {
                break;
            }
            *bucket = Bucket::default();
        }
        Ok(is_done)
    }

    /// Encodes all elements.
    pub(crate) fn encode_all(&mut self) -> Result<()> {
        while !self.encode_some()? {}
        Ok(())
    }

    fn element(&self, (bucket, index): (usize, usize)) -> Element<'_> {
        let bucket = guaranteed(self.buckets.get(bucket), PUSHED);
        bucket.element(guaranteed(bucket.places.get(index), PUSHED))
    }

    fn end_part(&mut self) -> Result<()> {
        let run: Vec<Element<'_>> = self.run.iter().map(|at| self.element(*at)).collect();
        let first = guaranteed(run.first(), "no part is empty").hash;
        invariant!(
            self.parts.last().is_none_or(|last| last.first < first),
            "a part begins before the one that it follows"
        );
        let part = OwnPart { first, bytes: Arc::new(encode(self.shape, &run)?) };
        self.parts.push(part);
        self.run.clear();
        self.run_bytes = 0;
        Ok(())
    }

    /// The parts and the number of elements; `None` before all are encoded.
    pub(crate) fn parts(&self) -> Option<(&[OwnPart], u64)> {
        let is_done = self.limit.is_some() && self.next == self.buckets.len();
        invariant!(!is_done || self.run.is_empty(), "all elements are in parts");
        is_done.then_some((self.parts.as_slice(), self.elements))
    }

    /// The elements, in the order of their hashes, after the encoding.
    pub(crate) fn pairs(&self) -> Vec<(&[u8], &[u8])> {
        let parts = self.parts.iter().map(|part| Part::parse(self.shape, &part.bytes));
        let parts = parts.map(|part| guaranteed(part.ok(), "a part was encoded"));
        parts
            .flat_map(|part| (0..part.len()).map_while(move |index| part.element(index)))
            .map(|element| (element.name, element.value))
            .collect()
    }
}

/// Bytes of a part if as many parts as possible have three quarters of their limit.
fn planned_part_bytes(bytes: usize) -> usize {
    let mut parts = 1;
    while parts < PARTS_MAX && parts * part_bytes_max(parts) / 4 * 3 < bytes {
        parts += 1;
    }
    part_bytes_max(parts) / 4 * 3
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_built_collection_agrees_with_a_sorted_map(
            pairs in prop::collection::vec((0..400_u16, 0..3_u8), 0..900),
            bits in 0..11_u32,
            is_set in any::<bool>(),
        ) {
            let shape = if is_set { Shape::Set } else { Shape::Hash };
            let mut builder = CollectionBuilder::with_bits(shape, 7, bits);
            let mut model = BTreeMap::new();
            for (name, value) in pairs {
                let (name, value) = (name.to_le_bytes(), vec![value; usize::from(value) * 40]);
                let value = if is_set { Vec::new() } else { value };
                builder.push(&name, &value).unwrap();
                model.insert((hash_of(7, &name), name.to_vec()), value);
            }
            prop_assert!(builder.parts().is_none());
            builder.encode_all().unwrap();
            prop_assert!(builder.push(b"late", b"").is_err());
            let pairs = model.iter().map(|((_, name), value)| (name.as_slice(), value.as_slice()));
            let expected: Vec<(&[u8], &[u8])> = pairs.collect();
            prop_assert_eq!(builder.pairs(), expected);
            let (parts, elements) = builder.parts().unwrap();
            prop_assert_eq!(elements, model.len() as u64);
            for (index, part) in parts.iter().enumerate() {
                let last = parts.get(index + 1).map_or(u32::MAX, |next| next.first - 1);
                Part::parse(shape, &part.bytes).unwrap().check(7, part.first, last).unwrap();
                prop_assert!(part.bytes.len() <= part_bytes_max(1) + 4);
            }
        }
    }

    #[test]
    fn what_no_transaction_can_hold_is_refused() {
        let mut builder = CollectionBuilder::new(Shape::Hash, 7);
        let value = vec![0; VALUE_BYTES_MAX];
        assert!(matches!(builder.push(b"a", &value), Err(Error::ValueTooLarge { .. })));
        let name = vec![0; FIELD_NAME_BYTES_MAX + 1];
        assert!(matches!(builder.push(&name, b""), Err(Error::BadName { .. })));
        let half = value.get(..VALUE_BYTES_MAX - 100).unwrap();
        builder.push(b"a", half).unwrap();
        builder.push(b"b", half).unwrap();
        assert!(matches!(builder.push(b"c", half), Err(Error::TransactionTooLarge { .. })));
    }
}
