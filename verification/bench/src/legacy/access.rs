//! `nearstate bench access`: paper 1's simulation application and orchestrator, run against several
//! targets one after the other.

pub mod page;
pub mod output;
pub mod orchestrate;
pub mod display;
pub mod setting;
pub mod options;
pub mod preset;
pub mod thesis;

use crate::legacy::targets::{NAMES, Target, target};
use crate::machine::{Machine, bytes_text};
use nearstate_model::{Error, Result};
use options::Options;
use orchestrate::Experiment;
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// Everything that was measured in one call, and what it was measured on.
#[derive(Debug)]
pub struct Findings {
    /// The command line, as it was given.
    pub command: String,
    /// The machine.
    pub machine: Machine,
    /// Name and version of each target that was measured.
    pub versions: Vec<(String, String)>,
    /// What a reader has to know to judge the figures.
    pub caveats: Vec<String>,
    /// The experiments, in order.
    pub experiments: Vec<Experiment>,
}

/// Runs what the options ask for and writes what they ask for. Progress goes to standard error, the
/// table or the JSON to `out`.
///
/// # Errors
/// The first thing that went wrong, in words that say what would help.
pub fn run(options: &Options, command: &str, out: &mut impl Write) -> Result<()> {
    let machine = Machine::look();
    check_numa(options, &machine)?;
    let (targets, versions, missing) = choose(options)?;
    let settings =
        setting::settings(options, &machine, targets.iter().any(|t| t.name() == "whitedb"))?;
    let mut caveats = caveats(options, &settings, &machine);
    caveats.extend(missing);
    let names: Vec<&str> = targets.iter().map(|t| t.name()).collect();
    let steps: usize = settings.iter().map(|s| s.steps(&targets, options)).sum();
    let display = display::Display::new(steps);
    display.say(&format!("{} on {}", names.join(", "), machine.line()));
    for line in &caveats {
        display.say(&format!("note: {line}"));
    }
    let mut experiments = Vec::new();
    for setting in settings {
        experiments.push(orchestrate::experiment(setting, &targets, options, &display)?);
    }
    display.finish();
    let findings =
        Findings { command: command.to_owned(), machine, versions, caveats, experiments };
    deliver(&findings, options, out)
}

fn check_numa(options: &Options, machine: &Machine) -> Result<()> {
    let Some(node) = options.numa_node.filter(|_| machine.numa_nodes > 1) else { return Ok(()) };
    if usize::try_from(node).is_ok_and(|n| n >= machine.numa_nodes) {
        let last = machine.numa_nodes - 1;
        return Err(Error::BadArgument {
            detail: format!("--numa-node {node}: this machine has nodes 0 to {last}"),
        });
    }
    let is_there = Command::new("numactl").arg("--show").output().is_ok();
    if is_there {
        return Ok(());
    }
    Err(Error::BadArgument {
        detail: "--numa-node needs numactl to place processes: apt-get install -y numactl".into(),
    })
}

fn deliver(findings: &Findings, options: &Options, out: &mut impl Write) -> Result<()> {
    let wrote = |e: &std::io::Error| crate::keeper::system("writing the results", e);
    if options.json {
        writeln!(out, "{:#}", output::json(findings)).map_err(|e| wrote(&e))?;
    } else {
        write!(out, "{}", output::text(findings)).map_err(|e| wrote(&e))?;
    }
    if let Some(path) = &options.csv {
        write_file(path, &output::csv(findings))?;
    }
    if let Some(path) = &options.report {
        write_file(path, &page::html(findings))?;
        if !options.json {
            writeln!(out, "\nreport: {}", path.display()).map_err(|e| wrote(&e))?;
        }
    }
    Ok(())
}

fn write_file(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|e| {
        crate::keeper::system(&format!("writing {}: give another file", path.display()), &e)
    })
}

type Chosen = (Vec<Box<dyn Target>>, Vec<(String, String)>, Vec<String>);

/// The targets that were asked for; without a wish, all that are here, and a word on the others.
fn choose(options: &Options) -> Result<Chosen> {
    let url = options.url.as_deref();
    let (mut targets, mut versions, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    if options.target.is_empty() {
        for name in NAMES.iter().filter(|n| url.is_none() || **n != "redis-unix") {
            let target = target(name, url)?;
            match target.version() {
                Ok(version) => {
                    versions.push(((*name).to_owned(), version));
                    targets.push(target);
                }
                Err(e) => missing.push(format!("{name} is left out: {e}")),
            }
        }
    } else {
        for name in &options.target {
            let target = target(name, url)?;
            versions.push((name.clone(), target.version()?));
            targets.push(target);
        }
    }
    if targets.is_empty() {
        return Err(Error::BadArgument { detail: missing.join("; ") });
    }
    Ok((targets, versions, missing))
}

fn caveats(options: &Options, settings: &[setting::Setting], machine: &Machine) -> Vec<String> {
    let mut out: Vec<String> = settings.iter().filter_map(setting::Setting::scale_note).collect();
    let nodes = settings.iter().map(|s| s.nodes).max().unwrap_or(1);
    if nodes > machine.cores as u64 {
        out.push(format!(
            "up to {nodes} node processes share {} cores here; the thesis had up to 448",
            machine.cores
        ));
    }
    if let Some(node) = options.numa_node
        && machine.numa_nodes == 1
    {
        out.push(format!("this machine has one NUMA node: --numa-node {node} changes nothing"));
    }
    let largest = settings.iter().map(|s| s.db_bytes).max().unwrap_or(0);
    out.push(format!("the largest database takes {} of memory", bytes_text(largest)));
    if !machine.governor.starts_with("performance") {
        out.push(format!("frequency governor: {}", machine.governor));
    }
    out
}
