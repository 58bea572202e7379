//! Layer 2: the rules by which the hosts of a cluster decide which of them owns a partition, and
//! what counts as replicated. [Decision 026](../../docs/decisions/026-cluster.md) has the reasons.
//!
//! ```text
//! consensus           ClusterState::apply       Host::step               data path, regions
//! orders Commands --> the same at all hosts --> one host's part in it --> HostEffects
//!      ^                                             |     ^                  |
//!      +-------------- HostEffect::Propose ----------+     +---- HostInput ---+
//! ```
//!
//! - A partition has at most one owner that can release output, also with hosts that return,
//!   pauses, one-way cuts and clocks whose rates differ by 2 % to either side.
//! - What was replicated survives the loss of n - 1 hosts.
//! - The crate is pure: it has no clock, threads, sockets or files, and no random order. Any bytes
//!   give a command or an error.
//!
//! A module uses only modules that are listed below it.

#![forbid(unsafe_code)]

pub use command::{Command, CommandError};
pub use config::{
    ClusterConfig, ConfigError, CopyMissingPolicy, HostConfig, Lease, PartitionConfig,
};
pub use effect::{Effects, FollowStart, HostEffect};
pub use event::{ClusterEvent, ClusterEventKind};
pub use group::{AcceptedLoss, Applied, CommandRefusal, Degraded, GroupPhase, GroupState};
pub use host::Host;
pub use id::{HostId, Monotonic, PartitionId, Revision, ViewNumber};
pub use input::{ConnectionNumber, FollowerAcknowledgement, HostInput, OwnerMessage};
pub use level::ClusterLevel;
pub use log_ends::LogEnds;
pub use operator::{OperatorGoal, OperatorRefusal, OperatorStep, OperatorTask, OperatorWait};
pub use position::LogPosition;
pub use region::{CopyState, MemberRecord, RegionState};
pub use role::MemberRole;
pub use snapshot::SnapshotError;
pub use state::ClusterState;
pub use switches::{Switch, Switches};

mod host;
mod member;
mod activity;
mod operator;
mod owner;
mod follower;
mod role;
mod effect;
mod input;
mod event;
mod snapshot;
mod state;
mod log_ends;
mod group;
mod command;
mod config;
mod region;
mod switches;
mod position;
mod level;
mod id;
pub mod limits;
