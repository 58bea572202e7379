//! Runs one command whose output is parsed line by line, and ends it if it hangs.

use super::output::TestOutput;
use crate::run;
use crate::watchdog::{self, SILENCE_MAX};
use std::process::{Command, Stdio};

/// Runs a command. `print` takes each line of both its streams in their order: cargo prints the
/// names of test programs on standard error, and their results are on standard output.
///
/// Returns what was parsed, and whether the command succeeded. The counts are those of the lines:
/// see `TestCount::checked`.
pub(super) fn run(mut command: Command, print: &mut dyn FnMut(&str)) -> (TestOutput, bool) {
    print(&format!("$ {}", run::words(&command)));
    let mut output = TestOutput::default();
    let started = std::io::pipe().and_then(|(reader, writer)| {
        let copy = writer.try_clone()?;
        let child = command.stdin(Stdio::null()).stdout(writer).stderr(copy).spawn()?;
        Ok((child, reader))
    });
    let (mut child, reader) = match started {
        Ok(started) => started,
        Err(error) => {
            print(&format!("FAIL  {}", run::not_started(&command, &error)));
            return (output, false);
        }
    };
    // The command holds the writing end of the pipe: without this, reading would not end.
    drop(command);
    let is_done = watchdog::each_line(reader, child.id(), SILENCE_MAX, |line| {
        print(line);
        output.take_line(line);
    });
    if !is_done {
        let minutes = SILENCE_MAX.as_secs() / 60;
        print(&format!(
            "FAIL  nothing was printed for {minutes} minutes, so the command was ended: look above \
             for tests that have been running for over 60 seconds {}",
            output.running
        ));
    }
    let is_success = child.wait().is_ok_and(|status| status.success());
    (output, is_success)
}
