//! A drain to a host that the operator names: its copy is taken if it counts and no other one of
//! the quorum is longer.

use crate::fixture::{PARTITION, evict, held, report, whole};
use std::collections::BTreeMap;

use nearstate_cluster::limits::{DRAIN_LEASES, FORCE_LEASES, PREFERENCE_LEASES, YIELD_LEASES};
use nearstate_cluster::{
    Applied, ClusterLevel, ClusterState, Command, CommandRefusal, CopyState, Effects, GroupState,
    Host, HostEffect, HostId, HostInput, Lease, MemberRecord, Monotonic, OperatorGoal,
    OperatorRefusal, OperatorStep, OperatorTask, OperatorWait, RegionState, ViewNumber,
};

const LEASE_NS: u64 = 300_000_000;
const A: HostId = HostId(1);
const B: HostId = HostId(2);
const C: HostId = HostId(3);

fn group(state: &ClusterState) -> &GroupState {
    state.group(PARTITION).unwrap()
}

/// All copies count. The first host is the owner.
fn ready(copies: u8, acknowledgements: u8) -> ClusterState {
    let mut state = whole(copies, acknowledgements);
    state.apply(&Command::Finalize { level: ClusterLevel::HAND_OVERS });
    state
}

fn hand_over(view: u64, host: HostId) -> Command {
    Command::HandOver { partition: PARTITION, view: ViewNumber(view), host }
}

/// The owner of three hosts after these reports of B and C, of which C is preferred.
fn owner_after(reports: [(u16, u64); 2]) -> Option<HostId> {
    let mut state = ready(3, 2);
    assert_eq!(state.apply(&hand_over(1, C)), Applied::Excluded(A));
    assert_eq!((group(&state).preferred(), group(&state).owner()), (Some(C), None));
    for (host, position) in reports {
        state.apply(&report(2, host, held(1, position)));
    }
    assert_eq!(group(&state).preferred(), None);
    group(&state).owner()
}

#[test]
fn of_equal_copies_that_of_the_named_host_is_taken() {
    assert_eq!(owner_after([(2, 7), (3, 7)]), Some(C));
    assert_eq!(owner_after([(3, 7), (2, 7)]), Some(C));
    // A longer one is never given up.
    assert_eq!(owner_after([(2, 8), (3, 7)]), Some(B));
    assert_eq!(owner_after([(2, 7), (3, 8)]), Some(C));
}

#[test]
fn a_host_whose_copy_does_not_count_is_refused_and_nothing_changes() {
    let mut state = ready(4, 2);
    state.apply(&evict(group(&state).revision(), 4));
    let (partition, revision) = (PARTITION, group(&state).revision());
    state.apply(&Command::RemoveMember { partition, revision, host: C });
    for (view, host, refusal) in [
        (1, A, CommandRefusal::Owner),
        (1, C, CommandRefusal::AlreadyLeaving),
        (1, HostId(4), CommandRefusal::NotFull),
        (1, HostId(9), CommandRefusal::NotInGroup),
        (2, B, CommandRefusal::OtherView),
    ] {
        let before = state.clone();
        assert_eq!(state.apply(&hand_over(view, host)), Applied::Refused(refusal));
        assert_eq!(state, before);
    }
}

#[test]
fn a_name_is_for_one_exclusion() {
    let mut state = ready(3, 2);
    state.apply(&hand_over(1, C));
    let sealing = hand_over(2, B);
    assert_eq!(state.apply(&sealing), Applied::Refused(CommandRefusal::Sealing));
    let (partition, view) = (PARTITION, ViewNumber(2));
    state.apply(&Command::Return { partition, view, host: A });
    assert_eq!(group(&state).preferred(), None);
    state.apply(&Command::Exclude { partition, view });
    state.apply(&report(3, 3, held(1, 7)));
    state.apply(&report(3, 2, held(1, 7)));
    assert_eq!(group(&state).owner(), Some(B));
    state.apply(&Command::Full { partition, revision: group(&state).revision(), host: A });
    state.apply(&hand_over(3, A));
    state.apply(&Command::RaiseView {
        partition,
        view: ViewNumber(4),
        revision: group(&state).revision(),
    });
    assert!(group(&state).is_operator_needed());
    assert_eq!(group(&state).preferred(), None);
}

