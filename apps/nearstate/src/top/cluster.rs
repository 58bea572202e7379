//! The view of a cluster: what `nearstate cluster status` prints, again in each interval.

use std::io::IsTerminal as _;
use std::path::Path;
use std::time::Instant;

use nearstate_model::Result;

use crate::cluster::{NodeChoice, status};

use super::{TopArgs, live, put};

/// Shows the status in each interval, or prints it. A status that cannot be had is an error at
/// first; later its reason is shown, and it is tried again.
pub(super) fn run(file: &Path, args: &TopArgs) -> Result<()> {
    let node = NodeChoice { cluster: file.to_owned(), host: None };
    let is_json = args.json;
    let mut text = status(&node, is_json)?;
    let next = move || status(&node, is_json).unwrap_or_else(|error| format!("{error}\n"));
    let is_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if is_terminal && !args.json && !args.once {
        return live::run_text(text, args.interval, next);
    }
    loop {
        let begin = Instant::now();
        let end = if args.json || args.once { "" } else { "\n" };
        if !put(&format!("{text}{end}"))? || args.once {
            return Ok(());
        }
        std::thread::sleep(args.interval.saturating_sub(begin.elapsed()));
        text = next();
    }
}
