//! `CLIENT INFO` and `CLIENT LIST`.

#![expect(clippy::unnecessary_wraps, reason = "the function of a row has one form")]

use super::arg;
use crate::command_context::CommandContext;
use crate::number::integer;
use crate::parse::Args;
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use crate::server::ClientEntry;
use nearstate_store::now_ms_coarse;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// `CLIENT INFO`
pub(crate) fn info(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let client_entry = ctx.server.client_entry(ctx.connection.id);
    let mut lines = String::new();
    if let Some(client_entry) = client_entry {
        line(ctx, ctx.connection.id, &client_entry, &mut lines);
    }
    reply.verbatim(&lines);
    Ok(())
}

/// `CLIENT LIST [TYPE normal|master|replica|pubsub | ID id ..]`
pub(crate) fn list(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let filter = ClientFilter::read(args.from(2))?;
    let mut lines = String::new();
    for (id, client_entry) in ctx.server.clients() {
        if filter.matches(id, &client_entry) {
            line(ctx, id, &client_entry, &mut lines);
        }
    }
    reply.verbatim(&lines);
    Ok(())
}

/// Selection of connections.
enum ClientFilter {
    All,
    /// Those with subscriptions, or those without.
    Subscribers(bool),
    Ids(BTreeSet<u64>),
}

impl ClientFilter {
    fn read(args: Args<'_>) -> Result<Self, ErrorReply> {
        let is = |word: &str| arg(args, 0).eq_ignore_ascii_case(word.as_bytes());
        match args.len() {
            0 => Ok(Self::All),
            2 if is("type") => Self::sort(arg(args, 1)),
            2.. if is("id") => {
                let id = |text| integer(text).and_then(|id| u64::try_from(id).ok());
                let ids: Option<BTreeSet<u64>> = args.from(1).iter().map(id).collect();
                ids.map(Self::Ids).ok_or(ErrorReply::fixed("ERR Invalid client ID"))
            }
            _ => Err(ErrorReply::SYNTAX),
        }
    }

    fn sort(sort: &[u8]) -> Result<Self, ErrorReply> {
        match sort.to_ascii_lowercase().as_slice() {
            b"normal" => Ok(Self::Subscribers(false)),
            b"pubsub" => Ok(Self::Subscribers(true)),
            // There are no such connections.
            b"master" | b"replica" | b"slave" => Ok(Self::Ids(BTreeSet::new())),
            _ => {
                let shown = String::from_utf8_lossy(sort.get(..32).unwrap_or(sort)).into_owned();
                Err(ErrorReply::new(format!("ERR Unknown client type '{shown}'")))
            }
        }
    }

    fn matches(&self, id: u64, client_entry: &ClientEntry) -> bool {
        match self {
            Self::All => true,
            Self::Subscribers(is_subscriber) => {
                (client_entry.subscription_count != [0; 2]) == *is_subscriber
            }
            Self::Ids(ids) => ids.contains(&id),
        }
    }
}

/// Redis' fields that are available, in its order. The number of queued commands is known for the
/// own connection only.
fn line(ctx: &CommandContext<'_>, id: u64, client_entry: &ClientEntry, lines: &mut String) {
    let age = now_ms_coarse().saturating_sub(client_entry.since_ms) / 1000;
    let [sub, psub] = client_entry.subscription_count;
    let flags = if client_entry.subscription_count == [0; 2] { 'N' } else { 'P' };
    let mine = if id == ctx.connection.id { ctx.connection.queue.as_ref() } else { None };
    let multi = mine.map_or(-1, |queue| i64::try_from(queue.requests.len()).unwrap_or(i64::MAX));
    let [library, version] = &client_entry.library;
    let ClientEntry { address, local, name, user, protocol, .. } = client_entry;
    // Writing to a String cannot fail.
    let _ = writeln!(
        lines,
        "id={id} addr={address} laddr={local} name={name} age={age} flags={flags} db=0 sub={sub} \
         psub={psub} ssub=0 multi={multi} user={user} redir=-1 resp={protocol} \
         lib-name={library} lib-ver={version}"
    );
}
