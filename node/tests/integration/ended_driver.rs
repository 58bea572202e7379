//! Drivers that act no more: at a level that their program cannot do, and after a panic.

use nearstate_cluster::{ClusterLevel, Command};

use crate::cluster_driver::{DrivenCluster, locked, until};

#[test]
fn no_driver_acts_at_a_level_that_its_program_cannot_do() {
    let cluster = DrivenCluster::start();
    let owner = cluster.owner_with(&[1, 2, 3]);
    let session = cluster.host(owner).region.session().unwrap();
    until("the owner admits writers", || !session.is_fenced().unwrap());
    let level = ClusterLevel(ClusterLevel::HIGHEST.0 + 1);
    cluster.log.append(&Command::Finalize { level }.encode());
    until("all hosts say so", || locked(&cluster.log.outdated).len() == 3);
    until("writers are refused", || session.is_fenced().unwrap());
}

#[test]
fn a_driver_that_panics_says_so() {
    let mut cluster = DrivenCluster::start();
    *locked(&cluster.log.breaks) = true;
    // The owner proposes to evict it.
    cluster.stop(3);
    until("the panic is told", || locked(&cluster.log.panicked).as_slice() == ["ns-cluster"]);
}
