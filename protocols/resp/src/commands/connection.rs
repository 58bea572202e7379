//! Commands of the connection: authentication, name, protocol version.

#![expect(clippy::unnecessary_wraps, reason = "the function of a row has one form")]

use super::arg;
use super::keys::check_database;
use super::pubsub::{unsubscribe_all, update_client_list, write_deliveries};
use super::transactions::reject_in_exec;
use crate::acl::{DEFAULT_USER, User};
use crate::auth_limit::AuthDecision;
use crate::command_context::CommandContext;
use crate::connection_state::{PostponeCause, PostponedRequest, ReplyMode, WatchedRecords};
use crate::number::integer;
use crate::parse::Args;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use crate::reply::{ReplyWriter, RespVersion};
use crate::server::{AuthFailure, REDIS_VERSION};
use nearstate_store::since_boot;
use std::sync::Arc;

const NO_NAME: ErrorReply =
    ErrorReply::fixed("ERR Client names cannot contain spaces, newlines or special characters.");

/// The result of a request that is postponed. It is not sent.
const POSTPONED: ErrorReply = ErrorReply::fixed("ERR the request is postponed");

/// Maximum bytes of a connection's name, which is stored per connection and shown in `CLIENT LIST`.
const NAME_BYTES_MAX: usize = 1024;

/// `PING [message]`
pub(crate) fn ping(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    if args.len() > 2 {
        return Err(ErrorReply::arity("ping"));
    }
    if ctx.connection.subscription_count() > 0 && ctx.connection.protocol == RespVersion::Resp2 {
        // A subscribed client expects the form of a message.
        reply.array(2);
        reply.bulk(b"pong");
        reply.bulk(arg(args, 1));
        return Ok(());
    }
    match args.get(1) {
        Some(message) => reply.bulk(message),
        None => reply.simple("PONG"),
    }
    Ok(())
}

/// `ECHO message`
pub(crate) fn echo(
    _: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reply.bulk(arg(args, 1));
    Ok(())
}

/// `QUIT`
pub(crate) fn quit(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    ctx.connection.is_closing = true;
    reply.ok();
    Ok(())
}

/// `RESET`
pub(crate) fn reset(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    unsubscribe_all(ctx.server, ctx.connection);
    write_deliveries(ctx.connection, reply);
    let connection = &mut *ctx.connection;
    connection.queue = None;
    connection.watched = WatchedRecords::default();
    connection.name = Vec::new();
    connection.protocol = RespVersion::Resp2;
    connection.reply_mode = ReplyMode::On;
    connection.user.clone_from(&connection.initial_user);
    let user = connection.user.as_ref().map(|user| user.name().to_owned()).unwrap_or_default();
    ctx.server.monitors.remove(connection.id);
    connection.stop_tracking(ctx.server);
    ctx.server.update_client(connection.id, |client_entry| {
        client_entry.user = user;
        client_entry.name = String::new();
        client_entry.protocol = 2;
        client_entry.is_no_evict = false;
        client_entry.is_monitor = false;
    });
    update_client_list(ctx);
    reply.set_protocol(RespVersion::Resp2);
    reply.simple("RESET");
    Ok(())
}

/// `SELECT 0`
pub(crate) fn select(
    _: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    check_database(arg(args, 1))?;
    reply.ok();
    Ok(())
}

/// `AUTH [user] password`
pub(crate) fn auth(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let (name, password) = match args.len() {
        2 => {
            if ctx.server.settings.users.initial_user().is_some() {
                return Err(ErrorReply::fixed(
                    "ERR AUTH <password> called without any password configured for the default \
                     user. Are you sure your configuration is correct?",
                ));
            }
            (DEFAULT_USER.as_bytes(), arg(args, 1))
        }
        3 => (arg(args, 1), arg(args, 2)),
        _ => return Err(ErrorReply::SYNTAX),
    };
    let user = authenticate(ctx, args, name, password)?;
    let called = ctx.connection.name.clone();
    set_user(ctx, Some(user), called);
    reply.ok();
    Ok(())
}

