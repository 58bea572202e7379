//! The replicated state as a state machine of an engine.

use nearstate_cluster::{ClusterState, Command};
use nearstate_model::{Error, Result};

use crate::consensus::StateMachine;

/// The replicated state as a state machine of an engine.
#[derive(Debug)]
pub(super) struct ClusterMachine(pub(super) ClusterState);

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
        self.0 = decode(snapshot)?;
        Ok(())
    }
}

/// The state of a snapshot.
pub(super) fn decode(snapshot: &[u8]) -> Result<ClusterState> {
    ClusterState::decode(snapshot).map_err(|error| Error::Damaged {
        detail: format!("the snapshot of the membership: {error:?}"),
    })
}