/// When a member with a complete copy reports, in leases after it learned of the exclusion.
fn reports_at(host: HostId, state: &ClusterState) -> Option<u64> {
    let record = MemberRecord { view: ViewNumber(1), ..MemberRecord::NEW };
    let facts = RegionState { copy: CopyState::Follower(held(1, 8)), record, ..RegionState::NEW };
    let (mut member, mut effects) = (Host::new(host, 1, Monotonic(1)), Effects::new());
    let at = |leases: u64| Monotonic(10 * LEASE_NS + leases * LEASE_NS);
    let view = group(state).view();
    for input in [
        HostInput::Region { partition: PARTITION, facts },
        HostInput::State(state),
        HostInput::Frozen { partition: PARTITION, view, held: held(1, 8) },
    ] {
        member.step(at(0), input, &mut effects);
    }
    (0..8).find(|leases| {
        member.step(at(*leases), HostInput::Tick, &mut effects);
        effects.drain().any(|effect| matches!(effect, HostEffect::Propose(Command::Report { .. })))
    })
}

#[test]
fn members_wait_some_time_for_the_report_of_the_named_host() {
    // One report of two would decide.
    let mut state = ready(3, 3);
    assert_eq!(group(&state).reports_needed(), 1);
    let mut chosen_by_rules = state.clone();
    chosen_by_rules.apply(&Command::Exclude { partition: PARTITION, view: ViewNumber(1) });
    let without = reports_at(B, &chosen_by_rules).unwrap();
    assert!(without < YIELD_LEASES, "{without}");
    state.apply(&hand_over(1, C));
    assert_eq!(reports_at(B, &state), Some(YIELD_LEASES));
    assert_eq!(reports_at(C, &state), Some(without));
    // It has reported. With four hosts that is not all that is needed.
    let mut state = ready(4, 2);
    state.apply(&hand_over(1, C));
    state.apply(&report(2, 3, held(1, 8)));
    assert_eq!(reports_at(B, &state), Some(without));
}

/// Of the members that yield to the preferred host, each one with a longer copy has reported then.
#[test]
fn an_operator_decides_only_when_the_members_that_yield_may_have_reported() {
    let mut state = ready(3, 2);
    state.apply(&hand_over(1, C));
    let (partition, view) = (PARTITION, ViewNumber(2));
    let mut reported = state.clone();
    reported.apply(&report(2, 3, held(1, 7)));
    let last = FORCE_LEASES + YIELD_LEASES;
    assert_eq!(reports_at(B, &state), Some(last - FORCE_LEASES));
    for (goal, state, command) in [
        (OperatorGoal::AcceptLoss(C), &reported, Command::AcceptLoss { partition, view, host: C }),
        (OperatorGoal::ForceNew(B), &state, Command::ForceNew { partition, view, host: B }),
    ] {
        let lease = Lease::from_ms(300).unwrap();
        let mut task = OperatorTask::new(goal, group(state), lease, Monotonic(1_000));
        for leases in 0..last {
            let wait = OperatorStep::Wait(OperatorWait::Lease);
            assert_eq!(step(&mut task, leases, state), wait, "{goal:?} after {leases} leases");
        }
        assert_eq!(step(&mut task, last, state), OperatorStep::Propose(command));
    }
}

fn task(to: HostId, state: &ClusterState) -> OperatorTask {
    let lease = Lease::from_ms(300).unwrap();
    OperatorTask::new(OperatorGoal::DrainTo(to), group(state), lease, Monotonic(1_000))
}

/// All hosts are heard, and have everything up to here.
fn all_at(position: u64) -> BTreeMap<HostId, u64> {
    (1..=9).map(|host| (HostId(host), position)).collect()
}

fn step(task: &mut OperatorTask, leases: u64, state: &ClusterState) -> OperatorStep {
    task.step(Monotonic(1_000 + leases * LEASE_NS), group(state), true)
}

#[test]
fn a_drain_to_a_host_that_cannot_take_over_is_refused_before_writers_are() {
    let mut state = ready(4, 2);
    state.apply(&evict(group(&state).revision(), 4));
    let (partition, revision) = (PARTITION, group(&state).revision());
    state.apply(&Command::RemoveMember { partition, revision, host: C });
    for (to, refusal) in [
        (A, OperatorRefusal::AlreadyOwner(A)),
        (HostId(9), OperatorRefusal::NotInGroup(HostId(9))),
        (HostId(4), OperatorRefusal::NotCounted(HostId(4))),
        (C, OperatorRefusal::Leaving(C)),
    ] {
        let mut task = task(to, &state);
        task.members_heard(all_at(8));
        assert_eq!(step(&mut task, 0, &state), OperatorStep::Refused(refusal));
    }
    let mut silent = task(B, &state);
    // One lease may be missed.
    assert_eq!(step(&mut silent, 0, &state), OperatorStep::Wait(OperatorWait::Silent(B)));
    let refused = OperatorStep::Refused(OperatorRefusal::TargetSilent(B));
    assert_eq!(step(&mut silent, 1, &state), refused);
    silent.members_heard(all_at(0));
    assert_eq!(step(&mut silent, 0, &state), OperatorStep::Freeze);
}

