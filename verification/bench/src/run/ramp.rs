//! The search for the highest rate with a given p99: first in large steps, then by bisection
//! between the highest rate that was sustained and the lowest above it that was not.

use crate::random::whole;
use crate::result::{LoadSettings, RampPoint, Round};
use nearstate_model::Result;

/// The largest number of points of a curve.
pub(super) const POINTS_MAX: usize = 16;

/// Shares of the closed loop's rate that are tried first: the flat part and the knee of the curve.
const SHARES: [f64; 9] = [0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0, 1.15];

/// Bisections after that.
const BISECTIONS: usize = 5;

/// The share of the offered rate that must be achieved.
const ACHIEVED_MIN: f64 = 0.97;

/// Duration of a point in seconds, and the bounds of its number of operations. A p99 needs 1,000
/// operations. The search stops at a rate at which those take longer than [`POINT_S_MAX`].
const POINT_S: f64 = 1.0;
const POINT_OPS: (u64, u64) = (1_000, 1_000_000);
const POINT_S_MAX: f64 = 10.0;
const OPS_MIN: f64 = 1_000.0;

/// The rate of the fastest round, if the rounds were a closed loop without pauses.
pub(super) fn closed_rate(load: &LoadSettings, rounds: &[Round]) -> Option<f64> {
    let is_known = load.rate.is_none() && load.think_us == 0;
    is_known.then(|| rounds.iter().map(Round::rate).fold(0.0, f64::max))
}

/// Operations of each client in a closed loop that measures the rate, if no round was one: as many
/// as the longest round had. Without pauses they take no longer than that round.
pub(super) fn closed_ops(load: &LoadSettings, rounds: &[Round]) -> u64 {
    let all = rounds.iter().map(|round| round.ops).max().unwrap_or(load.ops);
    (all / load.clients.max(1) as u64).max(1)
}

/// The next point to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RampStep {
    /// Operations per second.
    pub(super) offered: f64,
    /// The number of operations.
    pub(super) ops: u64,
}

/// The state of the search.
#[derive(Debug)]
pub(super) struct RampSearch {
    closed: f64,
    bound_ns: u64,
    points: Vec<RampPoint>,
    offered: f64,
}

impl RampSearch {
    /// A search on a target that did `closed` operations per second in a closed loop.
    pub(super) const fn new(closed: f64, bound_ns: u64) -> Self {
        Self { closed, bound_ns, points: Vec::new(), offered: 0.0 }
    }

    /// The next rate to offer; `None` when the search is complete.
    pub(super) fn next(&mut self) -> Option<RampStep> {
        let tried = self.points.len();
        if self.closed <= 0.0 || tried >= SHARES.len() + BISECTIONS {
            return None;
        }
        self.offered = if let Some(share) = SHARES.get(tried) {
            self.closed * share
        } else {
            let sustained = self.points.iter().filter(|point| point.is_sustained);
            let low = sustained.map(|point| point.offered).fold(0.0, f64::max);
            let missed = self.points.iter().filter(|point| !point.is_sustained);
            let above = missed.map(|point| point.offered).filter(|rate| *rate > low);
            let high = above.fold(f64::INFINITY, f64::min);
            if high.is_finite() { f64::midpoint(low, high) } else { low * 1.3 }
        };
        if self.offered * POINT_S_MAX < OPS_MIN && tried > 0 {
            return None;
        }
        let ops = whole(self.offered * POINT_S).clamp(POINT_OPS.0, POINT_OPS.1);
        Some(RampStep { offered: self.offered, ops })
    }

    /// Adds the measurement at the rate that [`RampSearch::next`] returned last.
    pub(super) fn add(&mut self, round: &Round) {
        let latencies = round.latencies();
        let p99_ns = latencies.percentile(99.0);
        let is_sustained = p99_ns <= self.bound_ns && round.rate() >= self.offered * ACHIEVED_MIN;
        self.points.push(RampPoint {
            offered: self.offered,
            done: round.rate(),
            p50_ns: latencies.percentile(50.0),
            p99_ns,
            p999_ns: latencies.percentile(99.9),
            is_sustained,
        });
    }

