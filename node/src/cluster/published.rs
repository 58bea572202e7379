//! What the driver publishes for other threads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use nearstate_cluster::{
    ClusterLevel, CopyState, GroupPhase, GroupState, HostId, LogPosition, MemberRecord, MemberRole,
    Monotonic, PartitionId, ViewNumber,
};
use nearstate_model::Result;
use nearstate_store::lease_clock;

use crate::consensus::EngineStatus;
use crate::space::{FileSystemSpace, usable_bytes};

use super::copy_thread::{CopyShared, now};
use super::status::{CopyStatus, MemberStatus};

/// What the driver has published at its last tick.
#[derive(Clone, Debug, Default)]
pub(super) struct Published {
    pub(super) engine: EngineStatus,
    /// The index of the last decision in what follows.
    pub(super) applied: u64,
    pub(super) level: ClusterLevel,
    pub(super) groups: Vec<GroupState>,
    pub(super) roles: BTreeMap<PartitionId, MemberRole>,
    pub(super) members: MemberPositions,
    pub(super) lags_ms: BTreeMap<(PartitionId, HostId), u64>,
    /// The partitions whose owner this host hears, or is.
    pub(super) heard: BTreeSet<PartitionId>,
    /// Those whose owner shows no life, although its copy alone suffices.
    pub(super) missed: BTreeSet<PartitionId>,
    /// When each host has last sent a message about replication.
    pub(super) heard_at: BTreeMap<HostId, Monotonic>,
}

/// The owner of a partition, as a host knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownOwner {
    /// The partition.
    pub partition: PartitionId,
    /// The view in which it is the owner.
    pub view: ViewNumber,
    /// The owner.
    pub host: HostId,
    /// True if something shows that it may serve: this host is the owner and has a lease, or hears
    /// it. A host without a copy hears no owner: it knows a leader of the membership, which would
    /// tell it of another one.
    pub is_confirmed: bool,
}

/// The last position of each member, and when it came.
pub(super) type MemberPositions = BTreeMap<(PartitionId, HostId), (Option<u64>, Monotonic)>;

impl Published {
    /// The owners. `has_copy` and `is_leased` say what of this host's copies.
    pub(super) fn owners(
        &self,
        me: HostId,
        has_copy: &dyn Fn(&PartitionId) -> bool,
        is_leased: &dyn Fn(&PartitionId) -> bool,
    ) -> Vec<KnownOwner> {
        let is_led = self.engine.leader.is_some() && self.engine.failure.is_none();
        let owners = self.groups.iter().filter_map(|group| {
            let (partition, host) = (group.partition(), group.owner()?);
            let is_confirmed = if host == me {
                is_leased(&partition)
            } else if has_copy(&partition) && group.group().contains(&me) {
                self.heard.contains(&partition)
            } else {
                is_led
            };
            Some(KnownOwner { partition, view: group.view(), host, is_confirmed })
        });
        owners.collect()
    }

    /// Whether the state of a group can be the present one. A host that was removed learns nothing,
    /// and neither does one that has applied nothing since its start and knows no leader.
    fn is_known(&self, group: &GroupState, record: &MemberRecord) -> bool {
        let is_told = self.applied > 0 || self.engine.leader.is_some();
        is_told && !self.engine.is_removed && !is_older(group, record)
    }

    /// Milliseconds since each host was heard, about replication or by the engine. A host without a
    /// copy sends nothing about replication.
    pub(super) fn silent_ms(&self, now: Monotonic) -> BTreeMap<HostId, u64> {
        let silent = |at: &Monotonic| now.0.saturating_sub(at.0) / 1_000_000;
        let mut all: BTreeMap<_, _> =
            self.heard_at.iter().map(|(host, at)| (*host, silent(at))).collect();
        for (host, ms) in &self.engine.silent_ms {
            let Ok(host) = u16::try_from(*host) else { continue };
            all.entry(HostId(host)).and_modify(|known| *known = (*known).min(*ms)).or_insert(*ms);
        }
        all
    }

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
            let lag_ms = self.lags_ms.get(&(partition, *host)).copied();
            MemberStatus { host: *host, position: *position, silent_ms, lag_ms }
        });
        let memory = copy.heap_space().ok()?;
        let heap_free = memory.bytes_max.saturating_sub(memory.bytes_taken);
        let space = space_for_pages(copy.path());
        let room = space.as_ref().ok().and_then(|space| space.bytes_free);
        Some(CopyStatus {
            partition: partition.0,
            view: group.view().0,
            is_known: self.is_known(group, &facts.record),
            owner: group.owner(),
            excluded: group.excluded(),
            reports,
            reports_needed: group.reports_needed(),
            group: group.group().to_vec(),
            full: counted(group),
            is_degraded: group.degraded().is_some(),
            is_degraded_owner_silent: self.missed.contains(&partition),
            is_drain_undecided: copy.undecided().is_some(),
            view_seen: facts.record.view.0,
            revision_seen: facts.record.revision.0,
            is_state_older: is_older(group, &facts.record),
            is_complete: matches!(facts.copy, CopyState::Follower(_) | CopyState::Owner { .. }),
            role: role_name(self.roles.get(&partition), (lease_ms > 0, copy.copy.holds_writers())),
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
            bytes_free: usable_bytes(heap_free, memory.bytes_without_pages, room),
            file_system_bytes_free: room.filter(|room| *room < memory.bytes_without_pages),
            is_file_system_known: space.is_ok(),
            bytes_max: memory.bytes_max,
            promotions_left: state.promotions_left,
            clock_shift_ms: state.clock_shift_ms,
            members: members.collect(),
        })
    }
}

