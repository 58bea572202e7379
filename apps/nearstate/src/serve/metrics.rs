//! The metrics page in `OpenMetrics` text format. Counters of cores, region and protocol are only
//! read here, in parts, so that the core that writes the page serves other clients in between.

mod region;
pub(super) mod encode;

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nearstate_node::executor::{ExecutorStats, TaskClass};
use nearstate_node::{Core, CoreStats, NodeMetrics, NodeStats};
use nearstate_nudsf::NudsfMetrics;
use nearstate_observe::{MetricsReport, ObserveSource};
use nearstate_resp::server::RespServer;
use nearstate_store::{Region, Session};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;

use super::region_file::ServedFile;
use crate::record_counts::RecordCounter;
use encode::{counter, counters, gauge, gauges, histograms, seconds};

/// The sources of the metrics. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct ServerMetrics(Arc<MetricSources>);

#[derive(Debug)]
struct MetricSources {
    region: Region,
    server: Arc<RespServer>,
    nudsf: Arc<NudsfMetrics>,
    /// Set before the node is started.
    file: OnceLock<Arc<ServedFile>>,
    /// Set when the node has started.
    node: OnceLock<NodeMetrics>,
    is_ending: AtomicBool,
    /// Locked for one slice of counting, and while the namespaces are written.
    records: Mutex<RecordCounter>,
}

impl ServerMetrics {
    pub(crate) fn new(region: Region, server: Arc<RespServer>) -> Self {
        let (node, is_ending) = (OnceLock::new(), AtomicBool::new(false));
        let (nudsf, records, file) = (Arc::default(), Mutex::default(), OnceLock::new());
        Self(Arc::new(MetricSources { region, server, nudsf, file, node, is_ending, records }))
    }

    /// Tells whether the region's file has its name.
    pub(crate) fn set_file(&self, file: Arc<ServedFile>) {
        let _ = self.0.file.set(file);
    }

    /// The counters of the data repository.
    pub(crate) fn nudsf(&self) -> &Arc<NudsfMetrics> {
        &self.0.nudsf
    }

    /// Marks the node as started.
    pub(crate) fn begin(&self, node: NodeMetrics) {
        let _ = self.0.node.set(node);
    }

    /// Marks the node as shutting down.
    pub(crate) fn end(&self) {
        self.0.is_ending.store(true, Ordering::Release);
    }

    fn nodes(&self) -> NodeStats {
        self.0.node.get().map(NodeMetrics::snapshot).unwrap_or_default()
    }

    fn records(&self) -> MutexGuard<'_, RecordCounter> {
        self.0.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObserveSource for ServerMetrics {
    fn report(&self, core: &Core) -> Box<dyn MetricsReport> {
        let (metrics, session) = (self.clone(), Rc::clone(core.session()));
        Box::new(MetricsPage { metrics, session, slices_left: SLICES_MAX, parts: PARTS.iter() })
    }

    fn readiness(&self) -> Result<(), String> {
        if self.0.is_ending.load(Ordering::Acquire) {
            return Err("shutting down".to_owned());
        }
        self.0.node.get().map(|_| ()).ok_or_else(|| "starting".to_owned())
    }
}

type PagePart = fn(&ServerMetrics, &mut DescriptorEncoder<'_>) -> fmt::Result;

/// The parts of the page. Each is written in one step.
const PARTS: &[PagePart] = &[
    build,
    connections,
    responses,
    tasks,
    polls,
    region::region,
    region::processes,
    region::namespaces,
    requests,
    commands,
    latencies,
    repository,
];

/// Maximum number of counting slices per page: two million records, some ten milliseconds. In
/// larger regions the next page continues, and this one shows the previous counts.
const SLICES_MAX: usize = 2048;

struct MetricsPage {
    metrics: ServerMetrics,
    /// The session of the core that writes the page.
    session: Rc<Session>,
    slices_left: usize,
    parts: std::slice::Iter<'static, PagePart>,
}

impl MetricsPage {
    /// Counts a slice of the region's records. False if counting is complete for this page.
    fn count(&mut self) -> bool {
        let has_more = self.slices_left > 0
            // The part about the region reports damage.
            && self.metrics.records().step(&self.session).unwrap_or(false);
        self.slices_left = if has_more { self.slices_left - 1 } else { 0 };
        has_more
    }
}

impl MetricsReport for MetricsPage {
    fn step(&mut self, text: &mut String) -> bool {
        if self.count() {
            return true;
        }
        let Some(part) = self.parts.next() else {
            let _ = encode_eof(text);
            return false;
        };
        let mut registry = Registry::with_prefix("nearstate");
        registry.register_collector(Box::new(PartCollector {
            metrics: self.metrics.clone(),
            part: *part,
        }));
        // Writing to a `String` cannot fail.
        let _ = encode_registry(text, &registry);
        true
    }
}

/// One part as a collector of the library.
struct PartCollector {
    metrics: ServerMetrics,
    part: PagePart,
}

impl fmt::Debug for PartCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PartCollector")
    }
}

