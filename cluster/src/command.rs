//! The commands that consensus orders, and their bytes.
//!
//! All numbers are little-endian: format u8 = 1, kind u8, partition u32, number u64 (a view, a
//! revision, a process, or a level), host u16 (0 if the command names none), and for a report:
//! origin u64, log 16 bytes, incarnation u64, position u64, check u64; for a renewal: stamp u64;
//! for a raised view: revision u64. A command of the whole cluster has partition 0. A command has
//! exactly one encoding.

use crate::id::{HostId, Monotonic, PartitionId, Revision, ViewNumber};
use crate::level::ClusterLevel;
use crate::limits::CLUSTER_COMMAND_BYTES_MAX;
use crate::position::LogPosition;
use std::fmt;

const FORMAT: u8 = 1;

/// A change of a partition's state, or of the cluster's, that a host or an operator proposes.
/// Whether it has an effect is decided when it is applied ([`crate::ClusterState::apply`]). A
/// proposal may be lost, late or repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    /// A process of a host with a new region: when it sees its number in the applied state, that
    /// state is not older than its start.
    Register {
        /// Of which partition.
        partition: PartitionId,
        /// The host.
        host: HostId,
        /// The random number of its process.
        process: u64,
    },
    /// A full member has not heard the owner for a lease. When as many members suspect it as a seal
    /// needs reports, the owner is excluded.
    Suspect {
        /// Of which partition.
        partition: PartitionId,
        /// The view whose owner is silent.
        view: ViewNumber,
        /// The member.
        host: HostId,
    },
    /// A member that suspected the owner hears it again.
    Trust {
        /// Of which partition.
        partition: PartitionId,
        /// The view.
        view: ViewNumber,
        /// The member.
        host: HostId,
    },
    /// Excludes the owner at once. Proposed by the owner itself if its region is lost, and by
    /// operators.
    Exclude {
        /// Of which partition.
        partition: PartitionId,
        /// The view whose owner is excluded.
        view: ViewNumber,
    },
    /// As `Exclude`, when an operator has named the next owner, whose copy counts: of equal copies
    /// its one is taken.
    HandOver {
        /// Of which partition.
        partition: PartitionId,
        /// The view whose owner is excluded.
        view: ViewNumber,
        /// The next owner.
        host: HostId,
    },
    /// A member has frozen its copy, and its promise to the excluded owner has ended.
    Report {
        /// Of which partition.
        partition: PartitionId,
        /// The view that the exclusion began.
        view: ViewNumber,
        /// The member.
        host: HostId,
        /// What its copy holds.
        held: LogPosition,
    },
    /// The excluded owner lives, its region is intact, and no seal has come about: it is the owner
    /// again.
    Return {
        /// Of which partition.
        partition: PartitionId,
        /// The view that the exclusion began.
        view: ViewNumber,
        /// The excluded owner.
        host: HostId,
    },
    /// The member's copy is complete. Proposed by the owner.
    Full {
        /// Of which partition.
        partition: PartitionId,
        /// The revision on which the proposal rests.
        revision: Revision,
        /// The member.
        host: HostId,
    },
    /// The member's copy does not count any more. Proposed by the owner, which has stopped counting
    /// it before.
    Evict {
        /// Of which partition.
        partition: PartitionId,
        /// The revision on which the proposal rests.
        revision: Revision,
        /// The member.
        host: HostId,
    },
    /// The copy of the owner suffices, because the other one of two has been missing for some time.
    /// Proposed by the owner.
    Degrade {
        /// Of which partition.
        partition: PartitionId,
        /// The revision on which the proposal rests.
        revision: Revision,
        /// The owner.
        host: HostId,
    },
    /// The lease of an owner whose copy suffices. That this is ordered shows that no other host has
    /// got the partition before. Proposed by the owner.
    Renew {
        /// Of which partition.
        partition: PartitionId,
        /// The revision on which the proposal rests.
        revision: Revision,
        /// The owner.
        host: HostId,
        /// The time of the owner's clock before it proposed this.
        stamp: Monotonic,
    },
    /// An operator gives the partition to a host that has reported, whatever the others held.
    AcceptLoss {
        /// Of which partition.
        partition: PartitionId,
        /// The view that the exclusion began.
        view: ViewNumber,
        /// The host that becomes the owner.
        host: HostId,
    },
    /// An operator begins the partition anew with the region of a host: an empty one, or an
    /// ordinary region that belonged to no cluster. What other copies hold is discarded.
    ForceNew {
        /// Of which partition.
        partition: PartitionId,
        /// The view that the exclusion began.
        view: ViewNumber,
        /// The host that becomes the owner.
        host: HostId,
    },
    /// An operator has created the membership anew, or it was restored from an older copy: regions
    /// have acted on this view and revision. The partition continues behind them, without an owner
    /// until an operator names one.
    RaiseView {
        /// Of which partition.
        partition: PartitionId,
        /// The highest view that is known to a region or to the state. An earlier one has no
        /// effect.
        view: ViewNumber,
        /// The highest revision that is known to a region.
        revision: Revision,
    },
    /// An operator adds a host to the group. It is not full.
    AddMember {
        /// Of which partition.
        partition: PartitionId,
        /// The revision on which the proposal rests.
        revision: Revision,
        /// The host.
        host: HostId,
    },
    /// An operator removes a host from the group. It is not the owner. One that is full leaves: its
    /// owner evicts it when the others suffice.
    RemoveMember {
        /// Of which partition.
        partition: PartitionId,
        /// The revision on which the proposal rests.
        revision: Revision,
        /// The host.
        host: HostId,
    },
    /// An operator has asked all hosts: each of them can do this level.
    Finalize {
        /// The level.
        level: ClusterLevel,
    },
}

