//! Declaring tags, also of a namespace that has records: the index is built beside the writers.
//!
//! ```text
//! 1 the tags are there, "building"         from now on each commit keeps them
//! 2 every bucket's lock is passed once     nobody is left who had not seen them
//! 3 record by record: its values are entered, each in a transaction of its own; a record whose
//!   time has passed is deleted instead
//! 4 "ready"                                lookups are answered
//! ```
//!
//! A process that dies in between leaves "building" behind; whoever declares the same tags again
//! does steps 2 to 4. Records that contradict a tag end it: it is "leaving", its index is emptied,
//! and its number is free; if a process dies in that, the next declaration goes on with it.

use nearstate_memory::layout::traits;
use nearstate_model::{Error, Result};

use crate::hidden::{count_key, list_prefix, posting_key, schema_key, tag_root};
use crate::meta::{is_past, split};
use crate::record::Kind;
use crate::schema::{Tag, TagSchema, TagSet, TagState};
use crate::session::{Namespace, Schema, Session, wrong_kind};
use crate::tagging::values;
use crate::txn::Txn;
use crate::writeset::WriteSet;

/// Keys that one transaction takes out of an index that is being emptied.
const KEYS_TAKEN: usize = 32;

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
    /// A tag is for good. A namespace has at most [`TAGS_DECLARED_MAX`].
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
        if namespace.kind() == Kind::Counters {
            return Err(wrong_kind(namespace.kind(), "tag", ""));
        }
        self.finish_leaving(namespace)?;
        if !TagSet::clone(&*self.tag_set(namespace.index)?).declare(wanted)? {
            return Ok(());
        }
        self.change_tags(namespace, |tags| tags.declare(wanted).map(drop))?;
        let ids = self.ids_of(namespace, wanted, TagState::Building)?;
        self.member.pass_every_bucket(self.table(namespace)?)?;
        match self.each_record(namespace, |_| true, |txn, key| txn.enter(namespace, key, &ids)) {
            Ok(()) => {}
            Err(error @ (Error::TagTaken { .. } | Error::BadArgument { .. })) => {
                self.change_tags(namespace, |tags| {
                    tags.move_on(TagState::Building, TagState::Leaving, &ids);
                    Ok(())
                })?;
                self.finish_leaving(namespace)?;
                return Err(error);
            }
            Err(error) => return Err(error),
        }
        self.change_tags(namespace, |tags| {
            tags.move_on(TagState::Building, TagState::Ready, &ids);
            Ok(())
        })?;
        if self.ids_of(namespace, wanted, TagState::Ready)?.len() < wanted.len() {
            return Err(Error::Conflict { detail: "what is declared of the namespace".to_owned() });
        }
        Ok(())
    }

    /// The numbers of those of some tags that are in a state.
    fn ids_of(
        &self,
        namespace: Namespace,
        wanted: &[TagSchema],
        state: TagState,
    ) -> Result<Vec<u8>> {
        let tags = self.tag_set(namespace.index)?;
        let is_wanted =
            |tag: &&Tag| tag.state == state && wanted.iter().any(|other| other.name == tag.name);
        Ok(tags.tags().filter(is_wanted).map(|tag| tag.id).collect())
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
        let changed = self.transact(|txn| {
            let mut set = txn.set.borrow_mut();
            let mut tags = match set.hidden_value(&key, TagSet::decode)? {
                Some(tags) => tags?,
                None => TagSet::default(),
            };
            change(&mut tags)?;
            // Both words only grow; whoever reads these tags raises the traits to them.
            let now = self.member.traits(namespace.index)? / traits::GENERATION;
            tags.generation = tags.generation.max(now) + 1;
            set.put_hidden(&key, &tags.encode())?;
            Ok(tags)
        })?;
        self.raise_to(namespace.index, &changed)?;
        Ok(())
    }

    /// Empties the indexes of tags that were given up, whoever began it, and frees their numbers.
    /// By the indexes themselves: records may have changed since they were entered.
    fn finish_leaving(&self, namespace: Namespace) -> Result<()> {
        let tags = self.tag_set(namespace.index)?;
        let leaving: Vec<Tag> =
            tags.tags().filter(|tag| tag.state == TagState::Leaving).cloned().collect();
        if leaving.is_empty() {
            return Ok(());
        }
        self.member.pass_every_bucket(self.table(namespace)?)?;
        for tag in &leaving {
            while tag.is_ordered && self.take_some_keys(namespace, tag)? {}
            self.take_postings(namespace, tag)?;
        }
        let ids: Vec<u8> = leaving.iter().map(|tag| tag.id).collect();
        self.change_tags(namespace, |tags| {
            tags.move_on(TagState::Leaving, TagState::Gone, &ids);
            Ok(())
        })
    }

    /// Takes the first keys out of a tag's ordered index. False if it is empty.
    fn take_some_keys(&self, namespace: Namespace, tag: &Tag) -> Result<bool> {
        let root = tag_root(namespace.index, tag.id);
        self.transact(|txn| {
            let mut set = txn.set.borrow_mut();
            if !set.is_in(namespace, tag.id, TagState::Leaving)? {
                return Ok(false); // Somebody else has finished it.
            }
            let mut ordered = std::mem::take(&mut set.buffers.workshop.ordered);
            let mut key = Vec::new();
            let mut step = |set: &mut WriteSet<'_>| {
                let is_there = ordered.first(set, root, &mut key)?;
                Ok(is_there && ordered.remove(set, root, &key)?)
            };
            let mut has_more = Ok(true);
            for _ in 0..KEYS_TAKEN {
                has_more = step(&mut set);
                if !matches!(has_more, Ok(true)) {
                    break;
                }
            }
            set.buffers.workshop.ordered = ordered;
            has_more
        })
    }

    /// Takes a tag's postings and counts away. Linear in the hidden index.
    fn take_postings(&self, namespace: Namespace, tag: &Tag) -> Result<()> {
        let hidden = Namespace { index: self.hidden_table()?, kind: Kind::Value };
        let mut prefixes = [Vec::new(), Vec::new(), Vec::new()];
        let [postings, lists, counts] = &mut prefixes;
        posting_key(namespace.index, tag.id, &[], postings);
        list_prefix(namespace.index, tag.id, lists);
        // A count's key has its stripe behind the tag.
        count_key(namespace.index, tag.id, 0, &[], counts);
        counts.pop();
        let is_its = |key: &[u8]| prefixes.iter().any(|prefix| key.starts_with(prefix));
        self.each_record(hidden, is_its, |txn, key| {
            let mut set = txn.set.borrow_mut();
            if set.is_in(namespace, tag.id, TagState::Leaving)? {
                set.delete_hidden(key)?;
            }
            Ok(())
        })
    }

    /// Runs a transaction for each record of a namespace with such a key, also for those whose time
    /// has passed.
    fn each_record(
        &self,
        namespace: Namespace,
        is_wanted: impl Fn(&[u8]) -> bool,
        work: impl Fn(&Txn<'_>, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut scan = self.scan(namespace)?.with_past();
        let mut key = Vec::new();
        loop {
            match scan.next()? {
                Some(view) if is_wanted(view.key()) => {
                    key.clear();
                    key.extend_from_slice(view.key());
                }
                Some(_) => continue,
                None => return Ok(()),
            }
            self.transact(|txn| work(txn, &key))?;
        }
    }
}

