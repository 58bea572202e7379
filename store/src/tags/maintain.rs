//! Maintenance of indexes: a commit adds the changes of postings and nodes for the tags and expiry
//! times of its records. They are records of the same transaction, so an index always agrees with
//! its records.

use std::sync::Arc;

use nearstate_memory::layout::namespace_flags;
use nearstate_memory::{BucketLine, Corruption, IndexTable};
use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::{APPLIED_RECORDS_MAX, KEY_BYTES_MAX, TAG_VALUE_BYTES_MAX};
use nearstate_model::{Error, Result, invariant};

use crate::index::internal::{
    POSTING_VALUE_AT, STRIPES, append_posting_key, count_key, posting_key, tag_root,
};
use crate::index::ordered::composite;
use crate::index::postings::Posting;
use crate::index::schema::{Tag, TagSet};
use crate::index::scratch::{CollectedValue, IndexScratch, MetaChange, PartGuess};
use crate::record::meta::{Meta, Tags, is_past, split};
use crate::session::buffers::{BufferSpan, TxnEntry};
use crate::txn::write_set::WriteSet;

mod expiry_entries;

pub(crate) use expiry_entries::expiry_key;

const NO_CHANGE: &str = "a change of metadata is named by its index";
/// Lines of a posting, or of a part of a list, that are requested before it is read.
const POSTING_LINES: u64 = 2;
const NO_VALUE: &str = "a change of metadata names its values";

impl<'s> WriteSet<'s> {
    /// Adds the changes of indexes for the tags and the expiry of the transaction's records.
    /// Returns the number of records before that.
    ///
    /// # Errors
    /// `TagTaken`, `BadArgument` (a required tag is missing), `TransactionTooLarge`, `Conflict`.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call for each transaction costs an eighth of it")]
    pub(crate) fn index_all(&mut self) -> Result<usize> {
        let written = self.buffers.entries.len();
        // A follower applies what its source has sent: the first write beyond it is refused.
        invariant!(written <= APPLIED_RECORDS_MAX, "a transaction of {written} entries");
        self.buffers.is_validated_later = true;
        for index in 0..written {
            self.load_flags(index)?;
        }
        if self.buffers.flags & (namespace_flags::TAGGED | namespace_flags::EXPIRING) == 0 {
            return Ok(written);
        }
        let mut scratch = self.buffers.take_scratch();
        let done = self.index_written(written, &mut scratch);
        self.buffers.give_scratch(scratch);
        match done {
            Ok(()) => Ok(written),
            Err(error @ Error::Conflict { .. }) => Err(error),
            // The reads of indexes were not validated, so the error may be wrong.
            Err(error) => Err(self.torn_or(error)?),
        }
    }

    /// Loads the flags of a written record's namespace into its entry.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call for each transaction costs an eighth of it")]
    fn load_flags(&mut self, index: usize) -> Result<()> {
        let entry = self.entry_at(index);
        if entry.write.is_none() {
            return Ok(());
        }
        // Keys from callers were checked. A key from an index may be damaged.
        if self.key(index).len() > KEY_BYTES_MAX {
            return Err(Corruption("an index names a key that no record can have").into());
        }
        let (table, meta) = (entry.table, entry.meta);
        let mut seen = self.session.member.namespace_flags(table)?;
        if seen & namespace_flags::FOLLOWED != 0 {
            self.session.check_may_write(table)?;
        }
        // The commit checks it again, with its locks held. Here it saves the work of the indexes.
        if seen & namespace_flags::LOGGED != 0 {
            self.session.check_not_fenced(table)?;
        }
        let expires = meta.is_some_and(|span| expires_ms(self.buffers.bytes(span)) != 0);
        if expires && seen & namespace_flags::EXPIRING == 0 {
            let raised = |word| word | namespace_flags::EXPIRING;
            seen = self.session.member.update_namespace_flags(table, raised)?;
        }
        invariant!(
            !expires || seen & namespace_flags::EXPIRING != 0,
            "a namespace with an expiring record has the flag for it"
        );
        self.entry_mut(index).flags = seen;
        self.buffers.flags |= seen;
        Ok(())
    }

