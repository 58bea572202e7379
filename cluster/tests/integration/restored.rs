//! A membership that was restored from an older copy: hosts do not act on less than they have
//! acted on, also if the view is the same. One that was created anew continues behind that.

use crate::fixture::{PARTITION, held, report, whole};
use nearstate_cluster::limits::{RAISED_REVISION_MAX, RAISED_VIEW_MAX, RAISED_VIEW_STEP};
use nearstate_cluster::{
    Applied, ClusterLevel, ClusterState, Command, CommandRefusal, CopyState, Effects, FollowStart,
    Host, HostEffect, HostId, HostInput, MemberRecord, MemberRole, Monotonic, RegionState,
    Revision, ViewNumber,
};

fn raise(view: u64, revision: u64) -> Command {
    let (view, revision) = (ViewNumber(view), Revision(revision));
    Command::RaiseView { partition: PARTITION, view, revision }
}

/// A state in which a view can be raised.
fn of_level(mut state: ClusterState) -> ClusterState {
    state.apply(&Command::Finalize { level: ClusterLevel::RAISED_VIEWS });
    state
}

fn role(state: &ClusterState, host: u16, record: (u64, u64)) -> Option<MemberRole> {
    let (view, revision) = (ViewNumber(record.0), Revision(record.1));
    let record = MemberRecord { view, revision, evicting: None };
    let facts = RegionState { copy: CopyState::Follower(held(1, 8)), record, ..RegionState::NEW };
    let mut member = Host::new(HostId(host), 1, Monotonic(1));
    let mut effects = Effects::new();
    let region = HostInput::Region { partition: PARTITION, facts };
    member.step(Monotonic(2), region, &mut effects);
    member.step(Monotonic(2), HostInput::State(state), &mut effects);
    member.role(PARTITION)
}

#[test]
fn a_member_does_not_act_on_an_older_revision_of_its_view() {
    let before = whole(3, 2);
    let mut after = before.clone();
    let revision = after.group(PARTITION).unwrap().revision();
    after.apply(&Command::Evict { partition: PARTITION, revision, host: HostId(3) });
    assert_eq!(after.group(PARTITION).unwrap().view(), before.group(PARTITION).unwrap().view());

    let copy = CopyState::Follower(held(1, 8));
    let with = |record| RegionState { copy, record, ..RegionState::NEW };
    let started = || Host::new(HostId(2), 1, Monotonic(1));
    let (mut member, mut effects) = (started(), Effects::new());
    let record = MemberRecord { view: ViewNumber(1), ..MemberRecord::NEW };
    let region = HostInput::Region { partition: PARTITION, facts: with(record) };
    member.step(Monotonic(2), region, &mut effects);
    member.step(Monotonic(2), HostInput::State(&after), &mut effects);
    let record_of = |effect| {
        if let HostEffect::Store { record, .. } = effect { Some(record) } else { None }
    };
    let stored = effects.drain().find_map(record_of);
    let stored = stored.expect("it stores what it acts on");
    assert_eq!(stored.revision, after.group(PARTITION).unwrap().revision());

    let following = MemberRole::Following(FollowStart::Continue);
    for (state, role) in [(&before, MemberRole::Waiting), (&after, following)] {
        let mut restarted = started();
        let region = HostInput::Region { partition: PARTITION, facts: with(stored) };
        restarted.step(Monotonic(3), region, &mut effects);
        restarted.step(Monotonic(3), HostInput::State(state), &mut effects);
        assert_eq!(restarted.role(PARTITION), Some(role));
    }
}

#[test]
fn a_membership_that_was_created_anew_continues_behind_what_regions_have_seen() {
    let mut state = of_level(ClusterState::new(&crate::fixture::config(3, 2)).unwrap());
    for (host, record) in [(1, (1, 3)), (2, (1, 3)), (3, (4, 9))] {
        assert_eq!(role(&state, host, record), Some(MemberRole::Waiting));
    }
    assert_eq!(state.apply(&raise(4, 9)), Applied::ViewRaised(ViewNumber(4)));
    for (host, record) in [(1, (1, 3)), (2, (1, 3)), (3, (4, 9))] {
        assert_eq!(role(&state, host, record), Some(MemberRole::Sealing));
    }
    // A host that was not asked, and has acted on a later revision, waits.
    assert_eq!(role(&state, 2, (4, 11)), Some(MemberRole::Waiting));
    // A host that was not asked cannot have seen the new view, or a later one.
    let view = state.group(PARTITION).unwrap().view();
    assert_eq!(view, ViewNumber(4 + RAISED_VIEW_STEP));
    // A repetition has no effect.
    assert_eq!(state.apply(&raise(4, 9)), Applied::Refused(CommandRefusal::OtherView));
    for (view, revision) in
        [(u64::MAX, 1), (RAISED_VIEW_MAX, 1), (view.0, u64::MAX), (view.0, RAISED_REVISION_MAX + 1)]
    {
        assert!(matches!(state.apply(&raise(view, revision)), Applied::Refused(_)));
    }
    let last = RAISED_VIEW_MAX - RAISED_VIEW_STEP;
    assert_eq!(state.apply(&raise(last, 1)), Applied::ViewRaised(ViewNumber(last)));
}

