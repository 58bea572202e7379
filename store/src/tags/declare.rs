//! Declares tags, also for a namespace that has records: the index is built while writers run.
//!
//! ```text
//! 1 the tags are stored as "building"      from now on each commit maintains them
//! 2 every bucket's lock is waited for      no commit that does not know the tags is in progress
//! 3 record by record: its values are added to the index, in one transaction per record; an
//!   expired record is deleted instead
//! 4 the tags become "ready"                lookups succeed
//! ```
//!
//! If the process dies during this, the tags stay "building". The next declaration of the same tags
//! runs steps 2 to 4. If a record contradicts a tag (a value is not unique, a required tag is
//! missing), the tag is abandoned: it becomes "leaving", its index is emptied, and its number is
//! freed. If the process dies during this, the next declaration continues it.
//!
//! Several processes may declare one tag at once. Each runs all steps, and the first one that
//! finishes sets "ready". A declaration that finds a contradicting record abandons some of its tags
//! that are still being built:
//!
//! ```text
//! abandoned                   no other declaration is busy      others are busy with the tag
//! the contradicted tag        yes: it cannot complete           no: they find that record too
//! others, started by it       yes                               no: they finish them
//! others, joined by it        no: a repeated declaration does   no
//! ```
//!
//! If those others end before they find the record, by a kill or at another record, the
//! contradicted tag stays "building", and writers maintain it until it is declared again.
//!
//! A process marks the tags that it is busy with by a kernel lock (`AdvisoryLock`), which a kill
//! releases.
//!
//! A declaration may belong to a change of the caller (`held.rs`): then step 4 is a part of the
//! caller's transaction, and a caller that does not commit withdraws the tags.
//!
//! All work is done in parts ([`PendingTagDeclaration`]), so that a core can do other work between
//! them.

mod clearing;
mod indexing;
mod contention;
mod held;
mod walk;

use std::cell::RefCell;

use nearstate_memory::layout::namespace_flags;
use nearstate_memory::{AdvisoryLock, since_boot};
use nearstate_model::{Error, Result, invariant};

use crate::index::internal::schema_key;
use crate::index::schema::{Tag, TagSchema, TagSet, TagState};
use crate::record::Kind;
use crate::removal::REMOVED_AT_ONCE;
use crate::session::{Namespace, Schema, Session, wrong_kind};
use crate::txn::{RetryPolicy, Txn};
use clearing::Clearing;
use contention::Contention;
use held::Hold;
use indexing::Indexing;
use walk::BucketWalk;

/// Buckets of a part when no other work waits for the thread.
const PART_BUCKETS: u64 = 1024;

/// Locks that a part waits for, per bucket whose records it would add. A lock takes about a
/// hundredth of the time.
const LOCKS_PER_BUCKET: u64 = 64;

/// A declaration of tags that runs in parts ([`Session::begin_tag_declaration`]). While it exists,
/// other declarations see its tags as busy. If it is dropped unfinished, its tags stay "building":
/// writers maintain them, lookups fail, and the next declaration of the same tags finishes them.
#[derive(Debug)]
pub struct PendingTagDeclaration {
    namespace: Namespace,
    wanted: Vec<TagSchema>,
    retry_policy: RetryPolicy,
    /// No other work waits for the thread: a transaction is retried at once.
    has_thread: bool,
    stage: Stage,
    /// Marks these tags as busy for others; locked before the tags are read.
    presence: Option<AdvisoryLock>,
    /// The tags that this declaration has started.
    started: TrackedTags,
    contention: Contention,
    is_contended: bool,
    hold: Hold,
    /// What a transaction of the caller has stored.
    completed: RefCell<Option<TagSet>>,
}

/// The next step.
#[derive(Debug)]
enum Stage {
    /// Abandoned tags are removed.
    Clearing(Clearing),
    /// The tags are stored as being built.
    Announcing,
    /// Every lock is waited for.
    Draining(BucketWalk, TrackedTags),
    /// The records are added to the indexes.
    Indexing(Indexing),
    /// Some of these tags are abandoned, because a record contradicts one.
    Abandoning(Contradiction, TrackedTags),
    /// All records are indexed: a transaction of the caller completes these tags.
    Held(TrackedTags),
    Done,
    /// It has failed.
    Failed,
}

