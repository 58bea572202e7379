//! Changes of a group by operators: a host is added without being counted, and one that counts is
//! removed by an eviction.

use crate::fixture::{PARTITION, evict, held, report, whole};
use crate::two_hosts::Proposer;
use nearstate_cluster::{
    Applied, ClusterLevel, ClusterState, Command, CommandRefusal, CopyState,
    FollowerAcknowledgement, GroupState, HostId, HostInput, Monotonic, Revision, ViewNumber,
};
use std::fmt::Write as _;

/// All of the hosts are full, and groups can be changed.
fn changeable(copies: u8) -> ClusterState {
    let mut state = whole(copies, 2);
    state.apply(&Command::Finalize { level: ClusterLevel::GROUP_CHANGES });
    state
}

fn group(state: &ClusterState) -> &GroupState {
    state.group(PARTITION).unwrap()
}

fn add(state: &mut ClusterState, host: u16) -> Applied {
    let (revision, host) = (group(state).revision(), HostId(host));
    state.apply(&Command::AddMember { partition: PARTITION, revision, host })
}

fn remove(state: &mut ClusterState, host: u16) -> Applied {
    let (revision, host) = (group(state).revision(), HostId(host));
    state.apply(&Command::RemoveMember { partition: PARTITION, revision, host })
}

fn full(state: &mut ClusterState, host: u16) -> Applied {
    let (revision, host) = (group(state).revision(), HostId(host));
    state.apply(&Command::Full { partition: PARTITION, revision, host })
}

/// The groups of the state, as one line.
fn shown(state: &ClusterState) -> String {
    let group = group(state);
    let mut text = String::new();
    for (name, hosts) in [
        ("group", group.group().to_vec()),
        ("full", group.full().iter().copied().collect()),
        ("leaving", group.leaving().iter().copied().collect()),
    ] {
        let hosts: Vec<u16> = hosts.iter().map(|host: &HostId| host.0).collect();
        let _ = write!(text, "{name} {hosts:?} ");
    }
    text
}

#[test]
fn a_host_is_added_counts_later_and_another_one_leaves_by_its_eviction() {
    let mut state = changeable(3);
    assert_eq!(add(&mut state, 4), Applied::MemberAdded(HostId(4)));
    assert_eq!(shown(&state), "group [1, 2, 3, 4] full [1, 2, 3] leaving [] ");
    let twice = add(&mut state, 4);
    assert_eq!(twice, Applied::Refused(CommandRefusal::AlreadyMember));
    assert_eq!(full(&mut state, 4), Applied::Full(HostId(4)));
    let needed = group(&state).reports_needed();
    assert_eq!(needed, 3, "a seal meets every majority of four copies");

    assert_eq!(remove(&mut state, 3), Applied::MemberLeaving(HostId(3)));
    assert_eq!(shown(&state), "group [1, 2, 3, 4] full [1, 2, 3, 4] leaving [3] ");
    assert_eq!(group(&state).reports_needed(), needed, "it counts until it is evicted");
    let again = remove(&mut state, 3);
    assert_eq!(again, Applied::Refused(CommandRefusal::AlreadyLeaving));
    // A snapshot has it.
    assert_eq!(ClusterState::decode(&state.encode()), Ok(state.clone()));
    let revision = group(&state).revision();
    assert_eq!(state.apply(&evict(revision, 3)), Applied::MemberRemoved(HostId(3)));
    assert_eq!(shown(&state), "group [1, 2, 4] full [1, 2, 4] leaving [] ");
    // Its process is not known any more, and its proposals have no effect.
    assert_eq!(full(&mut state, 3), Applied::Refused(CommandRefusal::NotInGroup));
}

#[test]
fn one_change_follows_the_other() {
    let mut state = changeable(3);
    let revision = group(&state).revision();
    add(&mut state, 4);
    let late = Command::AddMember { partition: PARTITION, revision, host: HostId(5) };
    assert_eq!(state.apply(&late), Applied::Refused(CommandRefusal::OtherRevision));
    let view = ViewNumber(1);
    state.apply(&Command::Exclude { partition: PARTITION, view });
    for change in [add(&mut state, 5), remove(&mut state, 4), remove(&mut state, 3)] {
        assert_eq!(change, Applied::Refused(CommandRefusal::Sealing));
    }
}

