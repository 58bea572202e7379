//! The changes of a divided collection in a transaction: parts that replace stored ones. Nothing is
//! allocated in the region before the commit.

use std::sync::Arc;

use nearstate_memory::{Cell, Corruption};
use nearstate_model::invariant::guaranteed;
use nearstate_model::{Result, invariant};

use crate::record::collection::{
    Collection, OwnPart, PARTS_MAX, PartLocation, PartTable, Replaced, encode_table, locate,
    part_bytes_max,
};
use crate::record::parts::{Element, Part, Shape, bytes_of, encode, hash_of};

const LOCATED: &str = "a part was located";

/// The changes of a collection.
#[derive(Clone, Debug)]
pub(crate) struct CollectionEdit {
    pub(crate) shape: Shape,
    seed: u64,
    pub(crate) elements: u64,
    /// The number of parts after the change.
    pub(crate) parts: usize,
    /// Ascending, without overlaps. Of a collection without stored parts, one range.
    replaced: Vec<Replaced>,
}

/// The stored version that is changed: its cell and its table of parts. Without a cell, nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StoredParts<'v> {
    pub(crate) cell: Option<Cell<'v>>,
    pub(crate) table: PartTable<'v>,
}

impl CollectionEdit {
    /// No changes of a stored collection.
    pub(crate) fn of(collection: &Collection<'_>) -> Self {
        let Collection { shape, seed, table, elements, .. } = *collection;
        invariant!(collection.replaced.is_empty(), "changes begin with a stored collection");
        Self { shape, seed, elements, parts: table.parts(), replaced: Vec::new() }
    }

    /// A new collection. Of elements with one name, the last one counts.
    pub(crate) fn anew(shape: Shape, seed: u64, pairs: &[(&[u8], &[u8])]) -> Result<Self> {
        let mut all: Vec<(u32, &[u8], &[u8])> =
            pairs.iter().map(|(name, value)| (hash_of(seed, name), *name, *value)).collect();
        // Stable, so that the last of several is behind the others.
        all.sort_by_key(|(hash, name, _)| (*hash, *name));
        let is_last = |(index, one): (usize, &(u32, &[u8], &[u8]))| {
            all.get(index + 1).is_none_or(|next| (next.0, next.1) != (one.0, one.1))
        };
        let elements: Vec<Element<'_>> = all
            .iter()
            .enumerate()
            .filter(|(index, one)| is_last((*index, one)))
            .map(|(_, (hash, name, value))| Element { hash: *hash, name, value })
            .collect();
        let bytes = elements.iter().map(|element| bytes_of(shape, element)).sum::<usize>();
        // As many parts as divide the bytes into parts of three quarters of their limit.
        let mut parts = 1;
        while parts < PARTS_MAX && parts * part_bytes_max(parts) / 4 * 3 < bytes {
            parts += 1;
        }
        let mut edit = Self {
            shape,
            seed,
            elements: elements.len() as u64,
            parts: 0,
            replaced: vec![Replaced::default()],
        };
        let (limit, mut run, mut taken) = (part_bytes_max(parts) / 4 * 3, 0, 0);
        let mut own = Vec::new();
        for (index, element) in elements.iter().enumerate() {
            let is_same =
                index > 0 && elements.get(index - 1).map(|e| e.hash) == Some(element.hash);
            let more = bytes_of(shape, element);
            if taken + more > limit && index > run && !is_same && own.len() + 1 < PARTS_MAX {
                own.push(own_part(shape, elements.get(run..index))?);
                (run, taken) = (index, 0);
            }
            taken += more;
        }
        if run < elements.len() {
            own.push(own_part(shape, elements.get(run..))?);
        }
        edit.parts = own.len();
        guaranteed(edit.replaced.first_mut(), "one range").parts = own;
        Ok(edit)
    }

    /// The collection with the changes.
    pub(crate) fn collection<'v>(&'v self, stored: StoredParts<'v>) -> Collection<'v> {
        Collection {
            shape: self.shape,
            seed: self.seed,
            table: stored.table,
            cell: stored.cell,
            replaced: &self.replaced,
            elements: self.elements,
        }
    }

