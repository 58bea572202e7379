//! Histories of processes that are killed, checked for strict serializability.

use nearstate_torture::histories::options::HistoryOptions;
use nearstate_torture::histories::rounds::play;

use crate::fixture::{folder, starter};

#[test]
fn histories_of_killed_processes_are_strictly_serializable() {
    let options = HistoryOptions {
        rounds: 400,
        rounds_per_check: 40,
        processes: 4,
        operations: 24,
        kills_percent: 60,
        jitter: 150,
        model: None,
        folder: folder("histories"),
        seed: 1,
        is_survey: false,
    };
    let totals = play(&options, &starter(), &mut |_| {}).unwrap_or_else(|e| panic!("{e}"));
    println!("{totals:#?}");
    assert_eq!(
        (totals.rounds, totals.histories_checked, totals.histories_undecided),
        (400, 400, 0)
    );
    assert_eq!(totals.checks, 10);
    assert!(totals.kills > 0 && totals.snapshots_checked > 1000, "the workload had no effect");
    assert!(
        totals.transactions_and_writes_done > 4000 && totals.refused > 100,
        "the workload had no effect"
    );
    // Without crash points, a kill rarely falls into the microseconds of a commit.
    assert!(totals.cut_short > 5 || !cfg!(feature = "crash-points"), "no commit was cut short");
}
