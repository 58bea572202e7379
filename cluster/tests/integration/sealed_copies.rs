//! Which reports decide a seal: those of full members, and while fewer than n are full those of all
//! copies that have what was sealed (rule 6 of decision 026).

use crate::fixture::{PARTITION, held, report, suspect, whole};
use crate::two_hosts::Proposer;
use nearstate_cluster::limits::{FIRST_MESSAGE_LEASES, YIELD_LEASES};
use nearstate_cluster::{
    Applied, ClusterLevel, ClusterState, Command, CommandRefusal, CopyState, Effects, Host,
    HostEffect, HostId, HostInput, MemberRecord, Monotonic, RegionState, ViewNumber,
};

const LEASE_MS: u64 = 300;

fn exclude(state: &mut ClusterState, view: u64) {
    let view = ViewNumber(view);
    state.apply(&Command::Exclude { partition: PARTITION, view });
}

/// Three hosts, n 2. Host 1 was excluded, host 2 has sealed its log at 90 and is alone full, and
/// has lost its region.
fn lost_after_a_seal(level: u16) -> ClusterState {
    let mut state = whole(3, 2);
    state.apply(&Command::Finalize { level: ClusterLevel(level) });
    exclude(&mut state, 1);
    state.apply(&report(2, 2, held(1, 90)));
    let sealed = state.apply(&report(2, 3, held(1, 85)));
    assert_eq!(sealed, Applied::Sealed(HostId(2), held(1, 90)));
    assert!(state.group(PARTITION).unwrap().is_unsettled());
    exclude(&mut state, 2);
    state
}

#[test]
fn from_level_6_on_each_copy_that_has_what_was_sealed_decides() {
    let rows = [
        ("it ends at the seal", held(1, 90), true),
        ("it follows the log behind the seal", held(2, 4), true),
        ("it is shorter, and may lack what was replicated", held(1, 89), false),
        ("it is longer: the rest may have been called lost", held(1, 91), false),
        ("it is of an earlier log", held(0, 200), false),
    ];
    for (name, copy, decides) in rows {
        let reported = |level| lost_after_a_seal(level).apply(&report(3, 3, copy));
        let sealed = Applied::Sealed(HostId(3), copy);
        let waits = Applied::Reported(HostId(3));
        assert_eq!(reported(6), if decides { sealed } else { waits }, "{name}");
        // Programs of earlier levels decide so.
        assert_eq!(reported(5), waits, "{name}");
    }
    // Another history at the place of the seal.
    let fork = nearstate_cluster::LogPosition { check: 1, ..held(1, 90) };
    let forked = lost_after_a_seal(6).apply(&report(3, 3, fork));
    assert_eq!(forked, Applied::Reported(HostId(3)));
    // The excluded owner returns if nothing is decided.
    let own = lost_after_a_seal(6).apply(&report(3, 2, held(2, 9)));
    assert_eq!(own, Applied::Reported(HostId(2)));
}

/// Hosts do not repeat reports that were recorded below level 6.
#[test]
fn a_level_that_is_raised_during_a_seal_decides_with_the_reports_that_count_now() {
    let mut state = lost_after_a_seal(5);
    assert_eq!(state.apply(&report(3, 3, held(1, 89))), Applied::Reported(HostId(3)));
    let mut decided = state.clone();
    assert_eq!(decided.apply(&report(3, 1, held(1, 90))), Applied::Reported(HostId(1)));
    for (state, owner) in [(&mut state, None), (&mut decided, Some(HostId(1)))] {
        let level = ClusterLevel::SEALED_COPIES;
        assert_eq!(state.apply(&Command::Finalize { level }), Applied::Finalized(level));
        let group = state.group(PARTITION).unwrap();
        assert_eq!(group.owner(), owner);
    }
    let group = decided.group(PARTITION).unwrap();
    assert_eq!(group.full().iter().copied().collect::<Vec<_>>(), [HostId(1)]);
}

#[test]
fn a_copy_that_does_not_count_decides_nothing_while_enough_members_are_full() {
    let mut state = lost_after_a_seal(6);
    state.apply(&Command::Return { partition: PARTITION, view: ViewNumber(3), host: HostId(2) });
    let revision = state.group(PARTITION).unwrap().revision();
    state.apply(&Command::Full { partition: PARTITION, revision, host: HostId(3) });
    assert!(!state.group(PARTITION).unwrap().is_unsettled());
    exclude(&mut state, 3);
    for copy in [held(1, 90), held(2, 4)] {
        assert_eq!(state.clone().apply(&report(4, 1, copy)), Applied::Reported(HostId(1)));
    }
    let sealed = state.apply(&report(4, 3, held(2, 5)));
    assert_eq!(sealed, Applied::Sealed(HostId(3), held(2, 5)));
}

