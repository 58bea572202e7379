//! Entering the records that were there before a tag.

use std::cell::Cell;
use std::slice;

use nearstate_memory::layout::namespace_flags;
use nearstate_model::{Error, Result};

use super::walk::BucketWalk;
use super::{Contradiction, PendingTagDeclaration, Stage, TrackedTags};
use crate::index::internal::schema_key;
use crate::index::schema::{Tag, TagSet, TagState};
use crate::record::meta::{is_past, split};
use crate::session::{Namespace, Session};
use crate::tags::maintain::values;
use crate::txn::Txn;

/// The records of a namespace, while they are entered.
#[derive(Debug)]
pub(super) struct Entering {
    pub(super) part: BucketWalk,
    pub(super) tracked: TrackedTags,
    /// What is left of the next record, whose values are entered one by one: others were faster
    /// when all were entered at once.
    remaining: Option<Vec<EnteredValue>>,
}

/// A tag's number and a value.
type EnteredValue = (u8, Vec<u8>);

/// What is to be entered of a record.
pub(super) struct EntryRequest<'a> {
    /// The values of tags with these numbers, as far as they are being built.
    pub(super) ids: &'a [u8],
    /// Only these of them, as far as the record has them; `None`: all of them.
    pub(super) only: Option<&'a [EnteredValue]>,
    /// Which tag the record contradicts.
    pub(super) contradiction: &'a Cell<Option<u8>>,
}

impl Session {
    pub(super) fn entering(&self, namespace: Namespace, tracked: TrackedTags) -> Result<Entering> {
        Ok(Entering { part: self.part_of(namespace)?, tracked, remaining: None })
    }

    /// Enters the records of some buckets. What is to be done behind that, if it is something else.
    pub(super) fn enter_some(
        &self,
        declaring: &mut PendingTagDeclaration,
        entering: &mut Entering,
        buckets: u64,
    ) -> Result<Option<Stage>> {
        let namespace = declaring.namespace;
        if !self.is_unchanged(declaring, &mut entering.tracked, TagState::Building)? {
            return Ok(Some(Stage::Announcing));
        }
        let Entering { part, tracked, remaining } = entering;
        if self.restart_if_grown(namespace, part)? {
            *remaining = None; // Another record comes next.
        }
        let contradiction = Cell::new(None);
        let enter =
            |key: &[u8]| self.enter_one(declaring, key, (tracked, &contradiction), remaining);
        match self.each_key(namespace, (part, buckets), |_| true, enter) {
            Ok(()) if part.is_done() => self.complete(declaring, tracked).map(Some),
            Ok(()) => Ok(None),
            Err(why @ (Error::TagTaken { .. } | Error::BadArgument { .. })) => {
                let tracked = TrackedTags { ids: tracked.ids.clone(), ..*tracked };
                Ok(Some(Stage::GivingUp(Contradiction { why, tag: contradiction.get() }, tracked)))
            }
            Err(error) => Err(error),
        }
    }

    /// Enters a record.
    fn enter_one(
        &self,
        declaring: &PendingTagDeclaration,
        key: &[u8],
        (tracked, contradiction): (&TrackedTags, &Cell<Option<u8>>),
        remaining: &mut Option<Vec<EnteredValue>>,
    ) -> Result<()> {
        loop {
            let only =
                remaining.as_deref().map(|left| left.last().map_or(&[][..], slice::from_ref));
            let wanted = EntryRequest { ids: &tracked.ids, only, contradiction };
            let done = self.run(declaring, |txn| txn.enter(declaring.namespace, key, &wanted));
            if remaining.is_none() && matches!(done, Err(Error::Deadline { .. })) {
                *remaining = Some(self.values_of(declaring.namespace, key, &tracked.ids)?);
            }
            done?;
            match remaining.as_mut() {
                Some(left) if left.len() > 1 => drop(left.pop()),
                Some(_) | None => break,
            }
        }
        *remaining = None;
        Ok(())
    }

    /// The values of these tags that a record has. Writers know the tags and enter every later
    /// value themselves, so only these values can be missing. They are read once: a writer that
    /// keeps changing the record cannot delay the declaration forever.
    pub(super) fn values_of(
        &self,
        namespace: Namespace,
        key: &[u8],
        ids: &[u8],
    ) -> Result<Vec<EnteredValue>> {
        let tags = self.tag_set(namespace.index)?;
        let Some(view) = self.get(namespace, key)? else { return Ok(Vec::new()) };
        let value = |(name, value): (&str, &[u8])| {
            let tag = tags.tag(name).filter(|tag| ids.contains(&tag.id))?;
            Some((tag.id, value.to_vec()))
        };
        Ok(view.tags().filter_map(value).collect())
    }
}

impl Txn<'_> {
    /// Enters a record's values.
    pub(super) fn enter(
        &self,
        namespace: Namespace,
        key: &[u8],
        wanted: &EntryRequest<'_>,
    ) -> Result<()> {
        wanted.contradiction.set(None);
        let mut set = self.set.borrow_mut();
        // That they are being built must still be so at the commit.
        let schema = set.internal_value(&schema_key(namespace.index), TagSet::decode)?;
        let tags = schema.transpose()?.unwrap_or_default();
        // A number may be that of a tag which another has declared just now, or died declaring:
        // an entry that writers do not know of would outlive its record's value.
        if set.session.member.namespace_flags(namespace.index)? / namespace_flags::GENERATION
            < tags.generation
        {
            set.session.raise_to(namespace.index, &tags)?;
        }
        let hash = set.session.hash(key);
        let (place, stored) = set.read(namespace.index, hash, key)?;
        let Some((cell, bytes)) = stored else { return Ok(()) };
        let (_, meta) = split(cell, bytes)?;
        if is_past(meta)? {
            // The record has expired, and its values may belong to another record by now. If it
            // stayed and the clock was set back, it would be visible without index entries.
            set.delete(place);
            set.entry_mut(place).is_expiry = true;
            return Ok(());
        }
        let is_ours = |tag: &&Tag| tag.state == TagState::Building && wanted.ids.contains(&tag.id);
        let mut new_value = Vec::new();
        for tag in tags.tags().filter(is_ours) {
            let before = new_value.len();
            new_value.extend(values(meta, &tag.name).map(|value| (tag, value)));
            if tag.is_required && new_value.len() == before {
                wanted.contradiction.set(Some(tag.id));
                return Err(lacking(key, tag));
            }
        }
        if let Some(only) = wanted.only {
            new_value.retain(|(tag, value)| {
                only.iter().any(|(id, one)| (*id, &**one) == (tag.id, *value))
            });
        }
        let mut scratch = std::mem::take(&mut set.buffers.scratch);
        scratch.set_record(hash, key);
        let mut done = Ok(());
        for (tag, value) in new_value {
            done = set.add_value(namespace.index, tag, value, &mut scratch);
            if done.is_err() {
                wanted.contradiction.set(Some(tag.id));
                break;
            }
        }
        set.buffers.scratch = scratch;
        done
    }
}

#[cold]
fn lacking(key: &[u8], tag: &Tag) -> Error {
    Error::BadArgument {
        detail: format!(
            "record {:?} lacks the tag {:?} that is to be required: give it one first",
            String::from_utf8_lossy(key),
            tag.name
        ),
    }
}
