//! Compares two runs, with a verdict for each figure that claims no more than the rounds allow.
//!
//! A figure has one value for each round of each run. Whether the two groups differ is decided
//!
//! | rounds of each run | by |
//! |---|---|
//! | four and more | the two-sided Mann-Whitney U test, at 5 % |
//! | two or three | their means' 95 % confidence intervals (Student's t), which must not overlap |
//! | one | nothing: the figure stays undecided |
//!
//! Differences below [`RATIO_MIN`] are ignored. Two figures are called the same only if all rounds
//! of both runs are close to each other ([`CLOSE`]). There is no verdict if the runs differ in
//! anything that a figure depends on.

mod output;

pub use output::{page, text};

use crate::figures::{self, Figures, LatencyClass};
use crate::result::{CUT, LoadSettings, Run, TargetResult};
use crate::spread::{RANKS_MIN, RoundMeasurements, mann_whitney};
use std::collections::BTreeSet;

/// Differences below this factor are ignored: another layout of code or memory causes 2 %.
pub const RATIO_MIN: f64 = 1.02;

/// The rounds of both runs are the same if the largest and the smallest are within this factor.
pub const CLOSE: f64 = 1.05;

/// The significance level.
const SIGNIFICANCE: f64 = 0.05;

/// A larger difference in the machine's fixed work is noted.
const NOISE_RATIO_MAX: f64 = 1.05;

/// The comparison of two runs.
#[derive(Clone, Debug)]
pub struct Comparison<'r> {
    /// The first run, the base of the comparison.
    pub a: &'r Run,
    /// The second run.
    pub b: &'r Run,
    /// Reasons why no figure can be compared; empty if they can.
    pub obstacles: Vec<String>,
    /// Other differences, and caveats.
    pub notes: Vec<String>,
    /// The figures.
    pub rows: Vec<Row>,
}

/// A quantity that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Operations per second.
    Rate,
    /// Median latency.
    P50,
    /// 99th percentile of the latency.
    P99,
}

/// One figure of one class of one target.
#[derive(Clone, Debug)]
pub struct Row {
    pub target: String,
    /// The class of operations, or `all`.
    pub class: String,
    /// A quantity that is compared.
    pub figure: Figure,
    /// One value for each round of the first run.
    pub a: RoundMeasurements,
    /// One value for each round of the second run.
    pub b: RoundMeasurements,
    /// The result.
    pub verdict: ComparisonVerdict,
}

/// The result of comparing one figure.
#[derive(Clone, Debug, PartialEq)]
pub enum ComparisonVerdict {
    /// There is no difference above [`RATIO_MIN`], with the ground of this verdict.
    Same(VerdictReason),
    /// No difference was found, but rounds lie so far apart that one may exist. With the test that
    /// was used.
    Inconclusive(VerdictReason),
    /// The second run is faster.
    Faster(VerdictReason),
    /// The second run is slower.
    Slower(VerdictReason),
    /// There are too few rounds to decide.
    Undecided,
    /// The figures must not be compared, with the reason.
    NotComparable(String),
}

/// The ground of a verdict.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum VerdictReason {
    /// The Mann-Whitney U test: the probability of such an order by chance.
    Ranks(f64),
    /// Confidence intervals, which overlap or are disjoint.
    Intervals,
    /// All rounds lie within [`CLOSE`].
    Close,
    /// The medians differ by less than [`RATIO_MIN`].
    TooSmall,
}

/// Compares two runs.
pub fn compare<'r>(a: &'r Run, b: &'r Run) -> Comparison<'r> {
    let obstacles = obstacles(a, b);
    let (of_a, of_b) = (figures::of(a), figures::of(b));
    let mut rows = Vec::new();
    for one in &of_a {
        let other = of_b.iter().find(|other| other.target.name == one.target.name);
        if let Some(other) = other {
            let not = not_comparable(one, other, &obstacles)
                .or_else(|| steps_differ((a, one.target), (b, other.target)));
            rows.extend(compare_target(one, other, not.as_deref()));
        }
    }
    let mut notes = notes(a, b);
    notes.extend(missing(&of_a, &of_b, "the second"));
    notes.extend(missing(&of_b, &of_a, "the first"));
    notes.extend(multiple_tests(&rows));
    Comparison { a, b, obstacles, notes, rows }
}

