//! Sessions with tags, expiry and watchers in many processes, killed at random.

use nearstate_torture::tags::stress::{TagStressOptions, run};

use crate::fixture::{folder, starter_with};

/// Runs after which processes that do too little before they are killed count as a fault of the
/// test.
const RUNS_MAX: u64 = 8;

fn options(name: &str, kills: u64) -> TagStressOptions {
    TagStressOptions {
        kills,
        kills_per_check: 50,
        writers: 4,
        collectors: 1,
        readers: 2,
        folder: folder(name),
        seed: 1,
        pause_us_max: 30_000,
    }
}

#[test]
fn random_kills_leave_indexes_right_and_deliver_each_event_once() {
    let starter = starter_with(&["NEARSTATE_JITTER=400"]);
    for seed in 1..=RUNS_MAX {
        // On a busy machine a process that is started does little: each run has longer pauses.
        let pause_us_max = 30_000 * seed;
        let options = TagStressOptions { seed, pause_us_max, ..options("tag-stress", 150) };
        let totals = run(&options, &starter, &mut |_| {}).unwrap_or_else(|e| panic!("{e}"));
        for (name, value) in totals.lines() {
            println!("{name:<30} {value}");
        }
        assert_eq!((totals.kills, totals.checks), (150, 6));
        let have_written = totals.transactions_acknowledged > 500
            && totals.transactions_refused_for_a_tag > 50
            && totals.transactions_cut_short > 10;
        let have_read = totals.lookups > 500 && totals.events > 500;
        if have_written && have_read && totals.records_collected > 50 {
            return;
        }
    }
    panic!("in {RUNS_MAX} runs the processes did too little");
}

/// The check or the next process that searches the index finds a posting that was not written.
#[cfg(feature = "crash-points")]
#[test]
fn a_commit_that_omits_a_posting_is_detected() {
    let starter = starter_with(&["NEARSTATE_PLANT=forget-posting"]);
    let options = TagStressOptions { readers: 0, ..options("forget-posting", 20) };
    let error = run(&options, &starter, &mut |_| {}).expect_err("the fault was not detected");
    println!("{error}");
    assert!(error.contains("is not in it"), "{error}");
    std::fs::remove_dir_all(&options.folder).unwrap_or_else(|e| panic!("{e}"));
}
