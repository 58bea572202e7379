//! nearstate: the state layer for 5G network functions. One binary, one module a sub-command.

#![forbid(unsafe_code)]

mod bench;
mod top;
mod serve;
mod census;
mod log;
mod settings;
mod region;
mod torture;

use clap::{Parser, Subcommand};
use std::io::Write as _;
use std::process::ExitCode;

/// The state layer for 5G network functions.
#[derive(Debug, Parser)]
#[command(name = "nearstate", version, propagate_version = true)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure this machine: workloads of mobile cores and single operations beside other stores
    #[command(subcommand)]
    Bench(bench::Command),
    /// Create, inspect, check and drop regions
    #[command(subcommand)]
    Region(region::Command),
    /// Serve a region to clients of Redis and of O-RAN's SDL
    Serve(serve::Serve),
    /// Watch a node and a region live: rates, latencies, namespaces, cores, attached processes
    Top(top::Top),
    /// Kill processes that use a region, and verify that nothing acknowledged is lost or torn
    Torture(torture::Torture),
    #[command(name = torture::CHILD, hide = true)]
    TortureChild(torture::Child),
}

fn main() -> ExitCode {
    let outcome = match Line::parse().command {
        Command::Bench(command) => bench::run(command),
        Command::Serve(args) => serve::run(&args),
        Command::Region(command) => region::run(command, &mut std::io::stdout().lock()),
        Command::Top(args) => top::run(&args),
        Command::Torture(args) => return torture::run(&args),
        Command::TortureChild(child) => return torture::run_child(&child),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "nearstate: {e}");
            ExitCode::FAILURE
        }
    }
}
