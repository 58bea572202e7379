//! `WhiteDB` through its own program, as `bench access` measures it: it is under another licence,
//! so that nothing of it is linked here.

use super::options::Options;
use crate::keeper::system;
use crate::legacy::access::display::Display;
use crate::legacy::access::options::Options as AccessOptions;
use crate::legacy::access::orchestrate::{Run, experiment};
use crate::legacy::access::setting::Setting;
use crate::legacy::protocol::Mode;
use crate::legacy::targets::target;
use clap::Parser;
use nearstate_model::{Error, Result};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: AccessOptions,
}

fn access_options(options: &Options, kinds: &str) -> Result<AccessOptions> {
    let dir = options.dir.to_str().ok_or_else(|| {
        system("--dir: give a path in UTF-8", &std::io::Error::other("not UTF-8"))
    })?;
    let seed = options.seed.to_string();
    let words = ["access", "--touch", "word", "--kinds", kinds, "--dir", dir, "--seed", &seed];
    Line::try_parse_from(words)
        .map(|line| line.options)
        .map_err(|e| Error::BadArgument { detail: e.to_string() })
}

fn setting(options: &Options, mode: Mode, nodes: u64, ops: u64, loops: u64) -> Setting {
    let copies = if mode == Mode::Write { nodes * loops } else { 1 };
    Setting {
        name: "micro".to_owned(),
        ops,
        ops_unscaled: ops,
        loops,
        nodes,
        record_bytes: options.value_bytes,
        mode,
        is_disjoint: false,
        db_bytes: (128 << 20) + ops * copies * (2 * options.value_bytes + 512),
    }
}

fn runs(options: &Options, setting: Setting, kinds: &str, display: &Display) -> Result<Vec<Run>> {
    let targets = [target("whitedb", None)?];
    Ok(experiment(setting, &targets, &access_options(options, kinds)?, display)?.runs)
}

/// One process reads by key and steps: one sample for each round.
///
/// # Errors
/// What went wrong.
pub fn reads(options: &Options, records: u64, display: &Display) -> Result<Vec<Run>> {
    let setting = setting(options, Mode::Read, 1, records, options.rounds());
    runs(options, setting, "view,copy,chain,step", display)
}

/// One process appends records, each under the database's lock.
///
/// # Errors
/// What went wrong.
pub fn appends(options: &Options, records: u64, display: &Display) -> Result<Vec<Run>> {
    runs(options, setting(options, Mode::Write, 1, records, options.rounds()), "put", display)
}

/// So many processes append `ops` records each; wall time for each write, in nanoseconds.
///
/// # Errors
/// What went wrong.
pub fn writers(options: &Options, writers: u64, ops: u64, display: &Display) -> Result<f64> {
    let setting = setting(options, Mode::Write, writers, ops, 1);
    let runs = runs(options, setting, "put", display)?;
    let run = runs
        .first()
        .ok_or_else(|| Error::Backend { detail: "WhiteDB's writers told nothing".to_owned() })?;
    Ok(crate::stat::sequence_average(run.wall_ns, run.ops))
}
