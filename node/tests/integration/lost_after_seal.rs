//! The only copy that counts is lost, and another one has what was sealed (rule 6 of decision 026).

use nearstate_cluster::{ClusterLevel, Command, HostId};
use nearstate_store::{CreateOptions, ReceiptState, Region};

use crate::cluster_driver::{DrivenCluster, PARTITION, until};
use crate::partition::{contents, group, has_all, joins, put, replicate, until as until_all};

/// Host 1 owns 50 records, and all copies are equal. It is lost while host 3 is away. So host 2
/// alone counts, and then loses its region. `other` runs again.
fn recover_with(other: u16) {
    let mut cluster = DrivenCluster::start();
    cluster.log.append(&Command::Finalize { level: ClusterLevel::HIGHEST }.encode());
    cluster.write(1, 0..50, 100);
    cluster.assert_equal(50);
    cluster.stop(3);
    assert_eq!(cluster.owner_with(&[1, 2]), 1);
    cluster.stop(1);
    until("host 2 alone counts", || {
        let group = cluster.host(2).driver.group(PARTITION);
        group.is_some_and(|group| group.owner() == Some(HostId(2)) && group.full().len() == 1)
    });
    cluster.stop(2);
    let path = cluster.region(2);
    std::fs::remove_file(&path).unwrap();
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    drop(Region::create(&path, &options).unwrap());
    cluster.run(2);
    until("host 2 gives up", || {
        let group = cluster.host(2).driver.group(PARTITION);
        group.is_some_and(|group| group.excluded() == Some(HostId(2)))
    });
    cluster.run(other);
    let mut counted = [2, other];
    counted.sort_unstable();
    assert_eq!(cluster.owner_with(&counted), other);
    cluster.write(other, 50..60, 100);
    // The third one returns, and joins or goes on.
    cluster.run(if other == 1 { 3 } else { 1 });
    cluster.assert_equal(60);
}

#[test]
fn the_former_owner_goes_on_with_its_log_that_ends_at_the_seal() {
    recover_with(1);
}

#[test]
fn a_member_that_was_evicted_takes_over_with_what_was_sealed() {
    recover_with(3);
}

/// Orders are repeated until their result is seen.
#[test]
fn an_owner_that_is_demoted_at_the_seal_again_keeps_its_records_and_takes_over() {
    let [mut owner, one, mut other] = group("demoted");
    drop(one);
    put(&owner.session(), 0..50);
    replicate(1, &mut owner, &mut [&mut other]);
    until_all(1, &mut [&mut owner, &mut other], |hosts| has_all(hosts[0], hosts[1]));
    let before = contents(&owner.session());
    let seal = owner.frozen(2);
    assert_eq!(other.frozen(2), seal);
    owner.take_inputs(1);
    other.take_inputs(1);
    for _ in 0..2 {
        owner.partition.demote(2, Some(seal)).unwrap();
        assert_eq!(contents(&owner.session()), before);
    }
    assert_eq!(owner.frozen(3), seal);
    owner.own(3, Some(seal));
    put(&owner.session(), 500..510);
    // Members at the seal go on, and discard nothing.
    let joined = joins(&other);
    other.follow(3, &owner, false);
    until_all(3, &mut [&mut owner, &mut other], |hosts| has_all(hosts[0], hosts[1]));
    assert_eq!(joins(&other), joined);
}

/// While nothing is decided its copy may be the only one that has these commits.
#[test]
fn receipts_of_an_owner_that_becomes_a_copy_wait_until_other_hosts_have_the_commits() {
    let [mut owner, one, mut other] = group("pending");
    drop(one);
    let writer = owner.session();
    put(&writer, 0..50);
    replicate(1, &mut owner, &mut [&mut other]);
    other.partition.stop_following();
    put(&writer, 50..60);
    let receipt = writer.receipt_of_all().unwrap();
    let seal = owner.frozen(2);
    owner.partition.demote(2, Some(seal)).unwrap();
    assert_eq!(writer.receipt_state(receipt).unwrap(), ReceiptState::Pending);
    owner.own(3, Some(seal));
    assert_eq!(writer.receipt_state(receipt).unwrap(), ReceiptState::Pending);
    other.follow(3, &owner, false);
    replicate(3, &mut owner, &mut [&mut other]);
    assert_eq!(writer.receipt_state(receipt).unwrap(), ReceiptState::Replicated);
}
