//! What carries the commands out, a file for each group.

pub(crate) mod command;
pub(crate) mod pubsub;
pub(crate) mod strings;

use crate::client::Client;
use crate::parse::Args;
use crate::refusal::Refusal;
use crate::reply::Reply;

/// In place of a command that has no body yet.
pub(crate) fn not_yet(
    _: &mut Client<'_>,
    args: Args<'_>,
    _: &mut Reply<'_>,
) -> Result<(), Refusal> {
    let name = String::from_utf8_lossy(args.get(0).unwrap_or_default()).into_owned();
    Err(Refusal::new(format!("ERR '{name}' is not offered yet")))
}
