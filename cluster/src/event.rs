//! Facts for the log, the status and the metrics. Their names are stable.

use crate::id::{HostId, PartitionId, Revision, ViewNumber};
use crate::position::LogPosition;

/// Something that happened to a partition, at this host or in the applied state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClusterEvent {
    /// Which partition.
    pub partition: PartitionId,
    /// In which view.
    pub view: ViewNumber,
    /// What happened.
    pub kind: ClusterEventKind,
}

/// What happened. [`ClusterEventKind::id`] is its stable name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClusterEventKind {
    /// This host owns the partition and accepts followers.
    OwnerStarted {
        /// True if it has taken over from another owner in this view. False at the start of the
        /// partition, and if the process was started again or the owner has returned.
        is_takeover: bool,
    },
    /// This host is not the owner any more.
    OwnerStopped,
    /// This host got a lease until the end of which it may serve.
    LeaseGranted,
    /// The lease of this owner has ended: replicated namespaces are fenced.
    LeaseEnded,
    /// This host has not heard the owner for a lease.
    OwnerSilent(HostId),
    /// This host hears the owner again.
    OwnerHeard(HostId),
    /// The region of this host is lost, or an older one, while the host owns the partition.
    OwnerRegionLost,
    /// This host has frozen its copy.
    CopyFrozen(LogPosition),
    /// This host discards its outdated copy and joins anew.
    CopyDiscarded,
    /// It was ordered, at this revision, that this member does not count any more. The driver of
    /// the owner tells it.
    Evicting(HostId, Revision),
    /// The owner asks that its copy suffices.
    Degrading(Revision),
    /// The owner counts this copy again, and asks that it is full.
    Admitting(HostId, Revision),
    /// Two copies have different histories: an operator has to look at it.
    Fork(HostId),
}

impl ClusterEventKind {
    /// The name in logs and metrics.
    pub fn id(&self) -> &'static str {
        match self {
            Self::OwnerStarted { .. } => "cluster-owner-started",
            Self::OwnerStopped => "cluster-owner-stopped",
            Self::LeaseGranted => "cluster-lease-granted",
            Self::LeaseEnded => "cluster-lease-ended",
            Self::OwnerSilent(_) => "cluster-owner-silent",
            Self::OwnerHeard(_) => "cluster-owner-heard",
            Self::OwnerRegionLost => "cluster-owner-region-lost",
            Self::CopyFrozen(_) => "cluster-copy-frozen",
            Self::CopyDiscarded => "cluster-copy-discarded",
            Self::Evicting(..) => "cluster-evicting",
            Self::Degrading(_) => "cluster-degrading",
            Self::Admitting(..) => "cluster-admitting",
            Self::Fork(_) => "cluster-fork",
        }
    }
}
