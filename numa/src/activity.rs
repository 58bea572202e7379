//! How busy each processor is: the difference of two readings of `/proc/stat`.

use std::collections::BTreeMap;
use std::path::Path;

use nearstate_model::{Error, Result};

use crate::text_file;

/// More than `/proc/stat` has on the largest machine.
const STAT_BYTES_MAX: u64 = 16 << 20;

/// A reading of the processors' clocks, in ticks since the machine started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Busy and all ticks by processor.
    ticks: BTreeMap<u32, (u64, u64)>,
}

impl Activity {
    /// Reads the clocks of this machine.
    ///
    /// # Errors
    /// `System` or `BadArgument` if `/proc/stat` cannot be read.
    pub fn read() -> Result<Self> {
        let text = text_file::read(Path::new("/proc/stat"), STAT_BYTES_MAX)?;
        text.map(|text| Self::parse(&text)).ok_or_else(|| Error::System {
            detail: "/proc/stat does not exist; mount /proc, or give --window 0".to_owned(),
            errno: 0,
        })
    }

    /// Parses the text of `/proc/stat`. Other lines are ignored.
    pub fn parse(text: &str) -> Self {
        let ticks = |line: &str| {
            let mut words = line.strip_prefix("cpu")?.split_whitespace();
            let number: u32 = words.next()?.parse().ok()?;
            // user nice system idle iowait irq softirq steal; guest time is part of user.
            let fields: Vec<u64> = words.take(8).map_while(|word| word.parse().ok()).collect();
            let all = fields.iter().copied().fold(0, u64::saturating_add);
            let idle = fields.iter().skip(3).take(2).copied().fold(0, u64::saturating_add);
            Some((number, (all.saturating_sub(idle), all)))
        };
        let is_total = |line: &&str| !line.starts_with("cpu ");
        Self { ticks: text.lines().filter(is_total).filter_map(ticks).collect() }
    }

    /// The share of time that each processor was busy since an earlier reading, from 0 to 1. A
    /// processor without a tick in between is left out.
    pub fn busy_since(&self, earlier: &Self) -> BTreeMap<u32, f64> {
        let share = |(number, (busy, all)): (&u32, &(u64, u64))| {
            let (busy_then, all_then) = earlier.ticks.get(number)?;
            let (busy, all) = (busy.saturating_sub(*busy_then), all.saturating_sub(*all_then));
            #[expect(clippy::cast_precision_loss, reason = "a share needs few digits")]
            (all > 0).then(|| (*number, (busy as f64 / all as f64).min(1.0)))
        };
        self.ticks.iter().filter_map(share).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busy_share_is_that_of_the_window() {
        let first = Activity::parse("cpu  9 9 9 9 9 9 9 9\ncpu0 10 0 0 90 0 0 0 0 0 0\nintr 5\n");
        let text = "cpu0 40 0 0 150 10 0 0 0 7 0\ncpu1 1 1 1 1 1 1 1 1\ncpu2 x\n";
        let busy = Activity::parse(text).busy_since(&first);
        assert_eq!(busy, BTreeMap::from([(0, 0.3)]));
    }

    #[test]
    fn clocks_that_run_backwards_give_no_share_above_one() {
        let (first, second) = ("cpu0 50 0 0 50 0 0 0 0", "cpu0 90 0 0 20 0 0 0 0");
        let busy = Activity::parse(second).busy_since(&Activity::parse(first));
        assert_eq!(busy, BTreeMap::from([(0, 1.0)]));
    }
}
