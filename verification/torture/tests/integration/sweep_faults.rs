//! Faults that are planted in operations, each of which the sweep over single instructions finds.

use nearstate_local_cluster::skipped;
use nearstate_torture::step::{StepStride, SweepRow};
use nearstate_torture::sweep::{SWEPT, sweep_one};
use nearstate_torture::trace::SweepError;

use crate::fixture::{folder, starter_with};

/// Equal parts of the operation with a stop and a kill in each.
const PARTS: u64 = 8;

/// Samples after which a fault that was not found counts as not found. A fault lasts for some
/// hundred instructions of some ten thousand, of which a sample tries a dozen.
const SAMPLES_MAX: u64 = 60;

/// A sample of the places of an operation, in a child with this fault. `None`: ptrace is not
/// permitted.
fn sample(fault: &str, name: &str, seed: u64) -> Option<Result<SweepRow, String>> {
    let operation = SWEPT.iter().find(|operation| operation.name == name);
    let operation = operation.unwrap_or_else(|| panic!("the sweep has no operation {name}"));
    let starter = starter_with(&[&format!("NEARSTATE_PLANT={fault}")]);
    let places = StepStride::Places { count: PARTS, seed };
    match sweep_one(
        &folder(&format!("fault-{fault}")),
        &starter,
        operation,
        places,
        &mut |_, _, _| {},
    ) {
        Ok(row) => Some(Ok(row)),
        Err(SweepError::NotPermitted(why)) => {
            skipped(&format!("ptrace is not permitted here: {why}"));
            None
        }
        Err(SweepError::Violation(error)) => Some(Err(error)),
    }
}

/// Fails if no sample finds the fault.
fn assert_found(fault: &str, operation: &str) {
    for seed in 1..=SAMPLES_MAX {
        match sample(fault, operation, seed) {
            None => return,
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                println!("{fault}: found by sample {seed}: {error}");
                let _ = std::fs::remove_dir_all(folder(&format!("fault-{fault}")));
                return;
            }
        }
    }
    panic!("{fault}: {SAMPLES_MAX} samples of {operation} have not found it");
}

#[test]
fn without_a_fault_the_sample_finds_nothing() {
    for (operation, seed) in [("replace", 1), ("replace", 2), ("transaction", 3)] {
        if let Some(done) = sample("none", operation, seed) {
            let row = done.unwrap_or_else(|error| panic!("{operation}: {error}"));
            assert!(row.kills > PARTS / 2 && row.stops > PARTS / 4, "{row:?}");
        }
    }
}

/// Its memory is lost.
#[test]
fn a_replaced_record_that_is_not_retired_is_found() {
    assert_found("retire-left-out", "replace");
}

/// Recovery frees what a word leads to that is stored before the undo record.
#[test]
fn a_commit_before_its_undo_record_is_found() {
    assert_found("commit-unrecorded", "replace");
}

/// The word leads to a record without a version and check value.
#[test]
fn a_commit_before_its_record_is_complete_is_found() {
    assert_found("commit-incomplete", "replace");
}

/// Another process changes the word that the undo record names.
#[test]
fn a_lock_that_is_released_before_the_undo_record_is_cleared_is_found() {
    assert_found("unlock-early", "replace");
}

/// No recovery releases it.
#[test]
fn a_lock_that_the_undo_record_does_not_name_is_found() {
    assert_found("lock-unrecorded", "replace");
}

/// The record is changed, and the index is not.
#[test]
fn an_index_that_a_transaction_does_not_change_is_found() {
    assert_found("forget-posting", "tagged update");
}
