//! Writes that survive their host: what a commit costs that a follower has, against `SET` and
//! `WAIT` of Redis with one replica and `put` of etcd with three members.
//!
//! `nearstate bench run ue-signalling --targets region,cluster,redis-wait,etcd` prints the table.
//! All targets run at the same time and are measured in turn, round by round, on the same
//! processors, so that a busy machine slows all of them.

mod etcd;
mod ours;
mod redis_wait;

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::io::Write;
use std::time::{Duration, Instant};

use nearstate_model::{Error, Result};

use crate::clock::monotonic_ns as now_ns;
use crate::machine::Machine;
use crate::options::Options;
use crate::outputs::print;
use crate::processes::cpu_ns;
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

/// The names of the targets that only this table has.
const NAMES: [&str; 3] = ["cluster", "redis-wait", "etcd"];

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
}

impl ReplicatedCase {
    const ALL: [Self; 4] = [Self::Put, Self::Update, Self::PutAndWait, Self::Outstanding];

    const fn name(self) -> &'static str {
        match self {
            Self::Put => "put, not waiting",
            Self::Update => "update of two blocks, not waiting",
            Self::PutAndWait => "put, until a follower has it",
            Self::Outstanding => "the same, 64 outstanding",
        }
    }

    /// Writes of one measured step.
    const fn writes(self) -> u64 {
        match self {
            Self::Put | Self::Update | Self::PutAndWait => 1,
            Self::Outstanding => OUTSTANDING,
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

    /// One step of a case, with the number of the step. False if the target does not have it.
    fn step(&mut self, case: ReplicatedCase, number: u64) -> Result<bool>;
}

/// What was measured of a case of a target: of each round.
#[derive(Debug, Default)]
struct ReplicatedResult {
    /// The median time of a step in nanoseconds.
    p50_ns: Vec<u64>,
    /// Writes per second.
    rate: Vec<f64>,
    /// Processor time of all processes per write, in nanoseconds.
    cpu_ns: Vec<f64>,
}

fn median<T: Copy + PartialOrd>(values: &[T]) -> Option<T> {
    let mut sorted = values.to_vec();
    sorted
        .sort_unstable_by(|one, other| one.partial_cmp(other).unwrap_or(std::cmp::Ordering::Equal));
    sorted.get(sorted.len() / 2).copied()
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

fn start(name: &str, options: &Options) -> Result<Box<dyn ReplicatedTarget>> {
    let folder = options.dir.join(format!("nearstate-bench-{name}-{}", std::process::id()));
    match name {
        "region" => Ok(Box::new(ours::LocalRegion::start(folder)?)),
        "cluster" => Ok(Box::new(ours::Cluster::start(folder)?)),
        "redis-wait" => Ok(Box::new(redis_wait::RedisWait::start(folder)?)),
        "etcd" => Ok(Box::new(etcd::Etcd::start(folder)?)),
        "geode" => Err(Error::BadArgument {
            detail:
                "geode: its redundant copies are measured by `--targets geode --layout zones`; \
                     a put of it returns when they have it, and there is no receipt to compare \
                     with: leave it out of this table"
                    .to_owned(),
        }),
        other => Err(Error::BadArgument {
            detail: format!(
                "the table of replicated writes has no target {other:?}: give some of region, {}",
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
    let mut targets = Vec::new();
    for name in &options.targets {
        targets.push(start(name, options)?);
    }
    let round_time = Duration::from_secs_f64(options.round_time.unwrap_or(ROUND_SECONDS));
    let mut results: BTreeMap<(ReplicatedCase, usize), ReplicatedResult> = BTreeMap::new();
    for round in 0..options.rounds.max(ROUNDS) {
        for case in ReplicatedCase::ALL {
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
    let (begin, cpu_before) = (Instant::now(), cpu_ns(&processes));
    let (mut times, mut number) = (Vec::new(), round << 32);
    while begin.elapsed() < round_time {
        let called = now_ns();
        if !target.step(case, number)? {
            return Ok(());
        }
        times.push(now_ns() - called);
        number += case.writes();
    }
    let seconds = begin.elapsed().as_secs_f64();
    let cpu = cpu_ns(&processes).saturating_sub(cpu_before);
    let writes = u32::try_from(times.len() as u64 * case.writes()).unwrap_or(u32::MAX);
    let result = entry.or_default();
    result.p50_ns.extend(median(&times));
    result.rate.push(f64::from(writes) / seconds);
    result.cpu_ns.push(Duration::from_nanos(cpu).as_secs_f64() * 1e9 / f64::from(writes));
    Ok(())
}

fn spread(rates: &[f64]) -> String {
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let most = rates.iter().copied().fold(0.0, f64::max);
    format!("{} to {}", rate_text(least), rate_text(most))
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
    let columns = "writes of 1 KiB|target|>p50|>writes/s|rounds|>CPU per write|>p50 to cluster";
    let mut table = ReportTable::new(columns);
    let ours = targets.iter().position(|target| target.name() == "cluster");
    for case in ReplicatedCase::ALL {
        let own = ours.and_then(|at| median(&results.get(&(case, at))?.p50_ns));
        for (at, target) in targets.iter().enumerate() {
            let Some(result) = results.get(&(case, at)) else { continue };
            let (Some(p50), Some(rate), Some(cpu)) =
                (median(&result.p50_ns), median(&result.rate), median(&result.cpu_ns))
            else {
                continue;
            };
            let ratio = own.map(|own| {
                Duration::from_nanos(p50).as_secs_f64()
                    / Duration::from_nanos(own.max(1)).as_secs_f64()
            });
            table.row(vec![
                case.name().to_owned(),
                target.name().to_owned(),
                latency_text(Duration::from_nanos(p50).as_secs_f64() * 1e9),
                rate_text(rate),
                spread(&result.rate),
                latency_text(cpu),
                ratio.map_or_else(String::new, ratio_text),
            ]);
        }
        table.rule();
    }
    text.push('\n');
    text.push_str(&table.text());
    text.push_str(
        "p50 with 64 outstanding is of the whole batch. CPU per write is of all processes of a \
         target and of this one.\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_value() {
        assert_eq!(median(&[3_u64, 1, 2]), Some(2));
        assert_eq!(median::<u64>(&[]), None);
    }

    #[test]
    fn every_step_of_a_case_has_as_many_writes_as_it_says() {
        let writes: Vec<_> = ReplicatedCase::ALL.iter().map(|case| case.writes()).collect();
        assert_eq!(writes, [1, 1, 1, 64]);
        assert_eq!(value(7).len(), VALUE_BYTES);
        assert_eq!(key(RECORDS + 3), key(3));
    }
}