    fn index_written(&mut self, written: usize, scratch: &mut IndexScratch) -> Result<()> {
        scratch.begin();
        let session = self.session;
        let internal = session.member.table(session.internal_table()?)?;
        for index in 0..written {
            self.collect_changes(index, internal, scratch)?;
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
            scratch.changes.is_sorted_by(|one, next| one.index < next.index),
            "each entry changes once"
        );
        // What is read of the index: all postings that are removed, and the parts of lists. Their
        // misses overlap, too.
        let parts = scratch.new_values.iter().filter(|value| !value.has_posting());
        for value in scratch.old_values.iter().chain(parts) {
            session.member.probe(value.bucket, POSTING_LINES);
        }
        // Values are removed from all records before any is added, so that a value can move from
        // one record to another.
        let had_expiry = scratch.changes.iter().any(|change| change.was_ms != 0);
        if had_expiry || !scratch.old_values.is_empty() {
            for number in 0..scratch.changes.len() {
                self.remove_old_values(number, scratch)?;
            }
        }
        for number in 0..scratch.changes.len() {
            self.add_new_values(number, scratch)?;
        }
        Ok(())
    }

    /// The tags of an entry's namespace, taken from the scratch buffer, to which the caller returns
    /// them with `keep_tags`. They are those of the flags in the entry: if the schema changes
    /// before the commit, the flags of the namespace change too, and the commit is refused.
    #[inline]
    fn tag_set_of(&self, index: usize, scratch: &mut IndexScratch) -> Result<Arc<TagSet>> {
        let entry = self.entry_at(index);
        match scratch.tags.take() {
            Some((table, generation, tags))
                if table == entry.table && generation == generation_of(entry) =>
            {
                Ok(tags)
            }
            _ => self.session.tag_set(entry.table),
        }
    }

    /// Returns the tags of an entry's namespace to the scratch buffer.
    #[inline]
    fn keep_tags(&self, index: usize, tags: Arc<TagSet>, scratch: &mut IndexScratch) {
        let entry = self.entry_at(index);
        scratch.tags = Some((entry.table, generation_of(entry), tags));
    }

    /// The old and the new metadata of a written record; `None` if the metadata stays the same.
    fn change_of_meta(&mut self, index: usize) -> Result<Option<(&'s [u8], BufferSpan)>> {
        let entry = self.entry_at(index);
        if entry.write.is_none()
            || entry.flags & (namespace_flags::TAGGED | namespace_flags::EXPIRING) == 0
        {
            return Ok(None);
        }
        let meta = entry.meta;
        let old = self.old_meta(index)?;
        match meta {
            // A patch keeps the metadata of an existing record; a new one has none.
            None if self.read_again(index)?.is_some() => Ok(None),
            None => Ok(Some((old, BufferSpan::default()))),
            // The same tags and expiry: no index changes.
            Some(new) if !old.is_empty() && old == self.buffers.bytes(new) => Ok(None),
            Some(new) => Ok(Some((old, new))),
        }
    }

    /// Collects the values that a record loses and gains, and prefetches the index records that
    /// will change, so that their cache misses overlap.
    fn collect_changes(
        &mut self,
        index: usize,
        internal: &IndexTable,
        scratch: &mut IndexScratch,
    ) -> Result<()> {
        let Some((old, new)) = self.change_of_meta(index)? else { return Ok(()) };
        let TxnEntry { table, hash: record, .. } = self.entry_at(index);
        let (table, record, new) = (*table, *record, self.buffers.bytes(new));
        let from = (scratch.old_values.len(), scratch.new_values.len());
        if !(old.is_empty() && new.is_empty()) {
            let set = self.tag_set_of(index, scratch)?;
            for (name, value) in pairs(old) {
                // A tag that the namespace has not declared has no index.
                let Some(tag) = set.named(name) else { continue };
                if new.is_empty() || pairs(new).all(|kept| kept != (name, value)) {
                    let lost = self.collect_value(record, (table, tag, value), internal, scratch);
                    scratch.old_values.push(lost);
                }
            }
            for (name, value) in pairs(new) {
                let Some(tag) = set.named(name) else { continue };
                invariant!(value.len() <= TAG_VALUE_BYTES_MAX, "a value of {} bytes", value.len());
                if old.is_empty() || pairs(old).all(|pair| pair != (name, value)) {
                    let gained = self.collect_value(record, (table, tag, value), internal, scratch);
                    scratch.new_values.push(gained);
                }
            }
            self.keep_tags(index, set, scratch);
        }
        scratch.changes.push(MetaChange {
            index,
            was_ms: expires_ms(old),
            old: (from.0, scratch.old_values.len()),
            new: (from.1, scratch.new_values.len()),
        });
        Ok(())
    }

