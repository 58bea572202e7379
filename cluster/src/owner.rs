//! The part of the owner: what is replicated, how long it may serve, and whom it counts.

use crate::config::Lease;
use crate::group::{Degraded, GroupState};
use crate::id::{HostId, Monotonic, Revision, ViewNumber};
use crate::input::{ConnectionNumber, FollowerAcknowledgement};
use crate::limits::{ADMIT_ENTRIES_MAX, EVICT_LEASES, RENEWALS_PER_LEASE};
use crate::region::MemberRecord;
use crate::switches::{Switch, Switches};
use std::collections::BTreeMap;

/// What the owner knows of a follower's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct CountedFollower {
    connection: ConnectionNumber,
    /// Everything up to here is applied. `None`: the copy has gaps, or has not acknowledged yet.
    position: Option<u64>,
    /// The latest message that it has answered.
    stamp: Monotonic,
    /// When its last acknowledgement of a position arrived, or the connection was made.
    heard_at: Monotonic,
    /// It cannot follow any more.
    is_behind: bool,
}

/// The owner of a partition, in one view.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    lease: Lease,
    switches: Switches,
    /// When this process began to serve this view.
    began: Monotonic,
    followers: BTreeMap<HostId, CountedFollower>,
    /// How long a copy is missing before one suffices. `None`: never.
    degrade_after: Option<u64>,
    /// All entries of the own log up to here are decided, as far as it was watched.
    written: u64,
    /// The order to watch it.
    watched: Option<ViewNumber>,
    /// When the last renewal of a degraded owner's lease was proposed, and at which revision.
    renewing: Option<(Revision, Monotonic)>,
    /// The end of the lease that this process was granted in this view.
    pub(crate) granted: Monotonic,
}

/// A change of the membership that the owner wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum WantedChange {
    Full(HostId),
    Evict(HostId),
    /// The host is counted, by a degraded owner, before it is full.
    Admit(HostId),
    /// The own copy suffices. Also to count no other host after `Admit`.
    Degrade,
}

/// What the region of the owner says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct OwnerWords {
    pub(crate) replicated: u64,
    pub(crate) lease_until: Monotonic,
}

impl Owner {
    pub(crate) fn new(
        lease: Lease,
        switches: Switches,
        degrade_after: Option<u64>,
        now: Monotonic,
    ) -> Self {
        Self {
            lease,
            switches,
            began: now,
            followers: BTreeMap::new(),
            degrade_after,
            written: 0,
            watched: None,
            renewing: None,
            granted: Monotonic::BOOT,
        }
    }

    pub(crate) fn written(&mut self, position: u64) {
        self.written = self.written.max(position);
    }

    /// Is this another order than the last one?
    pub(crate) fn begins_to_watch(&mut self, view: Option<ViewNumber>) -> bool {
        std::mem::replace(&mut self.watched, view) != view
    }

    /// Is a renewal due? Not while one is under way: over a slow membership they would queue up.
    pub(crate) fn renews(&mut self, now: Monotonic, revision: Revision, known: Degraded) -> bool {
        let interval = self.lease.promise_ns() / RENEWALS_PER_LEASE;
        let is_due = match self.renewing {
            Some((of, at)) if of == revision => {
                let is_applied = known.renewed >= at;
                let wait = if is_applied { interval } else { self.lease.proposal_ns() };
                now >= at.plus(wait)
            }
            Some(_) | None => true,
        };
        if is_due {
            self.renewing = Some((revision, now));
        }
        is_due
    }

    /// Does the own copy suffice?
    pub(crate) fn is_alone(
        &self,
        now: Monotonic,
        group: &GroupState,
        record: &MemberRecord,
    ) -> bool {
        if group.degraded().is_none() {
            return self.switches.is_off(Switch::DegradeByMembership) && self.misses(now, group);
        }
        admitted(group, record).is_none() || self.switches.is_off(Switch::AdmitJointly)
    }

    /// What is replicated, how long the lease is, and what the log may forget, if the own copy
    /// suffices. Without a lease nothing more is: an operator may have given the partition away.
    pub(crate) fn alone(&self, now: Monotonic, group: &GroupState) -> (u64, Monotonic, u64) {
        // A stamp of another process is older, or of another boot.
        let of_this = |stamp: &Monotonic| (self.began..=now).contains(stamp);
        let renewed = group.degraded().map(|degraded| degraded.renewed).filter(of_this);
        let is_own = self.switches.is_off(Switch::RenewByMembership) || group.degraded().is_none();
        let renewed = if is_own { Some(now) } else { renewed };
        let lease_until =
            renewed.map_or(Monotonic::BOOT, |stamp| stamp.plus(self.lease.owner_ns()));
        let written = if now < lease_until { self.written } else { 0 };
        (written, lease_until, written)
    }

