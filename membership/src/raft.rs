//! The embedded engine: openraft, with its files, its messages and its own thread.

mod disk;
mod types;
mod storage;
mod machine;
mod message;
mod connection;
mod network;
mod server;
mod engine;

pub use connection::MemberTls;
pub use engine::{MachineFactory, RaftConfig, RaftEngine, RaftMember};
