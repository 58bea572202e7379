//! The result of a run, as it is saved, compared and shown. The fields are the file's format:
//! [`FORMAT`] changes with their meaning.

use crate::parameters::{Arrivals, Fault, Parameters};
use crate::stat::{Latencies, as_f64};
use serde::{Deserialize, Deserializer, Serialize};

/// The format version of a saved run. A file of another version is refused.
pub const FORMAT: u32 = 2;

/// The class of operations that were in flight when a connection was lost. They belong to no class
/// of the workload, because their latency is that of the reconnect.
pub const CUT: &str = "cut by a reconnect";

/// A whole run: one workload on several targets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// [`FORMAT`].
    pub format: u32,
    /// The command that made it.
    pub command: String,
    /// Seconds since 1970 when it began.
    pub began_s: u64,
    /// Properties of the machine: name and value.
    pub machine: Vec<(String, String)>,
    /// How steady the machine was before the run.
    pub noise: Noise,
    pub workload: About,
    #[serde(rename = "drive")]
    pub load: LoadSettings,
    /// The results of each target, in the order in which they were given.
    pub targets: Vec<TargetResult>,
    /// Caveats.
    pub caveats: Vec<String>,
    /// Reasons why the run does not count; empty if it does. Each target also has its own reasons.
    pub invalid: Vec<String>,
    /// True if it was stopped before its end.
    pub is_partial: bool,
}

/// A workload and its parameters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct About {
    pub name: String,
    pub title: String,
    /// Where it is defined.
    pub source: String,
    pub parameters: Parameters,
    /// Figures that papers measured on their machines.
    #[serde(rename = "foreign")]
    pub paper_figures: Vec<PaperFigure>,
}

/// How the operations were issued.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadSettings {
    /// Client processes.
    pub clients: usize,
    /// Operations of a client in flight.
    pub depth: usize,
    /// Operations of each client and round.
    pub ops: u64,
    /// Operations before them that are not measured.
    pub warm_up: u64,
    /// Rounds; each measures every target once.
    pub rounds: usize,
    /// Offered operations per second of all clients together; `None`: a closed loop.
    pub rate: Option<f64>,
    /// Distribution of the intended starts of an open loop.
    pub arrivals: Arrivals,
    /// Microseconds between two operations of a client, in a closed loop.
    pub think_us: u64,
    /// Processors of the clients and of the servers, where they were kept apart.
    pub pinning: Option<(Vec<usize>, Vec<usize>)>,
    /// How targets that have several layouts keep their records; `None`: as each does by itself.
    pub layout: Option<String>,
    /// The target whose server was killed in the middle round.
    pub kill: Option<String>,
    /// The fault that was injected between clients and targets.
    pub fault: Option<Fault>,
    /// The longest duration of a round in seconds. Slow targets get fewer operations.
    pub round_time_s: Option<f64>,
    /// The bound of the ramp's p99, in nanoseconds.
    pub ramp_p99_ns: Option<u64>,
    /// True if targets were left as loaded, without their vendors' advice (`--no-settle`).
    pub is_unsettled: bool,
    /// Connections of each client; 0 and 1 are one.
    pub connections: usize,
    /// Clients that are not measured: the last ones.
    pub background: usize,
    /// Operations that were measured together; 0 and 1 are one.
    pub block_ops: u64,
    /// True if nodes and rings busy-polled.
    pub is_busy_polling: bool,
}

/// The noise of the machine: a loop of fixed work, executed many times.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Noise {
    /// Executions of the loop.
    pub loops: u64,
    /// Median time of the loop, in nanoseconds.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Processes that wanted to run in the last minute (`/proc/loadavg`).
    #[serde(deserialize_with = "number")]
    pub load: f64,
}

/// One target's part of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TargetResult {
    pub name: String,
    pub version: String,
    /// The work between loading and the first trial, if any.
    pub settled: Option<String>,
    /// Ability and how it is provided, for those that the workload needs.
    pub ways: Vec<(String, String)>,
    /// Why it declined.
    pub declined: Option<String>,
    /// The number of loaded records, and the duration of loading in nanoseconds.
    pub loaded: (u64, u64),
    /// Its trials.
    pub rounds: Vec<Round>,
    /// Rate against latency, if a ramp was requested, in ascending order of the offered rate.
    pub ramp: Vec<RampPoint>,
    /// Memory after the run, in bytes.
    pub memory_bytes: Option<u64>,
    /// The result of the comparison with the model.
    pub verdict: Option<RecordVerification>,
    /// Figures of the generator, with their expected values.
    pub checks: Vec<Check>,
    /// How often a client lost its connection and reconnected.
    pub reconnects: u64,
    /// Why its results do not count.
    pub invalid: Vec<String>,
}

/// One trial: the part of a round in which one target runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Operations of all clients, including those that a reconnect cut.
    pub ops: u64,
    /// From the first client's start to the last one's end, in nanoseconds.
    pub wall_ns: u64,
    /// Time of the clients' threads, without waits for intended starts and pauses, in nanoseconds.
    pub client_cpu_ns: u64,
    /// Time of the target's own processes, in nanoseconds.
    pub server_cpu_ns: u64,
    /// Bytes of keys and parts that clients sent.
    pub bytes_out: u64,
    /// Bytes of keys and parts that they received.
    pub bytes_in: u64,
    /// Operations without effect, as the workload allows.
    pub unsuccessful: u64,
    /// Steps that each client had in flight at once, if all had as many; 1: one after the other.
    pub steps: Option<usize>,
    /// Latencies of each class.
    pub classes: Vec<ClassResult>,
    /// The trial in slices of time.
    pub slices: Vec<TimeSlice>,
}