/// The contradiction between a record and a declared tag.
#[derive(Debug)]
struct Contradiction {
    /// `None`: the declaration is withdrawn, and no record contradicts it.
    why: Option<Error>,
    /// The tag's number.
    tag: Option<u8>,
}

/// Tags of this declaration that must stay in one state.
#[derive(Debug, Default)]
struct TrackedTags {
    ids: Vec<u8>,
    /// The count of schema changes at the last check.
    generation: u64,
}

/// The smallest number of schema changes after which a tag number can be in the same state again,
/// for the same or another tag: abandoned, freed and declared again.
const CHANGES_OF_CYCLE: u64 = 3;

impl TrackedTags {
    fn copy(&self) -> Self {
        Self { ids: self.ids.clone(), generation: self.generation }
    }

    /// True if the tags have stayed in this state since the last check. Other declarations that
    /// start or abandon other tags meanwhile do not delay this one.
    fn are_unchanged(&self, tags: &TagSet, state: TagState) -> bool {
        self.is_recent(tags) && self.ids.iter().all(|id| is_in(tags, *id, state))
    }

    /// Removes the tags that may have left this state since the last check.
    fn keep(&mut self, tags: &TagSet, state: TagState) {
        let is_recent = self.is_recent(tags);
        self.ids.retain(|id| is_recent && is_in(tags, *id, state));
        invariant!(is_recent || self.ids.is_empty(), "tags that may have changed are forgotten");
        self.generation = self.generation.max(tags.generation);
    }

    const fn is_recent(&self, tags: &TagSet) -> bool {
        tags.generation.saturating_sub(self.generation) < CHANGES_OF_CYCLE
    }
}

fn is_in(tags: &TagSet, id: u8, state: TagState) -> bool {
    tags.numbered(id).is_some_and(|tag| tag.state == state)
}

impl PendingTagDeclaration {
    /// The namespace to which tags are added.
    pub(crate) const fn namespace(&self) -> Namespace {
        self.namespace
    }

    /// True if the last part ended early because of a conflict. The caller should run the thread's
    /// other work before the next part.
    pub const fn is_contended(&self) -> bool {
        self.is_contended
    }
}

impl Session {
    /// Opens a namespace, and creates it first if it does not exist. New tags of the schema are
    /// added to it, as by [`Session::add_tags`].
    ///
    /// Complexity: linear in the number of namespaces; call it once and keep the result.
    ///
    /// If there is no room for another namespace, empty ones are removed first
    /// ([`Session::remove_empty_namespaces`]): their handles then answer `BadArgument`.
    ///
    /// # Errors
    /// `WrongKind` if it was created with another schema, `BadName`, `Full`, `Damaged`, `System`;
    /// and as [`Session::add_tags`].
    pub fn namespace(&self, name: &str, schema: &Schema) -> Result<Namespace> {
        let namespace = match self.open_namespace(name, schema, None) {
            // The catalog or the heap is full. An empty namespace has an entry and an index.
            Err(Error::Full { .. }) if self.remove_empty_namespaces(REMOVED_AT_ONCE)? > 0 => {
                self.open_namespace(name, schema, None)?
            }
            other => other?,
        };
        // The tags of a namespace of another host are declared there.
        if !schema.tags.is_empty() && !self.is_others(namespace)? {
            self.add_tags(namespace, &schema.tags)?;
        }
        Ok(namespace)
    }

