//! A node is killed while clients at its sockets and processes that have attached its region write.
//!
//! Each client keeps the replies it received and the requests without a reply. After each kill, the
//! records must be the result of some prefix of the requests, and at least of all acknowledged
//! ones: nothing acknowledged is lost, and a transaction is executed completely or not at all.
//! Embedded writers continue while the node is down and record their progress in a file
//! ([`embedded`]). All records are read back twice, over a socket and from the region, and must be
//! equal.
//!
//! A module uses only modules that are listed below it.

pub mod run;
mod readback;
mod client;
pub mod totals;
pub(crate) mod node_process;
pub(crate) mod embedded;
mod requests;
mod shared_counters;
mod connection;
pub mod injected_fault;
