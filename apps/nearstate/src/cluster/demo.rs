//! `nearstate cluster demo`: a cluster on this machine loses the owner's host under signalling. A
//! live view, and a page that shows the gap, the lag and what was verified.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;

use clap::Args;
use nearstate_bench::html::chart::{colour, lines};
use nearstate_bench::html::{Chart, HtmlBlock, Page};
use nearstate_bench::outputs;
use nearstate_bench::table::ReportTable;
use nearstate_local_cluster::NetworkKind;
use nearstate_model::{Error, Result};
use nearstate_torture::failovers::demo::{DemoMoment, DemoOptions, DemoResult, run as run_demo};
use nearstate_torture::failovers::signalling::ReleasedProcedure;
use nearstate_torture::spawn::ChildCommand;

use crate::torture::CHILD;

/// A bar of the chart of the rate, in nanoseconds.
const BUCKET_NS: u64 = 50_000_000;

/// Moments between two lines where the live view is not on a terminal.
const MOMENTS_PER_LINE: u32 = 20;

/// The options of the demonstration.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// The lease of the cluster in milliseconds
    #[arg(long, default_value_t = 300, value_name = "MS")]
    #[arg(value_parser = clap::value_parser!(u32).range(300..=2000))]
    lease_ms: u32,
    /// Write the page with the result to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Folder for regions and files, preferably in memory; a new folder is created in it
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    path: PathBuf,
}

/// Runs it. Returns the text of the result.
pub(crate) fn run(args: &DemoArgs) -> Result<String> {
    outputs::check(&[("--report", args.report.as_deref())], &[])?;
    let failed = |detail: String| Error::Backend { detail };
    let starter = ChildCommand::own(CHILD).map_err(failed)?;
    let program = std::env::current_exe().map_err(|error| failed(format!("own path: {error}")))?;
    let options = DemoOptions {
        lease_ms: args.lease_ms,
        program,
        folder: args.path.join(format!("nearstate-demo-{}", std::process::id())),
        network: NetworkKind::best(),
    };
    let mut view = LiveView::default();
    let done = run_demo(&options, &starter, &mut |moment| view.show(moment));
    LiveView::end();
    let result = done.map_err(failed)?;
    outputs::write_page(args.report.as_deref(), || page(&result, &options).html())?;
    Ok(summary(&result))
}

/// The moments, as one line that is written again, or as some lines.
#[derive(Debug, Default)]
struct LiveView {
    last_at: u64,
    moments: u32,
    part: &'static str,
    procedures: Vec<ReleasedProcedure>,
}

impl LiveView {
    fn show(&mut self, moment: &DemoMoment) {
        self.procedures.extend(moment.procedures.iter().copied());
        self.moments += 1;
        let is_new = moment.part != self.part;
        let is_terminal = std::io::stderr().is_terminal();
        if !is_new && self.moments < (if is_terminal { 4 } else { MOMENTS_PER_LINE }) {
            return;
        }
        let line = self.line(moment);
        let _ = if is_terminal {
            write!(std::io::stderr(), "\r\x1b[K{line}")
        } else {
            writeln!(std::io::stderr(), "{line}")
        };
        (self.last_at, self.moments, self.part) = (moment.at, 0, moment.part);
        self.procedures.clear();
    }

    fn line(&self, moment: &DemoMoment) -> String {
        let seconds = seconds(moment.at.saturating_sub(self.last_at).max(1));
        let rate = if self.last_at == 0 { 0.0 } else { as_f64(self.procedures.len()) / seconds };
        let hosts = moment.copies.iter().zip(["a", "b", "c"]).map(|(copy, name)| match copy {
            None => format!("{name} -"),
            Some(copy) => format!("{name} {} view {}", copy.role, copy.view),
        });
        let lag = percentile_us(&lags(&self.procedures), 99);
        format!(
            "{:<24} {rate:>6.0} procedures/s, lag p99 {lag:>6.0} us | {}",
            moment.part,
            hosts.collect::<Vec<_>>().join(" | ")
        )
    }

    fn end() {
        if std::io::stderr().is_terminal() {
            let _ = writeln!(std::io::stderr());
        }
    }
}

