//! The node beside Redis: the same requests of the same clients, in turns.

use super::rival::{Program, Rival, Way};
use super::traffic::{Asked, Link, Records, Traffic};
use crate::legacy::place::{self, Places};
use crate::legacy::protocol::monotonic_ns;
use crate::stat::{Latencies, median};
use crate::table::{Align, Table, ratio_text};
use nearstate_model::{Error, Result};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Clients that ask at the same time, where it is not said otherwise.
const CLIENTS: usize = 50;

/// Requests that a client sends at once, where they are pipelined.
const PIPELINE: usize = 16;

/// Clients that ask for records while another one walks over all of them.
const SCANNED: usize = 10;

/// Keys of one step of that walk.
const SCAN_COUNT: u64 = 10_000;

/// Connections that ask nothing.
const IDLE: usize = 1000;

/// How long idle connections are looked at. With a node's housekeeping once a second, some of it is
/// seen.
const IDLE_TIME: Duration = Duration::from_secs(3);

/// Records take this much of a region beyond key and value, and some space is for growth.
const RECORD_ROOM: u64 = 1024;

/// The smallest region that is made.
const REGION_BYTES_MIN: u64 = 256 << 20;

/// How to compare.
#[derive(Clone, Debug)]
pub struct Method {
    /// How often each measure is taken.
    pub rounds: u64,
    /// Numbers of records; the first is that of most measures, the last that of the pipelines too.
    pub keys: Vec<u64>,
    /// Size of a value, in bytes.
    pub value_bytes: u64,
    /// Requests of a turn; a turn with pipelines has four times as many.
    pub requests: u64,
    /// Folder in memory for sockets and the region.
    pub dir: PathBuf,
    /// Where chance comes from.
    pub seed: u64,
    /// Where servers and clients run.
    pub places: Places,
}

/// What is judged.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Goal {
    None,
    AtMost(f64),
    AtLeast(f64),
    /// The node's own figure.
    OursAtMost(f64),
}

impl Goal {
    fn text(self, ours: f64, ratio: f64) -> (String, &'static str) {
        let word = |is_met| if is_met { "met" } else { "missed" };
        match self {
            Self::None => (String::new(), ""),
            Self::AtMost(most) => (format!("<= {most}"), word(ratio <= most)),
            Self::OursAtMost(most) => (format!("node <= {most}"), word(ours <= most)),
            Self::AtLeast(least) => (format!(">= {least}"), word(ratio >= least)),
        }
    }
}

/// One figure of each server.
#[derive(Clone, Debug)]
struct Line {
    what: String,
    unit: &'static str,
    goal: Goal,
    /// As long as the list of programs; each with a figure for each round.
    arms: Vec<(Program, Vec<f64>)>,
}

impl Line {
    /// Ours by theirs, round by round.
    fn ratios(&self) -> Vec<f64> {
        let (Some((_, ours)), Some((_, theirs))) = (self.arms.first(), self.arms.get(1)) else {
            return Vec::new();
        };
        ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs.max(f64::MIN_POSITIVE)).collect()
    }
}

/// A kind of load.
#[derive(Clone, Copy, Debug)]
struct Load {
    way: Way,
    asked: Asked,
    clients: usize,
    pipeline: usize,
    /// For the server's time for a request, and for requests in a second.
    goals: [Goal; 2],
}

/// What the node is judged by.
const LOADS: [Load; 6] = {
    const ONE: Load = Load {
        way: Way::Tcp,
        asked: Asked::Get,
        clients: CLIENTS,
        pipeline: 1,
        goals: [Goal::AtMost(0.8), Goal::AtLeast(1.2)],
    };
    const UNIX: Load =
        Load { way: Way::Unix, goals: [Goal::AtMost(0.72), Goal::AtLeast(1.4)], ..ONE };
    const NONE: [Goal; 2] = [Goal::None, Goal::None];
    const MANY: Load = Load { pipeline: PIPELINE, ..ONE };
    [
        ONE,
        Load { asked: Asked::Set, goals: NONE, ..ONE },
        UNIX,
        Load { asked: Asked::Set, goals: NONE, ..UNIX },
        Load { goals: [Goal::None, Goal::AtLeast(2.6)], ..MANY },
        Load { asked: Asked::Set, goals: [Goal::AtMost(0.55), Goal::None], ..MANY },
    ]
};

