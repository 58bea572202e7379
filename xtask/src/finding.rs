//! The result of a check: a place, the problem, and the correction.

use std::fmt;

/// One complaint of a check. Printed as `file:line: what: what to do`, so that editors can jump.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// Path relative to the workspace's root.
    pub file: String,
    /// Counted from 1; 1 where the whole file is meant.
    pub line: usize,
    /// The problem.
    pub what: String,
    /// What to do about it.
    pub advice: String,
}

impl Finding {
    /// A complaint about `file:line`.
    pub(crate) fn new(
        file: impl Into<String>,
        line: usize,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { file: file.into(), line: line.max(1), what: what.into(), advice: advice.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.file, self.line, self.what, self.advice)
    }
}

/// The line, counted from 1, of the first line of `text` that `is_it`; 1 if there is none.
pub(crate) fn line_where(text: &str, is_it: impl Fn(&str) -> bool) -> usize {
    text.lines().position(is_it).map_or(1, |index| index + 1)
}
