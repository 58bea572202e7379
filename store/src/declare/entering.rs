//! Entering the records that were there before a tag.

use std::cell::Cell;

use nearstate_memory::layout::traits;
use nearstate_model::{Error, Result};

use super::part::Part;
use super::{Against, Built, Declaring, Stage};
use crate::hidden::schema_key;
use crate::meta::{is_past, split};
use crate::schema::{Tag, TagSet, TagState};
use crate::session::{Namespace, Session};
use crate::tagging::values;
use crate::txn::Txn;

/// The records of a namespace, while they are entered.
#[derive(Debug)]
pub(super) struct Entering {
    pub(super) part: Part,
    pub(super) built: Built,
    /// How far the next record is, whose values are entered one by one: others were faster when
    /// all were entered at once.
    bites: Option<Bite>,
}

/// The last value that was entered of a record, in the order of tags and values. The writers keep
/// it, and what a record gets later as well; so none before it is missing, whatever they change.
type Bite = Option<(u8, Vec<u8>)>;

/// What is to be entered of a record.
pub(super) struct Wanted<'a> {
    /// The values of tags with these numbers, as far as they are being built.
    pub(super) ids: &'a [u8],
    /// Only the next value behind this one; `None`: all of them.
    pub(super) after: Option<&'a Bite>,
    /// Which tag the record contradicts.
    pub(super) against: &'a Cell<Option<u8>>,
}

impl Session {
    pub(super) fn entering(&self, namespace: Namespace, built: Built) -> Result<Entering> {
        Ok(Entering { part: self.part_of(namespace)?, built, bites: None })
    }

    /// Enters the records of some buckets. What is to be done behind that, if it is something else.
    pub(super) fn enter_some(
        &self,
        declaring: &mut Declaring,
        entering: &mut Entering,
        buckets: u64,
    ) -> Result<Option<Stage>> {
        let namespace = declaring.namespace;
        if !self.look(declaring, &mut entering.built, TagState::Building)? {
            return Ok(Some(Stage::Announcing));
        }
        let Entering { part, built, bites } = entering;
        if self.keep_up(namespace, part)? {
            *bites = None; // It is another record that comes next.
        }
        let against = Cell::new(None);
        let enter = |key: &[u8]| self.enter_one(declaring, key, (built, &against), bites);
        match self.each_key(namespace, (part, buckets), |_| true, enter) {
            Ok(()) if part.is_done() => self.complete(declaring, built).map(Some),
            Ok(()) => Ok(None),
            Err(why @ (Error::TagTaken { .. } | Error::BadArgument { .. })) => {
                let built = Built { ids: built.ids.clone(), ..*built };
                Ok(Some(Stage::GivingUp(Against { why, tag: against.get() }, built)))
            }
            Err(error) => {
                if matches!(error, Error::Deadline { .. }) && bites.is_none() {
                    *bites = Some(None);
                }
                Err(error)
            }
        }
    }

    /// Enters a record.
    fn enter_one(
        &self,
        declaring: &Declaring,
        key: &[u8],
        (built, against): (&Built, &Cell<Option<u8>>),
        bites: &mut Option<Bite>,
    ) -> Result<()> {
        loop {
            let wanted = Wanted { ids: &built.ids, after: bites.as_ref(), against };
            let done = self.run(declaring, |txn| txn.enter(declaring.namespace, key, &wanted))?;
            match (done, bites.as_mut()) {
                (Some(value), Some(bite)) => *bite = Some(value),
                (None, _) | (Some(_), None) => break,
            }
        }
        *bites = None;
        Ok(())
    }
}

impl Txn<'_> {
    /// Enters a record's values. The one that was entered, if no more than one was wanted, and
    /// there may be others behind it.
    pub(super) fn enter(
        &self,
        namespace: Namespace,
        key: &[u8],
        wanted: &Wanted<'_>,
    ) -> Result<Bite> {
        wanted.against.set(None);
        let mut set = self.set.borrow_mut();
        // That they are being built must still be so at the commit.
        let schema = set.hidden_value(&schema_key(namespace.index), TagSet::decode)?;
        let tags = schema.transpose()?.unwrap_or_default();
        // A number may be that of a tag which another has declared just now, or died declaring:
        // an entry that writers do not know of would outlive its record's value.
        if set.session.member.traits(namespace.index)? / traits::GENERATION < tags.generation {
            set.session.raise_to(namespace.index, &tags)?;
        }
        let hash = set.session.hash(key);
        let (place, stored) = set.read(namespace.index, hash, key)?;
        let Some((cell, bytes)) = stored else { return Ok(None) };
        let (_, meta) = split(cell, bytes)?;
        if is_past(meta)? {
            // Nobody misses it, and its values may be another record's by now. Left there, it would
            // lack its entries if the clock was set back.
            set.delete(place);
            if let Some(entry) = set.buffers.entries.get_mut(place) {
                entry.is_expiry = true;
            }
            return Ok(None);
        }
        let is_ours = |tag: &&Tag| tag.state == TagState::Building && wanted.ids.contains(&tag.id);
        let mut due = Vec::new();
        for tag in tags.tags().filter(is_ours) {
            let before = due.len();
            due.extend(values(meta, &tag.name).map(|value| (tag, value)));
            if tag.is_required && due.len() == before {
                wanted.against.set(Some(tag.id));
                return Err(lacking(key, tag));
            }
        }
        if let Some(after) = wanted.after {
            let after = after.as_ref().map(|(id, value)| (*id, value.as_slice()));
            let next = due.into_iter().filter(|(tag, value)| Some((tag.id, *value)) > after);
            due = next.min_by_key(|(tag, value)| (tag.id, *value)).into_iter().collect();
        }
        let mut shop = std::mem::take(&mut set.buffers.workshop);
        shop.holder(hash, key);
        let mut done = Ok(None);
        for (tag, value) in due {
            done = set.give(namespace.index, tag, value, &mut shop).map(|()| Some((tag, value)));
            if done.is_err() {
                wanted.against.set(Some(tag.id));
                break;
            }
        }
        set.buffers.workshop = shop;
        let last = done?.filter(|_| wanted.after.is_some());
        Ok(last.map(|(tag, value)| (tag.id, value.to_vec())))
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
