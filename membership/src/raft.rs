//! The embedded engine: openraft, with its files, its messages and its own thread.

mod engine;
mod server;
mod network;
mod config;
mod connection;
mod message;
mod machine;
mod storage;
mod types;
mod disk;

pub use config::{MachineFactory, RaftConfig, RaftMember, ReportSource};
pub use connection::MemberTls;
pub use engine::RaftEngine;
