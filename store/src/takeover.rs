//! The region of a member of a cluster: frozen for a report, promoted with its log, or demoted
//! (`docs/decisions/026-cluster.md`, rules 5, 7 and 8).
//!
//! ```text
//! promotion with the log                      demotion
//! P1  state := promoting                      D1  the seal is stored, state := demoting
//! P2  generations of all versions             D2  flag FOLLOWED, drain the writers
//! P3  namespaces are logged                   D3  positions behind the seal are a gap
//! P4  incarnation + 1, position := tail       D4  the log forgets its entries
//! P5  the takeover is stored                  D5  no namespace is logged
//! P6  no flag FOLLOWED                        D6  incarnation + 1
//! P7  state := none                           D7  state := joining, of no log
//! ```
//!
//! Each is repeated after a kill. P3 and P4 are not repeated behind P5: a writer may have begun
//! since P6, and the log that begins at the stored position has that.

mod kept_copy;

use std::time::Duration;

use nearstate_memory::layout::namespace_flags;
use nearstate_memory::{FollowState, Following, LogIdentity, OwnerLease, StallHook, Takeover};
use nearstate_model::{Error, Result, invariant};

use crate::follow::Promotion;
use crate::log::consumer::WhenFull;
use crate::session::Session;

/// What a demotion has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demotion {
    /// Namespaces that are followed now.
    pub namespaces: usize,
    /// Positions of the log behind the seal: their receipts answer `Lost`.
    pub lost: u64,
    /// How many of these had counted as replicated. Not 0 only after a loss that an operator has
    /// accepted.
    pub lost_replicated: u64,
    /// Positions behind what counts as replicated, if the seal is not known: their receipts answer
    /// `Unknown`.
    pub unknown: u64,
}

impl Session {
    /// Waits of this session for a lock that one process keeps are decided by the hook from now on
    /// ([`StalledHolder`](nearstate_memory::StalledHolder)). Without one they end with `Stalled`.
    pub fn set_stall_hook(&self, hook: Option<StallHook>) {
        self.member.set_stall_hook(hook);
    }

