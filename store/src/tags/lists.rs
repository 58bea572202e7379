//! Lists of postings within a transaction: the search for the part that covers a record, changes,
//! and iteration over all parts (`postings.rs` defines the format).

use nearstate_memory::Corruption;
use nearstate_model::invariant::guaranteed;
use nearstate_model::{Result, invariant};

use crate::index::internal::{depth_index, list_key, name_part};
use crate::index::ordered::ReadMode;
use crate::index::postings::{
    DEPTH_MAX, PART_BYTES, Posting, PostingsPart, above, compose, end_of, low, sibling, start_of,
};
use crate::index::scratch::{List, PartGuess};
use crate::tags::nodes::OwnWrite;
use crate::txn::write_set::WriteSet;

/// The largest number of parts that a search reads. Each read after the first follows a split or a
/// join, at most one per level of depth. More reads mean that other sessions change the list all
/// the time, or that it is damaged.
const READS_MAX: usize = 4 * DEPTH_MAX as usize;

const NO_PART: Corruption = Corruption("no part of a tag's postings covers a record");
const TRACKED: &str = "a tracked part has an entry in the transaction";
const NO_HALF: Corruption = Corruption("a part of a tag's postings lacks its other half");

/// The part that covers a hash.
struct ListPosition {
    number: u32,
    /// Its entry in the transaction, if it is tracked.
    index: Option<usize>,
    /// False if the list is empty.
    exists: bool,
}

impl List {
    /// Selects the list of a value.
    #[inline]
    pub(crate) fn begin(&mut self, namespace: u32, tag: u8, value: &[u8]) {
        list_key(namespace, tag, value, &mut self.key);
        self.depth_index = depth_index(&self.key);
    }

    /// The part that probably covers a hash.
    #[inline]
    pub(crate) fn guess(&mut self, set: &WriteSet<'_>, hash: u64) -> PartGuess {
        let number = low(hash, set.session.internal.depth_of(self.depth_index));
        name_part(number, &mut self.key);
        PartGuess { number, hash: set.session.hash(&self.key) }
    }

