//! Maintains the indexes of tags: the changes that a commit adds for the tags of its records.
//! The postings and nodes are records of the same transaction, so an index always agrees with its
//! records.

use std::sync::Arc;

use nearstate_memory::Corruption;
use nearstate_memory::layout::namespace_flags;
use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::{
    INDEX_KEY_BYTES_MAX, KEY_BYTES_MAX, TAG_VALUE_BYTES_MAX, TRANSACTION_RECORDS_MAX,
};
use nearstate_model::{Error, Result, invariant};

use crate::index::internal::{
    POSTING_VALUE_AT, STRIPES, append_posting_key, count_key, expiry_root, posting_key, tag_root,
};
use crate::index::ordered::composite;
use crate::index::postings::Posting;
use crate::index::schema::{Tag, TagSet};
use crate::index::scratch::{CollectedValue, IndexScratch, MetaChange};
use crate::record::meta::{Meta, Tags, is_past, split};
use crate::session::buffers::{BufferSpan, TxnEntry};
use crate::txn::write_set::WriteSet;

const NO_CHANGE: &str = "a change of metadata is named by its index";
const NO_VALUE: &str = "a change of metadata names its values";

impl<'s> WriteSet<'s> {
    /// Adds to the transaction what the tags and the expiry of its records need. Returns how many
    /// records it had before that.
    ///
    /// # Errors
    /// `TagTaken`, `BadArgument` (a required tag is missing), `TransactionTooLarge`, `Conflict`.
    #[inline]
    pub(crate) fn index_all(&mut self) -> Result<usize> {
        let written = self.buffers.entries.len();
        invariant!(written <= TRANSACTION_RECORDS_MAX, "a transaction of {written} entries");
        self.buffers.is_validated_later = true;
        let mut seen = 0;
        for place in 0..written {
            seen |= self.load_flags(place)?;
        }
        if seen & (namespace_flags::TAGGED | namespace_flags::EXPIRING) == 0 {
            return Ok(written);
        }
        let mut scratch = std::mem::take(&mut self.buffers.scratch);
        let done = self.index_written(written, &mut scratch);
        self.buffers.scratch = scratch;
        match done {
            Ok(()) => Ok(written),
            Err(error @ Error::Conflict { .. }) => Err(error),
            // The reads for the indexes do not show one instant: the result may be wrong.
            Err(error) => Err(self.torn_or(error)?),
        }
    }

    /// The flags of a written record's namespace.
    fn load_flags(&mut self, place: usize) -> Result<u64> {
        let entry = self.entry_at(place);
        if entry.write.is_none() {
            return Ok(0);
        }
        // Keys of callers were checked. One that comes from an index may be damaged.
        if self.key(place).len() > KEY_BYTES_MAX {
            return Err(Corruption("an index names a key that no record can have").into());
        }
        let (table, meta) = (entry.table, entry.meta);
        let mut seen = self.session.member.namespace_flags(table)?;
        let expires = meta.is_some_and(|span| ends(self.buffers.bytes(span)) != 0);
        if expires && seen & namespace_flags::EXPIRING == 0 {
            let raised = |word| word | namespace_flags::EXPIRING;
            seen = self.session.member.update_namespace_flags(table, raised)?;
        }
        invariant!(
            !expires || seen & namespace_flags::EXPIRING != 0,
            "a namespace with an expiring record has the flag for it"
        );
        self.entry_mut(place).flags = seen;
        Ok(seen)
    }

    fn index_written(&mut self, written: usize, scratch: &mut IndexScratch) -> Result<()> {
        scratch.begin();
        for place in 0..written {
            self.collect_changes(place, scratch)?;
        }
        invariant!(
            self.buffers.entries.len() == written,
            "collecting the changes of {written} entries adds none"
        );
        invariant!(
            scratch.changes.len() <= written,
            "{} of {written} entries change",
            scratch.changes.len()
        );
        invariant!(
            scratch.changes.is_sorted_by(|one, next| one.place < next.place),
            "each entry changes once"
        );
        // Tags are taken away from all records before any is given, so that a value can go from one
        // record to another.
        if !scratch.old_values.is_empty() {
            for number in 0..scratch.changes.len() {
                self.remove_old_values(number, scratch)?;
            }
        }
        for number in 0..scratch.changes.len() {
            self.add_new_values(number, scratch)?;
        }
        Ok(())
    }