    /// Collects a value, and prefetches the bucket of its posting, or of the part of its list that
    /// probably covers the record.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its answer would travel through memory")]
    fn collect_value(
        &self,
        record: u64,
        (table, tag, value): (u32, &Tag, &[u8]),
        internal: &IndexTable,
        scratch: &mut IndexScratch,
    ) -> CollectedValue {
        let IndexScratch { collected, list, .. } = scratch;
        let member = &self.session.member;
        let key_at = collected.len();
        if tag.is_unique {
            append_posting_key(table, tag.id, value, collected);
            let hash = self.session.hash(collected.get(key_at..).unwrap_or_default());
            let bucket = member.prefetch_bucket(internal, hash);
            let value = (key_at + POSTING_VALUE_AT, collected.len());
            return CollectedValue { tag: tag.id, value, key_at, bucket, part: 0 };
        }
        collected.extend_from_slice(value);
        let (mut bucket, mut part) = (BucketLine::NONE, 0);
        if tag.has_lists() {
            list.begin(table, tag.id, value);
            let guess = list.guess(self, record);
            bucket = member.prefetch_bucket(internal, guess.hash);
            part = guess.number;
        }
        CollectedValue { tag: tag.id, value: (key_at, collected.len()), key_at, bucket, part }
    }

    /// Removes the collected old values of a record from the indexes.
    fn remove_old_values(&mut self, number: usize, scratch: &mut IndexScratch) -> Result<()> {
        let MetaChange { index, was_ms, old: (from, to), .. } =
            *guaranteed(scratch.changes.get(number), NO_CHANGE);
        if from == to && was_ms == 0 {
            return Ok(());
        }
        let entry = self.entry_at(index);
        let table = entry.table;
        let never_expires = entry.write.is_delete()
            || expires_ms(self.buffers.bytes(entry.meta.unwrap_or_default())) == 0;
        scratch.set_record(entry.hash, self.buffers.bytes(entry.key));
        // A collection has removed its entry already.
        if was_ms != 0 && never_expires && !entry.is_expiry {
            self.leave_expiry(table, was_ms, scratch)?;
        }
        let set = self.tag_set_of(index, scratch)?;
        let collected = std::mem::take(&mut scratch.collected);
        for place in from..to {
            let old = *guaranteed(scratch.old_values.get(place), NO_VALUE);
            let Some(tag) = set.numbered(old.tag) else { continue };
            let posting = (old.bucket.hash(), old.key(&collected));
            let value = (old.of(&collected), old.guess());
            self.remove_value((table, tag), value, posting, scratch)?;
        }
        scratch.collected = collected;
        self.keep_tags(index, set, scratch);
        Ok(())
    }

