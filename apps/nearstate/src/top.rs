//! `nearstate top`: live statistics of a node and a region.
//!
//! Each poll of the sources gives a snapshot. Two snapshots, one interval apart, give a report,
//! which is drawn, printed as text, or printed as JSON. Everything except polling and the terminal
//! is pure.

mod cluster;
mod live;
mod live_text;
mod keys;
mod screen;
mod output;
mod tables;
mod sources;
mod region_source;
mod fetch;
mod parse_metrics;
#[cfg(test)]
mod sample;
mod report;
mod snapshot;
mod format;

use std::io::{ErrorKind, IsTerminal as _, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use nearstate_model::{Error, Result};
use nearstate_store::AttachOptions;

use crate::settings::{SettingFlags, Settings, parse_time};
use report::{NamespaceOrder, TopReport};
use sources::{Poll, TopSources};

/// The text of `--help` after the options.
const MORE: &str = "\
Without --node and --region, the settings of `nearstate serve` select the sources (--config, else
$NEARSTATE_CONFIG; NEARSTATE_METRICS_LISTEN, NEARSTATE_REGION_PATH): the first address of
metrics.listen, and the region's file if it exists. One source is enough. A node shows rates,
latencies, cores and its region. A region shows its namespaces, attached processes, fill, and how
its records change.

Keys in a terminal: q quits, p pauses, s sorts the namespaces, ? shows help; with --cluster the
arrows scroll. Without a terminal, plain text is printed.

  export NEARSTATE_METRICS_LISTEN=127.0.0.1:9121
  nearstate serve &
  nearstate top                                  # the same settings, no flags of serve
  nearstate top --node 127.0.0.1:9121            # a node, by its metrics page
  nearstate top --region /dev/shm/amf            # a region, with or without a node
  nearstate top --cluster cluster.toml           # all hosts of a cluster
  nearstate top --once --json | jq .node.requests_per_second";

/// The options of `nearstate top`.
#[derive(Debug, Args)]
#[command(after_help = MORE)]
pub(crate) struct TopArgs {
    /// Metrics address of a node (metrics.listen)
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = node_address)]
    node: Option<SocketAddr>,
    /// A region's file; this process needs permission to attach it
    #[arg(long, value_name = "PATH")]
    region: Option<PathBuf>,
    /// Also read a region, or follow a symbolic link, that belongs to another user
    #[arg(long)]
    any_owner: bool,
    /// Show the hosts, copies, lags and alarms of the cluster with this file. A node on this
    /// machine is asked
    #[arg(long, value_name = "FILE", conflicts_with_all = ["node", "region"])]
    cluster: Option<PathBuf>,
    /// The node's settings file (TOML), used without --node and --region [default:
    /// `$NEARSTATE_CONFIG`]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Length of an interval: 100ms to 1h
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Print one interval and exit; fails if a requested source cannot be read
    #[arg(long)]
    once: bool,
    /// Print one line of JSON per interval: an object, or with --cluster a list of the hosts
    #[arg(long)]
    json: bool,
}

/// Minimum interval: a page costs the node some hundred microseconds.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Maximum interval: larger values are mistakes.
const INTERVAL_MAX: Duration = Duration::from_secs(3600);

fn interval(text: &str) -> std::result::Result<Duration, String> {
    let time = parse_time(text)?;
    if (INTERVAL_MIN..=INTERVAL_MAX).contains(&time) {
        Ok(time)
    } else {
        Err(format!("{text:?} is out of range: expected 100ms to 1h"))
    }
}

fn node_address(text: &str) -> std::result::Result<SocketAddr, String> {
    let wanted = "expected an IP address and a port, such as 127.0.0.1:9121";
    text.parse().map_err(|_| format!("{text:?} is not an address: {wanted}"))
}