    /// Runs the search. Returns the curve even if a measurement fails.
    pub(super) fn all(
        mut self,
        mut measure: impl FnMut(RampStep) -> Result<Round>,
    ) -> (Vec<RampPoint>, Result<()>) {
        let mut outcome = Ok(());
        while let Some(step) = self.next() {
            match measure(step) {
                Ok(round) => self.add(&round),
                Err(e) => {
                    outcome = Err(e);
                    break;
                }
            }
        }
        (self.points(), outcome)
    }

    /// The curve, in ascending order of the rate.
    pub(super) fn points(mut self) -> Vec<RampPoint> {
        self.points.sort_by(|a, b| a.offered.total_cmp(&b.offered));
        self.points
    }
}

const _: () = assert!(SHARES.len() + BISECTIONS <= POINTS_MAX, "the progress bar's total");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::ClassResult;

    /// A store whose latency is constant up to its capacity, and too long above.
    fn round(offered: f64, capacity: f64) -> Round {
        let done = offered.min(capacity);
        let ns = if offered <= capacity { 100_000 } else { 50_000_000 };
        let class = ClassResult { name: "all".to_owned(), latencies: vec![(ns, 1000)] };
        Round { ops: 1000, wall_ns: whole(1e12 / done), classes: vec![class], ..Round::default() }
    }

    #[test]
    fn the_search_finds_the_capacity_of_a_store() {
        for capacity in [3_000.0, 7_700.0, 9_990.0, 12_000.0] {
            let mut search = RampSearch::new(10_000.0, 1_000_000);
            while let Some(step) = search.next() {
                assert!((POINT_OPS.0..=POINT_OPS.1).contains(&step.ops));
                search.add(&round(step.offered, capacity));
            }
            let points = search.points();
            assert!(points.windows(2).all(|pair| pair[0].offered <= pair[1].offered));
            let best = points.iter().filter(|point| point.is_sustained).map(|point| point.offered);
            let best = best.fold(0.0, f64::max);
            assert!((best - capacity).abs() < capacity * 0.05, "{best} of {capacity}");
        }
    }

    #[test]
    fn a_search_that_is_stopped_returns_its_points() {
        let mut left = 3;
        let (points, outcome) = RampSearch::new(10_000.0, 1_000_000).all(|step| {
            left -= 1;
            let stopped = || backend_error!("stopped");
            (left >= 0).then(|| round(step.offered, 7_700.0)).ok_or_else(stopped)
        });
        assert!(outcome.is_err());
        let offered: Vec<u64> = points.iter().map(|point| whole(point.offered)).collect();
        assert_eq!(offered, [1_000, 2_000, 3_500]);
    }

    #[test]
    fn the_search_stops_if_no_rate_is_sustained() {
        let mut search = RampSearch::new(2_000.0, 1_000);
        while let Some(step) = search.next() {
            assert!(step.offered >= 100.0, "{step:?}");
            search.add(&round(step.offered, 1.0));
        }
        assert!(search.points().len() < POINTS_MAX);
    }

    #[test]
    fn without_a_closed_rate_there_is_no_step() {
        assert_eq!(RampSearch::new(0.0, 1).next(), None);
    }

    #[test]
    fn the_closed_rate_is_known_only_from_rounds_without_rate_or_pauses() {
        let run = crate::sample::run();
        let (closed, rounds) = (run.load, &run.targets[0].rounds);
        let fastest = closed_rate(&closed, rounds).unwrap();
        assert!((fastest - 2e6).abs() < 1.0, "{fastest}: 20,000 operations in 10 ms");
        let offered = LoadSettings { rate: Some(1000.0), ..closed.clone() };
        let paused = LoadSettings { think_us: 1, ..closed.clone() };
        assert_eq!(closed_rate(&offered, rounds), None);
        assert_eq!(closed_rate(&paused, rounds), None);
        assert_eq!(closed_ops(&LoadSettings { clients: 4, ..closed }, rounds), 5_000);
    }

    #[test]
    fn the_first_point_is_a_share_of_the_closed_loop() {
        let step = RampSearch::new(1e6, 1).next().unwrap();
        assert!((step.offered - 1e5).abs() < 1.0);
    }
}
