//! Metrics that a core updates without locks and without atomic read-modify-write instructions:
//! each number has one writer, the core, and any number of readers. A snapshot is exact for each
//! number; different numbers may be a few requests apart.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only its core increments.
#[derive(Debug, Default)]
pub struct CoreCounter(AtomicU64);

impl CoreCounter {
    /// Adds. For the single writer only: an add of another thread could be lost.
    #[inline]
    pub fn add(&self, amount: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// The current value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that only its core sets, and its highest value.
#[derive(Debug, Default)]
pub struct CoreGauge {
    value: AtomicU64,
    peak: AtomicU64,
}

impl CoreGauge {
    /// Replaces the value. For the single writer only.
    #[inline]
    pub fn set(&self, value: u64) {
        self.value.store(value, Ordering::Relaxed);
        if value > self.peak.load(Ordering::Relaxed) {
            self.peak.store(value, Ordering::Relaxed);
        }
    }

    /// The current value.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    /// The highest value since the last call. A value that is set at the same time may be missing;
    /// the next higher one is not.
    pub fn take_peak(&self) -> u64 {
        self.peak.swap(0, Ordering::Relaxed)
    }
}

/// Parts of each power of two (as a power of two): values are known to an eighth.
const PARTS_LOG2: u32 = 3;
const PARTS: u64 = 1 << PARTS_LOG2;
/// Values below [`PARTS`] have a bucket each; then each power of two has [`PARTS`].
const BUCKETS: usize = ((64 - PARTS_LOG2 + 1) << PARTS_LOG2) as usize;

/// A histogram with one writer and any number of readers. 4 KiB.
pub struct Histogram {
    counts: [CoreCounter; BUCKETS],
    sum: CoreCounter,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: [const { CoreCounter(AtomicU64::new(0)) }; BUCKETS],
            sum: CoreCounter::default(),
        }
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.snapshot().fmt(f)
    }
}

#[inline]
fn bucket_of(value: u64) -> usize {
    let index = if value < PARTS {
        value
    } else {
        let power = value.ilog2() - PARTS_LOG2;
        (u64::from(power) << PARTS_LOG2) + (value >> power)
    };
    usize::try_from(index).unwrap_or(usize::MAX)
}

/// The largest value of a bucket.
fn largest_of(bucket: usize) -> u64 {
    let index = bucket as u64;
    if index < PARTS {
        return index;
    }
    let power = (index >> PARTS_LOG2) - 1;
    let part = (index & (PARTS - 1)) + PARTS;
    (part << power) + ((1 << power) - 1)
}

impl Histogram {
    /// Records a value. For the single writer only.
    #[inline]
    pub fn record(&self, value: u64) {
        if let Some(count) = self.counts.get(bucket_of(value)) {
            count.add(1);
        }
        self.sum.add(value);
    }

    /// Reads the recorded values.
    pub fn snapshot(&self) -> Distribution {
        let buckets = self.counts.iter().enumerate();
        let counts: Vec<(u64, u64)> = buckets
            .map(|(bucket, count)| (largest_of(bucket), count.get()))
            .filter(|(_, count)| *count > 0)
            .collect();
        Distribution { counts, sum: self.sum.get() }
    }
}

/// A snapshot of a [`Histogram`]: values and their counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// Upper bounds of values, ascending, each with the number of values up to it and above the
    /// previous bound; without empty ones.
    pub counts: Vec<(u64, u64)>,
    /// The sum of all values.
    pub sum: u64,
}

impl Distribution {
    /// The number of values.
    pub fn total(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).sum()
    }

    /// An upper bound of the given share of the values (0.5: the median), exact to an eighth; 0
    /// without values.
    pub fn quantile(&self, share: f64) -> u64 {
        let total = self.total();
        let mut below = 0;
        for (bound, count) in &self.counts {
            below += count;
            if is_share(below, total, share) {
                return *bound;
            }
        }
        self.counts.last().map_or(0, |(bound, _)| *bound)
    }

    /// Adds another distribution of the same unit.
    pub fn merge(&mut self, other: &Self) {
        for (bound, count) in &other.counts {
            match self.counts.binary_search_by_key(bound, |(bound, _)| *bound) {
                Ok(at) => {
                    if let Some((_, sum)) = self.counts.get_mut(at) {
                        *sum += count;
                    }
                }
                Err(at) => self.counts.insert(at, (*bound, *count)),
            }
        }
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// Converts the values to another unit.
    #[must_use]
    pub fn map(&self, unit: impl Fn(u64) -> u64) -> Self {
        let mut mapped = Self { counts: Vec::new(), sum: unit(self.sum) };
        for (bound, count) in &self.counts {
            mapped.merge(&Self { counts: vec![(unit(*bound), *count)], sum: 0 });
        }
        mapped
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share of counts is an estimate anyway")]
fn is_share(part: u64, total: u64, share: f64) -> bool {
    part as f64 >= total as f64 * share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_falls_into_a_bucket_whose_bound_is_at_most_an_eighth_above_it() {
        let mut bounds = Vec::new();
        for power in 0..64 {
            for value in [1 << power, (1 << power) + (1 << power >> 1), u64::MAX >> (63 - power)] {
                let bound = largest_of(bucket_of(value));
                assert!(bound >= value && bound - value <= value / 8, "{value} under {bound}");
                assert!(bucket_of(value) < BUCKETS);
                bounds.push((bucket_of(value), bound));
            }
        }
        bounds.sort_unstable();
        assert!(bounds.is_sorted_by_key(|(_, bound)| *bound), "buckets ascend");
    }

    #[test]
    fn quantiles_and_sums_match_the_recorded_values() {
        let histogram = Histogram::default();
        for value in 1..=1000 {
            histogram.record(value);
        }
        let mut seen = histogram.snapshot();
        assert_eq!((seen.total(), seen.sum), (1000, 500_500));
        let median = seen.quantile(0.5);
        assert!((500..=563).contains(&median), "{median}");
        seen.merge(&histogram.snapshot());
        assert_eq!((seen.total(), seen.sum, seen.quantile(0.5)), (2000, 1_001_000, median));
        assert_eq!(seen.map(|value| value / 1024).total(), 2000);
        assert_eq!(Distribution::default().quantile(0.99), 0);
    }
}
