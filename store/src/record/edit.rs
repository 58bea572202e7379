//! The changes of a divided collection in a transaction: parts that replace stored ones. Nothing is
//! allocated in the region before the commit.

use std::sync::Arc;

use nearstate_memory::{Cell, Corruption};
use nearstate_model::invariant::guaranteed;
use nearstate_model::{Result, invariant};

use crate::record::builder::CollectionBuilder;
use crate::record::collection::{
    Collection, OwnPart, PARTS_MAX, PartLocation, PartTable, Replaced, encode_table, locate,
    part_bytes_max,
};
use crate::record::parts::{EMPTY, Element, Part, PartChange, Shape, hash_of};

const LOCATED: &str = "a part was located";

/// The changes of a collection.
#[derive(Clone, Debug)]
pub(crate) struct CollectionEdit {
    pub(crate) shape: Shape,
    seed: u64,
    pub(crate) elements: u64,
    /// The number of parts after the change.
    pub(crate) parts: usize,
    /// Ascending, without overlaps. Of a collection without stored parts, one range. Shared with
    /// the transaction's own views.
    #[expect(
        clippy::rc_buffer,
        reason = "it grows; an `Arc<[Replaced]>` would be copied each time"
    )]
    replaced: Arc<Vec<Replaced>>,
    /// Bytes of earlier states that only views keep.
    kept_bytes: usize,
}

/// How many elements were added and removed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ElementCounts {
    pub(crate) added: usize,
    pub(crate) removed: usize,
}

/// A change of one element, with its index among those of the caller.
#[derive(Clone, Copy, Debug)]
struct SortedChange<'c> {
    hash: u32,
    name: &'c [u8],
    value: Option<&'c [u8]>,
    index: usize,
}

/// Bytes of new elements for which a part is copied once. More are added in several steps, so that
/// no part becomes much larger than its limit before it is split.
const STEP_BYTES_MAX: usize = 1 << 20;

/// The first of some sorted changes, as changes of one part.
struct PartChanges<'c> {
    /// The number of changes, of which some may change nothing.
    taken: usize,
    changes: Vec<PartChange<'c>>,
    counts: ElementCounts,
    /// The indices of those that change something.
    effective: Vec<usize>,
    /// True if an element is added or replaced.
    has_put: bool,
}

