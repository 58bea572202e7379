//! A host that was removed from a group while its node was down.

use std::time::Duration;

use nearstate_cluster::{ClusterLevel, Command, HostId};
use nearstate_model::Error;
use nearstate_store::{Receipt, ReceiptState, Region, Schema, Session, lease_clock};

use crate::cluster_driver::{DrivenCluster, PARTITION, locked, status, until};
use crate::partition::WAIT_MAX;

/// Looks for something that must not happen.
const LOOKS: u32 = 200;

/// Proposes a change of the group until its state shows that it is made.
fn change(cluster: &DrivenCluster, at: u16, host: u16, is_member: bool) {
    let (partition, host) = (PARTITION, HostId(host));
    until("the group is changed", || {
        let Some(group) = cluster.host(at).driver.group(PARTITION) else { return false };
        let revision = group.revision();
        let is_done = group.group().contains(&host) == is_member;
        if !is_done {
            let command = if is_member {
                Command::AddMember { partition, revision, host }
            } else {
                Command::RemoveMember { partition, revision, host }
            };
            cluster.log.append(&command.encode());
        }
        is_done
    });
}

/// The owner, host 1, stops with a commit that no member has, and is removed from the group.
/// Returns a session of its region, the receipt, and the owner then.
fn leave_with_a_commit(cluster: &mut DrivenCluster) -> (Session, Receipt, u16) {
    cluster.stop(1);
    let session = Region::attach(&cluster.region(1)).unwrap().session().unwrap();
    // As behind a kill of its node: a stop refuses writers, and the lease lasts as long as the test
    // needs.
    session.set_fenced(false).unwrap();
    session.set_owner_lease(lease_clock() + Duration::from_secs(3600)).unwrap();
    let ue = session.namespace("ue", &Schema::default()).unwrap();
    session.put(ue, b"on one host", b"v").unwrap();
    let receipt = session.receipt_of_all().unwrap();
    let owner = cluster.owner_with(&[2, 3]);
    change(cluster, owner, 1, false);
    (session, receipt, owner)
}

/// Nothing will decide what it had committed and not replicated, so a process that waits for that
/// must learn it.
#[test]
fn a_host_that_was_removed_from_a_group_gives_up_its_receipts() {
    let mut cluster = DrivenCluster::start();
    cluster.log.append(&Command::Finalize { level: ClusterLevel::HIGHEST }.encode());
    cluster.write(1, 0..50, 100);
    cluster.assert_equal(50);
    let (session, receipt, owner) = leave_with_a_commit(&mut cluster);
    assert_eq!(session.receipt_state(receipt).unwrap(), ReceiptState::Pending);
    cluster.run(1);
    until("the receipt is decided", || {
        session.receipt_state(receipt).unwrap() == ReceiptState::Unknown
    });
    assert!(session.is_fenced().unwrap());
    // As a member it gets what the group has, and its answer stays.
    change(&cluster, owner, 1, true);
    cluster.write(owner, 50..60, 100);
    cluster.assert_equal(60);
    assert_eq!(session.receipt_state(receipt).unwrap(), ReceiptState::Unknown);
}

/// The same of what it is asked of the owner's log.
#[test]
fn a_copy_that_was_removed_from_a_group_gives_up_receipts_of_the_log_that_it_has_followed() {
    let cluster = DrivenCluster::start();
    cluster.log.append(&Command::Finalize { level: ClusterLevel::HIGHEST }.encode());
    cluster.write(1, 0..50, 100);
    cluster.assert_equal(50);
    let receipt = cluster.host(1).region.session().unwrap().receipt_of_all().unwrap();
    let session = Region::attach(&cluster.region(3)).unwrap().session().unwrap();
    assert_eq!(session.receipt_state(receipt).unwrap(), ReceiptState::Pending);
    let waiting = std::thread::scope(|scope| {
        let session = Region::attach(&cluster.region(3)).unwrap().session().unwrap();
        let waiting = scope.spawn(move || session.wait_replicated(receipt, WAIT_MAX));
        change(&cluster, 1, 3, false);
        waiting.join().unwrap().unwrap()
    });
    assert_eq!(waiting, ReceiptState::Unknown);
    assert_eq!(session.receipt_state(receipt).unwrap(), ReceiptState::Unknown);
    // It has what it had, and gets nothing more.
    let limit = Duration::ZERO;
    session.wait_applied(receipt, limit).unwrap();
    let later = Receipt::from_parts(receipt.position() + 1_000, receipt.incarnation());
    let refused = session.wait_applied(later, limit).unwrap_err();
    assert!(matches!(refused, Error::OutcomeUnknown { .. }), "{refused}");
    // As a member it waits for the owner's answer again.
    change(&cluster, 1, 3, true);
    cluster.write(1, 50..60, 100);
    cluster.assert_equal(60);
    assert_eq!(session.receipt_state(receipt).unwrap(), ReceiptState::Pending);
}

/// After a start the state may be older than what the process before has acted in, which may have
/// been a member again: the record in the region shows it.
#[test]
fn a_removal_of_an_older_state_gives_up_nothing() {
    let mut cluster = DrivenCluster::start();
    cluster.log.append(&Command::Finalize { level: ClusterLevel::HIGHEST }.encode());
    let (session, receipt, owner) = leave_with_a_commit(&mut cluster);
    let view = cluster.host(owner).driver.group(PARTITION).unwrap().view().0;
    session.see_view(view + 1).unwrap();
    cluster.run(1);
    until("it knows the state", || {
        let group = cluster.host(1).driver.group(PARTITION);
        group.is_some_and(|group| !group.group().contains(&HostId(1)))
    });
    for _ in 0..LOOKS {
        assert_eq!(session.receipt_state(receipt).unwrap(), ReceiptState::Pending);
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// It has no part in a fail-over: it learns no decisions, so it neither suspects the owner nor
/// reports what it holds.
#[test]
fn a_member_that_lost_its_vote_does_not_count_although_it_follows() {
    let mut cluster = DrivenCluster::start();
    cluster.write(1, 0..50, 100);
    locked(&cluster.log.removed).insert(3);
    assert_eq!(cluster.owner_with(&[1, 2]), 1);
    cluster.write(1, 50..100, 100);
    for _ in 0..LOOKS {
        assert_eq!(cluster.owner_with(&[1, 2]), 1);
        std::thread::sleep(Duration::from_millis(1));
    }
    cluster.stop(1);
    until("the second host takes over without a report of another one", || {
        let group = cluster.host(2).driver.group(PARTITION);
        group.is_some_and(|group| group.owner() == Some(HostId(2)))
    });
    locked(&cluster.log.removed).remove(&3);
    assert_eq!(cluster.owner_with(&[2, 3]), 2);
    cluster.run(1);
    assert_eq!(cluster.owner_with(&[1, 2, 3]), 2);
    cluster.assert_equal(100);
}

#[test]
fn a_member_that_was_removed_leaves_the_list_of_the_owner() {
    let cluster = DrivenCluster::start();
    cluster.log.append(&Command::Finalize { level: ClusterLevel::HIGHEST }.encode());
    cluster.write(1, 0..50, 100);
    cluster.assert_equal(50);
    let listed = || {
        let members = status(cluster.host(1)).map(|copy| copy.members).unwrap_or_default();
        members.iter().map(|member| member.host.0).collect::<Vec<_>>()
    };
    until("the owner lists its members", || listed() == [2, 3]);
    change(&cluster, 1, 3, false);
    until("the owner lists the one that is left", || listed() == [2]);
}
