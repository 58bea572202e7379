//! The roles of child processes: `ROLE FOLDER NUMBER SEED ROUND [MORE]`.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use crate::failovers;
use crate::flips;
use crate::histories::process;
use crate::idle_memory;
use crate::limits;
use crate::node_kills::{embedded, node_process};
use crate::reader;
use crate::removals;
use crate::repairs;
use crate::rng::seeded;
use crate::scenario;
use crate::step;
use crate::sweep;
#[cfg(feature = "crash-points")]
use crate::tags::log_kills;
use crate::tags::script_process;
use crate::tags::stress::worker;
use crate::writer::JournaledWriter;

/// Runs a child with the arguments after the sub-command.
///
/// The exit status is 0 after complete work, and 1 with one line on standard error after a
/// violation.
pub fn main(words: &[String]) -> ExitCode {
    // A child exits when its parent is gone.
    let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
    match run(words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{}: {error}", words.join(" "));
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[String]) -> Result<(), String> {
    let [role, folder, number, seed, round, more @ ..] = words else {
        return Err("expected the arguments ROLE FOLDER NUMBER SEED ROUND".to_owned());
    };
    let folder = Path::new(folder);
    let number: u16 = number.parse().map_err(|_| "NUMBER is not a number")?;
    let seed: u64 = seed.parse().map_err(|_| "SEED is not a number")?;
    let round: u64 = round.parse().map_err(|_| "ROUND is not a number")?;
    let mut rng = seeded(&[seed, round, u64::from(number)]);
    let word = more.first().map_or("", String::as_str);
    match role.as_str() {
        "writer" => JournaledWriter::open(folder, number, round)?.run(&mut rng),
        "reader" => {
            let writers = word.parse().map_err(|_| "WRITERS is not a number")?;
            reader::run(folder, number, writers, round, &mut rng)
        }
        "scenario" => scenario::play(folder, word),
        "history" => process::run(folder, number),
        "step" => step::play(folder, word),
        "sweep" => sweep::play(folder, word),
        "put" => scenario::put_one(folder, number),
        "tagged" => script_process::play(folder, word, usize::from(number)),
        "tagged-writer" => worker::write(folder, number, &mut rng),
        "tagged-collector" => worker::collect(folder, &mut rng),
        "tagged-reader" => worker::read(folder, number, &mut rng),
        "served-node" => node_process::serve(folder),
        "served-embedded" => embedded::write(folder, number, &mut rng),
        "fill" => script_process::fill(folder),
        #[cfg(feature = "crash-points")]
        "lose" => log_kills::lose(folder),
        "attach" => scenario::attach(folder),
        "fill-idle" => idle_memory::play(folder),
        "limit-namespaces" => limits::play(folder),
        "flip-worker" => flips::worker::play(folder, number, &mut rng),
        "flip-check" => flips::verifier::play(folder),
        "cluster-writer" => {
            failovers::writer::write(folder, number, round, Path::new(word), &mut rng)
        }
        "cluster-signalling" => {
            failovers::signalling::signal(folder, number, Path::new(word), &mut rng)
        }
        "repair" => repairs::play(folder),
        "remove-namespaces" => removals::play(folder),
        "drop" => scenario::remove(folder),
        other => Err(format!("unknown role {other:?}")),
    }
}