fn as_f64(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

fn seconds(ns: u64) -> f64 {
    std::time::Duration::from_nanos(ns).as_secs_f64()
}

/// From commit to replicated, in nanoseconds, sorted.
fn lags(procedures: &[ReleasedProcedure]) -> Vec<u64> {
    let mut lags: Vec<u64> =
        procedures.iter().map(|one| one.replicated.saturating_sub(one.committed)).collect();
    lags.sort_unstable();
    lags
}

fn percentile_us(sorted: &[u64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    seconds(sorted.get(rank - 1).copied().unwrap_or(0)) * 1e6
}

fn gap_ms(result: &DemoResult) -> f64 {
    seconds(result.gap_us * 1000) * 1e3
}

fn facts(result: &DemoResult) -> Vec<(String, String)> {
    let lags = lags(&result.procedures);
    let [old, new] = &result.owners;
    let lag = |percent| percentile_us(&lags, percent);
    [
        ("owner before and after", format!("{old}, {new}")),
        (
            "gap",
            format!("{:.0} ms from the last result of {old} to the first of {new}", gap_ms(result)),
        ),
        (
            "lag",
            format!(
                "from commit to replicated: p50 {:.0} us, p99 {:.0} us, max {:.0} us",
                lag(50),
                lag(99),
                lag(100)
            ),
        ),
        (
            "replicated writes lost",
            format!(
                "0 of {} procedures of which the result had left; {} contexts compared",
                result.procedures.len(),
                result.contexts
            ),
        ),
        (
            "divergent records",
            format!("0 of {} in each of 3 copies, with their versions", result.records),
        ),
        ("seconds", format!("{:.0}", result.seconds)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}

fn summary(result: &DemoResult) -> String {
    let lines = facts(result).into_iter().map(|(name, value)| format!("{name:<24} {value}\n"));
    lines.collect()
}

/// Procedures of each host in each bucket of time, as points of seconds and procedures per second.
fn rates(result: &DemoResult, host: usize) -> Vec<(f64, f64)> {
    let last = result.procedures.last().map_or(result.begin, |one| one.replicated);
    let buckets = usize::try_from((last - result.begin) / BUCKET_NS + 1).unwrap_or(0);
    let mut counts = vec![0_usize; buckets];
    for one in result.procedures.iter().filter(|one| one.host == host) {
        let at = usize::try_from(one.replicated.saturating_sub(result.begin) / BUCKET_NS);
        if let Some(count) = at.ok().and_then(|at| counts.get_mut(at)) {
            *count += 1;
        }
    }
    let width = seconds(BUCKET_NS);
    let point = |(at, count): (usize, usize)| (as_f64(at) * width, as_f64(count) / width);
    counts.into_iter().enumerate().map(point).collect()
}

/// The longest lag of each bucket of time, in nanoseconds.
fn lag_points(result: &DemoResult) -> Vec<(f64, f64)> {
    let mut longest = std::collections::BTreeMap::new();
    for one in &result.procedures {
        let at = one.replicated.saturating_sub(result.begin) / BUCKET_NS;
        let lag = one.replicated.saturating_sub(one.committed);
        let known = longest.entry(at).or_insert(0);
        *known = lag.max(*known);
    }
    let point = |(at, lag): (u64, u64)| (seconds(at * BUCKET_NS), seconds(lag) * 1e9);
    longest.into_iter().map(point).collect()
}

fn axis(title: &str, unit: lines::Unit, is_log: bool) -> lines::Axis {
    lines::Axis { title: title.to_owned(), unit, is_log }
}

fn charts(result: &DemoResult) -> Vec<Chart> {
    let x = || axis("seconds", lines::Unit::Number, false);
    let rules: Vec<f64> =
        result.events.iter().map(|event| seconds(event.at.saturating_sub(result.begin))).collect();
    let of_host = |host: usize| ["region", "redis", "node"].get(host).copied().unwrap_or("region");
    let line = |host: usize, points| lines::ChartLine {
        colour: colour(of_host(host)),
        stroke: lines::Stroke::Plain,
        marker: None,
        points,
    };
    let rate = lines::Lines {
        x: x(),
        y: axis("procedures per second", lines::Unit::Number, false),
        lines: (0..3).map(|host| line(host, rates(result, host))).collect(),
        rules: rules.clone(),
        y_range: None,
    };
    let lag = lines::Lines {
        x: x(),
        y: axis("longest lag in 50 ms", lines::Unit::Nanoseconds, true),
        lines: vec![line(0, lag_points(result))],
        rules,
        y_range: None,
    };
    let legend = ["a", "b", "c"].iter().enumerate();
    let legend = legend.map(|(host, name)| ((*name).to_owned(), colour(of_host(host))));
    vec![
        Chart {
            caption: "Procedures whose results have left, by the host of the process. Rules: the \
                      events of the table"
                .to_owned(),
            svg: lines::lines(&rate),
            legend: legend.collect(),
        },
        Chart {
            caption: "From a commit until a follower has it".to_owned(),
            svg: lines::lines(&lag),
            legend: Vec::new(),
        },
    ]
}

fn page(result: &DemoResult, options: &DemoOptions) -> Page {
    let place = match options.network {
        NetworkKind::Namespaces => "each in a network namespace of its own",
        NetworkKind::Loopback => "on addresses of the loopback interface",
    };
    let mut events = ReportTable::new(">seconds|event");
    for event in &result.events {
        let at = seconds(event.at.saturating_sub(result.begin));
        events.row(vec![format!("{at:.2}"), event.text.clone()]);
    }
    let mut blocks = vec![
        HtmlBlock::Heading("Result".to_owned()),
        HtmlBlock::Facts(facts(result)),
        HtmlBlock::Heading("Over time".to_owned()),
        HtmlBlock::Charts(charts(result)),
        HtmlBlock::Table(events),
        HtmlBlock::Heading("What was compared".to_owned()),
        HtmlBlock::List(vec![
            "Each process notes a procedure when its result may leave: when a follower has it. \
             Afterwards no UE has fewer procedures at the new owner than were noted."
                .to_owned(),
            "Procedures and their values depend on the UE and on the number of the procedure only, \
             so every context is computed again and compared byte by byte."
                .to_owned(),
            "All records of the three regions are compared with each other, with their versions."
                .to_owned(),
        ]),
    ];
    let logs = result.node_events.iter().map(|(name, lines)| {
        let title = format!("Events of the node of {name}");
        HtmlBlock::Details(title, vec![HtmlBlock::Code(lines.join("\n"))])
    });
    blocks.push(HtmlBlock::Heading("Events of the nodes".to_owned()));
    blocks.extend(logs);
    let [old, new] = &result.owners;
    Page {
        title: "nearstate: a cluster loses the owner's host".to_owned(),
        lead: format!(
            "Three nodes, {place}, with a lease of {} ms. Processes on each host run the \
             signalling of 1,000 UEs. {old}, which owns the partition, is cut off and then \
             killed; {new} takes over after {:.0} ms. No result that had left is lost. All \
             processes share this machine's processors.",
            options.lease_ms,
            gap_ms(result)
        ),
        blocks,
    }
}
