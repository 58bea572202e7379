//! Writes that survive their host: what a commit costs that a follower has, against `SET` and
//! `WAIT` of Redis with one replica and `put` of etcd with three members.
//!
//! `nearstate bench run ue-signalling --targets region,cluster,redis-wait,etcd` prints the table.
//! All targets run at the same time and are measured in turn, round by round, on the same
//! processors, so that a busy machine slows all of them: all servers share one, and the client,
//! which is this process, has another one.

mod etcd;
mod geode;
mod ours;
mod placement;
mod redis_wait;
mod report;

pub use report::{FORMAT, ReplicatedRun, page, text};

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nearstate_model::{Error, Result};

use crate::clock::monotonic_ns as now_ns;
use crate::machine::Machine;
use crate::options::Options;
use crate::processes::cpu_ns;
use crate::run_frame::RunFrame;
use crate::stat::{Latencies, as_f64};
use placement::Placement;
use report::{CaseRound, ReplicatedCaseResult};

/// Bytes of a value.
const VALUE_BYTES: usize = 1024;

/// Records of a target.
const RECORDS: u64 = 10_000;

/// Writes that are outstanding together, in the last case.
const OUTSTANDING: u64 = 64;

/// Seconds of a case of a target in a round, unless the options say otherwise.
const ROUND_SECONDS: f64 = 1.0;

/// The time of the round that is not measured, at most.
const WARM_UP: Duration = Duration::from_millis(300);

/// Bytes of a block, of which an update writes two.
const BLOCK_BYTES: usize = 170;

/// Its name in errors, and the options that have a meaning here.
pub const NAME: &str = "the table of replicated writes";
pub const OPTIONS: [&str; 10] = [
    "--targets",
    "--variant",
    "--rounds",
    "--round-time",
    "--unpinned",
    "--server-cpus",
    "--dir",
    "--save",
    "--report",
    "--json",
];

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

    /// The bytes of the record that a case writes for this number; `None` if it does not exist.
    fn read(&mut self, case: ReplicatedCase, number: u64) -> Result<Option<Vec<u8>>>;

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
    backend_error!("{detail}")
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
        other => Err(bad_argument!(
            "the table of replicated writes has no target {other:?}: give some of region, \
                 geode, {}",
            NAMES.join(", ")
        )),
    }
}

/// The records that the steps of a target have written last, to be read back.
#[derive(Clone)]
struct LastWrites {
    puts: Vec<Option<u64>>,
    updates: Vec<Option<u64>>,
}

impl LastWrites {
    fn new() -> Self {
        let none = vec![None; usize::try_from(RECORDS).unwrap_or(0)];
        Self { puts: none.clone(), updates: none }
    }

    fn add(&mut self, case: ReplicatedCase, numbers: Range<u64>) {
        let records = match case {
            ReplicatedCase::Update => &mut self.updates,
            ReplicatedCase::Put
            | ReplicatedCase::PutAndWait
            | ReplicatedCase::Outstanding
            | ReplicatedCase::Steady => &mut self.puts,
            // They are read back after their round, and deleted.
            ReplicatedCase::Insert => return,
        };
        for number in numbers {
            let at = usize::try_from(number % RECORDS).ok();
            if let Some(record) = at.and_then(|at| records.get_mut(at)) {
                *record = Some(number);
            }
        }
    }

