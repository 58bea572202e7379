//! A region that has everything of a log up to a position becomes a copy of that log again, with
//! its records (rule 8 of decision 026).
//!
//! ```text
//! K1  writers are fenced and drained; the region has exactly what the log has up to a position
//! K2  the numbers, the log and the position are stored, state := returning
//! K3  flag FOLLOWED, drain the writers
//! K4  positions of the own log behind the seal are a gap; those up to it stay as they are until
//!     the copy counts ([`Session::settle_receipts`]): perhaps no other host has them
//! K5  the log forgets its entries, no namespace is logged, incarnation + 1
//! K6  the numbers, the log and the position take their places, state := full
//! ```
//!
//! From K2 on the region is a complete copy for all that look at it, also after a kill; K3 to K6
//! are repeated by the next one that follows, promotes or demotes.

use nearstate_memory::layout::namespace_flags;
use nearstate_memory::{FollowPosition, FollowState, LogIdentity};
use nearstate_model::{Result, invariant};

use crate::session::Session;

impl Session {
    /// Makes the owner's region a complete copy of its own log, because another host owns the
    /// partition or one will, and goes on behind this position of it. Receipts are not decided:
    /// perhaps no other host has their commits. Writers are fenced. Can be repeated.
    ///
    /// False if the region does not hold exactly what the log had there: then [`Session::demote`]
    /// makes it an empty copy. Nothing is changed but that commits in progress have ended.
    ///
    /// Complexity: linear in the number of buckets, about 60 ns each.
    ///
    /// # Errors
    /// `Stalled`: a stopped process is in a commit; `Damaged`, `Forked`.
    pub fn demote_to_copy(&self, log: LogIdentity, seal: FollowPosition) -> Result<bool> {
        let _lock = self.member.lock_follower()?;
        invariant!(!self.member.is_follower(), "the session of a follower demotes its region");
        if self.member.is_returning()? {
            self.finish_return()?;
            self.member.set_fenced(false)?;
            return Ok(true);
        }
        if self.member.following()?.is_some() || self.member.log_identity()? != log {
            return Ok(false);
        }
        invariant!(self.is_fenced()?, "writers are fenced before their log ends");
        self.drain_logged()?;
        let last = self.last_entry()?;
        // Behind the last entry there may be positions without one.
        let is_within =
            last.position <= seal.position && self.log_tail_position()? >= seal.position;
        if last.position == 0 || last.check != seal.check || !is_within {
            return Ok(false);
        }
        for (_, namespace) in self.namespaces()? {
            if self.member.namespace_flags(namespace.index)? & namespace_flags::LOGGED != 0 {
                let number = Some(namespace.number());
                self.member.set_next_source_number(namespace.index, number)?;
            }
        }
        self.member.begin_return(log, last, seal.position)?;
        self.finish_return()?;
        self.member.set_fenced(false)?;
        Ok(true)
    }

    /// The region whose promotion was killed is a copy again, of the log that it has followed:
    /// another host owns the partition. False, and nothing is changed, if it was no complete copy.
    ///
    /// Complexity: linear in the number of buckets, about 60 ns each.
    ///
    /// # Errors
    /// `Stalled`: a stopped process is in a commit; `Damaged`, `Forked`.
    pub fn abandon_promotion(&self) -> Result<bool> {
        let _lock = self.member.lock_follower()?;
        let Some(following) = self.member.following()? else { return Ok(false) };
        let is_whole = following.source != LogIdentity::default();
        if following.state != FollowState::Promoting || !is_whole {
            return Ok(false);
        }
        // A part of its namespaces may have been opened to writers.
        self.member.set_fenced(true)?;
        self.drain_logged()?;
        for (_, namespace) in self.namespaces()? {
            let flags = self.member.namespace_flags(namespace.index)?;
            if flags & (namespace_flags::LOGGED | namespace_flags::FOLLOWED) != 0 {
                let number = self.member.source_number(namespace.index)?;
                self.member.set_next_source_number(namespace.index, number)?;
            }
        }
        self.member.begin_return(following.source, following.applied, following.reached)?;
        self.finish_return()?;
        self.member.set_fenced(false)?;
        Ok(true)
    }

    /// K3 to K6. The caller has the follower's lock, and ends the fence unless it promotes.
    pub(crate) fn finish_return(&self) -> Result<()> {
        let Some(following) = self.member.following()? else {
            invariant!("a region that returns follows a log");
        };
        self.refuse_own_writers()?;
        if following.source.region == self.member.log_identity()?.region {
            self.member.lose_log_behind(following.reached)?;
        }
        self.end_own_log()?;
        for (_, namespace) in self.followed_namespaces()? {
            self.member.take_next_source_number(namespace.index)?;
        }
        self.member.end_switch()
    }
}
