//! The members of a set. A small set is flat: its members are the value of the record, in ascending
//! order, for a binary search.
//!
//! ```text
//! count u32 | count x end u32 | members, concatenated
//! ```
//!
//! An end is relative to the first byte of the first member. All numbers are little-endian. A
//! larger set is divided into parts (`collection.rs`).

use nearstate_memory::Corruption;
use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::VALUE_BYTES_MAX;
use nearstate_model::{Error, Result, invariant};

use crate::record::collection::{Collection, ElementWalk};

const CUT: Corruption = Corruption("a set is cut short");
const _: () = assert!(VALUE_BYTES_MAX <= u32::MAX as usize, "a set counts bytes in 32 bits");

/// The largest flat set: above, a change copies more than it does of a divided one.
pub(crate) const FLAT_MEMBERS_MAX: usize = 128;
pub(crate) const FLAT_BYTES_MAX: usize = 4 << 10;

/// The members of a set: of a small one in ascending order of their bytes, of a large one in the
/// order of their hashes.
#[derive(Clone, Debug, Default)]
pub struct Members<'a>(Source<'a>);

#[derive(Clone, Debug)]
enum Source<'a> {
    Flat(FlatMembers<'a>),
    Divided(Collection<'a>, Box<ElementWalk<'a>>),
}

impl Default for Source<'_> {
    fn default() -> Self {
        Self::Flat(FlatMembers::default())
    }
}

impl<'a> Members<'a> {
    /// Reads the value of a flat set, as the commit stream has it.
    ///
    /// # Errors
    /// Damage: it is truncated.
    pub fn new(value: &'a [u8]) -> Result<Self, Corruption> {
        Ok(Self(Source::Flat(FlatMembers::new(value)?)))
    }

    pub(crate) fn divided(collection: Collection<'a>) -> Self {
        Self(Source::Divided(collection, Box::new(collection.walk_from(0))))
    }

    /// The number of all members, also of those that were passed.
    pub fn len(&self) -> usize {
        match &self.0 {
            Source::Flat(members) => members.len(),
            Source::Divided(collection, _) => collection.len(),
        }
    }

    /// True if the set is empty, which no record in a region is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if this is a member. Complexity: logarithmic.
    pub fn contains(&self, member: &[u8]) -> bool {
        match &self.0 {
            Source::Flat(members) => members.contains(member),
            Source::Divided(collection, _) => collection.find(member).is_some(),
        }
    }

    /// The members at these indices (from 0, in the order of the iterator), in the order of the
    /// indices. Complexity: linear in the indices, and in the parts of a large set.
    pub fn select(&self, indices: &[usize]) -> Vec<&'a [u8]> {
        match &self.0 {
            Source::Flat(members) => {
                indices.iter().filter_map(|index| members.at(*index)).collect()
            }
            Source::Divided(collection, _) => {
                collection.select(indices).into_iter().map(|element| element.name).collect()
            }
        }
    }

    /// Calls `each` with some members from a cursor on: at least `count` if so many are left. A
    /// small set is returned at once. Returns the next cursor; 0 at the end, as at the beginning.
    ///
    /// Over all calls a member that is in the set during the whole scan is returned exactly once.
    pub fn scan_from(&self, cursor: u64, count: u64, mut each: impl FnMut(&'a [u8])) -> u64 {
        match &self.0 {
            Source::Flat(members) => {
                // A scan of a set that was large returns what may be left.
                members.clone().for_each(each);
                0
            }
            Source::Divided(collection, _) => {
                collection.scan(cursor, count, |element| each(element.name))
            }
        }
    }
}

impl<'a> From<FlatMembers<'a>> for Members<'a> {
    fn from(members: FlatMembers<'a>) -> Self {
        Self(Source::Flat(members))
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Source::Flat(members) => members.next(),
            Source::Divided(_, walk) => walk.next().map(|element| element.name),
        }
    }
}

/// The members of a flat set, in ascending order of their bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlatMembers<'a> {
    ends: &'a [u8],
    bytes: &'a [u8],
    next: usize,
}

impl<'a> FlatMembers<'a> {
    pub(crate) fn new(value: &'a [u8]) -> Result<Self, Corruption> {
        let (count, rest) = value.split_first_chunk::<4>().ok_or(CUT)?;
        let count = u32::from_le_bytes(*count) as usize;
        let (ends, bytes) = rest.split_at_checked(count.checked_mul(4).ok_or(CUT)?).ok_or(CUT)?;
        Ok(Self { ends, bytes, next: 0 })
    }

