//! A session that applies the log of another region to its own
//! (`docs/decisions/025-follow.md`), and the promotion of such a region.
//!
//! ```text
//! follower                                         another process
//! F1  namespace: flag FOLLOWED, drain writers      W1  flags of the namespace, under the lock
//! F2  records, with the versions of the source     W2  FOLLOWED: refuse with NotOwner
//! F3  position
//! ```
//!
//! A record is applied only if its version is higher than the present one, so what a killed
//! follower has applied behind its position is applied again without an effect.

mod promotion;
mod coming;
mod joining;
mod single;
mod change;
mod announcement;

use std::collections::{BTreeMap, VecDeque};

use nearstate_memory::layout::namespace_flags;
use nearstate_memory::{
    AdvisoryLock, Corruption, FollowPosition, FollowState, LogIdentity, is_record_version,
    without_expiry,
};
use nearstate_model::{Error, Result, invariant};

use crate::feed::{FollowedNamespace, FollowedRecord};
use crate::follow::announcement::Announcement;
use crate::follow::change::{ChangedRecord, had_expired, not_a_copy};
use crate::index::schema::TagSchema;
use crate::log::entry::StreamedChange;
use crate::session::{Namespace, Schema, Session};
use crate::tags::declare::PendingTagDeclaration;
use crate::txn::Txn;

/// What a promotion has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promotion {
    /// Namespaces that may be written now.
    pub namespaces: usize,
    /// The last position of the other region's log that was applied.
    pub position: u64,
}

/// Applies the log of another region. While it exists, no other process of the region can follow.
#[derive(Debug)]
pub struct Follower<'s> {
    session: &'s Session,
    /// The namespaces by their number at the source.
    namespaces: BTreeMap<u32, Followed>,
    state: FollowState,
    /// Followed namespaces that the source has not told of on this connection, by their number
    /// there: those that were removed while the follower was away, whose last entries follow.
    remembered: BTreeMap<u32, Namespace>,
    announcement: Announcement,
    /// Tags that were added to namespaces, whose records are indexed between messages.
    indexing: VecDeque<PendingTagDeclaration>,
    _lock: AdvisoryLock,
}

#[derive(Debug)]
struct Followed {
    namespace: Namespace,
    tags: Vec<TagSchema>,
}

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        self.session.member.set_follower(false);
    }
}

/// Records that a follower discards in one transaction. Each may have 64 tag values and the limit
/// of a transaction is 4,096 records, index records included.
const DISCARDED_AT_ONCE: usize = 32;

/// Buckets whose records a follower indexes between two messages. It takes some milliseconds, a
/// small part of the shortest lease.
const INDEXED_AT_ONCE: u64 = 256;

impl Session {
    /// Refuses a write of a namespace that belongs to another host.
    #[cold]
    pub(crate) fn check_may_write(&self, number: u32) -> Result<()> {
        if self.member.is_follower() {
            return Ok(());
        }
        let (namespace, address) = (self.name_of(number)?, self.member.owner_address()?);
        Err(Error::NotOwner { namespace, address })
    }

    /// Refuses a write of a logged namespace while the host has no lease. Only the session of the
    /// follower writes then.
    #[inline]
    pub(crate) fn check_not_fenced(&self, number: u32) -> Result<()> {
        if self.member.is_fenced_off()? { Err(self.fenced(number)?) } else { Ok(()) }
    }

    /// As [`Session::check_not_fenced`], of a change of the namespace itself, which is rare.
    pub(crate) fn check_not_fenced_now(&self, number: u32) -> Result<()> {
        if self.member.is_fenced_off_now()? { Err(self.fenced(number)?) } else { Ok(()) }
    }

    /// The refusal. It looks for the name of the namespace, so the caller has no lock.
    #[cold]
    pub(crate) fn fenced(&self, number: u32) -> Result<Error> {
        Ok(Error::Fenced { namespace: self.name_of(number)? })
    }

    fn name_of(&self, number: u32) -> Result<String> {
        let names = self.namespaces()?;
        let name = names.into_iter().find(|(_, namespace)| namespace.number() == number);
        Ok(name.map_or_else(String::new, |(name, _)| name))
    }

    /// True if the namespace belongs to another host, whose log this session does not apply.
    pub(crate) fn is_others(&self, namespace: Namespace) -> Result<bool> {
        let flags = self.member.namespace_flags(namespace.index)?;
        Ok(flags & namespace_flags::FOLLOWED != 0 && !self.member.is_follower())
    }

