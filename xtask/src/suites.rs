//! `cargo xtask test`: every suite of tests, one after the other, and one closing line.

use crate::{packages, run};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

/// A set of tests that one cargo command runs.
struct Suite {
    name: &'static str,
    why: &'static str,
    /// The words after `cargo`.
    words: &'static [&'static str],
    /// Settings of the environment.
    settings: &'static [(&'static str, &'static str)],
    /// A build folder of its own, so that other flags do not undo the usual build.
    is_built_apart: bool,
}

/// All of them. `--no-fail-fast`, so that one failure does not hide the next. A suite with flags of
/// its own (`--cfg loom`) sets them in `settings` as `RUSTFLAGS` and is built apart.
const SUITES: &[Suite] = &[
    Suite {
        name: "workspace",
        why: "every crate's own tests, the examples in the documentation, the short torture run, \
              the clients that others wrote, commands by chance to Redis and to the node",
        words: &["test", "--workspace", "--no-fail-fast"],
        settings: &[],
        is_built_apart: false,
    },
    Suite {
        name: "torture",
        why: "kills at every named point, after instructions and at random; histories that are \
              checked; bounds of waiting",
        words: &["test", "-p", "nearstate-torture", "--features", "crash-points", "--no-fail-fast"],
        settings: &[],
        is_built_apart: false,
    },
    Suite {
        name: "loom",
        why: "the small lock-free parts under every interleaving, and mutants that must fail",
        words: &["test", "-p", "nearstate-memory", "--lib", "--no-fail-fast"],
        settings: &[("RUSTFLAGS", "--cfg loom")],
        is_built_apart: true,
    },
];

/// How many tests passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    passed: u64,
    failed: u64,
}

/// Installs what is missing and runs the suites, or only those with these names. Returns whether
/// every test passed.
pub(crate) fn all(root: &Path, only: &[String]) -> Result<bool, String> {
    if let Some(name) = only.iter().find(|name| SUITES.iter().all(|suite| suite.name != **name)) {
        let names: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
        return Err(format!("no suite `{name}`: there are {}", names.join(", ")));
    }
    let chosen: Vec<&Suite> = SUITES
        .iter()
        .filter(|suite| only.is_empty() || only.iter().any(|name| name == suite.name))
        .collect();
    let mut total = Count::default();
    if let Err(why) = packages::install_missing(packages::ALL) {
        // What needs them will say so; the rest can still be tested.
        println!("FAIL  {why}");
        total.failed += 1;
    }
    let mut table = String::new();
    for (index, suite) in chosen.iter().enumerate() {
        println!("\n── {}/{} {}: {}", index + 1, chosen.len(), suite.name, suite.why);
        let begun = Instant::now();
        let count = run_one(root, suite);
        let (passed, failed) = (count.passed, count.failed);
        let took = begun.elapsed().as_secs_f64();
        let line = format!("{:<12} {took:>8.1} {passed:>8} {failed:>8}\n", suite.name);
        table.push_str(&line);
        total = Count { passed: total.passed + passed, failed: total.failed + failed };
    }
    println!("\n{:<12} {:>8} {:>8} {:>8}", "suite", "seconds", "passed", "failed");
    print!("{table}");
    println!("{} passed, {} failed", total.passed, total.failed);
    Ok(total.failed == 0)
}

fn run_one(root: &Path, suite: &Suite) -> Count {
    let mut command = run::cargo();
    command.args(suite.words).envs(suite.settings.iter().copied()).current_dir(root);
    if suite.is_built_apart {
        command.env("CARGO_TARGET_DIR", build_folder(root).join(suite.name));
    }
    println!("$ {}", run::words(&command));
    let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            println!("FAIL  {}", run::not_started(&command, &error));
            return Count { passed: 0, failed: 1 };
        }
    };
    let mut count = Count::default();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            if let Some(more) = results_of(&line) {
                count.passed += more.passed;
                count.failed += more.failed;
            }
        }
        std::io::stdout().flush().unwrap_or_default();
    }
    let is_good = child.wait().is_ok_and(|status| status.success());
    settle(count, is_good)
}

/// The build folder that cargo uses here.
fn build_folder(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// What cargo's closing line of one test program says:
/// `test result: ok. 3 passed; 0 failed; 0 ignored; ..`.
fn results_of(line: &str) -> Option<Count> {
    let words = line.trim().strip_prefix("test result: ")?;
    let number = |what: &str| {
        let part = words.split([';', '.']).find_map(|part| part.trim().strip_suffix(what))?;
        part.trim().parse().ok()
    };
    Some(Count { passed: number("passed")?, failed: number("failed")? })
}

/// A suite that ended badly without a failed test (it did not compile, or a test program died), and
/// one in which not a single test ran, count as one failure.
fn settle(count: Count, is_good: bool) -> Count {
    let is_silent = count.failed == 0 && (!is_good || count.passed == 0);
    if is_silent && is_good {
        println!("FAIL  no test ran: is the name in the suite's command still right?");
    }
    Count { failed: count.failed + u64::from(is_silent), ..count }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_of_a_test_program_is_read() {
        let line =
            "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out";
        assert_eq!(results_of(line), Some(Count { passed: 12, failed: 3 }));
        assert_eq!(results_of("test result_of_line ... ok"), None);
        assert_eq!(results_of("12 passed; 3 failed"), None);
    }

    #[test]
    fn a_suite_that_ends_badly_or_runs_nothing_has_failed() {
        let seven = Count { passed: 7, failed: 0 };
        assert_eq!(settle(seven, true), seven);
        assert_eq!(settle(seven, false), Count { passed: 7, failed: 1 });
        assert_eq!(settle(Count::default(), true).failed, 1);
        assert_eq!(settle(Count { passed: 0, failed: 2 }, false).failed, 2);
    }

    #[test]
    fn an_unknown_suite_is_refused() {
        assert!(all(Path::new("."), &["nonsense".to_owned()]).is_err());
    }
}
