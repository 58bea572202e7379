//! The static configuration of a cluster, as the cluster file gives it.

use crate::id::{HostId, PartitionId};
use crate::limits::{
    COPIES_MAX, DEGRADE_LEASES_MIN, DEGRADE_MS_MAX, HOSTS_MAX, LEASE_MARGIN_DIVISOR,
    LEASE_MARGIN_NS, LEASE_MS_MAX, LEASE_MS_MIN, NAME_BYTES_MAX, PARTITIONS_MAX,
    PROPOSALS_PER_LEASE,
};
use std::fmt;

/// A host as it is configured. Addresses belong to the layers that connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostConfig {
    /// Its number, from 1.
    pub id: HostId,
    /// Its name, 1 to 255 bytes.
    pub name: String,
}

/// A partition as it is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionConfig {
    /// Its number.
    pub id: PartitionId,
    /// Its name, 1 to 255 bytes.
    pub name: String,
    /// The hosts that hold copies, in the order of preference. The first one is the first owner.
    pub group: Vec<HostId>,
}

/// What an owner does while fewer copies are complete than acknowledgements are configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CopyMissingPolicy {
    /// Nothing is replicated, and writers are refused.
    #[default]
    Stop,
    /// After some time it asks the membership to decide that its copy suffices.
    Degrade {
        /// That time, in milliseconds.
        after_ms: u32,
    },
}

/// The configuration of a cluster. All hosts must have the same one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
    /// All hosts.
    pub hosts: Vec<HostConfig>,
    /// All partitions.
    pub partitions: Vec<PartitionConfig>,
    /// Copies of each partition (RF): the size of each group.
    pub copies: u8,
    /// Hosts that must hold a position before it is replicated, the owner included (n).
    pub acknowledgements: u8,
    /// Length of a lease, in milliseconds.
    pub lease_ms: u32,
    /// What happens while a copy is missing.
    pub copy_missing: CopyMissingPolicy,
}

/// Why a configuration is not valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigError {
    /// There is no host.
    NoHosts,
    /// There is no partition.
    NoPartitions,
    /// More hosts than [`HOSTS_MAX`].
    TooManyHosts(usize),
    /// More partitions than [`PARTITIONS_MAX`].
    TooManyPartitions(usize),
    /// Host number 0.
    HostIdZero(String),
    /// Two hosts have this number.
    DuplicateHostId(HostId),
    /// Two hosts have this name.
    DuplicateHostName(String),
    /// Two partitions have this number.
    DuplicatePartitionId(PartitionId),
    /// Two partitions have this name.
    DuplicatePartitionName(String),
    /// A name is empty or too long.
    InvalidName(String),
    /// There are more copies than hosts.
    CopiesAboveHosts {
        /// Configured copies.
        copies: u8,
        /// Configured hosts.
        hosts: usize,
    },
    /// More copies than [`COPIES_MAX`].
    TooManyCopies(u8),
    /// More acknowledgements than copies.
    AcknowledgementsAboveCopies {
        /// Configured acknowledgements.
        acknowledgements: u8,
        /// Configured copies.
        copies: u8,
    },
    /// Fewer than two acknowledgements: nothing would survive the loss of a host, and no member
    /// could grant a lease.
    TooFewAcknowledgements(u8),
    /// One copy is to suffice, and there are not two copies of which both must hold a commit.
    DegradeNeedsTwoCopies {
        /// Configured copies.
        copies: u8,
    },
    /// One copy is to suffice after a time that is too short, or too long.
    DegradeOutOfRange {
        /// The configured time, in milliseconds.
        after_ms: u32,
        /// The shortest one with the configured lease.
        least_ms: u32,
    },
    /// The lease is outside [`LEASE_MS_MIN`] to [`LEASE_MS_MAX`].
    LeaseOutOfRange(u32),
    /// A group names a host that is not configured.
    UnknownHost {
        /// The partition.
        partition: PartitionId,
        /// The host.
        host: HostId,
    },
    /// A group names a host twice.
    DuplicateMember {
        /// The partition.
        partition: PartitionId,
        /// The host.
        host: HostId,
    },
    /// A group has another number of hosts than there are copies.
    GroupSize {
        /// The partition.
        partition: PartitionId,
        /// Hosts of its group.
        members: usize,
        /// Configured copies.
        copies: u8,
    },
}

