//! `CONFIG SET`: the settings that change while the server runs. All others are in the
//! configuration file.

#![expect(clippy::unnecessary_wraps, reason = "the function of a row has one form")]

use super::server::{NOTIFY, settings};
use super::transactions::reject_in_exec;
use super::watch_namespaces::WatchNamespacesTask;
use crate::command_context::CommandContext;
use crate::keyspace_events::KeyspaceEvents;
use crate::number::integer;
use crate::parse::Args;
use crate::records::KeyedRecords;
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use crate::runtime_settings::ServerLogLevel;
use crate::server::RespServer;
use crate::sliced_task::{SlicedTask, TaskProgress};
use nearstate_model::Error;
use std::collections::{BTreeMap, BTreeSet};

/// Limit of `slowlog-max-len`: some hundred megabytes of entries.
const SLOW_ENTRIES_LIMIT: i64 = 100_000;

/// The least limit of queued messages: an ordinary message fits.
const MAILBOX_BYTES_MIN: usize = 4096;

/// A change of a setting.
#[derive(Clone, Copy, Debug)]
enum SettingChange {
    SlowMicros(u64),
    SlowEntriesMax(usize),
    MailboxBytesMax(usize),
    LatencyThresholdMs(u64),
    LogLevel(ServerLogLevel),
    ConnectionsMax(usize),
    Events(KeyspaceEvents),
    /// The setting has this value and no other.
    None,
}

/// `CONFIG SET name value [name value ..]`. Changes all settings or none.
pub(crate) fn set(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    reject_in_exec(ctx, args)?;
    let pairs = args.from(2);
    if !pairs.len().is_multiple_of(2) {
        return Err(ErrorReply::SYNTAX);
    }
    let known = settings(ctx)?;
    let mut changes: BTreeMap<&str, SettingChange> = BTreeMap::new();
    let names = || pairs.iter().step_by(2);
    let mut seen = BTreeSet::new();
    for word in names() {
        let name = word.to_ascii_lowercase();
        let is_known = |(known, _): &&(&str, String)| known.as_bytes() == name;
        if let Some((name, _)) = known.iter().find(is_known)
            && !seen.insert(*name)
        {
            return Err(failed(name, "duplicate parameter"));
        }
    }
    for (word, value) in names().zip(pairs.iter().skip(1).step_by(2)) {
        let name = word.to_ascii_lowercase();
        let Some((name, current)) = known.iter().find(|(known, _)| known.as_bytes() == name) else {
            let word = String::from_utf8_lossy(word.get(..128).unwrap_or(word));
            return Err(ErrorReply::new(format!(
                "ERR Unknown option or number of arguments for CONFIG SET - '{word}'"
            )));
        };
        let change = match *name {
            "maxclients" => read_connections_max(ctx, value),
            _ => read(name, value, current),
        };
        changes.insert(name, change.map_err(|why| failed(name, &why))?);
    }
    let changes: Vec<SettingChange> = changes.into_values().collect();
    let events = changes.iter().find_map(|change| match change {
        SettingChange::Events(events) => Some(*events),
        SettingChange::SlowMicros(_)
        | SettingChange::SlowEntriesMax(_)
        | SettingChange::MailboxBytesMax(_)
        | SettingChange::LatencyThresholdMs(_)
        | SettingChange::LogLevel(_)
        | SettingChange::ConnectionsMax(_)
        | SettingChange::None => None,
    });
    if let Some(events) = events {
        return set_events(ctx, events, changes, reply);
    }
    for change in changes {
        apply(ctx.server, change);
    }
    reply.ok();
    Ok(())
}

/// Reads the new value of a setting with this current value.
fn read(name: &str, value: &[u8], current: &str) -> Result<SettingChange, String> {
    let count = |max: i64| match integer(value) {
        None => Err("argument couldn't be parsed into an integer".to_owned()),
        Some(number) if (0..=max).contains(&number) => Ok(number.unsigned_abs()),
        Some(_) => Err(format!("argument must be between 0 and {max} inclusive")),
    };
    match name {
        // A negative number disables the slow log.
        "slowlog-log-slower-than" if integer(value).is_some_and(i64::is_negative) => {
            Ok(SettingChange::SlowMicros(u64::MAX))
        }
        "slowlog-log-slower-than" => count(i64::MAX).map(SettingChange::SlowMicros),
        "slowlog-max-len" => {
            let entries = usize::try_from(count(SLOW_ENTRIES_LIMIT)?).unwrap_or(usize::MAX);
            Ok(SettingChange::SlowEntriesMax(entries))
        }
        "latency-monitor-threshold" => count(i64::MAX).map(SettingChange::LatencyThresholdMs),
        "client-output-buffer-limit" => read_buffer_limits(value, current),
        "loglevel" => {
            let is = |level: &ServerLogLevel| level.name().as_bytes().eq_ignore_ascii_case(value);
            let level = ServerLogLevel::ALL.into_iter().find(is);
            level.map(SettingChange::LogLevel).ok_or_else(|| {
                "argument(s) must be one of the following: debug, verbose, notice, warning"
                    .to_owned()
            })
        }
        NOTIFY => match KeyspaceEvents::parse(value) {
            Ok(events) => Ok(SettingChange::Events(events)),
            Err(Error::BadArgument { detail }) => Err(detail),
            Err(error) => Err(error.to_string()),
        },
        // Tools set what they rely on, such as an empty `save`.
        _ if value == current.as_bytes() => Ok(SettingChange::None),
        _ => Err("can't set immutable config".to_owned()),
    }
}

