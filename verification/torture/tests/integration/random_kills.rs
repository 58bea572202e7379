//! A short torture run: real processes, killed at random instants.

use nearstate_torture::run::{TortureOptions, run};

use crate::fixture::{folder, starter};

#[test]
fn three_hundred_kills_lose_tear_and_leak_nothing() {
    let options = TortureOptions {
        kills: 300,
        kills_per_check: 100,
        writers: 4,
        readers: 4,
        folder: folder("torture"),
        seed: 1,
        pause_us_max: 6000,
    };
    let report = run(&options, &starter(), &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
    println!("{}", report.table());
    assert_eq!((report.kills, report.checks, report.bytes_leaked), (300, 3, 0));
    assert!(
        report.counts.acknowledged_states_verified > 1000
            && report.views_verified > 1000
            && report.counts.writes_cut_short > 0
    );
    assert!(
        report.counts.transactions_acknowledged > 1000
            && report.counts.transactions_cut_short_resolved > 0
            && report.pairs_verified > 1000
    );
}