    /// Adds an element, or replaces the value of a field. True if it is new.
    pub(crate) fn insert(
        &mut self,
        stored: StoredParts<'_>,
        name: &[u8],
        value: &[u8],
    ) -> Result<bool> {
        let hash = hash_of(self.seed, name);
        let element = Element { hash, name, value };
        let Some(location) = locate(&stored.table, &self.replaced, hash) else {
            let own = OwnPart { first: 0, bytes: Arc::new(encode(self.shape, &[element])?) };
            self.replaced = vec![Replaced { from: 0, to: stored.table.parts(), parts: vec![own] }];
            (self.parts, self.elements) = (1, 1);
            return Ok(true);
        };
        let part = self.collection(stored).part(location)?;
        let found = part.find(hash, name);
        if self.shape == Shape::Set && found.is_ok() {
            return Ok(false);
        }
        let bytes = part.with(found, element)?;
        let added = u64::from(found.is_err());
        self.elements = self.elements.checked_add(added).ok_or(BAD_COUNT)?;
        let location = self.replace(stored, location, bytes)?;
        self.split(location)?;
        Ok(found.is_err())
    }

    /// Removes an element. False if there is none.
    pub(crate) fn remove(&mut self, stored: StoredParts<'_>, name: &[u8]) -> Result<bool> {
        let hash = hash_of(self.seed, name);
        let Some(location) = locate(&stored.table, &self.replaced, hash) else { return Ok(false) };
        let part = self.collection(stored).part(location)?;
        let Ok(index) = part.find(hash, name) else { return Ok(false) };
        let bytes = part.without(index)?;
        let is_empty = part.len() == 1;
        self.elements = self.elements.saturating_sub(1);
        let location = self.replace(stored, location, bytes)?;
        if is_empty {
            self.drop_part(stored, location)?;
        } else {
            self.join(stored, location)?;
        }
        Ok(true)
    }

    /// Stores the new bytes of a part.
    fn replace(
        &mut self,
        stored: StoredParts<'_>,
        location: PartLocation,
        bytes: Vec<u8>,
    ) -> Result<PartLocation> {
        let bytes = Arc::new(bytes);
        match location {
            PartLocation::Stored(child) => {
                let first = stored.table.first(child).ok_or(NO_PART)?;
                let at = self.replaced.partition_point(|range| range.to <= child);
                let parts = vec![OwnPart { first, bytes }];
                self.replaced.insert(at, Replaced { from: child, to: child + 1, parts });
                Ok(PartLocation::Own(at, 0))
            }
            PartLocation::Own(range, part) => {
                self.own_mut(range, part).bytes = bytes;
                Ok(location)
            }
        }
    }

    fn own_mut(&mut self, range: usize, part: usize) -> &mut OwnPart {
        let range = guaranteed(self.replaced.get_mut(range), LOCATED);
        guaranteed(range.parts.get_mut(part), LOCATED)
    }

    /// Splits a part as long as it is too large.
    fn split(&mut self, location: PartLocation) -> Result<()> {
        let PartLocation::Own(range, at) = location else { invariant!("a changed part is own") };
        let (mut at, mut end) = (at, at + 1);
        while at < end {
            let limit = part_bytes_max(self.parts);
            let own = self.own_mut(range, at);
            let is_full = own.bytes.len() > limit;
            let own = Arc::clone(&own.bytes);
            let halves = if is_full && self.parts < PARTS_MAX {
                Part::parse(self.shape, &own)?.halves()?
            } else {
                None
            };
            let Some((one, first, other)) = halves else {
                at += 1;
                continue;
            };
            self.own_mut(range, at).bytes = Arc::new(one);
            let other = OwnPart { first, bytes: Arc::new(other) };
            guaranteed(self.replaced.get_mut(range), LOCATED).parts.insert(at + 1, other);
            self.parts += 1;
            end += 1;
        }
        Ok(())
    }

    /// Removes a part that became empty.
    fn drop_part(&mut self, stored: StoredParts<'_>, location: PartLocation) -> Result<()> {
        let PartLocation::Own(mut range, _) = location else { invariant!("a changed part is own") };
        let PartLocation::Own(_, mut at) = location else { invariant!("a changed part is own") };
        if guaranteed(self.replaced.get(range), LOCATED).parts.len() == 1 {
            // A range keeps a part, which then has the hashes of this one too.
            if self.has_left(range) {
                (range, at) = self.absorb_left(stored, range)?;
            } else if self.has_right(stored, range) {
                self.absorb_right(stored, range)?;
            }
        }
        let parts = &mut guaranteed(self.replaced.get_mut(range), LOCATED).parts;
        let dropped = parts.remove(at);
        if at == 0
            && let Some(next) = parts.first_mut()
        {
            next.first = dropped.first;
        }
        self.parts -= 1;
        // The count is read from the region.
        if (self.parts == 0) == (self.elements == 0) { Ok(()) } else { Err(BAD_COUNT.into()) }
    }

