//! Configurations, positions and states for the tests.

use nearstate_cluster::{
    ClusterConfig, ClusterState, Command, CopyMissingPolicy, HostConfig, HostId, LogPosition,
    PartitionConfig, PartitionId, Revision, ViewNumber,
};

pub(crate) const PARTITION: PartitionId = PartitionId(1);

pub(crate) fn config(copies: u8, acknowledgements: u8) -> ClusterConfig {
    let hosts = 1..=u16::from(copies);
    ClusterConfig {
        hosts: hosts
            .clone()
            .map(|id| HostConfig { id: HostId(id), name: id.to_string() })
            .collect(),
        partitions: vec![PartitionConfig {
            id: PARTITION,
            name: "ue".to_owned(),
            group: hosts.map(HostId).collect(),
        }],
        copies,
        acknowledgements,
        lease_ms: 300,
        copy_missing: CopyMissingPolicy::Stop,
    }
}

pub(crate) fn held(origin: u64, position: u64) -> LogPosition {
    let [low, ..] = origin.to_le_bytes();
    LogPosition {
        origin: ViewNumber(origin),
        log: [low; 16],
        incarnation: 1,
        position,
        check: position * 7,
    }
}

pub(crate) fn report(view: u64, host: u16, held: LogPosition) -> Command {
    Command::Report { partition: PARTITION, view: ViewNumber(view), host: HostId(host), held }
}

pub(crate) fn suspect(view: u64, host: u16) -> Command {
    Command::Suspect { partition: PARTITION, view: ViewNumber(view), host: HostId(host) }
}

/// A state in which all hosts are full.
pub(crate) fn whole(copies: u8, acknowledgements: u8) -> ClusterState {
    let mut state = ClusterState::new(&config(copies, acknowledgements)).unwrap();
    for host in 2..=u16::from(copies) {
        let revision = state.group(PARTITION).unwrap().revision();
        let host = HostId(host);
        state.apply(&Command::Full { partition: PARTITION, revision, host });
    }
    state
}

pub(crate) fn evict(revision: Revision, host: u16) -> Command {
    Command::Evict { partition: PARTITION, revision, host: HostId(host) }
}
