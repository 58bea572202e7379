//! `cargo xtask test`: every suite of tests, side by side, then a table with their times and
//! the slowest test programs.

use crate::watchdog::{self, SILENCE_MAX};
use crate::{packages, run};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

/// A set of tests that one cargo command runs.
struct Suite {
    name: &'static str,
    what: &'static str,
    /// The arguments of `cargo`.
    args: &'static [&'static str],
    /// Environment variables.
    environment: &'static [(&'static str, &'static str)],
    /// Built in a folder of its own, because its flags would invalidate the usual build.
    is_built_apart: bool,
}

/// All suites. Each test runs in exactly one of them. The crash points are built in, so that one
/// build serves every test: without `NEARSTATE_CRASH_AT` they do nothing.
///
/// `--no-fail-fast`: one failure does not hide the next. A suite with flags of its own
/// (`--cfg loom`) sets them as `RUSTFLAGS` in `environment` and is built apart.
const SUITES: &[Suite] = &[
    Suite {
        name: "workspace",
        what: "every crate's tests and the examples in the documentation; kills at every named \
               point, after instructions and at random; histories; other projects' clients; \
               random commands to Redis and to the node",
        args: &["test", "--workspace", "--features", "nearstate/crash-points", "--no-fail-fast"],
        environment: &[],
        is_built_apart: false,
    },
    Suite {
        name: "loom",
        what: "the small lock-free parts under every interleaving, and mutants that must fail",
        args: &["test", "-p", "nearstate-memory", "--lib", "--no-fail-fast"],
        environment: &[("RUSTFLAGS", "--cfg loom")],
        is_built_apart: true,
    },
];

/// Test programs that the closing table lists.
const SLOWEST: usize = 10;

/// The variable with the number of tests that a test program runs at the same time.
const THREADS: &str = "RUST_TEST_THREADS";

/// One more test than processors at the same time: many tests wait for processes, sockets and
/// timers.
fn test_threads() -> usize {
    std::thread::available_parallelism().map_or(2, std::num::NonZero::get) + 1
}

/// The number of tests that passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TestCount {
    passed: u64,
    failed: u64,
}

/// The parsed output of a suite.
#[derive(Debug, Default)]
struct SuiteOutput {
    count: TestCount,
    /// Each test program and its seconds.
    programs: Vec<(String, f64)>,
    /// The program whose tests are running.
    running: String,
    /// How long the suite took, with its build.
    seconds: f64,
}

/// Installs missing packages and runs the suites, or only the named ones. Returns whether every
/// test passed.
pub(crate) fn all(root: &Path, only: &[String]) -> Result<bool, String> {
    if let Some(name) = only.iter().find(|name| SUITES.iter().all(|suite| suite.name != **name)) {
        let names: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
        return Err(format!("unknown suite `{name}`: the suites are {}", names.join(", ")));
    }
    let chosen: Vec<&Suite> = SUITES
        .iter()
        .filter(|suite| only.is_empty() || only.iter().any(|name| name == suite.name))
        .collect();
    let mut total = TestCount::default();
    if let Err(error) = packages::install_missing(packages::ALL) {
        // The tests that need the packages name them; the others can still run.
        println!("FAIL  {error}");
        total.failed += 1;
    }
    let (mut table, mut programs) = (String::new(), Vec::new());
    for (suite, output) in chosen.iter().zip(run_side_by_side(root, &chosen)) {
        let SuiteOutput { count: TestCount { passed, failed }, seconds, .. } = output;
        let _ = writeln!(table, "{:<12} {seconds:>8.1} {passed:>8} {failed:>8}", suite.name);
        programs.extend(output.programs);
        total = TestCount { passed: total.passed + passed, failed: total.failed + failed };
    }
    println!("\n{:<12} {:>8} {:>8} {:>8}", "suite", "seconds", "passed", "failed");
    print!("{table}");
    print_slowest(programs);
    println!("{} passed, {} failed", total.passed, total.failed);
    Ok(total.failed == 0)
}

fn print_slowest(mut programs: Vec<(String, f64)>) {
    programs.sort_by(|a, b| b.1.total_cmp(&a.1));
    println!("\nslowest of {} test programs", programs.len());
    for (name, seconds) in programs.iter().take(SLOWEST) {
        println!("{seconds:>8.1} s  {name}");
    }
}

/// Runs suites at the same time: many tests wait for processes, and a build ends with one program
/// after the other. The output of the first appears as it comes, that of each other one when all
/// before it are complete.
fn run_side_by_side(root: &Path, chosen: &[&Suite]) -> Vec<SuiteOutput> {
    let title = |index: usize, suite: &Suite| {
        println!("\n── {}/{} {}: {}", index + 1, chosen.len(), suite.name, suite.what);
    };
    std::thread::scope(|scope| {
        let mut outputs = Vec::new();
        let others: Vec<_> = chosen
            .iter()
            .skip(1)
            .map(|suite| {
                scope.spawn(|| {
                    let mut lines = Vec::new();
                    (run_one(root, suite, |line| lines.push(line.to_owned())), lines)
                })
            })
            .collect();
        if let Some(first) = chosen.first() {
            title(0, first);
            outputs.push(run_one(root, first, |line| println!("{line}")));
        }
        for (index, other) in others.into_iter().enumerate() {
            let joined = other.join();
            let (output, lines) = joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            if let Some(suite) = chosen.get(index + 1) {
                title(index + 1, suite);
            }
            for line in lines {
                println!("{line}");
            }
            outputs.push(output);
        }
        outputs
    })
}

