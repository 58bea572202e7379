//! `bench run nudsf`: the data repository of 3GPP over HTTP/2, beside a bare hyper service that
//! answers the same bytes from memory, and beside a Redis hash with an index of its own.
//!
//! ```text
//! first processor: one server at a time              last processor: h2load, redis-benchmark
//! node | bare | redis                    <--- TCP ---
//! ```
//!
//! Every round runs each case once on each server, in alternating order. Beside the rate, the
//! processor time of the server for one request is reported: other programs on the machine change
//! it much less than the rate.

mod timers;
mod report;
mod load;
mod servers;
mod bare;
mod cases;
pub mod result;

pub use bare::serve as serve_bare;
pub use report::{page, text};

use crate::machine::Machine;
use crate::options::Options;
use crate::peers;
use crate::progress::Display;
use crate::run_frame::RunFrame;
use crate::targets::DatabaseSpec;
use crate::{cpus, processes};
use cases::{CASES, CaseKind, LoadCase};
use load::Load;
use nearstate_model::Result;
use result::{CaseResult, FORMAT, LoadRound, MemoryResult, NudsfRun, ServerKind};
use servers::Servers;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// The word of the command line.
pub const NAME: &str = "nudsf";

/// Its entry in the list of workloads.
pub const ABOUT: &str = "nudsf: operations of the 3GPP data repository over HTTP/2 (h2load), \
    beside a bare hyper service and a Redis hash with an index; timers; memory with many streams; \
    options: --targets (get, put, block, search, large, memory, timers), --ops (requests of a \
    case), --records (records, and timers), --rounds, --save, --report, --json";

/// Requests of a case and round.
const REQUESTS: u64 = 20_000;

/// Records of the storage: those of the issue's search.
const RECORDS: u64 = 100_000;

/// Timers of the case `timers`.
const TIMERS: u64 = 100_000;

/// The cases that are not loads.
const MEMORY: &str = "memory";
const TIMERS_CASE: &str = "timers";

/// The options that have a meaning here.
pub const OPTIONS: [&str; 7] =
    ["--targets", "--ops", "--records", "--rounds", "--save", "--report", "--json"];

/// True if a case is to be run.
fn is_chosen(options: &Options, name: &str) -> bool {
    options.targets.is_empty() || options.targets.iter().any(|chosen| chosen == name)
}

fn check_cases(options: &Options) -> Result<()> {
    let known = CASES.iter().map(|case| case.name).chain([MEMORY, TIMERS_CASE]);
    let known: Vec<&str> = known.collect();
    match options.targets.iter().find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => {
            Err(bad_argument!("{NAME} has no case {name:?}: it has {}", known.join(", ")))
        }
    }
}

/// The first processor for servers, the last for clients.
fn processors() -> Result<(usize, usize)> {
    let allowed = cpus::allowed().unwrap_or_default();
    match (allowed.first(), allowed.last()) {
        (Some(first), Some(last)) => Ok((*first, *last)),
        _ => Err(backend_error!("no processor may be used")),
    }
}

/// Measures every chosen case.
///
/// # Errors
/// `BadArgument`: an unknown case, or h2load is not installed. `Backend`: a server ended.
pub fn measure(options: &Options, command: &str, stop: &'static AtomicBool) -> Result<NudsfRun> {
    check_cases(options)?;
    let h2load = peers::program("h2load").ok_or_else(|| {
        bad_argument!("h2load is not installed: install the package nghttp2-client")
    })?;
    let (server_cpu, client_cpu) = processors()?;
    let records = options.records.unwrap_or(RECORDS);
    let spec = DatabaseSpec {
        folder: PathBuf::from("/dev/shm"),
        server_cpus: vec![server_cpu],
        stop: Some(stop),
        ..DatabaseSpec::default()
    };
    let chosen: Vec<&LoadCase> =
        CASES.iter().filter(|case| is_chosen(options, case.name)).collect();
    let rounds = usize::try_from(options.rounds).unwrap_or(1);
    let machine = Machine::detect();
    let display = Display::new(rounds * chosen.len() * ServerKind::ALL.len());
    display.print(&format!("{NAME} on {}", machine.line()));
    let mut frame = RunFrame::begin(command, &machine);
    frame.caveats.extend(caveats((server_cpu, client_cpu)));
    let timers = options.records.unwrap_or(TIMERS);
    let has_loads = !chosen.is_empty() || is_chosen(options, MEMORY);
    let mut servers = Servers::start(&spec, if has_loads { records } else { 10 }, timers)?;
    let load = Load { h2load, cpu: client_cpu, folder: servers.folder().to_owned() };
    let requests = options.ops.unwrap_or(REQUESTS);
    let cases = run_cases(&chosen, (rounds, requests), (&mut servers, &load), &display, stop)?;
    servers.check_content()?;
    let memory =
        is_chosen(options, MEMORY).then(|| run_memory(&servers, &load, requests)).transpose()?;
    let timers = is_chosen(options, TIMERS_CASE).then(|| timers::run(&servers, &load, timers));
    let timers = timers.transpose()?;
    display.finish();
    frame.is_partial = stop.load(Ordering::Relaxed);
    Ok(NudsfRun { nudsf_format: FORMAT, frame, records, requests, cases, memory, timers })
}

