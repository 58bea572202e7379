//! A region that does not take what a proposal rests on.

use std::os::unix::fs::FileExt as _;

use nearstate_store::lease_clock;

use crate::cluster_driver::{DrivenCluster, LEASE, locked, until};

/// The word of a region that has the highest view that its host has seen (`spec/region.md`,
/// section 11).
const VIEW_SEEN: u64 = 0x1000 + 0x300;

#[test]
fn nothing_is_proposed_before_a_record_is_stored_that_could_not_be_stored_before() {
    let mut cluster = DrivenCluster::start();
    cluster.write(1, 0..50, 100);
    let file = std::fs::File::options().read(true).write(true).open(cluster.region(1)).unwrap();
    let mut word = [0; 8];
    file.read_exact_at(&mut word, VIEW_SEEN).unwrap();
    let mut damaged = word;
    damaged[0] ^= 1;
    file.write_all_at(&damaged, VIEW_SEEN).unwrap();
    // The owner is to evict it, and stores that before.
    cluster.stop(3);
    let failures = || locked(&cluster.log.failures).len();
    until("the word is damaged", || failures() > 0);
    let evictions = || locked(&cluster.log.evictions).len();
    // It evicts after two leases.
    let (before, end) = (evictions(), lease_clock() + 4 * LEASE);
    until("the owner would have evicted it", || lease_clock() > end);
    assert_eq!(*locked(&cluster.log.violations), Vec::<String>::new());
    assert_eq!(evictions(), before);
    file.write_all_at(&word, VIEW_SEEN).unwrap();
    cluster.owner_with(&[1, 2]);
    assert_eq!(*locked(&cluster.log.violations), Vec::<String>::new());
}