/// Latencies of one class of operations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassResult {
    pub name: String,
    /// Latency in nanoseconds and its count, ascending.
    pub latencies: Vec<(u64, u64)>,
}

/// A short period of a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeSlice {
    /// Its start, in milliseconds from the start of the trial.
    pub at_ms: u64,
    /// Its length, in milliseconds.
    pub ms: u64,
    /// Operations that ended in it.
    pub ops: u64,
    /// Median latency, in nanoseconds.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl TimeSlice {
    /// Two slices as one: the sum of the operations, the mean of the medians, weighted by the
    /// operations, and the larger of the other figures.
    #[must_use]
    pub fn merged(self, other: Self) -> Self {
        let ops = self.ops + other.ops;
        let weighted = self.p50_ns * self.ops + other.p50_ns * other.ops;
        Self {
            ops,
            p50_ns: weighted.checked_div(ops).unwrap_or(0),
            p99_ns: self.p99_ns.max(other.p99_ns),
            max_ns: self.max_ns.max(other.max_ns),
            ..self
        }
    }
}

/// A point of the curve of rate against latency.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RampPoint {
    /// Operations per second that were offered.
    #[serde(deserialize_with = "number")]
    pub offered: f64,
    /// Operations per second that were achieved.
    #[serde(deserialize_with = "number")]
    pub done: f64,
    /// Median latency from the intended start, in nanoseconds.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// True if the p99 stayed below the bound and the rate was reached.
    pub is_sustained: bool,
}

/// JSON has no NaN: it is written as `null`. Read back as NaN, so that a run whose generator
/// divided by zero can be opened.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Option::<f64>::deserialize(from).map(|number| number.unwrap_or(f64::NAN))
}

/// The result of comparing every record with the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordVerification {
    /// Records compared.
    pub records: u64,
    /// Wrong records.
    pub wrong: u64,
    /// Correct records that do not exist: not yet created, or deleted.
    pub absent: u64,
    /// Descriptions of some wrong records.
    pub examples: Vec<String>,
}

/// The largest number of described wrong records.
const EXAMPLES_MAX: usize = 8;

impl RecordVerification {
    /// Counts a correct record, which exists or not.
    pub fn right(&mut self, exists: bool) {
        self.records += 1;
        self.absent += u64::from(!exists);
    }

    /// Counts a record, which exists or not.
    pub fn count(&mut self, is_right: bool, exists: bool, example: impl FnOnce() -> String) {
        if is_right {
            self.right(exists);
        } else {
            self.wrong(example);
        }
    }

    /// Counts a wrong record.
    #[cold]
    pub fn wrong(&mut self, example: impl FnOnce() -> String) {
        self.records += 1;
        self.wrong += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(example());
        }
    }

    /// Adds the result of another client.
    pub fn add(&mut self, other: Self) {
        self.records += other.records;
        self.wrong += other.wrong;
        self.absent += other.absent;
        let room = EXAMPLES_MAX.saturating_sub(self.examples.len());
        self.examples.extend(other.examples.into_iter().take(room));
    }
}

/// A figure of the generator and the value that its source requires.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    pub name: String,
    /// The required value.
    #[serde(deserialize_with = "number")]
    pub expected: f64,
    /// The measured value.
    #[serde(deserialize_with = "number")]
    pub found: f64,
    /// The largest allowed difference.
    #[serde(deserialize_with = "number")]
    pub tolerance: f64,
    /// The number of draws: the weight in the average of several clients.
    #[serde(deserialize_with = "number")]
    pub weight: f64,
}

impl Check {
    /// True if the difference is allowed.
    pub fn holds(&self) -> bool {
        self.weight == 0.0 || (self.found - self.expected).abs() <= self.tolerance
    }
}

/// A figure of a paper.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PaperFigure {
    /// The paper and the section or table.
    pub source: String,
    /// What was measured, on which machine.
    pub what: String,
    /// The figure, with its unit.
    pub figure: String,
}

impl Run {
    /// Steps that each client of a target had in flight, if all had as many in all rounds; 1 if
    /// they did not overlap.
    pub fn steps_of(&self, target: &TargetResult) -> Option<usize> {
        let first = target.rounds.first()?.steps?;
        target.rounds.iter().all(|round| round.steps == Some(first)).then_some(first)
    }
}

impl Round {
    /// Operations that a lost connection interrupted ([`CUT`]), executed or not.
    pub fn cut(&self) -> u64 {
        let cut = self.classes.iter().filter(|class| class.name == CUT);
        cut.flat_map(|class| &class.latencies).fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Operations that no lost connection cut.
    pub fn done(&self) -> u64 {
        self.ops.saturating_sub(self.cut())
    }

    /// Operations per second, without those that were cut.
    pub fn rate(&self) -> f64 {
        as_f64(self.done()) * 1e9 / as_f64(self.wall_ns.max(1))
    }

    /// Latencies of all classes together.
    pub fn latencies(&self) -> Latencies {
        self.classes.iter().flat_map(|class| &class.latencies).collect()
    }
}
