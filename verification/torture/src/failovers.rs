//! Fail-overs of a cluster of real processes: three nodes, an attached writer on each host, and
//! RESP clients that wait for a follower. Hosts are lost, processes are killed and stopped, links
//! are cut one way, disks are full. After each fault:
//!
//! - everything that was acknowledged as replicated is there ([`acknowledged`]),
//! - what clients and writers saw is strictly serializable (the checker of [`crate::histories`]),
//! - all copies are equal ([`digest`]).
//!
//! The result has the times from the last reply of the old owner to the first one of the new one.
//! [`sentinel`] measures the same of Redis Sentinel.

pub mod run;
pub mod demo;
pub mod totals;
pub mod sentinel;
pub mod fault;
mod client;
pub mod signalling;
pub(crate) mod writer;
mod acknowledged;
mod digest;
mod shared_files;