    /// Finds the part that covers a hash, and calls `read` with it. Only that part is tracked, if
    /// requested. `guess` is any part of the list: the search begins there.
    fn seek(
        &mut self,
        set: &mut WriteSet<'_>,
        (hash, guess): (u64, Option<PartGuess>),
        mode: ReadMode,
        mut read: impl FnMut(PostingsPart<'_>),
    ) -> Result<ListPosition> {
        let table = set.session.internal_table()?;
        let PartGuess { mut number, hash: mut lookup } = match guess {
            Some(guess) => guess,
            None => self.guess(set, hash),
        };
        name_part(number, &mut self.key);
        for _ in 0..READS_MAX {
            debug_assert!(lookup == set.session.hash(&self.key), "a guess has its part's hash");
            let index = set.find_entry(table, lookup, &self.key);
            let (mut seen, mut part) = (None, None);
            match set.own(index) {
                OwnWrite::Written => part = Some(PostingsPart::parse(set.own_value(index))?),
                OwnWrite::Deleted => {}
                OwnWrite::None => {
                    let internal = set.session.member.table(table)?;
                    let found = set.session.member.lookup_small(internal, lookup, &self.key)?;
                    seen = Some(found.token);
                    part = found.record.map(|(_, bytes)| PostingsPart::parse(bytes)).transpose()?;
                }
            }
            let next = match part {
                None if number == 0 => None,
                None => Some(above(number)),
                Some(part) => {
                    let next = part.step(number, hash);
                    if next.is_none() {
                        set.session.internal.set_depth(self.depth_index, part.depth);
                        read(part);
                    }
                    next
                }
            };
            if let Some(next) = next {
                number = next;
                name_part(number, &mut self.key);
                lookup = set.session.hash(&self.key);
                continue;
            }
            let exists = part.is_some();
            invariant!(exists || number == 0, "part {number} is missing");
            let index = match (mode, seen) {
                (ReadMode::Tracked, Some(seen)) => {
                    Some(set.track(index, (table, lookup, &self.key), seen)?)
                }
                _ => index,
            };
            invariant!(
                mode == ReadMode::Untracked || index.is_some(),
                "a tracked part has an entry"
            );
            return Ok(ListPosition { number, index, exists });
        }
        let detail = "a tag's list of postings, which changes constantly; if no session changes \
                      it, check the region"
            .to_owned();
        Err(set.buffers.conflict(detail))
    }

    /// Adds a record. False if the list contains it already. `guess` is the part that probably
    /// covers it, if the caller knows that.
    pub(crate) fn insert(
        &mut self,
        set: &mut WriteSet<'_>,
        posting: Posting<'_>,
        guess: Option<PartGuess>,
    ) -> Result<bool> {
        let mut next = std::mem::take(&mut self.next);
        let (mut found, mut weight) = (Ok(None), 0);
        let position = self.seek(set, (posting.hash, guess), ReadMode::Tracked, |part| {
            found = part.find(posting);
            part.with(posting, &mut next);
            weight = next.len();
        });
        let done = position.and_then(|position| {
            let index = guaranteed(position.index, TRACKED);
            if found?.is_some() {
                return Ok(false);
            }
            invariant!(position.exists == (weight > 0), "an existing part was composed");
            if !position.exists {
                PostingsPart { depth: 0, entries: &[] }.with(posting, &mut next);
            } else if self.split(set, (position.number, index), &next)? {
                return Ok(true);
            }
            invariant!(next.len() > 1, "a part with a record has an entry");
            set.put(index, &next, &[])?;
            Ok(true)
        });
        self.next = next;
        done
    }

    /// Splits a part if it is too large. False if it was not split.
    #[inline]
    fn split(
        &mut self,
        set: &mut WriteSet<'_>,
        (number, index): (u32, usize),
        bytes: &[u8],
    ) -> Result<bool> {
        if bytes.len() <= PART_BYTES {
            return Ok(false);
        }
        self.split_large(set, (number, index), PostingsPart::parse(bytes)?)
    }

    #[cold]
    fn split_large(
        &mut self,
        set: &mut WriteSet<'_>,
        (number, index): (u32, usize),
        part: PostingsPart<'_>,
    ) -> Result<bool> {
        let session = set.session;
        if !part.split(|key| session.hash(key), (&mut self.stay, &mut self.other))? {
            return Ok(false);
        }
        name_part(sibling(number, part.depth), &mut self.key);
        let new = set.internal_entry(&self.key)?;
        if set.internal_at(new)?.is_some() {
            return Err(NO_PART.into());
        }
        invariant!(new != index, "the halves of part {number} are two records");
        set.put(new, &self.other, &[])?;
        set.put(index, &self.stay, &[])?;
        Ok(true)
    }

    /// Removes a record. False if the list does not contain it. `guess` is as in [`List::insert`].
    pub(crate) fn remove(
        &mut self,
        set: &mut WriteSet<'_>,
        posting: Posting<'_>,
        guess: Option<PartGuess>,
    ) -> Result<bool> {
        let mut next = std::mem::take(&mut self.next);
        let mut found = Ok(None);
        let position = self.seek(set, (posting.hash, guess), ReadMode::Tracked, |part| {
            found = part.find(posting).map(|found| {
                found.map(|entry| {
                    part.without(entry, &mut next);
                    part.depth
                })
            });
        });
        let done = position.and_then(|position| {
            let index = guaranteed(position.index, TRACKED);
            let Some(depth) = found? else { return Ok(false) };
            invariant!(!next.is_empty(), "a part without the record was composed");
            if next.len() == 1 {
                self.join(set, (position.number, index), depth)?;
            } else {
                set.put(index, &next, &[])?;
            }
            Ok(true)
        });
        self.next = next;
        done
    }

    /// Joins an empty part with its other half, and repeats this with the result while one of two
    /// halves is empty.
    fn join(
        &mut self,
        set: &mut WriteSet<'_>,
        (mut number, mut index): (u32, usize),
        mut depth: u8,
    ) -> Result<()> {
        let mut entries = Vec::new();
        while depth > 0 {
            invariant!(depth <= DEPTH_MAX, "a part of depth {depth}");
            let bit = sibling(0, depth - 1);
            name_part(number ^ bit, &mut self.key);
            let half = set.internal_entry(&self.key)?;
            let part = PostingsPart::parse(set.internal_at(half)?.ok_or(NO_HALF)?)?;
            if part.depth != depth || !(part.entries.is_empty() || entries.is_empty()) {
                break;
            }
            if entries.is_empty() {
                entries.extend_from_slice(part.entries);
            }
            // The half with the lower number remains.
            let (lower, upper) = if number & bit == 0 { (index, half) } else { (half, index) };
            invariant!(lower != upper, "two halves are two records");
            set.delete(upper);
            (number, index, depth) = (number & !bit, lower, depth - 1);
        }
        if depth == 0 && entries.is_empty() {
            set.delete(index);
            return Ok(());
        }
        compose(depth, &entries, &mut self.other);
        set.put(index, &self.other, &[])
    }
}

/// An iterator over the records of one value. It copies each part.
#[derive(Debug)]
pub(crate) struct ListWalk {
    list: List,
    mode: ReadMode,
    /// The start of the next part, in the order of the hashes' reversed bits; `None` at the end.
    from: Option<u64>,
    /// Keys of the current part before this position were returned with an earlier part.
    start: u64,
    entries: Vec<u8>,
    /// Bytes of the entries that were returned.
    done: usize,
}

impl ListWalk {
    pub(crate) fn new(namespace: u32, tag: u8, value: &[u8], mode: ReadMode) -> Self {
        let mut list = List::default();
        list.begin(namespace, tag, value);
        Self { list, mode, from: Some(0), start: 0, entries: Vec::new(), done: 0 }
    }

