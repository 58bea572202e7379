//! The noise of the machine before a run: the same work is executed many times. Longer times are
//! caused by other guests of the host, interrupts, or frequency changes.

use crate::result::Noise;
use crate::stat::as_f64;
use std::hint::black_box;

/// Measured executions of the work: with some 20 us each, half a second. A build for tests is not
/// optimized: each takes ten times as long there, and no figure counts.
pub const LOOPS: u64 = if cfg!(debug_assertions) { 100 } else { 25_000 };

/// Dependent steps of the work, about five cycles each: 20 us at 3 GHz.
const STEPS: u32 = 12_000;

/// Executions before the measurement, for caches and frequency: some 20 ms.
const WARM_UP: u64 = 1_000;

/// Does the work [`LOOPS`] times. Time comes from `now_ns`, a monotonic clock.
pub fn measure(now_ns: impl FnMut() -> u64) -> Noise {
    measure_loops(LOOPS, now_ns, &std::fs::read_to_string("/proc/loadavg").unwrap_or_default())
}

fn measure_loops(loops: u64, mut now_ns: impl FnMut() -> u64, loadavg: &str) -> Noise {
    for seed in 0..WARM_UP.min(loops) {
        black_box(work(black_box(seed)));
    }
    let mut latencies = crate::stat::Latencies::new();
    let mut began = now_ns();
    for seed in 0..loops {
        black_box(work(black_box(seed)));
        let ended = now_ns();
        latencies.record(ended.saturating_sub(began), 1);
        began = ended;
    }
    Noise {
        loops,
        p50_ns: latencies.percentile(50.0),
        p99_ns: latencies.percentile(99.0),
        max_ns: latencies.max(),
        load: load(loadavg),
    }
}

/// A chain of dependent steps. The shifts prevent the compiler from merging the multiplications.
#[inline(never)]
fn work(seed: u64) -> u64 {
    (0..STEPS).fold(seed | 1, |state, _| (state ^ (state >> 29)).wrapping_mul(FACTOR))
}

/// The odd factor of Knuth's generator.
const FACTOR: u64 = 6_364_136_223_846_793_005;

/// The first number of `/proc/loadavg`; NaN if it has none.
fn load(loadavg: &str) -> f64 {
    loadavg.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(f64::NAN)
}

/// A warning is printed if the p99 exceeds the median by more than this factor.
const P99_MAX: f64 = 1.5;

/// A longer delay is a time slice of another process: an interrupt takes microseconds.
const PAUSE_NS_MAX: u64 = 2_000_000;

/// A warning about this noise, if any.
pub fn warning(noise: &Noise, processors: usize) -> Option<String> {
    let ratio = as_f64(noise.p99_ns) / as_f64(noise.p50_ns.max(1));
    let mut words = Vec::new();
    if ratio > P99_MAX {
        words
            .push(format!("fixed work took {ratio:.1} times its median in one of a hundred times"));
    }
    if noise.max_ns > PAUSE_NS_MAX {
        words.push(format!("once it was held up for {:.1} ms", as_f64(noise.max_ns) / 1e6));
    }
    // A benchmark that shares its processors measures the scheduler. NaN is an unknown load.
    if noise.load > as_f64(processors as u64) * 0.5 {
        words.push(format!("{:.1} processes wanted to run in the minute before", noise.load));
    }
    (!words.is_empty()).then(|| {
        format!(
            "the machine was not quiet before the run ({}): compare only what was measured in \
             alternation, or run again when it is",
            words.join("; ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that is 20 us later each time, and once 3 ms.
    fn clock() -> impl FnMut() -> u64 {
        let (mut now, mut calls) = (0, 0);
        move || {
            calls += 1;
            now += if calls == 50 { 3_000_000 } else { 20_000 };
            now
        }
    }

    #[test]
    fn a_pause_changes_the_maximum_and_not_the_median() {
        let noise = measure_loops(200, clock(), "2.50 1.00 0.50 1/99 1\n");
        assert_eq!(noise.loops, 200);
        assert!((19_900..=20_100).contains(&noise.p50_ns), "{noise:?}");
        assert!((19_900..=20_100).contains(&noise.p99_ns), "{noise:?}");
        assert!((2_990_000..=3_010_000).contains(&noise.max_ns), "{noise:?}");
        assert!((noise.load - 2.5).abs() < 1e-9);
    }

    #[test]
    fn no_loops_and_an_unknown_load_do_not_panic() {
        let noise = measure_loops(0, clock(), "");
        assert_eq!((noise.loops, noise.p50_ns), (0, 0));
        assert!(noise.load.is_nan() && warning(&noise, 2).is_none());
    }

    #[test]
    fn the_compiler_does_not_remove_the_work() {
        // The same chain, each step out of the compiler's sight.
        let mut state = 7_u64;
        for _ in 0..STEPS {
            state = black_box(state ^ (state >> 29)).wrapping_mul(FACTOR);
        }
        assert_eq!(work(7), state);
        assert_ne!(work(7), work(9));
    }

    #[test]
    fn a_noisy_or_busy_machine_is_reported() {
        let quiet = Noise { loops: 9, p50_ns: 20_000, p99_ns: 21_000, max_ns: 90_000, load: 0.1 };
        assert_eq!(warning(&quiet, 2), None);
        let unsteady = Noise { p99_ns: 60_000, ..quiet.clone() };
        assert!(warning(&unsteady, 2).unwrap().contains("3.0 times its median"));
        let paused = Noise { max_ns: 16_100_000, ..quiet.clone() };
        assert!(warning(&paused, 2).unwrap().contains("held up for 16.1 ms"));
        let busy = Noise { load: 1.7, ..quiet };
        assert!(warning(&busy, 2).unwrap().contains("1.7 processes"));
        assert_eq!(warning(&busy, 8), None);
    }
}