/// A host that did not answer may have been the owner of later views of the old membership. If the
/// new log had the origin of one of them, its copy would count as one of the new log.
#[test]
fn no_host_that_was_not_asked_has_a_log_of_the_raised_view() {
    let mut state = of_level(whole(3, 2));
    state.apply(&raise(4, 9));
    let raised = state.group(PARTITION).unwrap().origin();
    let mut old = whole(3, 2);
    for _ in 0..2_000 {
        let group = old.group(PARTITION).unwrap();
        let (partition, view) = (PARTITION, group.view());
        assert_ne!(group.origin(), raised);
        old.apply(&Command::Exclude { partition, view });
        let view = ViewNumber(view.0 + 1);
        old.apply(&Command::ForceNew { partition, view, host: HostId(2) });
    }
    assert_eq!(old.group(PARTITION).unwrap().origin(), ViewNumber(2_001));
    // An exclusion each minute for a year.
    assert!(raised.0 - 4 >= 365 * 24 * 60, "{raised}");
}

#[test]
fn a_raised_revision_is_above_that_of_the_state_and_no_host_leaves() {
    let mut state = of_level(whole(4, 2));
    let revision = |state: &ClusterState| state.group(PARTITION).unwrap().revision();
    let leaves =
        Command::RemoveMember { partition: PARTITION, revision: revision(&state), host: HostId(3) };
    assert_eq!(state.apply(&leaves), Applied::MemberLeaving(HostId(3)));
    let before = revision(&state);
    assert!(before > Revision(1));
    // The regions have acted on less than the state, which was restored from a later copy.
    state.apply(&raise(1, 1));
    assert_eq!(revision(&state), Revision(before.0 + 1));
    // The copy of a host that was to leave may be the one that the operator names.
    let group = state.group(PARTITION).unwrap();
    assert!(group.leaving().is_empty() && group.group().contains(&HostId(3)));
    let view = group.view();
    for host in 1..=4 {
        state.apply(&report(view.0, host, held(1, 8)));
    }
    state.apply(&Command::AcceptLoss { partition: PARTITION, view, host: HostId(1) });
    for host in [2, 4] {
        let revision = revision(&state);
        state.apply(&Command::Full { partition: PARTITION, revision, host: HostId(host) });
    }
    assert!(state.group(PARTITION).unwrap().group().contains(&HostId(3)));
}

#[test]
fn neither_reports_nor_a_return_make_an_owner_behind_a_raised_view() {
    let mut state = of_level(whole(3, 2));
    // A region may claim the new origin.
    state.apply(&raise(1, 7));
    let group = state.group(PARTITION).unwrap();
    let (partition, view, host) = (PARTITION, group.view(), group.excluded().unwrap());
    let returned = state.apply(&Command::Return { partition, view, host });
    assert_eq!(returned, Applied::Refused(CommandRefusal::OperatorNeeded));
    for host in 1..=3 {
        let applied = state.apply(&report(view.0, host, held(1, 8)));
        assert_eq!(applied, Applied::Reported(HostId(host)));
    }
    assert!(state.group(PARTITION).unwrap().is_operator_needed());
}

#[test]
fn behind_a_raised_view_only_an_operator_finds_an_owner() {
    // Two of three reports would decide in the restored state.
    let mut state = of_level(whole(3, 2));
    state.apply(&raise(1, 7));
    assert!(state.group(PARTITION).unwrap().is_operator_needed());
    let raised = state.group(PARTITION).unwrap().view();
    for host in 1..=3 {
        let applied = state.apply(&report(raised.0, host, held(1, 8)));
        assert_eq!(applied, Applied::Reported(HostId(host)));
    }
    // The excluded owner has its region, which may be older than that of another owner.
    let mut member = Host::new(HostId(1), 1, Monotonic(1));
    let mut effects = Effects::new();
    let copy = CopyState::Owner { origin: raised };
    let record = MemberRecord { view: ViewNumber(1), ..MemberRecord::NEW };
    let facts = RegionState { copy, record, ..RegionState::NEW };
    let region = HostInput::Region { partition: PARTITION, facts };
    member.step(Monotonic(2), region, &mut effects);
    let frozen = HostInput::Frozen { partition: PARTITION, view: raised, held: held(1, 8) };
    for (at, input) in [
        (2, HostInput::State(&state)),
        (3, frozen),
        (60_000_000_000, HostInput::Tick),
        (120_000_000_000, HostInput::Tick),
    ] {
        member.step(Monotonic(at), input, &mut effects);
    }
    let proposed = effects.drain().filter(|effect| matches!(effect, HostEffect::Propose(_)));
    assert_eq!(proposed.collect::<Vec<_>>(), []);

    let (partition, view, host) = (PARTITION, raised, HostId(3));
    let accepted = state.apply(&Command::AcceptLoss { partition, view, host });
    assert_eq!(accepted, Applied::LossAccepted(host, held(1, 8)));
    let group = state.group(PARTITION).unwrap();
    assert!(!group.is_operator_needed());
    assert_eq!((group.owner(), group.view()), (Some(host), raised));
}
