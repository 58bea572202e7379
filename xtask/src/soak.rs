//! `cargo xtask soak`: the proofs of `cargo xtask test`, for longer: more kills and stops, more
//! single steps, more histories, more random commands and more random input.
//!
//! At scale 1 it takes about four hours and steps after every 20th instruction. At
//! scale 20, it kills after every single instruction. `soak clients`, `soak tcl`, `soak nudsf` and
//! `soak numa` are runs of their own, of some minutes: they need registries, source packages, or an
//! emulator. `soak sim` simulates clusters only.

use crate::{guest, packages, run};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The program that clients and tests start. `soak clients`, `tcl` and `nudsf` start the one that
/// the environment names, such as a release build, instead of the one they build.
const PROGRAM: &str = "NEARSTATE_PROGRAM";

/// One part of a soak run.
struct Part {
    what: &'static str,
    /// Minutes on two idle cores at scale 1.
    minutes: u64,
    /// The program is `nearstate` if the first argument is `torture`, else cargo.
    args: &'static [&'static str],
    /// Environment variables.
    environment: &'static [(&'static str, u64)],
    last: LastArg,
}

/// The last argument of a part.
#[derive(Clone, Copy)]
enum LastArg {
    /// None.
    Absent,
    /// This number times the scale.
    Count(u64),
    /// This distance divided by the scale, at least 1.
    Distance(u64),
}

/// All parts, in about four hours.
const PARTS: &[Part] = &[
    Part {
        what: "random kills of writers and readers, of sessions with tags, and histories",
        minutes: 25,
        args: &["torture", "--tagged-kills", "5000", "--histories", "10000", "--kills"],
        environment: &[],
        last: LastArg::Count(50_000),
    },
    Part {
        what: "kills of a node under its clients and embedded writers",
        minutes: 20,
        args: &["torture", "--node-kills"],
        environment: &[],
        last: LastArg::Count(2000),
    },
    Part {
        what: "forks of processes that are killed: none keeps a session alive",
        minutes: 2,
        args: &[
            "test",
            "-p",
            "nearstate-memory",
            "--test",
            "integration",
            "--",
            "--ignored",
            "ten_thousand",
        ],
        environment: &[],
        last: LastArg::Absent,
    },
    Part {
        what: "kills and stops in a full region",
        minutes: 60,
        args: &["torture", "--full-minutes", "60", "--full-kills"],
        environment: &[],
        last: LastArg::Count(10_000),
    },
    Part {
        what: "flipped bits under attached processes",
        minutes: 10,
        args: &["torture", "--flips"],
        environment: &[],
        last: LastArg::Count(10_000),
    },
    Part {
        what: "kills at every named point, and at every point of the recovery from each",
        minutes: 20,
        args: &[
            "test",
            "-p",
            "nearstate-torture",
            "--features",
            "nearstate-torture/crash-points",
            "--test",
            "integration",
            "crash_points",
        ],
        environment: &[("NEARSTATE_CRASH_PAIRS", 18)],
        last: LastArg::Absent,
    },
    Part {
        what: "kills of repairs",
        minutes: 10,
        args: &["torture", "--repair-kills"],
        environment: &[],
        last: LastArg::Count(10_000),
    },
    Part {
        what: "kills and stops after single instructions of each kind of operation",
        minutes: 60,
        args: &["torture", "--step"],
        environment: &[],
        last: LastArg::Distance(20),
    },
    Part {
        what: "contexts that grow in 1 GiB, and a record that grows by 100 bytes to 4 MB",
        minutes: 10,
        args: &[
            "test",
            "-p",
            "nearstate-store",
            "--test",
            "integration",
            "--",
            "--ignored",
            "soak",
        ],
        environment: &[],
        last: LastArg::Absent,
    },
    Part {
        what: "flipped bits in the metadata of a region that is not attached",
        minutes: 5,
        args: &[
            "test",
            "-p",
            "nearstate-store",
            "--test",
            "integration",
            "--",
            "--ignored",
            "every_flip",
            "--nocapture",
        ],
        environment: &[("NEARSTATE_FLIP_STEP", 61)],
        last: LastArg::Absent,
    },
    Part {
        what: "random commands to Redis and to the node; every reply is compared",
        minutes: 10,
        args: &["test", "-p", "nearstate-clients", "--test", "integration", "differential"],
        environment: &[("NEARSTATE_SEQUENCES", 20_000)],
        last: LastArg::Absent,
    },
    Part {
        what: "instructions of writes in heaps that are 95 % full: at most 1.3 times those at 50 %",
        minutes: 15,
        args: &["xtask", "instructions", "fill"],
        environment: &[],
        last: LastArg::Absent,
    },
    Part {
        what: "simulated clusters under faults",
        minutes: 12,
        args: &["run", "--profile", "test", "-p", "nearstate-sim", "--"],
        environment: &[],
        last: LastArg::Count(100_000),
    },
    Part {
        what: "random bytes to every parser",
        minutes: 10,
        args: &["test", "-p", "nearstate-fuzz"],
        environment: &[("PROPTEST_CASES", 1_000_000)],
        last: LastArg::Absent,
    },
];

/// Runs `clients`, `tcl`, `nudsf`, `numa` or `sim`, or all parts of the usual run.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<bool, String> {
    match args.first().map(String::as_str) {
        Some("clients") => with_clients(root, packages::CLIENTS, args),
        Some("tcl") => with_clients(root, packages::TCL, args),
        Some("nudsf") => with_clients(root, packages::NUDSF, args),
        Some("numa") if args.len() == 1 => {
            build(root, &[])?;
            guest::run(root, &crate::suites::program(root))
        }
        Some("sim") => simulate(root, args),
        _ => all(root, args),
    }
}