    /// The tags of a namespace, which the scratch memory keeps for the next record of it. A schema
    /// that changes meanwhile changes the flags of the namespace, and the commit is refused.
    #[inline]
    fn tag_set_of(&self, table: u32, scratch: &mut IndexScratch) -> Result<Arc<TagSet>> {
        match scratch.tags.take() {
            Some((known, tags)) if known == table => Ok(tags),
            _ => self.session.tag_set(table),
        }
    }

    /// What a written record has, and what it is to have, beside its value; `None` if all of it
    /// stays as it is.
    fn change_of_meta(&mut self, place: usize) -> Result<Option<(&'s [u8], BufferSpan)>> {
        let entry = self.entry_at(place);
        if entry.write.is_none()
            || entry.flags & (namespace_flags::TAGGED | namespace_flags::EXPIRING) == 0
        {
            return Ok(None);
        }
        let meta = entry.meta;
        let old = self.old_meta(place)?;
        match meta {
            // A patch keeps what the record has; a new one has nothing.
            None if self.read_again(place)?.is_some() => Ok(None),
            None => Ok(Some((old, BufferSpan::default()))),
            // The same tags and the same end: everything is where it belongs.
            Some(new) if !old.is_empty() && old == self.buffers.bytes(new) => Ok(None),
            Some(new) => Ok(Some((old, new))),
        }
    }

    /// Notes which values a record loses and gets, and asks for the lines that this will need:
    /// their misses overlap.
    fn collect_changes(&mut self, place: usize, scratch: &mut IndexScratch) -> Result<()> {
        let Some((old, new)) = self.change_of_meta(place)? else { return Ok(()) };
        let TxnEntry { table, hash: record, .. } = self.entry_at(place);
        let (table, record, new) = (*table, *record, self.buffers.bytes(new));
        let from = (scratch.old_values.len(), scratch.new_values.len());
        if !(old.is_empty() && new.is_empty()) {
            let set = self.tag_set_of(table, scratch)?;
            for (name, value) in pairs(old) {
                // A tag that the namespace has not declared has no index.
                let Some(tag) = set.named(name) else { continue };
                if new.is_empty() || pairs(new).all(|kept| kept != (name, value)) {
                    let lost = self.collect_value(record, (table, tag), value, scratch)?;
                    scratch.old_values.push(lost);
                }
            }
            for (name, value) in pairs(new) {
                let Some(tag) = set.named(name) else { continue };
                invariant!(value.len() <= TAG_VALUE_BYTES_MAX, "a value of {} bytes", value.len());
                if old.is_empty() || pairs(old).all(|pair| pair != (name, value)) {
                    let gained = self.collect_value(record, (table, tag), value, scratch)?;
                    scratch.new_values.push(gained);
                }
            }
            scratch.tags = Some((table, set));
        }
        scratch.changes.push(MetaChange {
            place,
            was_ms: ends(old),
            old: (from.0, scratch.old_values.len()),
            new: (from.1, scratch.new_values.len()),
        });
        Ok(())
    }

    /// Notes a value, and asks for the bucket of its posting, or of the part of its list that the
    /// record is probably in.
    fn collect_value(
        &self,
        record: u64,
        (table, tag): (u32, &Tag),
        value: &[u8],
        scratch: &mut IndexScratch,
    ) -> Result<CollectedValue> {
        let IndexScratch { collected, list, .. } = scratch;
        let member = &self.session.member;
        let index = member.table(self.session.internal_table()?)?;
        let key_at = collected.len();
        if tag.is_unique {
            append_posting_key(table, tag.id, value, collected);
            let hash = self.session.hash(collected.get(key_at..).unwrap_or_default());
            member.prefetch_bucket(index, hash);
            let value = (key_at + POSTING_VALUE_AT, collected.len());
            return Ok(CollectedValue { tag: tag.id, value, key_at, hash });
        }
        collected.extend_from_slice(value);
        if tag.has_lists() {
            list.begin(table, tag.id, value);
            let (_, key) = list.guess(self, record);
            member.prefetch_bucket(index, self.session.hash(key));
        }
        Ok(CollectedValue { tag: tag.id, value: (key_at, collected.len()), key_at, hash: 0 })
    }

