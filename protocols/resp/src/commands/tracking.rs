//! `CLIENT TRACKING`, `CLIENT CACHING`, `CLIENT TRACKINGINFO`, `CLIENT GETREDIR`.

#![expect(clippy::unnecessary_wraps, reason = "the function of a row has one form")]

use super::arg;
use super::transactions::reject_in_exec;
use super::watch_namespaces::WatchNamespacesTask;
use crate::command_context::CommandContext;
use crate::connection_state::{CachingMode, TrackingOptions};
use crate::key_name::pattern_namespace;
use crate::number::integer;
use crate::parse::Args;
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use crate::tracking::{InvalidationReceiver, PREFIXES_MAX, TrackingClient};
use std::sync::Arc;

/// Limit of the bytes of a prefix: that of a key.
const PREFIX_BYTES_MAX: usize = nearstate_model::limits::KEY_BYTES_MAX;

/// `CLIENT TRACKING ON|OFF [REDIRECT id] [PREFIX prefix ..] [BCAST] [OPTIN] [OPTOUT] [NOLOOP]`
pub(crate) fn tracking(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reject_in_exec(ctx, args)?;
    let is_on = match arg(args, 2).to_ascii_lowercase().as_slice() {
        b"on" => true,
        b"off" => false,
        _ => return Err(ErrorReply::SYNTAX),
    };
    let options = read(args.from(3))?;
    if !is_on {
        ctx.connection.stop_tracking(ctx.server);
        reply.ok();
        return Ok(());
    }
    let options = merge(ctx.connection.tracking.as_ref(), options)?;
    check_prefixes(ctx, &options)?;
    let receiver = match options.redirect {
        Some(id) if id != ctx.connection.id => InvalidationReceiver::Other(id, target_of(ctx, id)?),
        _ => InvalidationReceiver::Own,
    };
    let own = TrackingClient {
        user: ctx.connection.user.clone(),
        mailbox: Arc::clone(&ctx.connection.mailbox),
        receiver,
        prefixes: options.prefixes.clone(),
        is_no_loop: options.is_no_loop,
    };
    if !ctx.server.tracking.add(ctx.connection.id, own) {
        return Err(ErrorReply::new(format!(
            "ERR too many prefixes: all clients together may have {PREFIXES_MAX}; use longer \
             keys in one prefix, or the default mode"
        )));
    }
    let shown = Some((options.is_broadcast, options.redirect.unwrap_or_default()));
    ctx.server.update_client(ctx.connection.id, |client_entry| client_entry.tracking = shown);
    ctx.connection.tracking = Some(TrackingOptions { is_starting: true, ..options });
    ctx.server.keyspace.update_tracking(|| ctx.server.tracking.is_any());
    // All namespaces are watched before the reply: later changes are reported.
    let mut namespaces = ctx.session().namespaces()?;
    namespaces.reverse();
    ctx.connection.task = Some(Box::new(WatchNamespacesTask { before: None, namespaces }));
    Ok(())
}

fn read(args: Args<'_>) -> Result<TrackingOptions, ErrorReply> {
    let mut options = TrackingOptions::default();
    let mut is_prefixed = false;
    let mut rest = args;
    while let Some(word) = rest.get(0) {
        let taken = match (word.to_ascii_lowercase().as_slice(), rest.get(1)) {
            (b"redirect", Some(id)) => {
                if options.redirect.is_some() {
                    let text = "ERR A client can only redirect to a single other client";
                    return Err(ErrorReply::fixed(text));
                }
                let id = integer(id).ok_or(ErrorReply::NOT_INTEGER)?;
                options.redirect = Some(u64::try_from(id).unwrap_or_default());
                2
            }
            (b"prefix", Some(prefix)) => {
                if prefix.len() > PREFIX_BYTES_MAX {
                    return Err(ErrorReply::new(format!(
                        "ERR prefix of {} bytes is too long: the limit is {PREFIX_BYTES_MAX}",
                        prefix.len()
                    )));
                }
                is_prefixed = true;
                options.prefixes.insert(prefix.to_vec());
                2
            }
            (b"bcast", _) => {
                options.is_broadcast = true;
                1
            }
            (b"optin", _) => {
                options.is_opt_in = true;
                1
            }
            (b"optout", _) => {
                options.is_opt_out = true;
                1
            }
            (b"noloop", _) => {
                options.is_no_loop = true;
                1
            }
            _ => return Err(ErrorReply::SYNTAX),
        };
        rest = rest.from(taken);
    }
    if is_prefixed && !options.is_broadcast {
        return Err(ErrorReply::fixed("ERR PREFIX option requires BCAST mode to be enabled"));
    }
    if options.is_broadcast && (options.is_opt_in || options.is_opt_out) {
        return Err(ErrorReply::fixed("ERR OPTIN and OPTOUT are not compatible with BCAST"));
    }
    if options.is_opt_in && options.is_opt_out {
        let text = "ERR You can't specify both OPTIN mode and OPTOUT mode";
        return Err(ErrorReply::fixed(text));
    }
    if options.is_broadcast && !is_prefixed {
        options.prefixes.insert(Vec::new());
    }
    Ok(options)
}

