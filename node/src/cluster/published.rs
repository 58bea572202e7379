//! What the driver publishes for other threads.

use std::collections::{BTreeMap, BTreeSet};

use nearstate_cluster::{
    CopyState, GroupPhase, GroupState, HostId, LogPosition, MemberRole, Monotonic, PartitionId,
};
use nearstate_store::lease_clock;

use crate::consensus::EngineStatus;

use super::copy_thread::{CopyShared, now};
use super::status::{CopyStatus, MemberStatus};

/// What the driver has published at its last tick.
#[derive(Clone, Debug, Default)]
pub(super) struct Published {
    pub(super) engine: EngineStatus,
    pub(super) groups: Vec<GroupState>,
    pub(super) roles: BTreeMap<PartitionId, MemberRole>,
    pub(super) members: MemberPositions,
    pub(super) lags_ms: BTreeMap<(PartitionId, HostId), u64>,
    /// The partitions whose owner this host hears, or is.
    pub(super) heard: BTreeSet<PartitionId>,
    /// Those whose owner shows no life, although its copy alone suffices.
    pub(super) missed: BTreeSet<PartitionId>,
}

/// The last position of each member, and when it came.
pub(super) type MemberPositions = BTreeMap<(PartitionId, HostId), (Option<u64>, Monotonic)>;

impl Published {
    /// What this host knows of a copy and its group.
    pub(super) fn copy_status(
        &self,
        (me, copy): (HostId, &CopyShared),
        group: &GroupState,
    ) -> Option<CopyStatus> {
        let partition = group.partition();
        let state = copy.copy.state().ok()?;
        let facts = copy.facts().ok()?;
        let reports = match group.phase() {
            GroupPhase::Serving { .. } => Vec::new(),
            GroupPhase::Sealing { reports } => reports.keys().copied().collect(),
        };
        let now = now();
        let lease_left = state.lease_until.saturating_sub(lease_clock());
        let lease_ms = u64::try_from(lease_left.as_millis()).unwrap_or(u64::MAX);
        let of_partition = self.members.iter().filter(|((of, _), _)| *of == partition);
        let is_owner = group.owner() == Some(me);
        let members = of_partition.filter(|_| is_owner).map(|((_, host), (position, at))| {
            let silent_ms = now.0.saturating_sub(at.0) / 1_000_000;
            let lag_ms = self.lags_ms.get(&(partition, *host)).copied().unwrap_or(0);
            MemberStatus { host: *host, position: *position, silent_ms, lag_ms }
        });
        let memory = copy.memory().ok()?;
        Some(CopyStatus {
            partition: partition.0,
            view: group.view().0,
            owner: group.owner(),
            excluded: group.excluded(),
            reports,
            reports_needed: group.reports_needed(),
            group: group.group().to_vec(),
            full: group.full().clone(),
            is_degraded: group.degraded().is_some(),
            is_degraded_owner_silent: self.missed.contains(&partition),
            is_complete: matches!(facts.copy, CopyState::Follower(_) | CopyState::Owner { .. }),
            role: role_name(self.roles.get(&partition), lease_ms > 0),
            lease_ms,
            origin: match facts.copy {
                CopyState::Follower(held) => held.origin.0,
                CopyState::Owner { origin } => origin.0,
                CopyState::Empty
                | CopyState::Joining
                | CopyState::Extending
                | CopyState::Demoting => 0,
            },
            position: match facts.copy {
                CopyState::Follower(held) => held.position,
                CopyState::Empty
                | CopyState::Joining
                | CopyState::Extending
                | CopyState::Demoting
                | CopyState::Owner { .. } => state.tail,
            },
            replicated: state.replicated,
            sealed: group.seal().map(|seal| seal.position),
            loss: group.loss().map(|loss| {
                let position = |held: LogPosition| held.position;
                (loss.view.0, loss.longest.map(position), loss.sealed.map(position))
            }),
            bytes_free: memory.bytes_max.saturating_sub(memory.bytes_taken),
            bytes_max: memory.bytes_max,
            members: members.collect(),
        })
    }
}

const fn role_name(role: Option<&MemberRole>, is_leased: bool) -> &'static str {
    match role {
        None | Some(MemberRole::Waiting) => "waiting",
        Some(MemberRole::Sealing) => "sealing",
        Some(MemberRole::Registering) => "registering",
        Some(MemberRole::Promoting) => "promoting",
        Some(MemberRole::Serving) if is_leased => "owner",
        Some(MemberRole::Serving) => "fenced",
        Some(MemberRole::Lost) => "lost",
        Some(MemberRole::Following(_)) => "member",
        Some(MemberRole::Outdated) => "outdated",
    }
}
