//! The measurements of a client: latencies of each class, and slices of time. Memory is constant.

use crate::result::{ClassResult, TimeSlice};
use crate::stat::Latencies;
use crate::workloads::{CLASSES_MAX, Tally};

/// The largest number of slices of a trial; if there are more, each two are merged.
pub const SLICES_MAX: usize = 512;

/// Length of a slice at first, in milliseconds.
const SLICE_MS: u64 = 50;

/// Latencies and slices of one trial.
#[derive(Debug)]
pub struct Meter {
    classes: Vec<Latencies>,
    slices: Slices,
    /// Sums over the steps.
    pub bytes_out: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Unsuccessful operations.
    pub unsuccessful: u64,
    /// All operations.
    pub ops: u64,
}

impl Meter {
    /// Without measurements; the trial starts at `began_ns`.
    pub fn new(began_ns: u64) -> Self {
        Self {
            classes: (0..CLASSES_MAX).map(|_| Latencies::new()).collect(),
            slices: Slices::new(began_ns),
            bytes_out: 0,
            bytes_in: 0,
            unsuccessful: 0,
            ops: 0,
        }
    }

    /// Adds a step whose operations all took `ns` and ended at `now_ns`.
    #[inline]
    pub fn step(&mut self, tally: &Tally, ns: u64, now_ns: u64) {
        self.slices.until(now_ns);
        self.add(tally);
        if tally.counted == 1
            && let Some(latencies) = self.classes.get_mut(tally.last)
        {
            latencies.record(ns, 1);
            self.slices.record(ns, 1);
            self.ops += 1;
            return;
        }
        for (latencies, count) in self.classes.iter_mut().zip(tally.classes) {
            if count > 0 {
                latencies.record(ns, count.into());
                self.slices.record(ns, count.into());
                self.ops += u64::from(count);
            }
        }
    }

    /// Adds a step whose operations were to start at these times and all ended at `now_ns`. Their
    /// classes are not known, and are assigned in order.
    pub fn due_step(&mut self, tally: &Tally, due_ns: &[u64], now_ns: u64) {
        self.slices.until(now_ns);
        let mut due = due_ns.iter();
        for (latencies, count) in self.classes.iter_mut().zip(tally.classes) {
            for due_ns in due.by_ref().take(usize::try_from(count).unwrap_or(0)) {
                let ns = now_ns.saturating_sub(*due_ns);
                latencies.record(ns, 1);
                self.slices.record(ns, 1);
                self.ops += 1;
            }
        }
        self.add(tally);
    }

    #[inline]
    fn add(&mut self, tally: &Tally) {
        self.bytes_out += tally.bytes_out;
        self.bytes_in += tally.bytes_in;
        self.unsuccessful += tally.unsuccessful;
    }

    /// The 99th percentile of the last whole slice, in nanoseconds.
    pub fn last_p99(&self) -> u64 {
        self.slices.done.last().map_or(0, |slice| slice.p99_ns)
    }

    /// The classes with operations, by name, and the slices.
    pub fn finish(mut self, names: &[&str], now_ns: u64) -> (Vec<ClassResult>, Vec<TimeSlice>) {
        self.slices.close(now_ns);
        let classes = names
            .iter()
            .zip(&self.classes)
            .filter(|(_, latencies)| latencies.count() > 0)
            .map(|(name, latencies)| ClassResult {
                name: (*name).to_owned(),
                latencies: latencies.pairs().collect(),
            })
            .collect();
        (classes, self.slices.done)
    }
}

#[derive(Debug)]
struct Slices {
    began_ns: u64,
    /// The end of the current slice.
    ends_ns: u64,
    length_ns: u64,
    done: Vec<TimeSlice>,
    open: Latencies,
    /// The longest latency of the current slice, exactly.
    open_max_ns: u64,
}

impl Slices {
    fn new(began_ns: u64) -> Self {
        let length_ns = SLICE_MS * 1_000_000;
        let done = Vec::with_capacity(SLICES_MAX);
        let (ends_ns, open) = (began_ns + length_ns, Latencies::coarse());
        Self { began_ns, ends_ns, length_ns, done, open, open_max_ns: 0 }
    }

