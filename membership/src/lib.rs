//! Layer 4: the engines that order the commands of a cluster on all its hosts. A crate of its own,
//! because no other one should pay for openraft. See `docs/decisions/028-membership.md`.

#![forbid(unsafe_code)]

mod etcd;
mod raft;
mod own_machine;
mod engine_thread;
mod limits;

pub use etcd::{EtcdEndpoint, EtcdEngine, EtcdSettings, EtcdUser};
pub use raft::{
    MachineFactory, MemberTls, MembershipConfig, MembershipHost, RaftEngine, ReportSource,
    ask_for_report,
};
