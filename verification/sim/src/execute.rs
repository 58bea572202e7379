//! Processes: steps of the product's rules, and what the rules ask for.

use crate::event::SimulatedEvent;
use crate::node::{Follow, Process, Serve};
use crate::region::{Copy, Region};
use crate::world::{MS, PARTITION, World};
use nearstate_cluster::{
    Applied, Command, Effects, FollowStart, Host, HostEffect, HostId, HostInput, LogPosition,
    Monotonic, Switch, ViewNumber,
};

impl World {
    /// Runs one step of a host's process, and does what it asks for.
    pub(crate) fn step(&mut self, host: HostId, input: HostInput<'_>) {
        let clock = self.clock(host);
        let Some(process) = &mut self.node_mut(host).process else { return };
        let mut effects = Effects::new();
        process.host.step(clock, input, &mut effects);
        self.steps += 1;
        let effects: Vec<HostEffect> = effects.drain().collect();
        for effect in effects {
            self.record(&(host, effect));
            self.execute(host, effect);
            if self.is_faulty() && self.random.u16(0..3000) == 0 {
                self.kill(host);
            }
            if self.node(host).process.is_none() {
                return;
            }
        }
    }

    fn execute(&mut self, host: HostId, effect: HostEffect) {
        match effect {
            HostEffect::Propose(command) => self.propose(host, command),
            HostEffect::Store { record, .. } => self.node_mut(host).region.record = record,
            HostEffect::SetReplicated { position, .. } => {
                let region = &mut self.node_mut(host).region;
                region.replicated = region.replicated.max(position);
                self.check_release(host, position);
            }
            HostEffect::SetFloor { .. } | HostEffect::Event(_) => {}
            HostEffect::GiveUpRegion { .. } => {
                self.check_gone(host, true);
                self.node_mut(host).region = Region::new();
                self.tell_facts(host);
            }
            HostEffect::WatchLog { view, .. } => {
                if let Some(process) = &mut self.node_mut(host).process {
                    process.watched = view;
                }
            }
            HostEffect::SetLease { until, .. } => {
                let region = &mut self.node_mut(host).region;
                // Only an owner that learns that its region is older ends its lease.
                let ends = until == Monotonic::BOOT;
                region.lease_until = if ends { until } else { region.lease_until.max(until) };
                self.check_lease(host);
            }
            HostEffect::Fence { .. } => self.order_fence(host, true),
            HostEffect::Unfence { .. } => self.order_fence(host, false),
            HostEffect::Freeze { view, .. } => self.freeze(host, view),
            HostEffect::Promote { origin, .. } => self.promote(host, origin),
            HostEffect::Demote { seal, .. } => self.demote(host, seal),
            HostEffect::Serve { .. }
            | HostEffect::StopServing { .. }
            | HostEffect::Answer { .. }
            | HostEffect::Follow { .. }
            | HostEffect::StopFollowing { .. } => self.connect(host, effect),
        }
    }

    fn connect(&mut self, host: HostId, effect: HostEffect) {
        let now = self.now;
        let Some(process) = &mut self.node_mut(host).process else { return };
        match effect {
            HostEffect::Serve { view, .. } => {
                let (followers, heard) = Default::default();
                process.serve = Some(Serve { view, followers, heard });
            }
            HostEffect::StopServing { .. } => process.serve = None,
            HostEffect::Follow { owner, view, start, .. } => {
                let stamp = Monotonic::BOOT;
                let (connection, is_connected, join_to) = (0, false, 0);
                process.set_follow(Some(Follow {
                    owner,
                    view,
                    start,
                    connection,
                    is_connected,
                    join_to,
                    log: None,
                    heard_at: now,
                    stamp,
                }));
            }
            HostEffect::StopFollowing { .. } => process.set_follow(None),
            HostEffect::Answer { view, stamp, .. } => {
                if let Some(follow) = process.follow.as_mut().filter(|follow| follow.view == view) {
                    follow.stamp = follow.stamp.max(stamp);
                }
            }
            HostEffect::Store { .. }
            | HostEffect::Propose(_)
            | HostEffect::SetReplicated { .. }
            | HostEffect::SetFloor { .. }
            | HostEffect::GiveUpRegion { .. }
            | HostEffect::SetLease { .. }
            | HostEffect::WatchLog { .. }
            | HostEffect::Fence { .. }
            | HostEffect::Unfence { .. }
            | HostEffect::Freeze { .. }
            | HostEffect::Promote { .. }
            | HostEffect::Demote { .. }
            | HostEffect::Event(_) => unreachable!("not about connections: {effect:?}"),
        }
    }

