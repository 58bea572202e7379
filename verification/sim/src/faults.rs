//! What fails, and when.

use crate::event::SimulatedEvent;
use crate::options::Faults;
use crate::world::{MS, World};
use nearstate_cluster::HostId;

impl World {
    pub(crate) fn fault(&mut self) {
        if self.now >= self.heal_at() {
            return;
        }
        match self.options.faults {
            Faults::Quiet => {}
            Faults::OwnerLost => self.lose_owner(),
            Faults::OwnerDeaf => self.deafen_owner(),
            Faults::NoLoss | Faults::All => {
                self.random_fault();
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
