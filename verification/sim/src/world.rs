//! A simulated cluster with one partition.

use crate::event::{EventQueue, Message, SimulatedEvent};
use crate::ledger::Ledger;
use crate::node::{Operator, SimulatedClock, SimulatedHost};
use crate::options::{Faults, SimulationOptions};
use crate::region::{Copy, Region, mix};
use fastrand::Rng;
use nearstate_cluster::{
    ClusterConfig, ClusterLevel, ClusterState, Command, GroupState, HostConfig, HostId, Monotonic,
    PartitionConfig, PartitionId, Switch,
};
use std::collections::BTreeMap;

/// The one partition.
pub(crate) const PARTITION: PartitionId = PartitionId(1);

/// A millisecond in the unit of all times.
pub(crate) const MS: u64 = 1_000_000;

pub(crate) const LEASE_MS: u32 = 300;

/// Without faults, before and after them: to join, and to become whole again.
const QUIET_MS: u64 = 2_000;
const HEAL_MS: u64 = 120_000;

/// Hosts outside the first group, if operators change it.
const SPARE_HOSTS: u16 = 2;

/// What a run was like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunReport {
    /// The first thing that must not happen, and did.
    pub violation: Option<String>,
    /// Check value of everything that happened.
    pub trace: u64,
    /// Steps of hosts.
    pub steps: u64,
    /// Views.
    pub views: u64,
    /// Transactions of which the output was released.
    pub released: usize,
    /// Losses that an operator had to accept.
    pub accepted: u32,
    /// How often the region of an earlier owner became a copy with its records.
    pub kept: u32,
    /// How often a process started with an older copy of its region.
    pub restored: u32,
    /// How often another host owned the partition at the end of a drain.
    pub drained: u32,
    /// How often one copy began to suffice.
    pub degraded: u32,
    /// How often a host was added to the group, and how often one was removed.
    pub changes: (u32, u32),
    /// How often a host that counted began to leave it.
    pub leaving: u32,
    /// What happened, if it was asked for: one line for each command and effect.
    pub log: Vec<String>,
}

/// A simulated cluster.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) options: SimulationOptions,
    pub(crate) random: Rng,
    pub(crate) now: u64,
    pub(crate) queue: EventQueue,
    pub(crate) nodes: BTreeMap<HostId, SimulatedHost>,
    /// The state after each number of commands.
    pub(crate) states: Vec<ClusterState>,
    /// No messages on these links before.
    pub(crate) cuts: BTreeMap<(HostId, HostId), u64>,
    /// Consensus orders nothing before.
    pub(crate) stalled_until: u64,
    pub(crate) ledger: Ledger,
    pub(crate) numbers: u64,
    pub(crate) trace: u64,
    pub(crate) log: Vec<String>,
    pub(crate) steps: u64,
    /// When the last transaction was released.
    pub(crate) progress_at: u64,
    /// A task of an operator that is not done.
    pub(crate) operator: Option<Operator>,
}

/// Runs one seed.
pub fn run(seed: u64, options: &SimulationOptions) -> RunReport {
    let mut world = World::new(seed, options);
    world.run();
    RunReport {
        trace: world.trace,
        steps: world.steps,
        views: world.latest().view().0,
        released: world.ledger.released.0,
        accepted: world.ledger.accepted,
        kept: world.ledger.kept,
        restored: world.ledger.restored,
        drained: world.ledger.drained,
        degraded: world.ledger.degraded,
        changes: world.ledger.changes,
        leaving: world.ledger.leaving,
        violation: world.ledger.violation,
        log: world.log,
    }
}