    const fn len(&self) -> usize {
        self.ends.len() / 4
    }

    /// The member at an index, from 0.
    fn at(&self, index: usize) -> Option<&'a [u8]> {
        let end = |index: usize| {
            let bytes = self.ends.get(index.checked_mul(4)?..)?.first_chunk::<4>()?;
            Some(u32::from_le_bytes(*bytes) as usize)
        };
        let from = match index.checked_sub(1) {
            Some(before) => end(before)?,
            None => 0,
        };
        self.bytes.get(from..end(index)?)
    }

    fn contains(&self, member: &[u8]) -> bool {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            debug_assert!(low <= middle && middle < high, "{middle} of {low}..{high}");
            match self.at(middle).unwrap_or_default().cmp(member) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return self.at(middle).is_some(),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        false
    }

    /// Checks everything that a reader relies on.
    pub(crate) fn check(&self) -> Result<(), Corruption> {
        let all: Option<Vec<&[u8]>> = (0..self.len()).map(|index| self.at(index)).collect();
        let all = all.ok_or(CUT)?;
        if !all.is_sorted_by(|one, two| one < two) || all.is_empty() {
            return Err(Corruption("the members of a set are not in order"));
        }
        let bytes = all.iter().map(|member| member.len()).sum::<usize>();
        if bytes == self.bytes.len() { Ok(()) } else { Err(CUT) }
    }
}

impl<'a> Iterator for FlatMembers<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<Self::Item> {
        let member = self.at(self.next)?;
        self.next += 1;
        Some(member)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.len().saturating_sub(self.next);
        (0, Some(left))
    }
}

/// True if a set of these members is flat; duplicates may count.
pub(crate) fn is_flat(members: &[&[u8]]) -> bool {
    let bytes = || members.iter().map(|member| member.len() + 4).sum::<usize>();
    members.len() <= FLAT_MEMBERS_MAX && bytes() <= FLAT_BYTES_MAX
}

/// The value of a record that has these members.
pub(crate) fn encode(members: &[&[u8]]) -> Result<Vec<u8>> {
    let mut members = members.to_vec();
    members.sort_unstable();
    members.dedup();
    let count = members.len();
    if count == 0 {
        return Err(Error::BadArgument { detail: "a set has at least one member".to_owned() });
    }
    let bytes = members.iter().map(|member| member.len()).sum::<usize>();
    if bytes > VALUE_BYTES_MAX {
        return Err(Error::ValueTooLarge { bytes });
    }
    invariant!(members.is_sorted_by(|one, next| one < next), "the members of a set ascend");
    let number = |number: usize| {
        guaranteed(u32::try_from(number).ok(), "a set counts in 32 bits").to_le_bytes()
    };
    let mut out = Vec::with_capacity(4 + 4 * count + bytes);
    out.extend_from_slice(&number(count));
    let mut end = 0;
    for member in &members {
        end += member.len();
        out.extend_from_slice(&number(end));
    }
    invariant!(end == bytes, "the last member ends at {end} of {bytes} bytes");
    for member in &members {
        out.extend_from_slice(member);
    }
    invariant!(out.len() == 4 + 4 * count + bytes, "a set of {count} members is encoded whole");
    Ok(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_reads_back_in_order(
            members in prop::collection::btree_set(prop::collection::vec(any::<u8>(), 0..9), 1..60),
            other in prop::collection::vec(any::<u8>(), 0..9),
        ) {
            let mut given: Vec<&[u8]> = members.iter().rev().map(Vec::as_slice).collect();
            given.push(given[0]);
            let value = encode(&given).unwrap();
            let read = FlatMembers::new(&value).unwrap();
            read.check().unwrap();
            let count = read.len();
            prop_assert_eq!(count, members.len());
            let all = read.clone();
            prop_assert!(all.eq(members.iter().map(Vec::as_slice)));
            for member in &members {
                prop_assert!(read.contains(member));
            }
            prop_assert_eq!(read.contains(&other), members.contains(&other));
        }

        #[test]
        fn any_bytes_are_members_or_damage(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(members) = FlatMembers::new(&bytes) {
                let _ = members.contains(b"m");
                let _ = members.check();
                prop_assert!(members.len() <= bytes.len());
            }
        }
    }

    #[test]
    fn an_empty_set_is_refused() {
        assert!(encode(&[]).unwrap_err().to_string().contains("at least one"));
    }
}