/// Why bytes are no command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandError {
    /// The format is not 1.
    Format(u8),
    /// There is no such kind.
    Kind(u8),
    /// A command of this kind has another size.
    Size(usize),
    /// The host is 0 where the kind needs one, or not 0 where it has none.
    Host(u16),
    /// A command of the whole cluster names a partition.
    Partition(u32),
    /// There is no such level.
    UnknownLevel(u64),
}

impl Command {
    /// The level from which on the command has an effect. A host whose program does not know a
    /// command never meets it: its program cannot do that level either.
    pub fn level(&self) -> ClusterLevel {
        match *self {
            Self::AddMember { .. } | Self::RemoveMember { .. } => ClusterLevel::GROUP_CHANGES,
            Self::RaiseView { .. } => ClusterLevel::RAISED_VIEWS,
            Self::HandOver { .. } => ClusterLevel::HAND_OVERS,
            Self::Register { .. }
            | Self::Suspect { .. }
            | Self::Trust { .. }
            | Self::Exclude { .. }
            | Self::Report { .. }
            | Self::Return { .. }
            | Self::Full { .. }
            | Self::Evict { .. }
            | Self::Degrade { .. }
            | Self::Renew { .. }
            | Self::AcceptLoss { .. }
            | Self::ForceNew { .. }
            | Self::Finalize { .. } => ClusterLevel::FIRST,
        }
    }

    /// The partition that the command concerns. `None`: the whole cluster.
    pub fn partition(&self) -> Option<PartitionId> {
        match *self {
            Self::Register { partition, .. }
            | Self::Suspect { partition, .. }
            | Self::Trust { partition, .. }
            | Self::Exclude { partition, .. }
            | Self::HandOver { partition, .. }
            | Self::Report { partition, .. }
            | Self::Return { partition, .. }
            | Self::Full { partition, .. }
            | Self::Evict { partition, .. }
            | Self::Degrade { partition, .. }
            | Self::Renew { partition, .. }
            | Self::AcceptLoss { partition, .. }
            | Self::ForceNew { partition, .. }
            | Self::RaiseView { partition, .. }
            | Self::AddMember { partition, .. }
            | Self::RemoveMember { partition, .. } => Some(partition),
            Self::Finalize { .. } => None,
        }
    }

    /// The bytes of the command, at most [`CLUSTER_COMMAND_BYTES_MAX`].
    pub fn encode(&self) -> Vec<u8> {
        let (kind, number, host, held) = match *self {
            Self::Register { process, host, .. } => (11, process, host.0, None),
            Self::Suspect { view, host, .. } => (1, view.0, host.0, None),
            Self::Trust { view, host, .. } => (2, view.0, host.0, None),
            Self::Exclude { view, .. } => (3, view.0, 0, None),
            Self::Report { view, host, held, .. } => (4, view.0, host.0, Some(held)),
            Self::Return { view, host, .. } => (5, view.0, host.0, None),
            Self::Full { revision, host, .. } => (6, revision.0, host.0, None),
            Self::Evict { revision, host, .. } => (7, revision.0, host.0, None),
            Self::AcceptLoss { view, host, .. } => (8, view.0, host.0, None),
            Self::ForceNew { view, host, .. } => (12, view.0, host.0, None),
            Self::AddMember { revision, host, .. } => (9, revision.0, host.0, None),
            Self::RemoveMember { revision, host, .. } => (10, revision.0, host.0, None),
            Self::Degrade { revision, host, .. } => (13, revision.0, host.0, None),
            Self::Renew { revision, host, .. } => (14, revision.0, host.0, None),
            Self::Finalize { level } => (15, level.0.into(), 0, None),
            Self::RaiseView { view, .. } => (16, view.0, 0, None),
            Self::HandOver { view, host, .. } => (17, view.0, host.0, None),
        };
        let mut bytes = Vec::with_capacity(CLUSTER_COMMAND_BYTES_MAX);
        bytes.extend([FORMAT, kind]);
        bytes.extend(self.partition().map_or(0, |partition| partition.0).to_le_bytes());
        bytes.extend(number.to_le_bytes());
        bytes.extend(host.to_le_bytes());
        if let Some(held) = held {
            held.encode(&mut bytes);
        }
        if let Self::Renew { stamp: Monotonic(last), .. }
        | Self::RaiseView { revision: Revision(last), .. } = self
        {
            bytes.extend(last.to_le_bytes());
        }
        bytes
    }

