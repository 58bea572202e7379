//! A host that owns a partition and has not had a lease yet.

use nearstate_model::Error;
use nearstate_store::{OwnerLease, ReadLevel};

use crate::partition::{TestHost, WAIT_MAX, group, ue};

/// An attached process does not read as if the host owned the partition.
fn assert_is_no_owner(host: &TestHost) {
    let session = host.session();
    assert_eq!(session.owner_lease().unwrap(), OwnerLease::Expired, "{}", host.name);
    let read = session.read_at(ue(&session), ReadLevel::Owner, WAIT_MAX, || Ok(()));
    assert!(matches!(read, Err(Error::Fenced { .. })), "{}: {read:?}", host.name);
}

/// It may be cut off, and the members have made another host the owner.
#[test]
fn a_host_answers_no_read_of_the_owner_before_its_first_lease() {
    let [owner, mut heir, other] = group("first-lease");
    assert_is_no_owner(&owner);
    drop(other);
    owner.partition.stop_serving();
    let seal = heir.frozen(2);
    heir.own(2, Some(seal));
    assert_is_no_owner(&heir);
    // Nor behind a restart before the first lease, which also refuses writers.
    let heir = heir.restarted();
    assert_is_no_owner(&heir);
    assert!(heir.partition.state().unwrap().is_fenced);
}