    /// Adds tags to a namespace and indexes its records. Writers continue, and maintain the tags
    /// from the start. Lookups return `BadArgument` until the index is complete. Tags that exist
    /// with the same properties stay as they are; a tag that another process has left unfinished is
    /// finished.
    ///
    /// A tag cannot be removed. A namespace has at most [`TAGS_DECLARED_MAX`].
    ///
    /// Complexity: linear in the records if a tag is new; each record costs a transaction.
    ///
    /// [`TAGS_DECLARED_MAX`]: nearstate_model::limits::TAGS_DECLARED_MAX
    ///
    /// # Errors
    /// `TagTaken`: two records have the same value of a unique tag; `BadArgument`: a record lacks a
    /// required tag, or the declaration is invalid. Then none of the new tags exists, unless
    /// another declaration is busy with it. Tags that others had started stay as they are.
    /// `Fenced`: the namespace is logged, and this host has no lease. `BadName`, `Full`, `Stalled`,
    /// `Damaged`, `System`; `Deadline`: other sessions changed a record or its values all the time.
    pub fn add_tags(&self, namespace: Namespace, wanted: &[TagSchema]) -> Result<()> {
        let mut declaring =
            self.begin_tag_declaration(namespace, wanted, RetryPolicy::default())?;
        declaring.has_thread = true;
        while self.continue_tag_declaration(&mut declaring, PART_BUCKETS)? {}
        Ok(())
    }

    /// Starts to add tags, and returns when commits keep them up to date: the records of before are
    /// indexed by [`Session::continue_tag_declaration`]. `None`: the tags are ready.
    ///
    /// # Errors
    /// As [`Session::add_tags`].
    pub(crate) fn announce_tags(
        &self,
        namespace: Namespace,
        wanted: &[TagSchema],
    ) -> Result<Option<PendingTagDeclaration>> {
        let mut declaring =
            self.begin_tag_declaration(namespace, wanted, RetryPolicy::default())?;
        declaring.has_thread = true;
        while matches!(declaring.stage, Stage::Clearing(_) | Stage::Announcing) {
            self.continue_tag_declaration(&mut declaring, PART_BUCKETS)?;
        }
        Ok((!matches!(declaring.stage, Stage::Done)).then_some(declaring))
    }

    /// Starts to add tags as [`Session::add_tags`], but one part per call of
    /// [`Session::continue_tag_declaration`]. The retry policy applies to each transaction, over
    /// all parts that it takes.
    ///
    /// # Errors
    /// `WrongKind`: a namespace of counters; `Damaged`.
    pub fn begin_tag_declaration(
        &self,
        namespace: Namespace,
        wanted: &[TagSchema],
        retry_policy: RetryPolicy,
    ) -> Result<PendingTagDeclaration> {
        if namespace.kind() == Kind::Counters {
            return Err(wrong_kind(namespace.kind(), "tag", ""));
        }
        if self.is_others(namespace)? {
            self.check_may_write(namespace.index)?;
        }
        let stage = match self.clearing(namespace, None)? {
            Some(clearing) => Stage::Clearing(clearing),
            None => Stage::Announcing,
        };
        Ok(PendingTagDeclaration {
            namespace,
            wanted: wanted.to_vec(),
            retry_policy,
            has_thread: false,
            stage,
            presence: None,
            started: TrackedTags::default(),
            contention: Contention::default(),
            is_contended: false,
            hold: Hold::default(),
            completed: RefCell::default(),
        })
    }

    /// Runs the next part of a declaration: the records of about `buckets` buckets of the index,
    /// three or four in each, or work that takes as long. A conflict ends a part early: the next
    /// part continues at the same record ([`PendingTagDeclaration::is_contended`]). False at the
    /// end.
    ///
    /// # Errors
    /// As [`Session::add_tags`], `Deadline`. After an error the declaration cannot continue; a new
    /// declaration of the same tags finishes the work.
    pub fn continue_tag_declaration(
        &self,
        declaring: &mut PendingTagDeclaration,
        buckets: u64,
    ) -> Result<bool> {
        let mut stage = std::mem::replace(&mut declaring.stage, Stage::Failed);
        let done = self.step(declaring, &mut stage, buckets);
        declaring.end_part(stage, done)
    }

