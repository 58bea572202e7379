//! `nearstate-sim [SEEDS] [FIRST]`: simulates clusters, one for each seed, and prints the progress.
//! The first violation ends it: its seed is printed, and running that seed gives it again.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for a terminal")]

use nearstate_sim::{Faults, SimulationOptions, run};
use std::process::ExitCode;

/// Lines of the log of a failed run.
const LOG_LINES: usize = 50_000;

/// Seeds between two lines of progress.
const LINE: u64 = 1_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: u64| {
        arguments.get(index).map_or(Ok(default), |text| text.parse::<u64>())
    };
    let (Ok(seeds), Ok(first)) = (number(0, LINE), number(1, 0)) else {
        eprintln!("usage: nearstate-sim [SEEDS] [FIRST]: two numbers");
        return ExitCode::from(2);
    };
    let kinds =
        [Faults::All, Faults::NoLoss, Faults::OwnerLost, Faults::OlderOwners, Faults::OlderMembers];
    let (mut views, mut steps, mut released, mut accepted) = (0, 0, 0, 0);
    for seed in first..first + seeds {
        let [lost, kept, owner, older_owner, older_member] = kinds;
        let faults = match seed % 5 {
            0 => lost,
            1 => kept,
            2 => owner,
            3 => older_owner,
            _ => older_member,
        };
        let report = run(seed, &SimulationOptions::all().with_faults(faults));
        if let Some(violation) = report.violation {
            let options = SimulationOptions::all().with_faults(faults).with_log();
            let log = run(seed, &options).log;
            for line in log.get(log.len().saturating_sub(LOG_LINES)..).unwrap_or_default() {
                println!("{line}");
            }
            eprintln!("seed {seed} ({faults:?}): {violation}");
            return ExitCode::FAILURE;
        }
        views += report.views;
        steps += report.steps;
        released += report.released;
        accepted += u64::from(report.accepted);
        if (seed + 1 - first) % LINE == 0 || seed + 1 == first + seeds {
            println!(
                "{} of {seeds} seeds: {views} views, {released} released, {accepted} losses \
                 accepted, {steps} steps",
                seed + 1 - first
            );
        }
    }
    ExitCode::SUCCESS
}
