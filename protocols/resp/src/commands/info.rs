//! `INFO`: sections and fields with the names that Redis' tools read. Fields that do not apply are
//! omitted; tools treat them as 0.

use crate::command_context::CommandContext;
use crate::parse::Args;
use crate::records::KeyedRecords;
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use crate::server::{REDIS_VERSION, RespServer};
use crate::sliced_task::{SlicedTask, TaskProgress};
use nearstate_node::process;
use nearstate_store::{FollowState, Inspection, Kind, Namespace, RecordCounts, now_ms_coarse};
use std::fmt::Write as _;
use std::sync::atomic::Ordering;

/// All sections in the order of output, and whether `INFO` alone and `INFO all` include them.
const SECTIONS: [(&str, bool, bool); 10] = [
    ("server", true, true),
    ("clients", true, true),
    ("memory", true, true),
    ("persistence", true, true),
    ("stats", true, true),
    ("replication", true, true),
    ("cpu", true, true),
    ("modules", true, false),
    ("commandstats", false, true),
    ("cluster", true, true),
];

/// Buckets per slice when keys are counted. Counting reads buckets only, not records.
const COUNTED_BUCKETS: u64 = 512;

/// `INFO [section ..]`
pub(crate) fn info(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let sections: Vec<Vec<u8>> = args.from(1).iter().map(<[u8]>::to_ascii_lowercase).collect();
    let is_asked = |name: &str| sections.iter().any(|one| one == name.as_bytes());
    let (usual, all) = (sections.is_empty() || is_asked("default"), is_asked("all"));
    let everything = is_asked("everything");
    let seen = ctx.session().region().inspect()?;
    let mut text = String::new();
    for (name, is_usual, is_of_all) in SECTIONS {
        if usual && is_usual || all && is_of_all || everything || is_asked(name) {
            begin(&mut text, name);
            section(ctx, &seen, name, &mut text);
        }
    }
    if !(usual || all || everything || is_asked("keyspace")) {
        reply.verbatim(&text);
        return Ok(());
    }
    // The keys are counted in slices.
    let mut namespaces = ctx.records.namespaces()?;
    namespaces.retain(|(_, namespace)| namespace.kind() != Kind::Counters);
    let namespaces = namespaces.into_iter().map(|(_, namespace)| namespace).collect();
    ctx.connection.task = Some(Box::new(KeyspaceSection {
        text,
        namespaces,
        from: 0,
        counts: RecordCounts::default(),
    }));
    Ok(())
}

/// Writes the first line of a section.
fn begin(text: &mut String, name: &str) {
    if !text.is_empty() {
        text.push_str("\r\n");
    }
    let mut letters = name.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    text.push_str("# ");
    text.extend(first);
    text.push_str(letters.as_str());
    if name == "cpu" {
        text.truncate(text.len() - "Cpu".len());
        text.push_str("CPU");
    }
    text.push_str("\r\n");
}

fn section(ctx: &CommandContext<'_>, seen: &Inspection, name: &str, text: &mut String) {
    let mut facts = InfoText(text);
    match name {
        "server" => server(ctx, seen, &mut facts),
        "clients" => {
            facts.field("connected_clients", ctx.server.client_count());
            facts.field("blocked_clients", 0);
            let [clients, _, _] = ctx.server.tracking.counts();
            facts.field("tracking_clients", clients);
        }
        "memory" => {
            memory(seen, &mut facts);
            limits(seen, &mut facts);
        }
        "persistence" => facts.field("loading", 0),
        "stats" => stats(ctx.server, &mut facts),
        "replication" => {
            replication(ctx, &mut facts);
        }
        "cpu" => {
            if let Some(used) = process::usage() {
                facts.field("used_cpu_sys", format_args!("{:.6}", used.system_seconds));
                facts.field("used_cpu_user", format_args!("{:.6}", used.user_seconds));
            }
        }
        "commandstats" => commands(ctx.server, &mut facts),
        "cluster" => facts.field("cluster_enabled", 0),
        _ => {}
    }
}