    /// Has every copy but the own one been missing for the configured time?
    fn misses(&self, now: Monotonic, group: &GroupState) -> bool {
        let Some(limit) = self.degrade_after else { return false };
        let is_missing = |host: &HostId| match self.followers.get(host) {
            Some(follower) => now > follower.heard_at.max(self.began).plus(limit),
            None => now > self.began.plus(limit),
        };
        group.acknowledgements() == 2
            && group.group().iter().all(|host| group.owner() == Some(*host) || is_missing(host))
    }

    pub(crate) fn connected(&mut self, now: Monotonic, host: HostId, connection: ConnectionNumber) {
        let known = self.followers.get(&host);
        if known.is_some_and(|follower| follower.connection >= connection) {
            return;
        }
        // A new connection forgets what the old one acknowledged: the region may be another one.
        let follower = CountedFollower {
            connection,
            position: None,
            stamp: Monotonic::BOOT,
            heard_at: known.map_or(now, |follower| follower.heard_at),
            is_behind: false,
        };
        self.followers.insert(host, follower);
    }

    pub(crate) fn disconnected(&mut self, host: HostId, connection: ConnectionNumber) {
        // Its promise holds, and it has some time to connect again.
        if let Some(follower) = self.followers.get_mut(&host)
            && follower.connection == connection
        {
            follower.position = None;
        }
    }

    /// On its next connection it may have what it lacks on this one.
    pub(crate) fn behind(&mut self, host: HostId, connection: ConnectionNumber) {
        if let Some(follower) = self.followers.get_mut(&host)
            && follower.connection == connection
        {
            follower.is_behind = true;
        }
    }

    /// Records an acknowledgement of this view. A stamp that was never sent is ignored.
    pub(crate) fn acknowledged(&mut self, now: Monotonic, received: &FollowerAcknowledgement) {
        let is_old_counted = self.switches.is_off(Switch::AcknowledgementOfView);
        if is_old_counted && !self.followers.contains_key(&received.host) {
            self.connected(now, received.host, received.connection);
        }
        let Some(follower) = self.followers.get_mut(&received.host) else { return };
        if follower.connection != received.connection && !is_old_counted {
            return;
        }
        if received.position.is_some() {
            follower.position = follower.position.max(received.position);
            follower.heard_at = now;
        }
        let stamp =
            if self.switches.is_off(Switch::LeaseFromSend) && received.stamp > Monotonic::BOOT {
                now
            } else {
                received.stamp
            };
        if stamp <= now {
            follower.stamp = follower.stamp.max(stamp);
        }
    }

    /// The latest stamp that the follower has sent back.
    pub(crate) fn answered(&self, host: HostId) -> Monotonic {
        self.followers.get(&host).map_or(Monotonic::BOOT, |follower| follower.stamp)
    }

