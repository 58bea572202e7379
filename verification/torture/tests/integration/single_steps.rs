//! Kills after single instructions of every kind of write.

use nearstate_torture::step::{OPERATIONS, StepStride, SweepError, sweep, table};

use crate::fixture::{folder, starter};

#[test]
fn a_kill_after_any_instruction_loses_tears_and_leaks_nothing() {
    match sweep(&folder("step"), &starter(), StepStride::Places(16), &mut |_, _, _| {}) {
        Ok(rows) => {
            println!("{}", table(&rows));
            assert_eq!(rows.len(), OPERATIONS.len());
            // The places divide the instructions of the first run. A random hash can make it longer
            // than the others, which end after fewer places then.
            assert!(rows.iter().all(|row| row.instructions > 200 && row.kills >= 8), "{rows:?}");
        }
        Err(SweepError::NotPermitted(why)) => {
            println!("SKIPPED: ptrace is not permitted here, no instruction was stepped: {why}");
        }
        Err(SweepError::Violation(error)) => panic!("{error}"),
    }
}
