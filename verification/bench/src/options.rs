//! The command line of `nearstate bench run`.

use crate::parameters::Arrivals;
use crate::protocol::Fault;
use crate::workloads::Spread;
use clap::{ArgGroup, Args};
use std::path::PathBuf;

/// Ten seconds: after a minute of silence a target is taken for one that is stuck.
const THINK_US_MAX: u64 = 10_000_000;

/// Run a workload of the papers against one or more stores, verify what each kept, and compare
#[derive(Args, Clone, Debug)]
// Where operations have intended starts: the rounds, the ramp, or both.
#[command(group(ArgGroup::new("open loop").args(["rate", "ramp"]).multiple(true)))]
#[command(after_help = "\
Workloads and targets: `nearstate bench run --list`.

Examples:
  nearstate bench run ue-signalling --targets region,node,redis --report r.html
  nearstate bench run ue-signalling --variant delta --records 1000000 --clients 4 --depth 16
  nearstate bench run tatp --targets region,lmdb --save a.json
  nearstate bench run ycsb --variant b --rate 2000 --ops 20000       # open loop
  nearstate bench run ue-signalling --targets node,redis --ramp 1ms  # highest rate with that p99
  nearstate bench run ue-signalling --ramp 1ms --arrivals poisson    # with starts by chance
  nearstate bench run --preset thesis --scale 0.1                    # several runs and their goals

Ctrl-C ends a run: the turns that were over until then are verified no more, but shown and saved.
The turn under way is not shown.")]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub struct Options {
    /// The workload
    #[arg(required_unless_present_any = ["list", "preset"])]
    pub workload: Option<String>,

    /// Run the cases of a preset one after the other and show their figures beside each other and
    /// against the goals; other options replace those of its cases. Names: --list
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,

    /// Whether targets that are not installed are left out: those of a preset.
    #[arg(skip)]
    pub leaves_out_missing: bool,

    /// Scale the records and operations of the preset by this factor, such as 0.1
    #[arg(long, requires = "preset", value_name = "FACTOR", value_parser = factor)]
    pub scale: Option<f64>,

    /// List workloads, their variants, and targets with what each needs
    #[arg(long)]
    pub list: bool,

    /// Stores, the first is what the others are compared with [default: region, node, redis]
    #[arg(long, value_delimiter = ',')]
    pub targets: Vec<String>,

    /// Variant of the workload
    #[arg(long)]
    pub variant: Option<String>,

    /// UEs, subscribers, sessions or records [default: the workload's]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub records: Option<u64>,

    /// Which records are asked for
    #[arg(long, value_enum, default_value_t = Spread::Zipfian)]
    pub spread: Spread,

    /// Client processes for each target
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=512))]
    pub clients: u64,

    /// Operations that a client lets travel together; over sockets in steps that overlap, where
    /// the workload and the target can: the report says for which
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=16_384))]
    pub depth: u64,

    /// Connections of each client process; the operations of --depth are spread over them
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub connections: u64,

    /// Bytes of a value, where the workload has no size of its own [default: the workload's]
    #[arg(long, value_name = "BYTES")]
    pub value_bytes: Option<u64>,

    /// Each client reads and replaces records of its own only, where clients otherwise share them
    #[arg(long)]
    pub own_records: bool,

    /// Nodes and rings busy-poll instead of sleeping while there is no request
    #[arg(long)]
    pub busy_poll: bool,

    /// Operations of each client and round
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub ops: u64,

    /// Fewer operations for slow targets: each round of a target lasts about this long
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub round_time: Option<f64>,

    /// Operations of each client before each round, not measured; with --round-time for no longer
    /// than a round [default: a tenth of --ops]
    #[arg(long)]
    pub warm_up: Option<u64>,

    /// Rounds; in each, every target has its turn
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,

    /// Open loop: operations per second of all clients together, latency from the intended start
    #[arg(long, value_parser = rate)]
    pub rate: Option<f64>,

    /// How intended starts follow each other: those of --rate, those of --ramp
    #[arg(long, value_enum, default_value_t = Arrivals::Constant, requires = "open loop")]
    pub arrivals: Arrivals,

    /// Pause of each client between operations of a closed loop, in microseconds
    #[arg(long, default_value_t = 0, conflicts_with = "rate")]
    #[arg(value_parser = clap::value_parser!(u64).range(..=THINK_US_MAX))]
    pub think_us: u64,

    /// Afterwards find the highest rate whose p99 stays below this, such as 200us or 1ms; the
    /// search begins at shares of what a closed loop without pauses does
    #[arg(long, value_name = "P99", value_parser = duration_ns)]
    pub ramp: Option<u64>,

    /// Layout of targets that have several: partitioned, replicated, zones
    #[arg(long)]
    pub layout: Option<String>,

    /// Where all chance comes from
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Times that a client may lose its connection and go on when it is back
    #[arg(long, default_value_t = 0)]
    pub reconnects: u64,

    /// Kill this target's server half way through the middle round (SIGKILL) and start it again;
    /// clients reconnect and go on. For servers whose records outlive them: node, node-unix,
    /// node-ring
    #[arg(long, value_name = "TARGET")]
    pub kill: Option<String>,

    /// Leave targets as they were loaded, also where their makers advise something after a bulk
    /// load (the region's 2 MiB pages)
    #[arg(long)]
    pub no_settle: bool,

    /// Let clients and servers run on any processor
    #[arg(long)]
    pub unpinned: bool,

    /// Processors for the servers of a target together, from the first one on; clients have the
    /// others
    #[arg(long, default_value_t = 1, conflicts_with = "unpinned")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub server_cpus: u64,

    /// Plant a fault between clients and targets, to see it noticed
    #[arg(long, value_enum)]
    pub fault: Option<Fault>,

    /// Folder in memory for files and sockets
    #[arg(long, default_value = "/dev/shm")]
    pub dir: PathBuf,

    /// Write a page that opens offline
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Save everything for `bench compare` and `bench render`
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,

    /// Print the saved form instead of tables
    #[arg(long)]
    pub json: bool,

    /// Print the latencies of each class of operations too
    #[arg(long)]
    pub classes: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds".to_owned())?;
    if (0.01..=86_400.0).contains(&seconds) { Ok(seconds) } else { Err("0.01 to 86400".into()) }
}

