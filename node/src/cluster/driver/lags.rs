//! How far the members of owned partitions are behind.

use std::collections::BTreeMap;

use nearstate_cluster::{HostId, MemberRole, PartitionId};

use super::super::copy_thread::now;
use super::Driver;

impl Driver {
    /// Whether the host has a copy that the group knows, or is to be removed from it.
    pub(super) fn is_of_group(&self, partition: PartitionId, host: HostId) -> bool {
        let group = self.state.group(partition);
        group.is_some_and(|group| group.group().contains(&host) || group.leaving().contains(&host))
    }

    /// Notes what a member has. One that was removed may still be connected.
    pub(super) fn note_position(&mut self, of: (PartitionId, HostId), position: Option<u64>) {
        if self.is_of_group(of.0, of.1) {
            self.members.insert(of, (position, now()));
        }
    }

    /// Drops what is known of hosts that were removed from their groups.
    pub(super) fn drop_removed_members(&mut self) {
        let mut members = std::mem::take(&mut self.members);
        members.retain(|(partition, host), _| self.is_of_group(*partition, *host));
        self.members = members;
    }

    /// Notes the ends of the owned logs. A host that owns a partition again may have another log:
    /// where a member was in the last one says nothing.
    pub(super) fn note_tails(&mut self) {
        for (partition, (copy, _)) in &self.copies {
            if self.host.role(*partition) != Some(MemberRole::Serving) {
                self.tails.remove(partition);
                self.members.retain(|(of, _), _| of != partition);
            } else if let Ok(state) = copy.shared.copy.state() {
                self.tails.entry(*partition).or_default().note(now(), state.tail);
            }
        }
    }

    /// How long the members of owned partitions lag behind. One whose position is not known, or
    /// whose log's times are not, has no entry.
    pub(super) fn lags_ms(&self) -> BTreeMap<(PartitionId, HostId), u64> {
        let known = self.members.iter().filter_map(|(of, (position, _))| {
            let lag = self.tails.get(&of.0)?.lag_ms(now(), (*position)?)?;
            Some((*of, lag))
        });
        known.collect()
    }
}
