//! Faults injected into the store, and the means that detect each of them: the history checker, the
//! models' invariants, the processes themselves. Without a fault, none of them reports anything.

use std::collections::BTreeSet;

use nearstate_torture::histories::model::HistoryModel;
use nearstate_torture::histories::options::{Detector, HistoryOptions, HistoryTotals};
use nearstate_torture::histories::rounds::play;

use crate::fixture::{folder, starter_with};

/// Runs after which a fault that was not detected counts as not detected: on a busy machine
/// processes seldom run at the same time.
const RUNS_MAX: u64 = 8;

/// A fault is detected by one of these, in one of the runs.
fn assert_caught(fault: &str, model: HistoryModel, by: &[&[Detector]]) {
    let mut caught = BTreeSet::new();
    for seed in 1..=RUNS_MAX {
        let totals = survey(fault, model, seed);
        caught.extend(totals.caught.iter().filter(|(_, count)| **count > 0).map(|(by, _)| *by));
        if by.iter().all(|any| any.iter().any(|one| caught.contains(one))) {
            return;
        }
    }
    panic!("{fault}, {}: only {caught:?} in {RUNS_MAX} runs", model.name());
}

/// Runs rounds of one model and continues after a detected fault.
fn survey(fault: &str, model: HistoryModel, seed: u64) -> HistoryTotals {
    let name = model.name();
    let options = HistoryOptions {
        rounds: 80,
        rounds_per_check: 40,
        processes: 4,
        operations: 24,
        kills_percent: 0,
        jitter: 150,
        model: Some(model),
        folder: folder(&format!("{fault}-{name}")),
        seed,
        is_survey: true,
    };
    let starter = starter_with(&[&format!("NEARSTATE_PLANT={fault}")]);
    let totals = play(&options, &starter, &mut |_| {}).unwrap_or_else(|e| panic!("{e}"));
    println!("{fault}, {name}: {:?} in {} rounds", totals.caught, totals.rounds);
    for (by, text) in &totals.first {
        println!("    {by:?}: {text}");
    }
    totals
}

#[test]
fn without_a_fault_nothing_is_reported() {
    for model in HistoryModel::ALL {
        let has_effect = (1..=RUNS_MAX).any(|seed| {
            let totals = survey("none", model, seed);
            assert!(totals.caught.is_empty());
            assert_eq!((totals.rounds, totals.histories_checked), (80, 80));
            totals.transactions_and_writes_done > 500 && totals.refused > 50
        });
        assert!(has_effect, "the workload had no effect");
    }
}

/// Two transactions overwrite each other: the bank's total changes, the ring breaks.
#[test]
fn a_commit_that_skips_its_validation_is_detected_by_histories_and_invariants() {
    assert_caught("skip-validation", HistoryModel::Registers, &[&[Detector::History]]);
    let both: [&[Detector]; 2] = [&[Detector::History], &[Detector::Invariant]];
    assert_caught("skip-validation", HistoryModel::Bank, &both);
    assert_caught("skip-validation", HistoryModel::Ring, &[&[Detector::Process]]);
}

/// New entries become visible one by one, before the commit point.
#[test]
fn a_commit_that_publishes_before_its_decision_is_detected_by_histories_and_invariants() {
    let both: [&[Detector]; 2] = [&[Detector::History], &[Detector::Invariant]];
    assert_caught("publish-early", HistoryModel::Bank, &both);
    let one = [Detector::History, Detector::Invariant];
    assert_caught("publish-early", HistoryModel::Index, &[&one]);
}

/// The last write of a transaction is omitted: a record's name leads nowhere.
#[test]
fn a_commit_that_omits_its_index_is_detected_by_histories_and_invariants() {
    assert_caught("forget-index", HistoryModel::Registers, &[&[Detector::History]]);
    let both: [&[Detector]; 2] = [&[Detector::History], &[Detector::Invariant]];
    assert_caught("forget-index", HistoryModel::Bank, &both);
    assert_caught("forget-index", HistoryModel::Index, &[&[Detector::Process]]);
}

/// Runs after which a fault that readers of pairs did not detect counts as not detected.
const PAIRS_RUNS_MAX: u64 = 20;

/// Readers read pairs of records that are always written together.
#[test]
fn a_commit_that_publishes_before_its_decision_is_detected_by_readers_of_pairs() {
    // The jitter yields the processor between two stores: without it, only nanoseconds lie between
    // two entries.
    let starter = starter_with(&["NEARSTATE_PLANT=publish-early", "NEARSTATE_JITTER=200"]);
    // On a busy machine a reader is seldom scheduled between the two stores.
    for seed in 1..=PAIRS_RUNS_MAX {
        let options = nearstate_torture::run::TortureOptions {
            kills: 100,
            kills_per_check: 100,
            writers: 2,
            readers: 4,
            folder: folder("pairs"),
            seed,
            pause_us_max: 60_000,
            full_region: None,
        };
        let ended = nearstate_torture::run::run(&options, &starter, &mut |_| {});
        if let Err(error) = ended {
            println!("seed {seed}: {error}");
            // Half of one, or a version of one that was rolled back after its record was read.
            let is_detected = ["half of a transaction", " after LastSeen"];
            assert!(is_detected.iter().any(|text| error.contains(text)), "{error}");
            std::fs::remove_dir_all(&options.folder).unwrap();
            return;
        }
    }
    panic!("{PAIRS_RUNS_MAX} runs did not detect the fault");
}
