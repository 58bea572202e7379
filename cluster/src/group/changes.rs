//! Changes of the hosts of a group, by operators.
//!
//! What is replicated, the lease and a seal rest on the full members alone, so a host that is added
//! changes nothing before `Full`. One that counts *leaves* first: its owner evicts it by the rules
//! for a silent member, when the others suffice, and the eviction removes it from the group.

use super::{Applied, CommandRefusal as No, GroupState};
use crate::id::{HostId, Revision};
use crate::limits::COPIES_MAX;
use crate::switches::Switch;
use std::collections::BTreeSet;

impl GroupState {
    /// The full members, without the owner, that are removed as soon as the others suffice.
    pub fn leaving(&self) -> &BTreeSet<HostId> {
        &self.leaving
    }

    /// The host is not full. A host that leaves stays.
    pub(super) fn add_member(&mut self, revision: Revision, host: HostId) -> Result<Applied, No> {
        self.require_revision(revision)?;
        self.require_serving()?;
        if !self.leaving.remove(&host) {
            if self.group.contains(&host) {
                return Err(No::AlreadyMember);
            }
            if self.group.len() >= COPIES_MAX {
                return Err(No::GroupFull);
            }
            self.group.push(host);
        }
        self.revision = self.revision.next();
        Ok(Applied::MemberAdded(host))
    }

    pub(super) fn remove_member(
        &mut self,
        revision: Revision,
        host: HostId,
    ) -> Result<Applied, No> {
        self.require_revision(revision)?;
        self.require_serving()?;
        if !self.group.contains(&host) {
            return Err(No::NotInGroup);
        }
        if self.owner == host {
            return Err(No::Owner);
        }
        if self.leaving.contains(&host) {
            return Err(No::AlreadyLeaving);
        }
        // Until n hosts are full, the copy of another one may be the last that an operator can use.
        if self.full.len() < self.acknowledgements() {
            return Err(No::TooFewFull);
        }
        let stay = |hosts: usize| hosts - self.leaving.len() > self.acknowledgements();
        if !stay(self.group.len()) {
            return Err(No::TooFewFull);
        }
        let is_off = self.switches.is_off(Switch::LeaveByEviction);
        if !self.full.contains(&host) || is_off {
            self.full.remove(&host);
            self.drop_member(host);
            self.revision = self.revision.next();
            return Ok(Applied::MemberRemoved(host));
        }
        if !stay(self.full.len()) {
            return Err(No::TooFewFull);
        }
        self.leaving.insert(host);
        self.revision = self.revision.next();
        Ok(Applied::MemberLeaving(host))
    }

    /// Removes the hosts that were to leave and do not count any more. An owner stays, and so do
    /// all if fewer than n hosts are full: their copies may be needed.
    pub(super) fn drop_left(&mut self) {
        self.leaving.remove(&self.owner);
        let is_enough = self.full.len() >= self.acknowledgements();
        let left: Vec<HostId> = self.leaving.difference(&self.full).copied().collect();
        for host in left {
            if is_enough {
                self.drop_member(host);
            } else {
                self.leaving.remove(&host);
            }
        }
    }

    fn drop_member(&mut self, host: HostId) {
        self.group.retain(|member| *member != host);
        self.registered.remove(&host);
        self.leaving.remove(&host);
        if let super::GroupPhase::Serving { suspects } = &mut self.phase {
            suspects.remove(&host);
        }
    }
}
