//! The figures of a target, for tables, the page and comparisons.

use crate::result::{RecordVerification, Round, Run, TargetResult, TimeSlice};
use crate::spread::RoundMeasurements;
use crate::stat::Latencies;
pub(crate) use crate::stat::as_f64;
use crate::table::{count_text, counted};
use crate::targets::prototype;

/// Percentiles of every table, with their names.
pub const PERCENTILES: [(&str, f64); 5] =
    [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9), ("p99.99", 99.99)];

/// The largest number of points of a chart over time.
const MOMENTS_MAX: usize = 500;

/// The smallest length of the last slice of a round, as a share of a slice.
const SLICE_SHARE_MIN: f64 = 0.05;

/// The target without storage: the cost of generator and driver.
pub const NULL: &str = "null";

/// The smallest store that is possible: the limit of the machine.
pub const PROTOTYPE: &str = prototype::NAME;

/// The figures of a target.
#[derive(Clone, Debug)]
pub struct Figures<'r> {
    /// Its results.
    pub target: &'r TargetResult,
    /// Operations per second of each round.
    pub rates: RoundMeasurements,
    /// Latencies of all classes and rounds.
    pub latencies: Latencies,
    /// Its classes, in the order of their first operation.
    pub classes: Vec<LatencyClass>,
    /// Operations of all rounds, without those that a reconnect interrupted.
    pub ops: u64,
    /// Operations that a reconnect interrupted.
    pub cut: u64,
    /// Unsuccessful operations of all rounds.
    pub unsuccessful: u64,
    /// The cost of one operation, over all rounds; `None` without operations.
    pub cost: Option<Cost>,
    /// Records at the end: those that the comparison found, otherwise those loaded.
    pub records: u64,
}

/// The cost of one operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Time of the clients' threads, in nanoseconds.
    pub client_ns: f64,
    /// Time of the target's own processes, in nanoseconds.
    pub server_ns: f64,
    /// Bytes sent by the client.
    pub bytes_out: f64,
    /// Bytes received by the client.
    pub bytes_in: f64,
}

/// One class of operations.
#[derive(Clone, Debug)]
pub struct LatencyClass {
    pub name: String,
    /// Operations per second of each round that has operations of this class.
    pub rates: RoundMeasurements,
    /// Median latency of each of these rounds, in nanoseconds.
    pub p50s: RoundMeasurements,
    /// 99th percentile of each of these rounds, in nanoseconds.
    pub p99s: RoundMeasurements,
    /// Latencies of all rounds.
    pub latencies: Latencies,
}

/// The figures of every target of a run.
pub fn of(run: &Run) -> Vec<Figures<'_>> {
    run.targets.iter().map(Figures::new).collect()
}

/// The target that the others are compared with: the first one that was measured.
pub fn reference<'f, 'r>(all: &'f [Figures<'r>]) -> Option<&'f Figures<'r>> {
    all.iter().find(|figures| figures.rates.count() > 0)
}

