//! What a host learns.

use crate::id::{HostId, Monotonic, PartitionId, ViewNumber};
use crate::position::LogPosition;
use crate::region::RegionState;
use crate::state::ClusterState;

/// Numbers the connections between this host and another one for one partition. A later connection
/// has a higher number. Numbers do not repeat while a process of this host lives.
pub type ConnectionNumber = u64;

/// What a host learns. Every input may come at any time, late or repeatedly; one that belongs to
/// another view or connection than the present one has no effect.
#[derive(Debug, Clone, Copy)]
pub enum HostInput<'a> {
    /// The host has applied one or more commands (or a snapshot). This is the state now. A state
    /// that is older than the last one is not possible.
    State(&'a ClusterState),
    /// What the region says: once before anything else of the partition, and again when
    /// [`Promote`](crate::HostEffect::Promote), [`Demote`](crate::HostEffect::Demote) or a join has
    /// changed the copy, when a follower's position has advanced (at any rate: only status uses
    /// it), and when the region is lost ([`CopyState::Empty`](crate::CopyState::Empty)). A
    /// follower whose region is lost keeps its order to follow, and joins anew.
    Region {
        /// Of which partition.
        partition: PartitionId,
        /// What it says.
        facts: RegionState,
    },
    /// To an owner: a follower has connected in this view, and its hello was accepted.
    Connected {
        /// For which partition.
        partition: PartitionId,
        /// The follower.
        host: HostId,
        /// The view of the connection.
        view: ViewNumber,
        /// Its number.
        connection: ConnectionNumber,
    },
    /// To an owner: this connection has ended.
    Disconnected {
        /// For which partition.
        partition: PartitionId,
        /// The follower.
        host: HostId,
        /// Its number.
        connection: ConnectionNumber,
    },
    /// To an owner: a follower has acknowledged.
    Acknowledged {
        /// For which partition.
        partition: PartitionId,
        /// By whom.
        acknowledgement: FollowerAcknowledgement,
    },
    /// To an owner: the log cannot keep what this follower lacks on this connection.
    Behind {
        /// For which partition.
        partition: PartitionId,
        /// The follower.
        host: HostId,
        /// The number of the connection.
        connection: ConnectionNumber,
    },
    /// To an owner: the hello of a member names the owner's log and an entry of it that the region
    /// has not. So the region is an older one of this host, although its log is the right one.
    OlderRegion {
        /// For which partition.
        partition: PartitionId,
        /// The member.
        host: HostId,
        /// The view of the hello.
        view: ViewNumber,
    },
    /// To an owner, after [`WatchLog`](crate::HostEffect::WatchLog): all entries of the own log up
    /// to a position are decided.
    Written {
        /// Of which partition.
        partition: PartitionId,
        /// The view of the order.
        view: ViewNumber,
        /// The position.
        position: u64,
    },
    /// To a follower: a position message has arrived on the connection of this view. The follower
    /// may answer its stamp only after [`Answer`](crate::HostEffect::Answer).
    PositionReceived {
        /// For which partition.
        partition: PartitionId,
        /// The message.
        message: OwnerMessage,
    },
    /// To a follower: the owner of this view has answered that it is not yet done with its
    /// promotion.
    OwnerPromotes {
        /// Of which partition.
        partition: PartitionId,
        /// The view of the connection.
        view: ViewNumber,
        /// How many steps of the promotion are done. Another number than before counts.
        steps: u64,
    },
    /// [`Freeze`](crate::HostEffect::Freeze) is done: the record is stored, nothing of an older
    /// view is applied any more, and this is what the copy holds.
    Frozen {
        /// Of which partition.
        partition: PartitionId,
        /// The view for which the copy was frozen.
        view: ViewNumber,
        /// What it holds.
        held: LogPosition,
    },
    /// [`UndoBehind`](crate::HostEffect::UndoBehind) is not possible: the log is another one, or has
    /// forgotten a part of what is to be undone, or the region has no room for it.
    NotUndone {
        /// Of which partition.
        partition: PartitionId,
        /// The view of the order.
        view: ViewNumber,
    },
    /// Time has passed. At least eight times in each lease.
    Tick,
}

/// An acknowledgement, as its owner receives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FollowerAcknowledgement {
    /// The follower.
    pub host: HostId,
    /// The view of the connection.
    pub view: ViewNumber,
    /// The number of the connection.
    pub connection: ConnectionNumber,
    /// The position of the owner's log up to which everything is applied. `None` while the copy is
    /// joining: it has gaps then.
    pub position: Option<u64>,
    /// The highest stamp that the follower may answer: [`Monotonic::BOOT`] if none.
    pub stamp: Monotonic,
}

/// What a position message says about its owner, beside positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerMessage {
    /// The view of the connection.
    pub view: ViewNumber,
    /// The time of the owner's clock **before** the message was sent. Its follower sends it back.
    pub stamp: Monotonic,
    /// The highest stamp that this follower has sent back, as far as the owner knows.
    pub answered: Monotonic,
    /// Does the owner hold a lease?
    pub is_leased: bool,
}
