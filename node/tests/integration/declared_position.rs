//! Positions of the log without an entry, such as that of the declaration of a namespace.

use nearstate_store::{ReceiptState, Schema};

use crate::partition::{group, replicate, until};

#[test]
fn a_position_without_an_entry_that_was_replicated_is_replicated_at_the_next_owner() {
    let [mut old, mut heir, mut other] = group("declared");
    let session = old.session();
    session.namespace("declared", &Schema::default()).unwrap();
    let receipt = session.receipt_of_all().unwrap();
    replicate(1, &mut old, &mut [&mut heir, &mut other]);
    // One member suffices for that, and it may be the other one.
    until(1, &mut [&mut old, &mut heir, &mut other], |hosts| {
        let following = hosts[1].partition.state().unwrap().following;
        following.is_some_and(|following| following.reached >= receipt.position())
    });
    let following = heir.partition.state().unwrap().following.unwrap();
    assert!(following.applied.position < receipt.position(), "it is the last entry");
    assert!(following.reached >= receipt.position());
    old.partition.stop_serving();
    heir.partition.stop_following();
    let seal = heir.frozen(2);
    heir.own(2, Some(seal));
    other.follow(2, &heir, false);
    replicate(2, &mut heir, &mut [&mut other]);
    assert_eq!(heir.session().receipt_state(receipt).unwrap(), ReceiptState::Replicated);
}