impl World {
    fn new(seed: u64, options: &SimulationOptions) -> Self {
        let mut random = Rng::with_seed(seed);
        let copies = options.copies.unwrap_or_else(|| random.u8(2..=5));
        let acknowledgements = options.acknowledgements.unwrap_or_else(|| random.u8(2..=copies));
        let group: Vec<HostId> = (1..=u16::from(copies)).map(HostId).collect();
        let spare = if options.changes_group { SPARE_HOSTS } else { 0 };
        let hosts: Vec<HostId> = (1..=u16::from(copies) + spare).map(HostId).collect();
        let config = ClusterConfig {
            hosts: hosts.iter().map(|id| HostConfig { id: *id, name: id.to_string() }).collect(),
            partitions: vec![PartitionConfig { id: PARTITION, name: "p".to_owned(), group }],
            copies,
            acknowledgements,
            lease_ms: LEASE_MS,
            copy_missing: options.policy(),
        };
        let mut state = ClusterState::new(&config).expect("the configuration is valid");
        state.apply(&Command::Finalize { level: ClusterLevel::HIGHEST });
        state.switch_off(&options.off);
        let nodes = hosts.iter().map(|id| (*id, new_node(&mut random))).collect();
        let mut world = Self {
            options: options.clone(),
            random,
            now: 0,
            queue: EventQueue::default(),
            nodes,
            states: vec![state],
            cuts: BTreeMap::new(),
            stalled_until: 0,
            ledger: Ledger::default(),
            numbers: 0,
            trace: 0,
            log: Vec::new(),
            steps: 0,
            progress_at: 0,
            operator: None,
        };
        for host in hosts {
            world.queue.add(0, SimulatedEvent::Start(host));
            world.queue.add(0, SimulatedEvent::Work(host));
        }
        world.queue.add(QUIET_MS * MS, SimulatedEvent::Fault);
        world.queue.add(world.heal_at(), SimulatedEvent::Operate);
        world
    }

    fn run(&mut self) {
        let end = self.heal_at() + HEAL_MS * MS;
        while self.ledger.violation.is_none() {
            let Some((time, event)) = self.queue.next() else { break };
            if time >= end || self.is_whole() {
                break;
            }
            self.now = time;
            let before = self.ledger.released.0;
            self.happen(event);
            if self.ledger.released.0 != before {
                self.progress_at = self.now;
            }
        }
        if self.ledger.violation.is_none() && !self.is_whole() {
            self.violate("NoStuck: the group does not become whole");
        }
    }

    /// After the last fault: does every host that is left hold a full copy, and is output released?
    fn is_whole(&self) -> bool {
        let group = self.latest();
        let left = group.group().iter().filter(|host| !self.node(**host).is_gone).count();
        let is_full = group.owner().is_some() && group.full().len() == left;
        let needed = left >= group.acknowledgements() || self.options.degrade_after_ms.is_some();
        self.now > self.heal_at() + 3_000 * MS && is_full && self.progress_at + 500 * MS > self.now
            || self.now > self.heal_at() && !needed
    }

    /// When the last fault has ended.
    pub(crate) fn heal_at(&self) -> u64 {
        (QUIET_MS + self.options.fault_ms) * MS
    }

    fn happen(&mut self, event: SimulatedEvent) {
        match event {
            SimulatedEvent::Tick(host, generation) => self.tick(host, generation),
            SimulatedEvent::Work(host) => self.work(host),
            SimulatedEvent::Arrive { from, to, message } => self.arrive(from, to, message),
            SimulatedEvent::Append(command) => self.append(command),
            SimulatedEvent::Apply(host, generation, upto) => self.apply(host, generation, upto),
            SimulatedEvent::Frozen(host, generation, view) => self.frozen(host, generation, view),
            SimulatedEvent::Promoted(host, generation, origin) => {
                self.promoted(host, generation, origin);
            }
            SimulatedEvent::Start(host) => self.start(host),
            SimulatedEvent::Fault => self.fault(),
            SimulatedEvent::Operate => self.operate(),
            SimulatedEvent::OperatorLooks => self.operator_looks(),
        }
    }

