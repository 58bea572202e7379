//! Writes that survive their host: what a commit costs that a follower has, against `SET` and
//! `WAIT` of Redis with one replica and `put` of etcd with three members.
//!
//! `nearstate bench run ue-signalling --targets region,cluster,redis-wait,etcd` prints the table.
//! All targets run at the same time and are measured in turn, round by round, on the same
//! processors, so that a busy machine slows all of them.

mod etcd;
mod geode;
mod ours;
mod redis_wait;

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nearstate_model::{Error, Result};

use crate::clock::monotonic_ns as now_ns;
use crate::machine::Machine;
use crate::options::Options;
use crate::outputs::print;
use crate::processes::cpu_ns;
use crate::spread::RoundMeasurements;
use crate::stat::{Latencies, as_f64, median};
use crate::table::{ReportTable, latency_text, rate_text, ratio_text};

/// Bytes of a value.
const VALUE_BYTES: usize = 1024;

/// Records of a target.
const RECORDS: u64 = 10_000;

/// Writes that are outstanding together, in the last case.
const OUTSTANDING: u64 = 64;

/// Rounds and seconds of a case of a target in a round, unless the options say more.
const ROUNDS: u64 = 3;
const ROUND_SECONDS: f64 = 1.0;

/// A line for the list of workloads.
pub const ABOUT: &str = "ue-signalling --targets region,cluster,cluster-2,redis-wait,redis-wait-2,\
                         etcd,geode: writes that a follower has, and their cost (docs/bench.md); \
                         --variant put, update, wait, outstanding, insert, steady: one case";

/// The names of the targets that only this table has.
const NAMES: [&str; 5] = ["cluster", "cluster-2", "redis-wait", "redis-wait-2", "etcd"];

/// Writes of one step of the steady rate, and the time between two steps.
const STEADY_WRITES: u64 = 10;
const STEADY_STEP: Duration = Duration::from_micros(100);

/// Inserts of a round. They are deleted after it.
const INSERTS_MAX: u64 = 50_000;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ReplicatedCase {
    /// A put of 1 KiB, without waiting for a follower.
    Put,
    /// A transaction that reads a UE's record and writes two blocks, without waiting.
    Update,
    /// A put of 1 KiB, until a follower has it, one after the other.
    PutAndWait,
    /// The same with 64 outstanding.
    Outstanding,
    /// Inserts of 1 KiB with three tags, two of them unique, without waiting.
    Insert,
    /// Puts of 1 KiB at 100,000 in a second. Measured is the time until a follower has one.
    Steady,
}

impl ReplicatedCase {
    const ALL: [Self; 6] =
        [Self::Put, Self::Update, Self::PutAndWait, Self::Outstanding, Self::Insert, Self::Steady];

    /// Its name in the table, and the variant that measures it alone.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Put => ("put, not waiting", "put"),
            Self::Update => ("update of two blocks, not waiting", "update"),
            Self::PutAndWait => ("put, until a follower has it", "wait"),
            Self::Outstanding => ("the same, 64 outstanding", "outstanding"),
            Self::Insert => ("insert with three tags, not waiting", "insert"),
            Self::Steady => ("lag at 100,000 puts/s", "steady"),
        }
    }

    /// The cases of a variant: all without one.
    fn selected(variant: Option<&str>) -> Result<Vec<Self>> {
        let Some(variant) = variant else { return Ok(Self::ALL.to_vec()) };
        let chosen = Self::ALL.into_iter().find(|case| case.names().1 == variant);
        chosen.map(|case| vec![case]).ok_or_else(|| {
            let names = Self::ALL.map(|case| case.names().1).join(", ");
            let detail = format!("no variant {variant:?} of this table: it has {names}");
            Error::BadArgument { detail }
        })
    }

    /// Writes of one measured step.
    const fn writes(self) -> u64 {
        match self {
            Self::Put | Self::Update | Self::PutAndWait | Self::Insert => 1,
            Self::Outstanding => OUTSTANDING,
            Self::Steady => STEADY_WRITES,
        }
    }
}

/// A running target of the table.
trait ReplicatedTarget {
    fn name(&self) -> &'static str;

    /// What survives what.
    fn durability(&self) -> &'static str;

    /// Its processes, without this one.
    fn processes(&self) -> Vec<u32>;

    /// Those of them that only follow.
    fn followers(&self) -> Vec<u32> {
        Vec::new()
    }

    /// One step of a case, with the number of its first write. False if the target does not have
    /// the case.
    fn step(&mut self, case: ReplicatedCase, number: u64) -> Result<bool>;

