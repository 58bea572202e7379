//! All orders of two hosts with copies of which one may suffice (rule 12 of decision 026), with the
//! product's state machine. The witness has no copy: it is why commands are ordered while one host
//! is lost. Its directory and that of a host may be restored from an older copy, as if all were.
//! Time is abstract as in `model`; a message and its answer are one step here.

use crate::fixture::{PARTITION, base, contains, host, index, log_position, two_hosts};
use nearstate_cluster::limits::RAISED_VIEW_STEP;
use nearstate_cluster::{
    Applied, ClusterLevel, ClusterState, Command, GroupPhase, GroupState, HostId, Monotonic,
    Revision, Switch, ViewNumber,
};
use stateright::{Checker, Model, Property};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum PairLease {
    None,
    /// It rests on the promise of the other host.
    Promised,
    /// It rests on an ordered renewal.
    Renewed,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PairHost {
    is_owner_copy: bool,
    origin: u64,
    position: u64,
    replicated: u64,
    /// Stored: the revision on which it has acted, and whether the other host is counted before it
    /// is full.
    record: (u64, bool),
    lease: PairLease,
    /// How many commands it has applied.
    applied: usize,
    promises: bool,
    /// One lease has passed since it learned that the partition is sealing.
    has_waited: bool,
    acknowledged: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PairState {
    states: Vec<ClusterState>,
    nodes: [PairHost; 2],
    /// A proposal that may be ordered at any time, and again.
    pending: Vec<Vec<u8>>,
    /// The last ordered renewal was sent less than a lease ago.
    is_renewal_fresh: bool,
    released: (u64, u64),
    is_broken: bool,
    is_restored: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum PairAction {
    Apply(usize),
    Write(usize),
    Exchange(usize),
    CountAlone(usize),
    TakeRenewed(usize),
    Admit(usize),
    EndLease(usize),
    EndPromise(usize),
    EndWait(usize),
    Restart(usize),
    /// The membership has only so many commands any more. All processes were stopped.
    RestoreMembership(usize),
    Order(Command),
    Propose(Command),
    Repeat(Vec<u8>),
}

#[derive(Debug, Clone)]
struct Pair {
    off: Option<Switch>,
    /// One copy suffices already.
    is_degraded: bool,
    /// The membership may be restored from an older copy of its view.
    restores: bool,
}

impl PairState {
    fn latest(&self) -> &GroupState {
        self.states.last().unwrap().group(PARTITION).unwrap()
    }

    fn known(&self, node: usize) -> &GroupState {
        self.states[self.nodes[node].applied].group(PARTITION).unwrap()
    }

    fn held(&self, node: usize) -> (u64, u64) {
        (self.nodes[node].origin, self.nodes[node].position)
    }

    /// Output up to here leaves the owner.
    fn release(&mut self, owner: usize, position: u64) {
        if position <= self.nodes[owner].replicated {
            return;
        }
        self.nodes[owner].replicated = position;
        let (held, new) = (self.held(owner), (self.nodes[owner].origin, position));
        self.is_broken |= self.latest().origin().0 > new.0;
        self.is_broken |= !contains(&self.states, held, self.released)
            && !contains(&self.states, self.released, new);
        if contains(&self.states, new, self.released) {
            self.released = new;
        }
    }

    fn order(&mut self, command: &Command) -> bool {
        let mut state = self.states.last().unwrap().clone();
        let applied = state.apply(command);
        if matches!(applied, Applied::Refused(_)) || state == *self.states.last().unwrap() {
            return false;
        }
        self.states.push(state);
        self.is_renewal_fresh |= matches!(applied, Applied::Renewed(_));
        if matches!(applied, Applied::LossAccepted(..)) {
            let sealed = self.latest().seal().unwrap();
            self.released = (sealed.origin.0, sealed.position);
        }
        let origin = self.latest().origin().0;
        let is_late = |node: &PairHost| node.is_owner_copy && node.lease != PairLease::None;
        self.is_broken |= self.nodes.iter().any(|node| is_late(node) && node.origin < origin);
        true
    }
}

impl Pair {
    fn is_off(&self, switch: Switch) -> bool {
        self.off == Some(switch)
    }

    /// May the host act on its applied state?
    fn acts(world: &PairState, node: usize) -> bool {
        world.known(node).revision().0 >= world.nodes[node].record.0
    }

    fn serves(world: &PairState, node: usize) -> bool {
        let (known, this) = (world.known(node), &world.nodes[node]);
        known.owner() == Some(host(node))
            && this.is_owner_copy
            && this.origin == known.origin().0
            && Self::acts(world, node)
    }

    fn admits(world: &PairState, owner: usize) -> bool {
        let record = world.nodes[owner].record;
        record.1 && record.0 == world.known(owner).revision().0
    }

    /// May the owner count its own copy alone?
    fn is_alone(&self, world: &PairState, owner: usize) -> bool {
        match world.known(owner).degraded() {
            None => self.is_off(Switch::DegradeByMembership),
            Some(_) => !Self::admits(world, owner) || self.is_off(Switch::AdmitJointly),
        }
    }

    /// Does the owner count the other host?
    fn counts(world: &PairState, owner: usize) -> bool {
        world.known(owner).full().len() == 2 || Self::admits(world, owner)
    }

    fn exchange(world: &mut PairState, owner: usize) {
        let member = 1 - owner;
        let source = world.nodes[owner].clone();
        let base = base(&world.states, source.origin).map(|seal| (seal.origin.0, seal.position));
        let this = &mut world.nodes[member];
        if this.origin == source.origin && !this.is_owner_copy {
            this.position = (this.position + 1).min(source.position);
        } else if base == Some((this.origin, this.position)) {
            (this.origin, this.position) = (source.origin, 0);
        } else {
            // It is discarded, and joins.
            (this.origin, this.position) = (source.origin, source.position);
        }
        (this.is_owner_copy, this.lease, this.promises) = (false, PairLease::None, true);
        let position = this.position;
        world.nodes[owner].acknowledged = Some(position);
        if Self::counts(world, owner) {
            world.release(owner, position);
            world.nodes[owner].lease = PairLease::Promised;
            world.is_broken |= world.latest().origin().0 > source.origin;
        }
    }

    fn follow_state(&self, world: &mut PairState, node: usize) {
        if !Self::acts(world, node) {
            return;
        }
        let known = world.known(node).clone();
        let this = &mut world.nodes[node];
        if known.owner().is_some() {
            this.has_waited = false;
        }
        let is_owner = known.owner() == Some(host(node));
        let is_stored = is_owner || !self.is_off(Switch::MemberRevision);
        if is_stored && this.record.0 < known.revision().0 {
            this.record = (known.revision().0, false);
        }
        if !is_owner {
            this.acknowledged = None;
            return;
        }
        let seal = known.seal().map(|seal| (seal.origin.0, seal.position));
        if !this.is_owner_copy && seal == Some((this.origin, this.position)) {
            (this.is_owner_copy, this.origin, this.position) = (true, known.origin().0, 0);
            (this.replicated, this.lease, this.acknowledged) = (0, PairLease::None, None);
        }
    }

    fn owner_actions(&self, world: &PairState, owner: usize, actions: &mut Vec<PairAction>) {
        let (known, this) = (world.known(owner), &world.nodes[owner]);
        let (partition, revision, member) = (PARTITION, known.revision(), 1 - owner);
        let other = world.known(member);
        let is_admitting = Self::admits(world, owner);
        if this.position < 1 {
            actions.push(PairAction::Write(owner));
        }
        let is_followed = other.view() == known.view() && other.owner() == known.owner();
        if is_followed && Self::acts(world, member) {
            actions.push(PairAction::Exchange(owner));
        }
        let is_leased = this.lease == PairLease::Renewed
            || known.degraded().is_none()
            || self.is_off(Switch::RenewByMembership);
        if self.is_alone(world, owner) && is_leased {
            actions.push(PairAction::CountAlone(owner));
        }
        let may_degrade = known.degraded().is_none() || is_admitting;
        if may_degrade && revision.0 < 6 {
            let host = host(owner);
            actions.push(PairAction::Propose(Command::Degrade { partition, revision, host }));
        }
        if let Some(degraded) = known.degraded() {
            if !is_admitting && this.acknowledged.is_some() {
                actions.push(PairAction::Admit(owner));
            }
            if degraded.renewed == Monotonic::BOOT && !is_admitting {
                let (host, stamp) = (host(owner), Monotonic(1));
                let renewal = Command::Renew { partition, revision, host, stamp };
                actions.push(PairAction::Order(renewal));
            }
            let is_renewed = degraded.renewed > Monotonic::BOOT && world.is_renewal_fresh;
            let is_free = this.lease == PairLease::None && !is_admitting;
            if is_free && (is_renewed || self.is_off(Switch::RenewByMembership)) {
                actions.push(PairAction::TakeRenewed(owner));
            }
            let holds = this.acknowledged >= Some(this.replicated);
            let grants = this.lease != PairLease::Renewed;
            if is_admitting && (holds && grants || self.is_off(Switch::AdmitJointly)) {
                let host = host(member);
                actions.push(PairAction::Propose(Command::Full { partition, revision, host }));
            }
        }
    }

    fn node_actions(&self, world: &PairState, node: usize, actions: &mut Vec<PairAction>) {
        let (this, known) = (&world.nodes[node], world.known(node));
        let (partition, view, other) = (PARTITION, known.view(), &world.nodes[1 - node]);
        if this.applied + 1 < world.states.len() {
            actions.push(PairAction::Apply(node));
        }
        if this.lease != PairLease::None {
            actions.push(PairAction::EndLease(node));
        }
        if this.promises && other.lease != PairLease::Promised {
            actions.push(PairAction::EndPromise(node));
        }
        if Self::serves(world, node) && this.applied > 0 && !Self::admits(world, node) {
            actions.push(PairAction::Restart(node));
        }
        if !Self::acts(world, node) {
            return;
        }
        let is_member = known.owner() == Some(host(1 - node)) && known.full().len() == 2;
        if is_member && decided_views(view) < 3 {
            let suspicion = Command::Suspect { partition, view, host: host(node) };
            actions.push(PairAction::Order(suspicion));
        }
        if !matches!(known.phase(), GroupPhase::Sealing { .. }) || this.is_owner_copy {
            return;
        }
        // What an earlier renewal has granted ends within a lease.
        if !this.has_waited && other.lease != PairLease::Renewed {
            actions.push(PairAction::EndWait(node));
        }
        let is_due = known.degraded().is_none()
            || this.has_waited
            || self.is_off(Switch::ReportAfterRenewal);
        if !this.promises && is_due {
            let (origin, position) = world.held(node);
            let (host, held) = (host(node), log_position(origin, position));
            actions.push(PairAction::Order(Command::Report { partition, view, host, held }));
        }
    }
}

/// How many views there were: a raised one is much later than that before it.
fn decided_views(view: ViewNumber) -> u64 {
    view.0 / RAISED_VIEW_STEP + view.0 % RAISED_VIEW_STEP
}

/// An operator excludes a degraded owner, and gives its partition to the other host. If a host
/// waits for more than the membership has, the partition continues behind what the hosts have seen.
fn operator_actions(world: &PairState, actions: &mut Vec<PairAction>) {
    let (latest, partition) = (world.latest(), PARTITION);
    let view = latest.view();
    let seen = world.nodes.iter().map(|node| node.record.0).max().unwrap();
    if seen > latest.revision().0 {
        let revision = Revision(seen);
        actions.push(PairAction::Order(Command::RaiseView { partition, view, revision }));
    }
    if latest.degraded().is_none() && !latest.is_operator_needed() {
        return;
    }
    match latest.phase() {
        GroupPhase::Serving { .. } if decided_views(view) < 2 => {
            actions.push(PairAction::Order(Command::Exclude { partition, view }));
        }
        GroupPhase::Serving { .. } => {}
        GroupPhase::Sealing { reports } => {
            let accept = |host: &HostId| Command::AcceptLoss { partition, view, host: *host };
            actions.extend(reports.keys().map(|host| PairAction::Order(accept(host))));
        }
    }
}

impl Model for Pair {
    type State = PairState;
    type Action = PairAction;

    fn init_states(&self) -> Vec<PairState> {
        let mut state = two_hosts();
        state.apply(&Command::Finalize { level: ClusterLevel::RAISED_VIEWS });
        state.switch_off(&self.off.into_iter().collect::<Vec<_>>());
        let before = self.restores.then(|| state.clone());
        if self.is_degraded {
            let revision = state.group(PARTITION).unwrap().revision();
            state.apply(&Command::Degrade { partition: PARTITION, revision, host: host(0) });
        }
        let node = |node: usize| PairHost {
            is_owner_copy: node == 0,
            origin: 1,
            position: 0,
            replicated: 0,
            record: (0, false),
            lease: PairLease::None,
            applied: 0,
            promises: false,
            has_waited: false,
            acknowledged: None,
        };
        let mut world = PairState {
            states: before.into_iter().chain([state]).collect(),
            nodes: std::array::from_fn(node),
            pending: Vec::new(),
            is_renewal_fresh: false,
            released: (1, 0),
            is_broken: false,
            is_restored: false,
        };
        for node in 0..2 {
            world.nodes[node].applied = world.states.len() - 1;
            self.follow_state(&mut world, node);
        }
        vec![world]
    }

    fn actions(&self, world: &PairState, actions: &mut Vec<PairAction>) {
        for node in 0..2 {
            self.node_actions(world, node, actions);
            if Self::serves(world, node) {
                self.owner_actions(world, node, actions);
            }
        }
        // Hosts that have not acted on what is lost have nothing to remember.
        let is_due = self.restores && !world.is_restored;
        if is_due && world.nodes.iter().all(|node| node.applied + 1 == world.states.len()) {
            let view = |state: &ClusterState| state.group(PARTITION).unwrap().view();
            let is_of_view = |at: &usize| view(&world.states[*at]) == world.latest().view();
            let earlier = (0..world.states.len() - 1).filter(is_of_view);
            actions.extend(earlier.map(PairAction::RestoreMembership));
        }
        operator_actions(world, actions);
        actions.extend(world.pending.iter().cloned().map(PairAction::Repeat));
    }

    fn next_state(&self, before: &PairState, action: PairAction) -> Option<PairState> {
        let mut world = before.clone();
        match action {
            PairAction::Apply(node) => {
                world.nodes[node].applied += 1;
                self.follow_state(&mut world, node);
            }
            PairAction::RestoreMembership(at) => {
                world.states.truncate(at + 1);
                world.pending.clear();
                for node in &mut world.nodes {
                    (node.applied, node.lease, node.acknowledged) = (at, PairLease::None, None);
                }
                world.is_restored = true;
            }
            PairAction::Write(node) => world.nodes[node].position += 1,
            PairAction::Exchange(owner) => Self::exchange(&mut world, owner),
            PairAction::CountAlone(owner) => {
                let position = world.nodes[owner].position;
                world.release(owner, position);
            }
            PairAction::TakeRenewed(owner) => {
                world.nodes[owner].lease = PairLease::Renewed;
                world.is_broken |= world.latest().origin().0 > world.nodes[owner].origin;
            }
            PairAction::Admit(owner) => {
                world.nodes[owner].record = (world.known(owner).revision().0, true);
            }
            PairAction::EndLease(node) => {
                world.nodes[node].lease = PairLease::None;
                world.is_renewal_fresh = false;
            }
            PairAction::EndPromise(node) => world.nodes[node].promises = false,
            PairAction::EndWait(node) => {
                world.nodes[node].has_waited = true;
                world.is_renewal_fresh = false;
            }
            PairAction::Restart(node) => {
                world.nodes[node].applied -= 1;
                world.nodes[node].acknowledged = None;
            }
            PairAction::Order(command) => drop(world.order(&command)),
            PairAction::Propose(command) => {
                let bytes = command.encode();
                if world.pending.contains(&bytes) {
                    return None;
                }
                world.pending.push(bytes);
                world.pending.sort_unstable();
            }
            PairAction::Repeat(bytes) => {
                if !world.order(&Command::decode(&bytes).unwrap()) {
                    world.pending.retain(|known| *known != bytes);
                }
            }
        }
        (world != *before).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("Rules", |_: &Self, world: &PairState| !world.is_broken),
            Property::always("Durable", |_: &Self, world: &PairState| {
                let Some(owner) = world.latest().owner() else { return true };
                let this = &world.nodes[index(owner)];
                !this.is_owner_copy
                    || this.origin != world.latest().origin().0
                    || contains(&world.states, world.held(index(owner)), world.released)
            }),
            Property::sometimes("TwoAgain", |_: &Self, world: &PairState| {
                let groups = world.states.iter().map(|state| state.group(PARTITION).unwrap());
                let is_degraded: Vec<bool> =
                    groups.map(|group| group.degraded().is_some()).collect();
                is_degraded.contains(&true)
                    && is_degraded.last() == Some(&false)
                    && world.latest().full().len() == 2
                    && world.released.1 > 0
            }),
        ]
    }
}

fn discoveries(pair: Pair, depth: usize) -> (usize, Vec<&'static str>) {
    let checker = pair.checker().target_max_depth(depth).spawn_bfs().join();
    let found = checker.discoveries().into_keys().collect();
    (checker.unique_state_count(), found)
}

#[test]
fn one_of_two_copies_suffices_and_no_released_output_is_lost() {
    for (is_degraded, restores, depth) in [(false, false, 13), (true, false, 13), (true, true, 15)]
    {
        let (states, found) = discoveries(Pair { off: None, is_degraded, restores }, depth);
        println!("{states} states: {found:?}");
        assert_eq!(found, ["TwoAgain"]);
    }
}

#[test]
fn each_rule_of_two_hosts_is_needed() {
    for (switch, (is_degraded, restores), depth) in [
        (Switch::DegradeByMembership, (false, false), 9),
        (Switch::AdmitJointly, (true, false), 15),
        (Switch::RenewByMembership, (true, false), 12),
        (Switch::ReportAfterRenewal, (true, false), 12),
        (Switch::MemberRevision, (true, true), 13),
    ] {
        let pair = Pair { off: Some(switch), is_degraded, restores };
        let (states, found) = discoveries(pair, depth);
        println!("{switch:?}: {found:?} of {states} states");
        assert!(found.iter().any(|name| *name != "TwoAgain"), "{switch:?} is not needed");
    }
}
