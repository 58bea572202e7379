//! A short torture run: real processes, killed at random instants.

use nearstate_torture::run::{FullRegion, TortureOptions, run};

use crate::fixture::{folder, starter};

/// Runs after which processes that do too little before they are killed count as a fault of the
/// test. Each run has longer pauses: on a busy machine a process that is started does little.
const BUSY_RUNS_MAX: u64 = 8;

#[test]
fn three_hundred_kills_lose_tear_and_leak_nothing() {
    for seed in 1..=BUSY_RUNS_MAX {
        let options = TortureOptions {
            kills: 300,
            kills_per_check: 100,
            writers: 4,
            readers: 4,
            folder: folder("torture"),
            seed,
            pause_us_max: 6000 * seed,
            full_region: None,
        };
        let report =
            run(&options, &starter(), &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
        println!("{}", report.table());
        assert_eq!((report.kills, report.checks, report.bytes_leaked), (300, 3, 0));
        let counts = &report.counts;
        let have_written = counts.acknowledged_states_verified > 1000
            && counts.writes_cut_short > 0
            && counts.transactions_acknowledged > 1000
            && counts.transactions_cut_short_resolved > 0;
        if have_written && report.views_verified > 1000 && report.pairs_verified > 1000 {
            return;
        }
    }
    panic!("in {BUSY_RUNS_MAX} runs the processes did too little");
}

/// Runs after which a region that was never full counts as a fault of the test.
const FULL_RUNS_MAX: u64 = 8;

/// Records of mixed sizes are moved, replaced and deleted in a region without room, by processes
/// that are killed and stopped. On a busy machine they are killed before they have filled it.
#[test]
fn kills_and_stops_in_a_full_region_lose_tear_and_leak_nothing() {
    for seed in 1..=FULL_RUNS_MAX {
        let options = TortureOptions {
            kills: 80,
            kills_per_check: 20,
            writers: 4,
            readers: 2,
            folder: folder("full-region"),
            seed,
            pause_us_max: 60_000 * seed,
            full_region: Some(FullRegion { stop_ms_max: 1500, seconds_min: 0 }),
        };
        let report =
            run(&options, &starter(), &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
        println!("{}", report.table());
        assert_eq!((report.kills, report.checks, report.bytes_leaked), (80, 4, 0));
        let full = report.full_region.unwrap();
        assert!(full.stops > 5 && full.checks == 4, "{} stops", full.stops);
        let counts = report.counts;
        let refused = counts.writes_refused_as_full + counts.writes_refused_for_a_held_view;
        let have_written = counts.acknowledged_states_verified > 1000;
        if have_written && full.free_percent_min < 25 && refused > 0 {
            return;
        }
    }
    panic!("{FULL_RUNS_MAX} runs did not fill the region");
}
