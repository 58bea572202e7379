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
//!
//! All of it is done in parts ([`Declaring`]), so that a core that has others to serve can do it.

mod part;

use std::cell::RefCell;
use std::ops::Range;

use nearstate_memory::layout::traits;
use nearstate_model::{Error, Result};

use crate::hidden::{count_key, list_prefix, posting_key, schema_key, tag_root};
use crate::meta::{is_past, split};
use crate::record::Kind;
use crate::schema::{Tag, TagSchema, TagSet, TagState};
use crate::session::{Namespace, Schema, Session, wrong_kind};
use crate::tagging::values;
use crate::txn::{Patience, Txn};
use crate::writeset::WriteSet;
use part::Part;

/// Keys that one transaction takes out of an index that is being emptied.
const KEYS_TAKEN: usize = 32;

/// Buckets of a part when nobody else waits for the thread.
const PART_BUCKETS: u64 = 1024;

/// Locks that are passed for each bucket whose records would be entered: that costs some hundred
/// times as much.
const LOCKS_FOR_EACH: u64 = 64;

/// Buckets of the hidden index that are looked through for each such bucket: few of their keys are
/// an emptied tag's.
const LOOKS_FOR_EACH: u64 = 4;

/// A declaration of tags that is carried out in parts, with anything between them
/// ([`Session::begin_declaring`]). It holds nothing of the region. Dropped before its end it leaves
/// tags behind that writers keep and nobody can look up: whoever declares them again finishes them.
#[derive(Debug)]
pub struct Declaring {
    namespace: Namespace,
    wanted: Vec<TagSchema>,
    patience: Patience,
    stage: Stage,
}

/// What is to be done next.
#[derive(Debug)]
enum Stage {
    /// Tags that were given up are taken away.
    Clearing(Clearing),
    /// The tags are written down as being built.
    Announcing,
    /// The locks are passed.
    Passing(Part, Built),
    /// The records are entered.
    Entering(Part, Built),
    Done,
    /// It has met an error.
    Failed,
}

/// Tags that are worked on, which are in one state meanwhile.
#[derive(Debug)]
struct Built {
    ids: Vec<u8>,
    /// The count of schema changes when they were looked at last.
    generation: u64,
}

/// The fewest changes of a schema by which a number leaves a state and comes to it again, perhaps
/// as another tag's: it is given up, freed and declared anew, in this or another order.
const CHANGES_AROUND: u64 = 3;

impl Built {
    /// Whether they have been in this state since they were looked at last. Others may declare
    /// tags of their own meanwhile, and give them up again: that keeps nobody from the end.
    fn are_still(&self, tags: &TagSet, state: TagState) -> bool {
        let changes = tags.generation.saturating_sub(self.generation);
        let is_in = |id: &u8| tags.numbered(*id).is_some_and(|tag| tag.state == state);
        changes < CHANGES_AROUND && self.ids.iter().all(is_in)
    }
}