/// Checks a password, unless earlier failures postpone or refuse the request.
fn authenticate(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    name: &[u8],
    password: &[u8],
) -> Result<Arc<User>, ErrorReply> {
    let (server, connection) = (ctx.server, &mut *ctx.connection);
    let (limit, users) = (&server.auth_limit, &server.settings.users);
    let report = |address: &str, failures, is_refused| {
        let user = users.find(name).map(|user| user.name());
        let failure = AuthFailure { client: address, user, failures, is_refused };
        (server.settings.on_auth_failure)(&failure);
    };
    if !std::mem::take(&mut connection.is_auth_due) {
        let decision = limit.decide(connection.auth_source, connection.auth_failures, since_boot());
        let refused = match decision {
            AuthDecision::Check => None,
            // EXEC runs at once.
            AuthDecision::CheckAfter(wait) if ctx.txn.is_some() => {
                limit.count_refusal();
                Some(wait)
            }
            AuthDecision::CheckAfter(wait) => {
                let request = args.keep();
                let cause = PostponeCause::Auth;
                let postponed = PostponedRequest { request, cause, wait, timer: None };
                connection.postponed = Some(postponed);
                return Err(POSTPONED);
            }
            AuthDecision::Refuse(wait) => Some(wait),
        };
        if let Some(wait) = refused {
            report(&connection.address, connection.auth_failures, true);
            return Err(ErrorReply::new(format!(
                "ERR too many failed authentications of this client: the password was not \
                 checked, try again in {} s",
                wait.as_secs() + 1
            )));
        }
    }
    if let Some(user) = users.authenticate(name, password) {
        return Ok(Arc::clone(user));
    }
    connection.auth_failures = connection.auth_failures.saturating_add(1);
    let failures = limit.count_failure(connection.auth_source, since_boot());
    report(&connection.address, failures, false);
    Err(ErrorReply::WRONG_PASS)
}

/// Publishes user and name of the connection in `CLIENT LIST`.
fn set_user(ctx: &mut CommandContext<'_>, user: Option<Arc<User>>, name: Vec<u8>) {
    ctx.server.update_client(ctx.connection.id, |client_entry| {
        client_entry.name = String::from_utf8_lossy(&name).into_owned();
        if let Some(user) = &user {
            user.name().clone_into(&mut client_entry.user);
        }
    });
    ctx.connection.name = name;
    if user.is_some() {
        ctx.connection.user = user;
        if ctx.connection.tracking.is_some() {
            ctx.server.tracking.set_user(ctx.connection.id, ctx.connection.user.as_ref());
        }
    }
}

/// `HELLO [version [AUTH user password] [SETNAME name]]`. Changes everything or nothing.
pub(crate) fn hello(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reject_in_exec(ctx, args)?;
    let protocol = match args.get(1).map(integer) {
        None => ctx.connection.protocol,
        Some(Some(2)) => RespVersion::Resp2,
        Some(Some(3)) => RespVersion::Resp3,
        Some(Some(_)) => return Err(ErrorReply::fixed("NOPROTO unsupported protocol version")),
        Some(None) => {
            let text = "ERR Protocol version is not an integer or out of range";
            return Err(ErrorReply::fixed(text));
        }
    };
    let (mut credentials, mut name) = (None, ctx.connection.name.clone());
    let mut at = 2;
    while let Some(option) = args.get(at) {
        let is = |word: &str| option.eq_ignore_ascii_case(word.as_bytes());
        match (args.get(at + 1), args.get(at + 2)) {
            (Some(who), Some(password)) if is("auth") => {
                credentials = Some((who, password));
                at += 3;
            }
            (Some(given), _) if is("setname") => {
                name = checked_name(given)?.to_vec();
                at += 2;
            }
            // Words after AUTH may be parts of a password with spaces, so they are not shown.
            _ if credentials.is_some() => {
                return Err(ErrorReply::fixed("ERR Syntax error in HELLO option"));
            }
            _ => {
                let shown = option.get(..option.len().min(32)).unwrap_or_default();
                let shown = String::from_utf8_lossy(shown);
                return Err(ErrorReply::new(format!("ERR Syntax error in HELLO option '{shown}'")));
            }
        }
    }
    // One check for each request, as for AUTH. The last user and password count, as in Redis.
    let user = match credentials {
        Some((who, password)) => Some(authenticate(ctx, args, who, password)?),
        None => None,
    };
    if user.is_none() && ctx.connection.user.is_none() {
        return Err(ErrorReply::fixed(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
             HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and \
             select the RESP protocol version at the same time",
        ));
    }
    let is_following = ctx.session().following()?.is_some();
    set_user(ctx, user, name);
    ctx.connection.protocol = protocol;
    let version = if protocol == RespVersion::Resp3 { 3 } else { 2 };
    ctx.server.update_client(ctx.connection.id, |client_entry| client_entry.protocol = version);
    reply.set_protocol(protocol);
    write_hello(ctx, (version, is_following), reply);
    Ok(())
}

