//! All orders of a small group: three hosts, RF 3, n 2, with the product's state machine. Time is
//! abstract: a lease and a promise end at any time, but a lease ends while n - 1 of the promises
//! on which it rests still hold. What hosts do is written anew here, in the terms of decision 026.

use crate::fixture::{PARTITION, base, contains, group_changes, host, index, log_position, whole};
use nearstate_cluster::{
    Applied, ClusterLevel, ClusterState, Command, GroupPhase, GroupState, Switch, ViewNumber,
};
use stateright::{Checker, Model, Property};
use std::collections::BTreeSet;

const HOSTS: usize = 3;
const NEEDED: usize = 2;

/// Steps of the exploration in each run of the tests: some seconds.
const DEPTH: usize = 12;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ModelCopy {
    Empty,
    Follower,
    Owner,
}

/// A host: its region, and what its process knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ModelHost {
    copy: ModelCopy,
    origin: u64,
    position: u64,
    replicated: u64,
    /// Stored: the view, the revision, and the member that is being evicted.
    record: (u64, u64, Option<usize>),
    /// Valid: which members have granted it.
    lease: Option<[bool; HOSTS]>,
    /// How many commands it has applied, and how many it needs.
    applied: usize,
    needs: usize,
    promises: bool,
    acknowledged: [Option<u64>; HOSTS],
    answered: [bool; HOSTS],
    /// An acknowledgement on its way: view, position, and whether its promise still holds.
    sent: Option<(u64, u64, bool)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ModelState {
    states: Vec<ClusterState>,
    nodes: [ModelHost; HOSTS],
    /// Proposals that may be ordered at any time, and again.
    pending: BTreeSet<Vec<u8>>,
    released: (u64, u64),
    is_broken: bool,
    losses: u8,
    restarts: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ModelAction {
    Apply(usize),
    Write(usize),
    Ship(usize, usize),
    Acknowledge(usize),
    EndLease(usize),
    EndPromise(usize),
    Exclude,
    HandOver(usize),
    Report(usize),
    Return(usize),
    Propose(Command),
    Order(Vec<u8>),
    Restart(usize),
    Lose(usize),
    ChangeGroup(Command),
}

#[derive(Debug, Clone)]
pub(crate) struct ModelGroup {
    pub(crate) off: Vec<Switch>,
    pub(crate) writes: u64,
    pub(crate) views: u64,
    pub(crate) losses: u8,
    pub(crate) restarts: u8,
    /// How many changes of the membership.
    pub(crate) changes: u64,
    /// Operators add and remove hosts.
    pub(crate) changes_group: bool,
    /// Operators name the next owner.
    pub(crate) hands_over: bool,
}

impl ModelState {
    fn latest(&self) -> &GroupState {
        self.states.last().unwrap().group(PARTITION).unwrap()
    }

    fn known(&self, node: usize) -> &GroupState {
        self.states[self.nodes[node].applied].group(PARTITION).unwrap()
    }

    fn held(&self, node: usize) -> (u64, u64) {
        (self.nodes[node].origin, self.nodes[node].position)
    }
}

impl ModelGroup {
    fn is_off(&self, switch: Switch) -> bool {
        self.off.contains(&switch)
    }

    /// May the host act on its applied state?
    fn acts(&self, world: &ModelState, node: usize) -> bool {
        let (known, this) = (world.known(node), &world.nodes[node]);
        (known.view().0 >= this.record.0 || self.is_off(Switch::StoredView))
            && (known.revision().0 >= this.record.1 || self.is_off(Switch::StoredRevision))
            && (this.applied >= this.needs || self.is_off(Switch::RegisterFirst))
    }

    fn serves(&self, world: &ModelState, node: usize) -> bool {
        let (known, this) = (world.known(node), &world.nodes[node]);
        self.acts(world, node)
            && known.owner() == Some(host(node))
            && this.copy == ModelCopy::Owner
            && this.origin == known.origin().0
    }

    fn counted(&self, world: &ModelState, owner: usize) -> Vec<usize> {
        let (known, this) = (world.known(owner), &world.nodes[owner]);
        let evicting = |node: usize| {
            this.record.2 == Some(node)
                && this.record.1 == known.revision().0
                && !self.is_off(Switch::EvictingIsStored)
        };
        let counts = |node: &usize| {
            *node != owner
                && (known.full().contains(&host(*node)) || self.is_off(Switch::CountFull))
                && !evicting(*node)
        };
        (0..HOSTS).filter(counts).collect()
    }

    /// The host has applied a command: it freezes, promotes or discards its copy.
    fn follow_state(&self, world: &mut ModelState, node: usize) {
        if !self.acts(world, node) {
            return;
        }
        let known = world.known(node).clone();
        let base = base(&world.states, known.origin().0);
        let this = &mut world.nodes[node];
        if this.record.0 < known.view().0 {
            this.record.0 = known.view().0;
            this.acknowledged = [None; HOSTS];
            this.answered = [false; HOSTS];
        }
        let Some(owner) = known.owner() else { return };
        let seal = base.map(|seal| (seal.origin.0, seal.position));
        let is_at = seal == Some((this.origin, this.position));
        let is_within = seal.is_some_and(|seal| seal.0 == this.origin && seal.1 >= this.position);
        if owner == host(node) {
            this.record.1 = known.revision().0.max(this.record.1);
            if this.copy == ModelCopy::Follower && is_at {
                (this.copy, this.origin, this.position) = (ModelCopy::Owner, known.origin().0, 0);
                (this.replicated, this.lease) = (0, None);
            }
            return;
        }
        let is_part =
            this.copy == ModelCopy::Follower && (this.origin == known.origin().0 || is_within);
        let is_settled = known.full().len() >= NEEDED;
        if this.copy != ModelCopy::Empty && !is_part && is_settled {
            (this.copy, this.position, this.lease) = (ModelCopy::Empty, 0, None);
        }
    }

    fn acknowledge(&self, world: &mut ModelState, member: usize) {
        let Some((view, position, is_fresh)) = world.nodes[member].sent.take() else { return };
        let is_of = |node: &usize| {
            self.serves(world, *node)
                && (world.known(*node).view().0 == view
                    || self.is_off(Switch::AcknowledgementOfView))
        };
        let Some(owner) = (0..HOSTS).find(is_of) else { return };
        let known = &mut world.nodes[owner].acknowledged[member];
        *known = (*known).max(Some(position));
        // The lease begins when the message was sent: a late answer does not lengthen it.
        world.nodes[owner].answered[member] |= is_fresh || self.is_off(Switch::LeaseFromSend);
        let counted = self.counted(world, owner);
        let this = &world.nodes[owner];
        let granters: Vec<usize> =
            counted.iter().copied().filter(|node| this.answered[*node]).collect();
        let mut positions: Vec<u64> =
            counted.iter().filter_map(|node| this.acknowledged[*node]).collect();
        positions.sort_unstable_by(|a, b| b.cmp(a));
        let replicated = positions.get(NEEDED - 2).copied().unwrap_or(0);
        if granters.len() + 1 >= NEEDED {
            let lease = std::array::from_fn(|node| granters.contains(&node));
            world.nodes[owner].lease = Some(lease);
            let is_sealed = world.latest().origin().0 > world.nodes[owner].origin;
            world.is_broken |= is_sealed;
        }
        if replicated > world.nodes[owner].replicated {
            world.nodes[owner].replicated = replicated;
            let (held, new) = (world.held(owner), (world.nodes[owner].origin, replicated));
            world.is_broken |= !contains(&world.states, held, world.released)
                && !contains(&world.states, world.released, new);
            if contains(&world.states, new, world.released) {
                world.released = new;
            }
        }
    }

    /// Do the others hold everything that was replicated, and have they granted the lease?
    fn may_evict(&self, world: &ModelState, owner: usize, member: usize) -> bool {
        let this = &world.nodes[owner];
        let rest: Vec<usize> =
            self.counted(world, owner).into_iter().filter(|node| *node != member).collect();
        let hold = |node: &&usize| this.acknowledged[**node] >= Some(this.replicated);
        let grant = |lease: &[bool; HOSTS]| rest.iter().filter(|node| lease[**node]).count() + 1;
        let is_held =
            rest.iter().filter(hold).count() + 1 >= NEEDED || self.is_off(Switch::EvictHolders);
        let is_granted = this.lease.is_none_or(|lease| grant(&lease) >= NEEDED)
            || self.is_off(Switch::EvictLease);
        is_held && is_granted
    }

    fn end_promise(&self, world: &mut ModelState, node: usize) {
        world.nodes[node].promises = false;
        if let Some(sent) = &mut world.nodes[node].sent {
            sent.2 = false;
        }
        if !self.is_off(Switch::LeaseFromSend) {
            for owner in &mut world.nodes {
                owner.answered[node] = false;
                if let Some(lease) = &mut owner.lease {
                    lease[node] = false;
                }
            }
        }
    }

    fn propose(&self, world: &mut ModelState, command: &Command) -> Option<()> {
        if let Command::Evict { revision, host, .. } = command {
            let is_owner = |node: &usize| {
                self.serves(world, *node) && world.known(*node).revision() == *revision
            };
            let owner = (0..HOSTS).find(is_owner)?;
            let record = &mut world.nodes[owner].record;
            (record.1, record.2) = (revision.0, Some(index(*host)));
        }
        world.pending.insert(command.encode());
        Some(())
    }

    fn report(&self, world: &mut ModelState, node: usize) {
        let (partition, view) = (PARTITION, world.known(node).view());
        let (origin, position) = world.held(node);
        let owner = world.known(node).excluded().map(index);
        let (held, host) = (log_position(origin, position), host(node));
        order(world, &Command::Report { partition, view, host, held });
        // Without the rule it goes on to apply what the excluded owner has sent.
        if let Some(owner) = owner.filter(|_| self.is_off(Switch::FreezeFirst))
            && self.serves(world, owner)
            && world.nodes[owner].origin == origin
        {
            ship(world, owner, node);
        }
    }

    fn owner_actions(&self, world: &ModelState, owner: usize, actions: &mut Vec<ModelAction>) {
        let known = world.known(owner);
        let (partition, revision) = (PARTITION, known.revision());
        for member in (0..HOSTS).filter(|member| *member != owner) {
            let is_full = known.full().contains(&host(member));
            let this = &world.nodes[owner];
            let is_complete = this.acknowledged[member] >= Some(this.replicated);
            let host = host(member);
            let is_owner_copy = world.nodes[member].copy == ModelCopy::Owner;
            if self.acts(world, member)
                && world.known(member).view() == known.view()
                && world.known(member).owner() == known.owner()
                && !is_owner_copy
                && world.nodes[member].sent.is_none()
            {
                actions.push(ModelAction::Ship(owner, member));
            }
            if world.latest().revision().0 >= 4 + self.changes {
                continue;
            }
            if !is_full && is_complete && this.acknowledged[member].is_some() {
                actions.push(ModelAction::Propose(Command::Full { partition, revision, host }));
            }
            let is_free = this.record.1 != revision.0 || this.record.2.is_none();
            if is_full && is_free && known.full().len() > NEEDED {
                actions.extend(
                    self.may_evict(world, owner, member).then_some(ModelAction::Propose(
                        Command::Evict { partition, revision, host },
                    )),
                );
            }
        }
        if world.nodes[owner].position < self.writes {
            actions.push(ModelAction::Write(owner));
        }
    }

    fn node_actions(&self, world: &ModelState, node: usize, actions: &mut Vec<ModelAction>) {
        let (this, known) = (&world.nodes[node], world.known(node));
        if this.applied + 1 < world.states.len() {
            actions.push(ModelAction::Apply(node));
        }
        if this.sent.is_some() {
            actions.push(ModelAction::Acknowledge(node));
        }
        if this.lease.is_some() {
            actions.push(ModelAction::EndLease(node));
        }
        let outlives = |owner: &ModelHost| {
            owner.lease.is_none_or(|lease| {
                let rest =
                    |other: &usize| lease[*other] && *other != node && world.nodes[*other].promises;
                !lease[node] || (0..HOSTS).filter(rest).count() + 1 >= NEEDED
            })
        };
        if this.promises && world.nodes.iter().all(outlives) {
            actions.push(ModelAction::EndPromise(node));
        }
        let is_sealing = matches!(known.phase(), GroupPhase::Sealing { .. });
        if is_sealing && self.acts(world, node) {
            let may = !this.promises || self.is_off(Switch::Promise);
            if this.copy == ModelCopy::Follower && may {
                actions.push(ModelAction::Report(node));
            }
            if this.copy == ModelCopy::Owner && known.excluded() == Some(host(node)) {
                actions.push(ModelAction::Return(node));
            }
        }
        if world.restarts < self.restarts {
            actions.push(ModelAction::Restart(node));
        }
        if world.losses < self.losses && this.copy != ModelCopy::Empty {
            actions.push(ModelAction::Lose(node));
        }
    }
}

/// The region of a host is lost. Its next process knows nothing that is older.
fn lose(world: &mut ModelState, node: usize) {
    world.losses += 1;
    let (needs, applied) = (world.states.len() - 1, world.nodes[node].applied);
    world.nodes[node] = ModelHost {
        copy: ModelCopy::Empty,
        origin: 0,
        position: 0,
        replicated: 0,
        record: (0, 0, None),
        lease: None,
        applied,
        needs,
        promises: true,
        acknowledged: [None; HOSTS],
        answered: [false; HOSTS],
        sent: world.nodes[node].sent,
    };
}

fn order(world: &mut ModelState, command: &Command) -> bool {
    let mut state = world.states.last().unwrap().clone();
    let is_applied = !matches!(state.apply(command), Applied::Refused(_));
    let old = world.latest().origin();
    if is_applied {
        world.states.push(state);
        let leased = |node: &ModelHost| node.lease.is_some() && node.copy == ModelCopy::Owner;
        world.is_broken |= world.latest().origin() > old
            && world
                .nodes
                .iter()
                .any(|node| leased(node) && node.origin < world.latest().origin().0);
    }
    is_applied
}

/// The owner sends, the member applies, promises and answers.
fn ship(world: &mut ModelState, owner: usize, member: usize) {
    let source = world.nodes[owner].clone();
    let view = world.known(owner).view().0;
    let base = base(&world.states, source.origin).map(|seal| (seal.origin.0, seal.position));
    let this = &mut world.nodes[member];
    if this.copy == ModelCopy::Empty {
        (this.origin, this.position) = (source.origin, source.position);
    } else if this.origin == source.origin {
        this.position = (this.position + 1).min(source.position);
    } else if base.is_some_and(|base| base >= (this.origin, this.position)) {
        (this.origin, this.position) = (source.origin, 0);
    }
    this.copy = ModelCopy::Follower;
    this.promises = true;
    this.sent = Some((view, this.position, true));
}

impl Model for ModelGroup {
    type State = ModelState;
    type Action = ModelAction;

    fn init_states(&self) -> Vec<ModelState> {
        let mut state = whole();
        state.switch_off(&self.off);
        if self.changes_group {
            state.apply(&Command::Finalize { level: ClusterLevel::GROUP_CHANGES });
        }
        if self.hands_over {
            state.apply(&Command::Finalize { level: ClusterLevel::HAND_OVERS });
        }
        let node = |node: usize| ModelHost {
            copy: if node == 0 { ModelCopy::Owner } else { ModelCopy::Follower },
            origin: 1,
            position: 0,
            replicated: 0,
            record: (1, 0, None),
            lease: None,
            applied: 0,
            needs: 0,
            promises: false,
            acknowledged: [None; HOSTS],
            answered: [false; HOSTS],
            sent: None,
        };
        vec![ModelState {
            states: vec![state],
            nodes: std::array::from_fn(node),
            pending: BTreeSet::new(),
            released: (1, 0),
            is_broken: false,
            losses: 0,
            restarts: 0,
        }]
    }

    fn actions(&self, world: &ModelState, actions: &mut Vec<ModelAction>) {
        for node in 0..HOSTS {
            self.node_actions(world, node, actions);
            if self.serves(world, node) {
                self.owner_actions(world, node, actions);
            }
        }
        if world.latest().owner().is_some() && world.latest().view().0 < self.views {
            actions.push(ModelAction::Exclude);
            actions.extend((0..HOSTS).filter(|_| self.hands_over).map(ModelAction::HandOver));
        }
        if self.changes_group && world.latest().revision().0 < 4 + self.changes {
            let changes = group_changes(world.latest()).map(ModelAction::ChangeGroup);
            actions.extend(changes);
        }
        actions.extend(world.pending.iter().cloned().map(ModelAction::Order));
    }

    fn next_state(&self, before: &ModelState, action: ModelAction) -> Option<ModelState> {
        let mut world = before.clone();
        let partition = PARTITION;
        match action {
            ModelAction::Apply(node) => {
                world.nodes[node].applied += 1;
                self.follow_state(&mut world, node);
            }
            ModelAction::Write(node) => world.nodes[node].position += 1,
            ModelAction::Ship(owner, member) => ship(&mut world, owner, member),
            ModelAction::Acknowledge(member) => self.acknowledge(&mut world, member),
            ModelAction::EndLease(node) => {
                world.nodes[node].lease = None;
                world.nodes[node].answered = [false; HOSTS];
            }
            ModelAction::EndPromise(node) => self.end_promise(&mut world, node),
            ModelAction::Exclude => {
                let view = world.latest().view();
                order(&mut world, &Command::Exclude { partition, view });
            }
            ModelAction::HandOver(to) => {
                let (view, host) = (world.latest().view(), host(to));
                order(&mut world, &Command::HandOver { partition, view, host });
            }
            ModelAction::Report(node) => self.report(&mut world, node),
            ModelAction::Return(node) => {
                let (view, host) = (world.known(node).view(), host(node));
                order(&mut world, &Command::Return { partition, view, host });
            }
            ModelAction::Propose(command) => self.propose(&mut world, &command)?,
            ModelAction::Order(bytes) => {
                let command = Command::decode(&bytes).unwrap();
                if !order(&mut world, &command) {
                    world.pending.remove(&bytes);
                }
            }
            ModelAction::Restart(node) => {
                world.restarts += 1;
                let this = &mut world.nodes[node];
                this.applied = this.applied.saturating_sub(1);
                this.promises = !self.is_off(Switch::PromiseAtStart);
                (this.acknowledged, this.answered) = ([None; HOSTS], [false; HOSTS]);
                self.follow_state(&mut world, node);
            }
            ModelAction::Lose(node) => lose(&mut world, node),
            ModelAction::ChangeGroup(command) => _ = order(&mut world, &command),
        }
        (world != *before).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("Rules", |_: &Self, world: &ModelState| !world.is_broken),
            Property::always("Durable", |_: &Self, world: &ModelState| {
                let Some(owner) = world.latest().owner() else { return true };
                let this = &world.nodes[index(owner)];
                this.copy != ModelCopy::Owner
                    || this.origin != world.latest().origin().0
                    || contains(&world.states, world.held(index(owner)), world.released)
            }),
            Property::sometimes("FailOver", |_: &Self, world: &ModelState| {
                let owner = world.latest().owner().map(index);
                world.latest().origin() > ViewNumber::FIRST
                    && owner.is_some_and(|owner| world.nodes[owner].replicated > 0)
            }),
        ]
    }
}

