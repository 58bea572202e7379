//! Tasks of operators: what they ask for in which state.

use crate::fixture::{PARTITION, held, report, whole};
use nearstate_cluster::limits::DRAIN_LEASES;
use nearstate_cluster::{
    ClusterState, Command, GroupState, HostId, Lease, Monotonic, OperatorGoal, OperatorRefusal,
    OperatorStep, OperatorTask, OperatorWait, ViewNumber,
};

const LEASE_NS: u64 = 300_000_000;
const A: HostId = HostId(1);
const B: HostId = HostId(2);
const C: HostId = HostId(3);

fn group(state: &ClusterState) -> &GroupState {
    state.group(PARTITION).unwrap()
}

/// Two hosts, of which the owner is alone and has renewed its lease once.
fn degraded() -> ClusterState {
    let mut state = whole(2, 2);
    let (partition, host) = (PARTITION, A);
    let revision = group(&state).revision();
    state.apply(&Command::Degrade { partition, revision, host });
    renew(&mut state, 5);
    state
}

fn renew(state: &mut ClusterState, stamp: u64) {
    let (revision, stamp) = (group(state).revision(), Monotonic(stamp));
    state.apply(&Command::Renew { partition: PARTITION, revision, host: A, stamp });
}

fn exclude(view: u64) -> Command {
    Command::Exclude { partition: PARTITION, view: ViewNumber(view) }
}

fn task(goal: OperatorGoal, state: &ClusterState) -> OperatorTask {
    let lease = Lease::from_ms(300).unwrap();
    let mut task = OperatorTask::new(goal, group(state), lease, Monotonic(1_000));
    task.members_heard([(B, 9), (C, 9)].into());
    task
}

/// The next step so many leases after the beginning, without a word of the owner.
fn step(task: &mut OperatorTask, leases: u64, state: &ClusterState) -> OperatorStep {
    task.step(Monotonic(1_000 + leases * LEASE_NS), group(state), false)
}

#[test]
fn a_dead_owner_whose_copy_sufficed_is_excluded_waited_for_and_replaced() {
    let mut state = degraded();
    let mut task = task(OperatorGoal::AcceptLoss(B), &state);
    assert_eq!(step(&mut task, 0, &state), OperatorStep::Wait(OperatorWait::Lease));
    assert_eq!(step(&mut task, 1, &state), OperatorStep::Propose(exclude(1)));
    state.apply(&exclude(1));
    assert_eq!(step(&mut task, 2, &state), OperatorStep::Wait(OperatorWait::Report(B)));
    state.apply(&report(2, 2, held(1, 7)));
    assert_eq!(group(&state).owner(), None, "a report does not count while one copy suffices");
    let (partition, view) = (PARTITION, ViewNumber(2));
    let accept = Command::AcceptLoss { partition, view, host: B };
    // The report of a host that learned of the exclusion later may be on its way.
    assert_eq!(step(&mut task, 3, &state), OperatorStep::Wait(OperatorWait::Lease));
    assert_eq!(step(&mut task, 4, &state), OperatorStep::Propose(accept));
    // Only the applied state says that it is done.
    assert_eq!(step(&mut task, 5, &state), OperatorStep::Propose(accept));
    state.apply(&accept);
    let done = OperatorStep::Done { owner: B, is_by_decision: true };
    assert_eq!(step(&mut task, 5, &state), done);
}

#[test]
fn a_partition_is_begun_anew_only_when_the_lease_of_the_owner_is_over() {
    let mut state = degraded();
    let mut task = task(OperatorGoal::ForceNew(B), &state);
    assert_eq!(step(&mut task, 1, &state), OperatorStep::Propose(exclude(1)));
    state.apply(&exclude(1));
    for leases in [2, 3] {
        assert_eq!(step(&mut task, leases, &state), OperatorStep::Wait(OperatorWait::Lease));
    }
    let force = Command::ForceNew { partition: PARTITION, view: ViewNumber(2), host: B };
    assert_eq!(step(&mut task, 4, &state), OperatorStep::Propose(force));
    let mut reported = state.clone();
    reported.apply(&report(2, 2, held(1, 7)));
    let has_copy = |host| OperatorStep::Refused(OperatorRefusal::HasCopy(host));
    assert_eq!(step(&mut task, 4, &reported), has_copy(B));
    // Nor is the copy of another host given up, the longer one first.
    reported.apply(&report(2, 1, held(1, 9)));
    assert_eq!(step(&mut task, 4, &reported), has_copy(A));
    let mut other = state.clone();
    other.apply(&report(2, 1, held(1, 9)));
    assert_eq!(step(&mut task, 4, &other), has_copy(A));
    state.apply(&force);
    let done = OperatorStep::Done { owner: B, is_by_decision: true };
    assert_eq!(step(&mut task, 4, &state), done);
}