    /// Writes the key of the next record to `out`, cleared first. False at the end.
    pub(crate) fn next(&mut self, set: &mut WriteSet<'_>, out: &mut Vec<u8>) -> Result<bool> {
        loop {
            let mut rest = guaranteed(self.entries.get(self.done..), "a walk stays in its part");
            while let Some(key) = PostingsPart::next(&mut rest)? {
                let done = self.entries.len() - rest.len();
                invariant!(done > self.done, "a walk advances from {} to {done}", self.done);
                self.done = done;
                // If parts were joined during the walk, a part repeats keys of the previous one.
                if self.start == 0 || set.session.hash(key).reverse_bits() >= self.start {
                    out.clear();
                    out.extend_from_slice(key);
                    return Ok(true);
                }
            }
            let Some(from) = self.from else { return Ok(false) };
            self.fetch(set, from)?;
        }
    }

    fn fetch(&mut self, set: &mut WriteSet<'_>, from: u64) -> Result<()> {
        let Self { list, entries, .. } = self;
        let mut depth = 0;
        entries.clear();
        let position = list.seek(set, (from.reverse_bits(), None), self.mode, |part| {
            entries.clear();
            entries.extend_from_slice(part.entries);
            depth = part.depth;
        })?;
        self.done = 0;
        self.start = if start_of(position.number) == from { 0 } else { from };
        self.from = if position.exists { end_of(position.number, depth) } else { None };
        invariant!(self.from.is_none_or(|next| next > from), "a walk advances from {from:#x}");
        Ok(())
    }
}

/// Checks the parts of one value, for the offline check of a region. Calls `each` with every key;
/// returns the number of parts.
pub(crate) fn check_list(
    set: &mut WriteSet<'_>,
    list: &mut List,
    each: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<usize> {
    let (mut from, mut parts) = (Some(0_u64), 0);
    while let Some(at) = from {
        let (mut entries, mut depth) = (Vec::new(), 0);
        let position = list.seek(set, (at.reverse_bits(), None), ReadMode::Untracked, |part| {
            entries = part.entries.to_vec();
            depth = part.depth;
        })?;
        if !position.exists || start_of(position.number) != at {
            return Err(Corruption("the parts of a tag's postings have a gap or overlap").into());
        }
        let mut rest = entries.as_slice();
        while let Some(key) = PostingsPart::next(&mut rest)? {
            if low(set.session.hash(key), depth) != position.number {
                return Err(Corruption("a tag's postings have a key in the wrong part").into());
            }
            each(key)?;
        }
        parts += 1;
        from = end_of(position.number, depth);
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nearstate_memory::CreateOptions;

    use super::*;
    use crate::index::internal::list_prefix;
    use crate::index::schema::TagSchema;
    use crate::record::Kind;
    use crate::session::{Namespace, Region, Schema, Session};
    use crate::{Metadata, Values};

    fn found(session: &Session, ns: Namespace, value: &[u8]) -> BTreeSet<Vec<u8>> {
        let (mut plain, mut tracked) = (BTreeSet::new(), BTreeSet::new());
        let values = Values::Equal(value);
        session
            .find_all(ns, "dnn", values, |view| {
                assert!(plain.insert(view.key().to_vec()), "returned twice");
                true
            })
            .unwrap();
        if plain.len() > 500 {
            return plain; // More than a transaction can read.
        }
        session
            .transact(|txn| {
                tracked.clear();
                txn.find_all(ns, "dnn", values, |key| tracked.insert(key.to_vec()))
            })
            .unwrap();
        assert_eq!(plain, tracked);
        plain
    }

    fn parts(session: &Session, ns: Namespace) -> usize {
        let internal = Namespace { index: session.internal_table().unwrap(), kind: Kind::Value };
        let (mut prefix, mut count) = (Vec::new(), 0);
        list_prefix(ns.index, 0, &mut prefix);
        session
            .each_stored(internal, &mut |cell| {
                count += usize::from(cell.key()?.starts_with(&prefix));
                Ok(())
            })
            .unwrap();
        count
    }

    /// A value with a hundred records and one with thousands; all are removed in another order.
    #[test]
    fn a_list_grows_and_shrinks_with_its_records_and_ends_with_the_last() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("region");
        let region = Region::create(&path, &CreateOptions::default()).unwrap();
        let (session, other) = (region.session().unwrap(), region.session().unwrap());
        let tag = TagSchema { name: "dnn".to_owned(), ..TagSchema::default() };
        let schema = Schema { tags: vec![tag], ..Schema::default() };
        let ns = session.namespace("n", &schema).unwrap();
        let value = |number: u32| if number.is_multiple_of(40) { b"ims" } else { b"web" };
        let key = |number: u32| format!("imsi-{number:06}").into_bytes();
        let mut wanted = [BTreeSet::new(), BTreeSet::new()];
        for number in 0..4000 {
            let metadata = Metadata { tags: &[("dnn", value(number))], expires_ms: 0 };
            let put =
                |s: &Session| s.transact(|t| t.put_with_metadata(ns, &key(number), b"v", metadata));
            put(if number.is_multiple_of(2) { &session } else { &other }).unwrap();
            wanted[usize::from(value(number) == b"ims")].insert(key(number));
        }
        assert_eq!(found(&session, ns, b"web"), wanted[0]);
        assert_eq!(found(&other, ns, b"ims"), wanted[1]);
        let full = parts(&session, ns);
        assert!(full > 200, "{full} parts of 4000 records");
        for step in 0..4000_u32 {
            let number = step * 1237 % 4000;
            assert!(session.delete(ns, &key(number)).unwrap());
            wanted[usize::from(value(number) == b"ims")].remove(&key(number));
            if step % 500 == 0 || step > 3990 {
                assert_eq!(found(&other, ns, b"web"), wanted[0]);
                assert_eq!(found(&session, ns, b"ims"), wanted[1]);
            }
        }
        assert_eq!(parts(&session, ns), 0);
        drop((session, other));
        drop(region);
        let report = crate::check(&path).unwrap();
        assert!(report.is_clean(), "{report:?}");
    }

    /// A missing posting, an extra one, and a missing part are found.
    #[test]
    fn the_check_finds_missing_and_extra_postings() {
        type Damage = fn(&mut WriteSet<'_>, u32);
        let damages: [Damage; 3] = [
            |set, ns| {
                let mut list = List::default();
                list.begin(ns, 0, b"web");
                let key = b"imsi-000007".as_slice();
                let hash = set.session.hash(key);
                assert!(list.remove(set, Posting { hash, key }, None).unwrap());
            },
            |set, ns| {
                let mut list = List::default();
                list.begin(ns, 0, b"web");
                let key = b"missing".as_slice();
                let hash = set.session.hash(key);
                assert!(list.insert(set, Posting { hash, key }, None).unwrap());
            },
            |set, ns| {
                let mut key = Vec::new();
                list_key(ns, 0, b"web", &mut key);
                name_part(1, &mut key);
                set.delete_internal(&key).unwrap();
            },
        ];
        for (number, damage) in damages.into_iter().enumerate() {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("region");
            let region = Region::create(&path, &CreateOptions::default()).unwrap();
            let session = region.session().unwrap();
            let tag = TagSchema { name: "dnn".to_owned(), ..TagSchema::default() };
            let schema = Schema { tags: vec![tag], ..Schema::default() };
            let ns = session.namespace("n", &schema).unwrap();
            for number in 0..100 {
                let (key, metadata) = (
                    format!("imsi-{number:06}"),
                    Metadata { tags: &[("dnn", b"web")], expires_ms: 0 },
                );
                session
                    .transact(|t| t.put_with_metadata(ns, key.as_bytes(), b"v", metadata))
                    .unwrap();
            }
            let mut set = WriteSet::new(&session).unwrap();
            damage(&mut set, ns.index);
            set.commit().unwrap();
            drop(set);
            drop(session);
            drop(region);
            let report = crate::check(&path).unwrap();
            assert!(!report.is_clean(), "damage {number} is not found");
        }
    }
}
