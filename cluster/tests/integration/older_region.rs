//! An owner whose region is an older one of its own: a member has more of its log, and the word of
//! its lease is that of an earlier process.

use crate::fixture::{PARTITION, held, report, whole};
use nearstate_cluster::{
    ClusterState, Command, CopyState, Effects, FollowerAcknowledgement, Host, HostEffect, HostId,
    HostInput, MemberRecord, MemberRole, Monotonic, RegionState, ViewNumber,
};

const MS: u64 = 1_000_000;
const LEASE_MS: u64 = 300;
const VIEW: ViewNumber = ViewNumber(1);

/// The owner, and what it does.
struct Owner {
    host: Host,
    effects: Vec<HostEffect>,
}

impl Owner {
    /// Its process has started; the word of its region's lease is that of an earlier one.
    fn start(at_ms: u64, state: &ClusterState, lease_until_ms: u64) -> Self {
        let host = Host::new(HostId(1), 1, Monotonic(at_ms * MS));
        let mut this = Self { host, effects: Vec::new() };
        let record = MemberRecord { view: VIEW, ..MemberRecord::NEW };
        let lease_until = Monotonic(lease_until_ms * MS);
        let copy = CopyState::Owner { origin: VIEW };
        let facts = RegionState { copy, record, replicated: 5, lease_until };
        this.step(at_ms, HostInput::Region { partition: PARTITION, facts });
        this.step(at_ms, HostInput::State(state));
        this
    }

    fn step(&mut self, at_ms: u64, input: HostInput<'_>) {
        let mut effects = Effects::new();
        self.host.step(Monotonic(at_ms * MS), input, &mut effects);
        self.effects.extend(effects.drain());
    }

    /// A member has everything, and answers what was sent just before.
    fn answers(&mut self, at_ms: u64, host: u16, position: u64) {
        let (partition, host, view) = (PARTITION, HostId(host), VIEW);
        let connection = u64::from(host.0);
        self.step(at_ms, HostInput::Connected { partition, host, view, connection });
        let (position, stamp) = (Some(position), Monotonic((at_ms - 1) * MS));
        let acknowledgement = FollowerAcknowledgement { host, view, connection, position, stamp };
        self.step(at_ms, HostInput::Acknowledged { partition, acknowledgement });
    }

    fn ahead(&mut self, at_ms: u64, host: u16, view: ViewNumber) {
        let (partition, host) = (PARTITION, HostId(host));
        self.step(at_ms, HostInput::OlderRegion { partition, host, view });
    }

    fn role(&self) -> Option<MemberRole> {
        self.host.role(PARTITION)
    }

    fn is_leased(&self, at_ms: u64) -> bool {
        self.host.is_leased(PARTITION, Monotonic(at_ms * MS))
    }

    fn proposed(&mut self) -> Vec<Command> {
        let commands = self.effects.drain(..).filter_map(|effect| match effect {
            HostEffect::Propose(command) => Some(command),
            HostEffect::Store { .. }
            | HostEffect::SetReplicated { .. }
            | HostEffect::SetFloor { .. }
            | HostEffect::GiveUpRegion { .. }
            | HostEffect::SetLease { .. }
            | HostEffect::WatchLog { .. }
            | HostEffect::Fence { .. }
            | HostEffect::Unfence { .. }
            | HostEffect::Serve { .. }
            | HostEffect::StopServing { .. }
            | HostEffect::Answer { .. }
            | HostEffect::Freeze { .. }
            | HostEffect::Promote { .. }
            | HostEffect::Demote { .. }
            | HostEffect::Follow { .. }
            | HostEffect::StopFollowing { .. }
            | HostEffect::Event(_) => None,
        });
        commands.collect()
    }
}

const EXCLUDE: Command = Command::Exclude { partition: PARTITION, view: VIEW };

#[test]
fn an_owner_of_whose_log_a_full_member_has_more_gives_up() {
    // The third one was evicted, and has what the older file has.
    let mut state = whole(3, 2);
    let revision = state.group(PARTITION).unwrap().revision();
    state.apply(&Command::Evict { partition: PARTITION, revision, host: HostId(3) });
    let mut owner = Owner::start(1_000, &state, 1_200);
    owner.ahead(1_001, 2, VIEW);
    let partition = PARTITION;
    let position = |of| owner.effects.iter().position(|effect| *effect == of);
    let is_stored = position(HostEffect::GiveUpRegion { partition });
    let is_ended = position(HostEffect::SetLease { partition, until: Monotonic::BOOT });
    assert!(is_stored.is_some() && is_stored < is_ended, "{:?}", owner.effects);
    for effect in [
        HostEffect::SetLease { partition, until: Monotonic::BOOT },
        HostEffect::StopServing { partition },
        HostEffect::Fence { partition },
    ] {
        assert!(owner.effects.contains(&effect), "{effect:?} in {:?}", owner.effects);
    }
    assert_eq!(owner.role(), Some(MemberRole::Lost));
    assert_eq!(owner.proposed(), [EXCLUDE]);
    // What comes late on connections of before has no effect, however long the membership takes.
    owner.answers(1_002, 3, 5);
    owner.answers(1_003, 2, 5);
    for now in 1_004..1_004 + 10 * LEASE_MS {
        owner.step(now, HostInput::Tick);
        assert!(!owner.is_leased(now));
    }
    let proposed = owner.proposed();
    assert!(proposed.len() > 1 && proposed.iter().all(|of| *of == EXCLUDE), "{proposed:?}");
    assert_eq!(owner.role(), Some(MemberRole::Lost));
}