/// The length of a lease, and what follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease {
    ms: u32,
}

impl Lease {
    /// A lease of so many milliseconds.
    ///
    /// # Errors
    /// [`ConfigError::LeaseOutOfRange`]
    pub fn from_ms(lease_ms: u32) -> Result<Self, ConfigError> {
        if (LEASE_MS_MIN..=LEASE_MS_MAX).contains(&lease_ms) {
            Ok(Self { ms: lease_ms })
        } else {
            Err(ConfigError::LeaseOutOfRange(lease_ms))
        }
    }

    /// The configured number.
    pub fn ms(self) -> u32 {
        self.ms
    }

    /// For how long a member promises, in nanoseconds of its clock.
    pub fn promise_ns(self) -> u64 {
        u64::from(self.ms) * 1_000_000
    }

    /// How long a proposal is tried, in nanoseconds. Then the rules decide anew whether they want
    /// it, so at most one of a kind is under way.
    pub fn proposal_ns(self) -> u64 {
        self.promise_ns() / PROPOSALS_PER_LEASE
    }

    /// For how long the owner holds its lease, in nanoseconds of its clock.
    pub fn owner_ns(self) -> u64 {
        self.promise_ns() - self.promise_ns() / LEASE_MARGIN_DIVISOR - LEASE_MARGIN_NS
    }
}

impl ClusterConfig {
    /// Checks everything.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_hosts()?;
        self.validate_numbers()?;
        self.validate_partitions()
    }

    /// The length of a lease.
    ///
    /// # Errors
    /// [`ConfigError::LeaseOutOfRange`]
    pub fn lease(&self) -> Result<Lease, ConfigError> {
        Lease::from_ms(self.lease_ms)
    }

    fn validate_hosts(&self) -> Result<(), ConfigError> {
        if self.hosts.is_empty() {
            return Err(ConfigError::NoHosts);
        }
        if self.hosts.len() > HOSTS_MAX {
            return Err(ConfigError::TooManyHosts(self.hosts.len()));
        }
        for (index, host) in self.hosts.iter().enumerate() {
            validate_name(&host.name)?;
            if host.id.0 == 0 {
                return Err(ConfigError::HostIdZero(host.name.clone()));
            }
            for earlier in self.hosts.iter().take(index) {
                if earlier.id == host.id {
                    return Err(ConfigError::DuplicateHostId(host.id));
                }
                if earlier.name == host.name {
                    return Err(ConfigError::DuplicateHostName(host.name.clone()));
                }
            }
        }
        Ok(())
    }

    fn validate_numbers(&self) -> Result<(), ConfigError> {
        let (copies, acknowledgements) = (self.copies, self.acknowledgements);
        if usize::from(copies) > self.hosts.len() {
            return Err(ConfigError::CopiesAboveHosts { copies, hosts: self.hosts.len() });
        }
        if usize::from(copies) > COPIES_MAX {
            return Err(ConfigError::TooManyCopies(copies));
        }
        if acknowledgements < 2 {
            return Err(ConfigError::TooFewAcknowledgements(acknowledgements));
        }
        if acknowledgements > copies {
            return Err(ConfigError::AcknowledgementsAboveCopies { acknowledgements, copies });
        }
        self.lease()?;
        self.validate_copy_missing()
    }

    fn validate_copy_missing(&self) -> Result<(), ConfigError> {
        let CopyMissingPolicy::Degrade { after_ms } = self.copy_missing else { return Ok(()) };
        let least_ms = self.lease_ms * DEGRADE_LEASES_MIN;
        if self.copies != 2 {
            return Err(ConfigError::DegradeNeedsTwoCopies { copies: self.copies });
        }
        if !(least_ms..=DEGRADE_MS_MAX).contains(&after_ms) {
            return Err(ConfigError::DegradeOutOfRange { after_ms, least_ms });
        }
        Ok(())
    }

    fn validate_partitions(&self) -> Result<(), ConfigError> {
        if self.partitions.is_empty() {
            return Err(ConfigError::NoPartitions);
        }
        if self.partitions.len() > PARTITIONS_MAX {
            return Err(ConfigError::TooManyPartitions(self.partitions.len()));
        }
        for (index, partition) in self.partitions.iter().enumerate() {
            validate_name(&partition.name)?;
            for earlier in self.partitions.iter().take(index) {
                if earlier.id == partition.id {
                    return Err(ConfigError::DuplicatePartitionId(partition.id));
                }
                if earlier.name == partition.name {
                    return Err(ConfigError::DuplicatePartitionName(partition.name.clone()));
                }
            }
            self.validate_group(partition)?;
        }
        Ok(())
    }

    fn validate_group(&self, config: &PartitionConfig) -> Result<(), ConfigError> {
        let partition = config.id;
        for (index, &host) in config.group.iter().enumerate() {
            if !self.hosts.iter().any(|known| known.id == host) {
                return Err(ConfigError::UnknownHost { partition, host });
            }
            if config.group.iter().take(index).any(|&earlier| earlier == host) {
                return Err(ConfigError::DuplicateMember { partition, host });
            }
        }
        if config.group.len() != usize::from(self.copies) {
            let members = config.group.len();
            return Err(ConfigError::GroupSize { partition, members, copies: self.copies });
        }
        Ok(())
    }
}

