//! Histories of processes that are killed, judged by a checker.
#![expect(clippy::print_stdout, reason = "a test says what it measured")]
#![expect(clippy::panic, reason = "a test fails by panicking")]

use nearstate_torture::histories::game::Options;
use nearstate_torture::histories::rounds::play;
use nearstate_torture::spawn::Starter;

#[test]
fn histories_of_processes_that_are_killed_are_strictly_serializable() {
    let options = Options {
        rounds: 400,
        rounds_per_check: 40,
        players: 4,
        operations: 24,
        kills_percent: 60,
        jitter: 150,
        model: None,
        folder: format!("/dev/shm/nearstate-histories-test-{}", std::process::id()).into(),
        seed: 1,
        is_survey: false,
    };
    let starter = Starter(vec![env!("CARGO_BIN_EXE_nearstate-torture-child").into()]);
    let totals = play(&options, &starter, &mut |_| {}).unwrap_or_else(|e| panic!("{e}"));
    println!("{totals:#?}");
    assert_eq!((totals.rounds, totals.histories, totals.undecided), (400, 400, 0));
    assert_eq!(totals.checks, 10);
    assert!(totals.kills > 0 && totals.snapshots > 1000, "the work met nothing");
    assert!(totals.done > 4000 && totals.refused > 100, "the work met nothing");
    // Without the points, a kill seldom falls into the microseconds of a commit.
    assert!(totals.unknown > 5 || !cfg!(feature = "crash-points"), "no commit was cut short");
}