fn replication(ctx: &CommandContext<'_>, facts: &mut InfoText<'_>) {
    let session = ctx.records.session();
    // A damaged follower's state is reported by the check, and by what serves it.
    if let Ok(Some(following)) = session.following() {
        facts.field("role", "slave");
        let is_joining = matches!(following.state, FollowState::Joining | FollowState::Extending);
        facts.field("master_sync_in_progress", u8::from(is_joining));
        facts.field("slave_repl_offset", following.applied.position);
        facts.field("slave_read_only", 1);
    } else {
        facts.field("role", "master");
    }
    // A damaged clock is reported by each read of a record that expires.
    if let Ok(shift_ms) = session.clock_shift_ms() {
        facts.field("clock_shift_ms", shift_ms);
    }
    let replicas = ctx.server.replicas.list();
    facts.field("connected_slaves", replicas.len());
    for (number, replica) in replicas.iter().enumerate() {
        let state = if replica.is_joining { "wait_bgsave" } else { "online" };
        let (ip, port) = (replica.address.ip(), replica.address.port());
        let (offset, lag) = (replica.position, replica.lag_seconds);
        facts.field(
            &format!("slave{number}"),
            format_args!("ip={ip},port={port},state={state},offset={offset},lag={lag}"),
        );
    }
    facts.field("master_repl_offset", session.log_tail_position().unwrap_or(0));
}

/// Lines of names and values.
struct InfoText<'t>(&'t mut String);

impl InfoText<'_> {
    fn field(&mut self, name: &str, value: impl std::fmt::Display) {
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{name}:{value}\r\n");
    }

    /// A size in bytes and in readable form.
    fn size(&mut self, name: &str, bytes: u64) {
        self.field(name, bytes);
        self.field(&format!("{name}_human"), human(bytes));
    }
}

/// Redis' readable form of sizes: `1.50M`.
#[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
fn human(bytes: u64) -> String {
    let (mut size, mut unit) = (bytes as f64, "B");
    for larger in ["K", "M", "G", "T"] {
        if size < 1024.0 {
            break;
        }
        (size, unit) = (size / 1024.0, larger);
    }
    if unit == "B" { format!("{bytes}B") } else { format!("{size:.2}{unit}") }
}

fn server(ctx: &CommandContext<'_>, seen: &Inspection, facts: &mut InfoText<'_>) {
    let (server, settings) = (ctx.server, &ctx.server.settings);
    let now = now_ms_coarse();
    let up = now.saturating_sub(settings.started_ms) / 1000;
    let [one, two] = seen.id;
    facts.field("redis_version", REDIS_VERSION);
    facts.field("nearstate_version", env!("CARGO_PKG_VERSION"));
    facts.field("redis_mode", ctx.connection.mode());
    facts.field("os", std::env::consts::OS);
    facts.field("arch_bits", usize::BITS);
    facts.field("process_id", settings.pid);
    facts.field("run_id", format_args!("{one:016x}{two:016x}{:08x}", settings.pid));
    facts.field("tcp_port", server.port());
    facts.field("server_time_usec", now * 1000);
    facts.field("uptime_in_seconds", up);
    facts.field("uptime_in_days", up / (24 * 60 * 60));
    facts.field("region", seen.path.display());
    facts.field("region_format", seen.format);
    facts.field("region_epoch", seen.epoch);
    facts.field("region_namespaces", seen.namespaces.len());
    let living = seen.members.iter().filter(|member| member.is_alive);
    facts.field("region_sessions", living.clone().count());
    let pinned = living.filter_map(|member| member.pinned_epoch).min();
    facts.field("region_oldest_pin", pinned.unwrap_or(seen.epoch));
}

#[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
fn memory(seen: &Inspection, facts: &mut InfoText<'_>) {
    let resident = process::usage().map(|used| used.resident_bytes);
    facts.size("used_memory", seen.bytes_taken);
    if let Some(resident) = resident {
        facts.size("used_memory_rss", resident);
    }
    // The region never shrinks, so the current value is the peak.
    facts.size("used_memory_peak", seen.bytes_taken);
    facts.field("used_memory_peak_perc", "100.00%");
    facts.size("maxmemory", seen.bytes_max);
    facts.field("maxmemory_policy", "noeviction");
    facts.field("region_bytes_on_disk", seen.bytes_on_disk);
    if let Some(resident) = resident {
        let ratio = resident as f64 / seen.bytes_taken.max(1) as f64;
        facts.field("mem_fragmentation_ratio", format_args!("{ratio:.2}"));
        let bytes = i128::from(resident) - i128::from(seen.bytes_taken);
        facts.field("mem_fragmentation_bytes", bytes);
    }
}