/// The fastest target except the null target, and the generator's share of its time per operation.
/// `None` without a null target, with a given rate, or with pauses.
pub fn generator_share(run: &Run, all: &[Figures<'_>]) -> Option<(String, f64)> {
    if run.load.rate.is_some() || run.load.think_us > 0 {
        return None;
    }
    let is_null = |figures: &&Figures<'_>| figures.target.name == NULL;
    let measured = || all.iter().filter(|figures| figures.rates.median() > 0.0);
    let null = measured().find(is_null)?.rates.median();
    let others = measured().filter(|figures| !is_null(figures));
    let fastest = others.max_by(|a, b| a.rates.median().total_cmp(&b.rates.median()))?;
    Some((fastest.target.name.clone(), fastest.rates.median() / null))
}

/// The time of an operation of one target divided by that of another, for each round in which both
/// were measured: a machine that is slow for a round does not change it.
pub fn time_ratios(own: &TargetResult, other: &TargetResult) -> RoundMeasurements {
    let pairs = own.rounds.iter().zip(&other.rounds);
    let measured = pairs.filter(|(own, other)| own.done() > 0 && other.done() > 0);
    RoundMeasurements::new(measured.map(|(own, other)| other.rate() / own.rate()))
}

/// [`time_ratios`] of a target and the prototype of the same run; `None` if either was not
/// measured, for the prototype itself, and if the rate was given.
pub fn times_prototype(run: &Run, target: &TargetResult) -> Option<RoundMeasurements> {
    let prototype = run.targets.iter().find(|target| target.name == PROTOTYPE)?;
    if run.load.rate.is_some() || target.name == PROTOTYPE || target.name == NULL {
        return None;
    }
    Some(time_ratios(target, prototype)).filter(|ratios| ratios.count() > 0)
}

impl<'r> Figures<'r> {
    pub fn new(target: &'r TargetResult) -> Self {
        let rounds = || target.rounds.iter().filter(|round| round.ops > 0);
        let sum = |of: fn(&Round) -> u64| rounds().map(of).fold(0, u64::saturating_add);
        let ops = sum(Round::done);
        let of_each = |total: u64| as_f64(total) / as_f64(ops);
        let cost = (ops > 0).then(|| Cost {
            client_ns: of_each(sum(|r| r.client_cpu_ns)),
            server_ns: of_each(sum(|r| r.server_cpu_ns)),
            bytes_out: of_each(sum(|r| r.bytes_out)),
            bytes_in: of_each(sum(|r| r.bytes_in)),
        });
        let mut latencies = Latencies::new();
        rounds().for_each(|round| latencies.add(&round.latencies()));
        let existing =
            |verdict: &RecordVerification| verdict.records.saturating_sub(verdict.absent);
        let compared = target.verdict.as_ref().map_or(0, existing);
        Self {
            target,
            rates: RoundMeasurements::new(rounds().map(Round::rate)),
            latencies,
            classes: classes(target),
            ops,
            cut: sum(Round::cut),
            unsuccessful: sum(|r| r.unsuccessful),
            cost,
            records: if compared > 0 { compared } else { target.loaded.0 },
        }
    }

    /// All classes as one.
    pub fn all_classes(&self) -> LatencyClass {
        let rounds = self.target.rounds.iter().filter(|round| round.ops > 0);
        let each = rounds.map(|round| (round.rate(), round.latencies()));
        LatencyClass::of("all", each)
    }

    /// Memory of one record, in bytes.
    pub fn memory_per_record(&self) -> Option<f64> {
        let bytes = self.target.memory_bytes.filter(|_| self.records > 0)?;
        Some(as_f64(bytes) / as_f64(self.records))
    }

    /// True if the target was measured without an error.
    pub fn is_valid(&self) -> bool {
        self.target.declined.is_none() && self.errors().is_empty()
    }

    /// The reasons why the figures are invalid.
    pub fn errors(&self) -> Vec<String> {
        let target = self.target;
        if !target.invalid.is_empty() {
            return target.invalid.clone();
        }
        let mut out = Vec::new();
        if let Some(verdict) = target.verdict.as_ref().filter(|v| v.wrong > 0) {
            let (wrong, records) = (verdict.wrong, verdict.records);
            let of = format!("{} of {}", count_text(wrong), counted(records, "record"));
            let are = if wrong == 1 { "is" } else { "are" };
            out.push(format!("{of} {are} wrong"));
        }
        let failed = target.checks.iter().filter(|check| !check.holds());
        out.extend(failed.map(|check| format!("the generator was off: {}", check.name)));
        out
    }
}

fn classes(target: &TargetResult) -> Vec<LatencyClass> {
    let mut names: Vec<&str> = Vec::new();
    for class in target.rounds.iter().flat_map(|round| &round.classes) {
        if !class.latencies.is_empty() && !names.contains(&class.name.as_str()) {
            names.push(&class.name);
        }
    }
    names.into_iter().map(|name| class(target, name)).collect()
}

fn class(target: &TargetResult, name: &str) -> LatencyClass {
    let each = target.rounds.iter().map(|round| {
        let own = round.classes.iter().filter(|class| class.name == name);
        let latencies: Latencies = own.flat_map(|class| &class.latencies).collect();
        (as_f64(latencies.count()) * 1e9 / as_f64(round.wall_ns.max(1)), latencies)
    });
    LatencyClass::of(name, each.filter(|(_, latencies)| latencies.count() > 0))
}

impl LatencyClass {
    /// Of the rates and latencies of each round.
    fn of(name: &str, rounds: impl Iterator<Item = (f64, Latencies)>) -> Self {
        let mut all = Latencies::new();
        let (mut rates, mut p50s, mut p99s) = (Vec::new(), Vec::new(), Vec::new());
        for (rate, latencies) in rounds {
            all.add(&latencies);
            rates.push(rate);
            p50s.push(as_f64(latencies.percentile(50.0)));
            p99s.push(as_f64(latencies.percentile(99.0)));
        }
        let [rates, p50s, p99s] = [rates, p50s, p99s].map(RoundMeasurements::new);
        Self { name: name.to_owned(), rates, p50s, p99s, latencies: all }
    }
}

/// The figures of a slice of time, of all measured rounds in sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment {
    /// Measured nanoseconds before it.
    pub at_ns: f64,
    /// Operations per second.
    pub rate: f64,
    /// Median latency, in nanoseconds; 0 if no operation ended.
    pub p50_ns: f64,
    /// 99th percentile, in nanoseconds.
    pub p99_ns: f64,
    /// The longest, in nanoseconds.
    pub max_ns: f64,
}

