//! How many system calls a read makes: a reader runs under `strace -f -c` twice, the second time
//! with twice as many reads. What differs is what reads cost.

use super::companion::{Terms, command};
use super::role::Role;
use crate::keeper::system;
use nearstate_model::{Error, Result};
use std::path::Path;
use std::process::Command;

const INSTALL: &str = "strace is not installed: apt-get install -y strace";

/// Runs of which the least is taken.
const TRIES: u32 = 3;

/// System calls of a process that makes so many reads, and of one that makes twice as many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// With `reads` reads.
    pub once: u64,
    /// With twice as many.
    pub twice: u64,
}

/// Counts them for the region at `path` with `records` records.
///
/// # Errors
/// Why it could not be counted, and what would help.
pub fn count(path: &Path, folder: &Path, records: u64, reads: u64) -> Result<Counts> {
    let of = |ops| {
        let terms = Terms { records, ops, value_bytes: 64, cpu: None, seed: 1 };
        traced(path, &folder.join(format!("calls-{ops}")), &terms)
    };
    // The first one to come gives the region's table of members a page.
    of(1)?;
    // Where the kernel places a mapping decides on a call or two of the allocator: the least
    // counts.
    let least = |ops| -> Result<u64> {
        let counts: Result<Vec<u64>> = (0..TRIES).map(|_| of(ops)).collect();
        Ok(counts?.into_iter().min().unwrap_or(0))
    };
    Ok(Counts { once: least(reads)?, twice: least(2 * reads)? })
}

fn traced(path: &Path, summary: &Path, terms: &Terms) -> Result<u64> {
    let reader = command(Role::Count, "region", path, terms)?;
    let output = Command::new("strace")
        .args(["-f", "-c", "-o"])
        .arg(summary)
        .arg(reader.get_program())
        .args(reader.get_args())
        .output()
        .map_err(|_| Error::BadArgument { detail: INSTALL.to_owned() })?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        let detail = format!("the reader under strace failed: {}", why.trim());
        return Err(Error::Backend { detail });
    }
    let said = String::from_utf8_lossy(&output.stdout);
    if said.trim() != format!("read {}", terms.ops) {
        return Err(Error::Backend { detail: format!("the reader under strace said {said:?}") });
    }
    let text = std::fs::read_to_string(summary).map_err(|e| system("reading strace's file", &e))?;
    total(&text).ok_or_else(|| Error::Backend { detail: "strace printed no total".to_owned() })
}

/// The calls of the last line of `strace -c`.
fn total(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.trim_end().ends_with(" total"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_the_fourth_number_with_and_without_errors() {
        let head = "% time     seconds  usecs/call     calls    errors syscall\n";
        let with = "100.00    0.003161          20       155        11 total\n";
        let without = "100.00    0.003161          20       154           total\n";
        assert_eq!(total(&format!("{head}{with}")), Some(155));
        assert_eq!(total(&format!("{head}{without}")), Some(154));
        assert_eq!(total(head), None);
    }
}
