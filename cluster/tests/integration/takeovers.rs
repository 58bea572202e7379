//! Which starts of an owner are take-overs.

use crate::fixture::{PARTITION, held, report, whole};
use nearstate_cluster::{
    ClusterEventKind, ClusterState, Command, CopyState, Effects, Host, HostEffect, HostId,
    HostInput, MemberRecord, Monotonic, RegionState, Revision, ViewNumber,
};

const B: HostId = HostId(2);
const NOW: Monotonic = Monotonic(1_000_000_000);

/// Runs a step, and returns for each start of the owner whether it was a take-over.
fn starts(host: &mut Host, input: HostInput<'_>) -> Vec<bool> {
    let mut effects = Effects::new();
    host.step(NOW, input, &mut effects);
    let start = |effect| {
        let HostEffect::Event(event) = effect else { return None };
        let ClusterEventKind::OwnerStarted { is_takeover } = event.kind else { return None };
        Some(is_takeover)
    };
    effects.drain().filter_map(start).collect()
}

fn region(state: &ClusterState, copy: CopyState) -> HostInput<'static> {
    let group = state.group(PARTITION).unwrap();
    let record = MemberRecord { view: group.view(), revision: Revision::FIRST, evicting: None };
    let facts = RegionState { copy, record, replicated: 0, lease_until: Monotonic::BOOT };
    HostInput::Region { partition: PARTITION, facts }
}

#[test]
fn a_promotion_is_a_takeover_and_neither_a_restart_nor_a_return_is() {
    let mut state = whole(2, 2);
    let exclude = |view| Command::Exclude { partition: PARTITION, view: ViewNumber(view) };
    state.apply(&exclude(1));
    state.apply(&report(2, 2, held(1, 7)));
    assert_eq!(state.group(PARTITION).unwrap().owner(), Some(B));
    let (partition, view) = (PARTITION, ViewNumber(2));
    let owner = CopyState::Owner { origin: view };

    let mut host = Host::new(B, 9, Monotonic::BOOT);
    assert!(starts(&mut host, HostInput::State(&state)).is_empty());
    assert!(starts(&mut host, region(&state, CopyState::Follower(held(1, 7)))).is_empty());
    let frozen = HostInput::Frozen { partition, view, held: held(1, 7) };
    assert!(starts(&mut host, frozen).is_empty(), "it is promoted first");
    assert_eq!(starts(&mut host, region(&state, owner)), [true]);

    let mut restarted = Host::new(B, 10, Monotonic::BOOT);
    assert!(starts(&mut restarted, HostInput::State(&state)).is_empty());
    assert_eq!(starts(&mut restarted, region(&state, owner)), [false]);

    // It was excluded, nothing was reported, and it is the owner again.
    state.apply(&exclude(2));
    assert!(starts(&mut host, HostInput::State(&state)).is_empty());
    state.apply(&Command::Return { partition, view: ViewNumber(3), host: B });
    assert_eq!(starts(&mut host, HostInput::State(&state)), [false]);
}