    /// Takes away what a record has and is not to keep.
    fn remove_old_values(&mut self, number: usize, scratch: &mut IndexScratch) -> Result<()> {
        let MetaChange { place, old: (from, to), .. } =
            *guaranteed(scratch.changes.get(number), NO_CHANGE);
        if from == to {
            return Ok(());
        }
        let entry = self.entry_at(place);
        let table = entry.table;
        scratch.set_record(entry.hash, self.buffers.bytes(entry.key));
        let set = self.tag_set_of(table, scratch)?;
        let collected = std::mem::take(&mut scratch.collected);
        for index in from..to {
            let old = *guaranteed(scratch.old_values.get(index), NO_VALUE);
            let Some(tag) = set.numbered(old.tag) else { continue };
            let posting = (old.hash, old.key(&collected));
            self.remove_value((table, tag), old.of(&collected), posting, scratch)?;
        }
        scratch.collected = collected;
        scratch.tags = Some((table, set));
        Ok(())
    }

    /// Gives a record what it is to have and has not.
    fn add_new_values(&mut self, number: usize, scratch: &mut IndexScratch) -> Result<()> {
        let MetaChange { place, was_ms, new: (from, to), .. } =
            *guaranteed(scratch.changes.get(number), NO_CHANGE);
        let entry = self.entry_at(place);
        if entry.write.is_delete() {
            return Ok(());
        }
        let table = entry.table;
        scratch.set_record(entry.hash, self.buffers.bytes(entry.key));
        let new = self.buffers.bytes(entry.meta.unwrap_or_default());
        let is_ms = ends(new);
        let set = self.tag_set_of(table, scratch)?;
        for tag in set.required() {
            if !pairs(new).any(|(name, _)| name == tag.name.as_bytes()) {
                return Err(Error::BadArgument {
                    detail: format!("the tag {:?} is required: give the record one", tag.name),
                });
            }
        }
        if is_ms != 0 && (was_ms == 0 || was_ms > is_ms) {
            self.order_expiry(table, is_ms, scratch)?;
        }
        let collected = std::mem::take(&mut scratch.collected);
        for index in from..to {
            let new = *guaranteed(scratch.new_values.get(index), NO_VALUE);
            // The declaration may have been given up meanwhile: then the commit is refused,
            // because the flags of the namespace have changed.
            let Some(tag) = set.numbered(new.tag) else { continue };
            let value = new.of(&collected);
            if tag.is_unique && !tag.is_ordered && !tag.is_counted {
                let posting = (new.hash, new.key(&collected));
                self.add_posting((table, tag), value, posting, scratch)?;
            } else {
                self.add_value(table, tag, value, scratch)?;
            }
        }
        scratch.collected = collected;
        scratch.tags = Some((table, set));
        Ok(())
    }