    fn has_left(&self, range: usize) -> bool {
        guaranteed(self.replaced.get(range), LOCATED).from > 0
    }

    fn has_right(&self, stored: StoredParts<'_>, range: usize) -> bool {
        guaranteed(self.replaced.get(range), LOCATED).to < stored.table.parts()
    }

    /// Extends a range by the part before it. Returns its new location, and that of the part that
    /// was its first one.
    fn absorb_left(&mut self, stored: StoredParts<'_>, range: usize) -> Result<(usize, usize)> {
        let from = guaranteed(self.replaced.get(range), LOCATED).from;
        if range > 0 && self.replaced.get(range - 1).is_some_and(|before| before.to == from) {
            let taken = self.replaced.remove(range);
            let before = guaranteed(self.replaced.get_mut(range - 1), LOCATED);
            let at = before.parts.len();
            before.parts.extend(taken.parts);
            before.to = taken.to;
            return Ok((range - 1, at));
        }
        let part = self.stored_part(stored, from - 1)?;
        let range_mut = guaranteed(self.replaced.get_mut(range), LOCATED);
        range_mut.parts.insert(0, part);
        range_mut.from = from - 1;
        Ok((range, 1))
    }

    /// Extends a range by the part after it.
    fn absorb_right(&mut self, stored: StoredParts<'_>, range: usize) -> Result<()> {
        let to = guaranteed(self.replaced.get(range), LOCATED).to;
        if self.replaced.get(range + 1).is_some_and(|next| next.from == to) {
            let taken = self.replaced.remove(range + 1);
            let range = guaranteed(self.replaced.get_mut(range), LOCATED);
            range.parts.extend(taken.parts);
            range.to = taken.to;
            return Ok(());
        }
        let part = self.stored_part(stored, to)?;
        let range = guaranteed(self.replaced.get_mut(range), LOCATED);
        range.parts.push(part);
        range.to = to + 1;
        Ok(())
    }

    /// A copy of a stored part.
    fn stored_part(&self, stored: StoredParts<'_>, child: usize) -> Result<OwnPart> {
        let cell = guaranteed(stored.cell, "stored parts are those of a cell");
        if child as u64 >= cell.children() {
            return Err(NO_PART.into());
        }
        let first = stored.table.first(child).ok_or(NO_PART)?;
        let bytes = cell.block(child as u64)?;
        Part::parse(self.shape, bytes)?;
        Ok(OwnPart { first, bytes: Arc::new(bytes.to_vec()) })
    }

    /// Joins a part that became small with a neighbour, if both together are at most half full.
    fn join(&mut self, stored: StoredParts<'_>, location: PartLocation) -> Result<()> {
        let PartLocation::Own(range, at) = location else { invariant!("a changed part is own") };
        let limit = part_bytes_max(self.parts);
        let bytes = self.own_mut(range, at).bytes.len();
        if bytes >= limit / 4 {
            return Ok(());
        }
        let room = limit / 2 - bytes;
        let (range, one) = if at > 0 {
            (range, at - 1)
        } else if self.has_left(range) {
            // The part before it lies in the range before, or is stored.
            if self.bytes_left(stored, range)? > room {
                return Ok(());
            }
            let (range, at) = self.absorb_left(stored, range)?;
            (range, at - 1)
        } else {
            let is_last = guaranteed(self.replaced.get(range), LOCATED).parts.len() == at + 1;
            if is_last && !self.has_right(stored, range) {
                return Ok(());
            }
            if is_last {
                if self.bytes_right(stored, range)? > room {
                    return Ok(());
                }
                self.absorb_right(stored, range)?;
            }
            (range, at)
        };
        let (left, right) = (&self.own_mut(range, one).bytes, one + 1);
        let left = Arc::clone(left);
        let right_bytes = Arc::clone(&self.own_mut(range, right).bytes);
        if left.len() + right_bytes.len() > limit / 2 {
            return Ok(());
        }
        let (left, right_part) =
            (Part::parse(self.shape, &left)?, Part::parse(self.shape, &right_bytes)?);
        let joined = left.joined(&right_part)?;
        self.own_mut(range, one).bytes = Arc::new(joined);
        guaranteed(self.replaced.get_mut(range), LOCATED).parts.remove(right);
        self.parts -= 1;
        Ok(())
    }

