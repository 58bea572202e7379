//! The measurements of a client: latencies of each class, and slices of time. Memory is constant.

use crate::result::{ClassResult, Slice};
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
    pub fn finish(mut self, names: &[&str], now_ns: u64) -> (Vec<ClassResult>, Vec<Slice>) {
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
    done: Vec<Slice>,
    open: Coarse,
}

impl Slices {
    fn new(began_ns: u64) -> Self {
        let length_ns = SLICE_MS * 1_000_000;
        let done = Vec::with_capacity(SLICES_MAX);
        Self { began_ns, ends_ns: began_ns + length_ns, length_ns, done, open: Coarse::new() }
    }

    #[inline]
    fn record(&mut self, ns: u64, count: u64) {
        self.open.record(ns, count);
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
        if self.open.count == 0 && now_ns < self.ends_ns {
            return;
        }
        self.done.push(Slice {
            at_ms: begin_ns.saturating_sub(self.began_ns) / 1_000_000,
            ms,
            ops: self.open.count,
            p50_ns: self.open.at_share(50),
            p99_ns: self.open.at_share(99),
            max_ns: self.open.max_ns,
        });
        self.open.clear();
    }

    /// Merges each two: the mean of the medians, weighted by operations, and the larger others.
    fn merge(&mut self) {
        self.done = merged(&self.done);
        self.length_ns *= 2;
    }
}

/// Buckets for each doubling of the latency: a percentile of a slice is at most 1/16 too large.
const FINE: u32 = 16;

/// Latencies of one slice, in four kilobytes instead of the hundreds of a histogram.
#[derive(Debug)]
struct Coarse {
    buckets: Box<[u32; 61 * FINE as usize]>,
    count: u64,
    max_ns: u64,
}

impl Coarse {
    fn new() -> Self {
        Self { buckets: Box::new([0; 61 * FINE as usize]), count: 0, max_ns: 0 }
    }

    fn clear(&mut self) {
        self.buckets.fill(0);
        (self.count, self.max_ns) = (0, 0);
    }

    #[inline]
    fn record(&mut self, ns: u64, count: u64) {
        if let Some(bucket) = self.buckets.get_mut(bucket_of(ns)) {
            *bucket = bucket.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        }
        self.count += count;
        self.max_ns = self.max_ns.max(ns);
    }

    /// A percentile of the latency.
    fn at_share(&self, percent: u64) -> u64 {
        let wanted = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        for (number, count) in self.buckets.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= wanted {
                return end_of(number).min(self.max_ns);
            }
        }
        self.max_ns
    }
}

/// The bucket of a latency: below 16 one each, above that 16 for each doubling.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "both are below 32")]
const fn bucket_of(ns: u64) -> usize {
    if ns < FINE as u64 {
        return ns as usize;
    }
    let doubling = ns.ilog2() - FINE.ilog2();
    (doubling * FINE) as usize + (ns >> doubling) as usize
}

/// The largest latency of a bucket.
const fn end_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let fine = FINE as u64;
    if bucket < 2 * fine {
        return bucket;
    }
    let doubling = bucket / fine - 1;
    ((bucket % fine + fine) << doubling) | ((1 << doubling) - 1)
}

/// Merges each two slices.
pub fn merged(slices: &[Slice]) -> Vec<Slice> {
    slices
        .chunks(2)
        .filter_map(|pair| {
            let (first, second) = (pair.first()?, pair.get(1));
            let Some(second) = second else { return Some(*first) };
            let ops = first.ops + second.ops;
            let weighed = first.p50_ns * first.ops + second.p50_ns * second.ops;
            Some(Slice {
                at_ms: first.at_ms,
                ms: first.ms + second.ms,
                ops,
                p50_ns: weighed.checked_div(ops).unwrap_or(0),
                p99_ns: first.p99_ns.max(second.p99_ns),
                max_ns: first.max_ns.max(second.max_ns),
            })
        })
        .collect()
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
    fn buckets_follow_each_other_and_are_narrow() {
        for ns in (0..5_000).chain((0..60).map(|bits| (1 << bits) + 7)) {
            let end = end_of(bucket_of(ns));
            assert!(end >= ns && end - ns <= ns / u64::from(FINE), "{ns} ends at {end}");
            assert_eq!(bucket_of(end), bucket_of(ns));
            assert_eq!(bucket_of(end + 1), bucket_of(ns) + 1);
            assert_eq!(end_of(bucket_of(end + 1) - 1), end);
        }
        let mut coarse = Coarse::new();
        for ns in 1..=1000 {
            coarse.record(ns, 1);
        }
        coarse.record(u64::MAX, 1);
        assert!((500..=532).contains(&coarse.at_share(50)), "{}", coarse.at_share(50));
        assert!((991..=1053).contains(&coarse.at_share(99)), "{}", coarse.at_share(99));
        assert_eq!(coarse.at_share(100), u64::MAX);
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
