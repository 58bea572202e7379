//! `nearstate numa show`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use nearstate_model::{Error, Result};
use nearstate_numa::discover;

use super::machine_json::machine;
use super::{busy, parse_window, print, save};

/// The options of `nearstate numa show`.
#[derive(Debug, Args)]
#[command(after_help = "\
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
    let busy = busy(args.window)?;
    if let Some(path) = &args.svg {
        save(path, &nearstate_numa::svg(&topology, &BTreeMap::new()))?;
    }
    if args.json {
        return print(out, &format!("{}\n", machine(&topology, &busy)));
    }
    print(out, &nearstate_numa::text(&topology, &busy))
}
