//! The gate: every check that a change must pass, with a table at the end. Each check also runs
//! alone.

use crate::finding::Finding;
use crate::{deny, figures, header, instructions, layers, run, tidy};
use std::path::Path;
use std::time::{Duration, Instant};

/// The findings of a check, and a summary of what it read. The error is a check that failed as a
/// whole, such as a program that has already printed its own complaints.
type CheckResult = Result<(Vec<Finding>, String), String>;

/// One line of the gate.
pub(crate) struct Check {
    /// The word after `cargo xtask`.
    pub name: &'static str,
    /// What it guarantees.
    pub what: &'static str,
    run: fn(&Path) -> CheckResult,
}

/// Every check, fast ones first.
pub(crate) const CHECKS: &[Check] = &[
    Check { name: "fmt", what: "the sources are formatted (rustfmt.toml)", run: fmt },
    Check {
        name: "layers",
        what: "crates use crates below them, modules use modules below them",
        run: layers::check,
    },
    Check {
        name: "tidy",
        what: "openings, sizes, retired words, type names, links, assertions, places of unsafe",
        run: tidy::check,
    },
    Check {
        name: "deny",
        what: "licences, sources and users of every external package",
        run: deny::check,
    },
    Check { name: "header", what: "the C header matches the code", run: header::check },
    Check {
        name: "instructions",
        what: "operations and requests take no more instructions than in the table",
        run: instructions::check,
    },
    Check {
        name: "figures",
        what: "the figures of the pages are those of docs/figures.toml, and up to date",
        run: figures::check,
    },
    Check { name: "lints", what: "clippy, with the lint set of Cargo.toml", run: lints },
    Check { name: "docs", what: "the documentation builds and its links resolve", run: docs },
];

const C_LIBRARY: &str = "nearstate-capi";

struct Line {
    name: &'static str,
    took: Duration,
    result: String,
    is_good: bool,
}

/// Runs every check, even after one has failed, except those that follow `--without`. Returns
/// whether all passed.
pub(crate) fn all(root: &Path, words: &[String]) -> Result<bool, String> {
    let without = omitted(words)?;
    let checks = CHECKS.iter().filter(|check| !without.iter().any(|name| name == check.name));
    let lines: Vec<Line> = checks.map(|check| run_one(root, check)).collect();
    let total: Duration = lines.iter().map(|line| line.took).sum();
    println!("\n{:<12} {:>8}  result", "check", "seconds");
    for line in &lines {
        println!("{:<12} {:>8.1}  {}", line.name, line.took.as_secs_f64(), line.result);
    }
    let bad = lines.iter().filter(|line| !line.is_good).count();
    println!(
        "{:<12} {:>8.1}  {} passed, {bad} failed",
        "gate",
        total.as_secs_f64(),
        lines.len() - bad
    );
    Ok(bad == 0)
}

/// The names after `--without`. Each must be that of a check.
fn omitted(words: &[String]) -> Result<&[String], String> {
    let names = match words.split_first() {
        None => return Ok(&[]),
        Some((first, names)) if first == "--without" && !names.is_empty() => names,
        Some(_) => return Err("usage: cargo xtask gate [--without CHECK ..]".to_owned()),
    };
    match names.iter().find(|name| CHECKS.iter().all(|check| check.name != **name)) {
        Some(name) => Err(format!("no check `{name}`: `cargo xtask help` lists them all")),
        None => Ok(names),
    }
}

/// Runs the check with this name.
pub(crate) fn one(root: &Path, name: &str) -> Result<bool, String> {
    let check = CHECKS
        .iter()
        .find(|check| check.name == name)
        .ok_or("no such task: `cargo xtask help` lists them all")?;
    let line = run_one(root, check);
    println!("{}: {} ({:.1} s)", line.name, line.result, line.took.as_secs_f64());
    Ok(line.is_good)
}

fn run_one(root: &Path, check: &Check) -> Line {
    println!("── {}: {}", check.name, check.what);
    let begun = Instant::now();
    let outcome = (check.run)(root);
    let took = begun.elapsed();
    let (result, is_good) = match outcome {
        Ok((findings, seen)) if findings.is_empty() => (format!("ok    {seen}"), true),
        Ok((findings, seen)) => {
            for finding in &findings {
                println!("{finding}");
            }
            (format!("FAIL  {} findings in {seen}", findings.len()), false)
        }
        Err(why) => {
            println!("{why}");
            let first = why.lines().next().unwrap_or_default();
            (format!("FAIL  {first}"), false)
        }
    };
    Line { name: check.name, took, result, is_good }
}

fn fmt(root: &Path) -> CheckResult {
    run::show(run::cargo().args(["fmt", "--all", "--check"]).current_dir(root))
        .map_err(|why| format!("{why}: run `cargo fmt --all`"))?;
    Ok((Vec::new(), "every file".to_owned()))
}

fn lints(root: &Path) -> CheckResult {
    let words = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    run::show(run::cargo().args(words).current_dir(root))
        .map_err(|why| format!("{why}: fix what is named above"))?;
    Ok((Vec::new(), "every target".to_owned()))
}

fn docs(root: &Path) -> CheckResult {
    // The C library and the program are both called `nearstate`. At the same time, each would
    // remove pages of the other.
    for chosen in [&["--workspace", "--exclude", C_LIBRARY][..], &["--package", C_LIBRARY]] {
        let mut command = run::cargo();
        command.args(["doc", "--no-deps", "--document-private-items"]).args(chosen);
        command.env("RUSTDOCFLAGS", "-D warnings").current_dir(root);
        run::show(&mut command).map_err(|why| format!("{why}: fix what is named above"))?;
    }
    Ok((Vec::new(), "every item, private ones too".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_checks_are_left_out() {
        let words =
            |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(omitted(&words(&[])), Ok(&[][..]));
        assert_eq!(omitted(&words(&["--without", "header"])), Ok(&words(&["header"])[..]));
        assert!(omitted(&words(&["--without"])).is_err());
        assert!(omitted(&words(&["header"])).is_err());
        assert!(omitted(&words(&["--without", "haeder"])).is_err());
    }

    const BAD: Check = Check {
        name: "bad",
        what: "always finds something",
        run: |_| Ok((vec![Finding::new("a", 1, "wrong", "mend it")], "one file".to_owned())),
    };
    const BROKEN: Check =
        Check { name: "broken", what: "cannot run", run: |_| Err("no tool\nmore".to_owned()) };
    const GOOD: Check =
        Check { name: "good", what: "is quiet", run: |_| Ok((Vec::new(), "two".to_owned())) };

    #[test]
    fn a_check_passes_only_if_it_ran_and_found_nothing() {
        let root = Path::new(".");
        assert!(run_one(root, &GOOD).is_good);
        assert!(!run_one(root, &BAD).is_good);
        let broken = run_one(root, &BROKEN);
        assert_eq!((broken.is_good, broken.result.as_str()), (false, "FAIL  no tool"));
    }

    #[test]
    fn an_unknown_check_is_rejected() {
        assert!(one(Path::new("."), "nonsense").is_err());
    }
}
