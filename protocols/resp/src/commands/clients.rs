//! `CLIENT INFO`, `CLIENT LIST`, `CLIENT KILL`, `CLIENT PAUSE`: what concerns other connections.

#![expect(clippy::unnecessary_wraps, reason = "the function of a row has one form")]

use super::arg;
use super::transactions::reject_in_exec;
use crate::command_context::CommandContext;
use crate::connection_state::ReplyMode;
use crate::number::integer;
use crate::parse::Args;
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use crate::server::ClientEntry;
use nearstate_store::{now_ms_coarse, since_boot};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

/// The longest pause: a year. A longer one is a mistake, and is cut.
const PAUSE_MS_MAX: u64 = 365 * 24 * 3600 * 1000;

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

/// `CLIENT KILL address`, or `CLIENT KILL filter value [filter value ..]`
pub(crate) fn kill(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let options = args.from(2);
    if options.len() == 1 {
        let address = String::from_utf8_lossy(arg(options, 0)).into_owned();
        let filter = ClientFilter { address: Some(address), ..ClientFilter::default() };
        if close(ctx, &filter, false) == 0 {
            return Err(ErrorReply::fixed("ERR No such client"));
        }
        reply.ok();
        return Ok(());
    }
    let (filter, skips_own) = ClientFilter::of_kill(ctx, options)?;
    let closed = close(ctx, &filter, skips_own);
    reply.count(closed);
    Ok(())
}

/// Closes the matching connections. The own one is closed after the reply. Returns their number.
fn close(ctx: &mut CommandContext<'_>, filter: &ClientFilter, skips_own: bool) -> usize {
    let mut closed = 0;
    for (id, client_entry) in ctx.server.clients() {
        let is_own = id == ctx.connection.id;
        if !filter.matches(id, &client_entry) || is_own && skips_own {
            continue;
        }
        closed += 1;
        if is_own {
            ctx.connection.is_closing = true;
        } else {
            client_entry.mailbox.close();
            // It counts as closed at once, as in Redis. Its core closes the socket.
            ctx.server.remove_client(id);
        }
    }
    closed
}

/// `ON` or `OFF` after the subcommand.
fn on_or_off(args: Args<'_>) -> Result<bool, ErrorReply> {
    match arg(args, 2).to_ascii_lowercase().as_slice() {
        b"on" => Ok(true),
        b"off" => Ok(false),
        _ => Err(ErrorReply::SYNTAX),
    }
}

/// `CLIENT NO-TOUCH ON|OFF`
pub(crate) fn no_touch(
    _: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    on_or_off(args)?;
    reply.ok();
    Ok(())
}

/// `CLIENT REPLY ON|OFF|SKIP`. Only ON has a reply.
pub(crate) fn reply_mode(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reject_in_exec(ctx, args)?;
    let mode = match arg(args, 2).to_ascii_lowercase().as_slice() {
        b"on" => ReplyMode::On,
        b"off" => ReplyMode::Off,
        // After OFF, no reply is sent until ON.
        b"skip" if ctx.connection.reply_mode == ReplyMode::Off => ReplyMode::Off,
        b"skip" => ReplyMode::Skip,
        _ => return Err(ErrorReply::SYNTAX),
    };
    ctx.connection.reply_mode = mode;
    if mode == ReplyMode::On {
        reply.ok();
    }
    Ok(())
}

/// `CLIENT NO-EVICT ON|OFF`
pub(crate) fn no_evict(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let is_on = on_or_off(args)?;
    ctx.server.update_client(ctx.connection.id, |entry| entry.is_no_evict = is_on);
    reply.ok();
    Ok(())
}