/// The settings that must be equal in both runs: name and text of each.
fn conditions(run: &Run) -> Vec<(String, String)> {
    let (workload, load) = (&run.workload, &run.load);
    let parameters = &workload.parameters;
    let rate = load.rate.map_or("closed loop".to_owned(), |rate| {
        format!("{rate} op/s, {}", format!("{:?}", load.arrivals).to_lowercase())
    });
    let pinning = load.pinning.as_ref().map_or("none".to_owned(), |(clients, servers)| {
        format!("clients on {clients:?}, servers on {servers:?}")
    });
    let own = || "the workload's own".to_owned();
    let mut out: Vec<(String, String)> = [
        ("file format", run.format.to_string()),
        ("workload", workload.name.clone()),
        ("variant", parameters.variant.clone()),
        ("records", parameters.records.to_string()),
        ("spread", format!("{:?}", parameters.spread).to_lowercase()),
        ("client processes", load.clients.to_string()),
        ("operations sent together", load.depth.to_string()),
        ("offered rate", rate),
        ("microseconds between operations", load.think_us.to_string()),
        ("processor pinning", pinning),
        ("layout", load.layout.clone().unwrap_or_else(|| "default".to_owned())),
        ("server killed", load.kill.clone().unwrap_or_else(|| "none".to_owned())),
        ("bytes of a value", parameters.value_bytes.map_or_else(own, |bytes| bytes.to_string())),
        ("own records for each client", parameters.has_own_records.to_string()),
        ("connections per client", load.connections.max(1).to_string()),
        ("busy polling", load.is_busy_polling.to_string()),
        ("injected fault", load.fault.map_or_else(|| "none".to_owned(), |f| f.to_string())),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into_iter()
    .collect();
    let machine =
        run.machine.iter().map(|(name, value)| (format!("machine, {name}"), value.clone()));
    out.extend(machine);
    out
}

fn obstacles(a: &Run, b: &Run) -> Vec<String> {
    let (of_a, of_b) = (conditions(a), conditions(b));
    let mut names: Vec<&String> = Vec::new();
    for (name, _) in of_a.iter().chain(&of_b) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let value = |of: &[(String, String)], name: &str| {
        let found = of.iter().find(|(other, _)| other == name);
        found.map_or("unknown".to_owned(), |(_, value)| value.clone())
    };
    let differs = |name: &String| {
        let (of_a, of_b) = (value(&of_a, name), value(&of_b, name));
        (of_a != of_b).then(|| format!("{name}: {of_a} in the first, {of_b} in the second"))
    };
    names.into_iter().filter_map(differs).collect()
}

/// Differences that do not prevent a comparison but may explain a result.
fn notes(a: &Run, b: &Run) -> Vec<String> {
    let mut out = Vec::new();
    let mut differs = |name: &str, of_a: String, of_b: String| {
        if of_a != of_b {
            out.push(format!("{name}: {of_a} in the first, {of_b} in the second"));
        }
    };
    let (of_a, of_b) = (&a.load, &b.load);
    differs("operations of a client and round", of_a.ops.to_string(), of_b.ops.to_string());
    differs("length of a round", round_time(of_a), round_time(of_b));
    differs("after loading", settling(of_a), settling(of_b));
    differs("warm-up", of_a.warm_up.to_string(), of_b.warm_up.to_string());
    differs("rounds", of_a.rounds.to_string(), of_b.rounds.to_string());
    let seed = |run: &Run| run.workload.parameters.seed.to_string();
    differs("seed", seed(a), seed(b));
    for one in &a.targets {
        if let Some(other) = b.targets.iter().find(|other| other.name == one.name) {
            differs(
                &format!("version of {}", one.name),
                one.version.clone(),
                other.version.clone(),
            );
            differs(&format!("{} after loading", one.name), settled(one), settled(other));
            differs(&format!("features of {}", one.name), ways(&one.ways), ways(&other.ways));
        }
    }
    for one in &a.targets {
        let other = b.targets.iter().find(|other| other.name == one.name);
        out.extend(other.and_then(|other| note_of_steps((a, one), (b, other))));
    }
    for (run_name, run) in [("first", a), ("second", b)] {
        if run.is_partial {
            out.push(format!("the {run_name} run was stopped before its end"));
        }
    }
    for (run_name, run) in [("first", a), ("second", b)] {
        out.extend(figures::of(run).iter().flat_map(|figures| reasons(figures, run_name)));
    }
    out.extend(noise(a, b));
    out
}

fn round_time(load: &LoadSettings) -> String {
    load.round_time_s.map_or("unlimited".to_owned(), |s| format!("at most {s} s"))
}

fn settling(load: &LoadSettings) -> String {
    let words = if load.is_unsettled { "nothing (--no-settle)" } else { "what manuals advise" };
    words.to_owned()
}

fn settled(target: &TargetResult) -> String {
    target.settled.clone().unwrap_or_else(|| "unknown".to_owned())
}

/// The reasons why a target's figures are not compared.
fn reasons(figures: &Figures<'_>, run_name: &str) -> Vec<String> {
    let name = &figures.target.name;
    let declined = figures.target.declined.iter();
    let declined = declined.map(|why| format!("{name} declined in the {run_name} run: {why}"));
    let errors = figures.errors();
    let invalid =
        errors.iter().map(|why| format!("{name} is invalid in the {run_name} run: {why}"));
    declined.chain(invalid).collect()
}

fn ways(ways: &[(String, String)]) -> String {
    let each: Vec<String> = ways.iter().map(|(ability, way)| format!("{ability} {way}")).collect();
    each.join("; ")
}

/// A change in the time of the fixed work: the machine itself was faster or slower.
fn noise(a: &Run, b: &Run) -> Option<String> {
    let (of_a, of_b) = (figures::as_f64(a.noise.p50_ns), figures::as_f64(b.noise.p50_ns));
    let ratio = of_b / of_a;
    let is_known = a.noise.loops > 0 && b.noise.loops > 0 && ratio.is_finite();
    let is_off = !(1.0 / NOISE_RATIO_MAX..=NOISE_RATIO_MAX).contains(&ratio);
    (is_known && is_off).then(|| {
        format!(
            "the machine itself was {} in the second run: fixed work took {ratio:.2} times as \
             long; differences of that size say nothing about a target",
            if ratio > 1.0 { "slower" } else { "faster" }
        )
    })
}

fn missing(of: &[Figures<'_>], other: &[Figures<'_>], run_name: &str) -> Vec<String> {
    let there: BTreeSet<&str> = other.iter().map(|figures| figures.target.name.as_str()).collect();
    let names = of.iter().map(|figures| &figures.target.name);
    let lacking = names.filter(|name| !there.contains(name.as_str()));
    lacking.map(|name| format!("{name} is not in {run_name} run")).collect()
}

/// A note on multiple testing: at 5 %, some of many tests are significant by chance.
fn multiple_tests(rows: &[Row]) -> Option<String> {
    let tests = rows.iter().filter(|row| {
        matches!(
            row.verdict,
            ComparisonVerdict::Same(VerdictReason::Close)
                | ComparisonVerdict::Inconclusive(_)
                | ComparisonVerdict::Faster(_)
                | ComparisonVerdict::Slower(_)
        )
    });
    let tests = u32::try_from(tests.count()).unwrap_or(u32::MAX);
    let wrong = f64::from(tests) * SIGNIFICANCE;
    (wrong >= 1.0).then(|| {
        let differ = match wrong {
            one if one < 1.5 => "one of them differs".to_owned(),
            more => format!("{more:.0} of them differ"),
        };
        format!(
            "{tests} figures were tested at 5 %: about {differ} by chance alone; believe what \
             several of them say"
        )
    })
}

fn compare_target(a: &Figures<'_>, b: &Figures<'_>, not: Option<&str>) -> Vec<Row> {
    let mut out = Vec::new();
    let mut push = |one: &LatencyClass, other: &LatencyClass| {
        for figure in [Figure::Rate, Figure::P50, Figure::P99] {
            let (of_a, of_b) = (figure.of(one).clone(), figure.of(other).clone());
            let verdict = match not {
                Some(why) => ComparisonVerdict::NotComparable(why.to_owned()),
                None => verdict(figure, &of_a, &of_b),
            };
            out.push(Row {
                target: a.target.name.clone(),
                class: one.name.clone(),
                figure,
                a: of_a,
                b: of_b,
                verdict,
            });
        }
    };
    push(&a.all_classes(), &b.all_classes());
    // If the target is not compared, its classes are not compared either.
    let of_workload = a.classes.iter().filter(|class| class.name != CUT);
    for one in of_workload.filter(|_| not.is_none()) {
        if let Some(other) = b.classes.iter().find(|other| other.name == one.name) {
            push(one, other);
        }
    }
    out
}

fn not_comparable(a: &Figures<'_>, b: &Figures<'_>, obstacles: &[String]) -> Option<String> {
    if !obstacles.is_empty() {
        return Some("the runs differ".to_owned());
    }
    for (run_name, figures) in [("first", a), ("second", b)] {
        if figures.target.declined.is_some() {
            return Some(format!("declined in the {run_name} run"));
        }
        if !figures.is_valid() {
            return Some(format!("invalid in the {run_name} run"));
        }
        if figures.rates.count() == 0 {
            return Some(format!("not measured in the {run_name} run"));
        }
    }
    None
}

/// The reason why a target whose steps overlapped in only one run is not compared. An operation
/// among several overlapping steps waits for the earlier ones, and a store that always has work
/// behaves differently from one that alternates with its client. This is decided for each target,
/// because not every target lets steps overlap.
fn steps_differ(a: (&Run, &TargetResult), b: (&Run, &TargetResult)) -> Option<String> {
    let [of_a, of_b] = [a, b].map(|(run, target)| run.steps_of(target));
    let is_known = !a.1.rounds.is_empty() && !b.1.rounds.is_empty();
    (is_known && of_a != of_b).then(|| {
        format!(
            "its steps were {} in the first run, {} in the second",
            steps_text(of_a),
            steps_text(of_b)
        )
    })
}

fn steps_text(steps: Option<usize>) -> String {
    match steps {
        None => "not the same for all clients or rounds".to_owned(),
        Some(1) => "sequential".to_owned(),
        Some(steps) => format!("{steps} at once"),
    }
}

/// A note on overlapping steps: why no verdict is given.
fn note_of_steps(a: (&Run, &TargetResult), b: (&Run, &TargetResult)) -> Option<String> {
    steps_differ(a, b).map(|why| format!("{} is not compared: {why}", a.1.name))
}

impl Figure {
    fn of(self, class: &LatencyClass) -> &RoundMeasurements {
        match self {
            Self::Rate => &class.rates,
            Self::P50 => &class.p50s,
            Self::P99 => &class.p99s,
        }
    }
}

fn verdict(figure: Figure, a: &RoundMeasurements, b: &RoundMeasurements) -> ComparisonVerdict {
    let fewest = a.count().min(b.count());
    if fewest < 2 {
        return ComparisonVerdict::Undecided;
    }
    let (differs, ground) = if fewest >= RANKS_MIN {
        let p = mann_whitney(a, b);
        (p < SIGNIFICANCE, VerdictReason::Ranks(p))
    } else {
        let apart = a.interval_95().zip(b.interval_95());
        let apart = apart.is_some_and(|(a, b)| a.1 < b.0 || b.1 < a.0);
        (apart, VerdictReason::Intervals)
    };
    let ratio = b.median() / a.median();
    if !differs {
        let (min, max) = (a.min().min(b.min()), a.max().max(b.max()));
        let is_close = max <= CLOSE * min;
        return if is_close {
            ComparisonVerdict::Same(VerdictReason::Close)
        } else {
            ComparisonVerdict::Inconclusive(ground)
        };
    }
    if !(ratio >= RATIO_MIN || ratio <= 1.0 / RATIO_MIN) {
        return ComparisonVerdict::Same(VerdictReason::TooSmall);
    }
    match (figure, ratio > 1.0) {
        (Figure::Rate, true) | (Figure::P50 | Figure::P99, false) => {
            ComparisonVerdict::Faster(ground)
        }
        (Figure::Rate, false) | (Figure::P50 | Figure::P99, true) => {
            ComparisonVerdict::Slower(ground)
        }
    }
}

#[cfg(test)]
mod tests;
