//! The search for the highest rate with a given p99: first in large steps, then by bisection
//! between the highest sustained rate and the lowest that was not.

use crate::random::whole;
use crate::result::{Drive, RampPoint, Round};
use nearstate_model::Result;

/// The largest number of points of a curve.
pub(super) const POINTS_MAX: usize = 16;

/// Shares of the closed loop's rate that are tried first: the flat part and the bend of the curve.
const SHARES: [f64; 9] = [0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0, 1.15];

/// Halvings after that.
const HALVINGS: usize = 5;

/// A rate counts as reached if this share of it was achieved.
const REACHED: f64 = 0.97;

/// Operations of a point: so many seconds of its rate, within these bounds. A p99 needs a thousand;
/// a rate at which those would take longer than [`POINT_S_MAX`] is not worth finding.
const POINT_S: f64 = 1.0;
const POINT_OPS: (u64, u64) = (1_000, 1_000_000);
const POINT_S_MAX: f64 = 10.0;
const OPS_LEAST: f64 = 1_000.0;

/// The rate of the fastest round, if the rounds were a closed loop without pauses.
pub(super) fn closed_rate(drive: &Drive, rounds: &[Round]) -> Option<f64> {
    let is_known = drive.rate.is_none() && drive.think_us == 0;
    is_known.then(|| rounds.iter().map(Round::rate).fold(0.0, f64::max))
}

/// Operations of each client by which that is found out otherwise: as many as a round had, which
/// take no longer without pauses.
pub(super) fn closed_ops(drive: &Drive, rounds: &[Round]) -> u64 {
    let all = rounds.iter().map(|round| round.ops).max().unwrap_or(drive.ops);
    (all / drive.clients.max(1) as u64).max(1)
}

/// The next point to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RampStep {
    /// Operations per second.
    pub(super) offered: f64,
    /// Operations in all.
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

    /// Which rate to offer next; `None` when it is known well enough.
    pub(super) fn next(&mut self) -> Option<RampStep> {
        let tried = self.points.len();
        if self.closed <= 0.0 || tried >= SHARES.len() + HALVINGS {
            return None;
        }
        self.offered = if let Some(share) = SHARES.get(tried) {
            self.closed * share
        } else {
            let kept = self.points.iter().filter(|point| point.is_sustained);
            let kept = kept.map(|point| point.offered).fold(0.0, f64::max);
            let not = self.points.iter().filter(|point| !point.is_sustained);
            let above = not.map(|point| point.offered).filter(|rate| *rate > kept);
            let lost = above.fold(f64::INFINITY, f64::min);
            if lost.is_finite() { f64::midpoint(kept, lost) } else { kept * 1.3 }
        };
        if self.offered * POINT_S_MAX < OPS_LEAST && tried > 0 {
            return None;
        }
        let ops = whole(self.offered * POINT_S).clamp(POINT_OPS.0, POINT_OPS.1);
        Some(RampStep { offered: self.offered, ops })
    }

    /// Adds the measurement at the rate that was requested last.
    pub(super) fn add(&mut self, round: &Round) {
        let latencies = round.latencies();
        let p99_ns = latencies.percentile(99.0);
        let is_sustained = p99_ns <= self.bound_ns && round.rate() >= self.offered * REACHED;
        self.points.push(RampPoint {
            offered: self.offered,
            done: round.rate(),
            p50_ns: latencies.percentile(50.0),
            p99_ns,
            p999_ns: latencies.percentile(99.9),
            is_sustained,
        });
    }

    /// Measures one rate after the other. Returns the curve also if a measurement fails.
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

const _: () = assert!(SHARES.len() + HALVINGS <= POINTS_MAX, "what a progress bar says of a ramp");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::ClassResult;
    use nearstate_model::Error;

    /// A store that keeps its latency up to a rate, and falls behind above it.
    fn round(offered: f64, capacity: f64) -> Round {
        let done = offered.min(capacity);
        let ns = if offered <= capacity { 100_000 } else { 50_000_000 };
        let class = ClassResult { name: "all".to_owned(), latencies: vec![(ns, 1000)] };
        Round { ops: 1000, wall_ns: whole(1e12 / done), classes: vec![class], ..Round::default() }
    }

    #[test]
    fn the_bend_is_found_from_below_and_from_above() {
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
    fn points_are_kept_when_the_search_is_stopped() {
        let mut left = 3;
        let (points, outcome) = RampSearch::new(10_000.0, 1_000_000).all(|step| {
            left -= 1;
            let stopped = || Error::Backend { detail: "stopped".to_owned() };
            (left >= 0).then(|| round(step.offered, 7_700.0)).ok_or_else(stopped)
        });
        assert!(outcome.is_err());
        let offered: Vec<u64> = points.iter().map(|point| whole(point.offered)).collect();
        assert_eq!(offered, [1_000, 2_000, 3_500]);
    }

    #[test]
    fn a_store_that_keeps_no_rate_is_given_up() {
        let mut search = RampSearch::new(2_000.0, 1_000);
        while let Some(step) = search.next() {
            assert!(step.offered >= 100.0, "{step:?}");
            search.add(&round(step.offered, 1.0));
        }
        assert!(search.points().len() < POINTS_MAX);
    }

    #[test]
    fn without_a_rate_there_is_nothing_to_climb() {
        assert_eq!(RampSearch::new(0.0, 1).next(), None);
    }

    #[test]
    fn only_rounds_that_did_what_they_could_say_what_a_store_can_do() {
        let run = crate::sample::run();
        let (closed, rounds) = (run.drive, &run.targets[0].rounds);
        let fastest = closed_rate(&closed, rounds).unwrap();
        assert!((fastest - 2e6).abs() < 1.0, "{fastest}: 20,000 operations in 10 ms");
        let offered = Drive { rate: Some(1000.0), ..closed.clone() };
        let paused = Drive { think_us: 1, ..closed.clone() };
        assert_eq!(closed_rate(&offered, rounds), None);
        assert_eq!(closed_rate(&paused, rounds), None);
        assert_eq!(closed_ops(&Drive { clients: 4, ..closed }, rounds), 5_000);
    }

    #[test]
    fn the_first_point_is_a_share_of_the_closed_loop() {
        let step = RampSearch::new(1e6, 1).next().unwrap();
        assert!((step.offered - 1e5).abs() < 1.0);
    }
}
