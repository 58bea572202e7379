//! Means, medians, and percentiles over single operations.

use hdrhistogram::Histogram;

/// The longest latency that is recorded exactly, in nanoseconds: one hour.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

/// A count as a floating-point number; exact below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts of one run, and figures of three digits")]
pub(crate) const fn as_f64(count: u64) -> f64 {
    count as f64
}

/// The arithmetic mean; 0 without samples.
pub fn mean(samples: &[f64]) -> f64 {
    let count = as_f64(samples.len() as u64);
    if samples.is_empty() { 0.0 } else { samples.iter().sum::<f64>() / count }
}

/// The middle of `samples`; 0 without samples.
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

    /// To one significant digit, in five kilobytes instead of hundreds: for the slices of a trial.
    /// Percentiles and the maximum are at most 1/16 too large.
    ///
    /// # Panics
    /// Never: the bounds are constants that the histogram accepts.
    pub fn coarse() -> Self {
        Self(Histogram::new_with_bounds(1, LATENCY_NS_MAX, 1).expect("constant bounds are valid"))
    }

    /// Forgets all operations.
    pub fn clear(&mut self) {
        self.0.reset();
    }

    /// Counts `count` operations that took `ns` each.
    #[inline]
    pub fn record(&mut self, ns: u64, count: u64) {
        self.0.saturating_record_n(ns, count);
    }

    /// Adds what another process measured.
    pub fn add(&mut self, other: &Self) {
        // Both histograms have the same bounds.
        let _ = self.0.add(&other.0);
    }

    /// Operations counted.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency that `percent` of the operations did not exceed, in nanoseconds.
    pub fn percentile(&self, percent: f64) -> u64 {
        if self.0.is_empty() { 0 } else { self.0.value_at_percentile(percent).min(self.0.max()) }
    }

    /// The longest one, in nanoseconds.
    pub fn max(&self) -> u64 {
        self.0.max()
    }

    /// Pairs of latency in nanoseconds and count, for a file or a message.
    pub fn pairs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter_recorded().map(|v| (v.value_iterated_to(), v.count_at_value()))
    }
}

impl<'p> FromIterator<&'p (u64, u64)> for Latencies {
    /// Pairs of latency in nanoseconds and count.
    fn from_iter<I: IntoIterator<Item = &'p (u64, u64)>>(pairs: I) -> Self {
        let mut all = Self::new();
        pairs.into_iter().for_each(|(ns, count)| all.record(*ns, *count));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_median_of_samples_and_of_none() {
        let samples = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        assert!((mean(&samples) - 5.0).abs() < 1e-12);
        assert!((median(&samples) - 4.5).abs() < 1e-12);
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
        assert!(mean(&[]).abs() < f64::EPSILON && median(&[]).abs() < f64::EPSILON);
    }

    #[test]
    fn percentiles_come_from_single_operations() {
        let mut latencies = Latencies::new();
        assert_eq!((latencies.percentile(50.0), latencies.max()), (0, 0));
        for ns in 1..=1000 {
            latencies.record(ns, 1);
        }
        assert_eq!((latencies.percentile(50.0), latencies.percentile(99.0)), (500, 990));
        assert!((999..=1000).contains(&latencies.percentile(99.9)));
        assert_eq!(latencies.max(), 1000);
        let mut copy = Latencies::new();
        latencies.pairs().for_each(|(ns, count)| copy.record(ns, count));
        assert_eq!(copy.percentile(99.0), 990);
    }

    #[test]
    fn coarse_percentiles_are_at_most_a_sixteenth_too_large() {
        let mut coarse = Latencies::coarse();
        (1..=1000).for_each(|ns| coarse.record(ns, 1));
        coarse.record(u64::MAX, 1);
        for (percent, exact) in [(50.0, 501), (99.0, 991)] {
            let found = coarse.percentile(percent);
            assert!((exact..=exact + exact / 16).contains(&found), "{percent}: {found}");
        }
        assert!(coarse.max() >= LATENCY_NS_MAX, "a longer one counts as the longest");
        coarse.clear();
        assert_eq!((coarse.count(), coarse.max()), (0, 0));
    }
}
