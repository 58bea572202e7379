//! The replicated state of all partitions.

use crate::command::Command;
use crate::config::{ClusterConfig, ConfigError, Lease};
use crate::group::{Applied, CommandRefusal, GroupState};
use crate::id::PartitionId;
use std::collections::BTreeMap;

/// The replicated state of a cluster. All hosts that have applied the same commands have the same
/// one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClusterState {
    pub(crate) lease: Lease,
    pub(crate) groups: BTreeMap<PartitionId, GroupState>,
}

impl ClusterState {
    /// The state of a new cluster.
    ///
    /// # Errors
    /// The configuration is not valid.
    pub fn new(config: &ClusterConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let group = |partition: &crate::config::PartitionConfig| {
            let state = GroupState::new(partition.id, &partition.group, config.acknowledgements);
            (partition.id, state)
        };
        Ok(Self { lease: config.lease()?, groups: config.partitions.iter().map(group).collect() })
    }

    /// Applies the next command of the log of consensus.
    pub fn apply(&mut self, command: &Command) -> Applied {
        match self.groups.get_mut(&command.partition()) {
            Some(group) => group.apply(command),
            None => Applied::Refused(CommandRefusal::UnknownPartition),
        }
    }

    /// One partition.
    pub fn group(&self, partition: PartitionId) -> Option<&GroupState> {
        self.groups.get(&partition)
    }

    /// All partitions, in the order of their numbers.
    pub fn groups(&self) -> impl Iterator<Item = &GroupState> {
        self.groups.values()
    }

    /// Switches rules of all partitions off.
    #[cfg(feature = "switches")]
    pub fn switch_off(&mut self, off: &[crate::switches::Switch]) {
        for group in self.groups.values_mut() {
            group.switches = crate::switches::Switches::new(off);
        }
    }

    /// The length of a lease.
    pub fn lease(&self) -> Lease {
        self.lease
    }
}
