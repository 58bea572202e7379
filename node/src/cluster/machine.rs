//! The replicated state as a state machine of an engine.

use std::fmt;

use nearstate_cluster::{ClusterLevel, ClusterState, Command, SnapshotError};
use nearstate_model::{Error, Result};

use crate::consensus::StateMachine;

pub(super) fn invalid(error: impl fmt::Display) -> Error {
    Error::BadArgument { detail: error.to_string() }
}

/// The replicated state.
#[derive(Debug)]
pub(super) struct ClusterMachine {
    state: ClusterState,
    /// The highest level that this program can do.
    highest: ClusterLevel,
}

impl ClusterMachine {
    pub(super) fn new(state: ClusterState, highest: ClusterLevel) -> Self {
        Self { state, highest }
    }
}

/// What an operator reads when a program cannot do what was decided.
pub(super) fn level_too_high(decided: ClusterLevel, highest: ClusterLevel) -> String {
    format!(
        "the cluster has level {decided}, and this program can do levels up to {highest}: start \
         the version of the other hosts"
    )
}

impl StateMachine for ClusterMachine {
    /// The command that raises the level is applied by all programs, so that the driver learns of
    /// it. What follows may be unknown to this program.
    fn apply(&mut self, _: u64, command: &[u8]) -> Result<()> {
        if self.state.level() > self.highest {
            return Err(invalid(level_too_high(self.state.level(), self.highest)));
        }
        if let Ok(command) = Command::decode(command) {
            self.state.apply(&command);
        }
        Ok(())
    }

    fn snapshot(&self) -> Vec<u8> {
        self.state.encode()
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<()> {
        self.state = restored(&self.state, snapshot)?;
        Ok(())
    }
}

/// The state of a snapshot. What was decided with other groups is not that of this cluster; the
/// lease is that of the file.
pub(super) fn restored(configured: &ClusterState, snapshot: &[u8]) -> Result<ClusterState> {
    let state = ClusterState::decode(snapshot).map_err(|error| match error {
        SnapshotError::Format(_) => invalid(error),
        SnapshotError::Damaged { .. } => Error::Damaged { detail: error.to_string() },
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
        ViewNumber,
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

    #[test]
    fn a_program_applies_nothing_behind_a_level_that_it_cannot_do() {
        let mut machine = ClusterMachine::new(state(&[1, 2, 3], 2, 300), ClusterLevel(2));
        let command = Command::Exclude { partition: PartitionId(1), view: ViewNumber::FIRST };
        machine.apply(1, &Command::Finalize { level: ClusterLevel(2) }.encode()).unwrap();
        machine.apply(2, &[0xff]).unwrap();
        machine.apply(3, &Command::Finalize { level: ClusterLevel(3) }.encode()).unwrap();
        let before = machine.snapshot();
        let error = machine.apply(4, &command.encode()).unwrap_err().to_string();
        assert!(error.contains("has level 3") && error.contains("up to 2"), "{error}");
        assert_eq!(machine.snapshot(), before);
        // A snapshot of that level is taken, and nothing behind it.
        let mut other = ClusterMachine::new(state(&[1, 2, 3], 2, 300), ClusterLevel(2));
        other.restore(&before).unwrap();
        other.apply(4, &command.encode()).unwrap_err();
    }
}
