//! Operators that drain the owner, with the product's tasks, during all other faults.

use crate::node::{Drain, Operator, Process, WriterHold};
use crate::world::{LEASE_MS, MS, PARTITION, World};
use nearstate_cluster::{
    Command, GroupState, HostId, LogPosition, Monotonic, OperatorGoal, OperatorStep, OperatorTask,
};
use std::collections::BTreeMap;

/// A task takes at most so long: eight leases and five seconds, as in the product.
const TASK_MAX: u64 = 8 * LEASE_MS as u64 * MS + 5_000 * MS;

impl World {
    /// An operator comes to the owner, if none is there.
    pub(crate) fn begin_drain(&mut self) {
        let Some(owner) = self.latest().owner().filter(|_| self.operator.is_none()) else { return };
        let hosts: Vec<HostId> = self.nodes.keys().copied().collect();
        let named = hosts[self.random.usize(0..hosts.len())];
        let goal = match self.random.u8(0..3) {
            0 => OperatorGoal::Drain,
            1 => OperatorGoal::DrainPreferring(named),
            _ => OperatorGoal::DrainTo(named),
        };
        self.record(&("drain", owner, goal));
        let drain = Drain {
            generation: self.node(owner).generation,
            ends_at: self.now + TASK_MAX,
            held_in: None,
            is_proposed: false,
            is_undecided: false,
        };
        self.operator = Some(Operator { host: owner, goal, task: None, drain: Some(drain) });
        self.operator_looks();
    }

    /// The task makes a step at the owner. Returns false when it has ended.
    pub(crate) fn drain_looks(&mut self, operator: &mut Operator) -> bool {
        let (host, now, goal) = (operator.host, self.clock(operator.host), operator.goal);
        let Some(drain) = &mut operator.drain else { return false };
        let node = self.node(host);
        // What the process held has ended with it.
        let Some(process) = node.process.as_ref().filter(|_| node.generation == drain.generation)
        else {
            return false;
        };
        if node.paused_until > self.now {
            return true;
        }
        let state = &self.states[process.applied];
        let Some(group) = state.group(PARTITION).cloned() else { return false };
        let (lease, replicated) = (state.lease(), node.region.replicated);
        let tail = node.region.position();
        let heard = process.members_heard(now, lease.promise_ns());
        let is_owner = |view| group.owner() == Some(host) && Some(group.view()) == view;
        if drain.is_undecided {
            if is_owner(drain.held_in) {
                self.propose(host, exclusion(&group, goal));
                return true;
            }
            self.release_writers(host, false);
            return false;
        }
        let task = operator.task.get_or_insert_with(|| OperatorTask::new(goal, &group, lease, now));
        if drain.held_in.is_some() {
            task.replicated(replicated);
        }
        task.members_heard(heard);
        let step = task.step(now, &group, true);
        let is_late = self.now >= drain.ends_at;
        if matches!(step, OperatorStep::Freeze) && is_owner(Some(group.view())) {
            drain.held_in = Some(group.view());
            task.frozen(now, tail);
        }
        drain.is_proposed |= matches!(step, OperatorStep::Propose(_));
        let (held_in, is_proposed) = (drain.held_in, drain.is_proposed);
        self.record(&("drain", step));
        let has_ended = match step {
            OperatorStep::Wait(_) => is_late,
            OperatorStep::Freeze => {
                self.hold_writers(host);
                is_late
            }
            OperatorStep::Propose(command) => {
                self.propose(host, command);
                is_late
            }
            OperatorStep::Refused(_) => true,
            OperatorStep::Done { .. } => {
                self.ledger.drained += 1;
                true
            }
        };
        if !has_ended || held_in.is_none() {
            return !has_ended;
        }
        drain.is_undecided = is_owner(held_in) && is_proposed;
        if drain.is_undecided {
            return true;
        }
        self.release_writers(host, is_owner(held_in));
        false
    }

    /// Writers are refused, and those that had passed the check before have ended their commit.
    fn hold_writers(&mut self, host: HostId) {
        let node = self.node_mut(host);
        let is_fenced = node.region.is_fenced;
        if let Some(process) = &mut node.process {
            process.hold = Some(WriterHold { is_fenced, is_ordered: false });
        }
        (node.region.is_fenced, node.region.is_drained) = (true, true);
    }

    /// Writers are held no longer. `admits`: this host was the owner all the time.
    fn release_writers(&mut self, host: HostId, admits: bool) {
        let node = self.node_mut(host);
        let Some(hold) = node.process.as_mut().and_then(|process| process.hold.take()) else {
            return;
        };
        if !hold.is_fenced && (admits || hold.is_ordered) {
            node.region.unfence();
        }
    }

    /// The rules refuse writers, or admit them, unless an operator holds them.
    pub(crate) fn order_fence(&mut self, host: HostId, is_fenced: bool) {
        let node = self.node_mut(host);
        if let Some(hold) = node.process.as_mut().and_then(|process| process.hold.as_mut()) {
            *hold = WriterHold { is_fenced, is_ordered: true };
        } else if is_fenced {
            node.region.is_fenced = true;
        } else {
            node.region.unfence();
        }
    }

    /// No commit of a drained owner that a client was answered is behind the seal, also if it was
    /// not waited for.
    pub(crate) fn check_drained(&mut self, owner: HostId, seal: &LogPosition) {
        let node = self.node(owner);
        let Some(operator) = self.operator.as_ref().filter(|operator| operator.host == owner)
        else {
            return;
        };
        let is_drained = operator.drain.as_ref().is_some_and(|drain| {
            drain.is_proposed && drain.generation == node.generation && node.process.is_some()
        });
        let held = node.region.held();
        if is_drained && held.log == seal.log && held.position > seal.position {
            self.violate("Drain: a commit of a drained owner is behind the seal");
        }
    }
}

/// What is proposed until it is decided: a hand-over to a host that does not count any more would
/// be refused for ever.
fn exclusion(group: &GroupState, goal: OperatorGoal) -> Command {
    let (partition, view) = (group.partition(), group.view());
    match goal {
        OperatorGoal::DrainPreferring(host) | OperatorGoal::DrainTo(host)
            if group.can_take_over(host) =>
        {
            Command::HandOver { partition, view, host }
        }
        OperatorGoal::Drain
        | OperatorGoal::DrainPreferring(_)
        | OperatorGoal::DrainTo(_)
        | OperatorGoal::AcceptLoss(_)
        | OperatorGoal::ForceNew(_) => Command::Exclude { partition, view },
    }
}

impl Process {
    /// The members that the owner has heard in the last lease, with what they have of its log.
    fn members_heard(&self, now: Monotonic, promise_ns: u64) -> BTreeMap<HostId, u64> {
        let heard = self.serve.iter().flat_map(|serve| &serve.heard);
        let heard = heard.filter(|(_, (at, _))| now <= at.plus(promise_ns));
        heard.map(|(host, (_, position))| (*host, *position)).collect()
    }
}
