//! The page of metrics: what cores, region and protocol have counted, in the text form that
//! Prometheus reads. The counts stay where they are counted; here they are only read, part by part,
//! so that the core which writes the page serves others in between.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use nearstate_node::executor::{Class as TaskClass, MeterSeen};
use nearstate_node::metric::Distribution;
use nearstate_node::{CoreSeen, Gauges, NodeSeen};
use nearstate_observe::{Report, Source};
use nearstate_resp::server::Server;
use nearstate_store::Region;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

/// What is observed. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Observed(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    region: Region,
    server: Arc<Server>,
    /// There once the node serves.
    gauges: OnceLock<Gauges>,
    is_ending: AtomicBool,
}

impl Observed {
    pub(crate) fn new(region: Region, server: Arc<Server>) -> Self {
        let (gauges, is_ending) = (OnceLock::new(), AtomicBool::new(false));
        Self(Arc::new(Inner { region, server, gauges, is_ending }))
    }

    /// The node serves from now on.
    pub(crate) fn begin(&self, gauges: Gauges) {
        let _ = self.0.gauges.set(gauges);
    }

    /// The node is being shut down.
    pub(crate) fn end(&self) {
        self.0.is_ending.store(true, Ordering::Release);
    }

    fn nodes(&self) -> NodeSeen {
        self.0.gauges.get().map(Gauges::seen).unwrap_or_default()
    }
}

impl Source for Observed {
    fn report(&self) -> Box<dyn Report> {
        Box::new(Page { observed: self.clone(), parts: PARTS.iter() })
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
const PARTS: &[Part] =
    &[build, connections, turns, tasks, polls, region, requests, commands, latencies];

struct Page {
    observed: Observed,
    parts: std::slice::Iter<'static, Part>,
}

impl Report for Page {
    fn step(&mut self, text: &mut String) -> bool {
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

/// A counter without labels.
fn counter(to: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let mut one = to.encode_descriptor(name, help, None, MetricType::Counter)?;
    one.encode_counter::<NoLabelSet, _, f64>(&value, None)
}

/// A gauge without labels.
fn gauge(to: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    to.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
}

/// A family of counters.
fn counters<S: EncodeLabelSet>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (S, u64)>,
) -> fmt::Result {
    let mut family = to.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in values {
        family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&value, None)?;
    }
    Ok(())
}

/// A family of gauges.
fn gauges<S: EncodeLabelSet>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (S, u64)>,
) -> fmt::Result {
    let mut family = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        family.encode_family(&labels)?.encode_gauge(&value)?;
    }
    Ok(())
}

/// Bounds of the histograms' buckets, in nanoseconds: 1 us to 10 s, three to a power of ten.
const BOUNDS: [u64; 22] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
];

#[expect(clippy::cast_precision_loss, reason = "a bound is known to an eighth anyway")]
fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// How many values fall under each bound and above the one before; what is above all comes last.
fn buckets(distribution: &Distribution) -> Vec<(f64, u64)> {
    let mut counts: Vec<(f64, u64)> = BOUNDS.iter().map(|bound| (seconds(*bound), 0)).collect();
    counts.push((f64::INFINITY, 0));
    for (bound, count) in &distribution.counts {
        let at = BOUNDS.partition_point(|known| known < bound);
        if let Some((_, sum)) = counts.get_mut(at) {
            *sum += count;
        }
    }
    counts
}

/// A family of histograms of times.
fn histograms<S: EncodeLabelSet>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (S, Distribution)>,
) -> fmt::Result {
    let mut family = to.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (labels, seen) in values {
        let (sum, total) = (seconds(seen.sum), seen.total());
        let mut one = family.encode_family(&labels)?;
        one.encode_histogram::<NoLabelSet>(sum, total, &buckets(&seen), None)?;
    }
    Ok(())
}

fn build(_: &Observed, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let labels = [("version", env!("CARGO_PKG_VERSION"))];
    gauges(to, "build", "Always 1; what runs.", [(labels, 1)])
}

fn connections(observed: &Observed, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let cores = observed.nodes().cores;
    let of_cores = |value: &dyn Fn(&CoreSeen) -> u64| {
        let numbered = cores.iter().enumerate();
        numbered.map(|(n, core)| ([("core", n.to_string())], value(core))).collect::<Vec<_>>()
    };
    let open = of_cores(&CoreSeen::open);
    gauges(to, "core_connections", "Connections that are open.", open)?;
    for (at, (name, doc)) in CoreSeen::EXPLAINED.iter().enumerate() {
        let count = |core: &CoreSeen| core.named().get(at).map_or(0, |(_, count)| *count);
        counters(to, &format!("core_{name}"), doc.trim(), of_cores(&count))?;
    }
    Ok(())
}