/// Without enough reports the partition has no owner until the drained host returns.
#[test]
fn a_drain_is_refused_while_a_member_whose_report_is_needed_is_silent() {
    let drained = |state: &ClusterState, heard: &[u16]| {
        let lease = Lease::from_ms(300).unwrap();
        let mut task =
            OperatorTask::new(OperatorGoal::Drain, group(state), lease, Monotonic(1_000));
        task.members_heard(heard.iter().map(|host| (HostId(*host), 8)).collect());
        let first = step(&mut task, 0, state);
        let second = step(&mut task, 1, state);
        if let OperatorStep::Refused(OperatorRefusal::Silent(host)) = second {
            assert_eq!(first, OperatorStep::Wait(OperatorWait::Silent(host)));
        }
        second
    };
    let silent = |host| OperatorStep::Refused(OperatorRefusal::Silent(host));
    assert_eq!(drained(&ready(2, 2), &[]), silent(B));
    assert_eq!(drained(&ready(2, 2), &[2]), OperatorStep::Freeze);
    // Both of the others must report.
    assert_eq!(drained(&ready(3, 2), &[2]), silent(C));
    assert_eq!(drained(&ready(3, 2), &[2, 3]), OperatorStep::Freeze);
    // One report suffices.
    assert_eq!(drained(&ready(3, 3), &[3]), OperatorStep::Freeze);
    assert_eq!(drained(&ready(3, 3), &[]), silent(B));
}

#[test]
fn an_owner_is_handed_over_when_the_named_host_has_everything() {
    let mut state = ready(3, 2);
    let mut drain = task(C, &state);
    drain.members_heard(all_at(3));
    assert_eq!(step(&mut drain, 0, &state), OperatorStep::Freeze);
    drain.frozen(Monotonic(1_000), 7);
    drain.replicated(7);
    let mut late = drain.clone();
    let wait = OperatorStep::Wait(OperatorWait::Target(C, 4));
    assert_eq!(step(&mut drain, DRAIN_LEASES - 1, &state), wait);
    let behind = OperatorStep::Refused(OperatorRefusal::Behind(C, 4));
    assert_eq!(step(&mut late, DRAIN_LEASES, &state), behind);
    drain.members_heard(all_at(7));
    assert_eq!(step(&mut drain, 1, &state), OperatorStep::Propose(hand_over(1, C)));
    state.apply(&hand_over(1, C));
    assert_eq!(step(&mut drain, 1, &state), OperatorStep::Wait(OperatorWait::Reports));
    let mut other = state.clone();
    for host in [2, 3] {
        state.apply(&report(2, host, held(1, 7)));
    }
    let done = OperatorStep::Done { owner: C, is_by_decision: false };
    assert_eq!(step(&mut drain.clone(), 2, &state), done);
    // Its copy was not what it had said.
    other.apply(&report(2, 3, held(1, 6)));
    other.apply(&report(2, 2, held(1, 7)));
    let refused = OperatorStep::Refused(OperatorRefusal::OtherOwner(B));
    assert_eq!(step(&mut drain, 2, &other), refused);
}

#[test]
fn a_hand_over_that_may_be_ordered_yet_ends_in_an_exclusion() {
    let mut state = ready(3, 2);
    let mut drain = task(C, &state);
    drain.members_heard(all_at(7));
    assert_eq!(step(&mut drain, 0, &state), OperatorStep::Freeze);
    drain.frozen(Monotonic(1_000), 7);
    drain.replicated(7);
    assert_eq!(step(&mut drain, 0, &state), OperatorStep::Propose(hand_over(1, C)));
    // The host falls silent, and is proposed all the same; then it does not count any more.
    drain.members_heard(BTreeMap::new());
    assert_eq!(step(&mut drain, 1, &state), OperatorStep::Propose(hand_over(1, C)));
    state.apply(&evict(group(&state).revision(), 3));
    let exclude = Command::Exclude { partition: PARTITION, view: ViewNumber(1) };
    assert_eq!(step(&mut drain, 1, &state), OperatorStep::Propose(exclude));
}