#[test]
fn a_longer_copy_that_was_reported_is_not_given_up_unless_the_operator_says_so() {
    let mut state = degraded();
    state.apply(&exclude(1));
    state.apply(&report(2, 2, held(1, 7)));
    state.apply(&report(2, 1, held(1, 12)));
    let (partition, view) = (PARTITION, ViewNumber(2));
    let after_leases = |mut task: OperatorTask, state: &ClusterState| {
        step(&mut task, 0, state);
        step(&mut task, 4, state)
    };
    let of_b = |state: &ClusterState| task(OperatorGoal::AcceptLoss(B), state);
    let refused = OperatorStep::Refused(OperatorRefusal::LongerCopy(A, 12));
    assert_eq!(after_leases(of_b(&state), &state), refused);
    let accept = Command::AcceptLoss { partition, view, host: B };
    let accepted = OperatorStep::Propose(accept);
    assert_eq!(after_leases(of_b(&state).with_longer_discarded(true), &state), accepted);
    // A log of a later origin holds more, whatever its positions are.
    let mut state = degraded();
    state.apply(&exclude(1));
    state.apply(&report(2, 2, held(2, 3)));
    state.apply(&report(2, 1, held(1, 12)));
    assert_eq!(after_leases(of_b(&state), &state), accepted);
}

#[test]
fn an_owner_that_lives_is_not_excluded() {
    let lives = OperatorStep::Refused(OperatorRefusal::OwnerLives(A));
    for goal in [OperatorGoal::AcceptLoss(B), OperatorGoal::ForceNew(B)] {
        let mut state = degraded();
        let mut heard = task(goal, &state);
        let late = Monotonic(1_000 + 9 * LEASE_NS);
        assert_eq!(heard.step(late, group(&state), true), lives);
        let mut renewed = task(goal, &state);
        assert_eq!(step(&mut renewed, 0, &state), OperatorStep::Wait(OperatorWait::Lease));
        renew(&mut state, 6);
        assert_eq!(step(&mut renewed, 9, &state), lives);
    }
}

#[test]
fn the_state_says_what_has_become_of_a_task() {
    // The excluded owner comes back before the decision.
    let mut state = degraded();
    let mut late = task(OperatorGoal::AcceptLoss(B), &state);
    assert_eq!(step(&mut late, 1, &state), OperatorStep::Propose(exclude(1)));
    state.apply(&exclude(1));
    let (partition, view) = (PARTITION, ViewNumber(2));
    state.apply(&Command::Return { partition, view, host: A });
    let returned = OperatorStep::Refused(OperatorRefusal::OwnerReturned(A));
    assert_eq!(step(&mut late, 3, &state), returned);

    // The members find an owner meanwhile.
    let mut state = whole(3, 2);
    let mut task_of_c = task(OperatorGoal::AcceptLoss(C), &state);
    let mut task_of_b = task(OperatorGoal::AcceptLoss(B), &state);
    let mut anew = task(OperatorGoal::ForceNew(B), &state);
    state.apply(&exclude(1));
    state.apply(&report(2, 2, held(1, 9)));
    state.apply(&report(2, 3, held(1, 7)));
    let other = OperatorStep::Refused(OperatorRefusal::OtherOwner(B));
    assert_eq!(step(&mut task_of_c, 2, &state), other);
    assert_eq!(step(&mut anew, 2, &state), other);
    let done = OperatorStep::Done { owner: B, is_by_decision: false };
    assert_eq!(step(&mut task_of_b, 2, &state), done);

    let refused = |goal, refusal, state: &ClusterState| {
        assert_eq!(step(&mut task(goal, state), 3, state), OperatorStep::Refused(refusal));
    };
    let nowhere = HostId(9);
    refused(OperatorGoal::AcceptLoss(B), OperatorRefusal::AlreadyOwner(B), &state);
    refused(OperatorGoal::ForceNew(nowhere), OperatorRefusal::NotInGroup(nowhere), &state);
    state.apply(&exclude(2));
    refused(OperatorGoal::ForceNew(nowhere), OperatorRefusal::NotInGroup(nowhere), &state);
    refused(OperatorGoal::Drain, OperatorRefusal::NoOwner, &state);
}

