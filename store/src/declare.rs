//! Declaring tags, also of a namespace that has records: the index is built beside the writers.
//!
//! ```text
//! 1 the tags are there, "building"         from now on each commit keeps them
//! 2 every bucket's lock is passed once     nobody is left who had not seen them
//! 3 record by record: its values are entered, each in a transaction of its own; a record whose time
//!   has passed is deleted instead
//! 4 "ready"                                lookups are answered
//! ```
//!
//! A process that dies in between leaves "building" behind; whoever declares the same tags again
//! does steps 2 to 4. Records that contradict a tag end it: its entries are taken away again.

use nearstate_memory::layout::traits;
use nearstate_model::{Error, Result};

use crate::hidden::schema_key;
use crate::meta::{is_past, split};
use crate::schema::{Tag, TagSchema, TagSet, TagState};
use crate::session::{Namespace, Schema, Session};
use crate::tagging::values;
use crate::txn::Txn;

impl Session {
    /// Opens a namespace, and creates it first if there is none of this name. Tags of the schema
    /// that the namespace does not have are added to it, as by [`Session::add_tags`].
    ///
    /// Complexity: linear in the number of namespaces; call it once and keep the answer.
    ///
    /// # Errors
    /// `WrongKind` if it was created with another schema, `BadName`, `Full`, `Damaged`, `System`;
    /// and as [`Session::add_tags`].
    pub fn namespace(&self, name: &str, schema: &Schema) -> Result<Namespace> {
        let namespace = self.open_namespace(name, schema)?;
        if !schema.tags.is_empty() {
            self.add_tags(namespace, &schema.tags)?;
        }
        Ok(namespace)
    }