    /// Reads all of them. Returns the first difference.
    fn check(&self, target: &mut dyn ReplicatedTarget) -> Result<Option<String>> {
        let cases = [(ReplicatedCase::Put, &self.puts), (ReplicatedCase::Update, &self.updates)];
        for (case, records) in cases {
            let found = difference(target, case, records.iter().copied().flatten())?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

/// The first of these writes that a target does not have.
fn difference(
    target: &mut dyn ReplicatedTarget,
    case: ReplicatedCase,
    numbers: impl Iterator<Item = u64>,
) -> Result<Option<String>> {
    let bytes = if case == ReplicatedCase::Update { BLOCK_BYTES / 8 * 8 } else { VALUE_BYTES };
    for number in numbers {
        let found = target.read(case, number)?.unwrap_or_default();
        if found.len() != bytes
            || found.as_chunks::<8>().0.iter().any(|one| *one != number.to_le_bytes())
        {
            let name = target.name();
            let detail = format!("{name}: the write {number} of {:?} is not there", case.names().0);
            return Ok(Some(detail));
        }
    }
    Ok(None)
}

/// A target with the records that it must have.
type RunningTarget = (Box<dyn ReplicatedTarget>, LastWrites);

/// Starts a target and puts all records. The tables of a region are filled when it starts.
fn start_filled(name: &str, options: &Options, bound: Option<&Placement>) -> Result<RunningTarget> {
    let mut target = Placement::start(bound, || start(name, options))?;
    let mut written = LastWrites::new();
    written.add(ReplicatedCase::Put, 0..RECORDS);
    for number in (0..RECORDS).step_by(usize::try_from(OUTSTANDING).unwrap_or(1)) {
        if !target.step(ReplicatedCase::Outstanding, number)? {
            break;
        }
        written.add(ReplicatedCase::Outstanding, number..number + OUTSTANDING);
    }
    target.wait_replicated()?;
    Ok((target, written))
}

/// Measures the table.
///
/// # Errors
/// `BadArgument`: a workload, variant or target that the table does not have. `Backend`: a target
/// fails.
pub fn measure(options: &Options, command: &str, stop: &AtomicBool) -> Result<ReplicatedRun> {
    if options.workload.as_deref() != Some("ue-signalling") {
        return Err(bad_argument!(
            "the targets {} are those of ue-signalling only",
            NAMES.join(", ")
        ));
    }
    let cases = ReplicatedCase::selected(options.variant.as_deref())?;
    let mut frame = RunFrame::begin(command, &Machine::detect());
    let bound = Placement::bind(options)?;
    frame.caveats.extend(caveats(bound.as_ref()));
    let mut targets = Vec::new();
    for name in &options.targets {
        targets.push(start_filled(name, options, bound.as_ref())?);
    }
    let round_time = Duration::from_secs_f64(options.round_time.unwrap_or(ROUND_SECONDS));
    let mut results: BTreeMap<(ReplicatedCase, usize), ReplicatedCaseResult> = BTreeMap::new();
    let mut invalid = Vec::new();
    // The first round is the warm-up.
    for round in 0..=options.rounds {
        let time = if round == 0 { round_time.min(WARM_UP) } else { round_time };
        for case in cases.iter().copied() {
            let mut order: Vec<usize> = (0..targets.len()).collect();
            if round % 2 == 0 {
                order.reverse();
            }
            for at in order {
                let Some(target) = targets.get_mut(at) else { continue };
                if stop.load(Ordering::Relaxed) {
                    continue;
                }
                let Some(measured) = measure_case(target, (case, round), time, &mut invalid)?
                else {
                    continue;
                };
                if round > 0 {
                    results.entry((case, at)).or_default().rounds.push(measured);
                }
            }
        }
    }
    for (target, written) in &mut targets {
        invalid.extend(written.check(target.as_mut())?);
    }
    let results = results.into_iter().filter_map(|((case, at), result)| {
        let (name, _) = case.names();
        let target = targets.get(at)?.0.name().to_owned();
        Some(ReplicatedCaseResult { case: name.to_owned(), target, ..result })
    });
    (frame.invalid, frame.is_partial) = (invalid, stop.load(Ordering::Relaxed));
    Ok(ReplicatedRun {
        replicated_format: FORMAT,
        frame,
        durability: targets
            .iter()
            .map(|(target, _)| (target.name().to_owned(), target.durability().to_owned()))
            .collect(),
        results: results.collect(),
    })
}

fn caveats(bound: Option<&Placement>) -> [String; 2] {
    let pairs = "cluster-2 and redis-wait have one follower each, cluster and redis-wait-2 two: \
                 compare those";
    [Placement::caveat(bound), pairs.to_owned()]
}

/// A case of a target in a round; `None` if the target does not have the case.
fn measure_case(
    (target, written): &mut RunningTarget,
    (case, round): (ReplicatedCase, u64),
    round_time: Duration,
    invalid: &mut Vec<String>,
) -> Result<Option<CaseRound>> {
    let target = target.as_mut();
    let mut processes = target.processes();
    processes.push(std::process::id());
    let followers = target.followers();
    let (begin, cpu_before) = (Instant::now(), cpu_ns(&processes));
    let follower_before = cpu_ns(&followers);
    let (mut times, first) = (Latencies::new(), (round + 1) << 32);
    let mut number = first;
    while begin.elapsed() < round_time
        && (case != ReplicatedCase::Insert || number - first < INSERTS_MAX)
    {
        let called = now_ns();
        if !target.step(case, number)? {
            return Ok(None);
        }
        times.record(now_ns() - called, 1);
        number += case.writes();
    }
    let beside = target.wait_replicated()?;
    // Writes that followers do not have are not done.
    let seconds = begin.elapsed().as_secs_f64();
    let cpu = cpu_ns(&processes).saturating_sub(cpu_before);
    let follower = cpu_ns(&followers).saturating_sub(follower_before);
    // Steps of one case name consecutive records, so that the numbers of a round are enough.
    written.add(case, first..number);
    if case == ReplicatedCase::Insert {
        invalid.extend(difference(target, case, first..number)?);
        target.clear(first..number)?;
    }
    if !beside.is_empty() {
        times.clear();
        for ns in &beside {
            times.record(*ns, 1);
        }
    }
    let writes = as_f64(number - first);
    let of_follower = as_f64(follower) / writes / as_f64(followers.len() as u64);
    Ok(Some(CaseRound {
        p50_ns: times.percentile(50.0),
        p99_ns: times.percentile(99.0),
        rate: writes / seconds,
        cpu_ns: as_f64(cpu) / writes,
        follower_ns: (!followers.is_empty()).then_some(of_follower),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// A target in memory that may lose a write.
    struct LosingTarget {
        values: BTreeMap<String, Vec<u8>>,
        lost: Option<u64>,
    }

    impl ReplicatedTarget for LosingTarget {
        fn name(&self) -> &'static str {
            "losing"
        }

        fn durability(&self) -> &'static str {
            "none"
        }

        fn processes(&self) -> Vec<u32> {
            Vec::new()
        }

        fn step(&mut self, _: ReplicatedCase, number: u64) -> Result<bool> {
            if self.lost != Some(number) {
                self.values.insert(key(number), value(number));
            }
            Ok(true)
        }

        fn read(&mut self, _: ReplicatedCase, number: u64) -> Result<Option<Vec<u8>>> {
            Ok(self.values.get(&key(number)).cloned())
        }
    }

    #[test]
    fn a_lost_write_is_found() {
        for lost in [None, Some(5), Some(RECORDS + 3)] {
            let mut target = LosingTarget { values: BTreeMap::new(), lost };
            let mut written = LastWrites::new();
            for number in 0..RECORDS + 10 {
                target.step(ReplicatedCase::Put, number).unwrap();
                written.add(ReplicatedCase::Put, number..number + 1);
            }
            // The loss of 5 was overwritten by the write of RECORDS + 5.
            let is_found = written.check(&mut target).unwrap().is_some();
            assert_eq!(is_found, lost == Some(RECORDS + 3), "{lost:?}");
        }
    }
}
