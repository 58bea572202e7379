//! Reads the topology of this machine, or of a file or folder that is given, and prints how long
//! each of 51 readings took: the best and the median one, in milliseconds.
//!
//! `cargo run --release -p nearstate-numa --example read_time [FILE|FOLDER]`

#![expect(
    clippy::print_stdout,
    clippy::disallowed_types,
    reason = "the output, which is a time, is the purpose of the program"
)]

use std::path::PathBuf;
use std::time::Instant;

use nearstate_numa::discover;

const READINGS: usize = 51;

fn main() -> nearstate_model::Result<()> {
    let from = std::env::args_os().nth(1).map(PathBuf::from);
    let topology = discover(from.as_deref())?;
    let mut times = Vec::new();
    for _ in 0..READINGS {
        let start = Instant::now();
        discover(from.as_deref())?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    let at = |index: usize| times.get(index).copied().unwrap_or_default();
    let (origin, cpus) = (topology.origin(), topology.cpus().len());
    println!(
        "{origin}: {cpus} processors, best {:.2} ms, median {:.2} ms",
        at(0),
        at(READINGS / 2)
    );
    Ok(())
}
