//! A process beside the one that measures, and the ten that write at once.

use super::role::{Role, words};
use crate::keeper::{own_program, system};
use crate::legacy::protocol::monotonic_ns;
use nearstate_model::{Error, Result};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Time for all writers to hear when to begin.
const GO_NS: u64 = 30_000_000;

/// A process in a role; it ends when this is dropped, at the latest.
#[derive(Debug)]
pub struct Companion {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// What a companion is told beside its role.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Records of the store, or the number of one of ten writers.
    pub records: u64,
    /// Operations, for those that count.
    pub ops: u64,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// The processor to stay on.
    pub cpu: Option<usize>,
    /// Where chance comes from.
    pub seed: u64,
}

/// A command that takes a role.
///
/// # Errors
/// If the program cannot be found.
pub fn command(role: Role, target: &str, path: &Path, terms: &Terms) -> Result<Command> {
    let mut command = Command::new(own_program()?);
    command.args(words(role, target, path)).args([
        format!("--records={}", terms.records),
        format!("--ops={}", terms.ops),
        format!("--value-bytes={}", terms.value_bytes),
        format!("--seed={}", terms.seed),
    ]);
    if let Some(cpu) = terms.cpu {
        command.arg(format!("--cpu={cpu}"));
    }
    Ok(command)
}

impl Companion {
    /// Starts it and waits until it is at work.
    ///
    /// # Errors
    /// If it cannot be started, or ended at once.
    pub fn start(role: Role, target: &str, path: &Path, terms: &Terms) -> Result<Self> {
        let mut command = command(role, target, path, terms)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|e| system("starting a companion", &e))?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let Some(output) = output else {
            return Err(Error::Backend { detail: "a companion has no pipes".to_owned() });
        };
        let mut made = Self { process, input, output: BufReader::new(output) };
        match made.read_input()?.as_str() {
            "ready" => Ok(made),
            other => Err(Error::Backend { detail: format!("a companion said {other:?}") }),
        }
    }

    fn read_input(&mut self) -> Result<String> {
        let mut line = String::new();
        let bytes = self.output.read_line(&mut line);
        match bytes.map_err(|e| system("listening to a companion", &e))? {
            0 => Err(Error::Backend { detail: "a companion ended before its work did".to_owned() }),
            _ => Ok(line.trim().to_owned()),
        }
    }

    /// Ends it; returns the numbers that it told with its last word.
    ///
    /// # Errors
    /// If it ended otherwise, or did nothing at all.
    pub fn finish(mut self) -> Result<Vec<u64>> {
        drop(self.input.take());
        let line = self.read_input()?;
        let numbers = line.strip_prefix("done ").map(|rest| {
            rest.split_whitespace().filter_map(|n| n.parse().ok()).collect::<Vec<u64>>()
        });
        match numbers {
            Some(numbers) if numbers.first().is_some_and(|n| *n > 0) => Ok(numbers),
            _ => Err(Error::Backend { detail: format!("a companion ended with {line:?}") }),
        }
    }

    fn go(&mut self, at_ns: u64) -> Result<()> {
        match &mut self.input {
            Some(input) => {
                writeln!(input, "{at_ns}").map_err(|e| system("telling a writer to begin", &e))
            }
            None => Ok(()),
        }
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.process.wait();
    }
}

/// How long processes took that began at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// From the first start to the last end.
    pub wall_ns: u64,
    /// Processor time of all of them.
    pub used_ns: u64,
}

/// All of these begin at the same moment; each tells its first and last one, and its own time.
///
/// # Errors
/// If one of them failed.
pub fn at_once(mut started: Vec<Companion>) -> Result<Took> {
    let at_ns = monotonic_ns() + GO_NS;
    for companion in &mut started {
        companion.go(at_ns)?;
    }
    let (mut first_ns, mut last_ns, mut used_ns) = (u64::MAX, 0, 0);
    for companion in started {
        match companion.finish()?.as_slice() {
            [start_ns, end_ns, thread_ns] => {
                used_ns += thread_ns;
                first_ns = first_ns.min(*start_ns);
                last_ns = last_ns.max(*end_ns);
            }
            other => {
                return Err(Error::Backend { detail: format!("a writer told {other:?}") });
            }
        }
    }
    Ok(Took { wall_ns: last_ns.saturating_sub(first_ns), used_ns })
}