    /// Behind the steps of a round: waits until everything is replicated. Returns the times that
    /// were measured beside the steps, in nanoseconds, if there are some.
    fn wait_replicated(&mut self) -> Result<Vec<u64>> {
        Ok(Vec::new())
    }

    /// Deletes what these writes have inserted.
    fn clear(&mut self, _inserted: Range<u64>) -> Result<()> {
        Ok(())
    }
}

/// What was measured of a case of a target: of each round.
#[derive(Debug, Default)]
struct ReplicatedResult {
    /// The median time of a step in nanoseconds, and the time that one of a hundred exceeds.
    p50_ns: Vec<f64>,
    p99_ns: Vec<f64>,
    /// Writes per second.
    rate: Vec<f64>,
    /// Processor time of all processes per write, in nanoseconds.
    cpu_ns: Vec<f64>,
    /// Processor time of a follower per write, in nanoseconds.
    follower_ns: Vec<f64>,
}

/// True if one of the options' targets is of this table.
pub fn is_wanted(options: &Options) -> bool {
    options.targets.iter().any(|target| NAMES.contains(&target.as_str()))
}

fn key(number: u64) -> String {
    format!("imsi-{}", number % RECORDS)
}

fn value(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(VALUE_BYTES / 8)
}

fn failed<E: Display>(detail: E) -> Error {
    Error::Backend { detail: detail.to_string() }
}

/// The folder of a target, which is removed with it.
struct TargetFolder(PathBuf);

impl TargetFolder {
    fn create(path: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&path).map_err(failed)?;
        Ok(Self(path))
    }
}

impl Drop for TargetFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn start(name: &str, options: &Options) -> Result<Box<dyn ReplicatedTarget>> {
    let folder = options.dir.join(format!("nearstate-bench-{name}-{}", std::process::id()));
    match name {
        "region" => Ok(Box::new(ours::LocalRegion::start(folder)?)),
        "cluster" => Ok(Box::new(ours::OwnCluster::start(folder, ours::ClusterSize::Three)?)),
        "cluster-2" => Ok(Box::new(ours::OwnCluster::start(folder, ours::ClusterSize::Two)?)),
        "redis-wait" => Ok(Box::new(redis_wait::RedisWait::start(folder, 1)?)),
        "redis-wait-2" => Ok(Box::new(redis_wait::RedisWait::start(folder, 2)?)),
        "etcd" => Ok(Box::new(etcd::Etcd::start(folder)?)),
        "geode" => Ok(Box::new(geode::GeodeCluster::start(folder)?)),
        other => Err(Error::BadArgument {
            detail: format!(
                "the table of replicated writes has no target {other:?}: give some of region, \
                 geode, {}",
                NAMES.join(", ")
            ),
        }),
    }
}

/// Measures and prints the table.
///
/// # Errors
/// `BadArgument`: a workload or target that the table does not have; a target that fails.
pub fn run(options: &Options, out: &mut impl Write) -> Result<()> {
    if options.workload.as_deref() != Some("ue-signalling") {
        return Err(Error::BadArgument {
            detail: format!("the targets {} are those of ue-signalling only", NAMES.join(", ")),
        });
    }
    let cases = ReplicatedCase::selected(options.variant.as_deref())?;
    let mut targets = Vec::new();
    for name in &options.targets {
        targets.push(start(name, options)?);
    }
    let round_time = Duration::from_secs_f64(options.round_time.unwrap_or(ROUND_SECONDS));
    let mut results: BTreeMap<(ReplicatedCase, usize), ReplicatedResult> = BTreeMap::new();
    for round in 0..options.rounds.max(ROUNDS) {
        for case in cases.iter().copied() {
            for (at, target) in targets.iter_mut().enumerate() {
                measure(target.as_mut(), (case, round), round_time, results.entry((case, at)))?;
            }
        }
    }
    print(out, &text(&targets, &results))
}

