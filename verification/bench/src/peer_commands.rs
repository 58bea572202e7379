//! The words behind `nearstate bench peers`.

use crate::conformance::{CheckOutcome, check};
use crate::peers::named;
use crate::reaper::system;
use crate::targets;
use clap::Subcommand;
use nearstate_model::{Error, Result};
use std::io::Write;
use std::path::PathBuf;

/// What to do about peers.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum PeersCommand {
    /// Show which stores can be measured here, and what brings the others
    List,
    /// Install peers: servers from the system's packages, Geode from a Maven repository
    /// (`NEARSTATE_MAVEN`), each file checked against a digest
    Install {
        /// Which: redis, valkey, memcached, geode; all unless said otherwise
        names: Vec<String>,
    },
    /// Hold targets to the promises that workloads rely on, and show each
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

/// Does it, and tells on `out`.
pub fn run(command: &PeersCommand, out: &mut impl Write) -> Result<()> {
    match command {
        PeersCommand::List => list(out),
        PeersCommand::Install { names } => install(names, out),
        PeersCommand::Check { names, layout, dir } => {
            names.iter().try_for_each(|name| hold(name, layout.as_deref(), dir, out))
        }
    }
}

fn tell(out: &mut impl Write, line: &str) -> Result<()> {
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|e| system("writing", &e))
}

fn list(out: &mut impl Write) -> Result<()> {
    for target in targets::all() {
        let about = target.version().unwrap_or_else(|e| format!("- {e}"));
        tell(out, &format!("{:<12} {about}", target.name()))?;
    }
    Ok(())
}

/// The others are brought even if one cannot be.
fn install(names: &[String], out: &mut impl Write) -> Result<()> {
    let mut failed = Vec::new();
    for peer in named(names)? {
        let mut told = Ok(());
        let outcome = peer.is_here().or_else(|_| {
            peer.install(&mut |step| {
                if told.is_ok() {
                    told = tell(out, step);
                }
            })
        });
        told?;
        match outcome {
            Ok(()) => tell(out, &format!("{:<10} is here: {}", peer.name, peer.what))?,
            Err(e) => {
                tell(out, &format!("{:<10} is not here: {e}", peer.name))?;
                failed.push(peer.name);
            }
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(Error::Backend { detail: format!("not installed: {}", failed.join(", ")) })
}

fn hold(
    name: &str,
    layout: Option<&str>,
    dir: &std::path::Path,
    out: &mut impl Write,
) -> Result<()> {
    let mut told = Ok(());
    let all = check(name, layout, dir, &mut |what, outcome| {
        let line = match outcome {
            CheckOutcome::Holds => format!("{name}: holds: {what}"),
            CheckOutcome::Declined(why) => format!("{name}: declined: {what}: {why}"),
            CheckOutcome::Broken(how) => format!("{name}: BROKEN: {what}: {how}"),
        };
        if told.is_ok() {
            told = tell(out, &line);
        }
    })?;
    told?;
    let broken =
        all.iter().filter(|(_, outcome)| matches!(outcome, CheckOutcome::Broken(_))).count();
    if broken == 0 {
        return Ok(());
    }
    Err(Error::Backend { detail: format!("{name} breaks {broken} of {} promises", all.len()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_listed_with_its_version_or_with_what_brings_it() {
        let mut out = Vec::new();
        run(&PeersCommand::List, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), targets::all().len());
        assert!(text.contains("region") && text.contains("memcached"), "{text}");
    }

    #[test]
    fn nobody_is_installed_whom_nobody_knows() {
        let mut out = Vec::new();
        let asked = PeersCommand::Install { names: vec!["oracle".to_owned()] };
        assert!(matches!(run(&asked, &mut out), Err(Error::BadArgument { .. })));
        assert!(out.is_empty());
    }
}