    /// Runs a part of the current stage, and moves to the next stage if it is complete.
    fn step(
        &self,
        declaring: &mut PendingTagDeclaration,
        stage: &mut Stage,
        buckets: u64,
    ) -> Result<()> {
        let namespace = declaring.namespace;
        let next = match stage {
            Stage::Clearing(clearing) => {
                if self.clear_some(declaring, clearing, buckets)? {
                    None
                } else if let Some(why) = clearing.why.take() {
                    return Err(why);
                } else {
                    Some(declaring.hold.after_clearing())
                }
            }
            Stage::Announcing => Some(match self.announce(declaring)? {
                Some(tracked) => Stage::Draining(self.locks_of(namespace)?, tracked),
                None => Stage::Done,
            }),
            Stage::Draining(locks, tracked) => {
                if self.is_unchanged(declaring, tracked, TagState::Building)? {
                    let part = locks.take(buckets.saturating_mul(LOCKS_PER_BUCKET));
                    self.member.drain_buckets(self.table(namespace)?, part)?;
                    let tracked = locks.is_done().then(|| std::mem::take(tracked));
                    let indexing = tracked.map(|tracked| self.indexing(namespace, tracked));
                    indexing.transpose()?.map(Stage::Indexing)
                } else {
                    Some(Stage::Announcing)
                }
            }
            Stage::Indexing(indexing) => self.index_some(declaring, indexing, buckets)?,
            Stage::Abandoning(contradiction, tracked) => {
                Some(self.abandon(declaring, contradiction, tracked)?)
            }
            Stage::Held(tracked) => {
                let is_unchanged = self.is_unchanged(declaring, tracked, TagState::Building)?;
                (!is_unchanged).then_some(Stage::Announcing)
            }
            Stage::Done => None,
            Stage::Failed => {
                return Err(Error::BadArgument {
                    detail: "this declaration of tags has failed: start a new one".to_owned(),
                });
            }
        };
        if let Some(next) = next {
            *stage = next;
        }
        Ok(())
    }

