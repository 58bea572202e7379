//! The page of metrics: what cores, region and protocol have counted, in the text form that
//! Prometheus reads. The counts stay where they are counted; here they are only read, part by part,
//! so that the core which writes the page serves others in between.

mod of_region;
mod form;

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nearstate_node::executor::{ExecutorStats, TaskClass};
use nearstate_node::{Core, CoreStats, NodeMetrics, NodeStats};
use nearstate_observe::{Report, Source};
use nearstate_resp::server::Server;
use nearstate_store::{Region, Session};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;

use crate::census::Census;
use form::{counter, counters, gauge, gauges, histograms, seconds};

/// What is observed. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Observed(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    region: Region,
    server: Arc<Server>,
    /// There once the node serves.
    gauges: OnceLock<NodeMetrics>,
    is_ending: AtomicBool,
    /// Held for a slice of counting, and while its part of the page is written.
    census: Mutex<Census>,
}

impl Observed {
    pub(crate) fn new(region: Region, server: Arc<Server>) -> Self {
        let (gauges, is_ending) = (OnceLock::new(), AtomicBool::new(false));
        let census = Mutex::default();
        Self(Arc::new(Inner { region, server, gauges, is_ending, census }))
    }

    /// The node serves from now on.
    pub(crate) fn begin(&self, gauges: NodeMetrics) {
        let _ = self.0.gauges.set(gauges);
    }

    /// The node is being shut down.
    pub(crate) fn end(&self) {
        self.0.is_ending.store(true, Ordering::Release);
    }

    fn nodes(&self) -> NodeStats {
        self.0.gauges.get().map(NodeMetrics::snapshot).unwrap_or_default()
    }

    fn census(&self) -> MutexGuard<'_, Census> {
        self.0.census.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source for Observed {
    fn report(&self, core: &Core) -> Box<dyn Report> {
        let (observed, session) = (self.clone(), Rc::clone(core.session()));
        Box::new(Page { observed, session, slices_left: SLICES_MAX, parts: PARTS.iter() })
    }

    fn readiness(&self) -> Result<(), String> {
        if self.0.is_ending.load(Ordering::Acquire) {
            return Err("shutting down".to_owned());
        }
        self.0.gauges.get().map(|_| ()).ok_or_else(|| "starting".to_owned())
    }
}

type Part = fn(&Observed, &mut DescriptorEncoder<'_>) -> fmt::Result;

/// Each is written in one step.
const PARTS: &[Part] = &[
    build,
    connections,
    turns,
    tasks,
    polls,
    of_region::region,
    of_region::processes,
    of_region::namespaces,
    requests,
    commands,
    latencies,
];

/// Slices of records that one page counts, two millions in some ten milliseconds. Where there are
/// more the next page goes on, and this one tells what was counted last.
const SLICES_MAX: usize = 2048;

struct Page {
    observed: Observed,
    /// Of the core that writes the page.
    session: Rc<Session>,
    slices_left: usize,
    parts: std::slice::Iter<'static, Part>,
}

impl Page {
    /// Counts a slice of the region's records. False if that is enough for this page.
    fn count(&mut self) -> bool {
        let has_more = self.slices_left > 0
            // What is damaged is told by the part about the region.
            && self.observed.census().step(&self.session).unwrap_or(false);
        self.slices_left = if has_more { self.slices_left - 1 } else { 0 };
        has_more
    }
}

impl Report for Page {
    fn step(&mut self, text: &mut String) -> bool {
        if self.count() {
            return true;
        }
        let Some(part) = self.parts.next() else {
            let _ = encode_eof(text);
            return false;
        };
        let mut registry = Registry::with_prefix("nearstate");
        registry.register_collector(Box::new(One { observed: self.observed.clone(), part: *part }));
        // Writing to a String does not fail.
        let _ = encode_registry(text, &registry);
        true
    }
}

/// One part, as the library wants it.
struct One {
    observed: Observed,
    part: Part,
}

impl fmt::Debug for One {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("One")
    }
}

impl Collector for One {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        (self.part)(&self.observed, &mut encoder)
    }
}

fn build(observed: &Observed, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let settings = &observed.0.server.settings;
    let labels = [("version", env!("CARGO_PKG_VERSION"))];
    gauges(to, "build", "Always 1; what runs.", [(labels, 1_u64)])?;
    let region = settings.region.clone();
    let labels = [("pid", settings.pid.to_string()), ("region", region)];
    gauges(to, "node", "Always 1; the process and its region.", [(labels, 1_u64)])?;
    let help = "When the node began, in seconds since 1970.";
    gauge(to, "node_start_time_seconds", help, seconds(settings.started_ms * 1_000_000))
}

