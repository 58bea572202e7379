//! The steps of a promotion that both kinds have: with a log ([`Session::promote_logged`]), and
//! without ([`Session::promote`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nearstate_memory::{AdvisoryLock, FollowState, Following, LogIdentity};
use nearstate_model::{Error, Result, invariant};

use super::INDEXED_AT_ONCE;
use crate::index::schema::{TagSchema, TagState};
use crate::session::{Namespace, Session};

impl Session {
    /// Makes the log of a copy before it counts as one: a promotion allocates nothing, so it
    /// succeeds in a full heap.
    pub(super) fn open_promoted_log(&self) -> Result<()> {
        self.member.open_log().map_err(|error| {
            let Error::Full { detail, heap } = error else { return error };
            let detail = format!(
                "{detail}. The copy needs room for the log that it writes if it becomes the owner, \
                 and counts for nothing before: delete records of local namespaces, or raise the \
                 limit of the region"
            );
            Error::Full { detail, heap }
        })
    }

    /// Refuses a copy of a cluster's partition: its members decide which one owns it. Promoted
    /// alone, its namespaces would be local, and what is written lost to the partition.
    pub(super) fn check_is_no_partition(&self) -> Result<()> {
        if !self.is_of_partition()? {
            return Ok(());
        }
        let detail = "the region is a copy of a partition of a cluster: its hosts decide which one \
                      owns it. `nearstate cluster drain` gives the partition to another host; \
                      after a loss, `nearstate cluster accept-loss` names the copy that goes on, \
                      and `nearstate cluster force-new --from-region` an incomplete one";
        Err(Error::BadArgument { detail: detail.to_owned() })
    }

    /// True if the region is the copy of a cluster's host, or becomes one. One that was taken out
    /// of its cluster may follow an ordinary region.
    pub(super) fn is_of_partition(&self) -> Result<bool> {
        let Some(following) = self.following()? else { return Ok(false) };
        let log = following.source;
        let has_belonged =
            self.member.bound_cluster()?.is_some() || self.member.namespace_rules()?.is_some();
        Ok(has_belonged && (log.origin != 0 || log == LogIdentity::default()))
    }

    /// Takes the follower's lock, checks that there is something to promote, and begins. The lock
    /// ends with the promotion.
    pub(crate) fn begin_promotion(
        &self,
        accepts_joining: bool,
    ) -> Result<(AdvisoryLock, Following)> {
        let refuse = |detail: &str| Err(Error::BadArgument { detail: detail.to_owned() });
        let lock = self.member.lock_follower()?;
        invariant!(!self.member.is_follower(), "the session of a follower promotes its region");
        self.finish_switch()?;
        self.complete_coming()?;
        let Some(following) = self.member.following()? else {
            return refuse("the region follows no other one: there is nothing to promote");
        };
        match following.state {
            FollowState::Full | FollowState::Promoting => {}
            FollowState::Demoting => {
                return refuse("the region is being demoted: it has no records to promote");
            }
            FollowState::Joining | FollowState::Extending if accepts_joining => {}
            FollowState::Joining | FollowState::Extending => {
                return refuse(
                    "the region has not yet received all records: let `nearstate region follow` \
                     complete, or promote what is there with --incomplete",
                );
            }
        }
        self.member.begin_promotion()?;
        self.complete_tags()?;
        Ok((lock, following))
    }

    /// The number of steps that promotions by this session have made: it rises while one goes on,
    /// and no longer if it does not.
    pub fn promotion_steps(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.promotion_steps)
    }

    /// How many promotions are left to the hosts that have the same records, of
    /// [`PROMOTIONS_MAX`](nearstate_memory::PROMOTIONS_MAX), as far as this region knows.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn promotions_left(&self) -> Result<u64> {
        self.member.promotions_left()
    }

    fn count_promotion_step(&self) {
        self.promotion_steps.fetch_add(1, Ordering::Relaxed);
    }

    /// Later versions of all followed namespaces are of one generation, above the other region's.
    pub(crate) fn raise_generations(&self) -> Result<()> {
        let stamp = if let Some(chosen) = self.member.promotion_stamp()? {
            chosen
        } else {
            let (stamp, version) = self.highest_followed()?;
            self.member.choose_promotion_stamp(stamp, version)?
        };
        for (_, namespace) in self.followed_namespaces()? {
            let step = || self.count_promotion_step();
            self.member.raise_generation(self.table(namespace)?, stamp, &step)?;
            step();
        }
        // A name may be removed and created again.
        self.member.note_stamp(stamp)
    }

    /// The highest stamp and the highest version of the followed namespaces.
    fn highest_followed(&self) -> Result<(u64, u64)> {
        let (mut stamp, mut version) = (0, 0);
        for (_, namespace) in self.followed_namespaces()? {
            stamp = stamp.max(self.member.highest_stamp(self.table(namespace)?)?);
            let mut buckets = self.buckets(namespace)?;
            while self.walk_stored(namespace, &mut buckets, 64, |view| {
                version = version.max(view.version());
                Ok(())
            })? {
                self.count_promotion_step();
            }
        }
        Ok((stamp, version))
    }

    /// Tags whose records the follower had not all indexed when it ended.
    fn complete_tags(&self) -> Result<()> {
        // The namespaces are the follower's until the promotion is complete.
        invariant!(!self.member.is_follower(), "a follower promotes its own copy");
        self.member.set_follower(true);
        let completed = self.complete_followed_tags();
        self.member.set_follower(false);
        completed
    }

    fn complete_building(&self, namespace: Namespace, tags: &[TagSchema]) -> Result<()> {
        let Some(mut pending) = self.announce_tags(namespace, tags)? else { return Ok(()) };
        while self.continue_tag_declaration(&mut pending, INDEXED_AT_ONCE)? {
            self.count_promotion_step();
        }
        Ok(())
    }

    fn complete_followed_tags(&self) -> Result<()> {
        for (_, namespace) in self.followed_namespaces()? {
            let tags = self.tags(namespace)?.into_iter();
            let building: Vec<TagSchema> =
                tags.filter(|tag| tag.state == TagState::Building).map(TagSchema::from).collect();
            if building.is_empty() {
                continue;
            }
            match self.complete_building(namespace, &building) {
                // The owner can serve without, and delete. The next declaration completes them.
                Ok(()) | Err(Error::Full { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