/// All rounds of a target in sequence, and the start of each except the first. A slice in which no
/// operation ended has a rate of 0, so that a stall is visible.
pub fn timeline(target: &TargetResult) -> (Vec<Moment>, Vec<f64>) {
    let slices: usize = target.rounds.iter().map(|round| round.slices.len()).sum();
    let together = slices.div_ceil(MOMENTS_MAX).max(1);
    let (mut moments, mut borders, mut before) = (Vec::new(), Vec::new(), 0.0);
    for (number, round) in target.rounds.iter().enumerate() {
        if number > 0 {
            borders.push(before);
        }
        let mut end_ms = 0;
        for group in round.slices.chunks(together) {
            let Some(first) = group.first() else { continue };
            if first.at_ms > end_ms {
                moments.extend([idle_moment(before, end_ms), idle_moment(before, first.at_ms)]);
            }
            moments.push(merged(before, group, as_f64(round.wall_ns)));
            end_ms = group.last().map_or(end_ms, |last| last.at_ms + last.ms);
        }
        before += (as_f64(end_ms) * 1e6).max(as_f64(round.wall_ns));
    }
    (moments, borders)
}

fn idle_moment(before: f64, at_ms: u64) -> Moment {
    Moment { at_ns: before + as_f64(at_ms) * 1e6, rate: 0.0, p50_ns: 0.0, p99_ns: 0.0, max_ns: 0.0 }
}

/// Merges neighbouring slices: takes the largest p99, so that a stall stays visible, and the mean
/// of the medians. The last slice of a round ends with the round, `wall_ns` after its start.
fn merged(before: f64, group: &[TimeSlice], wall_ns: f64) -> Moment {
    let start = group.first().map_or(0, |slice| slice.at_ms);
    let ops: f64 = group.iter().map(|slice| as_f64(slice.ops)).sum();
    let ns = |slice: &TimeSlice| {
        let whole = as_f64(slice.ms.max(1)) * 1e6;
        (wall_ns - as_f64(slice.at_ms) * 1e6).clamp(whole * SLICE_SHARE_MIN, whole)
    };
    let length: f64 = group.iter().map(ns).sum();
    let weighted: f64 = group.iter().map(|s| as_f64(s.p50_ns) * as_f64(s.ops)).sum();
    let max = |of: fn(&TimeSlice) -> u64| as_f64(group.iter().map(of).max().unwrap_or(0));
    Moment {
        at_ns: before + as_f64(start) * 1e6,
        rate: ops * 1e9 / length,
        p50_ns: weighted / ops.max(1.0),
        p99_ns: max(|s| s.p99_ns),
        max_ns: max(|s| s.max_ns),
    }
}

/// The highest rate of a ramp that met the latency bound, in operations per second.
pub fn sustained(target: &TargetResult) -> Option<f64> {
    target.ramp.iter().filter(|point| point.is_sustained).map(|p| p.done).max_by(f64::total_cmp)
}

/// `count` points of equal weight of the distribution of latencies, ascending.
pub fn quantiles(latencies: &Latencies, count: u32) -> Vec<f64> {
    let at = |i: u32| f64::from(2 * i + 1) * 50.0 / f64::from(count.max(1));
    (0..count).map(|i| as_f64(latencies.percentile(at(i)))).collect()
}

