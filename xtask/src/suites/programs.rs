//! Builds the test programs of the workspace, and runs them side by side.

use super::command;
use super::output::{SuiteResults, TestCount, TestFailure, TestOutput};
use crate::run;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

/// Test programs that run at the same time. Those with many tests wait for processes, sockets and
/// timers most of the time.
const SIDE_BY_SIDE: usize = 2;

/// Packages whose integration tests take longest, the longest first. They begin first, so that none
/// of them runs alone at the end.
const LONGEST: [&str; 10] = [
    "nearstate",
    "nearstate-torture",
    "nearstate-store",
    "nearstate-resp",
    "nearstate-nudsf",
    "nearstate-clients",
    "nearstate-node",
    "nearstate-fuzz",
    "nearstate-membership",
    "nearstate-sim",
];

/// Failed tests of one program that are repeated. If more fail, it is not for lack of time.
const REPEATED_MAX: usize = 4;

/// Lines of the last output of a failed test that the closing list repeats: the message of a panic
/// and what the test printed before it.
const LAST_LINES: usize = 100;

/// The variable with the number of tests that a test program runs at the same time.
const THREADS: &str = "RUST_TEST_THREADS";

/// The arguments of cargo that choose the tests. The crash points are built in, so that one build
/// serves every test: without `NEARSTATE_CRASH_AT` they do nothing.
const WHICH: [&str; 4] = ["test", "--workspace", "--features", "nearstate/crash-points"];

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TestProgram {
    /// Its package and its name, as `nearstate-store integration`.
    name: String,
    package: String,
    executable: PathBuf,
    /// The folder of its package, in which it runs.
    folder: PathBuf,
}

/// Builds the test programs, and runs them and the examples in the documentation. The output of
/// each appears when it has ended. `program` is the built `nearstate`.
pub(super) fn run_all(root: &Path, program: &Path) -> SuiteResults {
    let programs = match build(root) {
        Ok(programs) => programs,
        Err(why) => {
            println!("FAIL  {why}");
            return SuiteResults {
                count: TestCount { passed: 0, failed: 1 },
                failures: vec![TestFailure { name: why, last_lines: Vec::new() }],
                ..SuiteResults::default()
            };
        }
    };
    let total = programs.len();
    let results = Mutex::new(SuiteResults::default());
    let waiting = Mutex::new(programs.into_iter().enumerate());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut cargo = run::cargo();
            cargo.args(WHICH).args(["--doc", "--no-fail-fast"]).current_dir(root);
            run_one("examples in the documentation", cargo, &results);
        });
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                loop {
                    let next = locked(&waiting).next();
                    let Some((index, test)) = next else { break };
                    println!("begins: {}/{total} {}", index + 1, test.name);
                    run_program(&test, program, &results);
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs a test program, and repeats what failed.
fn run_program(test: &TestProgram, program: &Path, results: &Mutex<SuiteResults>) {
    let mut command = Command::new(&test.executable);
    command.current_dir(&test.folder).env("NEARSTATE_PROGRAM", program);
    if std::env::var_os(THREADS).is_none() {
        command.env(THREADS, test_threads().to_string());
    }
    let failed = run_one(&test.name, command, results);
    if failed.len() > REPEATED_MAX {
        let failures = failed.iter().map(|name| failure_of(test, name, Vec::new()));
        locked(results).failures.extend(failures);
        return;
    }
    for name in failed {
        repeat(test, &name, program, results);
    }
}

fn failure_of(test: &TestProgram, name: &str, last_lines: Vec<String>) -> TestFailure {
    TestFailure { name: format!("{name} ({})", test.name), last_lines }
}

/// Repeats a failed test. Passes it then, its failure is reported and not counted: a test of
/// several processes can meet a moment in which the machine runs none of them.
fn repeat(test: &TestProgram, name: &str, program: &Path, results: &Mutex<SuiteResults>) {
    let mut command = Command::new(&test.executable);
    command.current_dir(&test.folder).env("NEARSTATE_PROGRAM", program);
    command.args(["--exact", name, "--include-ignored"]);
    let mut lines = Vec::new();
    let (output, is_success) = command::run(command, &mut |line| lines.push(line.to_owned()));
    let has_passed = is_success && output.count == TestCount { passed: 1, failed: 0 };
    let mut results = locked(results);
    println!("\n── {}: {name}, repeated", test.name);
    for line in &lines {
        println!("{line}");
    }
    if has_passed {
        results.count.failed -= 1;
        results.count.passed += 1;
        results.repeated.push(format!("{name} ({})", test.name));
    } else {
        let last_lines = lines.split_off(lines.len().saturating_sub(LAST_LINES));
        results.failures.push(failure_of(test, name, last_lines));
    }
}

/// Runs a command, prints its output at its end, and adds its results. Returns the tests that
/// failed, if each failure has a name.
fn run_one(name: &str, command: Command, results: &Mutex<SuiteResults>) -> Vec<String> {
    let begun = Instant::now();
    let mut lines = Vec::new();
    let (output, is_success) = command::run(command, &mut |line| lines.push(line.to_owned()));
    let TestOutput { count, failed_tests, .. } = output;
    let mut results = locked(results);
    println!("\n── {name}");
    for line in lines {
        println!("{line}");
    }
    let count = if is_empty(count, is_success) { count } else { count.checked(is_success) };
    results.count.add(count);
    results.programs.push((name.to_owned(), begun.elapsed().as_secs_f64()));
    let are_named = u64::try_from(failed_tests.len()) == Ok(count.failed);
    if are_named {
        return failed_tests;
    }
    let name = format!("{name}: failures without a name, see its output");
    results.failures.push(TestFailure { name, last_lines: Vec::new() });
    Vec::new()
}

/// A library or a program without tests of its own has a test program all the same.
fn is_empty(count: TestCount, is_success: bool) -> bool {
    is_success && count == TestCount::default()
}

/// As many tests as processors at the same time, in each of the programs that run side by side.
fn test_threads() -> usize {
    std::thread::available_parallelism().map_or(2, std::num::NonZero::get)
}

/// Builds the test programs, and lists them in the order in which they begin.
fn build(root: &Path) -> Result<Vec<TestProgram>, String> {
    let mut cargo = run::cargo();
    cargo.args(WHICH).args(["--no-run", "--message-format", "json-render-diagnostics"]);
    println!("$ {}", run::words(&cargo));
    let built = cargo
        .current_dir(root)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| run::not_started(&cargo, &error))?;
    if !built.status.success() {
        return Err("the tests do not compile, see above".to_owned());
    }
    let mut programs: Vec<TestProgram> =
        String::from_utf8_lossy(&built.stdout).lines().filter_map(test_program).collect();
    in_order(&mut programs)?;
    Ok(programs)
}

