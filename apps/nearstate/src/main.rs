//! nearstate: the state layer for 5G network functions. One binary, one module for each sub-command.

#![forbid(unsafe_code)]

mod torture;

use clap::{Parser, Subcommand};
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
    /// Kill processes that use a region, and verify that nothing acknowledged is lost or torn
    Torture(torture::Torture),
    #[command(name = torture::CHILD, hide = true)]
    TortureChild(torture::Child),
}

fn main() -> ExitCode {
    match Line::parse().command {
        Command::Torture(args) => torture::run(&args),
        Command::TortureChild(child) => torture::run_child(&child),
    }
}
