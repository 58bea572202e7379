//! Folders in shared memory and commands that start child processes.

use std::path::PathBuf;

use nearstate_torture::spawn::ChildCommand;

/// A folder of its own for each test.
pub(crate) fn folder(name: &str) -> PathBuf {
    format!("/dev/shm/nearstate-{name}-test-{}", std::process::id()).into()
}

/// Starts children that run the program of this crate.
pub(crate) fn starter() -> ChildCommand {
    ChildCommand(vec![env!("CARGO_BIN_EXE_nearstate-torture-child").into()])
}

/// As [`starter`], with settings in the children's environment.
pub(crate) fn starter_with(settings: &[&str]) -> ChildCommand {
    let words = std::iter::once(&"env").chain(settings).map(|word| (*word).into());
    ChildCommand(words.chain([env!("CARGO_BIN_EXE_nearstate-torture-child").into()]).collect())
}
