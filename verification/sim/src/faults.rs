//! What fails, and when.

use crate::event::SimulatedEvent;
use crate::node::Operator;
use crate::options::Faults;
use crate::world::{MS, World};
use nearstate_cluster::{HostId, OperatorGoal, Switch};

impl World {
    pub(crate) fn fault(&mut self) {
        if self.now >= self.heal_at() {
            return;
        }
        match self.options.faults {
            Faults::Quiet => {}
            Faults::OwnerLost => self.lose_owner(),
            Faults::OwnerDeaf => self.deafen_owner(),
            Faults::DegradedOwnerLost | Faults::DegradedOwnerCut | Faults::DegradedOwnerLives => {
                self.lose_degraded_owner();
            }
            Faults::NoLoss
            | Faults::ForgetfulLogs
            | Faults::All
            | Faults::OlderOwners
            | Faults::OlderMembers => {
                self.random_fault();
                self.replace_file();
                if self.options.changes_group {
                    self.change_group();
                }
                if self.options.drains {
                    self.begin_drain();
                }
                let next = self.now + self.random.u64(30 * MS..700 * MS);
                self.queue.add(next, SimulatedEvent::Fault);
            }
        }
    }

    fn lose_owner(&mut self) {
        let owner = self.latest().owner().expect("an owner");
        self.lose_region(owner);
        let node = self.node_mut(owner);
        (node.is_gone, node.process) = (true, None);
        node.generation += 1;
    }

    /// First the other host stops, so that it does not take over. As soon as one copy suffices and
    /// has released output, its host fails, and an operator comes to the other one.
    fn lose_degraded_owner(&mut self) {
        let Some(owner) = self.latest().owner() else { return self.look_again() };
        let mut others = self.nodes.keys().copied().filter(|host| *host != owner);
        let Some(other) = others.next_back() else { return };
        let has_released = self.progress_at + 100 * MS > self.now;
        if self.latest().degraded().is_none() || !has_released {
            self.node_mut(other).paused_until = self.now + 60 * MS;
            return self.look_again();
        }
        let until = self.heal_at();
        self.isolate(owner, until, true);
        match self.options.faults {
            Faults::DegradedOwnerLives => {
                let until = self.now + self.random.u64(400 * MS..2_000 * MS);
                self.node_mut(other).uninformed_until = until;
            }
            Faults::DegradedOwnerLost => {
                let node = self.node_mut(owner);
                (node.is_gone, node.process) = (true, None);
                node.generation += 1;
                self.lose_region(owner);
            }
            Faults::DegradedOwnerCut
            | Faults::Quiet
            | Faults::NoLoss
            | Faults::ForgetfulLogs
            | Faults::All
            | Faults::OlderOwners
            | Faults::OlderMembers
            | Faults::OwnerLost
            | Faults::OwnerDeaf => self.node_mut(owner).uninformed_until = until,
        }
        let is_lost = self.random.u8(0..3) == 0;
        if is_lost {
            self.lose_region(other);
        }
        let goal =
            if is_lost { OperatorGoal::ForceNew(other) } else { OperatorGoal::AcceptLoss(other) };
        self.operator = Some(Operator { host: other, goal, task: None, drain: None });
        let delay = self.random.u64(0..900 * MS);
        self.queue.add(self.now + delay, SimulatedEvent::OperatorLooks);
    }

    fn look_again(&mut self) {
        self.queue.add(self.now + 50 * MS, SimulatedEvent::Fault);
    }

    /// The host counts as gone: it cannot hold a full copy again.
    fn deafen_owner(&mut self) {
        let owner = self.latest().owner().expect("an owner");
        self.node_mut(owner).is_gone = true;
        for other in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.cuts.insert((other, owner), u64::MAX);
        }
    }

    fn random_host(&mut self) -> HostId {
        // The owner is the most interesting one.
        if let Some(owner) = self.latest().owner()
            && self.random.u8(0..3) == 0
        {
            return owner;
        }
        let hosts: Vec<HostId> = self.nodes.keys().copied().collect();
        hosts[self.random.usize(0..hosts.len())]
    }

    fn random_fault(&mut self) {
        let (host, other) = (self.random_host(), self.random_host());
        let which = self.random.u8(0..12);
        self.record(&("fault", which, host, other));
        let until = self.now + self.random_length();
        let until = until.min(self.heal_at());
        match which {
            0 | 1 => self.kill(host),
            2 | 3 => self.node_mut(host).paused_until = until,
            4 => {
                self.cuts.insert((host, other), until);
            }
            5 => {
                self.cuts.insert((host, other), until);
                self.cuts.insert((other, host), until);
            }
            6 => self.isolate(host, until, self.now.is_multiple_of(2)),
            7 => self.node_mut(host).uninformed_until = until,
            8 => {
                self.isolate(host, until, true);
                self.node_mut(host).uninformed_until = until;
            }
            9 => self.stalled_until = until,
            10 if self.options.faults == Faults::All && self.random.bool() => {
                self.lose_region(host);
            }
            11 if self.options.faults == Faults::All && self.random.u8(0..3) == 0 => {
                self.kill(host);
                self.lose_region(host);
            }
            _ => {}
        }
    }

    /// The file of a region is copied; later a process ends, and starts with the copy.
    fn replace_file(&mut self) {
        let is_of_owner = match self.options.faults {
            Faults::OlderOwners => true,
            Faults::OlderMembers => false,
            Faults::Quiet
            | Faults::NoLoss
            | Faults::ForgetfulLogs
            | Faults::All
            | Faults::OwnerLost
            | Faults::OwnerDeaf
            | Faults::DegradedOwnerLost
            | Faults::DegradedOwnerCut
            | Faults::DegradedOwnerLives => return,
        };
        let owner = self.latest().owner();
        let is_victim = |host: &HostId| (owner == Some(*host)) == is_of_owner;
        let hosts: Vec<HostId> = self.nodes.keys().copied().filter(is_victim).collect();
        if hosts.is_empty() || self.random.bool() {
            return;
        }
        let host = hosts[self.random.usize(0..hosts.len())];
        let Some(older) = self.node_mut(host).older.take() else {
            let node = self.node_mut(host);
            node.older = Some(node.region.clone());
            return;
        };
        self.record(&("restored", host));
        self.kill(host);
        self.lose_region(host);
        self.ledger.restored += 1;
        // With the rule the copy is not bound, so it is as good as a new region.
        if self.options.is_off(Switch::RegionFile) {
            self.node_mut(host).region = older;
        }
    }

    /// Nothing leaves the host, and if `both`, nothing reaches it.
    fn isolate(&mut self, host: HostId, until: u64, both: bool) {
        for other in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.cuts.insert((host, other), until);
            if both {
                self.cuts.insert((other, host), until);
            }
        }
    }

    fn random_length(&mut self) -> u64 {
        match self.random.u8(0..3) {
            0 => self.random.u64(5 * MS..100 * MS),
            1 => self.random.u64(100 * MS..700 * MS),
            _ => self.random.u64(300 * MS..2_500 * MS),
        }
    }
}