    /// Adds tags to a namespace and enters the records that it has; writers go on meanwhile, and
    /// keep the tags from the beginning. Lookups answer `BadArgument` until it is done. Tags that
    /// are there already in the same form are left as they are; one that a process has left
    /// unfinished is finished.
    ///
    /// A tag is for good, and takes one of [`TAGS_DECLARED_MAX`] numbers, also when it is refused
    /// for what the records hold.
    ///
    /// Complexity: linear in the records if a tag is new; each record costs a transaction.
    ///
    /// [`TAGS_DECLARED_MAX`]: nearstate_model::limits::TAGS_DECLARED_MAX
    ///
    /// # Errors
    /// `TagTaken`: two records have the same value of a tag that is to be unique; `BadArgument`: a
    /// record lacks a tag that is to be required, or the declaration itself is off. The new tags
    /// are not there then. `BadName`, `Full`, `Stalled`, `Damaged`.
    pub fn add_tags(&self, namespace: Namespace, wanted: &[TagSchema]) -> Result<()> {
        if !self.tag_set(namespace.index)?.clone().as_ref().clone().declare(wanted)? {
            return Ok(());
        }
        self.change_tags(namespace, |tags| tags.declare(wanted).map(drop))?;
        self.member.pass_every_bucket(self.table(namespace)?)?;
        match self.enter_records(namespace, wanted) {
            Ok(()) => self.change_tags(namespace, |tags| {
                tags.move_on(TagState::Building, TagState::Ready, wanted);
                Ok(())
            }),
            Err(error @ (Error::TagTaken { .. } | Error::BadArgument { .. })) => {
                self.take_tags_away(namespace, wanted)?;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// The tags that a namespace has, also those that are still being built.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn tags(&self, namespace: Namespace) -> Result<Vec<Tag>> {
        Ok(self.tag_set(namespace.index)?.tags().filter(|tag| tag.is_kept()).cloned().collect())
    }

    /// Changes what is declared, and lets every writer see it.
    fn change_tags(
        &self,
        namespace: Namespace,
        change: impl Fn(&mut TagSet) -> Result<()>,
    ) -> Result<()> {
        let key = schema_key(namespace.index);
        self.transact(|txn| {
            let mut set = txn.set.borrow_mut();
            let mut tags = match set.hidden_value(&key, TagSet::decode)? {
                Some(tags) => tags?,
                None => TagSet::default(),
            };
            change(&mut tags)?;
            set.put_hidden(&key, &tags.encode())
        })?;
        self.member.change_traits(namespace.index, |word| {
            (word | traits::TAGGED).wrapping_add(traits::GENERATION)
        })?;
        Ok(())
    }

    /// Every record's values of the tags that are being built are entered.
    fn enter_records(&self, namespace: Namespace, wanted: &[TagSchema]) -> Result<()> {
        self.each_record(namespace, |txn, key| txn.enter(namespace, key, wanted))
    }

    fn take_tags_away(&self, namespace: Namespace, wanted: &[TagSchema]) -> Result<()> {
        self.change_tags(namespace, |tags| {
            tags.move_on(TagState::Building, TagState::Leaving, wanted);
            Ok(())
        })?;
        self.member.pass_every_bucket(self.table(namespace)?)?;
        self.each_record(namespace, |txn, key| txn.leave(namespace, key, wanted))?;
        self.change_tags(namespace, |tags| {
            tags.move_on(TagState::Leaving, TagState::Gone, wanted);
            Ok(())
        })
    }

    /// Runs a transaction for each record of a namespace, also for those whose time has passed.
    fn each_record(
        &self,
        namespace: Namespace,
        work: impl Fn(&Txn<'_>, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut scan = self.scan(namespace)?.with_past();
        let mut key = Vec::new();
        loop {
            match scan.next()? {
                Some(view) => {
                    key.clear();
                    key.extend_from_slice(view.key());
                }
                None => return Ok(()),
            }
            self.transact(|txn| work(txn, &key))?;
        }
    }
}

impl Txn<'_> {
    /// Enters a record's values of the tags that are being built.
    fn enter(&self, namespace: Namespace, key: &[u8], wanted: &[TagSchema]) -> Result<()> {
        self.each_value(namespace, key, (TagState::Building, wanted), true)
    }

    /// Takes a record's values of tags that leave away.
    fn leave(&self, namespace: Namespace, key: &[u8], wanted: &[TagSchema]) -> Result<()> {
        self.each_value(namespace, key, (TagState::Leaving, wanted), false)
    }

    fn each_value(
        &self,
        namespace: Namespace,
        key: &[u8],
        (state, wanted): (TagState, &[TagSchema]),
        is_entering: bool,
    ) -> Result<()> {
        let mut set = self.set.borrow_mut();
        let hash = set.session.hash(key);
        let (place, stored) = set.read(namespace.index, hash, key)?;
        let Some((cell, bytes)) = stored else { return Ok(()) };
        let (_, meta) = split(cell, bytes)?;
        if is_entering && is_past(meta)? {
            // Nobody misses it, and its values may be another record's by now. Left there, it would
            // lack its entries if the clock was set back.
            set.delete(place);
            if let Some(entry) = set.buffers.entries.get_mut(place) {
                entry.is_expiry = true;
            }
            return Ok(());
        }
        let tags = set.session.tag_set(namespace.index)?;
        let mut shop = std::mem::take(&mut set.buffers.workshop);
        shop.record.clear();
        shop.record.extend_from_slice(key);
        let is_ours =
            |tag: &&Tag| tag.state == state && wanted.iter().any(|wanted| wanted.name == tag.name);
        let mut done = Ok(());
        for tag in tags.tags().filter(is_ours) {
            let mut has_any = false;
            for value in values(meta, &tag.name) {
                has_any = true;
                let step = if is_entering {
                    set.give(namespace.index, tag, value, &mut shop)
                } else {
                    set.take(namespace.index, tag, value, &mut shop)
                };
                done = done.and(step);
            }
            if is_entering && tag.is_required && !has_any && done.is_ok() {
                done = Err(Error::BadArgument {
                    detail: format!(
                        "record {:?} lacks the tag {:?} that is to be required: give it one first",
                        String::from_utf8_lossy(key),
                        tag.name
                    ),
                });
            }
        }
        set.buffers.workshop = shop;
        done
    }
}
