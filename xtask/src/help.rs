//! `cargo xtask help`: what there is, and where to begin.

use crate::gate::CHECKS;

/// Prints every task with what it does.
pub(crate) fn print() {
    println!(
        "\
The house's own tasks. New here? Run `cargo xtask demo`, then `cargo xtask test`.

  cargo xtask demo [--ues N]       signalling of 100,000 UEs: our region, our node, killed on the
                                   way, and a Redis; writes report/demo.html; two minutes
  cargo xtask test [SUITE ..]      installs what the tests lack, runs all suites or only these;
                                   closes with `N passed, N failed`
  cargo xtask soak [SCALE]         the same proofs for longer: about two hours at scale 1
  cargo xtask gate                 every check below, and a table with their times
  cargo xtask packages             installs the system packages that are missing (apt-get); starts
                                   no service

The gate's checks, each runnable alone:
"
    );
    for check in CHECKS {
        println!("  cargo xtask {:<20} {}", check.name, check.what);
    }
    println!(
        "
  cargo xtask header --write       writes the C header anew after a change of capi

A check that fails prints file:line, what is wrong, and what to do. Where the house's bounds must
give way, the reason goes into xtask/exceptions.txt; a new dependency goes into
xtask/dependencies.toml and docs/decisions/dependencies.md. Why the gate is as it is:
docs/decisions/001-gate.md."
    );
}
