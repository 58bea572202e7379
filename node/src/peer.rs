//! Peers: a host that sends the log of its region, and one that follows it
//! (`spec/wire.md`, `docs/decisions/025-follow.md`).
//!
//! Each connection has a thread of its own on both sides. It sends, receives, and looks at the log
//! in turn, so a follower that is slow delays no other one, and no client.

pub(crate) mod follower;
mod ended;
mod whole_copy;
mod follow_pace;
pub(crate) mod applier;
pub(crate) mod source;
mod admission;
mod shipper;
mod ship_pace;
pub(crate) mod served;
mod ungreeted;
mod declared;
pub(crate) mod group;
pub(crate) mod kept;
pub(crate) mod events;
mod convert;
mod stream;
mod client_tls;
pub(crate) mod stopwatch;
mod limits;

pub use client_tls::ClientTls;
pub use events::{FollowEvent, FollowProgress, FollowerStats, PeerConfig, PeerEvent};
pub use follower::{FollowConfig, follow};
pub use group::{PartitionInput, PartitionInputs};
pub use source::{FollowerList, PeerListener, PeerServer};
pub use ungreeted::UngreetedLimits;
