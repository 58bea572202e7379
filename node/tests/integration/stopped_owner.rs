//! The node of an owner is stopped, and processes of its host go on.

use std::time::Duration;

use nearstate_model::Error;
use nearstate_store::lease_clock;

use crate::partition::{TestHost, put, ue};

#[test]
fn writers_are_refused_from_the_stop_of_the_owners_node_on() {
    for lease in [Duration::from_secs(3600), Duration::ZERO] {
        let mut owner = TestHost::new("stopped");
        put(&owner.session(), 0..10);
        owner.own(1, None);
        owner.partition.set_lease(lease_clock() + lease).unwrap();
        let session = owner.session();
        // Without a lease they are refused before.
        if !lease.is_zero() {
            put(&session, 10..20);
        }
        drop(owner);
        let late = session.put(ue(&session), b"late", b"v");
        assert!(matches!(late, Err(Error::Fenced { .. })), "{lease:?}: {late:?}");
    }
}
