//! The result of `bench run numap`, as it is saved and shown.

use crate::run_frame::RunFrame;
use crate::stat::{Latencies, as_f64};
use serde::{Deserialize, Serialize};

/// The format version of a saved run.
pub const FORMAT: u32 = 1;

/// The largest number of pairings, points, rounds and latencies that a file may have.
const ROWS_MAX: usize = 10_000;

/// A run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NumapRun {
    /// [`FORMAT`].
    pub numap_format: u32,
    #[serde(flatten)]
    pub frame: RunFrame,
    /// The drawing of its processors and nodes.
    pub topology: String,
    /// The same as SVG, with the processors of each pairing. Empty in runs of older programs.
    #[serde(default)]
    pub drawing: String,
    /// Probes of a point and round.
    pub probes: u64,
    pub pairings: Vec<PairingResult>,
    /// Pairings that this machine does not have, with the reason.
    pub missing: Vec<String>,
    /// What `numa plan` chooses at each level.
    pub plan: Vec<PlanRow>,
}

/// The curve of a pairing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PairingResult {
    pub name: String,
    /// How near its processors are.
    pub what: String,
    /// The processors of both threads; empty: any.
    pub cpus: Vec<u32>,
    /// In ascending order of the traffic.
    pub points: Vec<Point>,
}

/// A level of cross traffic.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    /// Demanded traffic of both flows together.
    pub offered_mbps: u32,
    pub rounds: Vec<PointRound>,
}

/// One trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PointRound {
    /// Traffic that was sent, and that arrived behind the slice, while probes were measured.
    pub sent_mbps: f64,
    pub achieved_mbps: f64,
    /// Probes without a reply in time.
    pub lost: u64,
    /// Round-trip time in nanoseconds and its count, ascending.
    pub latencies: Vec<(u64, u64)>,
}

/// The choice of `numa plan` for a slice of two processors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRow {
    pub mbps: u32,
    /// Low, medium or high.
    pub level: String,
    pub cpus: Vec<u32>,
    /// The name of the pairing of these processors; empty if the slice does not fit.
    pub pairing: String,
    /// Why, and the next best choice.
    pub reason: String,
}

impl PointRound {
    /// Probes that were answered.
    pub fn replies(&self) -> u64 {
        self.latencies.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// The mean round-trip time; 0 without replies.
    pub fn mean_ns(&self) -> f64 {
        mean_and_error(&self.latencies).0
    }
}

impl Point {
    /// Round-trip times of all rounds.
    pub fn latencies(&self) -> Latencies {
        self.rounds.iter().flat_map(|round| &round.latencies).collect()
    }

    /// The mean of all round-trip times and its standard error; `None` without replies.
    pub fn mean(&self) -> Option<(f64, f64)> {
        let all: Vec<(u64, u64)> = self.latencies().pairs().collect();
        (!all.is_empty()).then(|| mean_and_error(&all))
    }

    /// The mean of a figure of the rounds.
    pub fn over_rounds(&self, figure: impl Fn(&PointRound) -> f64) -> f64 {
        crate::stat::mean(&self.rounds.iter().map(figure).collect::<Vec<_>>())
    }
}

fn mean_and_error(pairs: &[(u64, u64)]) -> (f64, f64) {
    let sum = |of: &dyn Fn(f64) -> f64| -> f64 {
        pairs.iter().map(|(ns, count)| of(as_f64(*ns)) * as_f64(*count)).sum()
    };
    let count = sum(&|_| 1.0).max(1.0);
    let mean = sum(&|ns| ns) / count;
    let variance = sum(&|ns| (ns - mean) * (ns - mean)) / count;
    (mean, (variance / count).sqrt())
}

/// Checks what the report relies on in a file.
pub(crate) fn check(run: &NumapRun) -> Result<(), String> {
    let points = run.pairings.iter().flat_map(|one| &one.points);
    let rounds = || points.clone().flat_map(|point| &point.rounds);
    let longest = rounds().map(|round| round.latencies.len()).max().unwrap_or(0);
    let counts = [run.pairings.len(), points.clone().count(), rounds().count(), run.plan.len()];
    if counts.into_iter().chain([longest]).any(|count| count > ROWS_MAX) {
        return Err(format!("more than {ROWS_MAX} rows"));
    }
    if !run.drawing.is_empty() && !super::drawing::is_safe(&run.drawing) {
        return Err("its drawing has more than shapes and text".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_standard_error_are_those_of_the_samples() {
        let round = PointRound { latencies: vec![(100, 3), (500, 1)], ..PointRound::default() };
        assert!((round.mean_ns() - 200.0).abs() < 1e-9);
        let point = Point { offered_mbps: 0, rounds: vec![round.clone(), round] };
        let (mean, error) = point.mean().unwrap();
        // Variance 30,000 of eight samples.
        assert!((mean - 200.0).abs() < 0.5 && (error - 61.2).abs() < 0.5, "{mean} {error}");
        assert_eq!(Point { offered_mbps: 0, rounds: Vec::new() }.mean(), None);
    }
}