/// What the file system of a region has left, as it was measured last. A file that was removed
/// still gets pages of the file system of its directory.
fn space_for_pages(path: &Path) -> Result<FileSystemSpace> {
    let of_folder = |_| FileSystemSpace::measured(path.parent().unwrap_or(path));
    FileSystemSpace::measured(path).or_else(of_folder)
}

/// The members whose copies count. Behind a raised view none does, before an operator names one.
fn counted(group: &GroupState) -> BTreeSet<HostId> {
    if group.is_operator_needed() { BTreeSet::new() } else { group.full().clone() }
}

/// Has this host acted in a later state than this one?
pub(super) fn is_older(group: &GroupState, record: &MemberRecord) -> bool {
    group.view() < record.view || group.revision() < record.revision
}

const fn role_name(role: Option<&MemberRole>, (is_leased, is_held): (bool, bool)) -> &'static str {
    match role {
        None | Some(MemberRole::Waiting) => "waiting",
        Some(MemberRole::Sealing) => "sealing",
        Some(MemberRole::Registering) => "registering",
        Some(MemberRole::Promoting) => "promoting",
        Some(MemberRole::Serving) if is_leased && is_held => "draining",
        Some(MemberRole::Serving) if is_leased => "owner",
        Some(MemberRole::Serving) => "fenced",
        Some(MemberRole::Lost) => "lost",
        Some(MemberRole::Following(_)) => "member",
        Some(MemberRole::Outdated) => "outdated",
    }
}

#[cfg(test)]
mod tests {
    use nearstate_cluster::{
        ClusterConfig, ClusterState, CopyMissingPolicy, HostConfig, PartitionConfig, Revision,
    };

    use super::*;

    /// Two partitions that hosts 1 and 2 own. Host 3 has copies of both, host 4 has none.
    fn published() -> Published {
        let host = |id: u16| HostConfig { id: HostId(id), name: format!("h{id}") };
        let partition = |id: u32, group: [u16; 3]| PartitionConfig {
            id: PartitionId(id),
            name: format!("p{id}"),
            group: group.map(HostId).to_vec(),
        };
        let config = ClusterConfig {
            hosts: (1..=4).map(host).collect(),
            partitions: vec![partition(1, [1, 2, 3]), partition(2, [2, 1, 3])],
            copies: 3,
            acknowledgements: 2,
            lease_ms: 300,
            copy_missing: CopyMissingPolicy::Stop,
        };
        let state = ClusterState::new(&config).unwrap();
        Published { groups: state.groups().cloned().collect(), ..Published::default() }
    }

    fn confirmed(published: &Published, me: u16, leased: &[u32]) -> Vec<(u32, u16)> {
        let owners = published.owners(HostId(me), &|_| me != 4, &|of| leased.contains(&of.0));
        assert_eq!(owners.iter().map(|known| known.host.0).collect::<Vec<_>>(), [1, 2]);
        let confirmed = owners.iter().filter(|known| known.is_confirmed);
        confirmed.map(|known| (known.partition.0, known.host.0)).collect()
    }

    #[test]
    fn an_owner_is_confirmed_by_its_own_lease_or_by_what_this_host_hears() {
        let mut published = published();
        // The host is the owner of partition 1. That it "hears" itself is no lease.
        published.heard = BTreeSet::from([PartitionId(1)]);
        assert_eq!(confirmed(&published, 1, &[]), []);
        assert_eq!(confirmed(&published, 1, &[1]), [(1, 1)]);
        // A member hears one of the two owners.
        assert_eq!(confirmed(&published, 3, &[]), [(1, 1)]);
    }

    #[test]
    fn a_host_without_a_copy_confirms_owners_while_it_knows_a_leader() {
        let mut published = published();
        assert_eq!(confirmed(&published, 4, &[]), []);
        published.engine.leader = Some(1);
        assert_eq!(confirmed(&published, 4, &[]), [(1, 1), (2, 2)]);
        published.engine.failure = Some("no disk".to_owned());
        assert_eq!(confirmed(&published, 4, &[]), []);
    }

    #[test]
    fn a_host_without_a_copy_was_heard_when_the_engine_has_heard_it() {
        let mut published = published();
        published.heard_at = BTreeMap::from([(HostId(2), Monotonic(0)), (HostId(3), Monotonic(0))]);
        published.engine.silent_ms = BTreeMap::from([(3, 7), (4, 9)]);
        let silent = published.silent_ms(Monotonic(8_000_000));
        assert_eq!(silent, BTreeMap::from([(HostId(2), 8), (HostId(3), 7), (HostId(4), 9)]));
    }

    #[test]
    fn a_host_knows_a_state_that_the_membership_has_told_it() {
        let mut published = published();
        let group = published.groups[0].clone();
        let known = |published: &Published, record| published.is_known(&group, &record);
        // It has just started, and the state is that of the file.
        assert!(!known(&published, MemberRecord::NEW));
        published.engine.leader = Some(1);
        assert!(known(&published, MemberRecord::NEW));
        let later = MemberRecord { view: ViewNumber(5), revision: Revision(9), evicting: None };
        assert!(!known(&published, later));
        published.engine.leader = None;
        published.applied = 7;
        assert!(known(&published, MemberRecord::NEW));
        published.engine.is_removed = true;
        assert!(!known(&published, MemberRecord::NEW));
    }
}
