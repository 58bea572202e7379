//! Layer 5: a cluster of real processes on this machine: three `nearstate serve --cluster`, which
//! torture, demo and benchmarks start, cut off, stop and kill.
//!
//! As root, each host has a network namespace of its own, and its membership a file system of
//! its own, so that links are cut and disks are full for real. Without root, hosts have addresses
//! of the loopback interface, and only processes fail.
//!
//! **Nothing is left behind**, also when this process is killed: namespaces and mounts belong to
//! processes, and every process ends with the thread that started it. Only the folder stays then.
//!
//! A module uses only modules that are listed below it.

#![forbid(unsafe_code)]
#![expect(
    clippy::missing_errors_doc,
    reason = "only torture, demo, benchmarks and tests use this crate: an error is one of the \
              system, or a limit of a wait that names what was waited for"
)]

pub use cluster::{ClusterOptions, HOSTS, LocalCluster, wait_until};
pub use network::{NetworkKind, NetworkNamespace};
pub use permission::skipped;
pub use process::HostProcess;
pub use status::{CopyView, MemberLag};

mod cluster;
mod network;
mod permission;
mod status;
mod process;
