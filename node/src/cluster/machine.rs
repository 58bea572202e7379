//! The replicated state as a state machine of an engine.

use std::fmt;

use nearstate_cluster::{ClusterState, Command};
use nearstate_model::{Error, Result};

use crate::consensus::StateMachine;

pub(super) fn invalid(error: impl fmt::Display) -> Error {
    Error::BadArgument { detail: error.to_string() }
}

/// The replicated state.
#[derive(Debug)]
pub(super) struct ClusterMachine(ClusterState);

impl ClusterMachine {
    pub(super) fn new(state: ClusterState) -> Self {
        Self(state)
    }
}

impl StateMachine for ClusterMachine {
    fn apply(&mut self, _: u64, command: &[u8]) {
        if let Ok(command) = Command::decode(command) {
            self.0.apply(&command);
        }
    }

    fn snapshot(&self) -> Vec<u8> {
        self.0.encode()
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<()> {
        self.0 = restored(&self.0, snapshot)?;
        Ok(())
    }
}

/// The state of a snapshot. What was decided with other groups is not that of this cluster; the
/// lease is that of the file.
pub(super) fn restored(configured: &ClusterState, snapshot: &[u8]) -> Result<ClusterState> {
    let state = ClusterState::decode(snapshot).map_err(|error| Error::Damaged {
        detail: format!("the snapshot of the membership: {error:?}"),
    })?;
    match configured.decided_otherwise(&state) {
        Some(what) => Err(invalid(format!("the membership and the cluster file differ: {what}"))),
        None => Ok(state.with_lease(configured.lease())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearstate_cluster::{
        ClusterConfig, CopyMissingPolicy, HostConfig, HostId, PartitionConfig, PartitionId,
    };

    fn state(group: &[u16], acknowledgements: u8, lease_ms: u32) -> ClusterState {
        let hosts: Vec<HostId> = group.iter().map(|host| HostId(*host)).collect();
        let host = |id: u16| HostConfig { id: HostId(id), name: format!("h{id}") };
        ClusterState::new(&ClusterConfig {
            hosts: (1..=4).map(host).collect(),
            partitions: vec![PartitionConfig {
                id: PartitionId(1),
                name: "amf".to_owned(),
                group: hosts,
            }],
            copies: 3,
            acknowledgements,
            lease_ms,
            copy_missing: CopyMissingPolicy::Stop,
        })
        .unwrap()
    }

    #[test]
    fn a_snapshot_that_was_decided_with_other_groups_is_refused_and_the_lease_is_the_files() {
        let configured = state(&[1, 2, 3], 2, 300);
        let old = restored(&configured, &state(&[1, 2, 3], 2, 10_000).encode()).unwrap();
        assert_eq!(old, configured);
        for (decided, what) in [
            (state(&[1, 2, 4], 2, 300), "the group of partition 1 is [1, 2, 4], not [1, 2, 3]"),
            (state(&[1, 2, 3], 3, 300), "partition 1 has 3 acknowledgements, not 2"),
        ] {
            let error = restored(&configured, &decided.encode()).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
