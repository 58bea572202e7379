//! Drains that have ended before the membership has decided: their last proposal may still be
//! ordered, so nothing else but its decision shows that writers can go on.

use std::time::Duration;

use nearstate_cluster::Command;

use super::super::copy_thread::{CopyTask, now};
use super::Driver;

impl Driver {
    /// Proposes again that this host is excluded, until the state shows a later view. Then the
    /// writers are what the driver orders.
    pub(super) fn complete_drains(&mut self) {
        let life_ns = self.state.lease().proposal_ns();
        for (partition, (copy, _)) in &self.copies {
            let Some((view, to)) = copy.shared.undecided() else { continue };
            let group = self.state.group(*partition).filter(|group| group.view() == view);
            let Some(group) = group else {
                self.excluding.remove(partition);
                copy.shared.set_undecided(None);
                copy.add(CopyTask::EndDrain);
                continue;
            };
            if self
                .excluding
                .get(partition)
                .is_none_or(|at| now().0.saturating_sub(at.0) >= life_ns)
            {
                self.excluding.insert(*partition, now());
                // A hand-over to a host that does not count any more would be refused for ever.
                let to = to.filter(|host| group.can_take_over(*host));
                let partition = *partition;
                let command = match to {
                    Some(host) => Command::HandOver { partition, view, host },
                    None => Command::Exclude { partition, view },
                };
                self.engine.propose(command.encode(), Duration::from_nanos(life_ns));
            }
        }
    }
}
