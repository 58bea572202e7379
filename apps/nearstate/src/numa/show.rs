//! `nearstate numa show`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use nearstate_model::{Error, Result};
use nearstate_numa::{CpuMarks, CpuSet, discover, svg_marked};

use super::machine_json::machine;
use super::{busy, parse_cpus, parse_window, print, save};

/// The options of `nearstate numa show`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nearstate numa show --window 1s
  lstopo machine.xml                           # on the other machine
  nearstate numa show --from machine.xml --svg machine.svg")]
pub(crate) struct ShowArgs {
    /// Another machine: an XML file of hwloc (`lstopo machine.xml`), or a copy of its /sys
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Measure for this time how busy the processors of this machine are
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_window)]
    window: Duration,
    /// Mark processors that no slice gets, as `numa plan --reserve`
    #[arg(long, value_name = "CPUS", default_value = "", value_parser = parse_cpus)]
    reserve: CpuSet,
    /// Mark processors whose cores are used last, as `numa plan --housekeeping`
    #[arg(long, value_name = "CPUS", default_value = "0", value_parser = parse_cpus)]
    housekeeping: CpuSet,
    /// Also write a drawing (SVG) to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &ShowArgs, out: &mut dyn Write) -> Result<()> {
    if args.from.is_some() && !args.window.is_zero() {
        return Err(Error::BadArgument {
            detail: "--window measures this machine; leave it out with --from".to_owned(),
        });
    }
    let topology = discover(args.from.as_deref())?;
    let marks = CpuMarks {
        busy: busy(args.window)?,
        reserved: args.reserve.clone(),
        housekeeping: args.housekeeping.clone(),
    };
    if let Some(path) = &args.svg {
        save(path, &svg_marked(&topology, &BTreeMap::new(), &marks))?;
    }
    if args.json {
        return print(out, &format!("{}\n", machine(&topology, &marks)));
    }
    print(out, &nearstate_numa::text(&topology, &marks))
}
