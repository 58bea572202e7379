//! What a host does with the copy of a partition that another host owns now.

use crate::fixture::{PARTITION, held, report, whole};
use nearstate_cluster::{
    ClusterState, Command, CopyState, Effects, FollowStart, Host, HostEffect, HostId, HostInput,
    MemberRecord, MemberRole, Monotonic, RegionState, ViewNumber, limits,
};

const MS: u64 = 1_000_000;
const LEASE_MS: u64 = 300;
/// When the new owner was found.
const SEALED_MS: u64 = 1_000;

/// Of three hosts the third was evicted, the first was excluded, and the second has taken over,
/// with everything up to position 8. So one copy less than must hold a commit is complete.
fn sealed() -> ClusterState {
    let mut state = whole(3, 2);
    let revision = state.group(PARTITION).unwrap().revision();
    state.apply(&Command::Evict { partition: PARTITION, revision, host: HostId(3) });
    state.apply(&Command::Exclude { partition: PARTITION, view: ViewNumber(1) });
    state.apply(&report(2, 2, held(1, 8)));
    assert_eq!(state.group(PARTITION).unwrap().owner(), Some(HostId(2)));
    state
}

/// The old owner, after it has learned of the new one.
struct FormerOwner(Host);

impl FormerOwner {
    fn new(state: &ClusterState) -> Self {
        let mut this = Self(Host::new(HostId(1), 1, Monotonic(100 * MS)));
        this.region(CopyState::Owner { origin: ViewNumber(1) });
        assert_eq!(this.step(SEALED_MS, HostInput::State(state)), ["Store", "Freeze"]);
        this
    }

    fn region(&mut self, copy: CopyState) -> Vec<&'static str> {
        let record = MemberRecord { view: ViewNumber(1), ..MemberRecord::NEW };
        let facts = RegionState { copy, record, ..RegionState::NEW };
        self.step(SEALED_MS, HostInput::Region { partition: PARTITION, facts })
    }

    /// Its writers are refused, and its log ends here.
    fn frozen(&mut self, position: u64) -> Vec<&'static str> {
        let (partition, view, held) = (PARTITION, ViewNumber(2), held(1, position));
        self.step(SEALED_MS + 1, HostInput::Frozen { partition, view, held })
    }

    /// What it does, in short.
    fn step(&mut self, at_ms: u64, input: HostInput<'_>) -> Vec<&'static str> {
        let mut effects = Effects::new();
        self.0.step(Monotonic(at_ms * MS), input, &mut effects);
        let name = |effect| {
            if let HostEffect::Demote { seal, .. } = effect {
                assert_eq!(seal, Some(held(1, 8)));
                return Some("Demote");
            }
            if let HostEffect::Follow { start, .. } = effect {
                assert_eq!(start, FollowStart::Continue);
                return Some("Continue");
            }
            if matches!(effect, HostEffect::Event(_)) {
                return None;
            }
            let is_stored = matches!(effect, HostEffect::Store { .. });
            assert!(is_stored || matches!(effect, HostEffect::Freeze { .. }), "{effect:?}");
            Some(if is_stored { "Store" } else { "Freeze" })
        };
        effects.drain().filter_map(name).collect()
    }
}

#[test]
fn an_owner_whose_log_ends_at_the_seal_goes_on_with_its_records_at_once() {
    let mut old = FormerOwner::new(&sealed());
    assert_eq!(old.frozen(8), ["Demote"]);
    assert_eq!(old.region(CopyState::Follower(held(1, 8))), ["Continue"]);
    assert_eq!(old.0.role(PARTITION), Some(MemberRole::Following(FollowStart::Continue)));
}

#[test]
fn an_owner_with_a_longer_log_keeps_it_for_a_while() {
    let mut old = FormerOwner::new(&sealed());
    assert!(old.frozen(9).is_empty());
    let kept_until_ms = SEALED_MS + limits::KEEP_COPY_LEASES * LEASE_MS;
    for at_ms in (SEALED_MS + 2..kept_until_ms).step_by(20) {
        assert!(old.step(at_ms, HostInput::Tick).is_empty(), "at {at_ms} ms");
    }
    assert_eq!(old.step(kept_until_ms, HostInput::Tick), ["Demote"]);
}

#[test]
fn an_owner_with_a_longer_log_discards_it_when_enough_others_are_complete() {
    let mut state = sealed();
    let mut old = FormerOwner::new(&state);
    assert!(old.frozen(9).is_empty());
    let revision = state.group(PARTITION).unwrap().revision();
    state.apply(&Command::Full { partition: PARTITION, revision, host: HostId(3) });
    assert_eq!(old.step(SEALED_MS + 2, HostInput::State(&state)), ["Store", "Demote"]);
}
