//! `cargo xtask test`: every suite of tests, side by side, then a table with their times and
//! the slowest test programs.

mod programs;
mod command;
mod output;

use crate::{packages, run};
use output::{SuiteResults, TestCount, TestFailure};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Takes one line of output.
type PrintLine<'a> = dyn FnMut(&str) + 'a;

/// A set of tests.
struct Suite {
    name: &'static str,
    what: &'static str,
    run: fn(&Path, &mut PrintLine<'_>) -> SuiteResults,
}

/// All suites. Each test runs in exactly one of them.
const SUITES: &[Suite] = &[
    Suite {
        name: "workspace",
        what: "every crate's tests and the examples in the documentation; kills at every named \
               point, after instructions and at random; histories; other projects' clients; \
               random commands to Redis and to the node",
        run: workspace,
    },
    Suite {
        name: "loom",
        what: "the small lock-free parts under every interleaving, and mutants that must fail",
        run: loom,
    },
];

/// Test programs that the closing table lists.
const SLOWEST: usize = 10;

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
    let (mut repeated, mut failures) = (Vec::new(), Vec::new());
    for (suite, (results, seconds)) in chosen.iter().zip(run_side_by_side(root, &chosen)) {
        let TestCount { passed, failed } = results.count;
        let _ = writeln!(table, "{:<12} {seconds:>8.1} {passed:>8} {failed:>8}", suite.name);
        programs.extend(results.programs);
        repeated.extend(results.repeated);
        failures.extend(results.failures);
        total.add(results.count);
    }
    println!("\n{:<12} {:>8} {:>8} {:>8}", "suite", "seconds", "passed", "failed");
    print!("{table}");
    print_slowest(programs);
    print_repeated(&repeated);
    print_failures(&failures);
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

/// A failure that does not come again is still one to look at.
fn print_repeated(repeated: &[String]) {
    if !repeated.is_empty() {
        println!("\nfailed beside other tests and passed alone: look at the first output of each");
        for name in repeated {
            println!("  {name}");
        }
    }
}

/// The output of all tests is long: its end has what failed, and why.
fn print_failures(failures: &[TestFailure]) {
    for TestFailure { name, last_lines } in failures {
        println!("\nFAIL  {name}");
        for line in last_lines {
            println!("  {line}");
        }
    }
}

/// Runs suites at the same time: many tests wait for processes, and a build ends with one program
/// after the other. The output of the first appears as it comes, that of each other one when all
/// before it are complete.
fn run_side_by_side(root: &Path, chosen: &[&Suite]) -> Vec<(SuiteResults, f64)> {
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
                    (timed(root, suite, &mut |line| lines.push(line.to_owned())), lines)
                })
            })
            .collect();
        if let Some(first) = chosen.first() {
            title(0, first);
            outputs.push(timed(root, first, &mut |line| println!("{line}")));
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

/// Runs a suite. `print` takes each line of its output. Returns the seconds too, with the build.
fn timed(root: &Path, suite: &Suite, print: &mut PrintLine<'_>) -> (SuiteResults, f64) {
    let begun = Instant::now();
    let mut results = (suite.run)(root, print);
    if results.count == TestCount::default() {
        print("FAIL  no test ran: check the names in the suite's command");
    }
    results.count = results.count.checked(true);
    (results, begun.elapsed().as_secs_f64())
}

/// The suite of all test programs: it is the first one, and prints for itself.
fn workspace(root: &Path, _: &mut PrintLine<'_>) -> SuiteResults {
    programs::run_all(root, &program(root))
}

/// The suite of loom's models. `--cfg loom` would invalidate the usual build: it has a folder of
/// its own.
fn loom(root: &Path, print: &mut PrintLine<'_>) -> SuiteResults {
    let mut command = run::cargo();
    command
        .args(["test", "-p", "nearstate-memory", "--lib", "--no-fail-fast"])
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", run::build_folder(root).join("loom"))
        .current_dir(root);
    let (output, is_success) = command::run(command, print);
    let count = output.count.checked(is_success);
    let mut names = output.failed_tests;
    if count.failed > 0 && names.is_empty() {
        names.push("no test by its name, see the output of the suite".to_owned());
    }
    let failure = |name| TestFailure { name: format!("{name} (loom)"), last_lines: Vec::new() };
    let failures = names.into_iter().map(failure).collect();
    SuiteResults { count, programs: output.programs, failures, ..SuiteResults::default() }
}

/// The `nearstate` that is built for the tests.
pub(crate) fn program(root: &Path) -> PathBuf {
    run::build_folder(root).join("debug/nearstate")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_suite_is_rejected() {
        assert!(all(Path::new("."), &["nonsense".to_owned()]).is_err());
    }
}