impl Collector for PartCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        (self.part)(&self.metrics, &mut encoder)
    }
}

fn build(metrics: &ServerMetrics, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let settings = &metrics.0.server.settings;
    let labels = [("version", env!("CARGO_PKG_VERSION"))];
    gauges(
        to,
        "build_info",
        "Constant 1, labelled with the version of the program.",
        [(labels, 1_u64)],
    )?;
    let region = settings.region.clone();
    let labels = [("pid", settings.pid.to_string()), ("region", region)];
    gauges(
        to,
        "node_info",
        "Constant 1, labelled with the process id and the region's path.",
        [(labels, 1_u64)],
    )?;
    let help = "Start time of the node since the Unix epoch, in seconds.";
    gauge(to, "node_start_time_seconds", help, seconds(settings.started_ms * 1_000_000))
}

fn connections(metrics: &ServerMetrics, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let cores = metrics.nodes().cores;
    let of_cores = |value: &dyn Fn(&CoreStats) -> u64| {
        let numbered = cores.iter().enumerate();
        numbered.map(|(n, core)| ([("core", n.to_string())], value(core))).collect::<Vec<_>>()
    };
    let open = of_cores(&CoreStats::open);
    gauges(to, "core_connections", "Open connections.", open)?;
    let buffered = of_cores(&|core| core.bytes_buffered);
    let help = "Bytes buffered for connections: incomplete requests, unread replies, queues.";
    gauges(to, "core_bytes_buffered", help, buffered)?;
    for (at, (name, doc)) in CoreStats::DESCRIPTIONS.iter().enumerate() {
        let count = |core: &CoreStats| core.named().get(at).map_or(0, |(_, count)| *count);
        counters(to, &format!("core_{name}"), doc.trim(), of_cores(&count))?;
    }
    Ok(())
}

fn responses(metrics: &ServerMetrics, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let cores = metrics.nodes().cores.into_iter().enumerate();
    let values = cores.map(|(n, core)| ([("core", n.to_string())], core.response_nanos));
    let help = "Time from reading a socket to writing the replies to what was read.";
    histograms(to, "core_response_seconds", help, values)
}

type CountOf = fn(&ExecutorStats) -> u64;

fn tasks(metrics: &ServerMetrics, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let meters = metrics.nodes().executors;
    let kinds: [(&str, &str, CountOf); 7] = [
        ("iterations", "Iterations of the executor's loop.", |meter| meter.rounds),
        ("parks", "Times that the core went to sleep.", |meter| meter.parks),
        ("spins", "Times that the core busy-polled instead of sleeping.", |meter| meter.spins),
        ("background_slices", "Time slices given to background tasks.", |meter| meter.slices),
        ("remote_wakes", "Tasks woken by other threads.", |meter| meter.remote_wakes),
        ("long_polls", "Task polls longer than 1 ms.", |meter| meter.long_polls),
        ("stuck_polls", "Task polls reported as not returning.", |meter| meter.stuck),
    ];
    for (name, help, count) in kinds {
        let numbered = meters.iter().enumerate();
        let values = numbered.map(|(n, meter)| ([("core", n.to_string())], count(meter)));
        counters(to, &format!("executor_{name}"), help, values)?;
    }
    let busy = |meter: &ExecutorStats| meter.polls.iter().map(|polls| polls.sum).sum::<u64>();
    let numbered = meters.iter().enumerate();
    let values = numbered.map(|(n, meter)| ([("core", n.to_string())], seconds(busy(meter))));
    let help = "Time that the core spent in tasks, in seconds.";
    counters(to, "executor_busy_seconds", help, values)?;
    let mut by_name: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, count) in meters.iter().flat_map(|meter| &meter.long_by_name) {
        *by_name.entry(name).or_default() += count;
    }
    let values = by_name.into_iter().map(|(name, count)| ([("task", name)], count));
    counters(to, "executor_task_long_polls", "Long and stuck polls, by task.", values)?;
    let upkeep = metrics.0.server.upkeep_nanos.load(Ordering::Relaxed);
    let help = "Time spent on moving records together, on getting pages ahead of writers, and on \
                giving memory back, in seconds.";
    counter(to, "memory_upkeep_seconds", help, seconds(upkeep))
}

