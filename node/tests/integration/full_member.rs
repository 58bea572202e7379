//! A member without which no commit is replicated has no room for an entry.

use std::time::Duration;

use nearstate_cluster::HostId;
use nearstate_model::Error;
use nearstate_store::{OwnerLease, Session, lease_clock};

use crate::cluster_driver::{DrivenCluster, LEASE, fill, locked, status, until};
use crate::partition::ue;

/// How often it is tried: on a busy machine the other member takes over.
const TRIES: u32 = 5;

/// How often the lease is extended while the member has no room.
const LEASES: u32 = 3;

#[test]
fn an_owner_keeps_its_lease_while_the_only_other_copy_is_full() {
    let is_shown = (0..TRIES).any(|_| owner_keeps_its_lease());
    assert!(is_shown, "in {TRIES} tries the owner lost the partition");
}

/// The end of the lease; `None`: there is none at present.
fn lease(session: &Session) -> Option<Duration> {
    match session.owner_lease().unwrap() {
        OwnerLease::Held { until } => Some(until),
        OwnerLease::Expired | OwnerLease::Unclustered => None,
    }
}

/// False if the owner lost the partition.
fn owner_keeps_its_lease() -> bool {
    let mut cluster = DrivenCluster::start();
    cluster.write(1, 0..50, 32 << 10);
    cluster.stop(3);
    assert_eq!(cluster.owner_with(&[1, 2]), 1);
    let member = cluster.host(2).region.session().unwrap();
    let (mine, count) = fill(&member, &[32 << 10]);
    let session = cluster.host(1).region.session().unwrap();
    let failed = |of: &(HostId, String)| of.0 == HostId(2) && of.1.contains("full");
    let mut key = 1000_u64;
    let put = |key: &mut u64| {
        *key += 1;
        match session.put(ue(&session), &key.to_le_bytes(), &vec![7; 32 << 10]) {
            Ok(_) | Err(Error::Fenced { .. } | Error::Behind { .. } | Error::Full { .. }) => true,
            Err(Error::NotOwner { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    };
    while !locked(&cluster.log.failures).iter().any(failed) {
        if !put(&mut key) {
            return false;
        }
        std::thread::park_timeout(Duration::from_millis(2));
    }
    let receipt = session.receipt_of_all().unwrap();
    for _ in 0..LEASES {
        // Beyond what was granted before the member was full.
        let later = lease_clock() + LEASE;
        let is_lost = || status(cluster.host(2)).is_some_and(|status| status.role == "owner");
        until("the lease is extended", || {
            lease(&session).is_some_and(|end| end > later) || is_lost()
        });
    }
    if !put(&mut key) {
        return false;
    }
    assert!(!session.is_replicated(receipt).unwrap(), "the member has no room");
    for number in 0..count {
        member.delete(mine, &number.to_le_bytes()).unwrap();
    }
    until("the member has room", || session.is_replicated(receipt).unwrap());
    true
}

/// A proposal may be lost, or void when it is ordered. It is repeated, and is no event.
#[test]
fn an_eviction_is_told_when_it_is_ordered() {
    let mut cluster = DrivenCluster::start();
    *locked(&cluster.log.loses_evictions) = true;
    cluster.stop(3);
    until("it is proposed several times", || locked(&cluster.log.evictions).len() >= 3);
    assert_eq!(*locked(&cluster.log.evicted), []);
    *locked(&cluster.log.loses_evictions) = false;
    cluster.owner_with(&[1, 2]);
    until("it is told", || *locked(&cluster.log.evicted) == [HostId(3)]);
}

/// Regions are enlarged one host after the other: a fail-over in between has to work.
#[test]
fn a_host_whose_region_is_larger_than_the_others_becomes_the_owner_and_has_members() {
    let mut cluster = DrivenCluster::start_with(true, [64 << 20, 128 << 20, 64 << 20]);
    cluster.write(1, 0..50, 1 << 10);
    // The third host lacks what follows, so the second one has the longest copy.
    cluster.stop(3);
    cluster.write(1, 50..60, 1 << 10);
    cluster.stop(1);
    cluster.run(3);
    assert_eq!(cluster.owner_with(&[2, 3]), 2);
    cluster.write(2, 60..70, 1 << 10);
    cluster.run(1);
    cluster.assert_equal(70);
}