/// Runs a suite. `print` takes each line of its output.
fn run_one(root: &Path, suite: &Suite, mut print: impl FnMut(&str)) -> SuiteOutput {
    let begun = Instant::now();
    let mut command = run::cargo();
    command.args(suite.args).envs(suite.environment.iter().copied()).current_dir(root);
    if suite.is_built_apart {
        command.env("CARGO_TARGET_DIR", run::build_folder(root).join(suite.name));
    } else {
        // The build of this command. Tests that start the program must not build it again with
        // other features.
        command.env("NEARSTATE_PROGRAM", program(root));
        if std::env::var_os(THREADS).is_none() {
            command.env(THREADS, test_threads().to_string());
        }
    }
    print(&format!("$ {}", run::words(&command)));
    let mut output = SuiteOutput::default();
    // One pipe for both streams: the names of the test programs are on standard error, their
    // results on standard output, and only their order connects them.
    let started = std::io::pipe().and_then(|(reader, writer)| {
        let copy = writer.try_clone()?;
        let child = command.stdin(Stdio::null()).stdout(writer).stderr(copy).spawn()?;
        Ok((child, reader))
    });
    let (mut child, reader) = match started {
        Ok(started) => started,
        Err(error) => {
            print(&format!("FAIL  {}", run::not_started(&command, &error)));
            output.count.failed = 1;
            return output;
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
            "FAIL  nothing was printed for {minutes} minutes, so the suite was ended: look above \
             for tests that have been running for over 60 seconds, in {}",
            output.running
        ));
    }
    std::io::stdout().flush().unwrap_or_default();
    let is_success = child.wait().is_ok_and(|status| status.success());
    let is_silent = is_success && output.count == TestCount::default();
    if is_silent {
        print("FAIL  no test ran: check the names in the suite's command");
    }
    output.count = checked(output.count, is_success);
    output.seconds = begun.elapsed().as_secs_f64();
    output
}

impl SuiteOutput {
    /// Takes one line of cargo's output in.
    fn take_line(&mut self, line: &str) {
        let line = line.trim();
        if let Some(name) = line.strip_prefix("Running ").or(line.strip_prefix("Doc-tests ")) {
            name.clone_into(&mut self.running);
        }
        if let Some(count) = results_of(line) {
            self.count.passed += count.passed;
            self.count.failed += count.failed;
            if let Some(seconds) = seconds_of(line) {
                self.programs.push((self.running.clone(), seconds));
            }
        }
    }
}

/// The `nearstate` that is built for the tests.
pub(crate) fn program(root: &Path) -> PathBuf {
    run::build_folder(root).join("debug/nearstate")
}

/// The counts in the last line of a test program:
/// `test result: ok. 3 passed; 0 failed; 0 ignored; ..; finished in 0.05s`.
fn results_of(line: &str) -> Option<TestCount> {
    let words = line.trim().strip_prefix("test result: ")?;
    let number = |what: &str| {
        let part = words.split([';', '.']).find_map(|part| part.trim().strip_suffix(what))?;
        part.trim().parse().ok()
    };
    Some(TestCount { passed: number("passed")?, failed: number("failed")? })
}

/// The seconds in the same line.
fn seconds_of(line: &str) -> Option<f64> {
    let (_, seconds) = line.rsplit_once("finished in ")?;
    seconds.trim().strip_suffix('s')?.parse().ok()
}

/// Counts one failure if a suite failed without a failed test (a test program did not compile or
/// was killed), and if no test ran at all.
fn checked(count: TestCount, is_success: bool) -> TestCount {
    let is_silent = count.failed == 0 && (!is_success || count.passed == 0);
    TestCount { failed: count.failed + u64::from(is_silent), ..count }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_a_test_program_is_parsed() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered \
                    out; finished in 3.25s";
        assert_eq!(results_of(line), Some(TestCount { passed: 12, failed: 3 }));
        assert_eq!(seconds_of(line), Some(3.25));
        assert_eq!(results_of("test result_of_line ... ok"), None);
        assert_eq!(results_of("12 passed; 3 failed"), None);
    }

    #[test]
    fn results_belong_to_the_test_program_that_was_named_last() {
        let mut output = SuiteOutput::default();
        output
            .take_line("     Running tests/integration/main.rs (target/debug/deps/integration-0)");
        output.take_line("test result: ok. 2 passed; 0 failed; 0 ignored; finished in 1.50s");
        output.take_line("   Doc-tests nearstate_store");
        output.take_line("test result: ok. 3 passed; 0 failed; 0 ignored; finished in 0.50s");
        assert_eq!(output.count, TestCount { passed: 5, failed: 0 });
        let seconds: Vec<f64> = output.programs.iter().map(|(_, seconds)| *seconds).collect();
        assert_eq!(seconds, [1.5, 0.5]);
        assert!(output.programs[0].0.starts_with("tests/integration"));
    }

    #[test]
    fn a_suite_that_fails_or_runs_nothing_counts_as_a_failure() {
        let seven = TestCount { passed: 7, failed: 0 };
        assert_eq!(checked(seven, true), seven);
        assert_eq!(checked(seven, false), TestCount { passed: 7, failed: 1 });
        assert_eq!(checked(TestCount::default(), true).failed, 1);
        assert_eq!(checked(TestCount { passed: 0, failed: 2 }, false).failed, 2);
    }

    #[test]
    fn an_unknown_suite_is_rejected() {
        assert!(all(Path::new("."), &["nonsense".to_owned()]).is_err());
    }
}