impl<'c> PartChanges<'c> {
    /// Those of elements with hashes below `end`.
    fn of(part: &Part<'_>, shape: Shape, all: &[SortedChange<'c>], end: Option<u32>) -> Self {
        let mut out = Self {
            taken: 0,
            changes: Vec::new(),
            counts: ElementCounts::default(),
            effective: Vec::new(),
            has_put: false,
        };
        let mut bytes = 0;
        for same in all.chunk_by(|one, next| one.name == next.name) {
            let Some(SortedChange { hash, name, .. }) = same.first().copied() else { break };
            let last = same.last().and_then(|change| change.value);
            bytes += name.len() + last.map_or(0, <[u8]>::len);
            let is_full = out.taken > 0 && bytes > STEP_BYTES_MAX;
            if is_full || end.is_some_and(|end| hash >= end) {
                break;
            }
            out.taken += same.len();
            let found = part.find(hash, name);
            if out.apply(shape, found.is_ok(), same) && (found.is_ok() || last.is_some()) {
                out.has_put |= last.is_some();
                let element = last.map(|value| Element { hash, name, value });
                out.changes.push((found, element));
            }
        }
        out
    }

    /// Applies the changes of one element. True if one of them changes something.
    fn apply(&mut self, shape: Shape, existed: bool, same: &[SortedChange<'c>]) -> bool {
        let (mut exists, before) = (existed, self.effective.len());
        for change in same {
            match (exists, change.value) {
                (false, None) => continue,
                (true, Some(_)) if shape == Shape::Set => continue,
                (true, Some(_)) => {}
                (false, Some(_)) => self.counts.added += 1,
                (true, None) => self.counts.removed += 1,
            }
            exists = change.value.is_some();
            self.effective.push(change.index);
        }
        self.effective.len() > before
    }
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
        let replaced = Arc::default();
        Self { shape, seed, elements, parts: table.parts(), replaced, kept_bytes: 0 }
    }

    /// A new collection. Of elements with one name, the last one counts.
    pub(crate) fn anew(shape: Shape, seed: u64, pairs: &[(&[u8], &[u8])]) -> Result<Self> {
        let mut builder = CollectionBuilder::with_bits(shape, seed, 0);
        for (name, value) in pairs {
            builder.push(name, value)?;
        }
        builder.encode_all()?;
        let (parts, elements) = guaranteed(builder.parts(), "all elements are encoded");
        Ok(Self::of_parts(shape, seed, elements, parts.to_vec()))
    }

    /// A new collection of these parts.
    pub(crate) fn of_parts(shape: Shape, seed: u64, elements: u64, own: Vec<OwnPart>) -> Self {
        invariant!(
            own.is_sorted_by(|one, next| one.first < next.first),
            "the parts of a collection are in the order of their hashes"
        );
        invariant!(own.is_empty() == (elements == 0), "{elements} elements in {} parts", own.len());
        let parts = own.len();
        let replaced = Arc::new(vec![Replaced { from: 0, to: 0, parts: own }]);
        Self { shape, seed, elements, parts, replaced, kept_bytes: 0 }
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

    /// The elements of a collection without stored parts, with their values.
    pub(crate) fn own_elements(&self) -> Vec<(&[u8], Option<&[u8]>)> {
        let all = self.collection(StoredParts::default()).walk_from(0);
        all.map(|element| (element.name, Some(element.value))).collect()
    }

    /// Applies changes, each part once for all changes of its elements. Changes of one element take
    /// effect in their order. `effective` gets the indices of those that have changed something,
    /// also if an error follows.
    pub(crate) fn change(
        &mut self,
        stored: StoredParts<'_>,
        changes: &[(&[u8], Option<&[u8]>)],
        effective: &mut Vec<usize>,
    ) -> Result<ElementCounts> {
        let sorted = changes.iter().enumerate().map(|(index, (name, value))| SortedChange {
            hash: hash_of(self.seed, name),
            name,
            value: *value,
            index,
        });
        let mut sorted: Vec<SortedChange<'_>> = sorted.collect();
        // Stable, so that changes of one element keep their order.
        sorted.sort_by_key(|change| (change.hash, change.name));
        let (mut rest, mut all) = (sorted.as_slice(), ElementCounts::default());
        while !rest.is_empty() {
            let (taken, counts) = self.change_part(stored, rest, effective)?;
            invariant!(taken > 0, "a part has a change");
            all.added += counts.added;
            all.removed += counts.removed;
            rest = guaranteed(rest.get(taken..), "the changes behind those that were taken");
        }
        Ok(all)
    }

    /// Applies the first changes, those of one part. Returns their number.
    fn change_part(
        &mut self,
        stored: StoredParts<'_>,
        changes: &[SortedChange<'_>],
        effective: &mut Vec<usize>,
    ) -> Result<(usize, ElementCounts)> {
        let hash = guaranteed(changes.first(), "a change is left").hash;
        let location = locate(&stored.table, &self.replaced, hash);
        let collection = self.collection(stored);
        let (part, end) = match location {
            Some(location) => (collection.part(location)?, collection.first_after(location, hash)),
            None => (Part::parse(self.shape, EMPTY)?, None),
        };
        let found = PartChanges::of(&part, self.shape, changes, end);
        let counts = found.counts;
        if found.changes.is_empty() {
            return Ok((found.taken, counts));
        }
        let left = (part.len() + counts.added).checked_sub(counts.removed).ok_or(BAD_COUNT)?;
        let bytes = part.changed(&found.changes)?;
        let elements = self.elements.checked_add(counts.added as u64).ok_or(BAD_COUNT)?;
        self.elements = elements.saturating_sub(counts.removed as u64);
        let location = if let Some(location) = location {
            self.replace(stored, location, bytes)?
        } else {
            let own = OwnPart { first: 0, bytes: Arc::new(bytes) };
            let all = Replaced { from: 0, to: stored.table.parts(), parts: vec![own] };
            *self.list_mut() = vec![all];
            (self.parts, self.elements) = (1, left as u64);
            PartLocation::Own(0, 0)
        };
        effective.extend(found.effective);
        if left == 0 {
            self.drop_part(stored, location)?;
            return Ok((found.taken, counts));
        }
        if found.has_put {
            self.split(location)?;
        }
        if counts.removed > 0 {
            self.join(stored, location)?;
        }
        Ok((found.taken, counts))
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
                self.list_mut().insert(at, Replaced { from: child, to: child + 1, parts });
                Ok(PartLocation::Own(at, 0))
            }
            PartLocation::Own(range, part) => {
                let old = std::mem::replace(&mut self.own_mut(range, part).bytes, bytes);
                if Arc::strong_count(&old) > 1 {
                    self.kept_bytes += old.len();
                }
                Ok(location)
            }
        }
    }

    /// The list of changed parts. It is copied if a view has it.
    fn list_mut(&mut self) -> &mut Vec<Replaced> {
        if Arc::strong_count(&self.replaced) > 1 {
            let parts = self.replaced.iter().map(|range| range.parts.len()).sum::<usize>();
            self.kept_bytes +=
                self.replaced.len() * size_of::<Replaced>() + parts * size_of::<OwnPart>();
        }
        Arc::make_mut(&mut self.replaced)
    }

    /// The bytes that only views of earlier states keep, since the last call.
    pub(crate) fn take_kept_bytes(&mut self) -> usize {
        std::mem::take(&mut self.kept_bytes)
    }

    fn range_mut(&mut self, range: usize) -> &mut Replaced {
        guaranteed(self.list_mut().get_mut(range), LOCATED)
    }

    fn own_mut(&mut self, range: usize, part: usize) -> &mut OwnPart {
        guaranteed(self.range_mut(range).parts.get_mut(part), LOCATED)
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
            self.range_mut(range).parts.insert(at + 1, other);
            self.parts += 1;
            end += 1;
            invariant!(self.parts <= PARTS_MAX, "a collection is divided into {}", self.parts);
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
        invariant!(self.parts > 0, "the part of a collection without parts is dropped");
        let parts = &mut self.range_mut(range).parts;
        invariant!(at < parts.len(), "part {at} of {} is dropped", parts.len());
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
            let taken = self.list_mut().remove(range);
            let before = self.range_mut(range - 1);
            let at = before.parts.len();
            before.parts.extend(taken.parts);
            before.to = taken.to;
            return Ok((range - 1, at));
        }
        let part = self.stored_part(stored, from - 1)?;
        let range_mut = self.range_mut(range);
        range_mut.parts.insert(0, part);
        range_mut.from = from - 1;
        Ok((range, 1))
    }

    /// Extends a range by the part after it.
    fn absorb_right(&mut self, stored: StoredParts<'_>, range: usize) -> Result<()> {
        let to = guaranteed(self.replaced.get(range), LOCATED).to;
        if self.replaced.get(range + 1).is_some_and(|next| next.from == to) {
            let taken = self.list_mut().remove(range + 1);
            let range = self.range_mut(range);
            range.parts.extend(taken.parts);
            range.to = taken.to;
            return Ok(());
        }
        let part = self.stored_part(stored, to)?;
        let range = self.range_mut(range);
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
        self.range_mut(range).parts.remove(right);
        invariant!(self.parts > 1, "a part is joined with itself");
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
        for range in self.replaced.iter() {
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
