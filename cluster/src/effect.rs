//! What a host has to do.

use crate::command::Command;
use crate::event::ClusterEvent;
use crate::id::{HostId, Monotonic, PartitionId, ViewNumber};
use crate::position::LogPosition;
use crate::region::MemberRecord;
use nearstate_model::invariant;

/// How a follower begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FollowStart {
    /// The copy is a prefix of what the owner has: the hello names its position.
    Continue,
    /// The copy is empty, or may hold what the partition does not: it is discarded, then joins.
    Discard,
}

/// What a host has to do. The effects of one partition are carried out in their order. Repetitions
/// are harmless, and come until an input shows that the effect was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HostEffect {
    /// Store this in the region, before any later effect of the partition.
    Store {
        /// Of which partition.
        partition: PartitionId,
        /// What is stored.
        record: MemberRecord,
    },
    /// Propose a command. It may be lost: it is proposed again while it is needed.
    Propose(Command),
    /// Raise the word *replicated* of the region to this position of its own log.
    SetReplicated {
        /// Of which partition.
        partition: PartitionId,
        /// The new value, above the old one.
        position: u64,
    },
    /// The log may forget what is not above this position: all full members have applied it.
    SetFloor {
        /// Of which partition.
        partition: PartitionId,
        /// The new value.
        position: u64,
    },
    /// The region is an older one: from now on it counts as lost, also for later processes.
    GiveUpRegion {
        /// Of which partition.
        partition: PartitionId,
    },
    /// Raise the word of the lease to this time of this host's clock; [`Monotonic::BOOT`] ends it.
    SetLease {
        /// Of which partition.
        partition: PartitionId,
        /// The end of the lease.
        until: Monotonic,
    },
    /// Say from now on which entries of the own log are decided
    /// ([`Written`](crate::HostInput::Written)), or say it no more.
    WatchLog {
        /// Of which partition.
        partition: PartitionId,
        /// The view, or `None`.
        view: Option<ViewNumber>,
    },
    /// Refuse writers of replicated namespaces (`Fenced`).
    Fence {
        /// Of which partition.
        partition: PartitionId,
    },
    /// Accept writers while the word of the lease is in the future.
    Unfence {
        /// Of which partition.
        partition: PartitionId,
    },
    /// Serve followers in this view: accept their connections, send entries and position messages.
    /// Connections of other views are closed.
    Serve {
        /// Of which partition.
        partition: PartitionId,
        /// The view.
        view: ViewNumber,
    },
    /// Serve no followers: close their connections.
    StopServing {
        /// Of which partition.
        partition: PartitionId,
    },
    /// A follower may send this stamp back, in this view, from now on.
    Answer {
        /// For which partition.
        partition: PartitionId,
        /// The view of the connection.
        view: ViewNumber,
        /// The stamp of the message.
        stamp: Monotonic,
    },
    /// Apply nothing of an older view any more (an owner: refuse writers), then give
    /// [`Frozen`](crate::HostInput::Frozen). The record is stored already.
    Freeze {
        /// Of which partition.
        partition: PartitionId,
        /// The view.
        view: ViewNumber,
    },
    /// Make the copy a region that writes its own log, as decision 025 says, with this
    /// origin: positions begin anew, with a new incarnation. Then give the facts of the region.
    Promote {
        /// Of which partition.
        partition: PartitionId,
        /// The present view.
        view: ViewNumber,
        /// The view in which this log becomes the partition's: the copy's new origin.
        origin: ViewNumber,
        /// What it must hold: a follower exactly this, an old owner at least this. `None`: the
        /// first copy of a new partition, made of an ordinary region, or of an empty one (an
        /// incomplete copy is discarded first).
        seal: Option<LogPosition>,
    },
    /// Make the owner's region a complete copy of the sealed log up to the seal: refuse writers,
    /// undo what its own log has behind the seal, and make these positions a gap (receipts answer
    /// `Lost`). Its log is the sealed one, or has followed that from the seal on. Then give the
    /// region's facts. If it is not possible, nothing has changed: give
    /// [`NotUndone`](crate::HostInput::NotUndone).
    UndoBehind {
        /// Of which partition.
        partition: PartitionId,
        /// The present view.
        view: ViewNumber,
        /// The end of the last sealed log.
        seal: LogPosition,
    },
    /// Refuse writers, and raise the incarnation. Make positions behind the seal a gap (receipts
    /// answer `Lost`), and discard the copy. Then give the region's facts.
    Demote {
        /// Of which partition.
        partition: PartitionId,
        /// The view of another owner.
        view: ViewNumber,
        /// The end of the last sealed log. Receipts of this region's log that are not above it, if
        /// it is of that log, are not lost.
        seal: Option<LogPosition>,
    },
    /// Follow this owner in this view; this replaces an earlier order. The record is stored
    /// already.
    Follow {
        /// Of which partition.
        partition: PartitionId,
        /// The owner.
        owner: HostId,
        /// The view of the connection.
        view: ViewNumber,
        /// How to begin.
        start: FollowStart,
    },
    /// Close the connection to an owner.
    StopFollowing {
        /// Of which partition.
        partition: PartitionId,
    },
    /// Tell operators.
    Event(ClusterEvent),
}

impl HostEffect {
    /// The partition that it concerns.
    pub fn partition(&self) -> PartitionId {
        match self {
            Self::Propose(command) => match command.partition() {
                Some(partition) => partition,
                None => invariant!("a host proposes nothing that concerns the whole cluster"),
            },
            Self::Event(event) => event.partition,
            Self::Store { partition, .. }
            | Self::SetReplicated { partition, .. }
            | Self::SetFloor { partition, .. }
            | Self::GiveUpRegion { partition }
            | Self::SetLease { partition, .. }
            | Self::WatchLog { partition, .. }
            | Self::Fence { partition }
            | Self::Unfence { partition }
            | Self::Serve { partition, .. }
            | Self::StopServing { partition }
            | Self::Answer { partition, .. }
            | Self::Freeze { partition, .. }
            | Self::Promote { partition, .. }
            | Self::UndoBehind { partition, .. }
            | Self::Demote { partition, .. }
            | Self::Follow { partition, .. }
            | Self::StopFollowing { partition } => *partition,
        }
    }
}

/// The effects of one or more steps, in their order.
#[derive(Debug, Default)]
pub struct Effects {
    list: Vec<HostEffect>,
}

impl Effects {
    /// No effects.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the effects out, in their order.
    pub fn drain(&mut self) -> impl Iterator<Item = HostEffect> {
        self.list.drain(..)
    }

    /// The effects, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &HostEffect> {
        self.list.iter()
    }

    pub(crate) fn push(&mut self, effect: HostEffect) {
        self.list.push(effect);
    }
}