fn run_cases(
    chosen: &[&LoadCase],
    (rounds, requests): (usize, u64),
    (servers, load): (&mut Servers, &Load),
    display: &Display,
    stop: &AtomicBool,
) -> Result<Vec<CaseResult>> {
    let mut results: Vec<CaseResult> = chosen.iter().map(|case| case.result()).collect();
    for round in 0..rounds {
        for (case, result) in chosen.iter().zip(&mut results) {
            let mut order = ServerKind::ALL;
            if round % 2 == 1 {
                order.reverse();
            }
            for kind in order {
                if stop.load(Ordering::Relaxed) {
                    return Ok(results);
                }
                let title = format!("{}, {}, round {}", case.name, kind.name(), round + 1);
                let progress = display.begin(title, requests);
                let measured = run_case(case, kind, (servers, load), requests)?;
                progress.finish_run(&format!("{:.0} requests/s", measured.rate));
                result.rounds_of(kind).push(measured);
            }
        }
    }
    Ok(results)
}

/// One load on one server: the rate, and the processor time of the server.
fn run_case(
    case: &LoadCase,
    kind: ServerKind,
    (servers, load): (&Servers, &Load),
    requests: u64,
) -> Result<LoadRound> {
    let requests = (requests / case.divisor).max(100);
    let process = [servers.process(kind)];
    let (is_redis, is_put) = (kind == ServerKind::Redis, case.kind == CaseKind::PutRecord);
    if is_put && !is_redis {
        load.prepare_puts(servers.port(kind))?;
    }
    let before = processes::cpu_ns(&process);
    let rate = match kind {
        ServerKind::Redis => load.redis(servers, case, requests)?,
        ServerKind::Node | ServerKind::Bare if is_put => load.puts(servers.port(kind), requests)?,
        ServerKind::Node | ServerKind::Bare => load.http(servers.port(kind), case, requests)?,
    };
    let cpu_ns = processes::cpu_ns(&process).saturating_sub(before);
    Ok(LoadRound { rate, cpu_ns_per_request: cpu_ns / requests })
}

/// The memory of the node, which is not that of its region, under 1,000 connections of 100 streams.
fn run_memory(servers: &Servers, load: &Load, requests: u64) -> Result<MemoryResult> {
    let process = [servers.process(ServerKind::Node)];
    let before_bytes = processes::own_memory_bytes(&process);
    let (connections, streams) = (1000, 100);
    let requests = requests.max(connections * streams);
    let mut peak_bytes = before_bytes;
    let port = servers.port(ServerKind::Node);
    load.many(port, (connections, streams), requests, || {
        peak_bytes = peak_bytes.max(processes::own_memory_bytes(&process));
    })?;
    Ok(MemoryResult { connections, streams, requests, before_bytes, peak_bytes })
}

fn caveats((server, client): (usize, usize)) -> Vec<String> {
    let mut out = Vec::new();
    if server == client {
        out.push("servers and clients share the only processor".to_owned());
    }
    out.push(
        "redis speaks RESP, with as many commands in flight, and reads one record; a put is a Lua \
         script, because a hash and its index have no other common command"
            .to_owned(),
    );
    out.push(
        "h2 writes a body of 1 KiB or more by itself: a system call of the bare service, a copy in \
         the node, which writes all of a connection at once"
            .to_owned(),
    );
    out
}
