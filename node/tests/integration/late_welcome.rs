//! A welcome that arrives when its view has ended.

use std::net::TcpListener;

use nearstate_node::{FollowTarget, PartitionInput};
use nearstate_store::FollowState;
use nearstate_wire::{Message, Start, Welcome};

use crate::hostile_peers::Intruder;
use crate::partition::{WAIT_MAX, group, has_all, replicate, until};

#[test]
fn a_member_learns_how_far_the_promotion_of_its_owner_is() {
    let [mut old, mut heir, mut other] = group("slow-heir");
    replicate(1, &mut old, &mut [&mut heir, &mut other]);
    let (log, seal) = heir.frozen(2);
    assert_eq!(other.frozen(2), (log, seal));
    heir.partition.promote(2, Some((log, seal))).unwrap();
    // It does not serve yet.
    other.follow(2, &heir, false);
    let told = std::iter::from_fn(|| other.inputs.recv_timeout(WAIT_MAX).ok()).find_map(|input| {
        let PartitionInput::OwnerPromotes { view: 2, steps } = input else { return None };
        Some(steps)
    });
    assert!(told.is_some_and(|steps| steps > 0), "{told:?}");
    heir.partition.serve(2).unwrap();
    heir.partition.set_fenced(false).unwrap();
    until(2, &mut [&mut heir, &mut other], |hosts| has_all(hosts[0], hosts[1]));
}

#[test]
fn a_frozen_copy_is_not_discarded_by_a_welcome_of_an_earlier_view() {
    let [mut owner, mut one, mut other] = group("late");
    replicate(1, &mut owner, &mut [&mut one, &mut other]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = &listener.local_addr().unwrap().to_string();
    let target = FollowTarget { view: 1, name: "owner", address, clients: None, discards: false };
    one.partition.follow(&target).unwrap();
    let mut source = Intruder::accepted(listener.accept().unwrap().0);
    let place = source.receive(|message| {
        let Message::Hello(hello) = message else { return None };
        Some(hello.place)
    });
    let before = one.frozen(2);
    // The log has forgotten what the member lacks.
    source.send(&Message::Welcome(Welcome {
        place: place.unwrap(),
        source_id: [9; 16],
        incarnation: 1,
        origin: 1,
        start: Start::Join,
        heap_bytes: 1 << 20,
        name: "owner",
    }));
    assert_eq!(source.receive(|_| None::<()>), None);
    let following = one.partition.state().unwrap().following.unwrap();
    assert_eq!(following.state, FollowState::Full);
    assert_eq!(one.frozen(2), before);
    assert_eq!(crate::partition::contents(&one.session()).len(), 100);
}
