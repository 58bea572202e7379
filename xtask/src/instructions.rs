//! `cargo xtask instructions`: the instructions of single operations, counted by callgrind, against
//! the checked-in table. A count does not depend on what else the machine does.

mod table;
mod callgrind;

use self::callgrind::Counts;
use self::table::{Budgets, Operation};
use crate::finding::{Finding, line_where};
use crate::{packages, run};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The table.
const TABLE: &str = "verification/instructions/instructions.txt";

/// The programs, and the arguments with which cargo builds each.
const REGION: (&str, &[&str]) = ("instructions-region", &["--no-default-features"]);
const FILL: (&str, &[&str]) = ("instructions-fill", &["--no-default-features"]);
const FOLLOWER: (&str, &[&str]) = ("instructions-follower", &["--no-default-features"]);
const NUMA: (&str, &[&str]) = ("instructions-numa", &["--no-default-features", "--features=numa"]);
const RESP: (&str, &[&str]) = ("instructions-resp", &["--no-default-features", "--features=resp"]);
const NUDSF: (&str, &[&str]) =
    ("instructions-nudsf", &["--no-default-features", "--features=nudsf"]);

/// An operation may take this share more than in the table: functions move between inlined and not.
const GROWTH_MAX: f64 = 0.02;

/// The profile in which the programs are built.
const PROFILE: &str = "instructions";

/// Writes in a heap that is 95 % full, and the same in one that is half full.
const FILLED: [(&str, &str); 3] =
    [("update-95", "update-50"), ("churn-95", "churn-50"), ("mixed-churn-95", "mixed-churn-50")];

/// Inserts that a full heap refuses, after records were moved in vain.
const REFUSED: [&str; 3] = ["refused", "mixed-refused", "large-refused"];

/// How many times the instructions of the latter the former may take.
const FILLED_TIMES_MAX: f64 = 1.3;

/// The same for a compiler other than that of the table.
const GROWTH_MAX_OTHER_COMPILER: f64 = 0.10;

/// The check of the gate: the operations on a region, and the requests of RESP. The other programs
/// take minutes to build, and the plan for a thousand slices half a minute to count.
pub(crate) fn check(root: &Path) -> Result<(Vec<Finding>, String), String> {
    compare(root, &[REGION, RESP])
}

/// The instructions of an operation in the table.
pub(crate) fn in_table(root: &Path, operation: &str) -> Result<f64, String> {
    let path = root.join(TABLE);
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let budgets = Budgets::parse(&text)?;
    let found = budgets.operation(operation);
    found.map(|found| found.total).ok_or_else(|| format!("{TABLE} has no operation {operation}"))
}

/// The command: every operation. With `--write` the table gets the counts.
pub(crate) fn all(root: &Path, words: &[String]) -> Result<bool, String> {
    let programs = [REGION, FOLLOWER, NUMA, RESP, NUDSF];
    match words {
        [] => {
            let (findings, seen) = compare(root, &programs)?;
            for finding in &findings {
                println!("{finding}");
            }
            println!("instructions: {} findings in {seen}", findings.len());
            Ok(findings.is_empty())
        }
        [word] if word == "fill" => fill(root),
        [word] if word == "--write" => {
            let counted = Budgets { compiler: compiler()?, operations: count(root, &programs)? };
            let path = root.join(TABLE);
            fs::write(&path, counted.to_text())
                .map_err(|error| format!("{}: {error}", path.display()))?;
            println!("written: {TABLE}");
            Ok(true)
        }
        _ => Err("the only options are `fill` and `--write`".to_owned()),
    }
}

/// Counts the writes of heaps that are half and nearly full, and prints how many times the
/// instructions of the former the latter take. True if that is within the goal.
fn fill(root: &Path) -> Result<bool, String> {
    let counted = count(root, &[FILL])?;
    let total_of = |name: &str| {
        let found = counted.iter().find(|operation| operation.name == name);
        found.map(|found| found.total).ok_or_else(|| format!("no operation {name} was counted"))
    };
    let mut is_within = true;
    for (nearly_full, half_full) in FILLED {
        let (more, less) = (total_of(nearly_full)?, total_of(half_full)?);
        let times = more / less;
        println!("  {nearly_full:<15} {more:>9.1}  {half_full:<15} {less:>9.1}  {times:.2} times");
        is_within &= times <= FILLED_TIMES_MAX;
    }
    for refused in REFUSED {
        println!("  {refused:<15} {:>9.1}", total_of(refused)?);
    }
    println!("instructions: at most {FILLED_TIMES_MAX} times is the goal");
    Ok(is_within)
}