/// `CLIENT PAUSE timeout [WRITE | ALL]`
pub(crate) fn pause(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    if args.len() > 4 {
        return Err(ErrorReply::fixed(
            "ERR unknown subcommand or wrong number of arguments for 'PAUSE'. Try CLIENT HELP.",
        ));
    }
    let is_for_all = match args.get(3).map(<[u8]>::to_ascii_lowercase).as_deref() {
        None | Some(b"all") => true,
        Some(b"write") => false,
        Some(_) => return Err(ErrorReply::fixed("ERR CLIENT PAUSE mode must be WRITE or ALL")),
    };
    let millis = match integer(arg(args, 2)).map(u64::try_from) {
        None => return Err(ErrorReply::fixed("ERR timeout is not an integer or out of range")),
        Some(Err(_)) => return Err(ErrorReply::fixed("ERR timeout is negative")),
        Some(Ok(millis)) => millis,
    };
    let now = since_boot();
    let until = now.checked_add(Duration::from_millis(millis.min(PAUSE_MS_MAX)));
    ctx.server.pause.begin(until.unwrap_or(Duration::MAX), is_for_all, now);
    reply.ok();
    Ok(())
}

/// `CLIENT UNPAUSE`
pub(crate) fn unpause(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    ctx.server.pause.end();
    reply.ok();
    Ok(())
}

/// Selection of connections: those that satisfy each condition that is set.
#[derive(Debug, Default)]
struct ClientFilter {
    ids: Option<BTreeSet<u64>>,
    client_type: Option<ClientType>,
    address: Option<String>,
    local: Option<String>,
    user: Option<String>,
    /// Connected for at least this many seconds.
    age_min: Option<u64>,
}

/// The kind of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientType {
    Normal,
    /// With subscriptions.
    Pubsub,
    /// Replication, which does not exist.
    Replication,
}

impl ClientType {
    fn of(word: &[u8]) -> Result<Self, ErrorReply> {
        match word.to_ascii_lowercase().as_slice() {
            b"normal" => Ok(Self::Normal),
            b"pubsub" => Ok(Self::Pubsub),
            b"master" | b"replica" | b"slave" => Ok(Self::Replication),
            _ => {
                let shown = String::from_utf8_lossy(word.get(..32).unwrap_or(word)).into_owned();
                Err(ErrorReply::new(format!("ERR Unknown client type '{shown}'")))
            }
        }
    }
}

impl ClientFilter {
    /// The options of `CLIENT LIST`.
    fn read(args: Args<'_>) -> Result<Self, ErrorReply> {
        let is = |word: &str| arg(args, 0).eq_ignore_ascii_case(word.as_bytes());
        match args.len() {
            0 => Ok(Self::default()),
            2 if is("type") => {
                let client_type = Some(ClientType::of(arg(args, 1))?);
                Ok(Self { client_type, ..Self::default() })
            }
            2.. if is("id") => {
                let id = |text| integer(text).and_then(|id| u64::try_from(id).ok());
                let ids: Option<BTreeSet<u64>> = args.from(1).iter().map(id).collect();
                let ids = Some(ids.ok_or(ErrorReply::fixed("ERR Invalid client ID"))?);
                Ok(Self { ids, ..Self::default() })
            }
            _ => Err(ErrorReply::SYNTAX),
        }
    }

