//! A short torture run: real processes, killed at random instants.
#![expect(clippy::print_stdout, reason = "a test says what it measured")]

use nearstate_torture::run::{Options, run};
use nearstate_torture::spawn::Starter;

#[test]
fn three_hundred_kills_lose_tear_and_leak_nothing() {
    let options = Options {
        kills: 300,
        kills_per_check: 100,
        writers: 4,
        readers: 4,
        folder: format!("/dev/shm/nearstate-torture-test-{}", std::process::id()).into(),
        seed: 1,
        pause_us_max: 6000,
    };
    // Built with the crash points, children give the processor away at one of them in so many, so
    // that kills and readers fall between any two stores.
    let words = ["env", "NEARSTATE_JITTER=400", env!("CARGO_BIN_EXE_nearstate-torture-child")];
    let starter = Starter(words.map(Into::into).to_vec());
    let report = run(&options, &starter, &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
    println!("{}", report.table());
    assert_eq!((report.kills, report.checks, report.bytes_leaked), (300, 3, 0));
    assert!(report.verified > 1000 && report.views > 1000 && report.cut_short > 0);
    assert!(report.transactions > 1000 && report.transactions_resolved > 0 && report.pairs > 1000);
}
