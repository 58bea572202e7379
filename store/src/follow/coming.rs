//! The entry that a follower applies: its commit and its position are two steps, and a kill between
//! them leaves a copy that has the entry ([`nearstate_memory::ComingEntry`]).

use nearstate_memory::{ComingEntry, FollowPosition, FollowState, Following};
use nearstate_model::Result;

use super::Follower;
use crate::feed::FollowedRecord;
use crate::log::entry::StreamedChange;
use crate::session::Session;

impl Session {
    /// What the region follows, if it follows another one. An entry that was committed counts as
    /// applied, also if its follower was killed before it stored the position.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn following(&self) -> Result<Option<Following>> {
        let Some(mut following) = self.member.following()? else { return Ok(None) };
        if following.state == FollowState::Full
            && let Some(place) = self.coming_if_applied(following.applied)?
        {
            following.applied = place;
            following.reached = following.reached.max(place.position);
        }
        Ok(Some(following))
    }

    /// The place of the coming entry, if the region has it and its follower has not stored that.
    /// It is an entry of one transaction, so one record shows it. Behind its commit nothing is
    /// applied before the place is stored: the follower ends, or the next one completes it.
    fn coming_if_applied(&self, applied: FollowPosition) -> Result<Option<FollowPosition>> {
        let Some(coming) = self.member.coming_entry()? else { return Ok(None) };
        if coming.place.position <= applied.position {
            return Ok(None);
        }
        let mut followed = self.followed_namespaces()?.into_iter();
        let Some((_, namespace)) = followed.find(|(_, known)| coming.is_of(known.index)) else {
            return Ok(None);
        };
        let _held = self.member.pin()?;
        let present = self.member.version_of_hash(self.table(namespace)?, coming.hash)?;
        let is_applied = match coming.version {
            0 => present.is_none(),
            version => present.is_some_and(|present| present >= version),
        };
        Ok(is_applied.then_some(coming.place))
    }

    /// Stores the place of an entry whose follower was killed behind its commit. The caller has
    /// the follower's lock.
    pub(super) fn complete_coming(&self) -> Result<()> {
        let following = self.member.following()?;
        if let Some(following) = following.filter(|known| known.state == FollowState::Full)
            && let Some(place) = self.coming_if_applied(following.applied)?
        {
            self.member.set_follow_position(place)?;
        }
        self.member.clear_coming_entry()
    }
}

impl Follower<'_> {
    /// Applies an entry of the source, in one transaction, and stores its position. A kill in
    /// between leaves a copy that reports the entry ([`Session::following`]).
    ///
    /// # Errors
    /// As [`Follower::apply`].
    pub fn apply_entry(
        &mut self,
        place: FollowPosition,
        time_ms: u64,
        records: &[FollowedRecord<'_>],
    ) -> Result<()> {
        self.note_coming(place, records)?;
        self.apply(time_ms, records)?;
        self.set_position(place)
    }

    /// Stores which entry comes. One that changes no namespace of the copy leaves it as it is.
    fn note_coming(&self, place: FollowPosition, records: &[FollowedRecord<'_>]) -> Result<()> {
        let mut deleted = None;
        for record in records {
            let Some(namespace) = self.namespace_at_source(record.namespace)? else { continue };
            let hash = self.session.hash(record.key);
            if matches!(record.change, StreamedChange::Deleted { .. }) {
                deleted = deleted.or(Some((namespace.index, hash)));
                continue;
            }
            let (namespace, version) = (namespace.index, record.version);
            let coming = ComingEntry { place, namespace, hash, version };
            return self.session.member.set_coming_entry(&coming);
        }
        // Only deletions: what is absent afterwards shows them.
        let Some((namespace, hash)) = deleted else { return Ok(()) };
        let coming = ComingEntry { place, namespace, hash, version: 0 };
        self.session.member.set_coming_entry(&coming)
    }
}
