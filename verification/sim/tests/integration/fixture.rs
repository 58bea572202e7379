//! A group of three hosts, for the model.

use nearstate_cluster::{
    ClusterConfig, ClusterState, Command, CopyMissingPolicy, GroupState, HostConfig, HostId,
    LogPosition, PartitionConfig, PartitionId, ViewNumber,
};

pub(crate) const PARTITION: PartitionId = PartitionId(1);

pub(crate) fn log_position(origin: u64, position: u64) -> LogPosition {
    let [low, ..] = origin.to_le_bytes();
    let origin = ViewNumber(origin);
    LogPosition { origin, log: [low; 16], incarnation: 1, position, check: position }
}

/// The state in which all of three hosts are full.
pub(crate) fn whole() -> ClusterState {
    whole_of(3)
}

/// The same of two.
pub(crate) fn two_hosts() -> ClusterState {
    whole_of(2)
}

fn whole_of(copies: u8) -> ClusterState {
    let hosts = 1..=u16::from(copies);
    let config = ClusterConfig {
        hosts: hosts
            .clone()
            .map(|id| HostConfig { id: HostId(id), name: id.to_string() })
            .collect(),
        partitions: vec![PartitionConfig {
            id: PARTITION,
            name: "p".to_owned(),
            group: hosts.map(HostId).collect(),
        }],
        copies,
        acknowledgements: 2,
        lease_ms: 300,
        copy_missing: CopyMissingPolicy::Stop,
    };
    let mut state = ClusterState::new(&config).unwrap();
    for host in (2..=u16::from(copies)).map(HostId) {
        let revision = state.group(PARTITION).unwrap().revision();
        state.apply(&Command::Full { partition: PARTITION, revision, host });
    }
    state
}

/// What operators can ask for.
pub(crate) fn group_changes(group: &GroupState) -> impl Iterator<Item = Command> {
    let (partition, revision) = (PARTITION, group.revision());
    let others = (1..=3).map(HostId).filter(|host| group.owner() != Some(*host));
    others.map(move |host| {
        if group.group().contains(&host) {
            Command::RemoveMember { partition, revision, host }
        } else {
            Command::AddMember { partition, revision, host }
        }
    })
}

pub(crate) fn host(node: usize) -> HostId {
    HostId(u16::try_from(node).unwrap() + 1)
}

pub(crate) fn index(host: HostId) -> usize {
    usize::from(host.0) - 1
}

/// Where the log before the one of this origin ends, by the states after each command.
pub(crate) fn base(states: &[ClusterState], origin: u64) -> Option<LogPosition> {
    let groups = states.iter().map(|state| state.group(PARTITION).unwrap());
    groups.filter(|group| group.origin().0 == origin).find_map(GroupState::seal)
}

/// Whether a copy that ends here contains that position.
pub(crate) fn contains(
    states: &[ClusterState],
    (mut origin, mut position): (u64, u64),
    wanted: (u64, u64),
) -> bool {
    while origin > wanted.0 {
        let Some(base) = base(states, origin) else { return false };
        (origin, position) = (base.origin.0, base.position);
    }
    origin == wanted.0 && position >= wanted.1
}
