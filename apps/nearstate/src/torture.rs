//! `nearstate torture`: writers and readers on one region, random kills, and an oracle that knows
//! the acknowledged writes; then histories of transactions, checked for strict serializability.

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use nearstate_local_cluster::NetworkKind;
use nearstate_torture::failovers;
use nearstate_torture::flips;
use nearstate_torture::histories::checker::HistoryChecker;
use nearstate_torture::histories::options::{HistoryOptions, HistoryTotals};
use nearstate_torture::histories::rounds::play;
use nearstate_torture::node_kills;
use nearstate_torture::node_kills::injected_fault::InjectedFault;
use nearstate_torture::repairs;
use nearstate_torture::report::TortureReport;
use nearstate_torture::run::{FullRegion, TortureOptions, run as torture};
use nearstate_torture::spawn::ChildCommand;
use nearstate_torture::tags::stress;
use nearstate_torture::trace::SweepError;
use nearstate_torture::{child, step, sweep};
use serde_json::json;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// Name of the hidden sub-command that a run starts its children with.
pub(crate) const CHILD: &str = "torture-child";

/// Kill processes that use a region, and verify that nothing acknowledged is lost or torn
#[derive(Debug, Args)]
pub(crate) struct Torture {
    /// Processes to kill
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    kills: u64,
    /// Processes that write
    #[arg(long, default_value_t = 4, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    writers: u16,
    /// Processes that read
    #[arg(long, default_value_t = 4, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=64))]
    readers: u16,
    /// Folder for the region and the journals, preferably in memory; a new folder is created in it
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    path: PathBuf,
    /// Seed of all random choices [default: a new one each time]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Kills between two offline checks
    #[arg(long, default_value_t = 100, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    kills_per_check: u64,
    /// The longest pause between two kills, in microseconds
    #[arg(long, default_value_t = 6000, value_name = "US")]
    pause_us_max: u64,
    /// Processes to kill afterwards that write sessions with tags, collect expired ones and search
    #[arg(long, default_value_t = 1000, value_name = "N")]
    tagged_kills: u64,
    /// Histories of killed processes to check for strict serializability afterwards (needs Go)
    #[arg(long, default_value_t = 2000, value_name = "N")]
    histories: u64,
    /// Stop and kill after single instructions instead: every N-th of each operation (1 = all)
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// Kill a node instead, this many times, with clients at its sockets and embedded writers
    #[arg(long, value_name = "N", conflicts_with = "step")]
    node_kills: Option<u64>,
    /// Content of the node's region before the first start, in MiB
    #[arg(long, default_value_t = 768, value_name = "MIB")]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=800))]
    node_fill_mib: u64,
    /// Kill and stop this many processes instead, which keep a region of 64 MiB full
    #[arg(long, value_name = "N", conflicts_with_all = ["step", "node_kills"])]
    full_kills: Option<u64>,
    /// With --full-kills: continue for at least this many minutes
    #[arg(long, default_value_t = 0, value_name = "MIN", requires = "full_kills")]
    full_minutes: u64,
    /// Flip this many bits instead, each in a new region that other processes use
    #[arg(long, value_name = "N", conflicts_with_all = ["step", "node_kills", "full_kills"])]
    flips: Option<u64>,
    /// With --flips: repeat the flip with this number, counted from 0, of the run with this seed
    #[arg(long, value_name = "N", requires = "flips", requires = "seed")]
    only: Option<u64>,
    /// Kill this many repairs instead, each at a random store (needs crash points)
    #[arg(long, value_name = "N")]
    #[arg(conflicts_with_all = ["step", "node_kills", "full_kills", "flips"])]
    repair_kills: Option<u64>,
    /// Let another host take over this many times instead, in a cluster of three nodes
    #[arg(long, value_name = "N")]
    #[arg(conflicts_with_all = ["step", "node_kills", "full_kills", "flips", "repair_kills"])]
    failovers: Option<u64>,
    /// With --failovers: the lease of the cluster in milliseconds
    #[arg(long, default_value_t = 300, value_name = "MS", requires = "failovers")]
    #[arg(value_parser = clap::value_parser!(u32).range(300..=1400))]
    lease_ms: u32,
    /// With --failovers: measure this many fail-overs of Redis Sentinel afterwards (needs
    /// redis-server), with three servers, three Sentinels, and the lease as down-after-milliseconds
    #[arg(long, default_value_t = 0, value_name = "N", requires = "failovers")]
    sentinel_failovers: u64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// A child of a torture run.
#[derive(Debug, Args)]
pub(crate) struct Child {
    words: Vec<String>,
}

/// Runs a child.
pub(crate) fn run_child(child: &Child) -> ExitCode {
    child::main(&child.words)
}

/// Runs, shows the progress, and prints the result.
pub(crate) fn run(args: &Torture) -> ExitCode {
    let done = ChildCommand::own(CHILD).and_then(|starter| match (args.step, args.node_kills) {
        _ if args.full_kills.is_some() => full_region(args, &starter),
        _ if args.flips.is_some() => flips(args, &starter),
        _ if args.failovers.is_some() => failovers(args, &starter),
        _ if args.repair_kills.is_some() => repair_kills(args, &starter),
        (Some(stride), _) => steps(args, stride, &starter),
        (None, Some(count)) => node_kills(args, count, &starter),
        (None, None) => kills(args, &starter),
    });
    match done {
        Ok(text) => {
            let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "nearstate torture: FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn folder(args: &Torture) -> PathBuf {
    args.path.join(format!("nearstate-torture-{}", std::process::id()))
}

fn bar(length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{elapsed_precise} [{bar:40}] {pos}/{len} {msg} (about {eta} left)",
    );
    ProgressBar::new(length).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn kills(args: &Torture, starter: &ChildCommand) -> Result<String, String> {
    let seed = args.seed.unwrap_or_else(nearstate_torture::clock::now_ns);
    if args.histories > 0 {
        // A missing program is reported before the first part runs.
        drop(HistoryChecker::start()?);
    }
    let options = TortureOptions {
        kills: args.kills,
        kills_per_check: args.kills_per_check,
        writers: args.writers,
        readers: args.readers,
        folder: folder(args),
        seed,
        pause_us_max: args.pause_us_max,
        full_region: None,
    };
    let mut report = writers_and_readers(&options, starter)?;
    if args.tagged_kills > 0 {
        report.tag_stress = Some(tag_stress(args, seed, starter)?);
    }
    if args.histories > 0 {
        report.histories = Some(histories(args, seed, starter)?);
    }
    Ok(if args.json { json!(report).to_string() } else { report.table() })
}

fn tag_stress(
    args: &Torture,
    seed: u64,
    starter: &ChildCommand,
) -> Result<stress::TagStressTotals, String> {
    let options = stress::TagStressOptions {
        kills: args.tagged_kills,
        kills_per_check: args.kills_per_check.min(100),
        writers: args.writers,
        collectors: 2,
        readers: args.readers,
        folder: args.path.join(format!("nearstate-tag-stress-{}", std::process::id())),
        seed,
        pause_us_max: args.pause_us_max.max(10_000),
    };
    let bar = bar(args.tagged_kills);
    let mut tick = |totals: &stress::TagStressTotals| {
        bar.set_position(totals.kills);
        bar.set_message(format!(
            "kills, {} transactions with tags, {} events, {} checks clean",
            totals.transactions_acknowledged, totals.events, totals.checks
        ));
    };
    let done = stress::run(&options, starter, &mut tick);
    bar.finish_and_clear();
    done
}

fn histories(args: &Torture, seed: u64, starter: &ChildCommand) -> Result<HistoryTotals, String> {
    let history_options = HistoryOptions {
        rounds: args.histories,
        rounds_per_check: 50,
        processes: 4,
        operations: 24,
        kills_percent: 60,
        jitter: 150,
        model: None,
        folder: args.path.join(format!("nearstate-histories-{}", std::process::id())),
        seed,
        is_survey: false,
    };
    let bar = bar(args.histories);
    let mut tick = |totals: &HistoryTotals| {
        bar.set_position(totals.rounds);
        bar.set_message(format!(
            "histories, {} operations, {} kills, {} snapshots checked",
            totals.operations, totals.kills, totals.snapshots_checked
        ));
    };
    let done = play(&history_options, starter, &mut tick);
    bar.finish_and_clear();
    done
}

/// The longest time that a node serves before it is killed.
const SERVES_US_MAX: u64 = 150_000;

fn node_kills(args: &Torture, kills: u64, starter: &ChildCommand) -> Result<String, String> {
    let options = node_kills::run::NodeKillOptions {
        kills,
        kills_per_check: args.kills_per_check.min(50),
        clients: args.writers,
        embedded: 2,
        fill_bytes: args.node_fill_mib << 20,
        folder: args.path.join(format!("nearstate-node-{}", std::process::id())),
        seed: args.seed.unwrap_or_else(nearstate_torture::clock::now_ns),
        pause_us_max: SERVES_US_MAX,
        injected_fault: InjectedFault::None,
    };
    let bar = bar(kills);
    let mut tick = |totals: &node_kills::totals::NodeKillTotals| {
        bar.set_position(totals.kills);
        bar.set_message(format!(
            "kills of the node, {} requests answered, {} records read back, {} checks clean",
            totals.requests.answered,
            totals.records_by_socket + totals.records_by_session,
            totals.checks
        ));
    };
    let done = node_kills::run::run(&options, starter, &mut tick);
    bar.finish_and_clear();
    done.map(|totals| if args.json { json!(totals).to_string() } else { totals.table() })
}

/// The longest stop of a process in a full region.
const STOP_MS_MAX: u64 = 10_000;

/// The longest pause between two kills in a full region: long enough that a part of the run
/// contains long stops.
const FULL_PAUSE_US_MAX: u64 = 200_000;

fn full_region(args: &Torture, starter: &ChildCommand) -> Result<String, String> {
    let options = TortureOptions {
        kills: args.full_kills.unwrap_or(args.kills),
        kills_per_check: args.kills_per_check,
        writers: args.writers,
        readers: args.readers,
        folder: folder(args),
        seed: args.seed.unwrap_or_else(nearstate_torture::clock::now_ns),
        pause_us_max: args.pause_us_max.max(FULL_PAUSE_US_MAX),
        full_region: Some(FullRegion {
            stop_ms_max: STOP_MS_MAX,
            seconds_min: 60 * args.full_minutes,
        }),
    };
    let report = writers_and_readers(&options, starter)?;
    Ok(if args.json { json!(report).to_string() } else { report.table() })
}

fn writers_and_readers(
    options: &TortureOptions,
    starter: &ChildCommand,
) -> Result<TortureReport, String> {
    let bar = bar(options.kills);
    let mut tick = |report: &TortureReport| {
        bar.set_position(report.kills);
        bar.set_message(format!(
            "kills, {} writes verified, {} transactions, {} checks clean",
            report.counts.acknowledged_states_verified,
            report.counts.transactions_acknowledged,
            report.checks
        ));
    };
    let done = torture(options, starter, &mut tick);
    bar.finish_and_clear();
    done
}

fn repair_kills(args: &Torture, starter: &ChildCommand) -> Result<String, String> {
    let options = repairs::RepairKillOptions {
        kills: args.repair_kills.unwrap_or_default(),
        folder: args.path.join(format!("nearstate-repairs-{}", std::process::id())),
        seed: args.seed.unwrap_or_else(nearstate_torture::clock::now_ns),
    };
    let bar = bar(options.kills);
    let mut tick = |totals: &repairs::RepairKillTotals| {
        bar.set_position(totals.kills.min(options.kills));
        bar.set_message(format!("kills of repairs, {} regions verified", totals.regions));
    };
    let done = repairs::kills(&options, starter, &mut tick);
    bar.finish_and_clear();
    done.map(|totals| if args.json { json!(totals).to_string() } else { totals.table() })
}

fn failovers(args: &Torture, starter: &ChildCommand) -> Result<String, String> {
    let options = failovers::run::FailoverOptions {
        failovers: args.failovers.unwrap_or_default(),
        lease_ms: args.lease_ms,
        program: std::env::current_exe().map_err(|error| format!("own path: {error}"))?,
        folder: args.path.join(format!("nearstate-failovers-{}", std::process::id())),
        network: NetworkKind::best(),
        seed: args.seed.unwrap_or_else(nearstate_torture::clock::now_ns),
    };
    let bar = bar(options.failovers);
    let mut tick = |totals: &failovers::totals::FailoverTotals| {
        bar.set_position(totals.failovers);
        bar.set_message(format!(
            "fail-overs in {} rounds, p99 {:.0} ms, {} replicated transactions, 0 lost",
            totals.rounds,
            totals.lost_owner_us.percentile_ms(99),
            totals.transactions_replicated
        ));
    };
    let done = failovers::run::run(&options, starter, &mut tick);
    bar.finish_and_clear();
    let mut totals = done?;
    if args.sentinel_failovers > 0 {
        // What was measured of this cluster is not lost with it.
        match sentinel_failovers(args) {
            Ok(sentinel) => totals.sentinel = Some(sentinel),
            Err(error) => return Err(format!("{}\nRedis Sentinel: {error}", totals.table())),
        }
    }
    Ok(if args.json { json!(totals).to_string() } else { totals.table() })
}

/// The same of Redis Sentinel.
fn sentinel_failovers(args: &Torture) -> Result<failovers::sentinel::SentinelTotals, String> {
    let options = failovers::sentinel::SentinelOptions {
        failovers: args.sentinel_failovers,
        down_after_ms: args.lease_ms,
        folder: args.path.join(format!("nearstate-sentinel-{}", std::process::id())),
    };
    let bar = bar(options.failovers);
    let mut tick = |totals: &failovers::sentinel::SentinelTotals| {
        bar.inc(1);
        bar.set_message(totals.line());
    };
    let done = failovers::sentinel::run(&options, &mut tick);
    bar.finish_and_clear();
    done
}

fn flips(args: &Torture, starter: &ChildCommand) -> Result<String, String> {
    let options = flips::run::FlipOptions {
        flips: args.flips.unwrap_or_default(),
        folder: args.path.join(format!("nearstate-flips-{}", std::process::id())),
        seed: args.seed.unwrap_or_else(nearstate_torture::clock::now_ns),
        only: args.only,
    };
    let bar = bar(options.flips);
    let mut tick = |totals: &flips::totals::FlipTotals| {
        bar.set_position(totals.flips);
        bar.set_message(format!(
            "flips, {} found by the check, {} crashes, {} hangs, {} wrong reads",
            totals.found(),
            totals.crashes,
            totals.hangs,
            totals.others()
        ));
    };
    let done = flips::run::run(&options, starter, &mut tick);
    bar.finish_and_clear();
    let totals = done?;
    let text = if args.json { json!(totals).to_string() } else { totals.table() };
    if totals.is_passed() { Ok(text) } else { Err(text) }
}

fn steps(args: &Torture, stride: u64, starter: &ChildCommand) -> Result<String, String> {
    let bar = bar(0);
    let mut tick = |name: &str, at: u64, whole: u64| {
        bar.set_length(whole);
        bar.set_position(at);
        bar.set_message(format!("instructions of {name}"));
    };
    let stride = step::StepStride::Every(stride.max(1));
    let done = step::sweep(&folder(args), starter, stride, &mut tick).and_then(|mut rows| {
        rows.extend(sweep::sweep(&folder(args), starter, stride, &mut tick)?);
        Ok(rows)
    });
    bar.finish_and_clear();
    match done {
        Ok(rows) if args.json => Ok(step::json(&rows).to_string()),
        Ok(rows) => Ok(step::table(&rows)),
        Err(SweepError::Violation(error)) => Err(error),
        Err(SweepError::NotPermitted(why)) => {
            Err(format!("nothing was tested: this machine does not permit ptrace ({why})"))
        }
    }
}
