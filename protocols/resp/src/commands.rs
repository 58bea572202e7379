//! Functions that execute the commands, one file per group.

pub(crate) mod clients;
pub(crate) mod command;
pub(crate) mod tracking;
pub(crate) mod config;
pub(crate) mod connection;
pub(crate) mod dump;
pub(crate) mod expiry;
pub(crate) mod info;
pub(crate) mod tags;
pub(crate) mod hashes;
pub(crate) mod latency;
pub(crate) mod local;
pub(crate) mod monitor;
pub(crate) mod pubsub;
pub(crate) mod scripts;
pub(crate) mod sdl;
pub(crate) mod server;
pub(crate) mod sentinel;
pub(crate) mod sets;
pub(crate) mod bits;
pub(crate) mod strings;
pub(crate) mod transactions;
pub(crate) mod users;
pub(crate) mod scan;
pub(crate) mod keys;
mod string_edit;
mod watch_namespaces;
mod key_iterator;
mod collection_store;
mod collection_task;
mod collection_read;
mod deferred_array;
mod scan_options;
mod random;

use crate::command_context::CommandContext;
use crate::parse::Args;
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use nearstate_model::limits::TRANSACTION_RECORDS_MAX;
use std::collections::BTreeSet;

/// An argument of a command. The arity guarantees it; an optional one that is absent is empty, as
/// the message of a `PING` of a subscriber.
fn arg(args: Args<'_>, index: usize) -> &[u8] {
    args.get(index).unwrap_or_default()
}

/// Rejects a request that accesses more different keys at one instant than a transaction has
/// records.
fn check_key_count<'k>(keys: impl Iterator<Item = &'k [u8]> + Clone) -> CommandResult {
    if keys.clone().nth(TRANSACTION_RECORDS_MAX).is_none() {
        return Ok(());
    }
    let count = keys.collect::<BTreeSet<_>>().len();
    if count <= TRANSACTION_RECORDS_MAX {
        return Ok(());
    }
    Err(ErrorReply::new(format!(
        "ERR {count} keys exceed the limit of one request, {TRANSACTION_RECORDS_MAX}: send \
         several requests"
    )))
}

/// The function of a command that has only subcommands. The lookup rejects a request with an
/// unknown subcommand, so this reports a missing one.
pub(crate) fn container(
    _: &mut CommandContext<'_>,
    args: Args<'_>,
    _: &mut ReplyWriter<'_>,
) -> Result<(), ErrorReply> {
    let name = String::from_utf8_lossy(arg(args, 0)).to_ascii_uppercase();
    Err(ErrorReply::new(format!("ERR missing subcommand of {name}")))
}