/// Compares, and tells the tables. `say` is told what is being done.
///
/// # Errors
/// `System`, `Backend`: a server does not start, or does not answer as it should.
pub fn run(method: &Method, say: &mut dyn FnMut(&str)) -> Result<Vec<Table>> {
    let mut tables = Vec::new();
    for (at, keys) in method.keys.iter().enumerate() {
        let mut lines = Vec::new();
        let programs = [Program::Node, Program::Redis, Program::Valkey];
        let rivals = start(method, *keys, &programs, say)?;
        let records = &mut Records::new(*keys, method.value_bytes, method.seed);
        for load in LOADS {
            let load = if at == 0 {
                load
            } else if load.pipeline > 1 && load.asked == Asked::Get {
                Load { goals: [Goal::None, Goal::AtLeast(2.8)], ..load }
            } else {
                continue;
            };
            lines.extend(under(method, load, &rivals, records, say)?);
        }
        if at == 0 {
            lines.push(idle(&rivals, say)?);
            let programs = [Program::NodeLooking];
            let looking = start(method, *keys, &programs, say)?;
            lines.extend(alone(method, &looking, &rivals, records, say)?);
        }
        if at + 1 == method.keys.len() {
            lines.push(walked(method, &rivals, records, say)?);
        }
        tables.push(table(*keys, &lines));
    }
    Ok(tables)
}

/// Those servers that are installed, loaded, all on the processor of companions.
fn start(
    method: &Method,
    keys: u64,
    programs: &[Program],
    say: &mut dyn FnMut(&str),
) -> Result<Vec<Rival>> {
    let bytes = keys * (method.value_bytes * 3 / 2 + RECORD_ROOM) + REGION_BYTES_MIN;
    let mut rivals = Vec::new();
    for program in programs {
        let Some(version) = program.version() else {
            say(&format!("{} is left out: it is not installed", program.name()));
            continue;
        };
        say(&format!("loading {keys} records into {version}"));
        place::pin(method.places.companion);
        let rival = Rival::start(*program, &method.dir, bytes);
        place::pin(method.places.measuring);
        let rival = rival?;
        Records::new(keys, method.value_bytes, method.seed).load(&mut rival.link(Way::Unix)?)?;
        rivals.push(rival);
    }
    Ok(rivals)
}

#[expect(clippy::cast_precision_loss, reason = "counts and nanoseconds of a run are below 2^53")]
fn under(
    method: &Method,
    load: Load,
    rivals: &[Rival],
    records: &mut Records,
    say: &mut dyn FnMut(&str),
) -> Result<[Line; 2]> {
    let Load { way, asked, clients, pipeline, goals } = load;
    let mut what = format!("{} over {}, {clients} clients", asked.name(), way.name());
    if pipeline > 1 {
        what = format!("{what}, pipelines of {pipeline}");
    }
    say(&what);
    let arms = || rivals.iter().map(|rival| (rival.program, Vec::new())).collect::<Vec<_>>();
    let (mut costs, mut rates) = (arms(), arms());
    let requests = if pipeline > 1 { method.requests * 4 } else { method.requests };
    for _ in 0..method.rounds {
        for (rival, (cost, rate)) in rivals.iter().zip(costs.iter_mut().zip(&mut rates)) {
            let links = (0..clients).map(|_| rival.link(way)).collect::<Result<_>>()?;
            let mut traffic = Traffic::new(records, links, asked, pipeline);
            traffic.run(requests / 10, None)?;
            let (cpu, wall) = (rival.cpu_ns()?, monotonic_ns());
            let done = traffic.run(requests, None)? as f64;
            let (wall, cpu) = (monotonic_ns() - wall, rival.cpu_ns()? - cpu);
            cost.1.push(cpu as f64 / done);
            rate.1.push(done * 1e6 / wall as f64);
        }
    }
    let [cost_goal, rate_goal] = goals;
    let cost_what = format!("{what}: server's time for a request");
    Ok([
        Line { what: cost_what, unit: "ns", goal: cost_goal, arms: costs },
        Line { what: format!("{what}: throughput"), unit: "k/s", goal: rate_goal, arms: rates },
    ])
}

/// One client that waits for each answer; the node looks for the next request all the while.
#[expect(clippy::cast_precision_loss, reason = "nanoseconds of a request are below 2^53")]
fn alone(
    method: &Method,
    looking: &[Rival],
    others: &[Rival],
    records: &mut Records,
    say: &mut dyn FnMut(&str),
) -> Result<Vec<Line>> {
    let rivals = || looking.iter().chain(others.iter().skip(1));
    let mut lines = Vec::new();
    for way in [Way::Tcp, Way::Unix] {
        let what = format!("GET over {}, one client, the node looking: median", way.name());
        say(&what);
        let mut arms: Vec<(Program, Vec<f64>)> =
            rivals().map(|rival| (rival.program, Vec::new())).collect();
        for _ in 0..method.rounds {
            for (rival, arm) in rivals().zip(&mut arms) {
                let mut traffic = Traffic::new(records, vec![rival.link(way)?], Asked::Get, 1);
                traffic.run(method.requests / 10, None)?;
                let mut told = Latencies::new();
                traffic.run(method.requests / 4, Some(&mut told))?;
                arm.1.push(told.percentile(50.0) as f64 / 1000.0);
            }
        }
        let goal = if way == Way::Tcp { Goal::OursAtMost(10.0) } else { Goal::None };
        lines.push(Line { what, unit: "us", goal, arms });
    }
    Ok(lines)
}