fn write_hello(
    ctx: &CommandContext<'_>,
    (version, is_following): (u8, bool),
    reply: &mut ReplyWriter<'_>,
) {
    // As Redis, a Sentinel has no role.
    let role: &[&str] = match (ctx.connection.is_sentinel, is_following) {
        (true, _) => &[],
        (false, false) => &["role", "master"],
        (false, true) => &["role", "replica"],
    };
    reply.map(6 + role.len() / 2);
    for word in ["server", "redis", "version", REDIS_VERSION] {
        reply.bulk(word.as_bytes());
    }
    reply.bulk(b"proto");
    reply.int(version.into());
    reply.bulk(b"id");
    reply.int(i64::try_from(ctx.connection.id).unwrap_or(i64::MAX));
    for word in ["mode", ctx.connection.mode()].iter().chain(role).chain(&["modules"]) {
        reply.bulk(word.as_bytes());
    }
    reply.array(0);
}

/// A name that is valid in a line of `CLIENT LIST`.
fn checked_name(name: &[u8]) -> Result<&[u8], ErrorReply> {
    if name.len() > NAME_BYTES_MAX {
        let bytes = name.len();
        return Err(ErrorReply::new(format!(
            "ERR connection name of {bytes} bytes is too long: the limit is {NAME_BYTES_MAX}"
        )));
    }
    let is_right = name.iter().all(|byte| (b'!'..=b'~').contains(byte));
    if is_right { Ok(name) } else { Err(NO_NAME) }
}

/// `CLIENT ID`
pub(crate) fn id(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reply.int(i64::try_from(ctx.connection.id).unwrap_or(i64::MAX));
    Ok(())
}

/// `CLIENT SETNAME name`
pub(crate) fn setname(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let name = checked_name(arg(args, 2))?.to_vec();
    set_user(ctx, None, name);
    reply.ok();
    Ok(())
}

/// `CLIENT GETNAME`
pub(crate) fn getname(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let name = ctx.connection.name.as_slice();
    reply.bulk_or_nil((!name.is_empty()).then_some(name));
    Ok(())
}

/// `CLIENT SETINFO LIB-NAME|LIB-VER value`
pub(crate) fn setinfo(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let option = arg(args, 2);
    let place = if option.eq_ignore_ascii_case(b"lib-name") {
        0
    } else if option.eq_ignore_ascii_case(b"lib-ver") {
        1
    } else {
        let shown = String::from_utf8_lossy(option.get(..32).unwrap_or(option)).into_owned();
        return Err(ErrorReply::new(format!("ERR Unrecognized option '{shown}'")));
    };
    let name = if place == 0 { "lib-name" } else { "lib-ver" };
    let value = checked_name(arg(args, 3)).map_err(|_| {
        ErrorReply::new(format!(
            "ERR {name} cannot contain spaces, newlines or special characters."
        ))
    })?;
    let value = String::from_utf8_lossy(value).into_owned();
    ctx.server.update_client(ctx.connection.id, |client_entry| {
        if let Some(part) = client_entry.library.get_mut(place) {
            *part = value;
        }
    });
    reply.ok();
    Ok(())
}
