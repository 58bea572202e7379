//! What test programs print: counts, times, and the names of failed tests.

/// The number of tests that passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TestCount {
    pub passed: u64,
    pub failed: u64,
}

impl TestCount {
    /// Adds another count.
    pub(super) const fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }

    /// Counts one failure if a program failed without a failed test (it did not compile or was
    /// killed), and if no test ran at all.
    pub(super) const fn checked(self, is_success: bool) -> Self {
        let is_silent = self.failed == 0 && (!is_success || self.passed == 0);
        Self { failed: self.failed + if is_silent { 1 } else { 0 }, ..self }
    }
}

/// What a suite reports.
#[derive(Debug, Default)]
pub(super) struct SuiteResults {
    pub count: TestCount,
    /// Each test program and its seconds.
    pub programs: Vec<(String, f64)>,
    /// Tests that failed beside other tests and passed when they were repeated alone.
    pub repeated: Vec<String>,
    /// The others that failed.
    pub failures: Vec<TestFailure>,
}

/// A test that failed, or a command that failed without naming a test.
#[derive(Debug)]
pub(super) struct TestFailure {
    /// The test and its program.
    pub name: String,
    /// The end of the last output of it alone, empty if it did not run alone.
    pub last_lines: Vec<String>,
}

/// The parsed output of a command that runs test programs.
#[derive(Debug, Default)]
pub(super) struct TestOutput {
    pub count: TestCount,
    /// Each test program that cargo named, and its seconds.
    pub programs: Vec<(String, f64)>,
    /// The tests that failed.
    pub failed_tests: Vec<String>,
    /// The program whose tests are running.
    pub running: String,
    /// In the list of failed tests, which ends with an empty line.
    is_list: bool,
}

impl TestOutput {
    /// Takes one line in.
    pub(super) fn take_line(&mut self, line: &str) {
        let (whole, line) = (line.trim_end(), line.trim());
        if let Some(name) = line.strip_prefix("Running ").or(line.strip_prefix("Doc-tests ")) {
            name.clone_into(&mut self.running);
        }
        match whole.strip_prefix("    ") {
            Some(name) if self.is_list && !name.contains(' ') => {
                self.failed_tests.push(name.to_owned());
            }
            _ => self.is_list = whole == "failures:",
        }
        if let Some(count) = results_of(line) {
            self.count.add(count);
            if let Some(seconds) = seconds_of(line) {
                self.programs.push((self.running.clone(), seconds));
            }
        }
    }
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
        let mut output = TestOutput::default();
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
    fn failed_tests_are_those_of_the_closing_list() {
        let mut output = TestOutput::default();
        for line in [
            "test a::b ... FAILED",
            "failures:",
            "",
            "---- a::b stdout ----",
            "    indented words of the test",
            "failures:",
            "    a::b",
            "    c",
            "",
            "    not_in_the_list",
            "test result: FAILED. 2 passed; 2 failed; 0 ignored; finished in 0.50s",
        ] {
            output.take_line(line);
        }
        assert_eq!(output.failed_tests, ["a::b", "c"]);
        assert_eq!(output.count, TestCount { passed: 2, failed: 2 });
    }

    #[test]
    fn a_program_that_fails_or_runs_nothing_counts_as_a_failure() {
        let seven = TestCount { passed: 7, failed: 0 };
        assert_eq!(seven.checked(true), seven);
        assert_eq!(seven.checked(false), TestCount { passed: 7, failed: 1 });
        assert_eq!(TestCount::default().checked(true).failed, 1);
        assert_eq!(TestCount { passed: 0, failed: 2 }.checked(false).failed, 2);
    }
}