fn validate_name(name: &str) -> Result<(), ConfigError> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(ConfigError::InvalidName(name.to_owned()));
    }
    Ok(())
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHosts => write!(f, "the cluster has no host"),
            Self::NoPartitions => write!(f, "the cluster has no partition"),
            Self::TooManyHosts(hosts) => {
                write!(f, "{hosts} hosts are configured, at most {HOSTS_MAX} are possible")
            }
            Self::TooManyPartitions(partitions) => write!(
                f,
                "{partitions} partitions are configured, at most {PARTITIONS_MAX} are possible"
            ),
            Self::HostIdZero(name) => {
                write!(f, "host {name:?} has the number 0: numbers of hosts begin at 1")
            }
            Self::DuplicateHostId(host) => write!(f, "two hosts have the number {host}"),
            Self::DuplicateHostName(name) => write!(f, "two hosts have the name {name:?}"),
            Self::DuplicatePartitionId(partition) => {
                write!(f, "two partitions have the number {partition}")
            }
            Self::DuplicatePartitionName(name) => {
                write!(f, "two partitions have the name {name:?}")
            }
            Self::InvalidName(name) => {
                write!(f, "the name {name:?} does not have 1 to {NAME_BYTES_MAX} bytes")
            }
            Self::CopiesAboveHosts { copies, hosts } => {
                write!(f, "{copies} copies are configured, but only {hosts} hosts")
            }
            Self::TooManyCopies(copies) => {
                write!(f, "{copies} copies are configured, at most {COPIES_MAX} are possible")
            }
            Self::AcknowledgementsAboveCopies { acknowledgements, copies } => write!(
                f,
                "{acknowledgements} acknowledgements are configured, but only {copies} copies"
            ),
            Self::TooFewAcknowledgements(acknowledgements) => write!(
                f,
                "{acknowledgements} acknowledgements do not survive the loss of a host: configure \
                 at least 2"
            ),
            Self::DegradeNeedsTwoCopies { copies } => write!(
                f,
                "one copy of two can suffice, not one of {copies}: configure 2 copies, or stop \
                 when one is missing"
            ),
            Self::DegradeOutOfRange { after_ms, least_ms } => write!(
                f,
                "one copy is to suffice after {after_ms} ms: expected {least_ms} (two leases) to \
                 {DEGRADE_MS_MAX} ms"
            ),
            Self::LeaseOutOfRange(lease) => {
                write!(f, "a lease of {lease} ms is outside {LEASE_MS_MIN} to {LEASE_MS_MAX} ms")
            }
            Self::UnknownHost { partition, host } => {
                write!(f, "the group of partition {partition} names host {host}, which is unknown")
            }
            Self::DuplicateMember { partition, host } => {
                write!(f, "the group of partition {partition} names host {host} twice")
            }
            Self::GroupSize { partition, members, copies } => write!(
                f,
                "the group of partition {partition} has {members} hosts, but {copies} copies are \
                 configured"
            ),
        }
    }
}

impl std::error::Error for ConfigError {}