    /// Runs a transaction of a declaration. `Deadline` ends the part.
    fn run<T>(
        &self,
        declaring: &PendingTagDeclaration,
        body: impl FnMut(&Txn<'_>) -> Result<T>,
    ) -> Result<T> {
        if declaring.has_thread {
            return self.transact_within(declaring.retry_policy, body);
        }
        let retry_policy = RetryPolicy { tries: declaring.contention.tries(), within: None };
        let done = self.transact_within(retry_policy, body);
        if !matches!(done, Err(Error::Deadline { .. })) {
            declaring.contention.end();
        }
        done
    }

    /// True if the tags in progress are still in this state. Frequent checks prevent restarts
    /// because of other declarations.
    fn is_unchanged(
        &self,
        declaring: &mut PendingTagDeclaration,
        tracked: &mut TrackedTags,
        state: TagState,
    ) -> Result<bool> {
        let tags = self.tag_set(declaring.namespace.index)?;
        declaring.started.keep(&tags, TagState::Building);
        let are_unchanged = tracked.are_unchanged(&tags, state);
        tracked.generation = tracked.generation.max(tags.generation);
        Ok(are_unchanged)
    }

    /// The key of the advisory lock of a tag.
    fn advisory_key(&self, namespace: Namespace, tag: &str) -> u64 {
        let mut words = namespace.index.to_be_bytes().to_vec();
        words.extend_from_slice(tag.as_bytes());
        self.hash(&words)
    }

    /// Stores the declared tags that do not exist. Returns the tags to be built, or `None` if all
    /// are ready.
    fn announce(&self, declaring: &mut PendingTagDeclaration) -> Result<Option<TrackedTags>> {
        let namespace = declaring.namespace;
        if !TagSet::clone(&*self.tag_set(namespace.index)?).declare(&declaring.wanted)? {
            return Ok(None);
        }
        // Taken before the tags are read: a declaration that abandons a tag checks this lock.
        if declaring.presence.is_none() {
            let names = declaring.wanted.iter().map(|tag| tag.name.as_str());
            let keys = names.map(|name| self.advisory_key(namespace, name));
            declaring.presence = Some(self.member.lock_advisory(keys)?);
        }
        invariant!(declaring.presence.is_some(), "the tags are locked before they are read");
        let known = self.tag_set(namespace.index)?;
        declaring.started.keep(&known, TagState::Building);
        let known_ids = declaring.started.ids.clone();
        let mut tags = TagSet::clone(&known);
        if !tags.declare(&declaring.wanted)? {
            return Ok(None);
        }
        // A declaration that only joins changes nothing, so that others need not check again.
        if tags == *known {
            let (ids, generation) = (declaring.open(&tags), tags.generation);
            if declaring.hold.is_held() {
                // The one that has started them may be withdrawn as well: the last one that is
                // busy with them removes them.
                let started = &mut declaring.started.ids;
                started.extend(ids.iter().filter(|id| !known_ids.contains(id)));
            }
            return Ok(Some(TrackedTags { ids, generation }));
        }
        let started = RefCell::new(Vec::new());
        let tags = self.change_tags(declaring, true, |tags| {
            let joined = declaring.open(tags);
            tags.declare(&declaring.wanted)?;
            let mut open = declaring.open(tags);
            open.retain(|id| !joined.contains(id));
            started.replace(open);
            Ok(())
        })?;
        declaring.started.keep(&tags, TagState::Building);
        declaring.started.ids.extend(started.into_inner());
        invariant!(declaring.presence.is_some(), "tags are started without their lock");
        Ok(Some(TrackedTags { ids: declaring.open(&tags), generation: tags.generation }))
    }

    /// Sets the tags to ready, after all records are indexed, unless the caller does that.
    fn complete(&self, declaring: &PendingTagDeclaration, tracked: &TrackedTags) -> Result<Stage> {
        if declaring.hold.is_held() {
            return Ok(Stage::Held(tracked.copy()));
        }
        let states = (TagState::Building, TagState::Ready);
        if self.move_tags(declaring, states, tracked)? {
            return Ok(Stage::Done);
        }
        Ok(Stage::Announcing)
    }

    /// Handles a record that contradicts a tag: abandons that tag and the tags that this
    /// declaration started, except those that another declaration is busy with. That one finds the
    /// same record, or the record has changed.
    fn abandon(
        &self,
        declaring: &mut PendingTagDeclaration,
        contradiction: &Contradiction,
        tracked: &TrackedTags,
    ) -> Result<Stage> {
        let namespace = declaring.namespace;
        // The lock is released before the check: of several declarations that abandon a tag at
        // once, the last one sees no other. A declaration that arrives between the check and the
        // commit finds the tag abandoned and starts it again.
        declaring.presence = None;
        let tags = self.tag_set(namespace.index)?;
        declaring.started.keep(&tags, TagState::Building);
        let mut leaving = TrackedTags { ids: Vec::new(), generation: tracked.generation };
        for id in &tracked.ids {
            let is_ours = declaring.started.ids.contains(id) || contradiction.tag == Some(*id);
            let Some(tag) = tags.numbered(*id).filter(|_| is_ours) else { continue };
            if !self.member.is_advisory_locked(self.advisory_key(namespace, &tag.name))? {
                leaving.ids.push(*id);
            }
        }
        invariant!(leaving.ids.len() <= tracked.ids.len(), "only tags in progress are abandoned");
        let end = || contradiction.why.clone().map_or(Ok(Stage::Done), Err);
        if leaving.ids.is_empty() {
            return end();
        }
        if !self.move_tags(declaring, (TagState::Building, TagState::Leaving), &leaving)? {
            return Ok(declaring.hold.after_change(&declaring.started));
        }
        match self.clearing(namespace, contradiction.why.clone())? {
            Some(clearing) => Ok(Stage::Clearing(clearing)),
            None => end(), // Another session has cleared them.
        }
    }

    /// Moves tags from one state to another. False, and nothing is changed, if they may have left
    /// the first state.
    fn move_tags(
        &self,
        declaring: &PendingTagDeclaration,
        (from, to): (TagState, TagState),
        tracked: &TrackedTags,
    ) -> Result<bool> {
        let newer = RefCell::new(None);
        let moved = self.change_tags(declaring, false, |tags| {
            newer.replace((!tracked.are_unchanged(tags, from)).then(|| tags.clone()));
            if newer.borrow().is_some() {
                // Ends the transaction; this error is not reported.
                return Err(Error::BadArgument { detail: String::new() });
            }
            tags.move_on(from, to, &tracked.ids);
            Ok(())
        });
        match newer.into_inner() {
            Some(tags) => {
                invariant!(moved.is_err(), "tags that have changed are moved");
                // The process that changed the tags may have died before it did this.
                self.raise_to(declaring.namespace.index, &tags)?;
                Ok(false)
            }
            None => moved.map(|_| true),
        }
    }

    /// The tags of a namespace, including those that are still being built.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn tags(&self, namespace: Namespace) -> Result<Vec<Tag>> {
        Ok(self.tag_set(namespace.index)?.tags().filter(|tag| tag.is_kept()).cloned().collect())
    }

