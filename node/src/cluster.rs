//! A host of a cluster: one thread that keeps the leases and decides by the rules of
//! [`nearstate_cluster::Host`], and one thread for each copy that carries out what takes long.
//!
//! ```text
//! engine ------------+                            +--> copy's thread: freeze, promote, demote,
//! connections -------+--> driver: Host::step -----+        follow, serve  --> facts of the region
//! time --------------+    lease, replicated word  +--> engine: proposals
//! ```
//!
//! The thread of a connection takes the driver's next step itself when a commit may wait for it and
//! the driver is not at work.
//!
//! The driver never waits for a region, a disk or a connection, so that no lease ends because
//! another partition is busy.

#[cfg(test)]
mod killed_promotion;
mod operator;
mod driver;
mod machine;
mod published;
mod copy_thread;
mod inbox;
mod lag;
mod config;
mod notice;
mod status;

pub use config::{CopyConfig, DriverConfig, HostAddress};
pub use driver::ClusterDriver;
pub use notice::ClusterNotice;
pub use operator::OperatorOutcome;
pub use published::KnownOwner;
pub use status::{ClusterStatus, CopyStatus, MemberStatus};
