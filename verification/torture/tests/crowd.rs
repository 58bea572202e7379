//! A short crowd: sessions with tags, ends and watchers in many processes, killed at random.
#![expect(clippy::print_stdout, reason = "a test says what it measured")]
#![expect(clippy::panic, reason = "a test fails by panicking")]

use nearstate_torture::spawn::Starter;
use nearstate_torture::tagged::crowd::{Options, run};

fn options(name: &str, kills: u64) -> Options {
    Options {
        kills,
        kills_per_check: 50,
        writers: 4,
        collectors: 1,
        readers: 2,
        folder: format!("/dev/shm/nearstate-{name}-test-{}", std::process::id()).into(),
        seed: 1,
        pause_us_max: 30_000,
    }
}

#[test]
fn a_crowd_that_is_killed_at_random_has_right_indexes_and_tells_each_event_once() {
    let words = ["env", "NEARSTATE_JITTER=400", env!("CARGO_BIN_EXE_nearstate-torture-child")];
    let starter = Starter(words.map(Into::into).to_vec());
    let totals =
        run(&options("crowd", 150), &starter, &mut |_| {}).unwrap_or_else(|e| panic!("{e}"));
    for (name, value) in totals.lines() {
        println!("{name:<30} {value}");
    }
    assert_eq!((totals.kills, totals.checks), (150, 6));
    assert!(totals.done > 500 && totals.taken > 50 && totals.cut > 10);
    assert!(totals.collected > 50 && totals.lookups > 500 && totals.events > 500);
}

/// A posting that is not written: the check, or whoever comes first, finds it.
#[cfg(feature = "crash-points")]
#[test]
fn a_commit_that_forgets_a_posting_is_found() {
    let child = env!("CARGO_BIN_EXE_nearstate-torture-child");
    let words = ["env", "NEARSTATE_PLANT=forget-posting", child];
    let starter = Starter(words.map(Into::into).to_vec());
    let options = Options { readers: 0, ..options("forget-posting", 20) };
    let found = run(&options, &starter, &mut |_| {}).expect_err("nobody found it");
    println!("{found}");
    assert!(found.contains("is not in it"), "{found}");
    std::fs::remove_dir_all(&options.folder).unwrap_or_else(|e| panic!("{e}"));
}
