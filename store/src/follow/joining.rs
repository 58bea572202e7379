//! Records that a source sends in no order, while a copy joins.

use nearstate_memory::{FollowState, LogIdentity, without_expiry};
use nearstate_model::{Error, Result};

use super::Follower;
use super::change::Decoded;
use crate::feed::FollowedRecord;
use crate::log::entry::StreamedChange;
use crate::session::Session;

impl Session {
    /// Checks, before anything of the region is changed, that it may become a copy of this log. A
    /// region that follows none must have no records: they would be nowhere else.
    ///
    /// # Errors
    /// `BadArgument`: it has records of its own, or it is the log of this region; `Damaged`.
    pub fn check_may_join(&self, source: LogIdentity) -> Result<()> {
        self.check_is_other(source)?;
        if self.following()?.is_some() {
            return Ok(());
        }
        for (name, namespace) in self.namespaces()? {
            if !self.is_empty(namespace)? {
                let detail = format!(
                    "the region has records of its own (namespace {name:?}) and follows no other \
                     region: follow with a new region"
                );
                return Err(Error::BadArgument { detail });
            }
        }
        Ok(())
    }

    /// Refuses the region's own log.
    pub(super) fn check_is_other(&self, source: LogIdentity) -> Result<()> {
        if self.log_identity()?.region != source.region {
            return Ok(());
        }
        let detail = "the source and the follower are one region: give the path of another region";
        Err(Error::BadArgument { detail: detail.to_owned() })
    }
}

impl Follower<'_> {
    /// Applies a record while the copy is joining, or joins anew because of a namespace that was
    /// not followed before. Watches learn that it was updated, also if what it replaces had
    /// expired. Another record that has one of its unique values is discarded: it is older, and its
    /// change follows.
    ///
    /// # Errors
    /// As [`Follower::apply`].
    pub fn apply_joining(&mut self, record: &FollowedRecord<'_>) -> Result<()> {
        if self.state == FollowState::Full {
            self.session.member.set_follow_state(Some(FollowState::Extending))?;
            self.state = FollowState::Extending;
        }
        loop {
            match self.apply_all(0, std::slice::from_ref(record)) {
                // Each round discards a record, so that the loop ends.
                Err(Error::TagTaken { tag, value, holder }) => {
                    if !self.discard_holders(record, &tag)? {
                        return Err(Error::TagTaken { tag, value, holder });
                    }
                }
                other => return other,
            }
        }
    }

    /// Deletes the records that have a unique value of this record, also expired ones. False if
    /// there is none.
    fn discard_holders(&self, record: &FollowedRecord<'_>, tag: &str) -> Result<bool> {
        let Some(namespace) = self.namespace_at_source(record.namespace)? else { return Ok(false) };
        let meta = match &record.change {
            StreamedChange::Put { meta, .. } => meta,
            StreamedChange::Patched { meta, .. } | StreamedChange::Elements { meta, .. } => {
                meta.unwrap_or_default()
            }
            StreamedChange::Deleted { .. } => &[][..],
        };
        let session = self.session;
        let mut has_discarded = false;
        for (_, value) in Decoded::of(meta)?.tags.iter().filter(|(name, _)| *name == tag) {
            let holder = session.holder_in_index(namespace, tag, value)?;
            if let Some(holder) = holder.filter(|holder| holder != record.key) {
                let delete = || session.transact(|txn| txn.delete(namespace, &holder));
                has_discarded |= without_expiry(delete)?;
            }
        }
        Ok(has_discarded)
    }
}