/// A drain without a name, of which C is preferred. Nothing is refused because of it.
#[test]
fn a_preferred_host_that_cannot_take_over_is_not_waited_for_long() {
    let state = ready(3, 2);
    let exclude = Command::Exclude { partition: PARTITION, view: ViewNumber(1) };
    let preferring = |state: &ClusterState, heard: BTreeMap<HostId, u64>| {
        let (goal, lease) = (OperatorGoal::DrainPreferring(C), Lease::from_ms(300).unwrap());
        let mut drain = OperatorTask::new(goal, group(state), lease, Monotonic(1_000));
        drain.members_heard(heard);
        assert_eq!(step(&mut drain, 0, state), OperatorStep::Freeze);
        drain.frozen(Monotonic(1_000), 7);
        drain.replicated(7);
        drain
    };
    let mut able = preferring(&state, all_at(7));
    assert_eq!(step(&mut able, 0, &state), OperatorStep::Propose(hand_over(1, C)));
    // It falls silent before that is ordered.
    able.members_heard([(B, 7)].into());
    assert_eq!(step(&mut able, 0, &state), OperatorStep::Propose(exclude));

    let mut behind = preferring(&state, [(B, 7), (C, 3)].into());
    let wait = OperatorStep::Wait(OperatorWait::Target(C, 4));
    assert_eq!(step(&mut behind, 0, &state), wait);
    assert_eq!(step(&mut behind, PREFERENCE_LEASES, &state), OperatorStep::Propose(exclude));

    // One report suffices, and that of the preferred host is not heard.
    let state = ready(3, 3);
    let mut silent = preferring(&state, [(B, 7)].into());
    assert_eq!(step(&mut silent, 0, &state), OperatorStep::Propose(exclude));

    let mut evicted = ready(3, 2);
    evicted.apply(&evict(group(&evicted).revision(), 3));
    let mut uncounted = preferring(&evicted, all_at(7));
    assert_eq!(step(&mut uncounted, 0, &evicted), OperatorStep::Propose(exclude));
}

#[test]
fn a_drain_without_a_name_is_done_whichever_member_owns_the_partition() {
    let mut state = ready(3, 2);
    let (goal, lease) = (OperatorGoal::DrainPreferring(C), Lease::from_ms(300).unwrap());
    let mut drain = OperatorTask::new(goal, group(&state), lease, Monotonic(1_000));
    drain.members_heard(all_at(7));
    assert_eq!(step(&mut drain, 0, &state), OperatorStep::Freeze);
    state.apply(&hand_over(1, C));
    state.apply(&report(2, 3, held(1, 6)));
    state.apply(&report(2, 2, held(1, 7)));
    let done = OperatorStep::Done { owner: B, is_by_decision: false };
    assert_eq!(step(&mut drain, 2, &state), done);
}

/// A member may be lost while writers are refused: no other owner would be found then.
#[test]
fn a_member_that_falls_silent_while_writers_are_refused_is_waited_for_and_then_nothing_is_done() {
    let state = ready(2, 2);
    for (goal, refusal, waits) in [
        (OperatorGoal::Drain, OperatorRefusal::Silent(B), OperatorWait::Silent(B)),
        (OperatorGoal::DrainPreferring(B), OperatorRefusal::Silent(B), OperatorWait::Silent(B)),
        (OperatorGoal::DrainTo(B), OperatorRefusal::Silent(B), OperatorWait::Silent(B)),
    ] {
        let lease = Lease::from_ms(300).unwrap();
        let mut drain = OperatorTask::new(goal, group(&state), lease, Monotonic(1_000));
        drain.members_heard(all_at(7));
        assert_eq!(step(&mut drain, 0, &state), OperatorStep::Freeze);
        drain.frozen(Monotonic(1_000), 7);
        drain.replicated(7);
        drain.members_heard(BTreeMap::new());
        for leases in 1..DRAIN_LEASES {
            assert_eq!(step(&mut drain, leases, &state), OperatorStep::Wait(waits), "{goal:?}");
        }
        let mut heard = drain.clone();
        assert_eq!(step(&mut drain, DRAIN_LEASES, &state), OperatorStep::Refused(refusal));
        heard.members_heard(all_at(7));
        assert!(matches!(step(&mut heard, 3, &state), OperatorStep::Propose(_)));
        // It may be ordered from now on.
        heard.members_heard(BTreeMap::new());
        assert!(matches!(step(&mut heard, 9, &state), OperatorStep::Propose(_)));
    }
    // Only the named host is silent.
    let state = ready(3, 3);
    let mut drain = task(C, &state);
    drain.members_heard(all_at(7));
    assert_eq!(step(&mut drain, 0, &state), OperatorStep::Freeze);
    drain.frozen(Monotonic(1_000), 7);
    drain.replicated(7);
    drain.members_heard([(B, 7)].into());
    let refused = OperatorStep::Refused(OperatorRefusal::TargetSilent(C));
    assert_eq!(step(&mut drain, DRAIN_LEASES, &state), refused);
}
