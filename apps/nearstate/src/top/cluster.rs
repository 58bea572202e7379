//! The view of a cluster: what `nearstate cluster status` prints, again in each interval.

use std::io::IsTerminal as _;
use std::path::Path;
use std::time::{Duration, Instant};

use nearstate_model::Result;

use crate::cluster::{NodeChoice, status};

use super::{TopArgs, put};

/// Moves to the first line and clears the screen below.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Prints the status in each interval, or once. A terminal shows the last one only. A status that
/// cannot be had is an error at first; later its reason is shown, and it is tried again.
pub(super) fn run(file: &Path, args: &TopArgs) -> Result<()> {
    let node = NodeChoice { cluster: file.to_owned(), host: None };
    let mut text = status(&node, args.json)?;
    let is_drawn = !args.json && !args.once && std::io::stdout().is_terminal();
    loop {
        let begin = Instant::now();
        let end = if args.json || args.once || is_drawn { "" } else { "\n" };
        let screen = if is_drawn { CLEAR } else { "" };
        if !put(&format!("{screen}{text}{end}"))? || args.once {
            return Ok(());
        }
        std::thread::sleep(pause(args.interval, begin.elapsed()));
        text = status(&node, args.json).unwrap_or_else(|error| format!("{error}\n"));
    }
}

/// What is left of an interval.
fn pause(interval: Duration, passed: Duration) -> Duration {
    interval.saturating_sub(passed)
}
