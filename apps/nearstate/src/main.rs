//! The `nearstate` program: the state layer for 5G network functions. Each subcommand is a module.

#![forbid(unsafe_code)]

mod bench;
mod numa;
mod top;
mod serve;
mod cluster;
mod record_counts;
mod log;
mod settings;
mod region;
mod torture;
mod printing;

use clap::{Parser, Subcommand};
use std::io::Write as _;
use std::process::ExitCode;

/// The state layer for 5G network functions.
#[derive(Debug, Parser)]
#[command(name = "nearstate", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Run benchmarks: mobile-core workloads and single operations, compared with other stores
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Check a cluster file, create a cluster, show its status, administer it
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Show the processors and memory nodes of a machine, plan slices on them, apply the plan
    #[command(subcommand)]
    Numa(numa::NumaCommand),
    /// Create, inspect, check and delete regions
    #[command(subcommand)]
    Region(region::RegionCommand),
    /// Serve a region to Redis and O-RAN SDL clients
    Serve(serve::ServeArgs),
    /// Show live statistics of a node and a region: rates, latencies, namespaces, cores, processes
    Top(top::TopArgs),
    /// Kill processes that use a region and verify that no acknowledged write is lost or torn
    Torture(torture::Torture),
    #[command(name = torture::CHILD, hide = true)]
    TortureChild(torture::Child),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        CliCommand::Bench(command) => bench::run(command),
        CliCommand::Serve(args) => serve::run(&args),
        CliCommand::Region(command) => region::run(command, &mut std::io::stdout().lock()),
        CliCommand::Cluster(command) => cluster::run(command, &mut std::io::stdout().lock()),
        CliCommand::Numa(command) => numa::run(command, &mut std::io::stdout().lock()),
        CliCommand::Top(args) => top::run(&args),
        CliCommand::Torture(args) => return torture::run(&args),
        CliCommand::TortureChild(child) => return torture::run_child(&child),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "nearstate: {e}");
            ExitCode::FAILURE
        }
    }
}