/// The options of a client that may track already: prefixes are added, modes may not change.
fn merge(
    before: Option<&TrackingOptions>,
    mut new: TrackingOptions,
) -> Result<TrackingOptions, ErrorReply> {
    let Some(before) = before else { return Ok(new) };
    if before.is_broadcast != new.is_broadcast {
        return Err(ErrorReply::fixed(
            "ERR You can't switch BCAST mode on/off before disabling tracking for this client, \
             and then re-enabling it with a different mode.",
        ));
    }
    let changes_mode = before.is_opt_in && new.is_opt_out || before.is_opt_out && new.is_opt_in;
    if changes_mode {
        return Err(ErrorReply::fixed(
            "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, \
             and then re-enabling it with a different mode.",
        ));
    }
    let is_prefixed = new.prefixes.iter().any(|prefix| !prefix.is_empty());
    if before.is_broadcast && !is_prefixed {
        new.prefixes.clear();
    }
    new.prefixes.extend(before.prefixes.iter().cloned());
    Ok(new)
}

/// Rejects prefixes that overlap, and those of keys that the user may not read.
fn check_prefixes(ctx: &CommandContext<'_>, options: &TrackingOptions) -> CommandResult {
    let mut last: Option<&Vec<u8>> = None;
    // In order, a prefix stands before all that begin with it.
    for prefix in &options.prefixes {
        if let Some(last) = last.filter(|last| prefix.starts_with(last)) {
            let shown = [last, prefix].map(|one| String::from_utf8_lossy(one).into_owned());
            let [shorter, longer] = shown;
            return Err(ErrorReply::new(format!(
                "ERR Prefix '{longer}' overlaps with an existing prefix '{shorter}'. Prefixes \
                 for a single client must not overlap."
            )));
        }
        last = Some(prefix);
    }
    let Some(user) = &ctx.connection.user else { return Err(ErrorReply::NO_AUTH) };
    let pattern = |prefix: &[u8]| [prefix, b"*"].concat();
    let may_read = |prefix: &Vec<u8>| user.may_walk_pattern(pattern_namespace(&pattern(prefix)));
    if options.prefixes.iter().all(may_read) {
        return Ok(());
    }
    Err(ErrorReply::fixed(
        "NOPERM this user has no permissions to access all keys with one of the prefixes",
    ))
}

/// The mailbox of the connection that receives the invalidations. It must belong to the same user,
/// who could otherwise not see the names of these keys.
fn target_of(
    ctx: &CommandContext<'_>,
    id: u64,
) -> Result<Arc<crate::pubsub::mailbox::Mailbox>, ErrorReply> {
    let user = ctx.connection.user.as_ref().map_or("", |user| user.name());
    let target = ctx.server.client_entry(id).filter(|target| target.user == user);
    target
        .map(|target| target.mailbox)
        .ok_or_else(|| ErrorReply::fixed("ERR The client ID you want redirect to does not exist"))
}

/// `CLIENT CACHING YES|NO`
pub(crate) fn caching(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let options = ctx.connection.tracking.as_mut();
    let Some(options) = options.filter(|options| options.is_opt_in || options.is_opt_out) else {
        return Err(ErrorReply::fixed(
            "ERR CLIENT CACHING can be called only when the client is in tracking mode with \
             OPTIN or OPTOUT mode enabled",
        ));
    };
    options.caching = match arg(args, 2).to_ascii_lowercase().as_slice() {
        b"yes" if options.is_opt_in => CachingMode::Yes,
        b"no" if options.is_opt_out => CachingMode::No,
        b"yes" => {
            return Err(ErrorReply::fixed(
                "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.",
            ));
        }
        b"no" => {
            return Err(ErrorReply::fixed(
                "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.",
            ));
        }
        _ => return Err(ErrorReply::SYNTAX),
    };
    reply.ok();
    Ok(())
}

/// `CLIENT GETREDIR`
pub(crate) fn getredir(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reply.int(redirection(ctx.connection.tracking.as_ref()));
    Ok(())
}

/// -1 without tracking, 0 without redirection.
fn redirection(options: Option<&TrackingOptions>) -> i64 {
    options.map_or(-1, |options| {
        i64::try_from(options.redirect.unwrap_or_default()).unwrap_or(i64::MAX)
    })
}

/// `CLIENT TRACKINGINFO`
pub(crate) fn trackinginfo(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let options = ctx.connection.tracking.as_ref();
    let target = options.and_then(|options| options.redirect);
    let is_broken =
        target.is_some_and(|id| id != ctx.connection.id && ctx.server.client_entry(id).is_none());
    let is = |check: fn(&TrackingOptions) -> bool| options.is_some_and(check);
    let flags: Vec<&str> = [
        (options.is_none(), "off"),
        (options.is_some(), "on"),
        (is(|options| options.is_broadcast), "bcast"),
        (is(|options| options.is_opt_in), "optin"),
        (is(|options| options.caching == CachingMode::Yes), "caching-yes"),
        (is(|options| options.is_opt_out), "optout"),
        (is(|options| options.caching == CachingMode::No), "caching-no"),
        (is(|options| options.is_no_loop), "noloop"),
        (is_broken, "broken_redirect"),
    ]
    .into_iter()
    .filter_map(|(is_set, name)| is_set.then_some(name))
    .collect();
    reply.map(3);
    reply.bulk(b"flags");
    reply.set(flags.len());
    for name in flags {
        reply.bulk(name.as_bytes());
    }
    reply.bulk(b"redirect");
    reply.int(redirection(options));
    reply.bulk(b"prefixes");
    let prefixes: Vec<&Vec<u8>> = options.iter().flat_map(|options| &options.prefixes).collect();
    reply.array(prefixes.len());
    for prefix in prefixes {
        reply.bulk(prefix);
    }
    Ok(())
}
