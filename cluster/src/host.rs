//! One host of a cluster: its part in every partition.

use crate::config::CopyMissingPolicy;
use crate::effect::Effects;
use crate::id::{HostId, Monotonic, PartitionId};
use crate::input::HostInput;
use crate::member::PartitionMember;
use crate::region::RegionState;
use crate::role::MemberRole;
use crate::state::ClusterState;
use std::collections::BTreeMap;

/// One host of a cluster. It decides; others carry out its effects.
///
/// It belongs to one process: what has to survive it is in the regions
/// ([`crate::MemberRecord`]) and in the log of consensus.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Host {
    id: HostId,
    process: u64,
    started: Monotonic,
    /// How long a copy is missing before one suffices, in nanoseconds. `None`: never.
    degrade_after: Option<u64>,
    members: BTreeMap<PartitionId, PartitionMember>,
    /// Facts of regions whose partition is not known yet.
    early: BTreeMap<PartitionId, RegionState>,
}

impl Host {
    /// A host whose process starts now. `process` is random: it tells this process' proposals from
    /// those of earlier ones.
    pub fn new(id: HostId, process: u64, now: Monotonic) -> Self {
        let (members, early) = (BTreeMap::new(), BTreeMap::new());
        Self { id, process, started: now, degrade_after: None, members, early }
    }

    /// The same host, with a policy for copies that are missing. Only the owner's one matters.
    #[must_use]
    pub fn with_policy(mut self, policy: CopyMissingPolicy) -> Self {
        self.degrade_after = match policy {
            CopyMissingPolicy::Stop => None,
            CopyMissingPolicy::Degrade { after_ms } => Some(u64::from(after_ms) * 1_000_000),
        };
        self
    }

    /// The host's number.
    pub fn id(&self) -> HostId {
        self.id
    }

    /// The part that this host has in a partition. `None` before the first state and the first
    /// facts of the region.
    pub fn role(&self, partition: PartitionId) -> Option<MemberRole> {
        self.members.get(&partition)?.role()
    }

    /// For position messages to a follower: the highest stamp that it has sent back.
    pub fn answered(&self, partition: PartitionId, follower: HostId) -> Monotonic {
        let member = self.members.get(&partition);
        member.map_or(Monotonic::BOOT, |member| member.answered(follower))
    }

    /// For position messages: does this host hold a lease?
    pub fn is_leased(&self, partition: PartitionId, now: Monotonic) -> bool {
        self.members.get(&partition).is_some_and(|member| member.is_leased(now))
    }

    /// Does this host hear the owner of the partition, or is it the owner?
    pub fn hears_owner(&self, partition: PartitionId, now: Monotonic) -> bool {
        self.members.get(&partition).is_some_and(|member| member.hears_owner(now))
    }

    /// Has an owner whose copy alone suffices shown no life for two leases? No host takes over from
    /// it without an operator.
    pub fn misses_degraded_owner(&self, partition: PartitionId, now: Monotonic) -> bool {
        self.members.get(&partition).is_some_and(|member| member.misses_degraded_owner(now))
    }

    /// Takes one input and appends what is to be done. `now` never goes back.
    pub fn step(&mut self, now: Monotonic, input: HostInput<'_>, effects: &mut Effects) {
        match input {
            HostInput::State(state) => self.state(now, state, effects),
            HostInput::Region { partition, facts } => {
                if !self.with(partition, now, effects, |member, _| member.region(facts)) {
                    self.early.insert(partition, facts);
                }
            }
            HostInput::Connected { partition, host, view, connection } => {
                self.with(partition, now, effects, |member, _| {
                    member.connected(now, (host, view, connection));
                });
            }
            HostInput::Disconnected { partition, host, connection } => {
                self.with(partition, now, effects, |member, _| {
                    member.disconnected(host, connection);
                });
            }
            HostInput::Acknowledged { partition, acknowledgement } => {
                self.with(partition, now, effects, |member, _| {
                    member.acknowledged(now, &acknowledgement);
                });
            }
            HostInput::Behind { partition, host, connection } => {
                self.with(partition, now, effects, |member, _| member.behind(host, connection));
            }
            HostInput::OlderRegion { partition, host, view } => {
                self.with(partition, now, effects, |member, effects| {
                    member.ahead(host, view, effects);
                });
            }
            HostInput::Written { partition, view, position } => {
                self.with(partition, now, effects, |member, _| member.written(view, position));
            }
            HostInput::PositionReceived { partition, message } => {
                self.with(partition, now, effects, |member, effects| {
                    member.position_received(now, &message, effects);
                });
            }
            HostInput::OwnerPromotes { partition, view, steps } => {
                self.with(partition, now, effects, |member, _| {
                    member.owner_promotes(now, view, steps);
                });
            }
            HostInput::Frozen { partition, view, held } => {
                self.with(partition, now, effects, |member, _| member.frozen(view, held));
            }
            HostInput::NotUndone { partition, view } => {
                self.with(partition, now, effects, |member, _| member.not_undone(view));
            }
            HostInput::Tick => {
                for member in self.members.values_mut() {
                    member.advance(now, effects);
                }
            }
        }
    }

    /// Gives a member the input, then lets it act. Returns whether there is such a member.
    fn with(
        &mut self,
        partition: PartitionId,
        now: Monotonic,
        effects: &mut Effects,
        input: impl FnOnce(&mut PartitionMember, &mut Effects),
    ) -> bool {
        let Some(member) = self.members.get_mut(&partition) else { return false };
        input(member, effects);
        member.advance(now, effects);
        true
    }

    fn state(&mut self, now: Monotonic, state: &ClusterState, effects: &mut Effects) {
        for group in state.groups() {
            let partition = group.partition();
            let (id, started, early) =
                ((self.id, self.process), (self.started, now), &mut self.early);
            let degrade_after = self.degrade_after;
            let member = self.members.entry(partition).or_insert_with(|| {
                // Promises of an earlier process of this host end one lease after the start.
                let mut member = PartitionMember::new(id, group, state.lease(), started);
                member.degrade_after = degrade_after;
                if let Some(facts) = early.remove(&partition) {
                    member.region(facts);
                }
                member
            });
            member.state(now, group);
            member.advance(now, effects);
        }
    }
}
