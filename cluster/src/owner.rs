//! The part of the owner: what is replicated, how long it may serve, and whom it counts.

use crate::config::Lease;
use crate::group::GroupState;
use crate::id::{HostId, Monotonic};
use crate::input::{ConnectionNumber, FollowerAcknowledgement};
use crate::limits::EVICT_LEASES;
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
}

/// A change of the membership that the owner wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum WantedChange {
    Full(HostId),
    Evict(HostId),
}

/// What the region of the owner says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct OwnerWords {
    pub(crate) replicated: u64,
    pub(crate) lease_until: Monotonic,
}

impl Owner {
    pub(crate) fn new(lease: Lease, switches: Switches, now: Monotonic) -> Self {
        Self { lease, switches, began: now, followers: BTreeMap::new() }
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

    pub(crate) fn behind(&mut self, host: HostId) {
        if let Some(follower) = self.followers.get_mut(&host) {
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
    pub(crate) fn floor(&self, me: HostId, group: &GroupState) -> Option<u64> {
        let others = group.full().iter().filter(|host| **host != me);
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
        let others = || group.group().iter().copied().filter(|host| *host != me);
        let is_ready = |host: &HostId| {
            !group.full().contains(host) && self.is_complete(now, *host, words.replicated)
        };
        if let Some(host) = others().find(is_ready) {
            return Some(WantedChange::Full(host));
        }
        if group.full().len() <= group.acknowledgements() {
            return None;
        }
        let is_silent = |host: &HostId| group.full().contains(host) && self.is_silent(now, *host);
        let may_go = |host: &HostId| self.others_suffice(now, group, (record, words), *host);
        others().filter(is_silent).find(may_go).map(WantedChange::Evict)
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
