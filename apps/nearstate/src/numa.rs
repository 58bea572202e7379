//! `nearstate numa`: the processors and memory nodes of a machine, plans of slices on them, and
//! their application.

mod apply;
mod plan;
mod plan_file;
mod show;
mod machine_json;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use clap::Subcommand;
use nearstate_model::{Error, Result};
use nearstate_numa::{Activity, CpuSet};

use crate::printing::print;
use crate::settings::parse_time;

/// The subcommands of `nearstate numa`.
#[derive(Debug, Subcommand)]
pub(crate) enum NumaCommand {
    /// Show cores, caches and memory nodes of this or another machine
    Show(show::ShowArgs),
    /// Choose processors and memory nodes for network slices, and explain the choice
    Plan(Box<plan::PlanArgs>),
    /// Apply the plan of a slice to a process or a control group, or print it for another tool
    Apply(apply::ApplyArgs),
}

/// Runs a subcommand.
pub(crate) fn run(command: NumaCommand, out: &mut dyn Write) -> Result<()> {
    match command {
        NumaCommand::Show(args) => show::run(&args, out),
        NumaCommand::Plan(args) => plan::run(&args, out),
        NumaCommand::Apply(args) => apply::run(&args, out),
    }
}

/// The longest time to measure how busy processors are.
const WINDOW_MAX: Duration = Duration::from_secs(600);

/// A time to measure, which may be 0.
fn parse_window(text: &str) -> std::result::Result<Duration, String> {
    if matches!(text, "0" | "0s" | "0ms") { Ok(Duration::ZERO) } else { parse_time(text) }
}

fn parse_cpus(text: &str) -> std::result::Result<CpuSet, String> {
    text.parse().map_err(|e: Error| e.to_string())
}

/// The share of time that the processors of this machine are busy, measured over a time. Empty for
/// no time.
fn busy(window: Duration) -> Result<BTreeMap<u32, f64>> {
    if window.is_zero() {
        return Ok(BTreeMap::new());
    }
    if window > WINDOW_MAX {
        let detail = format!("--window {}s is longer than 10 minutes", window.as_secs());
        return Err(Error::BadArgument { detail });
    }
    let first = Activity::read()?;
    std::thread::sleep(window);
    Ok(Activity::read()?.busy_since(&first))
}

fn save(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|error| Error::System {
        detail: format!("cannot write {}", path.display()),
        errno: error.raw_os_error().unwrap_or(0),
    })
}
