//! What a connection tells a follower about the namespaces of its source.

use nearstate_memory::layout::namespace_flags;
use nearstate_memory::{Corruption, FollowState};
use nearstate_model::{Error, Result, invariant};

use super::{FollowedNamespace, Follower};
use crate::index::schema::{Tag, TagSchema};
use crate::session::{Namespace, Session};

/// Attempts to remove a namespace that has no record any more: each that fails has met a process
/// that begins to use it.
const REMOVALS_MAX: u32 = 100;

/// How much of a source's namespaces a follower was told of on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Announcement {
    /// No end of the log is known.
    Begun,
    /// All of them, when everything up to this position has arrived: the end of the log at a moment
    /// after the source has looked at its namespaces.
    Until(u64),
    /// All of them.
    Complete,
}

impl Session {
    /// How to begin with a region that has no records.
    fn new_region_advice(&self) -> Result<&'static str> {
        Ok(if self.is_of_partition()? {
            "stop the node, move the region's file away, and start it: the copy gets all records \
             of the partition"
        } else {
            "follow with a new region"
        })
    }

    /// The refusal of a namespace whose records are of this region.
    pub(super) fn has_own_records(&self, name: &str) -> Result<Error> {
        let advice = self.new_region_advice()?;
        let detail = format!(
            "namespace {name:?} of this region has records of its own, and the source has one of \
             the same name: {advice}"
        );
        Ok(Error::BadArgument { detail })
    }
}

impl Follower<'_> {
    /// A connection begins: the source tells its namespaces again.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn begin_connection(&mut self) -> Result<()> {
        self.namespaces.clear();
        self.indexing.clear();
        self.remembered.clear();
        for (_, namespace) in self.session.followed_namespaces()? {
            if let Some(number) = self.session.member.source_number(namespace.index)? {
                self.remembered.insert(number, namespace);
            }
        }
        self.announcement = Announcement::Begun;
        Ok(())
    }

    /// Everything up to `position` was applied, and `tail` was the end of the source's log after it
    /// has looked at its namespaces for this connection.
    ///
    /// # Errors
    /// `Stalled`, `Full`, `Damaged`.
    pub fn note_tail(&mut self, position: u64, tail: u64) -> Result<()> {
        if self.announcement == Announcement::Begun {
            self.announcement = Announcement::Until(tail);
        }
        self.note_arrived(position)
    }

    /// Ends the announcement if everything up to its end has arrived.
    pub(super) fn note_arrived(&mut self, position: u64) -> Result<()> {
        match self.announcement {
            Announcement::Until(tail) if position >= tail => self.end_announcement(),
            Announcement::Until(_) | Announcement::Begun | Announcement::Complete => Ok(()),
        }
    }

    /// After the source has told its namespaces, and has sent the last entries of removed ones:
    /// discards and removes those that are not among them. They were removed while the follower was
    /// away.
    pub(super) fn end_announcement(&mut self) -> Result<()> {
        if self.announcement == Announcement::Complete {
            return Ok(());
        }
        invariant!(
            self.session.member.is_follower(),
            "only a follower removes what it was not told"
        );
        for (_, namespace) in self.session.followed_namespaces()? {
            let is_known = self.namespaces.values().any(|followed| followed.namespace == namespace);
            if !is_known {
                self.remove_copy(namespace)?;
            }
        }
        self.remembered.clear();
        self.announcement = Announcement::Complete;
        Ok(())
    }

    /// Before a namespace of the source is opened: removes one of its name that cannot hold its
    /// records.
    ///
    /// One that the source has removed while the follower was away goes if its kind or a tag is
    /// another one; otherwise its records are discarded later, and readers keep their handles. One
    /// of this region and of another kind, which a client of an older release may have created by a
    /// read, goes only under the conditions under which a full catalog removes it: it has no
    /// record, nothing of it was declared, and no writer is in it.
    ///
    /// # Errors
    /// `BadArgument`: it stays; else as [`Follower::remove_namespace`], and `Deadline`.
    pub(super) fn remove_predecessor(&mut self, followed: &FollowedNamespace<'_>) -> Result<()> {
        let (session, name) = (self.session, followed.name);
        let Some(present) = session.known_namespace(name)? else { return Ok(()) };
        let has_kind = present.kind() == followed.kind;
        if session.member.namespace_flags(present.index)? & namespace_flags::FOLLOWED == 0 {
            if has_kind || session.remove_unless_gone(present)? {
                return Ok(());
            }
            let detail = format!(
                "namespace {name:?} of this region has the kind {:?}, and the source has one of \
                 the same name and of the kind {:?}: remove its records and the namespace here, or \
                 {}",
                present.kind(),
                followed.kind,
                session.new_region_advice()?
            );
            return Err(Error::BadArgument { detail });
        }
        if session.member.source_number(present.index)? == Some(followed.number) {
            return Ok(());
        }
        let is_declared = |tag: &Tag| {
            let is_it =
                |wanted: &TagSchema| tag.name == wanted.name && tag.has_properties_of(wanted);
            followed.tags.iter().any(is_it)
        };
        if has_kind && session.tags(present)?.iter().all(is_declared) {
            return Ok(());
        }
        self.namespaces.retain(|_, known| known.namespace != present);
        self.remembered.retain(|_, known| *known != present);
        self.remove_copy(present)
    }

    /// Removes a namespace that the source has removed. One that can never be removed stays,
    /// without records and without a number at the source: the copy is complete all the same.
    pub(super) fn remove_copy(&mut self, namespace: Namespace) -> Result<()> {
        self.indexing.retain(|pending| pending.namespace() != namespace);
        self.discard_removed(namespace)?;
        let member = &self.session.member;
        for tries in 1..=REMOVALS_MAX {
            match self.session.remove_namespace(namespace) {
                Ok(true) => return Ok(()),
                // A process begins to watch it, or declares something of it.
                Ok(false) => self.session.pause(tries),
                Err(Error::BadArgument { .. }) if member.is_used_too_often(namespace.index)? => {
                    return member.clear_source_number(namespace.index);
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Deadline { tries: REMOVALS_MAX })
    }

    /// Discards the records of a namespace that the source has removed. It has none if everything
    /// that the source has done with it before was applied. Otherwise the copy is of no moment
    /// until a walk has ended.
    pub(super) fn discard_removed(&mut self, namespace: Namespace) -> Result<()> {
        if self.state == FollowState::Full && !self.session.is_empty(namespace)? {
            self.session.member.set_follow_state(Some(FollowState::Extending))?;
            self.state = FollowState::Extending;
        }
        invariant!(self.session.member.is_follower(), "records of a copy are discarded by another");
        self.discard(namespace)
    }

    /// The namespace with this number at the source. `None`: it was created and removed while the
    /// follower was away, and its changes are of no use.
    pub(super) fn namespace_at_source(&self, number: u32) -> Result<Option<Namespace>> {
        const UNKNOWN: Corruption = Corruption("a change of a namespace that was not announced");
        let known = self.namespaces.get(&number).map(|followed| followed.namespace);
        match known.or_else(|| self.remembered.get(&number).copied()) {
            None if self.announcement == Announcement::Complete
                || self.state == FollowState::Joining =>
            {
                Err(UNKNOWN.into())
            }
            known => Ok(known),
        }
    }
}
