//! The view of a cluster: what `nearstate cluster status` prints, again in each interval.

use std::io::IsTerminal as _;
use std::path::Path;
use std::time::Instant;

use nearstate_model::{Error, Result};
use serde_json::json;

use crate::cluster::admin::reason;
use crate::cluster::{NodeChoice, status};

use super::{TopArgs, live, put};

/// What is shown instead of a status. As JSON it is one line, and an object: a status is a list.
fn failure(error: &Error, is_json: bool) -> String {
    if is_json {
        return format!("{}\n", json!({ "error": reason(error) }));
    }
    format!("{error}\n")
}

/// Shows the status in each interval, or prints it. A status that cannot be had is an error at
/// first; later its reason is shown, and it is tried again.
pub(super) fn run(file: &Path, args: &TopArgs) -> Result<()> {
    let node = NodeChoice { cluster: file.to_owned(), host: None };
    let is_json = args.json;
    let mut text = status(&node, is_json)?;
    let next = move || status(&node, is_json).unwrap_or_else(|error| failure(&error, is_json));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_a_line_of_json_where_json_is_asked_for() {
        let error = Error::Backend { detail: "the node has \"ended\"".to_owned() };
        let line = failure(&error, true);
        let parsed: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(parsed, json!({ "error": "the node has \"ended\"" }));
        assert!(line.ends_with('\n') && line.lines().count() == 1);
        assert!(failure(&error, false).contains("the node has \"ended\"\n"));
    }
}