#[test]
fn neither_does_it_beside_an_owner_whose_copy_suffices_or_behind_a_raised_view() {
    let mut degraded = whole(2, 2);
    degraded.apply(&Command::Finalize { level: ClusterLevel(6) });
    let revision = degraded.group(PARTITION).unwrap().revision();
    degraded.apply(&Command::Degrade { partition: PARTITION, revision, host: HostId(1) });
    let mut raised = degraded.clone();
    exclude(&mut degraded, 1);
    assert_eq!(degraded.apply(&report(2, 2, held(1, 7))), Applied::Reported(HostId(2)));
    let view = ViewNumber(1);
    raised.apply(&Command::RaiseView { partition: PARTITION, view, revision });
    let origin = raised.group(PARTITION).unwrap().origin();
    let reported = raised.apply(&report(origin.0, 2, held(origin.0, 7)));
    assert_eq!(reported, Applied::Reported(HostId(2)));
}

/// With RF and n 3, the report of one of the two others is enough.
#[test]
fn from_level_6_on_all_full_members_are_waited_for() {
    let begun = |level| {
        let mut state = whole(3, 3);
        state.apply(&Command::Finalize { level: ClusterLevel(level) });
        exclude(&mut state, 1);
        let first = state.apply(&report(2, 2, held(1, 90)));
        (state, first)
    };
    let sealed = Applied::Sealed(HostId(2), held(1, 90));
    assert_eq!(begun(5).1, sealed);
    let (state, first) = begun(6);
    assert_eq!(first, Applied::Reported(HostId(2)));
    let longer = state.clone().apply(&report(2, 3, held(1, 95)));
    assert_eq!(longer, Applied::Sealed(HostId(3), held(1, 95)), "the longest copy is taken");
    // It has waited long enough. What it says now is what it has reported.
    assert_eq!(state.clone().apply(&report(2, 2, held(1, 99))), sealed);
    // The excluded owner does not end the wait.
    let mut own = state;
    assert_eq!(own.apply(&report(2, 1, held(1, 99))), Applied::Reported(HostId(1)));
    let repeated = own.apply(&report(2, 1, held(1, 99)));
    assert_eq!(repeated, Applied::Refused(CommandRefusal::AlreadyReported));
}

/// A host with this copy learns of a state without an owner. At which times does it report?
fn reports_of(host: u16, state: &ClusterState, copy: CopyState, until_ms: u64) -> Vec<u64> {
    let (begin, view) = (5_000, state.group(PARTITION).unwrap().view());
    let CopyState::Follower(held) = copy else { panic!("a copy that is frozen") };
    let mut member = Proposer::start(host, 1_000, copy);
    member.step(begin, HostInput::State(state));
    member.step(begin, HostInput::Frozen { partition: PARTITION, view, held });
    let mut at = Vec::new();
    at.extend((!member.proposed.is_empty()).then_some(0));
    at.extend(member.tick(begin, begin + until_ms).into_iter().map(|time| time - begin));
    at
}

#[test]
fn a_member_that_has_reported_repeats_it_when_it_has_waited() {
    let mut state = whole(3, 3);
    state.apply(&Command::Finalize { level: ClusterLevel(6) });
    exclude(&mut state, 1);
    state.apply(&report(2, 2, held(1, 90)));
    let (wait, copy) = (YIELD_LEASES * LEASE_MS, CopyState::Follower(held(1, 90)));
    assert_eq!(reports_of(2, &state, copy, wait), [wait]);
    // One that has not reported does it at once.
    assert_eq!(reports_of(3, &state, copy, 10), [0]);
}

