//! Floor 4: what Redis' clients and those of O-RAN's SDL say on the wire, and what is answered. No
//! socket, no thread, no clock: bytes come in, bytes go out.
//!
//! A request's way: [`parse`] finds it in the input, [`catalogue`] finds its row in [`table`],
//! [`acl`] judges whether this user may, the row's function carries it out and writes with
//! [`reply`]. The table is also what `COMMAND` answers and what `docs/resp.md` is made of.

#![forbid(unsafe_code)]

mod face;
mod teller;
mod conversation;
pub mod table;
mod commands;
mod on_core;
mod prefetch;
pub mod client;
pub mod link;
pub mod work;
pub mod records;
pub mod server;
pub mod keyspace;
pub mod keyspace_events;
pub mod command_count;
pub mod hub;
pub mod mailbox;
pub mod acl;
pub mod catalogue;
pub mod command;
pub mod script;
pub mod long_double;
pub mod key_name;
pub mod ends;
pub mod number;
pub mod pattern;
pub mod refusal;
pub mod reply;
pub mod parse;

pub use face::RespProtocol;