    pub(crate) fn propose(&mut self, host: HostId, command: Command) {
        let from = self.now.max(self.node(host).uninformed_until);
        let is_faulty = self.is_faulty();
        if is_faulty && self.random.u8(..) < 20 {
            return;
        }
        let copies = 1 + usize::from(is_faulty && self.random.u8(..) < 25);
        for _ in 0..copies {
            let delay = match self.random.u8(..) {
                0..24 if is_faulty => self.random.u64(10 * MS..2_000 * MS),
                _ => self.random.u64(MS / 5..8 * MS),
            };
            self.queue.add(from + delay, SimulatedEvent::Append(command));
        }
    }

    pub(crate) fn append(&mut self, command: Command) {
        if self.stalled_until > self.now {
            return self.queue.add(self.stalled_until, SimulatedEvent::Append(command));
        }
        let bytes = command.encode();
        assert_eq!(Command::decode(&bytes), Ok(command), "a command survives its encoding");
        let before = self.latest().clone();
        let mut state = self.states.last().expect("the first state").clone();
        let applied = state.apply(&command);
        self.record(&(command, applied));
        if matches!(applied, Applied::Refused(_)) {
            return;
        }
        self.states.push(state);
        self.check_applied(&before, applied);
        let upto = self.states.len() - 1;
        for host in self.nodes.keys().copied().collect::<Vec<_>>() {
            let delay = match self.random.u8(..) {
                0..16 if self.is_faulty() => self.random.u64(10 * MS..600 * MS),
                _ => self.random.u64(MS / 5..6 * MS),
            };
            let generation = self.node(host).generation;
            self.queue.add(self.now + delay, SimulatedEvent::Apply(host, generation, upto));
        }
    }

    pub(crate) fn apply(&mut self, host: HostId, generation: u64, upto: usize) {
        let event = SimulatedEvent::Apply(host, generation, upto);
        let until = self.node(host).uninformed_until.max(self.node(host).paused_until);
        if self.node(host).generation != generation {
            return;
        }
        if until > self.now {
            return self.queue.add(until, event);
        }
        let Some(process) = &mut self.node_mut(host).process else { return };
        if process.applied < upto {
            process.applied = upto;
            let state = self.states[upto].clone();
            self.step(host, HostInput::State(&state));
        }
    }

    fn freeze(&mut self, host: HostId, view: ViewNumber) {
        let delay = self.random.u64(1..5 * MS);
        let node = self.node_mut(host);
        let generation = node.generation;
        if let Some(process) = &mut node.process
            && process.follow.is_some()
        {
            process.set_follow(None);
        }
        if node.region.copy == Copy::Owner {
            node.region.is_fenced = true;
        }
        self.queue.add(self.now + delay, SimulatedEvent::Frozen(host, generation, view));
    }

    pub(crate) fn frozen(&mut self, host: HostId, generation: u64, view: ViewNumber) {
        let node = self.node_mut(host);
        if node.generation == generation && node.region.is_complete() {
            // A freeze waits for writers that had passed the check.
            node.region.is_drained = node.region.copy == Copy::Owner && node.region.is_fenced;
            let held = node.region.held();
            self.step(host, HostInput::Frozen { partition: PARTITION, view, held });
        }
    }

    fn promote(&mut self, host: HostId, origin: ViewNumber) {
        if self.options.is_off(Switch::PromoteFirst) {
            let region = &mut self.node_mut(host).region;
            if region.copy == Copy::Follower {
                (region.copy, region.origin) = (Copy::Owner, origin);
                return;
            }
        }
        let delay = self.random.u64(MS..30 * MS);
        let generation = self.node(host).generation;
        self.queue.add(self.now + delay, SimulatedEvent::Promoted(host, generation, origin));
    }