    /// What the record has beside its value as the region has it; empty if nothing or no record.
    pub(crate) fn old_meta(&mut self, place: usize) -> Result<&'s [u8]> {
        let stored = self.read_again(place)?;
        Ok(match stored {
            Some((cell, bytes)) => split(cell, bytes)?.1,
            None => &[],
        })
    }

    /// Enters a record's value of a tag.
    pub(crate) fn add_value(
        &mut self,
        table: u32,
        tag: &Tag,
        value: &[u8],
        scratch: &mut IndexScratch,
    ) -> Result<()> {
        let mut is_new = true;
        if tag.is_unique {
            let mut key = std::mem::take(&mut scratch.key);
            posting_key(table, tag.id, value, &mut key);
            let given =
                self.add_posting((table, tag), value, (self.session.hash(&key), &key), scratch);
            scratch.key = key;
            is_new = given?;
        }
        if tag.has_lists() {
            scratch.list.begin(table, tag.id, value);
            let posting = Posting { hash: scratch.hash, key: &scratch.record };
            is_new = scratch.list.insert(self, posting)?;
        }
        if tag.is_ordered {
            scratch.key.clear();
            composite(value, &scratch.record, &mut scratch.key);
            is_new = scratch.ordered.insert(self, tag_root(table, tag.id), &scratch.key)?;
        }
        if tag.is_counted && is_new {
            self.count((table, tag.id), value, 1, scratch)?;
        }
        Ok(())
    }

    /// Enters the posting of a unique value. False if it is there already.
    fn add_posting(
        &mut self,
        (table, tag): (u32, &Tag),
        value: &[u8],
        (hash, key): (u64, &[u8]),
        scratch: &mut IndexScratch,
    ) -> Result<bool> {
        let mut place = self.internal_place_of(hash, key)?;
        if let Some(holder) = self.internal_at(place)? {
            if holder == scratch.record {
                return Ok(false);
            }
            let holder = holder.to_vec();
            if !self.evict(table, &holder, scratch)? {
                return Err(Error::TagTaken {
                    tag: tag.name.clone(),
                    value: String::from_utf8_lossy(value).into_owned(),
                    holder: String::from_utf8_lossy(&holder).into_owned(),
                });
            }
            place = self.internal_place_of(hash, key)?;
        }
        if !nearstate_memory::crash::is_planted("forget-posting") {
            self.put(place, &scratch.record, &[])?;
        }
        Ok(true)
    }

    /// Takes a record's value of a tag away. `posting` is the hash and the key of the posting, if
    /// the tag is unique.
    fn remove_value(
        &mut self,
        (table, tag): (u32, &Tag),
        value: &[u8],
        (hash, key): (u64, &[u8]),
        scratch: &mut IndexScratch,
    ) -> Result<()> {
        let mut is_there = true;
        if tag.is_unique {
            let place = self.internal_place_of(hash, key)?;
            is_there = self.internal_at(place)? == Some(scratch.record.as_slice());
            if is_there {
                self.delete(place);
            }
        }
        if tag.has_lists() {
            scratch.list.begin(table, tag.id, value);
            let posting = Posting { hash: scratch.hash, key: &scratch.record };
            is_there = scratch.list.remove(self, posting)?;
        }
        if tag.is_ordered {
            scratch.key.clear();
            composite(value, &scratch.record, &mut scratch.key);
            is_there = scratch.ordered.remove(self, tag_root(table, tag.id), &scratch.key)?;
        }
        if tag.is_counted && is_there {
            self.count((table, tag.id), value, -1, scratch)?;
        }
        Ok(())
    }

    /// A holder of a unique value whose time has passed gives way: it is deleted with all its tags.
    /// False if it is there by right.
    fn evict(&mut self, table: u32, holder: &[u8], scratch: &mut IndexScratch) -> Result<bool> {
        let hash = self.session.hash(holder);
        let (place, stored) = self.read(table, hash, holder)?;
        let meta = match stored {
            Some((cell, bytes)) => split(cell, bytes)?.1,
            None => return Ok(false),
        };
        if self.is_written(place) || !is_past(meta)? {
            return Ok(false);
        }
        self.delete(place);
        self.entry_mut(place).is_expiry = true;
        self.load_flags(place)?;
        let ours = std::mem::replace(&mut scratch.record, holder.to_vec());
        let our_hash = std::mem::replace(&mut scratch.hash, hash);
        let set = self.session.tag_set(table)?;
        for tag in set.tags().filter(|tag| tag.is_kept()) {
            for value in values(meta, &tag.name) {
                let mut key = Vec::new();
                posting_key(table, tag.id, value, &mut key);
                let posting = (self.session.hash(&key), key.as_slice());
                self.remove_value((table, tag), value, posting, scratch)?;
            }
        }
        (scratch.record, scratch.hash) = (ours, our_hash);
        Ok(true)
    }

    fn count(
        &mut self,
        (table, tag): (u32, u8),
        value: &[u8],
        change: i64,
        scratch: &mut IndexScratch,
    ) -> Result<()> {
        invariant!(change == 1 || change == -1, "a value is counted once: {change}");
        let [own, ..] = (self.session.member.index() % u32::from(STRIPES)).to_le_bytes();
        // A stripe that this session added to if there is one, so that sessions do not conflict.
        // The session that removes a value may not be the one that added it: then it takes the
        // value from another stripe, so that none stays behind below zero.
        let mut stripe = own;
        let mut before = self.stripe_count((table, tag), stripe, value, scratch)?;
        for other in (1..STRIPES).map(|step| (own + step) % STRIPES) {
            if change > 0 || before > 0 {
                break;
            }
            let count = self.stripe_count((table, tag), other, value, scratch)?;
            if count > 0 {
                (stripe, before) = (other, count);
            }
        }
        // A tag that is being declared may not have counted the record yet: only then a stripe
        // falls below zero.
        count_key(table, tag, stripe, value, &mut scratch.key);
        match before.wrapping_add(change) {
            0 => self.delete_internal(&scratch.key),
            after => self.put_internal(&scratch.key, &after.to_le_bytes()),
        }
    }

    /// The number in a stripe of a count, 0 if there is none.
    fn stripe_count(
        &mut self,
        (table, tag): (u32, u8),
        stripe: u8,
        value: &[u8],
        scratch: &mut IndexScratch,
    ) -> Result<i64> {
        count_key(table, tag, stripe, value, &mut scratch.key);
        Ok(self.internal_value(&scratch.key, read_count)?.unwrap_or(0))
    }

    /// Enters a record into the order of expiry.
    pub(crate) fn enter_expiry(&mut self, table: u32, key: &[u8], expires_ms: u64) -> Result<()> {
        let mut scratch = IndexScratch { record: key.to_vec(), ..IndexScratch::default() };
        self.order_expiry(table, expires_ms, &mut scratch)
    }

    fn order_expiry(
        &mut self,
        table: u32,
        expires_ms: u64,
        scratch: &mut IndexScratch,
    ) -> Result<()> {
        let root = expiry_root(u64::from(self.session.member.index()));
        invariant!(expires_ms != 0, "a record that never expires is not in the order of expiry");
        scratch.key.clear();
        expiry_key(expires_ms, table, &scratch.record, &mut scratch.key);
        let bytes = scratch.key.len();
        invariant!(bytes <= INDEX_KEY_BYTES_MAX, "a key of {bytes} bytes is ordered");
        scratch.ordered.insert(self, root, &scratch.key)?;
        let expiring = &self.session.internal.expiring;
        expiring.set(expiring.get().saturating_add(1));
        Ok(())
    }
}