    /// Bytes of the part before a range.
    fn bytes_left(&self, stored: StoredParts<'_>, range: usize) -> Result<usize> {
        let from = guaranteed(self.replaced.get(range), LOCATED).from;
        match range.checked_sub(1).and_then(|before| self.replaced.get(before)) {
            Some(before) if before.to == from => {
                Ok(before.parts.last().map_or(0, |part| part.bytes.len()))
            }
            _ => stored_bytes(stored, from - 1),
        }
    }

    /// Bytes of the part after a range.
    fn bytes_right(&self, stored: StoredParts<'_>, range: usize) -> Result<usize> {
        let to = guaranteed(self.replaced.get(range), LOCATED).to;
        match self.replaced.get(range + 1) {
            Some(next) if next.from == to => {
                Ok(next.parts.first().map_or(0, |part| part.bytes.len()))
            }
            _ => stored_bytes(stored, to),
        }
    }

    /// The only part, if there is no other.
    pub(crate) fn single_part(&self) -> Option<&[u8]> {
        match self.replaced.as_slice() {
            [range] if self.parts == 1 => range.parts.first().map(|part| part.bytes.as_slice()),
            _ => None,
        }
    }

    /// The children and the value of the record with the changes. `keep` makes the cell of a new
    /// part, and returns its offset.
    pub(crate) fn record(
        &self,
        stored: StoredParts<'_>,
        mut keep: impl FnMut(&[u8]) -> Result<u64>,
    ) -> Result<(Vec<u8>, Vec<u8>)> {
        let (mut children, mut firsts, mut counts) = (
            Vec::with_capacity(8 * self.parts),
            Vec::with_capacity(4 * self.parts),
            Vec::with_capacity(4 * self.parts),
        );
        let old = stored.cell.map_or(Ok(&[][..]), |cell| cell.children_bytes())?;
        let mut done = 0;
        let share = |from: usize, to: usize, out: [&mut Vec<u8>; 3]| -> Result<()> {
            let (first, count) = stored.table.run(from, to).ok_or(NO_PART)?;
            let child = old.get(8 * from..8 * to).ok_or(NO_PART)?;
            for (out, bytes) in out.into_iter().zip([child, first, count]) {
                out.extend_from_slice(bytes);
            }
            Ok(())
        };
        for range in &self.replaced {
            share(done, range.from, [&mut children, &mut firsts, &mut counts])?;
            for part in &range.parts {
                let first = if firsts.is_empty() { 0 } else { part.first };
                let count = Part::parse(self.shape, &part.bytes)?.len();
                let count = u32::try_from(count).map_err(|_| NO_PART)?;
                firsts.extend_from_slice(&first.to_le_bytes());
                counts.extend_from_slice(&count.to_le_bytes());
                children.extend_from_slice(&keep(&part.bytes)?.to_le_bytes());
            }
            done = range.to;
        }
        share(done, stored.table.parts(), [&mut children, &mut firsts, &mut counts])?;
        invariant!(
            children.len() == 8 * self.parts && firsts.len() == 4 * self.parts,
            "{} children of {} parts",
            children.len() / 8,
            self.parts
        );
        Ok((children, encode_table(self.elements, &firsts, &counts)))
    }
}

pub(crate) const BAD_COUNT: Corruption =
    Corruption("a collection has another number of elements than its parts");
const NO_PART: Corruption = Corruption("a collection has no cell for one of its parts");

fn stored_bytes(stored: StoredParts<'_>, child: usize) -> Result<usize> {
    let cell = guaranteed(stored.cell, "stored parts are those of a cell");
    if child as u64 >= cell.children() {
        return Err(NO_PART.into());
    }
    Ok(cell.block(child as u64)?.len())
}

fn own_part(shape: Shape, elements: Option<&[Element<'_>]>) -> Result<OwnPart> {
    let elements = guaranteed(elements, "a run of the elements");
    let first = guaranteed(elements.first(), "no part is empty").hash;
    Ok(OwnPart { first, bytes: Arc::new(encode(shape, elements)?) })
}
