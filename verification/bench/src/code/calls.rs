//! The system calls of a reader: a client of `bench run` runs under `strace -f -c` twice, the
//! second time with twice as many reads. The difference is what the reads cost.

use crate::parameters::Parameters;
use crate::protocol::{ClientCommand, Plan, Trial, send};
use crate::reaper::{own_program, system};
use crate::targets::{self, DatabaseSpec};
use crate::workloads;
use nearstate_model::Result;
use std::path::Path;
use std::process::{Command, Stdio};

const INSTALL: &str = "strace is not installed: apt-get install -y strace";

/// Records of the region.
const RECORDS: u64 = 1000;

/// Runs of which the minimum is taken: the allocator makes a call or two more if the kernel maps
/// memory elsewhere.
const TRIES: u32 = 3;

/// System calls of a process that makes a number of reads, and of one that makes twice as many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SyscallCounts {
    pub(super) once: u64,
    pub(super) twice: u64,
}

/// Counts system calls. The region is created in `dir`, the files of `strace` in `folder`.
pub(super) fn count(dir: &Path, folder: &Path, reads: u64) -> Result<SyscallCounts> {
    let workload = workloads::named("micro")?;
    let variant = "view".to_owned();
    let parameters = Parameters { records: RECORDS, variant, seed: 1, ..Parameters::default() };
    let (records, record_bytes) = workload.size(&parameters);
    let spec = DatabaseSpec {
        schema: workload.schema(&parameters),
        records,
        record_bytes,
        clients: 1,
        folder: dir.to_owned(),
        ..DatabaseSpec::default()
    };
    let database = targets::named("region")?.start(&spec)?;
    let plan = Plan {
        workload: "micro".to_owned(),
        parameters,
        target: "region".to_owned(),
        address: database.address(),
        clients: 1,
        ..Plan::default()
    };
    let of = |ops| traced(&plan, &folder.join(format!("calls-{ops}")), ops);
    // The first client gives the region's table of members a page.
    of(1)?;
    let least = |ops| -> Result<u64> {
        let counts: Result<Vec<u64>> = (0..TRIES).map(|_| of(ops)).collect();
        Ok(counts?.into_iter().min().unwrap_or(0))
    };
    Ok(SyscallCounts { once: least(reads)?, twice: least(2 * reads)? })
}

/// System calls of one client that makes `ops` reads.
fn traced(plan: &Plan, summary: &Path, ops: u64) -> Result<u64> {
    let run = Trial { ops, depth: 1, ..Trial::default() };
    let mut script = Vec::new();
    for command in [ClientCommand::Plan(plan.clone()), ClientCommand::Load, ClientCommand::Run(run)]
    {
        send(&mut script, &command)?;
    }
    let words = summary.with_extension("in");
    std::fs::write(&words, script).map_err(|e| system("writing a script", &e))?;
    let words = std::fs::File::open(&words).map_err(|e| system("reading a script", &e))?;
    let output = Command::new("strace")
        .args(["-f", "-c", "-o"])
        .arg(summary)
        .arg(own_program()?)
        .args(["bench", "workload-client"])
        .stdin(Stdio::from(words))
        .output()
        .map_err(|_| bad_argument!("{INSTALL}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || !text.contains(r#"{"finished":"#) {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(backend_error!(
            "the reader under strace failed: {} {}",
            why.trim(),
            text.trim()
        ));
    }
    let text = std::fs::read_to_string(summary).map_err(|e| system("reading strace's file", &e))?;
    total(&text).ok_or_else(|| backend_error!("strace printed no total"))
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