/// The key of a record in the order of expiry.
pub(crate) fn expiry_key(expires_ms: u64, table: u32, record: &[u8], out: &mut Vec<u8>) {
    invariant!(out.is_empty(), "a key of the order of expiry begins with the time");
    out.extend_from_slice(&expires_ms.to_be_bytes());
    out.extend_from_slice(&table.to_be_bytes());
    out.extend_from_slice(record);
}

/// The number in a stripe of a count.
pub(crate) fn read_count(bytes: &[u8]) -> i64 {
    bytes.first_chunk::<8>().map_or(0, |bytes| i64::from_le_bytes(*bytes))
}

/// When a record with this meta ends; 0: never.
pub(crate) fn ends(meta: &[u8]) -> u64 {
    if meta.is_empty() { 0 } else { Meta::split(meta).map_or(0, |(_, meta)| meta.expires_ms) }
}

/// The values of a tag.
pub(crate) fn values<'m>(meta: &'m [u8], name: &'m str) -> impl Iterator<Item = &'m [u8]> {
    let meta = if meta.is_empty() { None } else { Meta::split(meta).ok() };
    let tags = meta.map_or(Tags::none(), |(_, meta)| meta.tags());
    tags.filter_map(move |tag| tag.ok().filter(|(found, _)| *found == name).map(|(_, value)| value))
}

/// The tags in meta, with the bytes of their names; none behind damage.
#[inline]
fn pairs(meta: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let meta = if meta.is_empty() { None } else { Meta::split(meta).ok() };
    meta.map_or(Tags::none(), |(_, meta)| meta.tags()).pairs()
}