/// Namespaces with limits that the memory section lists.
const LIMITED_MAX: usize = 256;

/// The namespaces with limits: what their records take.
fn limits(seen: &Inspection, facts: &mut InfoText<'_>) {
    let limited = seen.namespaces.iter().filter_map(|one| Some((&one.name, one.usage?)));
    facts.field("limited_namespaces", limited.clone().count());
    for (number, (name, usage)) in limited.take(LIMITED_MAX).enumerate() {
        let limits = usage.limits;
        // The name comes last, because it may contain commas.
        let line = format_args!(
            "used={},soft={},hard={},name={}",
            usage.used_bytes,
            limits.soft_bytes,
            limits.hard_bytes,
            name.escape_ascii()
        );
        facts.field(&format!("namespace_limit_{number}"), line);
    }
}

fn stats(server: &RespServer, facts: &mut InfoText<'_>) {
    let [connections, requests, errors, hits, misses, published] =
        server.stats.since_reset().counts;
    facts.field("total_connections_received", connections);
    facts.field("total_commands_processed", requests);
    facts.field("total_error_replies", errors);
    facts.field("keyspace_hits", hits);
    facts.field("keyspace_misses", misses);
    facts.field("acl_access_denied_auth", server.auth_limit.failures());
    facts.field("messages_published", published);
    facts.field("pubsub_channels", server.pubsub.channel_count());
    facts.field("pubsub_patterns", server.pubsub.patterns());
    let keyspace = &server.keyspace.counts;
    facts.field("keyspace_namespaces_watched", keyspace.watched.load(Ordering::Relaxed));
    facts.field("keyspace_events_seen", keyspace.seen.load(Ordering::Relaxed));
    facts.field("keyspace_events_lost", keyspace.lost.load(Ordering::Relaxed));
    facts.field("keyspace_watches_failed", keyspace.failed.load(Ordering::Relaxed));
    facts.field("slowlog_entries", server.slow_log_len());
    let [_, keys, prefixes] = server.tracking.counts();
    facts.field("tracking_total_keys", keys);
    facts.field("tracking_total_prefixes", prefixes);
    // There is no replication and no eviction.
    for name in ["sync_full", "sync_partial_ok", "sync_partial_err", "evicted_keys"] {
        facts.field(name, 0);
    }
}

#[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
fn commands(server: &RespServer, facts: &mut InfoText<'_>) {
    for (name, tally) in server.stats.since_reset().commands {
        let each = tally.micros as f64 / tally.calls.max(1) as f64;
        facts.field(
            &format!("cmdstat_{name}"),
            format_args!(
                "calls={},usec={},usec_per_call={each:.2},rejected_calls={},failed_calls={}",
                tally.calls, tally.micros, tally.rejected, tally.failed
            ),
        );
    }
}

/// The keyspace section, which counts the keys.
#[derive(Debug)]
struct KeyspaceSection {
    text: String,
    /// Namespaces to be counted, the current one last.
    namespaces: Vec<Namespace>,
    from: u64,
    counts: RecordCounts,
}

impl SlicedTask for KeyspaceSection {
    fn step(
        &mut self,
        records: &KeyedRecords,
        _: &RespServer,
        reply: &mut ReplyWriter<'_>,
    ) -> Result<TaskProgress, ErrorReply> {
        if let Some(namespace) = self.namespaces.last() {
            let session = records.session();
            let (more, next) = match session.count_part(*namespace, self.from, COUNTED_BUCKETS) {
                // It was removed meanwhile, and has no keys.
                Err(_) if !session.has_namespace(*namespace) => (RecordCounts::default(), None),
                part => part?,
            };
            self.counts.records += more.records;
            self.counts.expiring += more.expiring;
            self.from = next.unwrap_or_default();
            if next.is_none() {
                self.namespaces.pop();
            }
            return Ok(TaskProgress::More);
        }
        begin(&mut self.text, "keyspace");
        let RecordCounts { records: keys, expiring } = self.counts;
        if keys > 0 {
            let line = format_args!("keys={keys},expires={expiring},avg_ttl=0");
            InfoText(&mut self.text).field("db0", line);
        }
        reply.verbatim(&self.text);
        Ok(TaskProgress::Done)
    }

    fn memory_bytes(&self) -> usize {
        self.text.capacity() + self.namespaces.capacity() * size_of::<Namespace>()
    }
}