fn polls(metrics: &ServerMetrics, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let total = metrics.nodes().total().1;
    let name = |class: &TaskClass| [("class", format!("{class:?}").to_ascii_lowercase())];
    let values = TaskClass::ALL.iter().map(name).zip(total.polls);
    histograms(to, "executor_poll_seconds", "Duration of task polls, by class of task.", values)
}

fn requests(metrics: &ServerMetrics, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let server = &metrics.0.server;
    let (all, errors) = server.stats.requests();
    let read = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    let stats = &server.stats;
    let [hits, misses] = stats.hits_and_misses();
    for (name, help, value) in [
        ("requests", "RESP requests.", all),
        ("errors", "RESP requests with an error reply.", errors),
        ("connections", "RESP connections accepted.", read(&stats.connections)),
        ("messages_published", "Messages published.", read(&stats.published)),
        ("keyspace_hits", "Key reads that found a record.", hits),
        ("keyspace_misses", "Key reads that found no record.", misses),
        (
            "auth_failures",
            "Authentications with a wrong user or password.",
            server.auth_limit.failures(),
        ),
        (
            "auth_refusals",
            "Authentications refused without a check because of earlier failures.",
            server.auth_limit.refused(),
        ),
        (
            "slow_subscribers",
            "Subscribers disconnected because too many bytes were queued.",
            server.pubsub.budget.overruns(),
        ),
    ] {
        counter(to, &format!("resp_{name}"), help, value)?;
    }
    let clients = server.client_count() as u64;
    gauge(to, "resp_clients", "Connected clients.", clients)?;
    let waiting = server.pubsub.budget.bytes() as u64;
    gauge(to, "resp_pubsub_bytes", "Bytes of messages queued for subscribers.", waiting)?;
    let slow = server.slow_log_len() as u64;
    gauge(to, "resp_slowlog_entries", "Entries of the slow log.", slow)
}

fn commands(metrics: &ServerMetrics, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let all = metrics.0.server.stats.commands();
    let label = |name: &&'static str| [("command", *name)];
    let values = all.iter().map(|(name, tally)| (label(name), tally.calls));
    counters(to, "resp_command_calls", "Calls, by command.", values)?;
    let values = all.iter().map(|(name, tally)| (label(name), tally.failed));
    counters(to, "resp_command_errors", "Calls with an error reply, by command.", values)?;
    let values = all.iter().map(|(name, tally)| (label(name), tally.rejected));
    let help = "Requests that were rejected before the call, by command.";
    counters(to, "resp_command_rejections", help, values)?;
    let values = all.iter().map(|(name, tally)| (label(name), tally.micros));
    counters(
        to,
        "resp_command_microseconds",
        "Total duration of the calls, by command, in microseconds.",
        values,
    )
}

fn latencies(metrics: &ServerMetrics, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let all = metrics.0.server.stats.latencies();
    let values = all.map(|(class, seen)| ([("class", class.name())], seen));
    let help = "Duration of requests, by class of command.";
    histograms(to, "resp_request_seconds", help, values)
}

fn repository(metrics: &ServerMetrics, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let counts = metrics.0.nudsf.snapshot().into_iter();
    let values =
        counts.map(|(name, class, count)| ([("operation", name), ("status", class)], count));
    let help = "Responses of the data repository, by operation and class of status.";
    counters(to, "nudsf_responses", help, values)?;
    let counts = metrics.0.nudsf.notifications().into_iter();
    let values = counts.map(|(kind, result, count)| ([("kind", kind), ("result", result)], count));
    let help = "Notifications of the data repository, by kind and by what became of them.";
    counters(to, "nudsf_notifications", help, values)?;
    let counts = metrics.0.nudsf.notifier_events().into_iter();
    let values = counts.map(|(event, count)| ([("event", event)], count));
    let help = "Targets that failed, waits for a full region, transactions that the log lost \
                before they were notified, and timers and subscriptions that cannot expire.";
    counters(to, "nudsf_notifier_events", help, values)
}

#[cfg(test)]
mod tests;