fn turns(observed: &Observed, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let cores = observed.nodes().cores.into_iter().enumerate();
    let values = cores.map(|(n, core)| ([("core", n.to_string())], core.turn_nanos));
    let help = "From the read of a socket to the written answer.";
    histograms(to, "core_turn_seconds", help, values)
}

type CountOf = fn(&MeterSeen) -> u64;

fn tasks(observed: &Observed, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let meters = observed.nodes().meters;
    let kinds: [(&str, &str, CountOf); 7] = [
        ("rounds", "Rounds of a core's executor.", |meter| meter.rounds),
        ("parks", "Times that a core went to sleep.", |meter| meter.parks),
        ("looks", "Times that it looked for work instead.", |meter| meter.looks),
        ("slices", "Slices that background tasks got.", |meter| meter.slices),
        ("foreign_wakes", "Tasks woken by other threads.", |meter| meter.foreign_wakes),
        ("long_polls", "Polls that took too long.", |meter| meter.long_polls),
        ("stuck_polls", "Polls that did not seem to end.", |meter| meter.stuck),
    ];
    for (name, help, count) in kinds {
        let numbered = meters.iter().enumerate();
        let values = numbered.map(|(n, meter)| ([("core", n.to_string())], count(meter)));
        counters(to, &format!("executor_{name}"), help, values)?;
    }
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

/// Processes that are named. More are a fleet, whose sum is told, too.
const PROCESSES_MAX: usize = 256;

fn region(observed: &Observed, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let Ok(seen) = observed.0.region.inspect() else {
        // A region that cannot be read any more: the rest of the page is worth more than an error.
        return gauge(to, "region_readable", "0: the region is damaged.", 0);
    };
    gauge(to, "region_readable", "0: the region is damaged.", 1)?;
    let pinned = seen.members.iter().filter_map(|member| member.pinned_epoch).min();
    let oldest = pinned.map_or(0, |epoch| seen.epoch.saturating_sub(epoch));
    let alive = seen.members.iter().filter(|member| member.is_alive).count() as u64;
    let dead = seen.members.len() as u64 - alive;
    for (name, help, value) in [
        ("bytes_max", "The most bytes that records and index may fill.", seen.bytes_max),
        ("bytes_taken", "Bytes of the heap that were ever taken.", seen.bytes_taken),
        ("bytes_on_disk", "Bytes that the file has of its file system.", seen.bytes_on_disk),
        ("epoch", "The epoch of reclamation.", seen.epoch),
        ("oldest_pin_epochs", "How many epochs the oldest pin is behind; 0: none is.", oldest),
        ("sessions", "Sessions of living processes, this one included.", alive),
        ("sessions_dead", "Sessions of dead processes that nobody has met yet.", dead),
        ("namespaces", "Namespaces, hidden ones included.", seen.namespaces.len() as u64),
    ] {
        gauge(to, &format!("region_{name}"), help, value)?;
    }
    let mut processes: BTreeMap<(u32, &str), u64> = BTreeMap::new();
    for member in seen.members.iter().filter(|member| member.is_alive) {
        *processes.entry((member.process.pid, &member.process.name)).or_default() += 1;
    }
    let values = processes.into_iter().take(PROCESSES_MAX).map(|((pid, name), sessions)| {
        ([("pid", pid.to_string()), ("name", name.to_owned())], sessions)
    });
    gauges(to, "region_process_sessions", "Sessions of each living process.", values)?;
    // Hidden ones begin with the byte 1.
    let shown = seen.namespaces.iter().filter(|namespace| namespace.name.first() != Some(&1));
    let values = shown.map(|namespace| {
        let name = String::from_utf8_lossy(&namespace.name).into_owned();
        ([("namespace", name)], namespace.buckets)
    });
    gauges(to, "namespace_buckets", "Buckets of seven entries of a namespace's index.", values)
}

fn requests(observed: &Observed, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let server = &observed.0.server;
    let (all, refused) = server.tallies.requests();
    let read = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    let tallies = &server.tallies;
    for (name, help, value) in [
        ("requests", "Requests of Redis' protocol.", all),
        ("errors", "Of these, answered with an error.", refused),
        ("connections", "Connections that came.", read(&tallies.connections)),
        ("published", "Messages published.", read(&tallies.published)),
    ] {
        counter(to, &format!("resp_{name}"), help, value)?;
    }
    let clients = server.client_count() as u64;
    gauge(to, "resp_clients", "Clients that are connected.", clients)?;
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