/// The test program of one line of cargo's messages.
fn test_program(line: &str) -> Option<TestProgram> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message.pointer("/profile/test") != Some(&Value::Bool(true)) {
        return None;
    }
    let executable = PathBuf::from(message.get("executable")?.as_str()?);
    let folder = Path::new(message.get("manifest_path")?.as_str()?).parent()?.to_path_buf();
    let target = message.pointer("/target/name")?.as_str()?;
    let kind = message.pointer("/target/kind/0")?.as_str()?;
    let package = package_of(message.get("package_id")?.as_str()?)?;
    let what = if kind == "test" { target.to_owned() } else { format!("{target} ({kind})") };
    Some(TestProgram { name: format!("{package}: {what}"), package, executable, folder })
}

/// The name in a package's identifier: `path+file:///folder/store#nearstate-store@0.1.0`, or
/// `path+file:///folder/xtask#0.1.0` if the folder has the package's name.
fn package_of(id: &str) -> Option<String> {
    let (path, version) = id.rsplit_once('#')?;
    match version.split_once('@') {
        Some((name, _)) => Some(name.to_owned()),
        None => Some(path.rsplit('/').next()?.to_owned()),
    }
}

/// The longest first. The others keep cargo's order.
fn in_order(programs: &mut [TestProgram]) -> Result<(), String> {
    let is_long = |test: &TestProgram| {
        let is_integration = test.name.ends_with(": integration");
        LONGEST.iter().position(|package| is_integration && test.package == *package)
    };
    programs.sort_by_key(|test| is_long(test).unwrap_or(LONGEST.len()));
    match programs.iter().filter(|test| is_long(test).is_some()).count() {
        count if count == LONGEST.len() => Ok(()),
        _ => Err("a package of LONGEST (xtask/src/suites/programs.rs) has no test program \
                  `integration`: correct the list"
            .to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(package: &str, what: &str) -> TestProgram {
        TestProgram {
            name: format!("{package}: {what}"),
            package: package.to_owned(),
            executable: PathBuf::new(),
            folder: PathBuf::new(),
        }
    }

    #[test]
    fn a_message_of_cargo_names_a_test_program() {
        let message = |kind: &str, is_test: bool| {
            serde_json::json!({
                "package_id": "path+file:///w/store#nearstate-store@0.1.0",
                "manifest_path": "/w/store/Cargo.toml",
                "target": {"kind": [kind], "name": "integration"},
                "profile": {"test": is_test},
                "executable": "/w/target/debug/deps/integration-0",
            })
            .to_string()
        };
        let found = test_program(&message("test", true)).unwrap();
        assert_eq!(found.name, "nearstate-store: integration");
        assert_eq!(found.folder, Path::new("/w/store"));
        let library = test_program(&message("lib", true)).unwrap();
        assert_eq!(library.name, "nearstate-store: integration (lib)");
        assert_eq!(test_program(&message("test", false)), None);
        assert_eq!(test_program("Compiling"), None);
    }

    #[test]
    fn packages_have_the_name_of_their_folder_or_their_own() {
        assert_eq!(package_of("path+file:///w/xtask#0.1.0").unwrap(), "xtask");
        assert_eq!(package_of("path+file:///w/a#nearstate@0.1.0").unwrap(), "nearstate");
    }

    #[test]
    fn the_longest_begin_first() {
        let mut programs = vec![program("nearstate-wire", "integration")];
        programs.extend(LONGEST.iter().rev().map(|package| program(package, "integration")));
        programs.push(program("nearstate", "nearstate (bin)"));
        in_order(&mut programs).unwrap();
        let names: Vec<&str> = programs.iter().map(|test| test.package.as_str()).collect();
        assert_eq!(names[..LONGEST.len()], LONGEST);
        assert_eq!(names[LONGEST.len()..], ["nearstate-wire", "nearstate"]);
        assert!(in_order(&mut programs[1..]).is_err());
    }
}