/// Reads the limit of connections: at most that of the configuration, for which memory and files
/// are reserved.
fn read_connections_max(ctx: &CommandContext<'_>, value: &[u8]) -> Result<SettingChange, String> {
    let max = ctx.server.connection_limits().map_or(1, |limits| limits.connections_max);
    let requested = integer(value).ok_or("argument couldn't be parsed into an integer")?;
    match usize::try_from(requested) {
        Ok(connections) if (1..=max).contains(&connections) => {
            Ok(SettingChange::ConnectionsMax(connections))
        }
        _ => Err(format!(
            "argument must be between 1 and {max} inclusive: limits.connections_max of the \
             configuration raises it"
        )),
    }
}

/// Reads groups of a class, its hard limit, its soft limit and seconds. Only the hard limit of
/// `pubsub` can be set; the others must have their current value, 0.
fn read_buffer_limits(value: &[u8], current: &str) -> Result<SettingChange, String> {
    let text = String::from_utf8_lossy(value).to_ascii_lowercase();
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    if words.is_empty() || !words.len().is_multiple_of(4) {
        return Err("Wrong number of arguments in buffer limit configuration.".to_owned());
    }
    let pubsub = current.rsplit(' ').nth(2).and_then(memory_bytes).unwrap_or_default();
    let mut new = pubsub;
    for group in words.chunks_exact(4) {
        let [class, hard, soft, seconds] = group else { continue };
        let numbers = [memory_bytes(hard), memory_bytes(soft), memory_bytes(seconds)];
        let [Some(hard), Some(soft), Some(seconds)] = numbers else {
            return Err("Error in hard, soft or soft_seconds setting in buffer limit \
                        configuration."
                .to_owned());
        };
        match *class {
            "pubsub" if hard >= MAILBOX_BYTES_MIN && soft == 0 && seconds == 0 => new = hard,
            "pubsub" => {
                return Err(format!(
                    "pubsub must have a hard limit of at least {MAILBOX_BYTES_MIN} bytes and no \
                     soft limit"
                ));
            }
            "normal" | "slave" | "replica" if (hard, soft, seconds) == (0, 0, 0) => {}
            "normal" | "slave" | "replica" => {
                return Err(format!(
                    "the limits of {class} cannot be set: limits.output_bytes_max of the \
                     configuration limits all clients"
                ));
            }
            _ => return Err(format!("Invalid client class {class:?} in buffer limits")),
        }
    }
    Ok(SettingChange::MailboxBytesMax(new))
}

/// A size with a unit of Redis: `1mb` is 1,048,576, `1m` is 1,000,000.
fn memory_bytes(word: &str) -> Option<usize> {
    let digits = word.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit: usize = match word.get(digits.len()..)? {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

/// `CONFIG RESETSTAT`
pub(crate) fn resetstat(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    ctx.server.stats.reset();
    reply.ok();
    Ok(())
}

fn apply(server: &RespServer, change: SettingChange) {
    let runtime = &server.runtime;
    match change {
        SettingChange::SlowMicros(micros) => runtime.set_slow_micros(micros),
        SettingChange::SlowEntriesMax(entries) => {
            runtime.set_slow_entries_max(entries);
            server.truncate_slow_log();
        }
        SettingChange::MailboxBytesMax(bytes) => runtime.set_mailbox_bytes_max(bytes),
        SettingChange::LatencyThresholdMs(millis) => runtime.set_latency_threshold_ms(millis),
        SettingChange::LogLevel(level) => {
            runtime.set_log_level(level);
            (server.settings.on_log_level)(level);
        }
        SettingChange::ConnectionsMax(connections) => {
            if let Some(limits) = server.connection_limits() {
                limits.set_connections_max(connections);
            }
        }
        SettingChange::Events(_) | SettingChange::None => {}
    }
}

fn set_events(
    ctx: &mut CommandContext<'_>,
    events: KeyspaceEvents,
    changes: Vec<SettingChange>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let keyspace = &ctx.server.keyspace;
    let before = keyspace.events();
    keyspace.set_events(events);
    if !events.is_any() {
        for change in changes {
            apply(ctx.server, change);
        }
        reply.ok();
        return Ok(());
    }
    // All namespaces are watched before the reply: later changes are published.
    let mut namespaces = ctx.session().namespaces()?;
    namespaces.reverse();
    let watch = WatchNamespacesTask { before: Some(before), namespaces };
    ctx.connection.task = Some(Box::new(SettingsTask { watch, changes }));
    Ok(())
}

/// Watches the namespaces, which may fail, and then changes the other settings.
#[derive(Debug)]
struct SettingsTask {
    watch: WatchNamespacesTask,
    changes: Vec<SettingChange>,
}

impl SlicedTask for SettingsTask {
    fn step(
        &mut self,
        records: &KeyedRecords,
        server: &RespServer,
        reply: &mut ReplyWriter<'_>,
    ) -> Result<TaskProgress, ErrorReply> {
        let progress = self.watch.step(records, server, reply)?;
        if progress == TaskProgress::Done {
            self.changes.drain(..).for_each(|change| apply(server, change));
        }
        Ok(progress)
    }

    fn memory_bytes(&self) -> usize {
        self.watch.memory_bytes() + size_of_val(self.changes.as_slice())
    }
}

fn failed(name: &str, why: &str) -> ErrorReply {
    ErrorReply::new(format!(
        "ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"
    ))
}
