//! Layer 3: the node. One thread per core, an executor on each, sockets, limits and metrics. It
//! knows no protocol: the bytes of a connection go to its [`ConnectionHandler`], which a
//! [`Protocol`] creates.
//!
//! A connection, and everything that it uses, belongs to one core for its whole life. Messages of
//! other threads arrive through an [`executor::Inbox`]. See `docs/decisions/007-node.md`.

#![forbid(unsafe_code)]

mod node;
mod cluster;
mod consensus;
mod partition;
mod outbound;
mod resolver;
mod peer;
mod sampler;
mod worker;
mod listener;
mod connection;
mod tls;
mod endpoint_context;
mod protocol;
mod local_stream;
mod core;
mod watch_selector;
mod receipt_thread;
mod placement;
mod limits;
mod space_cache;
mod space;
pub mod process;
pub mod executor;
pub mod metrics;
pub mod clock;

pub use cluster::{
    ClusterDriver, ClusterNotice, ClusterStatus, CopyConfig, CopyStatus, DriverConfig, HostAddress,
    KnownOwner, MemberStatus, OperatorOutcome,
};
pub use consensus::{
    ConsensusEngine, ENGINE_COMMAND_BYTES_MAX, EngineEvent, EngineState, EngineStatus, EventWaker,
    SNAPSHOT_BYTES_MAX, StateMachine, VoteChange,
};
pub use core::{Core, CoreMetrics, CoreParts, CoreStats};
pub use limits::{ConnectionLimits, LoweredCount, RINGS_MAX};
pub use listener::{ListenAddress, check_tcp_address};
pub use local_stream::{DescriptorReply, LocalPeer};
pub use nearstate_wire::SharedSettings;
pub use node::{Endpoint, Node, NodeConfig, NodeMetrics, NodeStats};
pub use outbound::OutboundStream;
pub use partition::{
    FollowTarget, Freeze, Partition, PartitionOptions, PartitionState, StoppedHolder,
};
pub use peer::{
    ClientTls, FollowConfig, FollowEvent, FollowProgress, FollowerList, FollowerStats,
    PartitionInput, PartitionInputs, PeerConfig, PeerEvent, PeerListener, PeerServer,
    UngreetedLimits, follow,
};
pub use protocol::{
    CloseReason, ConnectionHandler, Consumed, CoreService, ForcedClose, LimitExceeded, NextAction,
    OUTPUT_HIGH_WATER_BYTES, PeerAddress, PeerIdentity, Protocol,
};
pub use receipt_thread::ReceiptQueue;
pub use resolver::NameResolver;
pub use sampler::StuckTask;
pub use space::FileSystemSpace;
pub use tls::{HostCertificate, Tls, certificate_names, has_name};
pub use watch_selector::WatchSelector;
