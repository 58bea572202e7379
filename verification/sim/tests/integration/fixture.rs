//! A group of three hosts, for the model.

use nearstate_cluster::{
    ClusterConfig, ClusterState, Command, HostConfig, HostId, LogPosition, PartitionConfig,
    PartitionId, ViewNumber,
};

pub(crate) const PARTITION: PartitionId = PartitionId(1);

pub(crate) fn log_position(origin: u64, position: u64) -> LogPosition {
    let [low, ..] = origin.to_le_bytes();
    let origin = ViewNumber(origin);
    LogPosition { origin, log: [low; 16], incarnation: 1, position, check: position }
}

/// The state in which all hosts are full.
pub(crate) fn whole() -> ClusterState {
    let hosts = 1..=3_u16;
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
        copies: 3,
        acknowledgements: 2,
        lease_ms: 300,
    };
    let mut state = ClusterState::new(&config).unwrap();
    for host in [HostId(2), HostId(3)] {
        let revision = state.group(PARTITION).unwrap().revision();
        state.apply(&Command::Full { partition: PARTITION, revision, host });
    }
    state
}
