//! Kills after single instructions of every kind of write.
#![expect(clippy::print_stdout, reason = "a test says what it measured")]

use nearstate_torture::spawn::Starter;
use nearstate_torture::step::{OPERATIONS, Stop, Stride, sweep, table};
use std::path::PathBuf;

#[test]
fn a_kill_after_any_instruction_loses_tears_and_leaks_nothing() {
    let folder: PathBuf = format!("/dev/shm/nearstate-step-test-{}", std::process::id()).into();
    let starter = Starter(vec![env!("CARGO_BIN_EXE_nearstate-torture-child").into()]);
    match sweep(&folder, &starter, Stride::Places(24), &mut |_, _, _| {}) {
        Ok(rows) => {
            println!("{}", table(&rows));
            assert_eq!(rows.len(), OPERATIONS.len());
            assert!(rows.iter().all(|row| row.instructions > 200 && row.kills >= 12), "{rows:?}");
        }
        Err(Stop::NotPermitted(why)) => {
            println!("SKIPPED: ptrace is not permitted here, so no instruction was stepped: {why}");
        }
        Err(Stop::Found(error)) => panic!("{error}"),
    }
}
