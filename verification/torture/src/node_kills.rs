//! A node that is killed while clients at its sockets and processes that have its region attached
//! write at the same time.
//!
//! What a client was told is kept beside what it has asked for and was not told yet. After each
//! kill the records must be as some first part of what was asked leaves them, and never less than
//! what was told: nothing acknowledged is lost, a transaction is there whole or not at all.
//! Embedded writers go on while the node is down; each says in a file how far it is ([`embedded`]).
//! Everything is read back twice, over a socket and out of the region, and must be the same.
//!
//! Modules stand in the order of floors: each uses only those below it.

pub mod run;
pub mod totals;
mod readback;
mod client;
pub(crate) mod node_process;
pub(crate) mod embedded;
mod requests;
mod shared_counters;
mod connection;
pub mod injected_fault;