#[test]
fn an_owner_is_drained_if_the_members_can_find_another_one() {
    let mut state = whole(2, 2);
    let mut task_of_two = task(OperatorGoal::Drain, &state);
    assert_eq!(step(&mut task_of_two, 0, &state), OperatorStep::Freeze);
    task_of_two.frozen(Monotonic(1_000), 0);
    assert_eq!(step(&mut task_of_two, 0, &state), OperatorStep::Propose(exclude(1)));
    state.apply(&exclude(1));
    assert_eq!(step(&mut task_of_two, 0, &state), OperatorStep::Wait(OperatorWait::Reports));
    state.apply(&report(2, 2, held(1, 9)));
    let done = OperatorStep::Done { owner: B, is_by_decision: false };
    assert_eq!(step(&mut task_of_two, 0, &state), done);
    // B is alone now, and A when its copy suffices.
    for (state, owner) in [(&state, B), (&degraded(), A)] {
        let refused = OperatorStep::Refused(OperatorRefusal::NoOtherCopy(owner));
        assert_eq!(step(&mut task(OperatorGoal::Drain, state), 0, state), refused);
    }
}

#[test]
fn an_owner_is_drained_when_its_log_is_replicated_to_its_end() {
    let mut state = whole(3, 2);
    let view = group(&state).view().0;
    let mut task = task(OperatorGoal::Drain, &state);
    assert_eq!(step(&mut task, 0, &state), OperatorStep::Freeze);
    task.frozen(Monotonic(1_000), 7);
    let missing = |missing| OperatorStep::Wait(OperatorWait::Replication(missing));
    assert_eq!(step(&mut task, 0, &state), missing(7));
    task.replicated(5);
    task.replicated(3);
    assert_eq!(step(&mut task, 1, &state), missing(2));
    task.replicated(7);
    assert_eq!(step(&mut task, 1, &state), OperatorStep::Propose(exclude(view)));
    state.apply(&exclude(view));
    assert_eq!(step(&mut task, 2, &state), OperatorStep::Wait(OperatorWait::Reports));
    state.apply(&report(view + 1, 2, held(1, 7)));
    state.apply(&report(view + 1, 3, held(1, 7)));
    let done = OperatorStep::Done { owner: B, is_by_decision: false };
    assert_eq!(step(&mut task, 3, &state), done);
}

#[test]
fn an_owner_stays_if_its_log_is_not_replicated_in_time_or_a_member_is_lost() {
    let mut state = whole(2, 2);
    let frozen = || {
        let mut task = task(OperatorGoal::Drain, &state);
        task.frozen(Monotonic(1_000), 7);
        task.replicated(4);
        task
    };
    let (mut late, mut alone) = (frozen(), frozen());
    let wait = OperatorStep::Wait(OperatorWait::Replication(3));
    assert_eq!(step(&mut late, DRAIN_LEASES - 1, &state), wait);
    let refused = OperatorStep::Refused(OperatorRefusal::NotReplicated(A, 3));
    assert_eq!(step(&mut late, DRAIN_LEASES, &state), refused);
    let (partition, revision, host) = (PARTITION, group(&state).revision(), A);
    state.apply(&Command::Degrade { partition, revision, host });
    let refused = OperatorStep::Refused(OperatorRefusal::NoOtherCopy(A));
    assert_eq!(step(&mut alone, 1, &state), refused);
}
