//! The replicated state of all partitions.

use crate::command::Command;
use crate::config::{ClusterConfig, ConfigError, Lease};
use crate::group::{Applied, CommandRefusal, GroupState};
use crate::id::PartitionId;
use crate::level::ClusterLevel;
use std::collections::BTreeMap;

/// The replicated state of a cluster. All hosts that have applied the same commands have the same
/// one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClusterState {
    pub(crate) lease: Lease,
    pub(crate) level: ClusterLevel,
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
        let groups = config.partitions.iter().map(group).collect();
        Ok(Self { lease: config.lease()?, level: ClusterLevel::FIRST, groups })
    }

    /// Applies the next command of the log of consensus.
    pub fn apply(&mut self, command: &Command) -> Applied {
        if command.level() > self.level {
            return Applied::Refused(CommandRefusal::LevelTooLow);
        }
        if let Command::Finalize { level } = *command {
            return self.finalize(level);
        }
        match command.partition().and_then(|partition| self.groups.get_mut(&partition)) {
            Some(group) => group.apply(command, self.level),
            None => Applied::Refused(CommandRefusal::UnknownPartition),
        }
    }

    fn finalize(&mut self, level: ClusterLevel) -> Applied {
        if level <= self.level {
            return Applied::Refused(CommandRefusal::LevelReached);
        }
        self.level = level;
        for group in self.groups.values_mut() {
            group.recount(level);
        }
        Applied::Finalized(level)
    }

    /// The decided level. A program that cannot do it must not apply further commands, and must
    /// not act.
    pub fn level(&self) -> ClusterLevel {
        self.level
    }

    /// One partition.
    pub fn group(&self, partition: PartitionId) -> Option<&GroupState> {
        self.groups.get(&partition)
    }

    /// All partitions, in the order of their numbers.
    pub fn groups(&self) -> impl Iterator<Item = &GroupState> {
        self.groups.values()
    }

    /// The same state with the lease of a configuration: the lease is no decision.
    #[must_use]
    pub fn with_lease(mut self, lease: Lease) -> Self {
        self.lease = lease;
        self
    }

    /// What a decided state has otherwise than this one, of what a configuration gives and
    /// commands rest on: the partitions, their groups, and the acknowledgements.
    pub fn decided_otherwise(&self, decided: &Self) -> Option<String> {
        for (partition, group) in &self.groups {
            let Some(other) = decided.groups.get(partition) else {
                return Some(format!("no partition {partition} was decided"));
            };
            let hosts = |group: &GroupState| -> Vec<u16> {
                group.group().iter().map(|host| host.0).collect()
            };
            // The group of a configuration is the first one.
            let is_first = decided.level < ClusterLevel::GROUP_CHANGES;
            if is_first && hosts(group) != hosts(other) {
                let (own, other) = (hosts(group), hosts(other));
                return Some(format!(
                    "the group of partition {partition} is {other:?}, not {own:?}"
                ));
            }
            let (own, other) = (group.acknowledgements, other.acknowledgements);
            if own != other {
                return Some(format!(
                    "partition {partition} has {other} acknowledgements, not {own}"
                ));
            }
        }
        let more = decided.groups.keys().find(|partition| !self.groups.contains_key(partition));
        more.map(|partition| format!("partition {partition} was decided, and is not configured"))
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
