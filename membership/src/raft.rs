//! The embedded engine: openraft, with its files, its messages and its own thread.

mod engine;
#[cfg(test)]
mod killed_install;
mod server;
mod reporter;
mod places;
mod voters;
mod network;
mod heard;
mod config;
mod connection;
mod message;
mod machine;
mod storage;
mod stored;
mod types;
mod disk;
#[cfg(test)]
mod kill_point;

pub use config::{MachineFactory, MembershipConfig, MembershipHost, ReportSource};
pub use connection::MemberTls;
pub use engine::{RaftEngine, ask_for_report};

// For the engine of etcd, whose hosts ask each other for reports.
pub(crate) use connection::{MemberStream, tune};
pub(crate) use disk::lock_directory;
pub(crate) use engine::report_of;
pub(crate) use heard::HeardHosts;
pub(crate) use reporter::Reporter;
pub(crate) use server::{MemberService, listen, serve};