/// The tail of the distribution: pairs of `n` and the latency that one in `n` operations exceeded.
pub fn tail(latencies: &Latencies) -> Vec<(f64, f64)> {
    let count = as_f64(latencies.count());
    (0..200)
        .map(|step| 10_f64.powf(f64::from(step) / 20.0))
        .take_while(|one_in| *one_in <= count)
        .map(|one_in| (one_in, as_f64(latencies.percentile(100.0 - 100.0 / one_in))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{CUT, ClassResult};
    use crate::sample::run;

    #[test]
    fn figures_are_over_all_rounds() {
        let run = run();
        let figures = Figures::new(&run.targets[0]);
        // Five rounds of 20,000 operations in 10 to 10.4 ms.
        assert_eq!((figures.rates.count(), figures.ops), (5, 100_000));
        assert!((figures.rates.max() - 2e6).abs() < 1.0);
        assert!((figures.rates.min() - 20_000.0 / 0.0104).abs() < 1.0);
        assert_eq!(figures.latencies.count(), 100_000);
        let names: Vec<&str> = figures.classes.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["service-request", "attach"]);
        let share = figures.classes[1].rates.max() / figures.rates.max();
        assert!((share - 0.1).abs() < 1e-6, "{share}");
        let cost = figures.cost.unwrap();
        assert!((cost.client_ns - 480.0).abs() < 1e-6 && (cost.bytes_out - 200.0).abs() < 1e-6);
        assert!((figures.memory_per_record().unwrap() - 1024.0).abs() < 1e-6);
    }

    #[test]
    fn deleted_records_take_no_share_of_the_memory() {
        let mut run = run();
        let verdict = run.targets[0].verdict.as_mut().unwrap();
        (verdict.records, verdict.absent) = (40_000, 30_000);
        let figures = Figures::new(&run.targets[0]);
        assert!((figures.memory_per_record().unwrap() - 1024.0).abs() < 1e-6);
    }

    #[test]
    fn interrupted_operations_count_in_the_latencies_and_in_no_rate() {
        let (whole, mut run) = (run(), run());
        let rounds = &mut run.targets[0].rounds;
        let latencies = vec![(2_000_000_000, 10_000)];
        rounds[1].classes.push(ClassResult { name: CUT.to_owned(), latencies });
        rounds[1].ops += 10_000;
        let (before, after) = (Figures::new(&whole.targets[0]), Figures::new(&run.targets[0]));
        assert_eq!(before.rates, after.rates);
        assert_eq!((before.ops, before.cut), (100_000, 0));
        assert_eq!((after.ops, after.cut), (100_000, 10_000));
        assert_eq!(before.cost, after.cost);
        assert_eq!(after.latencies.count(), 110_000, "failed operations count in the latencies");
    }

    #[test]
    fn a_distribution_rises() {
        let run = run();
        for target in &run.targets {
            let latencies = Figures::new(target).latencies;
            assert!(quantiles(&latencies, 400).windows(2).all(|w| w[0] <= w[1]));
            let tail = tail(&latencies);
            assert!(tail.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 <= w[1].1));
            assert!(latencies.count() == 0 || tail.len() > 50);
        }
    }

    #[test]
    fn rounds_follow_each_other_and_a_stall_has_a_rate_of_zero() {
        let mut run = run();
        let rounds = &mut run.targets[0].rounds;
        rounds.truncate(2);
        // Nothing ended between the 2nd and the 6th millisecond of the second round.
        rounds[1].slices.retain(|slice| slice.at_ms < 2 || slice.at_ms >= 6);
        let (moments, borders) = timeline(&run.targets[0]);
        assert_eq!(borders.len(), 1);
        assert!(moments.windows(2).all(|w| w[0].at_ns <= w[1].at_ns));
        let idle: Vec<f64> =
            moments.iter().filter(|m| m.rate < 0.5).map(|m| m.at_ns - borders[0]).collect();
        assert_eq!(idle, [2e6, 6e6]);
    }

    #[test]
    fn the_last_slice_ends_with_its_round() {
        let mut run = run();
        let round = &mut run.targets[0].rounds[0];
        // Ten slices of a millisecond; the round ended in the middle of the last.
        round.wall_ns = 9_500_000;
        round.slices[9].ops /= 2;
        let (moments, _) = timeline(&run.targets[0]);
        assert!((moments[9].rate - moments[8].rate).abs() < 1.0, "{moments:?}");
    }

    #[test]
    fn many_slices_become_few_moments_without_losing_a_stall() {
        let mut run = run();
        let round = &mut run.targets[0].rounds[0];
        let slice = round.slices[0];
        round.slices = (0..9000).map(|at_ms| TimeSlice { at_ms, ms: 1, ..slice }).collect();
        round.slices[4321].max_ns = 77_000_000;
        let (moments, _) = timeline(&run.targets[0]);
        assert!(moments.len() <= MOMENTS_MAX + 10);
        assert!(moments.iter().any(|m| m.max_ns > 76.9e6));
    }

    #[test]
    fn the_generator_is_compared_with_the_fastest_target() {
        let mut run = run();
        let all = of(&run);
        let (name, share) = generator_share(&run, &all).unwrap();
        assert_eq!(name, "region");
        assert!((share - 0.1).abs() < 0.01, "{share}");
        run.load.rate = Some(1e3);
        assert_eq!(generator_share(&run, &of(&run)), None);
    }

    #[test]
    fn a_target_without_rounds_has_no_figures() {
        let mut run = run();
        run.targets[0].rounds.clear();
        let figures = Figures::new(&run.targets[0]);
        assert!(figures.cost.is_none() && figures.rates.count() == 0);
        assert!(figures.classes.is_empty() && figures.all_classes().p99s.count() == 0);
        let all = of(&run);
        assert_eq!(reference(&all).unwrap().target.name, "redis");
    }
}