/// Simulates clusters: 100,000 seeds, or as many as `args` says.
fn simulate(root: &Path, args: &[String]) -> Result<bool, String> {
    let seeds = match args {
        [_] => "100000",
        [_, seeds] if seeds.parse::<u64>().is_ok() => seeds,
        _ => return Err("run `cargo xtask soak sim [SEEDS]`".to_owned()),
    };
    let program = ["run", "--profile", "test", "-p", "nearstate-sim", "--", seeds];
    Ok(run::show(run::cargo().args(program).current_dir(root)).is_ok())
}

/// Runs the program of `verification/clients`, which prints a table of results.
fn with_clients(root: &Path, more: &[packages::Package], args: &[String]) -> Result<bool, String> {
    let is_valid = matches!(args, [_]) || matches!(args, [_, only, _] if only == "--only");
    if !is_valid {
        return Err("run `cargo xtask soak clients|tcl|nudsf [--only NAME]`".to_owned());
    }
    packages::install_missing(packages::ALL)?;
    packages::install_missing(more)?;
    build(root, &["-p", "nearstate-clients"])?;
    let built = crate::suites::program(root);
    let clients = built.with_file_name("nearstate-clients");
    let program = std::env::var_os(PROGRAM).map_or(built, PathBuf::from);
    let mut command = Command::new(clients);
    command.args(args).env(PROGRAM, program).current_dir(root);
    Ok(run::show(&mut command).is_ok())
}

/// Builds `nearstate` with crash points, as the tests do, and these packages.
fn build(root: &Path, more: &[&str]) -> Result<(), String> {
    run::show(
        run::cargo()
            .args(["build", "--profile", "test", "-p", "nearstate"])
            .args(["--features", "nearstate/crash-points"])
            .args(more)
            .current_dir(root),
    )
}

/// Runs all parts, each scaled by the number that `args` holds (1 if it is empty). Returns whether
/// all succeeded.
fn all(root: &Path, args: &[String]) -> Result<bool, String> {
    let scale: u64 = match args {
        [] => 1,
        [scale] => scale.parse().ok().filter(|scale| *scale > 0).ok_or_else(|| {
            format!("the scale {scale:?} is not a positive number: run `cargo xtask soak [SCALE]`")
        })?,
        _ => return Err("too many arguments: run `cargo xtask soak [SCALE]`".to_owned()),
    };
    let minutes: u64 = PARTS.iter().map(|part| part.minutes_at(scale)).sum();
    println!("{} parts, about {minutes} minutes on two idle cores", PARTS.len());
    packages::install_missing(packages::ALL)?;
    build(root, &[])?;
    let mut is_success = true;
    let mut table = String::new();
    for (index, part) in PARTS.iter().enumerate() {
        let about = part.minutes_at(scale);
        println!("\n── {}/{} {} (about {about} minutes)", index + 1, PARTS.len(), part.what);
        let begun = Instant::now();
        let done = run::show(&mut part.command(root, scale));
        let result = if done.is_ok() { "ok" } else { "FAIL" };
        is_success &= done.is_ok();
        let minutes = begun.elapsed().as_secs_f64() / 60.0;
        let _ = writeln!(table, "{result:<5} {minutes:>6.1} min  {}", part.what);
    }
    print!("\n{table}");
    Ok(is_success)
}

impl Part {
    fn minutes_at(&self, scale: u64) -> u64 {
        match self.last {
            LastArg::Distance(distance) => self.minutes * scale.min(distance),
            LastArg::Absent | LastArg::Count(_) => self.minutes * scale,
        }
    }

    fn command(&self, root: &Path, scale: u64) -> Command {
        let program = crate::suites::program(root);
        let mut command = if self.args.first() == Some(&"torture") {
            Command::new(&program)
        } else {
            run::cargo()
        };
        command.args(self.args).current_dir(root);
        match self.last {
            LastArg::Absent => {}
            LastArg::Count(count) => {
                command.arg((count * scale).to_string());
            }
            LastArg::Distance(distance) => {
                command.arg((distance / scale).max(1).to_string());
            }
        }
        for (name, count) in self.environment {
            command.env(name, (count * scale).to_string());
        }
        if self.args.first() != Some(&"torture") {
            command.env(PROGRAM, program);
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_grow_with_the_scale() {
        let part = PARTS.first().unwrap();
        assert_eq!(part.minutes_at(3), 3 * part.minutes);
        let words = run::words(&part.command(Path::new("/none"), 3));
        assert!(words.ends_with("--kills 150000"), "{words}");
        let steps = PARTS.iter().find(|part| part.args.contains(&"--step")).unwrap();
        for (scale, end) in [(1, "--step 20"), (4, "--step 5"), (50, "--step 1")] {
            assert!(run::words(&steps.command(Path::new("/none"), scale)).ends_with(end));
        }
    }

    #[test]
    fn arguments_after_clients_and_tcl_are_checked_before_anything_is_built() {
        for args in [vec!["clients", "x"], vec!["tcl", "--only"], vec!["tcl", "--x", "multi"]] {
            let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
            assert!(run(Path::new("."), &args).unwrap_err().contains("--only NAME"));
        }
    }

    #[test]
    fn a_scale_that_is_not_a_positive_number_is_rejected() {
        for args in [vec!["0"], vec!["x"], vec!["1", "2"]] {
            let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
            assert!(all(Path::new("."), &args).is_err());
        }
    }
}
