//! `cargo xtask help`: the tasks, and where to start.

use crate::gate::CHECKS;

/// Prints every task with its purpose.
pub(crate) fn print() {
    println!(
        "\
The tasks of this workspace. New here? Run `cargo xtask demo`, then `cargo xtask test`.

  cargo xtask demo [--ues N]       runs the signalling of 100,000 UEs on a region, on a node that is
                                   killed during the run, and on Redis; then a cluster whose owner
                                   is lost; writes report/demo.html and report/cluster.html;
                                   takes two minutes after the build
  cargo xtask test [SUITE ..]      installs missing packages, runs all suites or the named ones;
                                   ends with `N passed, N failed`
  cargo xtask soak [SCALE]         runs the same proofs for longer: 3.5 hours at scale 1
  cargo xtask soak clients         uses a node with ten clients at pinned versions, and kills it
                                   during each run; `--only NAME` runs one client
  cargo xtask soak tcl             runs units of Redis' own tests (from Debian's source package)
                                   against a node; `--only UNIT` runs one unit
  cargo xtask soak sim [SEEDS]     simulates clusters under faults: 100,000 seeds by default
  cargo xtask soak numa            applies plans and memory policies in an emulated guest with two
                                   NUMA nodes, and compares what its kernel reports
  cargo xtask soak nudsf           uses a node with curl, h2load, free5GC's client and generated
                                   requests over HTTP/2; `--only NAME` runs one
  cargo xtask gate                 runs every check below, and prints a table with their times;
                                   `--without CHECK ..` leaves some out
  cargo xtask packages             installs missing system packages (apt-get); starts no service

The checks of the gate, each also a command:
"
    );
    for check in CHECKS {
        println!("  cargo xtask {:<20} {}", check.name, check.what);
    }
    println!(
        "
  cargo xtask instructions         also counts requests of Nudsf, a follower and a plan of
                                   placement, not only operations on a region and requests of RESP
                                   as in the gate; with --write it refreshes the table
  cargo xtask instructions fill    counts writes in heaps that are 50 % and 95 % full (15 minutes)
  cargo xtask header --write       regenerates the C header after a change of capi

A check that fails prints file:line, what is wrong, and what to do. Where a limit must
give way, the reason goes into xtask/exceptions.txt; a new dependency goes into
xtask/dependencies.toml and docs/decisions/dependencies.md. Why the gate is as it is:
docs/decisions/001-gate.md."
    );
}