    /// The followers that count, but one.
    fn counted<'a>(
        &'a self,
        group: &'a GroupState,
        record: &'a MemberRecord,
        without: Option<HostId>,
    ) -> impl Iterator<Item = &'a CountedFollower> {
        let is_evicting = move |host| {
            record.evicting == Some(host)
                && record.revision == group.revision()
                && !self.switches.is_off(Switch::EvictingIsStored)
        };
        let counts = move |host: &HostId| {
            if group.degraded().is_some() {
                return admitted(group, record) == Some(*host);
            }
            (group.full().contains(host) || self.switches.is_off(Switch::CountFull))
                && !is_evicting(*host)
                && Some(*host) != without
        };
        self.followers.iter().filter(move |(host, _)| counts(host)).map(|(_, follower)| follower)
    }

    /// The highest value that n - 1 of the values are not below.
    fn quorum<T: Ord>(&self, group: &GroupState, values: impl Iterator<Item = T>) -> Option<T> {
        let mut values: Vec<T> = values.collect();
        values.sort_unstable_by(|a, b| b.cmp(a));
        let spare = usize::from(self.switches.is_off(Switch::EnoughAcknowledgements));
        values.into_iter().nth((group.acknowledgements() - 2).saturating_sub(spare))
    }

    /// The position that n - 1 counted members have acknowledged.
    pub(crate) fn replicated(
        &self,
        group: &GroupState,
        record: &MemberRecord,
        without: Option<HostId>,
    ) -> Option<u64> {
        let positions =
            self.counted(group, record, without).filter_map(|follower| follower.position);
        self.quorum(group, positions)
    }

    /// The end of the lease that n - 1 counted members have granted.
    pub(crate) fn lease_until(
        &self,
        group: &GroupState,
        record: &MemberRecord,
        without: Option<HostId>,
    ) -> Monotonic {
        let stamps = self.counted(group, record, without).map(|follower| follower.stamp);
        let length = if self.switches.is_off(Switch::LeaseMargin) {
            self.lease.promise_ns()
        } else {
            self.lease.owner_ns()
        };
        let granted = self.quorum(group, stamps).filter(|stamp| *stamp > Monotonic::BOOT);
        granted.map_or(Monotonic::BOOT, |stamp| stamp.plus(length))
    }

    /// What all full members have applied. `None` while one of them has not said.
    pub(crate) fn floor(
        &self,
        me: HostId,
        group: &GroupState,
        record: &MemberRecord,
    ) -> Option<u64> {
        let admitted = admitted(group, record);
        let others = group.full().iter().chain(&admitted).filter(|host| **host != me);
        let applied = |host| self.followers.get(host).and_then(|follower| follower.position);
        let positions: Option<Vec<u64>> = others.map(applied).collect();
        positions?.into_iter().min()
    }

    /// The next change of the membership, if one is wanted and safe.
    pub(crate) fn wanted(
        &self,
        now: Monotonic,
        me: HostId,
        group: &GroupState,
        (record, words): (&MemberRecord, &OwnerWords),
    ) -> Option<WantedChange> {
        if record.revision == group.revision()
            && let Some(host) = record.evicting
            && group.full().contains(&host)
        {
            return Some(WantedChange::Evict(host));
        }
        if group.degraded().is_some() {
            return self.wanted_degraded(now, me, group, (record, words));
        }
        let others = || group.group().iter().copied().filter(|host| *host != me);
        let is_ready = |host: &HostId| {
            !group.full().contains(host) && self.is_complete(now, *host, words.replicated)
        };
        if let Some(host) = others().find(is_ready) {
            return Some(WantedChange::Full(host));
        }
        if group.full().len() <= group.acknowledgements() {
            return self.misses(now, group).then_some(WantedChange::Degrade);
        }
        let is_to_go = |host: &HostId| {
            let is_leaving = group.leaving().contains(host);
            group.full().contains(host) && (is_leaving || self.is_silent(now, *host))
        };
        let may_go = |host: &HostId| self.others_suffice(now, group, (record, words), *host);
        others().filter(is_to_go).find(may_go).map(WantedChange::Evict)
    }

    /// A copy is counted first, and is full when everything that was replicated, and the lease,
    /// rest on it as well. If it is lost before, a repeated `Degrade` makes the proposal void.
    fn wanted_degraded(
        &self,
        now: Monotonic,
        me: HostId,
        group: &GroupState,
        (record, words): (&MemberRecord, &OwnerWords),
    ) -> Option<WantedChange> {
        let Some(host) = admitted(group, record) else {
            let is_near = |host: &HostId| {
                let position = self.followers.get(host).and_then(|follower| follower.position);
                position.is_some_and(|at| at + ADMIT_ENTRIES_MAX >= self.written)
                    && !self.is_silent(now, *host)
            };
            let mut others = group.group().iter().copied().filter(|host| *host != me);
            return others.find(is_near).map(WantedChange::Admit);
        };
        if self.is_silent(now, host) {
            return Some(WantedChange::Degrade);
        }
        let holds = self.replicated(group, record, None) >= Some(words.replicated);
        let grants = self.lease_until(group, record, None) >= words.lease_until;
        let is_joint = holds && grants || self.switches.is_off(Switch::AdmitJointly);
        is_joint.then_some(WantedChange::Full(host))
    }

    fn is_complete(&self, now: Monotonic, host: HostId, replicated: u64) -> bool {
        self.followers.get(&host).is_some_and(|follower| {
            follower.position.is_some_and(|position| position >= replicated)
        }) && !self.is_silent(now, host)
    }

    fn is_silent(&self, now: Monotonic, host: HostId) -> bool {
        let limit = EVICT_LEASES * self.lease.promise_ns();
        match self.followers.get(&host) {
            Some(follower) => follower.is_behind || now > follower.heard_at.plus(limit),
            None => now > self.began.plus(limit),
        }
    }

    /// Do n - 1 counted members without this one hold everything that was ever replicated, and have
    /// they granted the lease that the region shows?
    fn others_suffice(
        &self,
        now: Monotonic,
        group: &GroupState,
        (record, words): (&MemberRecord, &OwnerWords),
        host: HostId,
    ) -> bool {
        let hold = self.replicated(group, record, Some(host)) >= Some(words.replicated);
        let grant = now >= words.lease_until
            || self.lease_until(group, record, Some(host)) >= words.lease_until;
        (hold || self.switches.is_off(Switch::EvictHolders))
            && (grant || self.switches.is_off(Switch::EvictLease))
    }
}

/// Whom a degraded owner counts before it is full.
fn admitted(group: &GroupState, record: &MemberRecord) -> Option<HostId> {
    let is_present = group.degraded().is_some() && record.revision == group.revision();
    record.evicting.filter(|_| is_present)
}