/// Explores everything up to this depth. Returns how many states there are.
pub(crate) fn explore(group: ModelGroup, depth: usize) -> usize {
    let checker = group.checker().target_max_depth(depth).spawn_bfs().join();
    checker.assert_no_discovery("Rules");
    checker.assert_no_discovery("Durable");
    checker.unique_state_count()
}

/// Without the rule a violation is found within this depth.
pub(crate) fn fails(switch: Switch, mut group: ModelGroup, depth: usize) {
    group.off.push(switch);
    let checker = group.checker().target_max_depth(depth).spawn_bfs().join();
    let found = checker.discoveries();
    let failed: Vec<_> = found.keys().filter(|name| **name != "FailOver").collect();
    println!("{switch:?}: {failed:?} of {} states", checker.unique_state_count());
    assert!(!failed.is_empty(), "{switch:?} is not needed within these bounds");
}

pub(crate) fn small() -> ModelGroup {
    ModelGroup {
        off: Vec::new(),
        writes: 1,
        views: 2,
        losses: 0,
        restarts: 0,
        changes: 0,
        changes_group: false,
        hands_over: false,
    }
}

#[test]
fn everything_within_small_bounds_keeps_the_rules() {
    println!("{} states", explore(small(), DEPTH));
}

#[test]
fn each_rule_that_small_bounds_show_is_needed() {
    for (switch, depth) in [
        (Switch::Promise, 9),
        (Switch::ReportQuorum, 9),
        (Switch::FreezeFirst, 12),
        (Switch::ShorterIsNotFull, 14),
        (Switch::LeaseFromSend, 12),
        (Switch::EvictLease, 13),
    ] {
        fails(switch, small(), depth);
    }
}

/// The same with lost regions, restarts and changes of the members.
#[test]
#[ignore = "takes minutes and gigabytes: run it with `--ignored`"]
fn everything_within_larger_bounds_keeps_the_rules() {
    let larger = ModelGroup { writes: 2, views: 3, losses: 1, restarts: 1, changes: 2, ..small() };
    println!("{} states", explore(larger, DEPTH));
}