/// The indexes of tags that were given up, while they are emptied.
#[derive(Debug)]
struct Clearing {
    leaving: Vec<Tag>,
    /// Locks are passed first: a writer may still keep them.
    locks: Part,
    /// Which of the tags is being emptied.
    tag: usize,
    /// Where the hidden index is looked through for its postings; `None`: its ordered index, if it
    /// has one, is emptied before.
    postings: Option<Part>,
    /// Their numbers.
    built: Built,
    /// Why they were given up just now; `None`: they were found so.
    why: Option<Error>,
}

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
    /// are not there then. `BadName`, `Full`, `Stalled`, `Damaged`; `Deadline`: others changed a
    /// record or its values all the time.
    pub fn add_tags(&self, namespace: Namespace, wanted: &[TagSchema]) -> Result<()> {
        let mut declaring = self.begin_declaring(namespace, wanted, Patience::default())?;
        while self.go_on(&mut declaring, PART_BUCKETS)? {}
        Ok(())
    }

    /// Begins to add tags as [`Session::add_tags`] does, but a part with each call of
    /// [`Session::go_on`]. Each transaction of it has this patience.
    ///
    /// # Errors
    /// `WrongKind`: a namespace of counters; `Damaged`.
    pub fn begin_declaring(
        &self,
        namespace: Namespace,
        wanted: &[TagSchema],
        patience: Patience,
    ) -> Result<Declaring> {
        if namespace.kind() == Kind::Counters {
            return Err(wrong_kind(namespace.kind(), "tag", ""));
        }
        let stage = match self.clearing(namespace, None)? {
            Some(clearing) => Stage::Clearing(clearing),
            None => Stage::Announcing,
        };
        Ok(Declaring { namespace, wanted: wanted.to_vec(), patience, stage })
    }

    /// The next part of a declaration: the records of about so many buckets of the index, three or
    /// four in each, or as much as takes as long. False once all is done.
    ///
    /// # Errors
    /// As [`Session::add_tags`], `Deadline`. The declaration is at its end then, and goes no
    /// further; whoever begins it again finishes what stands.
    pub fn go_on(&self, declaring: &mut Declaring, buckets: u64) -> Result<bool> {
        let namespace = declaring.namespace;
        declaring.stage = match std::mem::replace(&mut declaring.stage, Stage::Failed) {
            Stage::Clearing(mut clearing) => {
                if self.clear_some(declaring, &mut clearing, buckets)? {
                    Stage::Clearing(clearing)
                } else if let Some(why) = clearing.why {
                    return Err(why);
                } else {
                    Stage::Announcing
                }
            }
            Stage::Announcing => match self.announce(declaring)? {
                Some(built) => Stage::Passing(self.locks_of(namespace)?, built),
                None => Stage::Done,
            },
            Stage::Passing(mut locks, mut built) => {
                if !self.look(namespace, &mut built, TagState::Building)? {
                    declaring.stage = Stage::Announcing;
                    return Ok(true);
                }
                let (part, _) = locks.take(buckets.saturating_mul(LOCKS_FOR_EACH));
                self.member.pass_buckets(self.table(namespace)?, part)?;
                if locks.is_done() {
                    Stage::Entering(self.part_of(namespace)?, built)
                } else {
                    Stage::Passing(locks, built)
                }
            }
            Stage::Entering(part, built) => self.enter_some(declaring, (part, built), buckets)?,
            Stage::Done => Stage::Done,
            Stage::Failed => {
                return Err(Error::BadArgument {
                    detail: "this declaration of tags has met an error: begin another".to_owned(),
                });
            }
        };
        Ok(!matches!(declaring.stage, Stage::Done))
    }

    /// Looks whether the tags that are worked on are in this state still. Whoever looks often is
    /// not sent back because of what others do.
    fn look(&self, namespace: Namespace, built: &mut Built, state: TagState) -> Result<bool> {
        let tags = self.tag_set(namespace.index)?;
        let are_still = built.are_still(&tags, state);
        built.generation = built.generation.max(tags.generation);
        Ok(are_still)
    }

    /// Writes down what is new of what is declared. What is to be built, or `None` if all is there.
    fn announce(&self, declaring: &Declaring) -> Result<Option<Built>> {
        let Declaring { namespace, wanted, patience, .. } = declaring;
        let mut tags = TagSet::clone(&*self.tag_set(namespace.index)?);
        let known = tags.clone();
        if !tags.declare(wanted)? {
            return Ok(None);
        }
        // Whoever joins in changes nothing, so that nobody need look anew because of it.
        let tags = if tags == known {
            known
        } else {
            self.change_tags(*namespace, *patience, |tags| tags.declare(wanted).map(drop))?
        };
        let is_ours = |tag: &&Tag| {
            tag.state == TagState::Building && wanted.iter().any(|other| other.name == tag.name)
        };
        let ids = tags.tags().filter(is_ours).map(|tag| tag.id).collect();
        Ok(Some(Built { ids, generation: tags.generation }))
    }

    /// Enters the records of some buckets; what is to be done behind that.
    fn enter_some(
        &self,
        declaring: &Declaring,
        (mut part, mut built): (Part, Built),
        buckets: u64,
    ) -> Result<Stage> {
        let Declaring { namespace, patience, .. } = declaring;
        if !self.look(*namespace, &mut built, TagState::Building)? {
            return Ok(Stage::Announcing);
        }
        self.keep_up(*namespace, &mut part)?;
        let taken = part.take(buckets);
        let enter = |key: &[u8]| {
            self.transact_within(*patience, |txn| txn.enter(*namespace, key, &built.ids))
        };
        match self.each_key(*namespace, taken, |_| true, enter) {
            Ok(()) if part.is_done() => self.complete(declaring, &built),
            Ok(()) => Ok(Stage::Entering(part, built)),
            Err(error @ (Error::TagTaken { .. } | Error::BadArgument { .. })) => {
                let states = (TagState::Building, TagState::Leaving);
                if !self.move_tags(declaring, states, &built)? {
                    return Ok(Stage::Announcing);
                }
                match self.clearing(*namespace, Some(error.clone()))? {
                    Some(clearing) => Ok(Stage::Clearing(clearing)),
                    None => Err(error), // Somebody else has cleared them.
                }
            }
            Err(error) => Err(error),
        }
    }

    /// All records are entered.
    fn complete(&self, declaring: &Declaring, built: &Built) -> Result<Stage> {
        let states = (TagState::Building, TagState::Ready);
        if self.move_tags(declaring, states, built)? {
            return Ok(Stage::Done);
        }
        Ok(Stage::Announcing)
    }

    /// Moves tags from one state to another. False, and nothing is moved: they may have left it
    /// meanwhile.
    fn move_tags(
        &self,
        Declaring { namespace, patience, .. }: &Declaring,
        (from, to): (TagState, TagState),
        built: &Built,
    ) -> Result<bool> {
        let newer = RefCell::new(None);
        let moved = self.change_tags(*namespace, *patience, |tags| {
            newer.replace((!built.are_still(tags, from)).then(|| tags.clone()));
            if newer.borrow().is_some() {
                // Ends the transaction; nobody reads this.
                return Err(Error::BadArgument { detail: String::new() });
            }
            tags.move_on(from, to, &built.ids);
            Ok(())
        });
        match newer.into_inner() {
            Some(tags) => {
                // Whoever wrote them may have died before this.
                self.raise_to(namespace.index, &tags)?;
                Ok(false)
            }
            None => moved.map(|_| true),
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
        patience: Patience,
        change: impl Fn(&mut TagSet) -> Result<()>,
    ) -> Result<TagSet> {
        let key = schema_key(namespace.index);
        let changed = self.transact_within(patience, |txn| {
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
        Ok(changed)
    }

    /// Where the indexes of tags that were given up begin to be emptied, whoever gave them up;
    /// `None` if there are none.
    fn clearing(&self, namespace: Namespace, why: Option<Error>) -> Result<Option<Clearing>> {
        let tags = self.tag_set(namespace.index)?;
        let leaving: Vec<Tag> =
            tags.tags().filter(|tag| tag.state == TagState::Leaving).cloned().collect();
        if leaving.is_empty() {
            return Ok(None);
        }
        let ids = leaving.iter().map(|tag| tag.id).collect();
        let built = Built { ids, generation: tags.generation };
        let locks = self.locks_of(namespace)?;
        Ok(Some(Clearing { leaving, locks, tag: 0, postings: None, built, why }))
    }

    /// Empties a part of those indexes, and frees the tags' numbers at the end: false then. By the
    /// indexes themselves: records may have changed since they were entered.
    fn clear_some(
        &self,
        declaring: &Declaring,
        clearing: &mut Clearing,
        buckets: u64,
    ) -> Result<bool> {
        let namespace = declaring.namespace;
        if !self.look(namespace, &mut clearing.built, TagState::Leaving)? {
            return self.clear_anew(namespace, clearing);
        }
        if !clearing.locks.is_done() {
            let (part, _) = clearing.locks.take(buckets.saturating_mul(LOCKS_FOR_EACH));
            self.member.pass_buckets(self.table(namespace)?, part)?;
            return Ok(true);
        }
        let Some(tag) = clearing.leaving.get(clearing.tag) else {
            return self.end_clearing(declaring, clearing);
        };
        let Some(postings) = &mut clearing.postings else {
            let has_more = tag.is_ordered && self.take_some_keys(declaring, tag)?;
            if !has_more {
                let hidden = Namespace { index: self.hidden_table()?, kind: Kind::Value };
                clearing.postings = Some(self.part_of(hidden)?);
            }
            return Ok(true);
        };
        self.keep_up(Namespace { index: self.hidden_table()?, kind: Kind::Value }, postings)?;
        let part = postings.take(buckets.saturating_mul(LOOKS_FOR_EACH));
        self.take_some_postings(declaring, tag, part)?;
        if postings.is_done() {
            (clearing.tag, clearing.postings) = (clearing.tag + 1, None);
        }
        Ok(true)
    }

    /// The indexes are empty: the numbers of their tags are free. True if there is something to be
    /// emptied all the same.
    fn end_clearing(&self, declaring: &Declaring, clearing: &mut Clearing) -> Result<bool> {
        let states = (TagState::Leaving, TagState::Gone);
        if self.move_tags(declaring, states, &clearing.built)? {
            return Ok(false);
        }
        self.clear_anew(declaring.namespace, clearing)
    }

    /// Somebody else has emptied those indexes. True if there are others to be emptied by now.
    fn clear_anew(&self, namespace: Namespace, clearing: &mut Clearing) -> Result<bool> {
        let Some(again) = self.clearing(namespace, None)? else { return Ok(false) };
        *clearing = Clearing { why: clearing.why.take(), ..again };
        Ok(true)
    }

    /// Takes the first keys out of a tag's ordered index. False if it is empty.
    fn take_some_keys(&self, declaring: &Declaring, tag: &Tag) -> Result<bool> {
        let namespace = declaring.namespace;
        let root = tag_root(namespace.index, tag.id);
        self.transact_within(declaring.patience, |txn| {
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

    /// Takes a tag's postings and counts away, of some buckets of the hidden index.
    fn take_some_postings(
        &self,
        Declaring { namespace, patience, .. }: &Declaring,
        tag: &Tag,
        part: (Range<u64>, u64),
    ) -> Result<()> {
        let hidden = Namespace { index: self.hidden_table()?, kind: Kind::Value };
        let mut prefixes = [Vec::new(), Vec::new(), Vec::new()];
        let [postings, lists, counts] = &mut prefixes;
        posting_key(namespace.index, tag.id, &[], postings);
        list_prefix(namespace.index, tag.id, lists);
        // A count's key has its stripe behind the tag.
        count_key(namespace.index, tag.id, 0, &[], counts);
        counts.pop();
        let is_its = |key: &[u8]| prefixes.iter().any(|prefix| key.starts_with(prefix));
        self.each_key(hidden, part, is_its, |key| {
            self.transact_within(*patience, |txn| {
                let mut set = txn.set.borrow_mut();
                if set.is_in(*namespace, tag.id, TagState::Leaving)? {
                    set.delete_hidden(key)?;
                }
                Ok(())
            })
        })
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
        // A number may be that of a tag which another has declared just now, or died declaring:
        // an entry that writers do not know of would outlive its record's value.
        if set.session.member.traits(namespace.index)? / traits::GENERATION < tags.generation {
            set.session.raise_to(namespace.index, &tags)?;
        }
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

#[cfg(test)]
mod tests;
