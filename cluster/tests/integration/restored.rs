//! A membership that was restored from an older copy: hosts do not act on less than they have
//! acted on, also if the view is the same.

use crate::fixture::{PARTITION, held, whole};
use nearstate_cluster::{
    Command, CopyState, Effects, FollowStart, Host, HostEffect, HostId, HostInput, MemberRecord,
    MemberRole, Monotonic, RegionState, ViewNumber,
};

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