    /// The filters of `CLIENT KILL`, and whether the own connection is left out.
    fn of_kill(ctx: &CommandContext<'_>, args: Args<'_>) -> Result<(Self, bool), ErrorReply> {
        let (mut filter, mut skips_own) = (Self::default(), true);
        if args.len() % 2 == 1 {
            return Err(ErrorReply::SYNTAX);
        }
        let positive = |value: &[u8]| {
            integer(value).and_then(|number| u64::try_from(number).ok()).filter(|n| *n > 0)
        };
        let text = |value: &[u8]| Some(String::from_utf8_lossy(value).into_owned());
        for at in (0..args.len()).step_by(2) {
            let value = arg(args, at + 1);
            match arg(args, at).to_ascii_lowercase().as_slice() {
                b"id" => {
                    let wrong = ErrorReply::fixed("ERR client-id should be greater than 0");
                    filter.ids = Some(BTreeSet::from([positive(value).ok_or(wrong)?]));
                }
                b"type" => filter.client_type = Some(ClientType::of(value)?),
                b"addr" => filter.address = text(value),
                b"laddr" => filter.local = text(value),
                b"user" => {
                    let user = ctx.server.settings.users.find(value).ok_or_else(|| {
                        let shown = String::from_utf8_lossy(value.get(..64).unwrap_or(value));
                        ErrorReply::new(format!("ERR No such user '{shown}'"))
                    })?;
                    filter.user = Some(user.name().to_owned());
                }
                b"maxage" => {
                    let wrong = ErrorReply::fixed("ERR maxage should be greater than 0");
                    filter.age_min = Some(positive(value).ok_or(wrong)?);
                }
                b"skipme" if value.eq_ignore_ascii_case(b"yes") => skips_own = true,
                b"skipme" if value.eq_ignore_ascii_case(b"no") => skips_own = false,
                _ => return Err(ErrorReply::SYNTAX),
            }
        }
        Ok((filter, skips_own))
    }

    fn matches(&self, id: u64, client_entry: &ClientEntry) -> bool {
        let is =
            |wanted: &Option<String>, own: &str| wanted.as_ref().is_none_or(|wanted| wanted == own);
        self.ids.as_ref().is_none_or(|ids| ids.contains(&id))
            && self.client_type.is_none_or(|wanted| wanted == type_of(client_entry))
            && is(&self.address, &client_entry.address)
            && is(&self.local, &client_entry.local)
            && is(&self.user, &client_entry.user)
            && self.age_min.is_none_or(|seconds| age(client_entry) >= seconds)
    }
}

fn type_of(client_entry: &ClientEntry) -> ClientType {
    if client_entry.subscription_count == [0; 2] { ClientType::Normal } else { ClientType::Pubsub }
}

/// Seconds since the client connected.
fn age(client_entry: &ClientEntry) -> u64 {
    now_ms_coarse().saturating_sub(client_entry.since_ms) / 1000
}

/// The letters of Redis: `N` for none.
fn flags(client_entry: &ClientEntry) -> String {
    let letters = [
        (client_entry.is_monitor, 'O'),
        (client_entry.subscription_count != [0; 2], 'P'),
        (client_entry.tracking.is_some(), 't'),
        (client_entry.tracking.is_some_and(|(is_broadcast, _)| is_broadcast), 'B'),
        (client_entry.is_no_evict, 'e'),
    ];
    let mut flags: String =
        letters.into_iter().filter(|(is_set, _)| *is_set).map(|(_, letter)| letter).collect();
    if flags.is_empty() {
        flags.push('N');
    }
    flags
}

/// Redis' fields that are available, in its order. The number of queued commands is known for the
/// own connection only.
fn line(ctx: &CommandContext<'_>, id: u64, client_entry: &ClientEntry, lines: &mut String) {
    let age = age(client_entry);
    let [sub, psub] = client_entry.subscription_count;
    let flags = flags(client_entry);
    let mine = if id == ctx.connection.id { ctx.connection.queue.as_ref() } else { None };
    let multi = mine.map_or(-1, |queue| i64::try_from(queue.requests.len()).unwrap_or(i64::MAX));
    let [library, version] = &client_entry.library;
    let redirect = client_entry.tracking.map_or("-1".to_owned(), |(_, id)| id.to_string());
    let ClientEntry { address, local, name, user, protocol, .. } = client_entry;
    // Writing to a String cannot fail.
    let _ = writeln!(
        lines,
        "id={id} addr={address} laddr={local} name={name} age={age} flags={flags} db=0 sub={sub} \
         psub={psub} ssub=0 multi={multi} user={user} redir={redirect} resp={protocol} \
         lib-name={library} lib-ver={version}"
    );
}
