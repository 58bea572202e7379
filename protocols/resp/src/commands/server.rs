//! Server commands: settings, slow log, memory usage, time.

#![expect(clippy::unnecessary_wraps, reason = "the function of a row has one form")]

use super::arg;
use super::sentinel;
use crate::command_context::CommandContext;
use crate::connection_state::{PostponeCause, PostponedRequest};
use crate::number::{integer, integer_or_refuse};
use crate::parse::Args;
use crate::pattern;
use crate::records::RecordRef;
use crate::replication::{ReplicaWait, state_word};
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use crate::server::SlowLogEntry;
use nearstate_model::limits::VALUE_BYTES_MAX;
use nearstate_store::{Form, ReceiptState, glob, now_ms_coarse, since_boot};
use std::time::Duration;

/// Default number of entries of `SLOWLOG GET`.
const SLOW_ENTRIES: usize = 10;

/// Limit of patterns of one `CONFIG GET`, each of which is compared with about thirty names.
const PATTERNS_MAX: usize = 128;

/// The setting that selects the keyspace notifications.
pub(super) const NOTIFY: &str = "notify-keyspace-events";

/// `CONFIG GET pattern ..`
pub(crate) fn config_get(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let requested = args.from(2);
    if requested.len() > PATTERNS_MAX {
        return Err(ErrorReply::new(format!(
            "ERR too many patterns: CONFIG GET accepts at most {PATTERNS_MAX}"
        )));
    }
    requested.iter().try_for_each(pattern::validate)?;
    let patterns: Vec<Vec<u8>> = requested.iter().map(<[u8]>::to_ascii_lowercase).collect();
    let mut settings = settings(ctx)?;
    settings
        .retain(|(name, _)| patterns.iter().any(|pattern| glob::matches(pattern, name.as_bytes())));
    reply.map(settings.len());
    for (name, value) in settings {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    Ok(())
}

/// Redis' settings that apply here or have a fixed value.
pub(super) fn settings(
    ctx: &CommandContext<'_>,
) -> Result<Vec<(&'static str, String)>, ErrorReply> {
    let settings = &ctx.server.settings;
    let seen = ctx.session().region().inspect()?;
    let (folder, file) = settings.region.rsplit_once('/').unwrap_or((".", &settings.region));
    let runtime = &ctx.server.runtime;
    let pubsub = runtime.mailbox_bytes_max();
    // As Redis writes "never".
    let slow = i64::try_from(runtime.slow_micros()).unwrap_or(-1);
    let fixed = [
        ("acllog-max-len", "0"),
        ("aclfile", ""),
        ("activerehashing", "yes"),
        ("appendfsync", "no"),
        ("appendonly", "no"),
        ("cluster-enabled", "no"),
        ("daemonize", "no"),
        ("databases", "1"),
        ("lazyfree-lazy-user-del", "no"),
        ("masterauth", ""),
        ("maxmemory-policy", "noeviction"),
        ("replicaof", ""),
        ("requirepass", ""),
        ("save", ""),
        ("slaveof", ""),
        ("stop-writes-on-bgsave-error", "no"),
        ("timeout", "0"),
    ];
    let mut all: Vec<(&'static str, String)> =
        fixed.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    if let Some(limits) = ctx.server.connection_limits() {
        all.push(("maxclients", limits.connections_max_now().to_string()));
    }
    all.extend([
        ("bind", ctx.connection.local_host.clone()),
        ("client-output-buffer-limit", format!("normal 0 0 0 slave 0 0 0 pubsub {pubsub} 0 0")),
        ("client-query-buffer-limit", settings.request_bytes_max.to_string()),
        ("dbfilename", file.to_owned()),
        ("dir", folder.to_owned()),
        ("latency-monitor-threshold", runtime.latency_threshold_ms().to_string()),
        ("loglevel", runtime.log_level().name().to_owned()),
        (NOTIFY, ctx.server.keyspace.events().flags()),
        ("maxmemory", seen.bytes_max.to_string()),
        ("port", ctx.server.port().to_string()),
        ("proto-max-bulk-len", VALUE_BYTES_MAX.to_string()),
        ("slowlog-log-slower-than", slow.to_string()),
        ("slowlog-max-len", runtime.slow_entries_max().to_string()),
    ]);
    all.sort_unstable();
    Ok(all)
}

/// `SLOWLOG GET [count]`
pub(crate) fn slowlog_get(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let count = match args.get(2).map(integer) {
        _ if args.len() > 3 => {
            return Err(ErrorReply::fixed(
                "ERR unknown subcommand or wrong number of arguments for 'get'. Try SLOWLOG HELP.",
            ));
        }
        None => SLOW_ENTRIES,
        Some(Some(-1)) => usize::MAX,
        Some(Some(count)) if count >= 0 => usize::try_from(count).unwrap_or(usize::MAX),
        Some(_) => {
            let text = "ERR count should be greater than or equal to -1";
            return Err(ErrorReply::fixed(text));
        }
    };
    let slow = ctx.server.slow_log_entries(count);
    reply.array(slow.len());
    for request in &slow {
        slow_request(request, reply);
    }
    Ok(())
}

fn slow_request(request: &SlowLogEntry, reply: &mut ReplyWriter<'_>) {
    let int = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    reply.array(6);
    reply.int(int(request.id));
    reply.int(int(request.at_seconds));
    reply.int(int(request.micros));
    reply.array(request.args.len());
    request.args.iter().for_each(|arg| reply.bulk(arg));
    reply.bulk(request.address.as_bytes());
    reply.bulk(request.name.as_bytes());
}

/// `SLOWLOG LEN`
pub(crate) fn slowlog_len(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reply.count(ctx.server.slow_log_len());
    Ok(())
}

/// `SLOWLOG RESET`
pub(crate) fn slowlog_reset(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    ctx.server.reset_slow_log();
    reply.ok();
    Ok(())
}

/// Overhead of a record in addition to key and value, and allocation granularity, in bytes
/// (`spec/region.md`).
const RECORD_HEAD: usize = 44;
const LINE: usize = 64;

/// `MEMORY PURGE`
pub(crate) fn memory_purge(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    ctx.server.purge_request.set();
    reply.ok();
    Ok(())
}

/// `MEMORY USAGE key [SAMPLES count]`
pub(crate) fn memory_usage(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    match args.len() {
        3 => {}
        5 if arg(args, 3).eq_ignore_ascii_case(b"samples") => {
            if integer_or_refuse(arg(args, 4))? < 0 {
                return Err(ErrorReply::SYNTAX);
            }
        }
        _ => return Err(ErrorReply::SYNTAX),
    }
    let key = arg(args, 2);
    let Some(found) = ctx.read(key)? else {
        reply.nil();
        return Ok(());
    };
    let bytes = RECORD_HEAD + key.len() + content_bytes(&found)?;
    ctx.session().check_not_truncated()?;
    reply.count(bytes.next_multiple_of(LINE));
    Ok(())
}

/// Approximate bytes of a record's value, with about ten bytes of overhead per part.
fn content_bytes(found: &RecordRef<'_>) -> Result<usize, ErrorReply> {
    const PART: usize = 8;
    let sum = |parts: &mut dyn Iterator<Item = usize>| parts.map(|bytes| bytes + PART).sum();
    let value: usize = match found.record_type() {
        Form::Value => found.string()?.len(),
        Form::Blocks => sum(&mut found.fields()?.map(|(name, bytes)| name.len() + bytes.len())),
        Form::Set => sum(&mut found.members()?.map(<[u8]>::len)),
    };
    let tags = sum(&mut found.tags().iter().map(|(name, value)| name.len() + value.len()));
    Ok(value + tags + if found.expires_ms() == 0 { 0 } else { PART })
}

/// `TIME`
pub(crate) fn time(
    _: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let now = now_ms_coarse();
    reply.array(2);
    reply.bulk((now / 1000).to_string().as_bytes());
    reply.bulk((now % 1000 * 1000).to_string().as_bytes());
    Ok(())
}

/// `LASTSAVE`
pub(crate) fn lastsave(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let seconds = ctx.server.settings.started_ms / 1000;
    reply.int(i64::try_from(seconds).unwrap_or(i64::MAX));
    Ok(())
}

/// `WAIT replicas timeout`
pub(crate) fn wait(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let wanted = integer_or_refuse(arg(args, 1))?;
    let timeout = match integer(arg(args, 2)) {
        None => return Err(ErrorReply::fixed("ERR timeout is not an integer or out of range")),
        Some(..0) => return Err(ErrorReply::fixed("ERR timeout is negative")),
        // 0: without a limit.
        Some(ms) => u64::try_from(ms).ok().filter(|ms| *ms > 0).map(Duration::from_millis),
    };
    let receipt = ctx.records.session().receipt();
    let now = since_boot();
    let waiting = &mut ctx.connection.replica_wait;
    let waiting = waiting.get_or_insert_with(|| Box::new(ReplicaWait::new(receipt, now)));
    let receipt = waiting.receipt;
    // Behind a fail-over the positions of replicas are those of another log.
    match ctx.records.session().receipt_state(receipt)? {
        ReceiptState::Pending | ReceiptState::Replicated => {}
        state @ (ReceiptState::Lost | ReceiptState::Unknown) => {
            ctx.connection.replica_wait = None;
            return Ok(state.require(receipt, Duration::ZERO)?);
        }
    }
    let left = timeout.map(|timeout| timeout.saturating_sub(now.saturating_sub(waiting.begun)));
    let count = ctx.server.replicas.count_with(receipt.position());
    let count_wide = i64::try_from(count).unwrap_or(i64::MAX);
    // EXEC holds a transaction open: it does not wait, as in Redis.
    if count_wide >= wanted || left.is_some_and(|left| left.is_zero()) || ctx.txn.is_some() {
        ctx.connection.replica_wait = None;
        reply.int(count_wide);
        return Ok(());
    }
    let wait = waiting.next_pause(now, left);
    let (request, cause) = (args.keep(), PostponeCause::Replicas);
    ctx.connection.postponed = Some(PostponedRequest { request, cause, wait, timer: None });
    Err(ErrorReply::fixed("ERR the request is postponed"))
}

/// `ROLE`
pub(crate) fn role(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    if ctx.connection.is_sentinel {
        sentinel::role(ctx, reply);
        return Ok(());
    }
    let session = ctx.records.session();
    if let Some(following) = session.following()? {
        reply.array(5);
        reply.bulk(b"slave");
        // The process that follows knows the address; the region does not.
        reply.bulk(b"");
        reply.int(0);
        reply.bulk(state_word(following.state).as_bytes());
        reply.int(i64::try_from(following.applied.position).unwrap_or(i64::MAX));
        return Ok(());
    }
    let replicas = ctx.server.replicas.list();
    reply.array(3);
    reply.bulk(b"master");
    reply.int(i64::try_from(session.log_tail_position()?).unwrap_or(i64::MAX));
    reply.array(replicas.len());
    for replica in replicas {
        reply.array(3);
        reply.bulk(replica.address.ip().to_string().as_bytes());
        reply.bulk(replica.address.port().to_string().as_bytes());
        reply.bulk(replica.position.to_string().as_bytes());
    }
    Ok(())
}