/// What connections cost that ask nothing, in thousandths of a processor.
#[expect(clippy::cast_precision_loss, reason = "nanoseconds of some seconds are below 2^53")]
fn idle(rivals: &[Rival], say: &mut dyn FnMut(&str)) -> Result<Line> {
    say(&format!("{IDLE} idle connections"));
    let mut arms = Vec::new();
    for rival in rivals {
        let mut links: Vec<_> = (0..IDLE).map(|_| rival.link(Way::Tcp)).collect::<Result<_>>()?;
        links.iter_mut().try_for_each(Link::ping)?;
        std::thread::sleep(IDLE_TIME / 3);
        let before = rival.cpu_ns()?;
        std::thread::sleep(IDLE_TIME);
        let ran = rival.cpu_ns()? - before;
        drop(links);
        arms.push((rival.program, vec![ran as f64 * 1000.0 / IDLE_TIME.as_nanos() as f64]));
    }
    let what = format!("{IDLE} idle connections: share of a processor");
    Ok(Line { what, unit: "per mille", goal: Goal::OursAtMost(0.5), arms })
}

/// What clients of single records notice of another that walks over all of them without a pause:
/// their median latency with it by that without it. Each server is its own measure.
#[expect(clippy::cast_precision_loss, reason = "nanoseconds of a request are below 2^53")]
fn walked(
    method: &Method,
    rivals: &[Rival],
    records: &mut Records,
    say: &mut dyn FnMut(&str),
) -> Result<Line> {
    let what = format!("GET over TCP, {SCANNED} clients: median beside SCAN / without");
    say(&what);
    let mut arms = Vec::new();
    for rival in rivals {
        let mut figures = Vec::new();
        for _ in 0..method.rounds {
            let mut median_of = |is_walked: bool| -> Result<f64> {
                let links = (0..SCANNED).map(|_| rival.link(Way::Tcp)).collect::<Result<_>>()?;
                let mut told = Latencies::new();
                let walk = if is_walked { Some(Walk::begin(rival.link(Way::Tcp)?)) } else { None };
                let mut traffic = Traffic::new(records, links, Asked::Get, 1);
                let outcome = traffic.run(method.requests / 4, Some(&mut told));
                walk.map_or(Ok(()), Walk::end).and(outcome)?;
                Ok(told.percentile(50.0) as f64)
            };
            let alone: f64 = median_of(false)?;
            figures.push(median_of(true)? / alone);
        }
        arms.push((rival.program, figures));
    }
    Ok(Line { what, unit: "times", goal: Goal::OursAtMost(1.3), arms })
}

/// A client that walks over all keys, again and again.
struct Walk {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Walk {
    fn begin(mut link: Link) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut cursor = 0;
            while !seen.load(Ordering::Relaxed) {
                cursor = link.scan(cursor, SCAN_COUNT)?;
            }
            Ok(())
        });
        Self { is_over, thread }
    }

    fn end(self) -> Result<()> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|_| {
            Err(Error::Backend { detail: "the client that walks has failed".to_owned() })
        })
    }
}

fn table(keys: u64, lines: &[Line]) -> Table {
    let names = lines.first().map(|line| &line.arms[..]).unwrap_or_default();
    let title = format!("{keys} records");
    let mut columns = vec![(title.as_str(), Align::Left)];
    columns.extend(names.iter().map(|(program, _)| (program.name(), Align::Right)));
    columns.extend([("unit", Align::Left), ("node / redis", Align::Right)]);
    columns.extend([("from", Align::Right), ("to", Align::Right)]);
    columns.extend([("goal", Align::Right), ("", Align::Left)]);
    let mut table = Table::new(&columns);
    for line in lines {
        let figures = names.iter().enumerate().map(|(at, _)| {
            line.arms.get(at).map_or(String::new(), |(_, all)| format!("{:.2}", median(all)))
        });
        let ratios = line.ratios();
        let ours = line.arms.first().map_or(0.0, |(_, all)| median(all));
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = ratios.iter().copied().fold(0.0, f64::max);
        let (goal, verdict) = line.goal.text(ours, median(&ratios));
        let mut row = vec![line.what.clone()];
        row.extend(figures);
        row.push(line.unit.to_owned());
        row.extend([median(&ratios), least, most].map(ratio_text));
        row.extend([goal, verdict.to_owned()]);
        table.row(row);
    }
    table
}