impl WriteSet<'_> {
    /// True if a tag is in this state, and still is when the transaction commits.
    fn is_in(&mut self, namespace: Namespace, id: u8, state: TagState) -> Result<bool> {
        let tags = self.hidden_value(&schema_key(namespace.index), TagSet::decode)?.transpose()?;
        let is_it = |tag: &Tag| tag.id == id && tag.state == state;
        Ok(tags.is_some_and(|tags| tags.tags().any(is_it)))
    }
}

impl Txn<'_> {
    /// Enters a record's values of the tags with these numbers, as far as they are being built.
    fn enter(&self, namespace: Namespace, key: &[u8], ids: &[u8]) -> Result<()> {
        let mut set = self.set.borrow_mut();
        // That they are being built must still be so at the commit.
        let schema = set.hidden_value(&schema_key(namespace.index), TagSet::decode)?;
        let tags = schema.transpose()?.unwrap_or_default();
        let hash = set.session.hash(key);
        let (place, stored) = set.read(namespace.index, hash, key)?;
        let Some((cell, bytes)) = stored else { return Ok(()) };
        let (_, meta) = split(cell, bytes)?;
        if is_past(meta)? {
            // Nobody misses it, and its values may be another record's by now. Left there, it would
            // lack its entries if the clock was set back.
            set.delete(place);
            if let Some(entry) = set.buffers.entries.get_mut(place) {
                entry.is_expiry = true;
            }
            return Ok(());
        }
        let mut shop = std::mem::take(&mut set.buffers.workshop);
        shop.holder(hash, key);
        let is_ours = |tag: &&Tag| tag.state == TagState::Building && ids.contains(&tag.id);
        let mut done = Ok(());
        for tag in tags.tags().filter(is_ours) {
            let mut has_any = false;
            for value in values(meta, &tag.name) {
                has_any = true;
                done = done.and_then(|()| set.give(namespace.index, tag, value, &mut shop));
            }
            if tag.is_required && !has_any && done.is_ok() {
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