    /// Changes the declared tags, and makes that visible to every writer. `declares`: adds tags.
    fn change_tags(
        &self,
        declaring: &PendingTagDeclaration,
        declares: bool,
        change: impl Fn(&mut TagSet) -> Result<()>,
    ) -> Result<TagSet> {
        let namespace = declaring.namespace;
        let flags = self.member.namespace_flags(namespace.index)?;
        let checks_fence = declares && flags & namespace_flags::LOGGED != 0;
        let changed = self.run(declaring, |txn| {
            txn.set.borrow_mut().buffers.plan.checks_fence = checks_fence;
            self.change_tags_in(txn, namespace, &change)
        })?;
        self.raise_to(namespace.index, &changed)?;
        Ok(changed)
    }

    /// The part of [`Self::change_tags`] that is in a transaction.
    fn change_tags_in(
        &self,
        txn: &Txn<'_>,
        namespace: Namespace,
        change: impl Fn(&mut TagSet) -> Result<()>,
    ) -> Result<TagSet> {
        let key = schema_key(namespace.index);
        let mut set = txn.set.borrow_mut();
        // A read in the namespace itself: its removal and this commit exclude each other.
        set.read(namespace.index, self.hash(&key), &key)?;
        let mut tags = match set.internal_value(&key, TagSet::decode)? {
            Some(tags) => tags?,
            None => TagSet::default(),
        };
        change(&mut tags)?;
        // Both generations only grow. A reader of these tags raises that of the flags.
        let now = self.member.namespace_flags(namespace.index)? / namespace_flags::GENERATION;
        // Saturating, because both are read from shared memory and may be damaged.
        tags.generation = tags.generation.max(now).saturating_add(1);
        set.put_internal(&key, &tags.encode())?;
        Ok(tags)
    }
}

impl PendingTagDeclaration {
    /// Ends a part. True if work is left, even if this part made no progress because of conflicts.
    fn end_part(&mut self, stage: Stage, mut done: Result<()>) -> Result<bool> {
        self.is_contended = false;
        if let Err(Error::Deadline { tries }) = done
            && !self.has_thread
        {
            self.is_contended = true;
            done = self.contention.record_conflicts(tries, self.retry_policy, since_boot());
        }
        if done.is_err() || matches!(stage, Stage::Done) {
            self.presence = None;
        }
        done?;
        invariant!(!matches!(stage, Stage::Failed), "a failed declaration reports its error");
        self.stage = stage;
        Ok(!matches!(self.stage, Stage::Held(_) | Stage::Done))
    }

    /// The numbers of the declared tags that are being built.
    fn open(&self, tags: &TagSet) -> Vec<u8> {
        let is_ours = |tag: &&Tag| {
            tag.state == TagState::Building
                && self.wanted.iter().any(|other| other.name == tag.name)
        };
        tags.tags().filter(is_ours).map(|tag| tag.id).collect()
    }
}

#[cfg(test)]
mod tests;