/// Runs the command.
pub(crate) fn run(args: &TopArgs) -> Result<()> {
    if let Some(file) = &args.cluster {
        return cluster::run(file, args);
    }
    let sources = args.sources()?;
    let is_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if args.once {
        return args.print_once(sources);
    }
    if args.json || !is_terminal {
        return args.print_loop(sources);
    }
    live::run(sources, args.interval)
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl TopArgs {
    const fn attach_options(&self) -> AttachOptions {
        AttachOptions { any_owner: self.any_owner }
    }

    fn sources(&self) -> Result<TopSources> {
        if self.node.is_some() || self.region.is_some() {
            return Ok(TopSources::new(self.node, self.region.as_deref(), self.attach_options()));
        }
        let layers = SettingFlags::of_file(self.config.clone()).layers(std::env::vars_os())?;
        let settings = Settings::parse(&layers)?;
        let node = settings.metrics.first().copied();
        let region = Some(settings.region.path).filter(|path| path.exists());
        if node.is_none() && region.is_none() {
            return Err(Error::BadArgument {
                detail: format!(
                    "no source: metrics.listen is empty ({}) and no region exists at region.path \
                     ({}): give --node ADDRESS:PORT of a node started with --metrics-listen, or \
                     --region PATH",
                    layers.origin("metrics.listen"),
                    layers.origin("region.path"),
                ),
            });
        }
        let any_owner = self.any_owner || settings.is_any_owner;
        Ok(TopSources::new(node, region.as_deref(), AttachOptions { any_owner }))
    }

    fn print_once(&self, mut sources: TopSources) -> Result<()> {
        let first = seen(sources.poll())?;
        std::thread::sleep(self.interval);
        let last = seen(sources.poll())?;
        let report = TopReport::between(Some(&first.snapshot), &last.snapshot);
        self.print(report, &last.faults, &sources).map(drop)
    }

    /// Prints every interval until the reader closes standard output.
    fn print_loop(&self, mut sources: TopSources) -> Result<()> {
        let mut start = Instant::now();
        let mut before = sources.poll();
        loop {
            std::thread::sleep(self.interval.saturating_sub(start.elapsed()));
            start = Instant::now();
            let poll = sources.poll();
            let report = TopReport::between(Some(&before.snapshot), &poll.snapshot);
            if !self.print(report, &poll.faults, &sources)? {
                return Ok(());
            }
            before = poll;
        }
    }

    /// Prints a report. Returns false if the reader has closed standard output.
    fn print(
        &self,
        mut report: TopReport,
        faults: &[String],
        sources: &TopSources,
    ) -> Result<bool> {
        report.order(NamespaceOrder::default());
        let mut text = if self.json {
            output::object(&report, faults, sources.node(), now()).to_string()
        } else {
            output::text(&report, faults, sources.node(), now())
        };
        text.push_str(if self.json || self.once { "\n" } else { "\n\n" });
        put(&text)
    }
}

/// Writes to standard output. Returns false if its reader has closed it.
fn put(text: &str) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Error::System {
            detail: "cannot write to standard output".to_owned(),
            errno: error.raw_os_error().unwrap_or_default(),
        }),
    }
}

/// The poll if all sources could be read, otherwise the reason.
fn seen(poll: Poll) -> Result<Poll> {
    match poll.faults.first() {
        None => Ok(poll),
        Some(why) => Err(Error::BadArgument { detail: why.clone() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct TestCli {
        #[command(flatten)]
        top: TopArgs,
    }

    fn read(words: &[&str]) -> std::result::Result<TopArgs, String> {
        let words = ["top"].iter().chain(words);
        TestCli::try_parse_from(words).map(|line| line.top).map_err(|error| error.to_string())
    }

    #[test]
    fn an_interval_is_a_time_within_bounds() {
        assert_eq!(read(&[]).unwrap().interval, Duration::from_secs(1));
        assert_eq!(read(&["--interval", "250ms"]).unwrap().interval, Duration::from_millis(250));
        for wrong in ["0s", "99ms", "2h", "soon", ""] {
            assert!(read(&["--interval", wrong]).is_err(), "{wrong}");
        }
        let no_unit = read(&["--interval", "5"]).unwrap_err();
        assert!(no_unit.contains("has no unit"), "{no_unit}");
        let name = read(&["--node", "localhost:9125"]).unwrap_err();
        assert!(name.contains("localhost") && name.contains("127.0.0.1:9121"), "{name}");
    }
}