    #[inline]
    fn record(&mut self, ns: u64, count: u64) {
        self.open.record(ns, count);
        self.open_max_ns = self.open_max_ns.max(ns);
    }

    /// Closes the intervals that end before `now_ns`.
    #[inline]
    fn until(&mut self, now_ns: u64) {
        if now_ns >= self.ends_ns {
            self.pass(now_ns);
        }
    }

    #[cold]
    fn pass(&mut self, now_ns: u64) {
        self.close(self.ends_ns);
        // A stall results in empty slices; a very long one makes all slices longer first.
        while now_ns >= self.ends_ns {
            if self.done.len() >= SLICES_MAX {
                self.merge();
            }
            self.ends_ns += self.length_ns;
            if now_ns >= self.ends_ns {
                self.close(self.ends_ns);
            }
        }
    }

    fn close(&mut self, now_ns: u64) {
        let ms = self.length_ns / 1_000_000;
        let begin_ns = self.ends_ns.saturating_sub(self.length_ns);
        if self.open.count() == 0 && now_ns < self.ends_ns {
            return;
        }
        self.done.push(TimeSlice {
            at_ms: begin_ns.saturating_sub(self.began_ns) / 1_000_000,
            ms,
            ops: self.open.count(),
            p50_ns: self.open.percentile(50.0).min(self.open_max_ns),
            p99_ns: self.open.percentile(99.0).min(self.open_max_ns),
            max_ns: self.open_max_ns,
        });
        self.open.clear();
        self.open_max_ns = 0;
    }

    fn merge(&mut self) {
        self.done = merged(&self.done);
        self.length_ns *= 2;
    }
}

/// Merges each two slices.
pub fn merged(slices: &[TimeSlice]) -> Vec<TimeSlice> {
    let one = |pair: &[TimeSlice]| match pair {
        [first, second] => TimeSlice { ms: first.ms + second.ms, ..first.merged(*second) },
        pair => pair.first().copied().unwrap_or_default(),
    };
    slices.chunks(2).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(count: u32) -> Tally {
        let mut tally = Tally::default();
        (0..count).for_each(|_| tally.count(1));
        tally
    }

    #[test]
    fn a_stall_is_a_slice_in_which_nothing_ended() {
        let ms = 1_000_000;
        let mut meter = Meter::new(0);
        meter.step(&tally(3), 1000, 10 * ms);
        meter.step(&tally(1), 240 * ms, 250 * ms + 1);
        let (classes, slices) = meter.finish(&["never", "put"], 260 * ms);
        assert_eq!(classes.len(), 1);
        assert_eq!(classes[0].name, "put");
        let ops: Vec<u64> = slices.iter().map(|slice| slice.ops).collect();
        assert_eq!(ops, [3, 0, 0, 0, 0, 1]);
        assert!(slices[5].max_ns >= 239 * ms);
    }

    #[test]
    fn a_long_trial_takes_no_more_memory() {
        let mut meter = Meter::new(0);
        let mut now_ns = 0;
        for _ in 0..20_000 {
            now_ns += SLICE_MS * 500_000;
            meter.step(&tally(1), 500, now_ns);
        }
        let (_, slices) = meter.finish(&["a", "b"], now_ns);
        assert!(slices.len() <= SLICES_MAX + 1, "{}", slices.len());
        assert_eq!(slices.iter().map(|slice| slice.ops).sum::<u64>(), 20_000);
        let ends = slices.windows(2).map(|pair| pair[0].at_ms + pair[0].ms == pair[1].at_ms);
        assert!(ends.into_iter().all(|fits| fits), "slices leave no gap: {slices:?}");
    }

    #[test]
    fn a_late_step_counts_from_when_each_operation_was_due() {
        let mut meter = Meter::new(0);
        meter.due_step(&tally(3), &[1_000, 2_000, 3_000], 10_000);
        let (classes, _) = meter.finish(&["a", "b"], 10_000);
        let latencies: Vec<u64> = classes[0].latencies.iter().map(|(ns, _)| *ns / 1000).collect();
        assert_eq!(latencies, [7, 8, 9]);
    }
}
