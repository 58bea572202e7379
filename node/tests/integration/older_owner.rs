//! An owner returns within its lease, with the content of its region from before its last commits,
//! in the same file. Another file is found at once: `copied_file.rs`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nearstate_model::Error;
use nearstate_store::{FollowPosition, OwnerLease, Region, Schema, lease_clock};
use nearstate_wire::Hello;

use crate::cluster_driver::{DrivenCluster, status, until};
use crate::hostile_peers::{Intruder, hello_of};
use crate::partition::CLUSTER;

/// A copy of the owner's file. Its node runs meanwhile, so there is no fail-over.
fn copy_of_owner(cluster: &DrivenCluster, full: &[u16]) -> PathBuf {
    let older = cluster.region(1).with_extension("older");
    assert_eq!(cluster.owner_with(full), 1);
    std::fs::copy(cluster.region(1), &older).unwrap();
    older
}

/// The content of before in the same file: the region does not count as a copy of its file.
fn restore(older: &Path, region: &Path) {
    std::fs::copy(older, region).unwrap();
}

/// The owner's node ends, and its file becomes that of before. Only the second host has what was
/// committed since, and it counts.
fn lose_with_one_holder(is_evicted: bool) {
    let mut cluster = DrivenCluster::start();
    cluster.write(1, 0..50, 100);
    if is_evicted {
        cluster.stop(3);
        cluster.owner_with(&[1, 2]);
    }
    let full: &[u16] = if is_evicted { &[1, 2] } else { &[1, 2, 3] };
    let older = copy_of_owner(&cluster, full);
    if !is_evicted {
        cluster.stop(3);
    }
    cluster.write(1, 50..150, 100);
    cluster.stop(1);
    restore(&older, &cluster.region(1));
    cluster.run(1);
    cluster.run(3);
    cluster.assert_equal(150);
    let owner = cluster.owner_with(&[1, 2, 3]);
    cluster.write(owner, 150..170, 100);
    cluster.assert_equal(170);
}

#[test]
fn a_member_that_joins_does_not_let_an_older_owner_win() {
    lose_with_one_holder(true);
}

#[test]
fn a_member_that_lags_does_not_let_an_older_owner_win() {
    lose_with_one_holder(false);
}

#[test]
fn a_restarted_owner_serves_nothing_before_a_member_has_answered_it() {
    let mut cluster = DrivenCluster::start();
    cluster.write(1, 0..50, 100);
    let older = copy_of_owner(&cluster, &[1, 2, 3]);
    cluster.write(1, 50..150, 100);
    for host in [1, 2, 3] {
        cluster.stop(host);
    }
    // Its file says that it has a lease for longer than this test lasts.
    restore(&older, &cluster.region(1));
    let region = Region::attach(&cluster.region(1)).unwrap();
    let session = region.session().unwrap();
    session.set_owner_lease(lease_clock() + Duration::from_hours(1)).unwrap();
    session.set_fenced(false).unwrap();
    cluster.run(1);
    let ue = session.namespace("ue", &Schema::default()).unwrap();
    let serves_nothing = || {
        let refused = session.put(ue, b"k", b"v");
        assert!(matches!(refused, Err(Error::Fenced { .. })), "{refused:?}");
        assert_eq!(session.owner_lease().unwrap(), OwnerLease::Expired);
    };
    serves_nothing();
    until("it serves members", || {
        serves_nothing();
        status(cluster.host(1)).is_some_and(|status| status.role == "fenced")
    });
    // What it has ordered with its first step is carried out meanwhile.
    for _ in 0..1_000 {
        serves_nothing();
        std::thread::yield_now();
    }
    drop((session, region));
    cluster.run(2);
    cluster.run(3);
    cluster.assert_equal(150);
}

/// What a member has said once holds for later processes: otherwise the next one could serve with
/// the help of a member that has no more than the region.
#[test]
fn an_owner_that_has_given_up_does_not_begin_again() {
    let mut cluster = DrivenCluster::start();
    cluster.write(1, 0..50, 100);
    let older = copy_of_owner(&cluster, &[1, 2, 3]);
    cluster.write(1, 50..150, 100);
    cluster.assert_equal(150);
    for host in [3, 2, 1] {
        cluster.stop(host);
    }
    restore(&older, &cluster.region(1));
    cluster.run(1);
    until("it serves members", || {
        status(cluster.host(1)).is_some_and(|status| status.role == "fenced")
    });
    let own = cluster.host(1).region.session().unwrap().log_identity().unwrap();
    let view = status(cluster.host(1)).unwrap().view;
    let mut member = Intruder::connect(cluster.address(1));
    let ahead = FollowPosition { position: 1 << 40, check: 1 };
    member.say(&hello_of(own, ("driver-b", view), ahead));
    let refused = member.refused();
    assert!(refused.starts_with("fork"), "{refused}");
    let region = Region::attach(&cluster.region(1)).unwrap();
    let session = region.session().unwrap();
    until("the region is given up", || !session.is_bound(CLUSTER).unwrap());
    assert!(!session.is_copied_file());
    drop((session, region));
    cluster.stop(1);
    // It is started before the members that have more.
    cluster.run(1);
    cluster.run(3);
    cluster.run(2);
    cluster.assert_equal(150);
}

#[test]
fn only_a_host_that_counts_makes_an_owner_give_up() {
    let mut cluster = DrivenCluster::start();
    cluster.write(1, 0..50, 100);
    cluster.stop(3);
    assert_eq!(cluster.owner_with(&[1, 2]), 1);
    let before = status(cluster.host(1)).unwrap();
    let own = cluster.host(1).region.session().unwrap().log_identity().unwrap();
    let ahead = FollowPosition { position: 1 << 40, check: 1 };
    let view = before.view;
    for (name, view, reason) in [
        // It was evicted.
        ("driver-c", view, "fork"),
        ("driver-d", view, "cluster"),
        ("driver-c", view + 1, "view"),
    ] {
        let mut intruder = Intruder::connect(cluster.address(1));
        intruder.say(&hello_of(own, (name, view), ahead));
        let refused = intruder.refused();
        assert!(refused.starts_with(reason), "{name}: {refused}");
    }
    // Of another log it gets all records.
    let mut intruder = Intruder::connect(cluster.address(1));
    let incarnation = own.incarnation + 1;
    intruder.say(&Hello { incarnation, ..hello_of(own, ("driver-c", view), ahead) });
    assert!(intruder.is_welcome());
    drop(intruder);
    cluster.write(1, 50..60, 100);
    let after = status(cluster.host(1)).unwrap();
    assert_eq!((after.view, after.role), (view, before.role));
}
