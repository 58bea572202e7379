//! What carries the commands out, a file for each group.

pub(crate) mod clients;
pub(crate) mod command;
pub(crate) mod config;
pub(crate) mod connection;
pub(crate) mod expiry;
pub(crate) mod facts;
pub(crate) mod hashes;
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
mod walk;
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

/// In place of a command that has no body yet.
pub(crate) fn not_yet(
    _: &mut Client<'_>,
    args: Args<'_>,
    _: &mut Reply<'_>,
) -> Result<(), Refusal> {
    let name = String::from_utf8_lossy(args.get(0).unwrap_or_default()).into_owned();
    Err(Refusal::new(format!("ERR '{name}' is not offered yet")))
}