    /// Adds the collected new values of a record, and its expiry, to the indexes.
    fn add_new_values(&mut self, number: usize, scratch: &mut IndexScratch) -> Result<()> {
        let MetaChange { index, was_ms, new: (from, to), .. } =
            *guaranteed(scratch.changes.get(number), NO_CHANGE);
        let entry = self.entry_at(index);
        if entry.write.is_delete() {
            return Ok(());
        }
        let table = entry.table;
        scratch.set_record(entry.hash, self.buffers.bytes(entry.key));
        let new = self.buffers.bytes(entry.meta.unwrap_or_default());
        let new_ms = expires_ms(new);
        let set = self.tag_set_of(index, scratch)?;
        for tag in set.required() {
            if !pairs(new).any(|(name, _)| name == tag.name.as_bytes()) {
                return Err(Error::BadArgument {
                    detail: format!("the tag {:?} is required: give the record one", tag.name),
                });
            }
        }
        // The entry of an earlier time stays: the collector moves it.
        if new_ms != 0 && (was_ms == 0 || was_ms > new_ms) {
            self.order_expiry(table, new_ms, scratch)?;
        }
        let collected = std::mem::take(&mut scratch.collected);
        for place in from..to {
            let new = *guaranteed(scratch.new_values.get(place), NO_VALUE);
            // The declaration may have been abandoned. Then the flags of the namespace have
            // changed, and the commit is refused.
            let Some(tag) = set.numbered(new.tag) else { continue };
            let value = new.of(&collected);
            if tag.is_unique && !tag.is_ordered && !tag.is_counted {
                let posting = (new.bucket.hash(), new.key(&collected));
                if !self.claim_posting(posting, &scratch.record)? {
                    self.add_posting((table, tag), value, posting, scratch)?;
                }
            } else {
                self.add_value(table, tag, (value, new.guess()), scratch)?;
            }
        }
        scratch.collected = collected;
        self.keep_tags(index, set, scratch);
        Ok(())
    }