fn measure(
    target: &mut dyn ReplicatedTarget,
    (case, round): (ReplicatedCase, u64),
    round_time: Duration,
    entry: std::collections::btree_map::Entry<'_, (ReplicatedCase, usize), ReplicatedResult>,
) -> Result<()> {
    let mut processes = target.processes();
    processes.push(std::process::id());
    let followers = target.followers();
    let (begin, cpu_before) = (Instant::now(), cpu_ns(&processes));
    let follower_before = cpu_ns(&followers);
    let (mut times, first) = (Latencies::new(), round << 32);
    let mut number = first;
    while begin.elapsed() < round_time
        && (case != ReplicatedCase::Insert || number - first < INSERTS_MAX)
    {
        let called = now_ns();
        if !target.step(case, number)? {
            return Ok(());
        }
        times.record(now_ns() - called, 1);
        number += case.writes();
    }
    let seconds = begin.elapsed().as_secs_f64();
    let beside = target.wait_replicated()?;
    let cpu = cpu_ns(&processes).saturating_sub(cpu_before);
    let follower = cpu_ns(&followers).saturating_sub(follower_before);
    if case == ReplicatedCase::Insert {
        target.clear(first..number)?;
    }
    if !beside.is_empty() {
        times.clear();
        for ns in &beside {
            times.record(*ns, 1);
        }
    }
    let writes = as_f64(number - first);
    let result = entry.or_default();
    result.p50_ns.push(as_f64(times.percentile(50.0)));
    result.p99_ns.push(as_f64(times.percentile(99.0)));
    result.rate.push(writes / seconds);
    result.cpu_ns.push(as_f64(cpu) / writes);
    if !followers.is_empty() {
        result.follower_ns.push(as_f64(follower) / writes / as_f64(followers.len() as u64));
    }
    Ok(())
}

fn range_text(values: &[f64], text: fn(f64) -> String) -> String {
    let spread = RoundMeasurements::new(values.iter().copied());
    format!("{} to {}", text(spread.min()), text(spread.max()))
}

/// The median times of the rounds as multiples of those of the same rounds of another target.
fn ratios(result: &ReplicatedResult, other: &ReplicatedResult) -> Vec<f64> {
    result.p50_ns.iter().zip(&other.p50_ns).map(|(one, other)| one / other.max(1.0)).collect()
}

fn text(
    targets: &[Box<dyn ReplicatedTarget>],
    results: &BTreeMap<(ReplicatedCase, usize), ReplicatedResult>,
) -> String {
    let mut text =
        format!("{}\n\ndurability of a write that is waited for:\n", Machine::detect().line());
    for target in targets {
        let _ = writeln!(text, "  {:<12} {}", target.name(), target.durability());
    }
    let columns = "writes of 1 KiB|target|>p50|>p99|>writes/s|rounds|>CPU per write|>of a follower\
                   |>p50 to the first cluster|rounds";
    let mut table = ReportTable::new(columns);
    let ours = targets.iter().position(|target| target.name().starts_with("cluster"));
    for case in ReplicatedCase::ALL {
        let own = ours.and_then(|at| results.get(&(case, at)));
        for (at, target) in targets.iter().enumerate() {
            let Some(result) = results.get(&(case, at)) else { continue };
            let ratios = own.map_or_else(Vec::new, |own| ratios(result, own));
            let cell = |values: &[f64], text: &dyn Fn(&[f64]) -> String| {
                if values.is_empty() { String::new() } else { text(values) }
            };
            let time = |values: &[f64]| latency_text(median(values));
            table.row(vec![
                case.names().0.to_owned(),
                target.name().to_owned(),
                time(&result.p50_ns),
                time(&result.p99_ns),
                rate_text(median(&result.rate)),
                range_text(&result.rate, rate_text),
                time(&result.cpu_ns),
                cell(&result.follower_ns, &time),
                cell(&ratios, &|ratios| ratio_text(median(ratios))),
                cell(&ratios, &|ratios| range_text(ratios, ratio_text)),
            ]);
        }
        table.rule();
    }
    text.push('\n');
    text.push_str(&table.text());
    text.push_str(
        "p50 with 64 outstanding is of the whole batch, and of the lag the time until a follower \
         has a put. CPU per write is of all processes of a target and of this one, until a \
         follower has everything; a follower alone applies as many writes in a second on a core \
         as its time of a write goes into one. Ratios are of the same round.\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_the_same_round() {
        let of = |p50_ns| ReplicatedResult { p50_ns, ..ReplicatedResult::default() };
        assert_eq!(ratios(&of(vec![10.0, 60.0]), &of(vec![20.0, 30.0])), [0.5, 2.0]);
    }

    #[test]
    fn a_variant_measures_one_case() {
        for case in ReplicatedCase::ALL {
            assert_eq!(ReplicatedCase::selected(Some(case.names().1)).unwrap(), [case]);
        }
        assert_eq!(ReplicatedCase::selected(None).unwrap(), ReplicatedCase::ALL);
        let unknown = ReplicatedCase::selected(Some("full")).unwrap_err().to_string();
        assert!(unknown.contains("outstanding"), "{unknown}");
    }

    #[test]
    fn every_step_of_a_case_has_as_many_writes_as_it_says() {
        let writes: Vec<_> = ReplicatedCase::ALL.iter().map(|case| case.writes()).collect();
        assert_eq!(writes, [1, 1, 1, 64, 1, 10]);
        assert_eq!(value(7).len(), VALUE_BYTES);
        assert_eq!(key(RECORDS + 3), key(3));
    }
}