    /// Attached processes of a host read and commit, whether its node runs or not.
    fn work(&mut self, host: HostId) {
        let next = self.now + self.random.u64(5 * MS..40 * MS);
        self.queue.add(next, SimulatedEvent::Work(host));
        let (clock, is_late) = (self.clock(host), self.random.u8(..) < 25);
        let ignores_lease = self.options.is_off(Switch::Fence);
        let node = self.node(host);
        if node.region.copy != Copy::Owner || node.paused_until > self.now {
            return;
        }
        let has_lease = clock < node.region.lease_until || ignores_lease;
        let may_work = has_lease && !node.region.is_fenced;
        let is_late = is_late && !node.region.is_drained;
        if may_work {
            self.check_read(host);
        }
        // A writer that has passed the check before may decide much later.
        if may_work || is_late {
            self.numbers += 1;
            let id = self.numbers;
            let entry = self.node_mut(host).region.commit(id);
            self.check_commit((entry.log, entry.position, id));
        }
    }

    pub(crate) fn node(&self, host: HostId) -> &SimulatedHost {
        &self.nodes[&host]
    }

    pub(crate) fn node_mut(&mut self, host: HostId) -> &mut SimulatedHost {
        self.nodes.get_mut(&host).expect("a host of the cluster")
    }

    pub(crate) fn clock(&self, host: HostId) -> Monotonic {
        self.node(host).clock.at(self.now)
    }

    /// The state after all commands.
    pub(crate) fn latest(&self) -> &GroupState {
        let state = self.states.last().expect("the first state");
        state.group(PARTITION).expect("the partition")
    }

    /// A number that was not given before.
    pub(crate) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(crate) fn record(&mut self, what: &impl std::fmt::Debug) {
        let text = format!("{what:?}");
        let value = text.bytes().fold(self.now, |value, byte| mix(value, u64::from(byte)));
        self.trace = mix(self.trace, value);
        if self.options.keeps_log {
            self.log.push(format!("{:>8.1} ms {text}", self.now as f64 / MS as f64));
        }
    }

    /// Sends a message, or loses it, or repeats it, after some time.
    pub(crate) fn send(&mut self, from: HostId, to: HostId, message: &Message) {
        if self.cuts.get(&(from, to)).is_some_and(|until| *until > self.now) {
            return;
        }
        let is_faulty = self.is_faulty();
        if is_faulty && self.random.u8(..) < 8 {
            return;
        }
        let copies = 1 + usize::from(is_faulty && self.random.u8(..) < 8);
        for _ in 0..copies {
            let delay = match self.random.u8(..) {
                0..4 if is_faulty => self.random.u64(50 * MS..2_500 * MS),
                0..16 if is_faulty => self.random.u64(5 * MS..100 * MS),
                _ => self.random.u64(MS / 10..4 * MS),
            };
            let event = SimulatedEvent::Arrive { from, to, message: message.clone() };
            self.queue.add(self.now + delay, event);
        }
    }

    pub(crate) fn is_faulty(&self) -> bool {
        let is_time = self.now >= QUIET_MS * MS && self.now < self.heal_at();
        is_time
            && match self.options.faults {
                Faults::NoLoss
                | Faults::ForgetfulLogs
                | Faults::All
                | Faults::OlderOwners
                | Faults::OlderMembers
                | Faults::DegradedOwnerCut
                | Faults::DegradedOwnerLives => true,
                Faults::DegradedOwnerLost
                | Faults::Quiet
                | Faults::OwnerLost
                | Faults::OwnerDeaf => false,
            }
    }
}

fn new_node(random: &mut Rng) -> SimulatedHost {
    let rate = match random.u8(0..4) {
        0 => 980_000,
        1 => 1_020_000,
        _ => random.u64(980_000..=1_020_000),
    };
    SimulatedHost {
        clock: SimulatedClock { offset: random.u64(1..1 << 40), rate },
        region: Region::new(),
        older: None,
        process: None,
        generation: 0,
        paused_until: 0,
        uninformed_until: 0,
        is_gone: false,
    }
}