fn factor(text: &str) -> Result<f64, String> {
    let factor: f64 = text.parse().map_err(|_| "a factor such as 0.1".to_owned())?;
    if (0.0001..=1000.0).contains(&factor) { Ok(factor) } else { Err("0.0001 to 1000".into()) }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "operations per second".to_owned())?;
    if (0.1..=1e9).contains(&rate) { Ok(rate) } else { Err("0.1 to 1000000000".into()) }
}

/// A time such as `200us`, `1ms` or `2s`, in nanoseconds.
fn duration_ns(text: &str) -> Result<u64, String> {
    let units = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    for (unit, ns) in units {
        if let Some(number) = text.strip_suffix(unit)
            && let Ok(number) = number.trim().parse::<u64>()
        {
            let all = number.checked_mul(ns).filter(|all| (1_000..=60_000_000_000).contains(all));
            return all.ok_or_else(|| "1us to 60s".to_owned());
        }
    }
    Err("a time such as 200us or 1ms".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn arrivals_are_for_an_open_loop_and_a_ramp_is_one() {
        let parse = |words: &str| Line::try_parse_from(words.split(' '));
        for words in ["--rate 100", "--ramp 1ms", "--rate 100 --ramp 1ms"] {
            let line = parse(&format!("run tatp {words} --arrivals poisson"));
            assert_eq!(line.ok().map(|line| line.options.arrivals), Some(Arrivals::Poisson));
        }
        let refused = parse("run tatp --arrivals poisson").err().unwrap().to_string();
        assert!(refused.contains("--rate") && refused.contains("--ramp"), "{refused}");
        assert!(parse("run tatp --think-us 5 --ramp 1ms").is_ok());
        assert!(parse("run tatp --think-us 5 --rate 100").is_err());
    }

    #[test]
    fn times_have_units() {
        assert_eq!(duration_ns("200us"), Ok(200_000));
        assert_eq!(duration_ns("1ms"), Ok(1_000_000));
        assert_eq!(duration_ns("2s"), Ok(2_000_000_000));
        for wrong in ["", "7", "1h", "-1ms", "0s", "99999999999999999999s", "61s"] {
            assert!(duration_ns(wrong).is_err(), "{wrong}");
        }
    }
}