/// What host 1 does, the former owner whose log was sealed at 90, if that ends there.
fn done_by_former_owner(state: &ClusterState, end: u64) -> (Vec<HostEffect>, Vec<Command>) {
    let mut host = Host::new(HostId(1), 1, Monotonic(0));
    let (partition, view) = (PARTITION, state.group(PARTITION).unwrap().view());
    let record = MemberRecord { view: ViewNumber(1), ..MemberRecord::NEW };
    let facts = |copy| RegionState { copy, record, ..RegionState::NEW };
    let owner = facts(CopyState::Owner { origin: ViewNumber(1) });
    let mut effects = Effects::new();
    let now = Monotonic(5_000_000_000);
    for input in [
        HostInput::Region { partition, facts: owner },
        HostInput::State(state),
        HostInput::Frozen { partition, view, held: held(1, end) },
    ] {
        host.step(now, input, &mut effects);
    }
    let demotes = |effect: &HostEffect| matches!(effect, HostEffect::Demote { .. });
    let mut orders: Vec<HostEffect> = effects.drain().collect();
    let mut proposed = proposals(&orders);
    orders.retain(demotes);
    let copy = facts(CopyState::Follower(held(1, 90)));
    if !orders.is_empty() {
        assert_eq!(proposed, [], "it reports as a copy");
        host.step(now, HostInput::Region { partition, facts: copy }, &mut effects);
        proposed = proposals(&effects.drain().collect::<Vec<_>>());
    }
    (orders, proposed)
}

fn proposals(effects: &[HostEffect]) -> Vec<Command> {
    let proposal = |effect: &HostEffect| {
        if let HostEffect::Propose(command) = effect { Some(*command) } else { None }
    };
    effects.iter().filter_map(proposal).collect()
}

/// Members at the seal go on with the log of a copy that is promoted. They would have to discard
/// theirs if an owner's log went on.
#[test]
fn a_former_owner_at_the_seal_becomes_a_copy_before_it_reports() {
    let state = lost_after_a_seal(6);
    let (partition, view, seal) = (PARTITION, ViewNumber(3), Some(held(1, 90)));
    let demoted = HostEffect::Demote { partition, view, seal };
    let reported = report(3, 1, held(1, 90));
    assert_eq!(done_by_former_owner(&state, 90), (vec![demoted], vec![reported]));
    assert_eq!(state.clone().apply(&reported), Applied::Sealed(HostId(1), held(1, 90)));
    // What is behind the seal stays, for an operator.
    assert_eq!(done_by_former_owner(&state, 95), (vec![], vec![report(3, 1, held(1, 95))]));
}

/// With n 3 a seal has left hosts 2 and 3 full. Their copies may have more of the present log.
#[test]
fn a_copy_that_does_not_count_yields_to_those_that_do() {
    let mut state = whole(4, 3);
    state.apply(&Command::Finalize { level: ClusterLevel(6) });
    exclude(&mut state, 1);
    for host in [2, 3] {
        state.apply(&report(2, host, held(1, 90)));
    }
    state.apply(&report(2, 4, held(1, 80)));
    let group = state.group(PARTITION).unwrap();
    assert_eq!((group.owner(), group.full().len()), (Some(HostId(2)), 2));
    exclude(&mut state, 2);
    let (wait, copy) = (YIELD_LEASES * LEASE_MS, CopyState::Follower(held(1, 90)));
    assert_eq!(reports_of(3, &state, copy, 10), [0]);
    assert_eq!(reports_of(4, &state, copy, wait), [wait]);
}

/// With fewer than n full members the owner has no lease, and its first answer may be on its way.
#[test]
fn a_member_that_begins_to_count_does_not_suspect_the_owner_at_once() {
    let mut state = whole(2, 2);
    exclude(&mut state, 1);
    state.apply(&report(2, 2, held(1, 5)));
    let mut member = Proposer::start(1, 1_000, CopyState::Follower(held(1, 5)));
    member.step(1_000, HostInput::State(&state));
    let (partition, view) = (PARTITION, ViewNumber(2));
    member.step(1_000, HostInput::Frozen { partition, view, held: held(1, 5) });
    // It joins for long, and has not been answered when it is full.
    let full_at = 9_000;
    assert_eq!(member.tick(1_001, full_at), [0_u64; 0], "{:?}", member.proposed);
    let revision = state.group(PARTITION).unwrap().revision();
    state.apply(&Command::Full { partition, revision, host: HostId(1) });
    member.step(full_at, HostInput::State(&state));
    assert_eq!(member.proposed, []);
    let suspects_at = full_at + FIRST_MESSAGE_LEASES * LEASE_MS + 1;
    assert_eq!(member.tick(full_at, suspects_at), [suspects_at]);
    assert_eq!(member.proposed, [suspect(2, 1)]);
}
