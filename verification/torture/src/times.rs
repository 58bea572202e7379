//! Times of fail-overs and of starts, with percentiles and a histogram.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

/// The width of a bar of the histogram in milliseconds, and the longest bar in characters.
const BAR_MS: u64 = 50;
const BAR_LENGTH_MAX: usize = 50;

/// Times in microseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Times(Vec<u64>);

impl Times {
    pub(crate) fn push(&mut self, us: u64) {
        let at = self.0.partition_point(|one| *one <= us);
        self.0.insert(at, us);
    }

    /// The number of times.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The time that so many percent of all do not exceed.
    pub(crate) fn percentile_us(&self, percent: usize) -> u64 {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied().unwrap_or(0)
    }

    /// The same in milliseconds.
    pub fn percentile_ms(&self, percent: usize) -> f64 {
        Duration::from_micros(self.percentile_us(percent)).as_secs_f64() * 1e3
    }

    pub(crate) fn summary(&self) -> String {
        if self.0.is_empty() {
            return "-".to_owned();
        }
        let ms = |percent| self.percentile_ms(percent);
        format!("p50 {:.0} ms, p99 {:.0} ms, max {:.0} ms", ms(50), ms(99), ms(100))
    }

    pub(crate) fn bars(&self) -> String {
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        for us in &self.0 {
            *counts.entry(us / 1000 / BAR_MS).or_default() += 1;
        }
        let most = counts.values().copied().max().unwrap_or(1);
        let mut text = String::new();
        for (bar, count) in counts {
            let length = (count * BAR_LENGTH_MAX).div_ceil(most);
            let (from, until) = (bar * BAR_MS, (bar + 1) * BAR_MS);
            let _ =
                writeln!(text, "  {from:>5} to {until:>5} ms  {:5}  {}", count, "#".repeat(length));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let mut times = Times::default();
        for us in [3000, 1000, 2000] {
            times.push(us);
        }
        let found: Vec<_> = [1, 50, 99, 100].iter().map(|of| times.percentile_ms(*of)).collect();
        assert_eq!(found, [1.0, 2.0, 3.0, 3.0]);
        assert_eq!(Times::default().summary(), "-");
    }
}