    /// The identity of the region's log.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn log_identity(&self) -> Result<LogIdentity> {
        self.member.log_identity()
    }

    /// The highest stamp of a namespace's index: a follower needs it, so that a promoted copy gives
    /// no version twice.
    ///
    /// Complexity: linear in the number of buckets.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn highest_stamp(&self, namespace: Namespace) -> Result<u64> {
        self.member.highest_stamp(self.table(namespace)?)
    }

    /// True if all commits of a namespace go to the log. False while that is being declared.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn is_logged(&self, namespace: Namespace) -> Result<bool> {
        let flags = self.member.namespace_flags(namespace.index)?;
        Ok(flags & namespace_flags::LOGGED != 0
            && self.member.logged_since(namespace.index)?.is_some())
    }

    /// True if a namespace is a copy of another host's, which only the follower writes.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn is_followed(&self, namespace: Namespace) -> Result<bool> {
        Ok(self.member.namespace_flags(namespace.index)? & namespace_flags::FOLLOWED != 0)
    }

    /// Makes this session the one that applies the log of another region. Only its writes change
    /// followed namespaces.
    ///
    /// # Errors
    /// `BadArgument`: another process follows with this region; `System`, `Forked`, `Damaged`.
    pub fn follow(&self) -> Result<Follower<'_>> {
        let lock = self.member.lock_follower()?;
        if self.member.is_returning()? {
            self.finish_return()?;
            self.member.set_fenced(false)?;
        }
        self.finish_switch()?;
        self.complete_coming()?;
        self.member.set_left(false)?;
        let state = match self.member.following()? {
            Some(following) if following.state == FollowState::Promoting => {
                let detail = "the region is being promoted: run `nearstate region promote` again";
                return Err(Error::BadArgument { detail: detail.to_owned() });
            }
            Some(following) if following.state == FollowState::Demoting => {
                let detail = "the region is being demoted: the node of its cluster completes that";
                return Err(Error::BadArgument { detail: detail.to_owned() });
            }
            Some(following) => following.state,
            None => FollowState::Joining,
        };
        match state {
            // One of an earlier version has no log.
            FollowState::Full | FollowState::Extending => self.open_promoted_log()?,
            // Once it has discarded what it held.
            FollowState::Joining | FollowState::Promoting | FollowState::Demoting => {}
        }
        invariant!(!self.member.is_follower(), "two followers of one session hold the lock");
        self.member.set_follower(true);
        let mut follower = Follower {
            session: self,
            namespaces: BTreeMap::new(),
            state,
            remembered: BTreeMap::new(),
            announcement: Announcement::Begun,
            indexing: VecDeque::new(),
            _lock: lock,
        };
        follower.begin_connection()?;
        Ok(follower)
    }

    /// Makes a region that follows another one a region of its own: its namespaces may be written,
    /// and each version that it gives is higher than any that the other region has given or will
    /// give. A promotion that was killed is repeated. Until `accepts_joining`, a region that has
    /// not yet all records of a moment is refused.
    ///
    /// Complexity: linear in the number of records, about 20 ns each.
    ///
    /// # Errors
    /// `BadArgument`: the region follows none, is a copy of a cluster's partition, another process
    /// follows with it, or it is still joining; `Full`: no promotion is left; `Stalled`, `Damaged`.
    pub fn promote(&self, accepts_joining: bool) -> Result<Promotion> {
        self.check_is_no_partition()?;
        let (_lock, following) = self.begin_promotion(accepts_joining)?;
        self.raise_generations()?;
        // All versions are higher from here on: the namespaces may be written.
        let namespaces = self.open_to_writers(|_| true)?;
        self.member.raise_log_incarnation()?;
        self.member.set_follow_state(None)?;
        Ok(Promotion { namespaces, position: following.applied.position })
    }

    /// The followed namespaces with such flags may be written from here on. Returns their number.
    pub(crate) fn open_to_writers(&self, is_opened: impl Fn(u64) -> bool) -> Result<usize> {
        let followed = self.followed_namespaces()?;
        for (_, namespace) in &followed {
            if is_opened(self.member.namespace_flags(namespace.index)?) {
                self.member.open_to_writers(namespace.index)?;
            }
        }
        Ok(followed.len())
    }

    /// Completes a switch to another log, or a return, that was killed. The caller has the
    /// follower's lock.
    pub(crate) fn finish_switch(&self) -> Result<()> {
        if self.member.is_returning()? {
            return self.finish_return();
        }
        if self.member.is_switching()? {
            for (_, namespace) in self.followed_namespaces()? {
                self.member.take_next_source_number(namespace.index)?;
            }
            self.member.end_switch()?;
        }
        Ok(())
    }

    pub(crate) fn followed_namespaces(&self) -> Result<Vec<(String, Namespace)>> {
        let mut all = self.namespaces()?;
        let mut failed = None;
        all.retain(|(_, namespace)| match self.member.namespace_flags(namespace.index) {
            Ok(flags) => flags & namespace_flags::FOLLOWED != 0,
            Err(error) => {
                failed = Some(error);
                false
            }
        });
        failed.map_or(Ok(all), Err)
    }
}

