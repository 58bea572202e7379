//! Floor 3: the node. A thread for each core, an executor on it, sockets, limits, metrics. It knows
//! no protocol: bytes of a connection go to its [`ConnectionHandler`], which a [`Protocol`] has made.
//!
//! A connection belongs to one core for its life, and so does everything that it touches there;
//! what comes from elsewhere comes through an [`executor::Inbox`]. See
//! `docs/decisions/007-node.md`.

#![forbid(unsafe_code)]

mod node;
mod sampler;
mod worker;
mod listener;
mod connection;
mod local_stream;
mod tls;
mod endpoint_context;
mod protocol;
mod core;
mod watch_selector;
mod placement;
mod limits;
pub mod process;
pub mod executor;
pub mod metrics;
pub mod clock;

pub use core::{Core, CoreMetrics, CoreParts, CoreStats};
pub use limits::{ConnectionLimits, RINGS_MAX};
pub use listener::Address;
pub use nearstate_local_transport::LocalResource;
pub use node::{Endpoint, Node, NodeConfig, NodeMetrics, NodeStats};
pub use protocol::{
    CloseReason, ConnectionHandler, Consumed, CoreService, ForcedClose, LimitExceeded, NextAction,
    OUTPUT_HIGH_WATER_BYTES, Peer, PeerAddress, Protocol,
};
pub use sampler::StuckTask;
pub use tls::Tls;
pub use watch_selector::WatchSelector;
