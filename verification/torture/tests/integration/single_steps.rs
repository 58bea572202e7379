//! Kills and stops after single instructions of every kind of operation.

use nearstate_local_cluster::skipped;
use nearstate_torture::step::{OPERATIONS, StepStride, sweep, table};
use nearstate_torture::sweep::{SWEPT, sweep_one};
use nearstate_torture::trace::SweepError;

use crate::fixture::{folder, starter};

/// Instructions of each operation after which it is killed. `nearstate torture --step 1` kills
/// after every one.
const PLACES: u64 = 12;

/// Equal parts of each operation with a stop and a kill in each. A stop can take a second, if the
/// stopped process holds what another one needs.
const PARTS: u64 = 4;

#[test]
fn a_kill_after_any_instruction_loses_tears_and_leaks_nothing() {
    let places = StepStride::Places { count: PLACES, seed: 0 };
    match sweep(&folder("step"), &starter(), places, &mut |_, _, _| {}) {
        Ok(rows) => {
            println!("{}", table(&rows));
            assert_eq!(rows.len(), OPERATIONS.len());
            // The places divide the instructions of the first run. A random hash can make it longer
            // than the others, which end after fewer places then.
            assert!(
                rows.iter().all(|row| row.instructions > 200 && row.kills >= PLACES / 2),
                "{rows:?}"
            );
        }
        Err(SweepError::NotPermitted(why)) => {
            skipped(&format!("ptrace is not permitted here: {why}"));
        }
        Err(SweepError::Violation(error)) => panic!("{error}"),
    }
}

/// `NEARSTATE_SEED=N` repeats a run.
#[test]
fn a_process_that_is_stopped_or_killed_in_any_operation_delays_and_damages_nothing() {
    let seed = std::env::var("NEARSTATE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(nearstate_torture::clock::now_ns);
    println!("seed {seed}");
    let (mut rows, mut violations) = (Vec::new(), Vec::new());
    for operation in SWEPT {
        let places = StepStride::Places { count: PARTS, seed: seed ^ rows.len() as u64 };
        let begun = std::time::Instant::now();
        let folder = folder(&format!("sweep-{}", operation.name.replace(' ', "-")));
        match sweep_one(&folder, &starter(), operation, places, &mut |_, _, _| {}) {
            Ok(row) => {
                // A place where the region is as at the one before does not count.
                assert!(row.kills > 0 && row.stops > 0, "{row:?}");
                println!("{}: {:?}", row.name, begun.elapsed());
                rows.push(row);
            }
            Err(SweepError::NotPermitted(why)) => {
                return skipped(&format!("ptrace is not permitted here: {why}"));
            }
            Err(SweepError::Violation(error)) => {
                violations.push(format!("{}: {error}", operation.name));
            }
        }
    }
    println!("{}", table(&rows));
    assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
}