    /// The highest view that this host has seen.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn view_seen(&self) -> Result<u64> {
        Ok(self.member.view_seen()?)
    }

    /// This host has seen a view, and applies nothing of a lower one from now on. The caller waits
    /// until its follower has ended what it applies, before it relies on [`Session::following`].
    /// Returns the highest view that was seen. It survives a kill.
    ///
    /// # Errors
    /// `BadArgument`: a view above [`nearstate_memory::VIEW_MAX`]; `Damaged`, `Forked`.
    pub fn see_view(&self, view: u64) -> Result<u64> {
        self.member.raise_view_seen(view)
    }

    /// Refuses writers of logged namespaces (`Fenced`) from now on, or admits them again.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn set_fenced(&self, is_fenced: bool) -> Result<()> {
        self.member.set_fenced(is_fenced)
    }

    /// True while writers of logged namespaces are refused.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn is_fenced(&self) -> Result<bool> {
        Ok(self.member.is_fenced()?)
    }

    /// Whether this host owns the region. Output that rests on a read may leave the host only if
    /// the lease is held after the read. Cost: two loads and the clock.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn owner_lease(&self) -> Result<OwnerLease> {
        self.member.owner_lease()
    }

    /// The host owns the region until this time of [`lease_clock`](nearstate_memory::lease_clock).
    ///
    /// # Errors
    /// `System`: the kernel does not tell which boot this is; `Damaged`, `Forked`.
    pub fn set_owner_lease(&self, until: Duration) -> Result<()> {
        self.member.set_lease_end(until)
    }

    /// The region belongs to no cluster any more.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn end_leases(&self) -> Result<()> {
        self.member.end_leases()
    }

    /// Where the owner of the region is: refused writers learn it (`NotOwner`).
    ///
    /// # Errors
    /// `BadArgument`: a text of more than 112 bytes; `Damaged`, `Forked`.
    pub fn set_owner_address(&self, address: Option<&str>) -> Result<()> {
        self.member.set_owner_address(address)
    }

    /// Where the owner of a followed region is, if it is known.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn owner_address(&self) -> Result<Option<String>> {
        self.member.owner_address()
    }

    /// How the region became the owner's, if it did so with its present log.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn takeover(&self) -> Result<Option<Takeover>> {
        self.member.takeover()
    }

    /// The numbers of the namespaces in the log that the region has followed last, with those in
    /// its own log, of those that still exist.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn taken_over_numbers(&self) -> Result<Vec<(u32, u32)>> {
        let mut numbers = Vec::new();
        for (_, namespace) in self.namespaces()? {
            let flags = self.member.namespace_flags(namespace.index)?;
            if flags & (namespace_flags::LOGGED | namespace_flags::FOLLOWED) != 0
                && let Some(old) = self.member.source_number(namespace.index)?
            {
                numbers.push((old, namespace.number()));
            }
        }
        Ok(numbers)
    }

    /// Makes the copy the owner's region: as [`Session::promote`], and its namespaces are logged
    /// before they may be written, so that the other members continue with its log. A promotion
    /// that was killed is repeated, and gives the same result.
    ///
    /// Complexity: linear in the number of records, about 20 ns each.
    ///
    /// # Errors
    /// As [`Session::promote`], [`Session::stream`].
    pub fn promote_logged(
        &self,
        view: u64,
        when_full: WhenFull,
        accepts_joining: bool,
    ) -> Result<Takeover> {
        let (_lock, following) = self.begin_promotion(accepts_joining)?;
        let known = self
            .member
            .takeover()?
            .filter(|known| (known.old, known.seal) == (following.source, following.applied));
        self.raise_generations()?;
        let takeover = match known {
            Some(known) => {
                self.member.set_log_origin(view)?;
                Takeover { own: self.member.log_identity()?, ..known }
            }
            None => self.begin_own_log(&following, (view, when_full))?,
        };
        // Not those that were created since: they are not logged yet.
        self.open_to_writers(|flags| flags & namespace_flags::LOGGED != 0)?;
        self.member.set_follow_state(None)?;
        Ok(takeover)
    }

    /// Makes a copy that may be incomplete a region of its own by force, as [`Session::promote`],
    /// and its namespaces are logged before they may be written. Can be repeated.
    ///
    /// Complexity: linear in the number of records, about 20 ns each.
    ///
    /// # Errors
    /// As [`Session::promote`], [`Session::stream`]. No namespace may be written then.
    pub fn promote_incomplete(&self, when_full: WhenFull) -> Result<Promotion> {
        let (_lock, following) = self.begin_promotion(true)?;
        self.raise_generations()?;
        for (_, namespace) in self.followed_namespaces()? {
            self.log_namespace(namespace, when_full, false)?;
        }
        let namespaces = self.open_to_writers(|flags| flags & namespace_flags::LOGGED != 0)?;
        self.member.raise_log_incarnation()?;
        self.member.set_follow_state(None)?;
        Ok(Promotion { namespaces, position: following.applied.position })
    }

    /// P3 to P5.
    fn begin_own_log(
        &self,
        following: &Following,
        (view, when_full): (u64, WhenFull),
    ) -> Result<Takeover> {
        for (_, namespace) in self.followed_namespaces()? {
            self.log_namespace(namespace, when_full, false)?;
        }
        self.begin_incarnation(view)?;
        let takeover = Takeover {
            old: following.source,
            seal: following.applied,
            own: self.member.log_identity()?,
            position: self.member.log_tail()?,
        };
        self.member.set_takeover(&takeover)?;
        Ok(takeover)
    }

    /// The log of an ordinary region becomes that of a partition: its positions are those of
    /// another incarnation. Does nothing if that was done before.
    ///
    /// # Errors
    /// `BadArgument`: it is that of a partition since another view; `Damaged`, `Forked`.
    pub fn begin_partition(&self, view: u64) -> Result<()> {
        match self.member.log_identity()?.origin {
            0 => self.begin_incarnation(view),
            origin if origin == view => Ok(()),
            origin => {
                let detail = format!(
                    "the region's log is that of its partition since view {origin}: it does not \
                     begin anew in view {view}"
                );
                Err(Error::BadArgument { detail })
            }
        }
    }

    /// A copy that has not all records of a moment, or the region of an owner whose demotion was
    /// killed, is a copy of no log from here on. A promotion of it that is killed is then not taken
    /// for that of a whole copy: one follows a log.
    ///
    /// # Errors
    /// `BadArgument`: another process follows with this region; `Damaged`, `Forked`.
    pub fn leave_source(&self) -> Result<()> {
        let _lock = self.member.lock_follower()?;
        // What of the own log was not replicated when the copy began: this one does not tell.
        self.member.leave_log_open()?;
        self.member.begin_following(LogIdentity::default())
    }

    /// The log of an owner becomes that of its partition since another view: its positions are
    /// those of another incarnation.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn continue_partition(&self, view: u64) -> Result<()> {
        if self.member.log_identity()?.origin == view {
            Ok(())
        } else {
            self.begin_incarnation(view)
        }
    }

    fn begin_incarnation(&self, view: u64) -> Result<()> {
        // An incarnation has one origin.
        self.member.set_log_origin(0)?;
        self.member.raise_log_incarnation()?;
        self.member.set_log_origin(view)
    }

    /// The writers of logged namespaces that are in their commit end it, and so do those that
    /// create or remove a namespace. Before, they are fenced, so no other one begins: each of them
    /// checks that with its locks held.
    ///
    /// Complexity: linear in the number of buckets, about 30 ns each.
    ///
    /// # Errors
    /// `Stalled`: a stopped process is in a commit, or creates or removes a namespace; `Damaged`,
    /// `Forked`.
    pub fn drain_logged(&self) -> Result<()> {
        // A later creator sees the fence, and so does each writer of its namespace.
        self.member.wait_for_creations()?;
        for (_, namespace) in self.namespaces()? {
            if self.member.namespace_flags(namespace.index)? & namespace_flags::LOGGED != 0 {
                self.member.drain_writers(self.table(namespace)?)?;
            }
        }
        Ok(())
    }

    /// The revision at which the owner has proposed to evict a member, and the member.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn evicting(&self) -> Result<Option<(u64, u16)>> {
        self.member.evicting()
    }

    /// Stores that the owner does not count a member any more.
    ///
    /// # Errors
    /// `BadArgument`: a revision above 2^32 - 1; `Damaged`, `Forked`.
    pub fn set_evicting(&self, evicting: Option<(u64, u16)>) -> Result<()> {
        self.member.set_evicting(evicting)
    }

    /// True if this file was bound to this cluster since the machine was started.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn is_bound(&self, cluster_id: [u8; 16]) -> Result<bool> {
        self.member.is_bound(cluster_id)
    }

    /// True if the region was bound to a cluster as another file, so that this one is a copy of
    /// that, or if it is not known because the word is damaged.
    pub fn is_copied_file(&self) -> bool {
        self.member.is_copied_file()
    }

    /// A region that an earlier version has bound to this cluster is bound to its present file.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn bind_file(&self, cluster_id: [u8; 16]) -> Result<()> {
        self.member.bind_file(cluster_id)
    }

    /// The cluster to which the region was bound, in this boot of the machine or an earlier one.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn bound_cluster(&self) -> Result<Option<[u8; 16]>> {
        self.member.bound_cluster()
    }

    /// Checks that a region may be discarded to become a copy of this cluster: what an ordinary
    /// region, or one of another cluster, has is nowhere else.
    ///
    /// # Errors
    /// `BadArgument`: it has records, and what to do; `Damaged`.
    pub fn check_disposable(&self, cluster_id: [u8; 16]) -> Result<()> {
        let bound = self.member.bound_cluster()?;
        if bound == Some(cluster_id) || self.following()?.is_some() {
            return Ok(());
        }
        let whose = if bound.is_none() { "to no cluster" } else { "to another cluster" };
        for (name, namespace) in self.namespaces()? {
            if !self.is_empty(namespace)? {
                let detail = format!(
                    "the region has records (namespace {name:?}) and belongs {whose}: as a copy of \
                     the partition it would lose them. Move its file away, or set cluster.regions \
                     to another path, and restart this host; to keep them, create a cluster in \
                     which this host is the first one of the partition's group"
                );
                return Err(Error::BadArgument { detail });
            }
        }
        Ok(())
    }

    /// The content of the region, in this file, is that of a copy of this cluster from now on.
    ///
    /// # Errors
    /// `System`: the kernel does not tell which boot this is; `Damaged`, `Forked`.
    pub fn bind(&self, cluster_id: [u8; 16]) -> Result<()> {
        self.member.bind(cluster_id)
    }

    /// The region is no copy of its cluster any more: it counts as lost, also for later processes.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn unbind(&self) -> Result<()> {
        self.member.unbind()
    }

    /// The end of the lease by the clock of this boot; zero if there is none.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn lease_end(&self) -> Result<Duration> {
        self.member.lease_end()
    }

    /// Makes the owner's region a copy of nothing, because another host owns the partition. `seal`:
    /// the last position of this log that the group has kept. Writers are refused and those in
    /// their commit end it; what is behind the seal answers `Lost`. If the seal is not known, what
    /// had not counted as replicated answers `Unknown`: a client that took it for lost would write
    /// it a second time. The follower then discards the records. A demotion
    /// that was killed is repeated, with the seal that it was begun with.
    ///
    /// Complexity: linear in the number of buckets, about 30 ns each.
    ///
    /// # Errors
    /// `BadArgument`: the region is a copy already; `Stalled`: a stopped process is in a commit;
    /// `Damaged`, `Forked`.
    pub fn demote(&self, seal: Option<u64>) -> Result<Demotion> {
        let _lock = self.member.lock_follower()?;
        invariant!(!self.member.is_follower(), "the session of a follower demotes its region");
        // A promotion that was killed has fenced writers: the copy is as it was.
        if let Some(following) = self.member.following()?
            && !matches!(following.state, FollowState::Demoting | FollowState::Promoting)
        {
            let detail = "the region follows another one already: there is nothing to demote";
            return Err(Error::BadArgument { detail: detail.to_owned() });
        }
        let seal = self.member.begin_demotion(seal)?;
        // Each later namespace is one of a copy.
        self.refuse_own_writers()?;
        let (lost, lost_replicated, unknown) = match seal {
            Some(seal) => {
                let (lost, lost_replicated) = self.member.lose_log_behind(seal)?;
                (lost, lost_replicated, 0)
            }
            None => (0, 0, self.member.leave_log_open()?),
        };
        let namespaces = self.end_own_log()?;
        self.member.begin_following(LogIdentity::default())?;
        self.member.set_fenced(false)?;
        Ok(Demotion { namespaces, lost, lost_replicated, unknown })
    }

    /// D2.
    fn refuse_own_writers(&self) -> Result<()> {
        self.member.wait_for_creations()?;
        for (_, namespace) in self.namespaces()? {
            let flags = self.member.namespace_flags(namespace.index)?;
            if flags & (namespace_flags::LOGGED | namespace_flags::FOLLOWED) != 0 {
                self.member.set_namespace_flag(namespace.index, namespace_flags::FOLLOWED)?;
                self.member.drain_writers(self.table(namespace)?)?;
            }
        }
        Ok(())
    }

    /// D4 to D6. Returns the number of namespaces that are followed now.
    fn end_own_log(&self) -> Result<usize> {
        self.member.forget_log()?;
        let followed = self.followed_namespaces()?;
        for (_, namespace) in &followed {
            self.member.update_namespace_flags(namespace.index, |word| {
                word & !(namespace_flags::LOGGED | namespace_flags::LOSSLESS)
            })?;
            self.member.clear_logged_since(namespace.index)?;
        }
        self.relax_streams()?;
        self.begin_incarnation(0)?;
        Ok(followed.len())
    }

    /// The copy of a demoted region has everything that the group has replicated: what was not lost
    /// of its own log is replicated.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn settle_receipts(&self) -> Result<()> {
        self.member.acknowledge_log_to(u64::MAX)
    }

    /// The region is none of the group that its own log belonged to: what of that was not
    /// replicated before answers `Unknown` from now on. So does, until it follows again, what a
    /// copy is asked of the log that it has followed. Can be repeated. Returns the number of
    /// positions of the own log; 0 in a region that admits writers, because its log goes on.
    ///
    /// # Errors
    /// `Stalled`: a stopped process is in a commit; `Damaged`, `Forked`.
    pub fn give_up_receipts(&self) -> Result<u64> {
        if !self.is_copy()? {
            if !self.is_fenced()? {
                return Ok(0);
            }
            self.drain_logged()?;
        }
        // The session of a follower is about to follow another log.
        if !self.member.is_follower() {
            self.leave_followed_log()?;
        }
        self.member.leave_log_open()
    }

    fn leave_followed_log(&self) -> Result<()> {
        let _lock = self.member.lock_follower()?;
        self.finish_switch()?;
        match self.member.following()? {
            // It is a copy of no moment, and begins anew if it is a member again.
            Some(Following { state: FollowState::Joining, .. }) => {
                self.member.begin_following(LogIdentity::default())
            }
            Some(_) => self.member.set_left(true),
            None => Ok(()),
        }
    }
}
