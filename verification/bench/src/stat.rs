//! The numbers that sum up a measurement: paper 1's mean and standard deviation over sequence
//! averages, and what it lacked, percentiles over single operations.

use hdrhistogram::Histogram;

/// The longest latency that is told apart, in nanoseconds: one hour.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

/// Total latency of a sequence divided by its size (paper 1 §6, the text above equation 2).
#[expect(clippy::cast_precision_loss, reason = "nanoseconds of a run are far below 2^53")]
pub fn sequence_average(total_ns: u64, ops: u64) -> f64 {
    total_ns as f64 / ops.max(1) as f64
}

/// Arithmetic mean (paper 1, equation 2); 0 of nothing.
#[expect(clippy::cast_precision_loss, reason = "a count of samples is far below 2^53")]
pub fn mean(samples: &[f64]) -> f64 {
    if samples.is_empty() { 0.0 } else { samples.iter().sum::<f64>() / samples.len() as f64 }
}

/// Standard deviation of the whole population (paper 1, equation 3: divided by N, not N - 1).
#[expect(clippy::cast_precision_loss, reason = "a count of samples is far below 2^53")]
pub fn standard_deviation(samples: &[f64]) -> f64 {
    if samples.is_empty() {
        return 0.0;
    }
    let centre = mean(samples);
    (samples.iter().map(|x| (x - centre).powi(2)).sum::<f64>() / samples.len() as f64).sqrt()
}

/// The middle of `samples`; 0 of nothing.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    let upper = sorted.get(half).copied().unwrap_or(0.0);
    if sorted.len() % 2 == 1 {
        return upper;
    }
    half.checked_sub(1)
        .and_then(|i| sorted.get(i))
        .map_or(0.0, |lower| f64::midpoint(*lower, upper))
}

/// Latencies of single operations, in nanoseconds, to three significant digits.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

impl Latencies {
    /// Nothing recorded yet.
    ///
    /// # Panics
    /// Never: the bounds are constants that the histogram accepts.
    pub fn new() -> Self {
        Self(Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("constant bounds are valid"))
    }

    /// Counts `count` operations that took `ns` each.
    pub fn record(&mut self, ns: u64, count: u64) {
        self.0.saturating_record_n(ns, count);
    }

    /// Adds what another process measured.
    pub fn add(&mut self, other: &Self) {
        // Both have the same bounds, so that nothing can be out of range.
        let _ = self.0.add(&other.0);
    }

    /// Operations counted.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency that `percent` of the operations did not pass, in nanoseconds.
    pub fn percentile(&self, percent: f64) -> u64 {
        if self.0.is_empty() { 0 } else { self.0.value_at_percentile(percent).min(self.0.max()) }
    }

    /// The longest one, in nanoseconds.
    pub fn max(&self) -> u64 {
        self.0.max()
    }

    /// The mean of all, in nanoseconds.
    pub fn mean(&self) -> f64 {
        self.0.mean()
    }

    /// What was recorded as pairs of latency in nanoseconds and count, for a wire or a file.
    pub fn pairs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter_recorded().map(|v| (v.value_iterated_to(), v.count_at_value()))
    }
}

/// One line of a table: what a target did in one experiment.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Mean of the sequence averages, in nanoseconds.
    pub mean_ns: f64,
    /// Standard deviation of the sequence averages, in nanoseconds.
    pub deviation_ns: f64,
    /// Median over single operations, in nanoseconds.
    pub p50_ns: u64,
    /// 99th percentile over single operations, in nanoseconds.
    pub p99_ns: u64,
    /// 99.9th percentile over single operations, in nanoseconds.
    pub p999_ns: u64,
    /// The longest single operation, in nanoseconds.
    pub max_ns: u64,
    /// Operations of all nodes together per second of wall time.
    pub ops_per_s: f64,
}

impl Summary {
    /// Sums up sequence averages, single latencies, and `ops` operations in `wall_ns` nanoseconds.
    pub fn new(averages: &[f64], latencies: &Latencies, ops: u64, wall_ns: u64) -> Self {
        Self {
            mean_ns: mean(averages),
            deviation_ns: standard_deviation(averages),
            p50_ns: latencies.percentile(50.0),
            p99_ns: latencies.percentile(99.0),
            p999_ns: latencies.percentile(99.9),
            max_ns: latencies.max(),
            ops_per_s: 1e9 / sequence_average(wall_ns.max(1), ops),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_deviation_follow_equations_2_and_3() {
        // A textbook population: mean 5, deviation exactly 2 (with N - 1 it would be 2.138).
        let samples = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        assert!((mean(&samples) - 5.0).abs() < 1e-12);
        assert!((standard_deviation(&samples) - 2.0).abs() < 1e-12);
        assert!((median(&samples) - 4.5).abs() < 1e-12);
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
    }

    #[test]
    fn nothing_measured_is_zero_and_not_a_division_by_zero() {
        let nothing = Summary::new(&[], &Latencies::new(), 0, 0);
        assert!(nothing.mean_ns.abs() < f64::EPSILON && nothing.deviation_ns.abs() < f64::EPSILON);
        assert_eq!((nothing.p50_ns, nothing.max_ns), (0, 0));
        assert!(nothing.ops_per_s.is_finite());
    }

    #[test]
    fn percentiles_come_from_single_operations() {
        let mut latencies = Latencies::new();
        for ns in 1..=1000 {
            latencies.record(ns, 1);
        }
        let summary = Summary::new(&[500.5], &latencies, 1000, 1_000_000);
        assert_eq!((summary.p50_ns, summary.p99_ns), (500, 990));
        assert!((999..=1000).contains(&summary.p999_ns));
        assert_eq!(summary.max_ns, 1000);
        assert!((summary.ops_per_s - 1e6).abs() < 1.0);
        let mut copy = Latencies::new();
        latencies.pairs().for_each(|(ns, count)| copy.record(ns, count));
        assert_eq!(copy.percentile(99.0), 990);
    }
}
