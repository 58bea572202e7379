//! The file of a region is replaced by a copy of an earlier moment: it counts as lost at once, also
//! if no host that is connected has more.

use std::sync::Arc;
use std::time::Duration;

use nearstate_cluster::{Command, HostId, ViewNumber};
use nearstate_store::{CreateOptions, OwnerLease, Region, lease_clock};

use crate::cluster_driver::{DrivenCluster, PARTITION, locked, status, until};
use crate::partition::{TestHost, contents, put};

/// A cluster of which all hosts have 150 records, and have stopped. The files of these hosts are
/// copies of an earlier moment, with the first 50 only.
fn restored(victims: &[u16]) -> DrivenCluster {
    let mut cluster = DrivenCluster::start();
    cluster.write(1, 0..50, 100);
    cluster.assert_equal(50);
    let older = |cluster: &DrivenCluster, victim| cluster.region(victim).with_extension("older");
    // Their nodes run meanwhile, so there is no fail-over.
    for victim in victims {
        std::fs::copy(cluster.region(*victim), older(&cluster, *victim)).unwrap();
    }
    cluster.write(1, 50..150, 100);
    cluster.assert_equal(150);
    for host in [3, 2, 1] {
        cluster.stop(host);
    }
    for victim in victims {
        std::fs::rename(older(&cluster, *victim), cluster.region(*victim)).unwrap();
    }
    cluster
}

fn excludes(command: &Command) -> bool {
    matches!(command, Command::Exclude { .. })
}

#[test]
fn an_owner_in_a_copied_file_gives_up_before_a_member_is_there() {
    let mut cluster = restored(&[1]);
    assert_eq!(cluster.log.count(excludes), 0);
    cluster.run(1);
    until("it gives up", || cluster.log.count(excludes) > 0);
    assert_eq!(*locked(&cluster.log.copied), [HostId(1)]);
    cluster.run(3);
    cluster.run(2);
    cluster.assert_equal(150);
    let owner = cluster.owner_with(&[1, 2, 3]);
    cluster.write(owner, 150..170, 100);
    cluster.assert_equal(170);
    // The file that has joined is the one that is bound.
    cluster.stop(1);
    cluster.run(1);
    cluster.assert_equal(170);
    assert_eq!(*locked(&cluster.log.copied), [HostId(1)]);
}

#[test]
fn a_member_in_a_copied_file_does_not_report_it() {
    let mut cluster = restored(&[1, 3]);
    let registers =
        |command: &Command| matches!(command, Command::Register { host, .. } if *host == HostId(3));
    let before = cluster.log.count(registers);
    cluster.run(3);
    cluster.run(1);
    until("both are lost", || {
        cluster.log.count(excludes) > 0 && cluster.log.count(registers) > before
    });
    // Too few copies are left to decide: an operator names the one that has everything.
    cluster.run(2);
    until("it knows its view", || status(cluster.host(2)).is_some_and(|of| of.view == 2));
    let (partition, view, host) = (PARTITION, ViewNumber(2), HostId(2));
    until("the loss is accepted", || {
        cluster.log.append(&Command::AcceptLoss { partition, view, host }.encode());
        status(cluster.host(2)).is_some_and(|status| status.loss.is_some())
    });
    cluster.assert_equal(150);
    assert_eq!(cluster.owner_with(&[1, 2, 3]), 2);
}

#[test]
fn a_copied_file_that_is_all_that_is_left_begins_the_partition_anew_by_force() {
    let folder = Arc::new(tempfile::tempdir_in("/dev/shm").unwrap());
    let path = folder.path().join("region");
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    drop(Region::create(&path, &options).unwrap());
    let start =
        || TestHost::start("copied-file-a", Region::attach(&path).unwrap(), Arc::clone(&folder));
    let mut host = start();
    host.own(1, None);
    put(&host.session(), 0..100);
    host.partition.set_lease(lease_clock() + Duration::from_hours(1)).unwrap();
    assert!(matches!(host.session().owner_lease().unwrap(), OwnerLease::Held { .. }));
    drop(host);
    let copy = folder.path().join("copy");
    std::fs::copy(&path, &copy).unwrap();
    std::fs::rename(&copy, &path).unwrap();
    // Before a node opens it, its lease counts for nothing.
    let region = Region::attach(&path).unwrap();
    assert_eq!(region.session().unwrap().owner_lease().unwrap(), OwnerLease::Expired);
    drop(region);
    let mut host = start();
    let state = host.partition.state().unwrap();
    assert!(state.is_copied_file && !state.is_bound, "{state:?}");
    host.own(3, None);
    let state = host.partition.state().unwrap();
    assert!(state.is_bound && !state.is_copied_file && state.own.origin == 3, "{state:?}");
    assert_eq!(contents(&host.session()).len(), 100);
    put(&host.session(), 0..100);
}
