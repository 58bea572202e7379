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
    let all = SimulationOptions::all;
    let kinds = [
        all(),
        all().with_faults(Faults::NoLoss),
        all().with_faults(Faults::OwnerLost),
        all().with_faults(Faults::OlderOwners),
        all().with_faults(Faults::OlderMembers),
        all().with_group_changes(),
        all().with_group_changes().with_faults(Faults::NoLoss),
        all().with_drains(),
        all().with_drains().with_faults(Faults::NoLoss),
    ];
    let (mut views, mut steps, mut released, mut accepted) = (0, 0, 0, 0);
    // The seed says which kind it is, so that it alone gives a run again.
    let skipped = usize::try_from(first).unwrap_or_default() % kinds.len();
    for (seed, options) in (first..first + seeds).zip(kinds.iter().cycle().skip(skipped)) {
        let report = run(seed, options);
        if let Some(violation) = report.violation {
            let log = run(seed, &options.clone().with_log()).log;
            for line in log.get(log.len().saturating_sub(LOG_LINES)..).unwrap_or_default() {
                println!("{line}");
            }
            eprintln!("seed {seed} ({options:?}): {violation}");
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
