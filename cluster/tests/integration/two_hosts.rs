//! The rules of a partition of which one copy suffices, step by step (decision 034).

use crate::fixture::{PARTITION, held, whole};
use nearstate_cluster::{
    ClusterState, Command, CopyMissingPolicy, CopyState, Effects, Host, HostEffect, HostId,
    HostInput, MemberRecord, Monotonic, RegionState, ViewNumber,
};

const MS: u64 = 1_000_000;
const LEASE_MS: u64 = 300;

/// A host, and the commands that it has proposed.
pub(crate) struct Proposer {
    pub(crate) host: Host,
    pub(crate) proposed: Vec<Command>,
}

impl Proposer {
    pub(crate) fn start(host: u16, at_ms: u64, copy: CopyState) -> Self {
        let policy = CopyMissingPolicy::Degrade { after_ms: 700 };
        let host = Host::new(HostId(host), 1, Monotonic(at_ms * MS)).with_policy(policy);
        let mut this = Self { host, proposed: Vec::new() };
        let record = MemberRecord { view: ViewNumber(1), ..MemberRecord::NEW };
        let facts = RegionState { copy, record, ..RegionState::NEW };
        this.step(at_ms, HostInput::Region { partition: PARTITION, facts });
        this
    }

    pub(crate) fn step(&mut self, at_ms: u64, input: HostInput<'_>) {
        let mut effects = Effects::new();
        self.host.step(Monotonic(at_ms * MS), input, &mut effects);
        for effect in effects.drain() {
            if let HostEffect::Propose(command) = effect {
                self.proposed.push(command);
            }
        }
    }

    /// Ticks in each millisecond up to a time, and returns those at which it has proposed.
    pub(crate) fn tick(&mut self, from_ms: u64, to_ms: u64) -> Vec<u64> {
        let mut at = Vec::new();
        for now in from_ms..=to_ms {
            let before = self.proposed.len();
            self.step(now, HostInput::Tick);
            at.extend((self.proposed.len() > before).then_some(now));
        }
        at
    }
}

fn degraded() -> ClusterState {
    let mut state = whole(2, 2);
    let revision = state.group(PARTITION).unwrap().revision();
    state.apply(&Command::Degrade { partition: PARTITION, revision, host: HostId(1) });
    state
}

#[test]
fn a_report_waits_a_lease_from_when_the_exclusion_was_learned_of() {
    let mut state = degraded();
    let mut member = Proposer::start(2, 1_000, CopyState::Follower(held(1, 7)));
    // The process has run for long when it hears of the exclusion, which may be a moment old.
    state.apply(&Command::Exclude { partition: PARTITION, view: ViewNumber(1) });
    let (learned, view) = (5_000, ViewNumber(2));
    member.step(learned, HostInput::State(&state));
    member.step(learned, HostInput::Frozen { partition: PARTITION, view, held: held(1, 7) });
    let proposed = member.tick(learned, learned + LEASE_MS + 5);
    assert_eq!(proposed, [learned + LEASE_MS], "{:?}", member.proposed);
    assert!(matches!(member.proposed[..], [Command::Report { .. }]), "{:?}", member.proposed);
}

#[test]
fn one_renewal_of_a_lease_is_under_way_at_a_time() {
    let mut state = degraded();
    let copy = CopyState::Owner { origin: ViewNumber(1) };
    let mut owner = Proposer::start(1, 1_000, copy);
    owner.step(1_000, HostInput::State(&state));
    assert!(matches!(owner.proposed[..], [Command::Renew { .. }]), "{:?}", owner.proposed);
    // The membership takes longer than a quarter of a lease: the next one waits for it.
    assert_eq!(owner.tick(1_001, 1_119), []);
    let first = owner.proposed[0];
    state.apply(&first);
    owner.step(1_120, HostInput::State(&state));
    assert_eq!(owner.proposed.len(), 2);
    // It is fast: the next one is due a quarter of a lease after the last one.
    let second = owner.proposed[1];
    state.apply(&second);
    owner.step(1_121, HostInput::State(&state));
    assert_eq!(owner.tick(1_122, 1_195), [1_195]);
    // That one is lost: it is given up after half a lease.
    assert_eq!(owner.tick(1_196, 1_345), [1_345]);
}

#[test]
fn a_host_misses_an_owner_whose_copy_suffices_when_neither_lease_nor_message_comes() {
    let mut state = degraded();
    let mut member = Proposer::start(2, 1_000, CopyState::Follower(held(1, 7)));
    member.step(1_000, HostInput::State(&state));
    let (view, partition) = (ViewNumber(1), PARTITION);
    member.step(1_000, HostInput::Frozen { partition, view, held: held(1, 7) });
    let misses = |member: &Proposer, at_ms: u64| {
        member.host.misses_degraded_owner(PARTITION, Monotonic(at_ms * MS))
    };
    assert!(!misses(&member, 1_600));
    assert!(misses(&member, 1_601));
    let revision = state.group(PARTITION).unwrap().revision();
    let (partition, host, stamp) = (PARTITION, HostId(1), Monotonic(3));
    state.apply(&Command::Renew { partition, revision, host, stamp });
    member.step(1_700, HostInput::State(&state));
    assert!(!misses(&member, 2_300));
    assert!(misses(&member, 2_301));
    // It is connected, and counts again: its answers are the lease, and no renewal is ordered.
    let message = nearstate_cluster::OwnerMessage {
        view: ViewNumber(1),
        stamp: Monotonic(1),
        answered: Monotonic::BOOT,
        is_leased: true,
    };
    member.step(2_301, HostInput::PositionReceived { partition, message });
    assert!(!misses(&member, 2_601));
    assert!(misses(&member, 2_602));
    // The owner does not miss itself.
    let copy = CopyState::Owner { origin: ViewNumber(1) };
    let mut owner = Proposer::start(1, 1_000, copy);
    owner.step(1_000, HostInput::State(&state));
    assert!(!misses(&owner, 9_000));
}
