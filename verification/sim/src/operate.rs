//! Operators: with the product's tasks, and as the last resort when nothing is released.

use crate::event::SimulatedEvent;
use crate::world::{MS, PARTITION, World};
use nearstate_cluster::{Command, GroupPhase, HostId, LogPosition, OperatorStep, OperatorTask};

impl World {
    /// The task makes a step with what its host knows, until it is done. One that is refused is
    /// begun anew, as an operator would.
    pub(crate) fn operator_looks(&mut self) {
        let Some(mut operator) = self.operator.take() else { return };
        let (host, now) = (operator.host, self.clock(operator.host));
        self.queue.add(self.now + 20 * MS, SimulatedEvent::OperatorLooks);
        if operator.drain.is_some() {
            let goes_on = self.drain_looks(&mut operator);
            self.operator = goes_on.then_some(operator);
            return;
        }
        let Some(process) = &self.node(host).process else {
            self.operator = Some(operator);
            return;
        };
        let state = &self.states[process.applied];
        let Some(group) = state.group(PARTITION).cloned() else { return };
        let is_owner_heard = process.host.hears_owner(PARTITION, now);
        let lease = state.lease();
        let goal = operator.goal;
        let task = operator.task.get_or_insert_with(|| {
            OperatorTask::new(goal, &group, lease, now).with_longer_discarded(true)
        });
        let step = task.step(now, &group, is_owner_heard);
        self.record(&("operator", step));
        match step {
            OperatorStep::Wait(_) | OperatorStep::Freeze => {}
            OperatorStep::Propose(command) => self.propose(host, command),
            OperatorStep::Refused(_) => operator.task = None,
            OperatorStep::Done { .. } => return,
        }
        self.operator = Some(operator);
    }

    /// An operator asks any host to add a host to the group or to remove one. The host may know an
    /// older state, and the command may be ordered later, or twice.
    pub(crate) fn change_group(&mut self) {
        let hosts: Vec<HostId> = self.nodes.keys().copied().collect();
        let [asked, host] = [0; 2].map(|_| hosts[self.random.usize(0..hosts.len())]);
        let Some(process) = &self.node(asked).process else { return };
        let state = &self.states[process.applied];
        let Some(group) = state.group(PARTITION) else { return };
        let (partition, revision) = (PARTITION, group.revision());
        let command = if group.group().contains(&host) {
            Command::RemoveMember { partition, revision, host }
        } else {
            Command::AddMember { partition, revision, host }
        };
        self.record(&("change", asked, command));
        self.propose(asked, command);
    }

    /// The operator acts when nothing is released for a long time: excludes a silent owner, and
    /// then accepts the loss of what only lost copies had.
    pub(crate) fn operate(&mut self) {
        self.queue.add(self.now + 2_000 * MS, SimulatedEvent::Operate);
        if self.now.saturating_sub(self.progress_at.max(self.heal_at())) < 12_000 * MS {
            return;
        }
        if !self.options.loses_regions() {
            return self.violate("NoStuck: without a lost region an operator is needed");
        }
        if !self.is_operator_due() {
            return self.violate("NoStuck: an operator is needed, and enough copies are left");
        }
        let group = self.latest();
        let view = group.view();
        let command = match group.phase() {
            GroupPhase::Serving { .. } => Command::Exclude { partition: PARTITION, view },
            GroupPhase::Sealing { reports } => {
                // Those that are lost since, the status of the hosts shows.
                let is_there = |(host, held): &(&HostId, &LogPosition)| {
                    let region = &self.node(**host).region;
                    region.is_complete() && region.held() == **held
                };
                let longest = |a: &(_, &LogPosition), b: &(_, &LogPosition)| a.1.compare(b.1);
                let left = reports.iter().filter(is_there).max_by(longest);
                // If none is left, the host that is given the partition gives it up.
                match left.or_else(|| reports.iter().max_by(longest)) {
                    Some((&host, _)) => Command::AcceptLoss { partition: PARTITION, view, host },
                    None => {
                        Command::ForceNew { partition: PARTITION, view, host: group.group()[0] }
                    }
                }
            }
        };
        // After a decision the hosts have as much time again.
        if !matches!(command, Command::Exclude { .. }) {
            self.progress_at = self.now;
        }
        self.append(command);
    }
}
