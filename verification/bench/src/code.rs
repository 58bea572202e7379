//! `nearstate bench code`: what a read of a region executes, counted and not timed. System calls by
//! `strace`, locked instructions by `objdump`.

mod calls;
mod listing;
mod probes;

use crate::outputs::print;
use crate::reaper::Reaper;
use crate::table::ReportTable;
use clap::{Args, ValueHint};
use nearstate_model::Result;
use std::io::Write;
use std::path::PathBuf;

/// Count the system calls and the locked instructions of a read of a region
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
A reader process runs below `strace -f -c` twice, the second time with twice as many reads: the
difference is what the reads cost. The program is disassembled with `objdump`, and the reads are
followed into every function of this project that they call. Exits with 1 if a read makes a system
call or executes a locked instruction or a full fence on its usual path.")]
pub struct CodeOptions {
    /// Folder in memory for the region
    #[arg(long, default_value = "/dev/shm", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,

    /// Reads of the first process
    #[arg(long, default_value_t = 20_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1_000..=1_000_000))]
    pub reads: u64,
}

/// Counts, and prints a table.
pub fn run(options: &CodeOptions, out: &mut impl Write) -> Result<()> {
    let reaper = Reaper::start(&options.dir, None, |_| Vec::new())?;
    probes::run_all(&reaper.folder().join("probes"))?;
    let counts = calls::count(&options.dir, reaper.folder(), options.reads)?;
    let listings = listing::read_all()?;
    let mut table = ReportTable::new("what|>count");
    let reads = options.reads;
    table.row(vec![format!("system calls of a process with {reads} reads"), text(counts.once)]);
    table.row(vec![format!("with {} reads", 2 * reads), text(counts.twice)]);
    let mut locked = 0;
    for listing in &listings {
        table.rule();
        let what = listing.what;
        table.row(vec![format!("{what}: instructions"), text(listing.instructions)]);
        table.row(vec![format!("{what}: locked instructions"), text(listing.locked)]);
        table.row(vec![format!("{what}: full fences"), text(listing.fences)]);
        let rare = format!("{what}: the same in {} rare branches out of line", listing.others);
        table.row(vec![rare, text(listing.others_locked + listing.others_fences)]);
        locked += listing.locked + listing.fences;
    }
    print(out, &table.text())?;
    let calls = counts.twice.abs_diff(counts.once);
    if calls + locked == 0 {
        return Ok(());
    }
    Err(backend_error!(
        "{reads} more reads made {calls} system calls, and reads execute {locked} locked \
             instructions and full fences: both must be 0"
    ))
}

fn text(count: u64) -> String {
    count.to_string()
}