/// Counts, prints a line for each operation, and returns what grew.
fn compare(root: &Path, programs: &[(&str, &[&str])]) -> Result<(Vec<Finding>, String), String> {
    let path = root.join(TABLE);
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let budgets = Budgets::parse(&text)?;
    let is_same = budgets.compiler == compiler()?;
    let growth_max = if is_same { GROWTH_MAX } else { GROWTH_MAX_OTHER_COMPILER };
    if !is_same {
        println!("the table is of {}: the limit is 10 % here", budgets.compiler);
    }
    let counted = count(root, programs)?;
    let mut findings = Vec::new();
    for operation in &counted {
        let Some(budget) = budgets.operation(&operation.name) else {
            let what = format!("the operation {} has no line", operation.name);
            findings.push(Finding::new(TABLE, 1, what, "run `cargo xtask instructions --write`"));
            continue;
        };
        let growth = operation.total / budget.total - 1.0;
        println!(
            "  {:<18} {:>9.1} {:>+6.1} % of {:.1}",
            operation.name,
            operation.total,
            100.0 * growth,
            budget.total
        );
        if growth > growth_max {
            let line = line_where(&text, |line| line.starts_with(&format!("{} ", budget.name)));
            findings.push(grown(operation, budget, line));
        }
    }
    Ok((findings, format!("{} operations", counted.len())))
}

fn grown(operation: &Operation, budget: &Operation, line: usize) -> Finding {
    let (function, before, now) = operation.grown_most(budget);
    let what = format!(
        "{} takes {:.1} instructions, {:.1} in the table; `{function}` has grown most, from \
         {before:.1} to {now:.1}",
        operation.name, operation.total, budget.total
    );
    let advice = "make it cheaper; or run `cargo xtask instructions --write`, and give the reason \
                  in the commit";
    Finding::new(TABLE, line, what, advice)
}

/// Builds the programs, and counts each of their operations.
fn count(root: &Path, programs: &[(&str, &[&str])]) -> Result<Vec<Operation>, String> {
    if !run::is_program("valgrind") {
        packages::install_missing(packages::ALL)?;
    }
    let mut counted = Vec::new();
    for (program, features) in programs {
        let words = ["build", "--profile", PROFILE, "--quiet"];
        let words = words.into_iter().chain(["--package", "nearstate-instructions"]);
        let mut build = run::cargo();
        build.args(words).args(["--bin", program]).args(*features).current_dir(root);
        // An incremental build inlines less across crates: a view takes 3 % more instructions.
        build.env("CARGO_INCREMENTAL", "0");
        run::show(&mut build)?;
        let binary = run::build_folder(root).join(PROFILE).join(program);
        for line in run::read(&mut Command::new(&binary))?.lines() {
            let (name, times) = line.split_once(' ').ok_or("an operation without a number")?;
            let times: f64 = times.parse().map_err(|_| format!("{name} {times}: no number"))?;
            counted.push(Operation::of(name, times, &run_counted(&binary, name)?));
        }
    }
    Ok(counted)
}

/// Runs an operation under callgrind.
fn run_counted(binary: &Path, operation: &str) -> Result<Counts, String> {
    let out = std::env::temp_dir().join(format!("callgrind.{}.{operation}", std::process::id()));
    let mut command = Command::new("valgrind");
    command
        .args(["--quiet", "--tool=callgrind", "--collect-atstart=no"])
        .arg("--toggle-collect=nearstate_instructions::measured*")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(binary)
        .arg(operation);
    run::read(&mut command)?;
    let text = fs::read_to_string(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    fs::remove_file(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    Counts::parse(&text, &binary.to_string_lossy())
}

/// The compiler, in the words of the table.
fn compiler() -> Result<String, String> {
    let version = run::read(Command::new("rustc").arg("--version"))?;
    Ok(version.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
}
