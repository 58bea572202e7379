//! What carries the commands out, a file for each group.

pub(crate) mod clients;
pub(crate) mod command;
pub(crate) mod config;
pub(crate) mod connection;
pub(crate) mod expiry;
pub(crate) mod facts;
pub(crate) mod tags;
pub(crate) mod hashes;
pub(crate) mod near;
pub(crate) mod pubsub;
pub(crate) mod scripts;
pub(crate) mod sdl;
pub(crate) mod sentinel;
pub(crate) mod server;
pub(crate) mod sets;
pub(crate) mod strings;
pub(crate) mod transactions;
pub(crate) mod users;
pub(crate) mod walks;
pub(crate) mod keys;
mod path;
mod elements;
mod scanning;
mod chance;

use crate::client::Client;
use crate::parse::Args;
use crate::refusal::Refusal;
use crate::reply::Reply;

/// An argument that the command's arity promises.
fn arg(args: Args<'_>, index: usize) -> &[u8] {
    args.get(index).unwrap_or_default()
}

/// The body of a command that has subcommands only: each of them has its own, and the catalogue
/// refuses what names none.
pub(crate) fn of_parts(
    _: &mut Client<'_>,
    args: Args<'_>,
    _: &mut Reply<'_>,
) -> Result<(), Refusal> {
    let name = String::from_utf8_lossy(arg(args, 0)).to_ascii_uppercase();
    Err(Refusal::new(format!("ERR {name} does nothing without a subcommand")))
}