    /// The metadata of the record's version in the region; empty without metadata or record.
    pub(crate) fn old_meta(&mut self, index: usize) -> Result<&'s [u8]> {
        let stored = self.read_again(index)?;
        Ok(match stored {
            Some((cell, bytes)) => split(cell, bytes)?.1,
            None => &[],
        })
    }

    /// Adds a record's value of a tag to its indexes. With the value comes the part of its list
    /// that probably covers the record, if the caller knows it.
    pub(crate) fn add_value(
        &mut self,
        table: u32,
        tag: &Tag,
        (value, guess): (&[u8], Option<PartGuess>),
        scratch: &mut IndexScratch,
    ) -> Result<()> {
        let mut is_new = true;
        if tag.is_unique {
            let mut key = std::mem::take(&mut scratch.key);
            posting_key(table, tag.id, value, &mut key);
            let added =
                self.add_posting((table, tag), value, (self.session.hash(&key), &key), scratch);
            scratch.key = key;
            is_new = added?;
        }
        if tag.has_lists() {
            scratch.list.begin(table, tag.id, value);
            let posting = Posting { hash: scratch.hash, key: &scratch.record };
            is_new = scratch.list.insert(self, posting, guess)?;
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

    /// Adds the posting of a unique value without a search for one: if there is one, the commit is
    /// refused and prepared again. False if the transaction knows the posting, or was refused.
    #[inline]
    fn claim_posting(&mut self, (hash, key): (u64, &[u8]), record: &[u8]) -> Result<bool> {
        let table = self.session.internal_table()?;
        if self.buffers.is_claim_refused || self.find_entry(table, hash, key).is_some() {
            return Ok(false);
        }
        if !nearstate_memory::crash::is_planted("forget-posting") {
            self.claim((table, hash, key), record)?;
        }
        Ok(true)
    }

    /// Adds the posting of a unique value. False if it exists already.
    fn add_posting(
        &mut self,
        (table, tag): (u32, &Tag),
        value: &[u8],
        (hash, key): (u64, &[u8]),
        scratch: &mut IndexScratch,
    ) -> Result<bool> {
        let mut index = self.internal_entry_of(hash, key)?;
        if let Some(holder) = self.internal_at(index)? {
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
            index = self.internal_entry_of(hash, key)?;
        }
        if !nearstate_memory::crash::is_planted("forget-posting") {
            self.put(index, &scratch.record, &[])?;
        }
        Ok(true)
    }

    /// Removes a record's value of a tag from its indexes. The guess is as in
    /// [`WriteSet::add_value`]. `(hash, key)` are those of the posting, if the tag is unique.
    fn remove_value(
        &mut self,
        (table, tag): (u32, &Tag),
        (value, guess): (&[u8], Option<PartGuess>),
        (hash, key): (u64, &[u8]),
        scratch: &mut IndexScratch,
    ) -> Result<()> {
        let mut existed = true;
        if tag.is_unique {
            let index;
            (index, existed) = self.internal_entry_with((hash, key), &scratch.record)?;
            if existed {
                self.delete(index);
            }
        }
        if tag.has_lists() {
            scratch.list.begin(table, tag.id, value);
            let posting = Posting { hash: scratch.hash, key: &scratch.record };
            existed = scratch.list.remove(self, posting, guess)?;
        }
        if tag.is_ordered {
            scratch.key.clear();
            composite(value, &scratch.record, &mut scratch.key);
            existed = scratch.ordered.remove(self, tag_root(table, tag.id), &scratch.key)?;
        }
        if tag.is_counted && existed {
            self.count((table, tag.id), value, -1, scratch)?;
        }
        Ok(())
    }

    /// Deletes the holder of a unique value, with its tags, if it has expired. False if it has not.
    fn evict(&mut self, table: u32, holder: &[u8], scratch: &mut IndexScratch) -> Result<bool> {
        let hash = self.session.hash(holder);
        let (index, stored) = self.read(table, hash, holder)?;
        let Some((cell, bytes)) = stored else { return Ok(false) };
        let (_, meta) = split(cell, bytes)?;
        if self.is_written(index) || !is_past(cell, meta)? {
            return Ok(false);
        }
        self.delete(index);
        self.entry_mut(index).is_expiry = true;
        self.load_flags(index)?;
        let ours = std::mem::replace(&mut scratch.record, holder.to_vec());
        let our_hash = std::mem::replace(&mut scratch.hash, hash);
        let set = self.session.tag_set(table)?;
        for tag in set.tags().filter(|tag| tag.is_kept()) {
            for value in values(meta, &tag.name) {
                let mut key = Vec::new();
                posting_key(table, tag.id, value, &mut key);
                let posting = (self.session.hash(&key), key.as_slice());
                self.remove_value((table, tag), (value, None), posting, scratch)?;
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
        // Each session prefers its own stripe, so that sessions do not conflict. If this session
        // removes a value that another one added, it decrements a stripe above zero, so that no
        // stripe stays below zero.
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
        // A stripe falls below zero only if the tag is still being built and has not counted the
        // record yet.
        count_key(table, tag, stripe, value, &mut scratch.key);
        match before.wrapping_add(change) {
            0 => self.delete_internal(&scratch.key),
            after => self.put_internal(&scratch.key, &after.to_le_bytes()),
        }
    }

    /// The number in a stripe of a count; 0 if the stripe does not exist.
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
}

/// The count of schema changes in the flags of an entry's namespace.
#[inline]
const fn generation_of(entry: &TxnEntry) -> u64 {
    entry.flags / namespace_flags::GENERATION
}

/// Decodes the number in a stripe of a count.
pub(crate) fn read_count(bytes: &[u8]) -> i64 {
    bytes.first_chunk::<8>().map_or(0, |bytes| i64::from_le_bytes(*bytes))
}

/// The expiry time in metadata; 0: never.
pub(crate) fn expires_ms(meta: &[u8]) -> u64 {
    if meta.is_empty() { 0 } else { Meta::split(meta).map_or(0, |(_, meta)| meta.expires_ms) }
}

/// The values of a tag in metadata.
pub(crate) fn values<'m>(meta: &'m [u8], name: &'m str) -> impl Iterator<Item = &'m [u8]> {
    let meta = if meta.is_empty() { None } else { Meta::split(meta).ok() };
    let tags = meta.map_or(Tags::none(), |(_, meta)| meta.tags());
    tags.filter_map(move |tag| tag.ok().filter(|(found, _)| *found == name).map(|(_, value)| value))
}

/// The tags in metadata, with the bytes of their names, up to the first damaged one.
#[inline]
fn pairs(meta: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let meta = if meta.is_empty() { None } else { Meta::split(meta).ok() };
    meta.map_or(Tags::none(), |(_, meta)| meta.tags()).pairs()
}
