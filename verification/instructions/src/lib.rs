//! What the programs share whose instructions `cargo xtask instructions` counts. Each prepares a
//! small region and executes one operation some thousand times in [`measured`]. Seeds are fixed
//! and no clock decides anything, so every run executes the same instructions.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use nearstate_store::{CreateOptions, Region};

/// The result of an operation that fails only if the program is wrong.
pub type MeasuredResult<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// An operation: its name, how often it is executed, and the run.
pub type MeasuredOperation = (&'static str, u64, fn(u64) -> MeasuredResult);

/// Records of a region.
pub const RECORDS: u64 = 1000;

/// The value of each record.
pub const VALUE: [u8; 1000] = [7; 1000];

/// The seed of the key hash: the same buckets in every run.
const HASH_SEED: u64 = 0x5eed_5eed_5eed_5eed;

/// Runs the operation that the program's argument names. Without one, prints the names and how
/// often each is executed.
pub fn run(operations: &[MeasuredOperation]) -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    if name.is_empty() {
        for (name, times, _) in operations {
            print(&format!("{name} {times}"));
        }
        return ExitCode::SUCCESS;
    }
    let known = operations.iter().find(|(known, ..)| *known == name);
    let done = known.map_or_else(
        || Err("no such operation: without one, all are listed".into()),
        |(_, times, operation)| operation(*times),
    );
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("{name}: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Calls `operation` with the numbers below `times`. Instructions are counted inside this function.
///
/// # Errors
/// That of `operation`.
#[inline(never)]
pub fn measured(times: u64, mut operation: impl FnMut(u64) -> MeasuredResult) -> MeasuredResult {
    (0..times).try_for_each(&mut operation)
}

/// A new region of 128 MiB in a folder that is removed with it.
///
/// # Errors
/// Those of the file system.
pub fn new_region() -> MeasuredResult<(Region, tempfile::TempDir)> {
    new_region_of(128 << 20)
}

/// As [`new_region`], of another size.
///
/// # Errors
/// Those of the file system.
pub fn new_region_of(bytes_max: u64) -> MeasuredResult<(Region, tempfile::TempDir)> {
    let folder = tempfile::tempdir()?;
    let options =
        CreateOptions { bytes_max, hash_seed: Some(HASH_SEED), ..CreateOptions::default() };
    Ok((Region::create(&folder.path().join("region"), &options)?, folder))
}

/// The key with this number.
#[inline]
pub fn key(number: u64) -> [u8; 20] {
    let mut key = *b"imsi-26201-000000000";
    let mut rest = number;
    for digit in key.iter_mut().rev().take(9) {
        *digit += u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
    }
    key
}

#[expect(clippy::print_stdout, reason = "a command line tool prints to standard output")]
fn print(line: &str) {
    println!("{line}");
}

#[expect(clippy::print_stderr, reason = "a command line tool complains on standard error")]
fn complain(line: &str) {
    eprintln!("{line}");
}