impl Follower<'_> {
    /// How far the copy is.
    pub const fn state(&self) -> FollowState {
        self.state
    }

    /// Discards the records of all followed namespaces, and follows this log from its beginning.
    ///
    /// Complexity: a transaction for 32 records.
    ///
    /// # Errors
    /// As [`Follower::forget`] and [`Follower::discard_all`].
    pub fn begin(&mut self, source: LogIdentity) -> Result<()> {
        self.forget(source)?;
        self.discard_all()
    }

    /// The region is a copy of no moment any more, and follows this log from its beginning. Some
    /// stores: what it held is discarded by [`Follower::discard_all`].
    ///
    /// # Errors
    /// `BadArgument`: it is the region's own log; `Damaged`, `Forked`.
    pub fn forget(&mut self, source: LogIdentity) -> Result<()> {
        let session = self.session;
        session.check_is_other(source)?;
        invariant!(
            session.member.is_follower(),
            "a session without the follower's lock begins anew"
        );
        session.member.begin_following(source)?;
        self.state = FollowState::Joining;
        self.namespaces.clear();
        self.remembered.clear();
        self.indexing.clear();
        Ok(())
    }

    /// Discards the records of all followed namespaces, behind [`Follower::forget`], and makes room
    /// for the log that the region writes once it is promoted.
    ///
    /// Complexity: a transaction for 32 records.
    ///
    /// # Errors
    /// `Full`: also if other namespaces leave no room for the log; `Stalled`, `Damaged`, `Forked`.
    pub fn discard_all(&mut self) -> Result<()> {
        let session = self.session;
        for (_, namespace) in session.followed_namespaces()? {
            self.discard(namespace)?;
        }
        session.open_promoted_log()
    }

    fn discard(&self, namespace: Namespace) -> Result<()> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let session = self.session;
        loop {
            let mut buckets = session.buckets(namespace)?;
            let mut is_empty = true;
            loop {
                let has_more = session.walk_stored(namespace, &mut buckets, 64, |view| {
                    keys.push(view.key().to_vec());
                    Ok(())
                })?;
                for keys in keys.chunks(DISCARDED_AT_ONCE) {
                    is_empty = false;
                    session.transact(|txn| {
                        txn.validated_once(|| {
                            keys.iter().try_for_each(|key| txn.delete(namespace, key).map(drop))
                        })
                    })?;
                }
                keys.clear();
                if !has_more {
                    break;
                }
            }
            if is_empty {
                return Ok(());
            }
        }
    }

    /// The copy has everything of the log that it follows, whose owner has gone. From here on it
    /// follows the log of the new owner behind a position at which nothing is changed. `numbers`
    /// has the number of each namespace at the new owner, by its present one. A kill leaves one
    /// log or the other. The source then tells its namespaces.
    ///
    /// # Errors
    /// `Damaged`: the copy is not full; `Forked`.
    pub fn switch(
        &mut self,
        to: LogIdentity,
        place: FollowPosition,
        numbers: &BTreeMap<u32, u32>,
    ) -> Result<()> {
        const EARLY: Corruption = Corruption("a switch for a follower that has not all records");
        let session = self.session;
        if self.state != FollowState::Full {
            return Err(EARLY.into());
        }
        for (_, namespace) in session.followed_namespaces()? {
            let present = session.member.source_number(namespace.index)?;
            let next = present.and_then(|present| numbers.get(&present)).copied();
            session.member.set_next_source_number(namespace.index, next)?;
        }
        session.member.begin_switch(to, place)?;
        session.finish_switch()?;
        self.begin_connection()
    }

    /// Opens a namespace of the source, and refuses all other writers of it from now on. Its tags
    /// are declared when the copy is full. An empty one of another kind is removed before.
    ///
    /// # Errors
    /// `BadArgument`: it has records of this region, or is of another kind and was declared here;
    /// `Full`, `Stalled`, `Damaged`.
    pub fn namespace(&mut self, followed: &FollowedNamespace<'_>) -> Result<()> {
        let session = self.session;
        self.remove_predecessor(followed)?;
        let schema = Schema { kind: followed.kind, tags: Vec::new() };
        let namespace = session.namespace(followed.name, &schema)?;
        let flags = session.member.namespace_flags(namespace.index)?;
        if flags & namespace_flags::FOLLOWED == 0 {
            session.member.set_namespace_flag(namespace.index, namespace_flags::FOLLOWED)?;
            session.member.drain_writers(session.table(namespace)?)?;
            if session.count(namespace)? != 0 {
                session.member.update_namespace_flags(namespace.index, |word| {
                    word & !namespace_flags::FOLLOWED
                })?;
                return Err(session.has_own_records(followed.name)?);
            }
        }
        let mut known = self.namespaces.iter();
        if known.any(|(at, one)| one.namespace == namespace && *at != followed.number) {
            const TWICE: Corruption = Corruption("the source has two namespaces of one name");
            return Err(TWICE.into());
        }
        if session.member.source_number(namespace.index)? != Some(followed.number) {
            // Those of a namespace of this name that the source has removed.
            self.discard_removed(namespace)?;
            session.member.set_source_number(namespace.index, followed.number)?;
            self.remembered.retain(|_, known| *known != namespace);
        }
        session.member.note_stamp(followed.stamp)?;
        if session.replication_policy(namespace)? != followed.policy {
            session.member.set_commits_wait(namespace.index, followed.policy, false)?;
        }
        let tags = followed.tags.clone();
        if self.state == FollowState::Full && !tags.is_empty() {
            // The records of a namespace that is empty arrive with their tags.
            if session.count(namespace)? == 0 {
                session.add_tags(namespace, &tags)?;
            } else {
                self.announce(namespace, &tags)?;
            }
        }
        self.namespaces.insert(followed.number, Followed { namespace, tags });
        Ok(())
    }

    /// Adds tags whose records [`Follower::index_some`] indexes.
    fn announce(&mut self, namespace: Namespace, tags: &[TagSchema]) -> Result<()> {
        self.indexing.retain(|pending| pending.namespace() != namespace);
        self.indexing.extend(self.session.announce_tags(namespace, tags)?);
        Ok(())
    }

    /// Whether [`Follower::index_some`] has something to do.
    pub fn is_indexing(&self) -> bool {
        !self.indexing.is_empty()
    }

    /// Indexes some records of a namespace to which tags were added, so that the follower answers
    /// its source meanwhile. True if some are left: then it is to be called again, also between
    /// entries, which keep the tags up to date. What a follower has left when it ends, the next one
    /// or a promotion completes.
    ///
    /// # Errors
    /// As [`Session::add_tags`].
    pub fn index_some(&mut self) -> Result<bool> {
        if let Some(pending) = self.indexing.front_mut()
            && !self.session.continue_tag_declaration(pending, INDEXED_AT_ONCE)?
        {
            self.indexing.pop_front();
        }
        Ok(!self.indexing.is_empty())
    }

    /// The source has removed a namespace. So does the follower.
    ///
    /// # Errors
    /// `Stalled`, `Full`, `Damaged`.
    pub fn remove_namespace(&mut self, number: u32) -> Result<()> {
        let known = self.namespaces.remove(&number).map(|followed| followed.namespace);
        let remembered = self.remembered.remove(&number);
        let Some(namespace) = known.or(remembered) else { return Ok(()) };
        self.remove_copy(namespace)
    }

    /// Applies the changes of one transaction of the source, in one transaction. `time_ms` is the
    /// time by which the source has judged expiry: watches learn of what had expired then.
    ///
    /// # Errors
    /// `Damaged`: the region is not a copy of the source's, or a change is none; `Full`, `Stalled`,
    /// `Deadline`, and those of the operations.
    pub fn apply(&mut self, time_ms: u64, records: &[FollowedRecord<'_>]) -> Result<()> {
        const EARLY: Corruption = Corruption("an entry for a follower that has not all records");
        if self.state != FollowState::Full {
            return Err(EARLY.into());
        }
        self.apply_all(time_ms, records)
    }

    /// The source has judged what had expired, by its clock.
    fn apply_all(&self, time_ms: u64, records: &[FollowedRecord<'_>]) -> Result<()> {
        // Without it the session would refuse its own changes to followed namespaces.
        invariant!(self.session.member.is_follower(), "a session applies what it does not follow");
        without_expiry(|| {
            if let [record] = records
                && self.apply_alone(record)?
            {
                return Ok(());
            }
            self.session.transact(|txn| {
                txn.validated_once(|| {
                    records.iter().try_for_each(|record| self.apply_one(txn, time_ms, record))
                })
            })
        })
    }

    fn apply_one(&self, txn: &Txn<'_>, time_ms: u64, record: &FollowedRecord<'_>) -> Result<()> {
        let Some(namespace) = self.namespace_at_source(record.namespace)? else { return Ok(()) };
        let key = record.key;
        let (index, present, had_expired) = {
            let mut set = txn.set.borrow_mut();
            let hash = set.session.hash(key);
            let index = set.find_entry(namespace.index, hash, key);
            let (index, stored) = set.read_ends_at(index, namespace.index, hash, key)?;
            if set.is_written(index) {
                return Err(Corruption("an entry changes a record twice").into());
            }
            (index, stored.map_or(0, |(cell, _)| cell.version()), had_expired(stored, time_ms)?)
        };
        if !is_record_version(record.version) {
            return Err(Corruption("a change has a version that no record has").into());
        }
        let is_deletion = matches!(record.change, StreamedChange::Deleted { .. });
        // Of a deletion, the version is the last one: that of the record, or a later one. What
        // continues a record has the version of its first part.
        let continues = record.base_version == Some(record.version);
        if present > record.version || present == record.version && !is_deletion && !continues {
            return Ok(());
        }
        match record.base_version {
            Some(base) if base != present && !(is_deletion && present == 0) => {
                return Err(not_a_copy(key, present, base));
            }
            Some(_) | None => {}
        }
        let changed = ChangedRecord { txn, namespace, key };
        changed.write(&record.change)?;
        if !is_deletion && present != record.version && !txn.set.borrow().is_written(index) {
            // A change that leaves every byte as it is: only the version is new.
            changed.write_unchanged(index)?;
        }
        let mut set = txn.set.borrow_mut();
        let entry = set.entry_mut(index);
        if entry.write.is_none() {
            // A version that continues a record and changes nothing of it.
            return Ok(());
        }
        invariant!(entry.table == namespace.index, "a change is written to another namespace");
        invariant!(!is_deletion || entry.write.is_delete(), "the deletion of a record writes it");
        invariant!(entry.imposed == 0, "a record gets two versions of its source");
        entry.imposed = record.version;
        entry.is_expiry = matches!(record.change, StreamedChange::Deleted { is_expiry: true });
        entry.had_expired = had_expired;
        Ok(())
    }

    /// Everything up to this position was applied.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn set_position(&mut self, applied: FollowPosition) -> Result<()> {
        self.session.member.set_follow_position(applied)?;
        self.note_arrived(applied.position)
    }

    /// Behind the last applied entry there is none up to this position.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn set_reached(&self, position: u64) -> Result<()> {
        self.session.member.set_follow_reached(position)
    }

    /// The copy has everything up to this position: its tags are declared, and it is full. A copy
    /// that was full before answers its source meanwhile: it indexes in [`Follower::index_some`].
    ///
    /// Complexity: linear in the records of namespaces with tags, for a copy that joins.
    ///
    /// # Errors
    /// As [`Session::add_tags`].
    pub fn complete(&mut self, applied: FollowPosition) -> Result<()> {
        self.end_announcement()?;
        let with_tags = self.namespaces.values().filter(|followed| !followed.tags.is_empty());
        let with_tags: Vec<_> =
            with_tags.map(|followed| (followed.namespace, followed.tags.clone())).collect();
        for (namespace, tags) in with_tags {
            if self.state == FollowState::Extending {
                self.announce(namespace, &tags)?;
            } else {
                self.session.add_tags(namespace, &tags)?;
            }
        }
        invariant!(
            self.announcement == Announcement::Complete,
            "a copy is full before it knows all namespaces of its source"
        );
        self.set_position(applied)?;
        self.session.member.set_follow_state(Some(FollowState::Full))?;
        self.state = FollowState::Full;
        Ok(())
    }
}