    /// The command of these bytes, which may be any.
    ///
    /// # Errors
    /// The bytes are no command.
    pub fn decode(bytes: &[u8]) -> Result<Self, CommandError> {
        let size = CommandError::Size(bytes.len());
        let (&[format, kind], rest) = bytes.split_first_chunk::<2>().ok_or(size)?;
        if format != FORMAT {
            return Err(CommandError::Format(format));
        }
        let (partition, rest) = rest.split_first_chunk::<4>().ok_or(size)?;
        let (number, rest) = rest.split_first_chunk::<8>().ok_or(size)?;
        let (host, rest) = rest.split_first_chunk::<2>().ok_or(size)?;
        let partition = PartitionId(u32::from_le_bytes(*partition));
        let (host, number) = (HostId(u16::from_le_bytes(*host)), u64::from_le_bytes(*number));
        let (view, revision) = (ViewNumber(number), Revision(number));
        let (command, rest) = match kind {
            1 => (Self::Suspect { partition, view, host }, rest),
            2 => (Self::Trust { partition, view, host }, rest),
            3 => (Self::Exclude { partition, view }, rest),
            4 => {
                let (held, rest) = LogPosition::decode(rest).ok_or(size)?;
                (Self::Report { partition, view, host, held }, rest)
            }
            5 => (Self::Return { partition, view, host }, rest),
            6 => (Self::Full { partition, revision, host }, rest),
            7 => (Self::Evict { partition, revision, host }, rest),
            8 => (Self::AcceptLoss { partition, view, host }, rest),
            9 => (Self::AddMember { partition, revision, host }, rest),
            10 => (Self::RemoveMember { partition, revision, host }, rest),
            11 => (Self::Register { partition, host, process: number }, rest),
            12 => (Self::ForceNew { partition, view, host }, rest),
            13 => (Self::Degrade { partition, revision, host }, rest),
            14 => {
                let (stamp, rest) = rest.split_first_chunk::<8>().ok_or(size)?;
                let stamp = Monotonic(u64::from_le_bytes(*stamp));
                (Self::Renew { partition, revision, host, stamp }, rest)
            }
            15 if partition.0 != 0 => return Err(CommandError::Partition(partition.0)),
            15 => {
                let level =
                    u16::try_from(number).map_err(|_| CommandError::UnknownLevel(number))?;
                (Self::Finalize { level: ClusterLevel(level) }, rest)
            }
            16 => {
                let (revision, rest) = rest.split_first_chunk::<8>().ok_or(size)?;
                let revision = Revision(u64::from_le_bytes(*revision));
                (Self::RaiseView { partition, view, revision }, rest)
            }
            17 => (Self::HandOver { partition, view, host }, rest),
            _ => return Err(CommandError::Kind(kind)),
        };
        if !rest.is_empty() {
            return Err(size);
        }
        if matches!(kind, 3 | 15 | 16) != (host.0 == 0) {
            return Err(CommandError::Host(host.0));
        }
        Ok(command)
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Format(format) => write!(f, "a command has format {format}, expected {FORMAT}"),
            Self::Kind(kind) => write!(f, "a command has the unknown kind {kind}"),
            Self::Size(size) => write!(f, "a command of {size} bytes has the wrong size"),
            Self::Host(host) => write!(f, "a command has the wrong host {host}"),
            Self::Partition(partition) => {
                write!(f, "a command of the whole cluster names partition {partition}")
            }
            Self::UnknownLevel(level) => write!(f, "a command names the level {level}"),
        }
    }
}

impl std::error::Error for CommandError {}
