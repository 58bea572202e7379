//! Layer 4: the Redis protocol (RESP2 and RESP3) and its commands, including those that the clients
//! of O-RAN's SDL send. The crate has no socket: it turns input bytes into output bytes. One thread
//! (`allocator_upkeep.rs`) returns free memory to the system; the time comes from the store.
//!
//! Path of a request: [`parse`] reads its arguments, [`command`] finds its row in [`table`],
//! [`acl`] checks the user's permissions, and the function of the row executes it and writes with
//! [`reply`]. `COMMAND` and `docs/resp.md` are generated from the same table.

#![forbid(unsafe_code)]

mod protocol;
mod keyspace_notifier;
mod delayed_events;
mod memory_upkeep;
mod pages_ahead;
mod expiry_upkeep;
mod allocator_upkeep;
mod connection;
pub mod table;
mod commands;
mod core_context;
pub mod command_context;
pub mod connection_state;
pub mod sliced_task;
pub mod records;
pub mod server;
pub mod runtime_settings;
pub mod auth_limit;
pub mod client_pause;
mod purge_request;
pub mod replication;
pub mod monitors;
pub mod tracking;
pub mod latency;
pub mod keyspace_events;
pub mod pubsub;
pub mod acl;
pub mod command;
pub mod script;
pub mod dump_payload;
pub mod key_name;
pub mod expiry_options;
pub mod number;
pub mod pattern;
pub mod reply;
pub mod parse;

pub use protocol::RespProtocol;