#[test]
fn enough_hosts_and_enough_complete_copies_remain() {
    let mut state = changeable(3);
    assert_eq!(remove(&mut state, 1), Applied::Refused(CommandRefusal::Owner));
    assert_eq!(remove(&mut state, 9), Applied::Refused(CommandRefusal::NotInGroup));
    assert_eq!(remove(&mut state, 2), Applied::MemberLeaving(HostId(2)));
    // Two of three would be left, and both must acknowledge.
    assert_eq!(remove(&mut state, 3), Applied::Refused(CommandRefusal::TooFewFull));
    add(&mut state, 4);
    assert_eq!(remove(&mut state, 3), Applied::Refused(CommandRefusal::TooFewFull));
    full(&mut state, 4);
    assert_eq!(remove(&mut state, 3), Applied::MemberLeaving(HostId(3)));
    // One that does not count goes at once, and the mind may be changed about one that leaves.
    add(&mut state, 5);
    assert_eq!(remove(&mut state, 5), Applied::MemberRemoved(HostId(5)));
    assert_eq!(add(&mut state, 3), Applied::MemberAdded(HostId(3)));
    assert_eq!(shown(&state), "group [1, 2, 3, 4] full [1, 2, 3, 4] leaving [2] ");
}

#[test]
fn a_seal_counts_a_host_that_leaves_and_drops_it_if_it_is_shorter_and_not_if_it_owns() {
    for (leaves, positions, expected) in [
        (3, [8, 8, 8], "group [1, 2, 3, 4] full [2, 3, 4] leaving [3] "),
        (3, [8, 6, 8], "group [1, 2, 4] full [2, 4] leaving [] "),
        (3, [8, 9, 8], "group [1, 2, 3, 4] full [3] leaving [] "),
    ] {
        let mut state = changeable(3);
        add(&mut state, 4);
        full(&mut state, 4);
        remove(&mut state, leaves);
        state.apply(&Command::Exclude { partition: PARTITION, view: ViewNumber(1) });
        for (host, position) in (2..).zip(positions) {
            state.apply(&report(2, host, held(1, position)));
        }
        assert_eq!(shown(&state), expected);
        assert_eq!(ClusterState::decode(&state.encode()), Ok(state));
    }
}

/// The copy of a host that does not count may be the last one that an operator can use.
#[test]
fn no_host_is_removed_while_fewer_copies_are_complete_than_must_acknowledge() {
    let mut state = changeable(3);
    add(&mut state, 4);
    full(&mut state, 4);
    state.apply(&Command::Exclude { partition: PARTITION, view: ViewNumber(1) });
    for (host, position) in (2..).zip([8, 9, 8]) {
        state.apply(&report(2, host, held(1, position)));
    }
    assert_eq!(shown(&state), "group [1, 2, 3, 4] full [3] leaving [] ");
    assert_eq!(remove(&mut state, 1), Applied::Refused(CommandRefusal::TooFewFull));
    assert_eq!(full(&mut state, 2), Applied::Full(HostId(2)));
    assert_eq!(remove(&mut state, 1), Applied::MemberRemoved(HostId(1)));
    assert_eq!(shown(&state), "group [2, 3, 4] full [2, 3] leaving [] ");
}

/// Host 1 owns the partition, and the others have acknowledged these positions.
fn owner(state: &ClusterState, positions: &[(u16, u64)]) -> Proposer {
    let mut owner = Proposer::start(1, 0, CopyState::Owner { origin: ViewNumber(1) });
    owner.step(0, HostInput::State(state));
    for (connection, &(host, _)) in (1..).zip(positions) {
        let (partition, host, view) = (PARTITION, HostId(host), ViewNumber(1));
        owner.step(1, HostInput::Connected { partition, host, view, connection });
    }
    for (connection, &(host, position)) in (1..).zip(positions) {
        let acknowledgement = FollowerAcknowledgement {
            host: HostId(host),
            view: ViewNumber(1),
            connection,
            position: Some(position),
            stamp: Monotonic(1_000_000),
        };
        owner.step(2, HostInput::Acknowledged { partition: PARTITION, acknowledgement });
    }
    owner
}

#[test]
fn an_owner_evicts_a_member_that_leaves_when_the_others_hold_what_is_replicated() {
    let mut state = changeable(3);
    let revision = Revision(group(&state).revision().0 + 1);
    remove(&mut state, 3);
    assert_eq!(group(&state).revision(), revision);
    // Position 9 is replicated by the member that leaves alone: the other one has 8.
    let mut behind = owner(&state, &[(3, 9), (2, 8)]);
    behind.tick(3, 50);
    assert_eq!(behind.proposed, []);
    let mut ready = owner(&state, &[(3, 9), (2, 9)]);
    ready.tick(3, 50);
    assert_eq!(ready.proposed, [evict(revision, 3)]);
    // Without an operator it stays.
    let mut quiet = owner(&changeable(3), &[(3, 9), (2, 9)]);
    quiet.tick(3, 50);
    assert_eq!(quiet.proposed, []);
}
