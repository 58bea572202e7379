//! How long a member waits for a message of the owner.

use crate::fixture::{PARTITION, held, report, suspect, whole};
use crate::two_hosts::Proposer;
use nearstate_cluster::limits::{FIRST_MESSAGE_LEASES, PROMOTION_LEASES};
use nearstate_cluster::{
    ClusterState, Command, CopyState, HostInput, Monotonic, OwnerMessage, ViewNumber,
};

const LEASE_MS: u64 = 300;
const VIEW: ViewNumber = ViewNumber(2);

/// Host 2 owns the partition behind the loss of host 1, and host 3 is full as well.
fn taken_over() -> ClusterState {
    let mut state = whole(3, 2);
    state.apply(&Command::Exclude { partition: PARTITION, view: ViewNumber(1) });
    state.apply(&report(2, 2, held(1, 5)));
    state.apply(&report(2, 3, held(1, 5)));
    let group = state.group(PARTITION).unwrap();
    assert_eq!(group.owner(), Some(nearstate_cluster::HostId(2)));
    state
}

/// When host 3 suspects an owner that tells the steps of its promotion once a lease, in whole
/// leases after the decision.
fn suspected_at(steps: impl Fn(u64) -> Option<u64>) -> u64 {
    let mut member = Proposer::start(3, 1_000, CopyState::Follower(held(1, 5)));
    let state = taken_over();
    member.step(1_000, HostInput::State(&state));
    // The copy is frozen in each view before its host acts.
    let (partition, view) = (PARTITION, VIEW);
    member.step(1_000, HostInput::Frozen { partition, view, held: held(1, 5) });
    for lease in 1..=2 * PROMOTION_LEASES {
        let begin = (lease - 1) * LEASE_MS;
        if let Some(steps) = steps(lease) {
            member.step(1_000 + begin, HostInput::OwnerPromotes { partition, view, steps });
        }
        for part in 1..=8 {
            member.step(1_000 + begin + part * LEASE_MS / 8, HostInput::Tick);
        }
        if member.proposed.contains(&suspect(2, 3)) {
            return lease - 1;
        }
    }
    panic!("it is never suspected");
}

#[test]
fn an_owner_that_goes_on_with_its_promotion_is_not_suspected_for_a_while() {
    let silent = suspected_at(|_| None);
    assert_eq!(silent, FIRST_MESSAGE_LEASES);
    // The same number of steps is no progress.
    assert!(suspected_at(|_| Some(1)) <= silent + 1);
    assert!(suspected_at(|lease| Some(lease.min(50))) >= 50 + silent - 1);
    // A node that is started again promotes its copy from the beginning.
    let again = |lease: u64| Some(if lease < 10 { 100 + lease } else { (lease - 9).min(20) });
    assert!(suspected_at(again) >= 9 + 20 + silent - 1);
    let slow = suspected_at(|lease| Some(lease / (silent - 1)));
    assert!((PROMOTION_LEASES..=PROMOTION_LEASES + 2 * silent).contains(&slow), "{slow}");
}

/// When a member that has heard the owner at 1,000 ms suspects it, if its driver works at these
/// times only.
fn suspects_at(worked_ms: impl Iterator<Item = u64>) -> Option<u64> {
    let mut member = Proposer::start(3, 1_000, CopyState::Follower(held(1, 5)));
    let state = whole(3, 2);
    member.step(1_000, HostInput::State(&state));
    let (partition, view) = (PARTITION, ViewNumber(1));
    member.step(1_000, HostInput::Frozen { partition, view, held: held(1, 5) });
    let (stamp, answered) = (Monotonic(1), Monotonic::BOOT);
    let message = OwnerMessage { view, stamp, answered, is_leased: true };
    member.step(1_000, HostInput::PositionReceived { partition, message });
    for at in worked_ms {
        member.step(at, HostInput::Tick);
        if member.proposed.contains(&suspect(1, 3)) {
            return Some(at);
        }
    }
    None
}

#[test]
fn a_pause_of_a_member_excuses_the_owner_once() {
    let ticks = |from: u64| (from..from + 10 * LEASE_MS).step_by(10);
    let first = ticks(1_010).find(|at| *at > 1_000 + LEASE_MS);
    assert_eq!(suspects_at(ticks(1_010)), first);
    // Messages that have come in a pause are not processed at its end.
    let paused = 1_000 + 5 * LEASE_MS;
    assert_eq!(suspects_at(ticks(paused)), Some(paused + LEASE_MS + 10));
    // A driver that is late again and again has had the time to take them.
    let late = (1_000..).step_by(200).skip(1).take(100);
    assert_eq!(suspects_at(late), Some(1_600));
}
