//! `nearstate bench peers`.

use crate::conformance::{CheckOutcome, check};
use crate::outputs::print;
use crate::peers::named;
use crate::targets;
use clap::Subcommand;
use nearstate_model::Result;
use std::io::Write;
use std::path::PathBuf;

/// What to do about peers.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum PeersCommand {
    /// List the stores, with their version or how to install them
    List,
    /// Install stores: servers from the packages of the system, Geode from a Maven repository
    /// (`NEARSTATE_MAVEN`); each file is checked against a digest
    Install {
        /// redis, valkey, memcached, geode [default: all]
        names: Vec<String>,
    },
    /// Check that targets behave as the workloads require, and print each result
    Check {
        /// Names of targets
        #[arg(required = true)]
        names: Vec<String>,
        /// Layout, for geode: partitioned, replicated, zones
        #[arg(long)]
        layout: Option<String>,
        /// A folder in memory
        #[arg(long, default_value = "/dev/shm")]
        dir: PathBuf,
    },
}

/// Executes a command, with its output on `out`.
pub fn run(command: &PeersCommand, out: &mut impl Write) -> Result<()> {
    match command {
        PeersCommand::List => list(out),
        PeersCommand::Install { names } => install(names, out),
        PeersCommand::Check { names, layout, dir } => {
            names.iter().try_for_each(|name| check_target(name, layout.as_deref(), dir, out))
        }
    }
}

fn write_line(out: &mut impl Write, line: &str) -> Result<()> {
    print(out, &format!("{line}\n"))
}

fn list(out: &mut impl Write) -> Result<()> {
    for target in targets::all() {
        let about = target.version().unwrap_or_else(|e| format!("- {e}"));
        write_line(out, &format!("{:<12} {about}", target.name()))?;
    }
    Ok(())
}

/// Installs all even if one fails.
fn install(names: &[String], out: &mut impl Write) -> Result<()> {
    let mut failed = Vec::new();
    for peer in named(names)? {
        let mut written = Ok(());
        let outcome = peer.is_here().or_else(|_| {
            peer.install(&mut |step| {
                if written.is_ok() {
                    written = write_line(out, step);
                }
            })
        });
        written?;
        match outcome {
            Ok(()) => write_line(out, &format!("{:<10} is installed: {}", peer.name, peer.what))?,
            Err(e) => {
                write_line(out, &format!("{:<10} is not installed: {e}", peer.name))?;
                failed.push(peer.name);
            }
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(backend_error!("not installed: {}", failed.join(", ")))
}

fn check_target(
    name: &str,
    layout: Option<&str>,
    dir: &std::path::Path,
    out: &mut impl Write,
) -> Result<()> {
    let mut written = Ok(());
    let all = check(name, layout, dir, &mut |what, outcome| {
        let line = match outcome {
            CheckOutcome::Holds => format!("{name}: passed: {what}"),
            CheckOutcome::Declined(why) => format!("{name}: declined: {what}: {why}"),
            CheckOutcome::Broken(how) => format!("{name}: FAILED: {what}: {how}"),
        };
        if written.is_ok() {
            written = write_line(out, &line);
        }
    })?;
    written?;
    let broken =
        all.iter().filter(|(_, outcome)| matches!(outcome, CheckOutcome::Broken(_))).count();
    if broken == 0 {
        return Ok(());
    }
    Err(backend_error!("{name} fails {broken} of {} checks", all.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearstate_model::Error;

    #[test]
    fn every_target_is_listed_with_its_version_or_with_what_brings_it() {
        let mut out = Vec::new();
        run(&PeersCommand::List, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), targets::all().len());
        assert!(text.contains("region") && text.contains("memcached"), "{text}");
    }

    #[test]
    fn an_unknown_peer_is_not_installed() {
        let mut out = Vec::new();
        let asked = PeersCommand::Install { names: vec!["oracle".to_owned()] };
        assert!(matches!(run(&asked, &mut out), Err(Error::BadArgument { .. })));
        assert!(out.is_empty());
    }
}
