//! The command line of `nearstate bench run`.

use crate::parameters::Arrivals;
use crate::protocol::Fault;
use crate::workloads::AccessDistribution;
use clap::{ArgGroup, Args};
use nearstate_model::Error;
use std::path::PathBuf;

/// Ten seconds: after a minute of silence a target counts as stuck.
const THINK_US_MAX: u64 = 10_000_000;

/// Operations of each client and round, if no other number is given.
const OPS: u64 = 100_000;

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
  nearstate bench run ue-signalling --ramp 1ms --arrivals poisson    # random starts
  nearstate bench run --preset thesis --scale 0.1                    # several runs and their goals

Ctrl-C ends a run: completed rounds are reported and saved without verification. The interrupted
round is not reported.")]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub struct Options {
    /// The workload
    #[arg(required_unless_present_any = ["list", "preset"])]
    pub workload: Option<String>,

    /// Run the cases of a preset one after the other and compare their figures with each other and
    /// with the goals; other options replace those of its cases. Names: --list
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,

    /// Run only these cases of the preset, such as view-1k,put-1k
    #[arg(long, requires = "preset", value_name = "NAMES", value_delimiter = ',')]
    pub cases: Vec<String>,

    /// True if targets that are not installed are omitted: those of a preset.
    #[arg(skip)]
    pub leaves_out_missing: bool,

    /// Scale the records and operations of the preset by this factor, such as 0.1
    #[arg(long, requires = "preset", value_name = "FACTOR", value_parser = factor)]
    pub scale: Option<f64>,

    /// List workloads with their variants, and targets with their requirements
    #[arg(long)]
    pub list: bool,

    /// Stores; the others are compared with the first [default: region, node, redis]
    #[arg(long, value_delimiter = ',')]
    pub targets: Vec<String>,

    /// Variant of the workload
    #[arg(long)]
    pub variant: Option<String>,

    /// UEs, subscribers, sessions or records [default: the workload's]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub records: Option<u64>,

    /// Distribution of the accesses over the records
    #[arg(long, value_enum, default_value_t = AccessDistribution::Zipfian)]
    pub spread: AccessDistribution,

    /// Client processes for each target
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=512))]
    pub clients: u64,

    /// Operations of a client in flight; over sockets in overlapping batches if the workload and
    /// the target support it: the report lists which
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=16_384))]
    pub depth: u64,

    /// Connections of each client process; the operations of --depth are spread over them
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub connections: u64,

    /// Bytes of a value, if the workload defines no size [default: the workload's]
    #[arg(long, value_name = "BYTES")]
    pub value_bytes: Option<u64>,

    /// Each client reads and replaces only its own records, instead of sharing them
    #[arg(long)]
    pub own_records: bool,

    /// Nodes and rings busy-poll instead of sleeping while there is no request
    #[arg(long)]
    pub busy_poll: bool,

    /// Operations of each client and round; probes of a point in numap [default: 100000; 1000]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub ops: Option<u64>,

    /// Limit each round of a target to about this time: fewer operations for slow targets
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub round_time: Option<f64>,

    /// Unmeasured operations of each client before each round; with --round-time at most as long
    /// as a round [default: a tenth of --ops]
    #[arg(long)]
    pub warm_up: Option<u64>,

    /// Rounds; each measures every target once
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,

    /// Open loop: operations per second of all clients together, latency from the intended start
    #[arg(long, value_parser = rate)]
    pub rate: Option<f64>,

    /// Distribution of the intended starts of --rate or --ramp
    #[arg(long, value_enum, default_value_t = Arrivals::Constant, requires = "open loop")]
    pub arrivals: Arrivals,

    /// Pause of each client between operations of a closed loop, in microseconds
    #[arg(long, default_value_t = 0, conflicts_with = "rate")]
    #[arg(value_parser = clap::value_parser!(u64).range(..=THINK_US_MAX))]
    pub think_us: u64,

    /// Afterwards find the highest rate with a p99 below this, such as 200us or 1ms; the search
    /// starts at fractions of the closed-loop rate
    #[arg(long, value_name = "P99", value_parser = duration_ns)]
    pub ramp: Option<u64>,

    /// Layout of targets that have several: partitioned, replicated, zones
    #[arg(long)]
    pub layout: Option<String>,

    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Number of times that a client may lose its connection and reconnect
    #[arg(long, default_value_t = 0)]
    pub reconnects: u64,

    /// Kill this target's server in the middle of the middle round (SIGKILL) and restart it;
    /// clients reconnect and continue. For servers whose records survive them: node, node-unix,
    /// node-ring
    #[arg(long, value_name = "TARGET")]
    pub kill: Option<String>,

    /// Skip what the documentation of a target advises after a bulk load (the region's 2 MiB
    /// pages)
    #[arg(long)]
    pub no_settle: bool,

    /// Let clients and servers run on any processor
    #[arg(long)]
    pub unpinned: bool,

    /// Number of processors for the servers of a target, from the first; clients use the others
    #[arg(long, default_value_t = 1, conflicts_with = "unpinned")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub server_cpus: u64,

    /// Inject a fault between clients and targets, to test its detection
    #[arg(long, value_enum)]
    pub fault: Option<Fault>,

    /// Folder for files and sockets, in memory
    #[arg(long, default_value = "/dev/shm")]
    pub dir: PathBuf,

    /// Write the report as an HTML page
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Save the run for `bench compare` and `bench render`
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,

    /// Print the saved form instead of tables
    #[arg(long)]
    pub json: bool,

    /// Also print the latencies of each class of operations
    #[arg(long)]
    pub classes: bool,
}

impl Options {
    /// Operations of each client and round.
    pub fn client_ops(&self) -> u64 {
        self.ops.unwrap_or(OPS)
    }
}

/// A command line of `bench run` by itself.
#[derive(Debug, clap::Parser)]
pub struct RunCommand {
    #[command(flatten)]
    pub options: Options,
}

/// Rejects options of the command line that have no effect on `workload`, which has these.
pub fn check_known(workload: &str, known: &[&str], words: &[String]) -> Result<(), Error> {
    let options = words.iter().filter(|word| word.starts_with("--"));
    let mut names = options.filter_map(|word| word.split('=').next());
    names.find(|name| !known.contains(name)).map_or(Ok(()), |name| {
        Err(bad_argument!("{workload} has no {name}: it has {}", known.join(", ")))
    })
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
    use clap::Parser as _;

    #[test]
    fn arrivals_are_for_an_open_loop_and_a_ramp_is_one() {
        let parse = |words: &str| RunCommand::try_parse_from(words.split(' '));
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
