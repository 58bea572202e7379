//! The crates whose bytes other processes share assert what they rely on: a least number of
//! assertions for each 1,000 lines, comments included and tests left out.

use crate::finding::Finding;
use crate::rust_source::{self, each_level, group, is_mark, line_of, word};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeMap;

/// The folders of the crates.
const CRATES: &[&str] = &["memory", "store"];

/// Assertions for each 1,000 lines, at least.
const LEAST: usize = 20;

/// A crate with fewer lines has no rate.
const LINES_MIN: usize = 1000;

/// The macros that assert. `guaranteed(..)` of `model` is the same for an option.
const MACROS: &[&str] = &[
    "invariant",
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
];

/// The assertions and the lines of one crate.
#[derive(Clone, Copy, Debug, Default)]
struct AssertionRate {
    assertions: usize,
    lines: usize,
}

/// The rates of all crates that need one.
#[derive(Debug, Default)]
pub(crate) struct AssertionRates {
    of: BTreeMap<&'static str, AssertionRate>,
}

impl AssertionRates {
    /// Counts the assertions of one Rust source file. Tests and loom's models are left out.
    pub(crate) fn collect(&mut self, name: &str, text: &str) {
        let in_src = |folder: &&&str| {
            name.strip_prefix(**folder).is_some_and(|rest| rest.starts_with("/src/"))
        };
        let Some(folder) = CRATES.iter().find(in_src) else { return };
        let is_left_out = ["/tests.rs", "/models.rs"].iter().any(|end| name.ends_with(end))
            || ["/tests/", "/models/"].iter().any(|part| name.contains(part));
        if is_left_out {
            return;
        }
        let Ok(tokens) = rust_source::tokens(text) else { return };
        let tokens = rust_source::without_tests(tokens);
        let rate = self.of.entry(*folder).or_default();
        rate.lines += last_line(&tokens);
        each_level(&tokens, &mut |level| rate.assertions += assertions_in(level));
    }

    /// Crates with too few assertions.
    pub(crate) fn check(&self) -> Vec<Finding> {
        let too_few = |(_, rate): &(_, &AssertionRate)| {
            rate.lines >= LINES_MIN && 1000 * rate.assertions < LEAST * rate.lines
        };
        let finding = |(folder, rate): (&&str, &AssertionRate)| {
            let tenths = 10_000 * rate.assertions / rate.lines;
            let what = format!(
                "{}.{} assertions for each 1,000 lines, and the least is {LEAST}",
                tenths / 10,
                tenths % 10
            );
            let advice = "assert what the new code relies on and has itself established: its \
                          arguments, its results, the locks that it holds";
            Finding::new(format!("{folder}/src/lib.rs"), 1, what, advice)
        };
        self.of.iter().filter(too_few).map(finding).collect()
    }
}

/// The last line that is not a test: tests stand at the end of a file.
fn last_line(tokens: &TokenStream) -> usize {
    let end = |token: &TokenTree| match token {
        TokenTree::Group(inner) => inner.span_close().end().line,
        TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => line_of(token),
    };
    tokens.clone().into_iter().map(|token| end(&token)).max().unwrap_or(0)
}

fn assertions_in(level: &[TokenTree]) -> usize {
    let is_assertion = |at: &usize| {
        let Some(name) = word(level.get(*at)) else { return false };
        if name == "guaranteed" {
            return group(level.get(at + 1), Delimiter::Parenthesis).is_some();
        }
        MACROS.iter().any(|one| name == one) && is_mark(level.get(at + 1), '!')
    };
    (0..level.len()).filter(is_assertion).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, text: &str) -> Vec<Finding> {
        let mut rates = AssertionRates::default();
        rates.collect(name, text);
        rates.check()
    }

    /// A file of 1,000 lines with these assertions, and with tests behind them.
    fn file(assertions: usize) -> String {
        let fillers = "// line\n".repeat(999 - assertions);
        let asserted = "invariant!(a, \"a\");\n".repeat(assertions);
        let tests = "#[cfg(test)]\nmod tests { fn t() { assert!(a); assert!(b); } }\n";
        format!("fn f() {{\n{fillers}{asserted}}}\n{tests}")
    }

    #[test]
    fn too_few_assertions_are_found_and_enough_are_not() {
        let few = found("memory/src/a.rs", &file(20));
        assert_eq!(few.len(), 1, "20 in 1,001 lines");
        assert!(few[0].what.starts_with("19.9 assertions for each"), "{}", few[0].what);
        assert!(found("memory/src/a.rs", &file(21)).is_empty());
        assert!(found("model/src/a.rs", &file(0)).is_empty(), "another crate");
        assert!(found("memory/src/a/tests.rs", &file(0)).is_empty(), "tests");
    }

    #[test]
    fn what_asserts_counts_and_what_is_called_so_does_not() {
        let tokens = |text: &str| {
            let mut count = 0;
            let tokens = rust_source::tokens(text).unwrap();
            each_level(&tokens, &mut |level| count += assertions_in(level));
            count
        };
        assert_eq!(tokens("debug_assert!(a); const _: () = assert!(b); if c { invariant!(d) }"), 3);
        assert_eq!(tokens("let a = guaranteed(b, \"c\"); use model::invariant::guaranteed;"), 1);
        assert_eq!(tokens("// assert!(a)\nlet text = \"assert!(b)\"; fn assert() {}"), 0);
    }
}