#[test]
fn an_owner_with_an_older_region_does_not_come_back_without_a_seal() {
    let mut state = whole(3, 2);
    let mut owner = Owner::start(1_000, &state, 1_200);
    owner.ahead(1_001, 2, VIEW);
    state.apply(&EXCLUDE);
    owner.step(1_002, HostInput::State(&state));
    owner.proposed();
    // Its report is stored, and no other one comes.
    let (partition, view) = (PARTITION, ViewNumber(2));
    owner.step(1_003, HostInput::Frozen { partition, view, held: held(1, 5) });
    state.apply(&report(2, 1, held(1, 5)));
    owner.step(1_004, HostInput::State(&state));
    for now in 1_005..1_005 + 20 * LEASE_MS {
        owner.step(now, HostInput::Tick);
    }
    assert_eq!(owner.proposed(), []);
    // Also if it is brought back by a proposal of its process before.
    state.apply(&Command::Return { partition, view, host: HostId(1) });
    owner.step(20_000, HostInput::State(&state));
    assert_eq!(owner.role(), Some(MemberRole::Lost));
    assert_eq!(owner.proposed(), [Command::Exclude { partition, view }]);
}

#[test]
fn a_later_process_of_an_owner_that_has_given_up_its_region_does_not_serve_it() {
    let mut state = whole(3, 2);
    let partition = PARTITION;
    // The region is not bound any more.
    let mut owner = Owner::start(1_000, &state, 0);
    owner.ahead(1_001, 2, VIEW);
    let mut later =
        Owner { host: Host::new(HostId(1), 2, Monotonic(1_100 * MS)), effects: Vec::new() };
    later.step(1_100, HostInput::Region { partition, facts: RegionState::NEW });
    later.step(1_100, HostInput::State(&state));
    let register = Command::Register { partition, host: HostId(1), process: 2 };
    assert_eq!(later.proposed(), [register]);
    state.apply(&register);
    later.step(1_101, HostInput::State(&state));
    later.answers(1_102, 2, 5);
    assert_eq!(later.role(), Some(MemberRole::Lost));
    assert!(!later.is_leased(1_103));
    assert_eq!(later.proposed(), [EXCLUDE]);
    state.apply(&EXCLUDE);
    // It neither reports nor returns.
    for now in 1_104..1_104 + 20 * LEASE_MS {
        later.step(now, if now == 1_104 { HostInput::State(&state) } else { HostInput::Tick });
    }
    assert_eq!(later.proposed(), []);
}

#[test]
fn only_a_member_that_counts_can_say_in_its_view_that_the_region_is_older() {
    let mut state = whole(3, 2);
    let revision = state.group(PARTITION).unwrap().revision();
    state.apply(&Command::Evict { partition: PARTITION, revision, host: HostId(3) });
    let mut owner = Owner::start(1_000, &state, 0);
    owner.answers(1_001, 2, 5);
    owner.proposed();
    for (host, view) in [(3, 1), (4, 1), (1, 1), (2, 0), (2, 2)] {
        owner.ahead(1_002, host, ViewNumber(view));
        assert_eq!(owner.role(), Some(MemberRole::Serving), "{host} in view {view}");
        assert_eq!(owner.effects, [], "{host} in view {view}");
    }
    assert!(owner.is_leased(1_003));
    owner.ahead(1_004, 2, VIEW);
    assert_eq!(owner.role(), Some(MemberRole::Lost));
}

#[test]
fn a_process_has_the_lease_that_members_have_granted_to_it_and_no_earlier_one() {
    let state = whole(3, 2);
    let partition = PARTITION;
    let mut owner = Owner::start(1_000, &state, 9_000);
    for now in 1_001..1_100 {
        owner.step(now, HostInput::Tick);
        assert!(!owner.is_leased(now));
    }
    assert!(!owner.effects.contains(&HostEffect::Unfence { partition }), "{:?}", owner.effects);
    owner.answers(1_100, 2, 5);
    assert!(owner.is_leased(1_101));
    let is_lease = |effect: &&HostEffect| matches!(effect, HostEffect::SetLease { .. });
    let set: Vec<&HostEffect> = owner.effects.iter().filter(is_lease).collect();
    assert_eq!(set.len(), 1, "a lease that ends before that of the region is stored: {set:?}");
    assert!(owner.effects.contains(&HostEffect::Unfence { partition }), "{:?}", owner.effects);
    // What the region says still bounds what members may have granted.
    owner.answers(1_800, 2, 5);
    assert_eq!(owner.proposed(), [], "the third one may be what the earlier lease rests on");
    for now in 9_000..9_002 {
        owner.answers(now, 2, 5);
    }
    let is_eviction = |of: &Command| matches!(of, Command::Evict { host: HostId(3), .. });
    assert!(owner.proposed().iter().any(is_eviction));
}
