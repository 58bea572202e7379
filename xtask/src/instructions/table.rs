//! The table of instructions: its text, and which function has grown.

use super::callgrind::Counts;
use std::fmt::Write as _;

/// Functions with at least this share of an operation have a line.
const SHARE_MIN: f64 = 0.005;

const HEAD: &str = "\
# Instructions of one operation, and of its functions. `cargo xtask instructions` compares;
# `cargo xtask instructions --write` refreshes. Functions that the processor chooses at run time
# (libc, crc32fast, memchr) are not counted.
";

/// The table.
#[derive(Debug, PartialEq)]
pub(super) struct Budgets {
    /// The compiler of the counted programs.
    pub(super) compiler: String,
    pub(super) operations: Vec<Operation>,
}

/// The instructions of one operation.
#[derive(Debug, PartialEq)]
pub(super) struct Operation {
    pub(super) name: String,
    pub(super) total: f64,
    /// Its functions, the largest first.
    functions: Vec<(String, f64)>,
}

impl Budgets {
    pub(super) fn operation(&self, name: &str) -> Option<&Operation> {
        self.operations.iter().find(|operation| operation.name == name)
    }

    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut budgets = Self { compiler: String::new(), operations: Vec::new() };
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let wrong = || format!("the table of instructions has the line `{line}`");
            if let Some(compiler) = line.strip_prefix("compiler ") {
                compiler.clone_into(&mut budgets.compiler);
            } else if let Some(function) = line.strip_prefix("  ") {
                let (count, name) = function.trim_start().split_once(' ').ok_or_else(wrong)?;
                let count = count.parse().map_err(|_| wrong())?;
                let operation = budgets.operations.last_mut().ok_or_else(wrong)?;
                operation.functions.push((name.to_owned(), count));
            } else {
                let (name, total) = line.split_once(' ').ok_or_else(wrong)?;
                let (name, total) = (name.to_owned(), total.parse().map_err(|_| wrong())?);
                budgets.operations.push(Operation { name, total, functions: Vec::new() });
            }
        }
        Ok(budgets)
    }

    pub(super) fn to_text(&self) -> String {
        let mut text = format!("{HEAD}compiler {}\n", self.compiler);
        for operation in &self.operations {
            let _ = writeln!(text, "{} {:.1}", operation.name, operation.total);
            for (name, count) in &operation.functions {
                if *count >= SHARE_MIN * operation.total {
                    let _ = writeln!(text, "  {count:>8.1} {name}");
                }
            }
        }
        text
    }
}

impl Operation {
    /// An operation that was executed so many times.
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    pub(super) fn of(name: &str, times: f64, counts: &Counts) -> Self {
        let mut functions: Vec<(String, f64)> = counts
            .functions
            .iter()
            .map(|(name, count)| (name.clone(), *count as f64 / times))
            .collect();
        functions.sort_by(|one, other| other.1.total_cmp(&one.1));
        let total = functions.iter().map(|(_, count)| count).sum();
        Self { name: name.to_owned(), total, functions }
    }

    /// The function that has grown most, with its instructions before and now.
    pub(super) fn grown_most(&self, before: &Self) -> (&str, f64, f64) {
        let grown = self.functions.iter().map(|(name, now)| {
            let known = before.functions.iter().find(|(known, _)| known == name);
            (name.as_str(), known.map_or(0.0, |(_, count)| *count), *now)
        });
        let most = grown.max_by(|one, other| (one.2 - one.1).total_cmp(&(other.2 - other.1)));
        most.unwrap_or(("none", 0.0, 0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(functions: &[(&str, u64)]) -> Operation {
        let functions = functions.iter().map(|(name, count)| ((*name).to_owned(), *count));
        Operation::of("put", 10.0, &Counts { functions: functions.collect() })
    }

    #[test]
    fn a_table_reads_back_without_small_functions() {
        let operation = counted(&[("lock", 5000), ("copy", 15_000), ("tiny", 10)]);
        let budgets = Budgets { compiler: "rustc 1.95.0".to_owned(), operations: vec![operation] };
        let back = Budgets::parse(&budgets.to_text()).unwrap();
        assert_eq!(back.compiler, "rustc 1.95.0");
        let put = back.operation("put").unwrap();
        assert!((put.total - 2001.0).abs() < 0.1);
        assert_eq!(put.functions.len(), 2);
        assert_eq!(Budgets::parse(&back.to_text()).unwrap(), back);
    }

    #[test]
    fn the_function_that_has_grown_is_named() {
        let before = counted(&[("lock", 500), ("copy", 1500)]);
        let now = counted(&[("lock", 900), ("copy", 1600)]);
        assert_eq!(now.grown_most(&before), ("lock", 50.0, 90.0));
    }

    #[test]
    fn a_damaged_table_is_an_error() {
        for text in ["put\n", "  10 copy\n", "put many\n", "put 10\n  copy\n"] {
            assert!(Budgets::parse(text).is_err(), "{text}");
        }
    }
}
