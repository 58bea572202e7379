//! Indexing of the records that existed before a tag was declared.

use std::cell::Cell;
use std::slice;

use nearstate_memory::layout::namespace_flags;
use nearstate_model::{Error, Result, invariant};

use super::walk::BucketWalk;
use super::{Contradiction, PendingTagDeclaration, Stage, TrackedTags};
use crate::index::internal::schema_key;
use crate::index::schema::{Tag, TagSet, TagState};
use crate::record::meta::{is_past, split};
use crate::session::{Namespace, Session};
use crate::tags::maintain::values;
use crate::txn::Txn;

/// The indexing of a namespace's records.
#[derive(Debug)]
pub(super) struct Indexing {
    pub(super) part: BucketWalk,
    pub(super) tracked: TrackedTags,
    /// The values of the next record that are not indexed yet. They are indexed one by one, because
    /// a transaction with all of them had a conflict.
    remaining: Option<Vec<NumberedValue>>,
}

/// A tag's number and a value.
type NumberedValue = (u8, Vec<u8>);

/// The values of a record that are indexed.
pub(super) struct IndexRequest<'a> {
    /// The numbers of the tags. Those that are no longer being built are ignored.
    pub(super) ids: &'a [u8],
    /// Only those of these values that the record still has; `None`: all its values.
    pub(super) only: Option<&'a [NumberedValue]>,
    /// Output: the tag that the record contradicts.
    pub(super) contradiction: &'a Cell<Option<u8>>,
}

impl Session {
    pub(super) fn indexing(&self, namespace: Namespace, tracked: TrackedTags) -> Result<Indexing> {
        Ok(Indexing { part: self.part_of(namespace)?, tracked, remaining: None })
    }

    /// Indexes the records of some buckets. Returns the next stage, if this one is complete.
    pub(super) fn index_some(
        &self,
        declaring: &mut PendingTagDeclaration,
        indexing: &mut Indexing,
        buckets: u64,
    ) -> Result<Option<Stage>> {
        let namespace = declaring.namespace;
        if !self.is_unchanged(declaring, &mut indexing.tracked, TagState::Building)? {
            return Ok(Some(Stage::Announcing));
        }
        let Indexing { part, tracked, remaining } = indexing;
        if self.restart_if_grown(namespace, part)? {
            *remaining = None; // The next record is another one.
        }
        let contradiction = Cell::new(None);
        let index =
            |key: &[u8]| self.index_one(declaring, key, (tracked, &contradiction), remaining);
        match self.each_key(namespace, (part, buckets), |_| true, index) {
            Ok(()) if part.is_done() => self.complete(declaring, tracked).map(Some),
            Ok(()) => Ok(None),
            Err(why @ (Error::TagTaken { .. } | Error::BadArgument { .. })) => {
                let contradiction = Contradiction { why: Some(why), tag: contradiction.get() };
                Ok(Some(Stage::Abandoning(contradiction, tracked.copy())))
            }
            Err(error) => Err(error),
        }
    }

    /// Indexes a record.
    fn index_one(
        &self,
        declaring: &PendingTagDeclaration,
        key: &[u8],
        (tracked, contradiction): (&TrackedTags, &Cell<Option<u8>>),
        remaining: &mut Option<Vec<NumberedValue>>,
    ) -> Result<()> {
        loop {
            let only =
                remaining.as_deref().map(|left| left.last().map_or(&[][..], slice::from_ref));
            let wanted = IndexRequest { ids: &tracked.ids, only, contradiction };
            let done =
                self.run(declaring, |txn| txn.index_record(declaring.namespace, key, &wanted));
            if remaining.is_none() && matches!(done, Err(Error::Deadline { .. })) {
                *remaining = Some(self.values_of(declaring.namespace, key, &tracked.ids)?);
            }
            done?;
            invariant!(contradiction.get().is_none(), "a contradicted record counts as indexed");
            match remaining.as_mut() {
                Some(left) if left.len() > 1 => drop(left.pop()),
                Some(_) | None => break,
            }
        }
        *remaining = None;
        Ok(())
    }

    /// The values of these tags that a record has, also one that has expired: a write that replaces
    /// it enters only what it has not. Writers know the tags and index every later value, so only
    /// these values can be missing. They are read once, so that a writer that keeps changing the
    /// record cannot delay the declaration forever.
    pub(super) fn values_of(
        &self,
        namespace: Namespace,
        key: &[u8],
        ids: &[u8],
    ) -> Result<Vec<NumberedValue>> {
        let tags = self.tag_set(namespace.index)?;
        let Some(view) = self.get_stored(namespace, key)? else { return Ok(Vec::new()) };
        let value = |(name, value): (&str, &[u8])| {
            let tag = tags.tag(name).filter(|tag| ids.contains(&tag.id))?;
            Some((tag.id, value.to_vec()))
        };
        Ok(view.tags().filter_map(value).collect())
    }
}

impl Txn<'_> {
    /// Adds a record's values to the indexes.
    pub(super) fn index_record(
        &self,
        namespace: Namespace,
        key: &[u8],
        wanted: &IndexRequest<'_>,
    ) -> Result<()> {
        wanted.contradiction.set(None);
        let mut set = self.set.borrow_mut();
        // Tracked: the commit succeeds only if the tags are still being built.
        let schema = set.internal_value(&schema_key(namespace.index), TagSet::decode)?;
        let tags = schema.transpose()?.unwrap_or_default();
        // A number may belong to a tag that another process has just declared, or died declaring.
        // Writers do not know it before the generation is raised, and would not remove its entries.
        if set.session.member.namespace_flags(namespace.index)? / namespace_flags::GENERATION
            < tags.generation
        {
            set.session.raise_to(namespace.index, &tags)?;
        }
        let hash = set.session.hash(key);
        let (index, stored) = set.read(namespace.index, hash, key)?;
        let Some((cell, bytes)) = stored else { return Ok(()) };
        let (_, meta) = split(cell, bytes)?;
        // A follower deletes what the owner has deleted, and nothing else.
        if is_past(cell, meta)? && !set.session.member.is_follower() {
            // The values of an expired record may belong to another record. It is deleted: if the
            // clock were set back, it would be visible without index entries.
            set.delete(index);
            set.entry_mut(index).is_expiry = true;
            return Ok(());
        }
        let is_ours = |tag: &&Tag| tag.state == TagState::Building && wanted.ids.contains(&tag.id);
        let mut new_values = Vec::new();
        for tag in tags.tags().filter(is_ours) {
            let before = new_values.len();
            new_values.extend(values(meta, &tag.name).map(|value| (tag, value)));
            if tag.is_required && new_values.len() == before {
                wanted.contradiction.set(Some(tag.id));
                return Err(missing_tag(key, tag));
            }
        }
        if let Some(only) = wanted.only {
            new_values.retain(|(tag, value)| {
                only.iter().any(|(id, one)| (*id, &**one) == (tag.id, *value))
            });
        }
        let mut scratch = set.buffers.take_scratch();
        scratch.set_record(hash, key);
        let mut done = Ok(());
        for (tag, value) in new_values {
            done = set.add_value(namespace.index, tag, (value, None), &mut scratch);
            if done.is_err() {
                wanted.contradiction.set(Some(tag.id));
                break;
            }
        }
        set.buffers.give_scratch(scratch);
        done
    }
}

#[cold]
fn missing_tag(key: &[u8], tag: &Tag) -> Error {
    Error::BadArgument {
        detail: format!(
            "record {:?} lacks the required tag {:?}: give it one first",
            String::from_utf8_lossy(key),
            tag.name
        ),
    }
}
