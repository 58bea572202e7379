//! Kills after single instructions of every kind of write.

use nearstate_torture::step::{OPERATIONS, StepStride, SweepError, sweep, table};

use crate::fixture::{folder, starter};

/// Instructions of each operation after which it is killed. `nearstate torture --step 1` kills
/// after every one.
const PLACES: u64 = 12;

#[test]
fn a_kill_after_any_instruction_loses_tears_and_leaks_nothing() {
    match sweep(&folder("step"), &starter(), StepStride::Places(PLACES), &mut |_, _, _| {}) {
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
            println!("SKIPPED: ptrace is not permitted here, no instruction was stepped: {why}");
        }
        Err(SweepError::Violation(error)) => panic!("{error}"),
    }
}