fn connections(observed: &Observed, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let cores = observed.nodes().cores;
    let of_cores = |value: &dyn Fn(&CoreStats) -> u64| {
        let numbered = cores.iter().enumerate();
        numbered.map(|(n, core)| ([("core", n.to_string())], value(core))).collect::<Vec<_>>()
    };
    let open = of_cores(&CoreStats::open);
    gauges(to, "core_connections", "Connections that are open.", open)?;
    for (at, (name, doc)) in CoreStats::DESCRIPTIONS.iter().enumerate() {
        let count = |core: &CoreStats| core.named().get(at).map_or(0, |(_, count)| *count);
        counters(to, &format!("core_{name}"), doc.trim(), of_cores(&count))?;
    }
    Ok(())
}

fn turns(observed: &Observed, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let cores = observed.nodes().cores.into_iter().enumerate();
    let values = cores.map(|(n, core)| ([("core", n.to_string())], core.response_nanos));
    let help = "Time from a read of a socket or ring to the written replies.";
    histograms(to, "core_response_seconds", help, values)
}

type CountOf = fn(&ExecutorStats) -> u64;

fn tasks(observed: &Observed, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let meters = observed.nodes().executors;
    let kinds: [(&str, &str, CountOf); 7] = [
        ("rounds", "Rounds of a core's executor.", |meter| meter.rounds),
        ("parks", "Times that a core went to sleep.", |meter| meter.parks),
        ("spins", "Times that a core busy-polled before a possible sleep.", |meter| meter.spins),
        ("slices", "Slices that background tasks got.", |meter| meter.slices),
        ("remote_wakes", "Tasks woken by other threads.", |meter| meter.remote_wakes),
        ("long_polls", "Polls that took too long.", |meter| meter.long_polls),
        ("stuck_polls", "Polls that did not seem to end.", |meter| meter.stuck),
    ];
    for (name, help, count) in kinds {
        let numbered = meters.iter().enumerate();
        let values = numbered.map(|(n, meter)| ([("core", n.to_string())], count(meter)));
        counters(to, &format!("executor_{name}"), help, values)?;
    }
    let busy = |meter: &ExecutorStats| meter.polls.iter().map(|polls| polls.sum).sum::<u64>();
    let numbered = meters.iter().enumerate();
    let values = numbered.map(|(n, meter)| ([("core", n.to_string())], seconds(busy(meter))));
    let help = "Time that a core has spent in tasks, in seconds.";
    counters(to, "executor_busy_seconds", help, values)?;
    let mut by_name: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, count) in meters.iter().flat_map(|meter| &meter.long_by_name) {
        *by_name.entry(name).or_default() += count;
    }
    let values = by_name.into_iter().map(|(name, count)| ([("task", name)], count));
    counters(to, "executor_long_polls_of_task", "Long and stuck polls, by task.", values)
}

fn polls(observed: &Observed, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let total = observed.nodes().total().1;
    let name = |class: &TaskClass| [("class", format!("{class:?}").to_ascii_lowercase())];
    let values = TaskClass::ALL.iter().map(name).zip(total.polls);
    histograms(to, "executor_poll_seconds", "How long polls of tasks took, by class.", values)
}

fn requests(observed: &Observed, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let server = &observed.0.server;
    let (all, refused) = server.tallies.requests();
    let read = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    let tallies = &server.tallies;
    let [hits, misses] = tallies.found();
    for (name, help, value) in [
        ("requests", "Requests of Redis' protocol.", all),
        ("errors", "Of these, answered with an error.", refused),
        ("connections", "Connections that came.", read(&tallies.connections)),
        ("published", "Messages published.", read(&tallies.published)),
        ("keyspace_hits", "Reads of keys that found a record.", hits),
        ("keyspace_misses", "Reads of keys that found none.", misses),
        ("overrun_subscribers", "Subscribers closed: too much waited.", server.hub.post.overruns()),
    ] {
        counter(to, &format!("resp_{name}"), help, value)?;
    }
    let clients = server.client_count() as u64;
    gauge(to, "resp_clients", "Clients that are connected.", clients)?;
    let waiting = server.hub.post.bytes() as u64;
    gauge(to, "resp_messages_bytes", "Bytes of messages that wait for subscribers.", waiting)?;
    let slow = server.slow_count() as u64;
    gauge(to, "resp_slow_entries", "Entries of the slow log.", slow)
}

fn commands(observed: &Observed, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let all = observed.0.server.tallies.commands();
    let label = |name: &&'static str| [("command", *name)];
    let values = all.iter().map(|(name, tally)| (label(name), tally.calls));
    counters(to, "resp_calls", "Calls of each command.", values)?;
    let values = all.iter().map(|(name, tally)| (label(name), tally.failed));
    counters(to, "resp_failed_calls", "Calls that answered with an error.", values)?;
    let values = all.iter().map(|(name, tally)| (label(name), tally.micros));
    counters(to, "resp_call_microseconds", "Time that the calls took, in all.", values)
}

fn latencies(observed: &Observed, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let all = observed.0.server.tallies.latencies();
    let values = all.map(|(class, seen)| ([("class", class.name())], seen));
    let help = "How long requests took from their begin to their answer, by class of command.";
    histograms(to, "resp_request_seconds", help, values)
}

#[cfg(test)]
mod tests;