    /// The data path carries effects out in their order: a promotion that another effect of the
    /// role has overtaken does not happen.
    pub(crate) fn promoted(&mut self, host: HostId, generation: u64, origin: ViewNumber) {
        let log = self.number();
        let node = self.node_mut(host);
        let Some(process) = &node.process else { return };
        if node.generation != generation
            || process.host.role(PARTITION) != Some(nearstate_cluster::MemberRole::Promoting)
        {
            return;
        }
        if node.region.copy != Copy::Owner || node.region.origin != origin {
            if !node.region.is_complete() {
                node.region.discard(Copy::Empty);
            }
            node.region.promote(log, origin);
            self.check_promoted(host);
        }
        self.tell_facts(host);
    }

    fn demote(&mut self, host: HostId, seal: Option<LogPosition>) {
        let region = &self.node(host).region;
        let is_at_seal = region.copy == Copy::Owner && seal == Some(region.held());
        if is_at_seal {
            self.ledger.kept += 1;
        }
        if is_at_seal || self.options.is_off(Switch::DiscardOutdated) {
            let region = &mut self.node_mut(host).region;
            region.copy = Copy::Follower;
            region.is_fenced = true;
        } else {
            self.check_gone(host, false);
            self.node_mut(host).region.discard(Copy::Empty);
        }
        self.tell_facts(host);
    }

    pub(crate) fn tell_facts(&mut self, host: HostId) {
        let facts = self.node(host).region.facts();
        self.step(host, HostInput::Region { partition: PARTITION, facts });
    }

    pub(crate) fn kill(&mut self, host: HostId) {
        let node = self.node_mut(host);
        node.process = None;
        node.generation += 1;
        let delay = match self.random.u8(0..4) {
            0 => self.random.u64(5 * MS..2_000 * MS),
            _ => self.random.u64(5 * MS..200 * MS),
        };
        self.queue.add(self.now + delay, SimulatedEvent::Start(host));
    }

    /// A process starts: it knows what its region says, and an older state of consensus.
    pub(crate) fn start(&mut self, host: HostId) {
        if self.node(host).is_gone || self.node(host).process.is_some() {
            return;
        }
        let (clock, number, now) = (self.clock(host), self.number(), self.now);
        let rules = Host::new(host, number, clock).with_policy(self.options.policy());
        let last = self.states.len() - 1;
        let oldest = last.saturating_sub(self.random.usize(0..12));
        let node = self.node_mut(host);
        node.generation += 1;
        let generation = node.generation;
        let process = Process {
            host: rules,
            applied: 0,
            follow: None,
            ending: None,
            serve: None,
            watched: None,
            hold: None,
        };
        node.process = Some(process);
        self.tell_facts(host);
        let state = self.states[oldest].clone();
        if let Some(process) = &mut self.node_mut(host).process {
            process.applied = oldest;
        }
        self.step(host, HostInput::State(&state));
        let mut time = now;
        for upto in oldest + 1..=last {
            time += self.random.u64(1..20 * MS);
            self.queue.add(time, SimulatedEvent::Apply(host, generation, upto));
        }
        self.queue.add(now + MS, SimulatedEvent::Tick(host, generation));
    }

    /// The region of a host is lost.
    pub(crate) fn lose_region(&mut self, host: HostId) {
        self.check_gone(host, true);
        self.node_mut(host).region = Region::new();
        if let Some(process) = &mut self.node_mut(host).process {
            process.serve = None;
            if let Some(follow) = &mut process.follow {
                (follow.connection, follow.is_connected) = (0, false);
            }
            self.tell_facts(host);
        }
    }

    fn check_lease(&mut self, host: HostId) {
        let region = &self.node(host).region;
        let is_sealed = self.latest().origin() > region.origin;
        if is_sealed && region.lease_until > self.clock(host) {
            self.violate("LeaseRule: a lease after a seal");
        }
    }

    /// How a follower begins, as the data path sees it.
    pub(crate) fn must_discard(start: FollowStart, copy: Copy) -> bool {
        start == FollowStart::Discard && copy != Copy::Follower
            || matches!(copy, Copy::Empty | Copy::Joining)
    }
}
