//! Carries out what the rules of this host ask for.

use std::collections::VecDeque;
use std::mem::discriminant;
use std::time::Duration;

use nearstate_cluster::{
    Applied, ClusterEvent, ClusterEventKind, Command, FollowStart, GroupState, HostEffect, HostId,
    LogEnds, MemberRecord, MemberRole, PartitionId, ViewNumber,
};
use nearstate_model::{Result, invariant};

use crate::partition::Partition;

use super::super::copy_thread::{CopyTask, FollowTask};
use super::super::notice::ClusterNotice;
use super::Driver;

/// Effects that wait for a record. More are never of use: the rules repeat what they see undone.
const WAITING_MAX: usize = 256;

/// A record that the region did not take. The rules have it, and do not ask for it again.
pub(super) struct UnstoredRecord {
    record: MemberRecord,
    /// What the rules have asked for since, in order.
    waiting: VecDeque<HostEffect>,
}

impl UnstoredRecord {
    fn add(&mut self, effect: HostEffect) {
        let is_replaced = |earlier: &HostEffect| match effect {
            // The last one says everything.
            HostEffect::SetReplicated { .. }
            | HostEffect::SetLease { .. }
            | HostEffect::SetFloor { .. }
            | HostEffect::Answer { .. } => discriminant(earlier) == discriminant(&effect),
            HostEffect::Propose(_)
            | HostEffect::Event(_)
            | HostEffect::Store { .. }
            | HostEffect::GiveUpRegion { .. }
            | HostEffect::WatchLog { .. }
            | HostEffect::Fence { .. }
            | HostEffect::Unfence { .. }
            | HostEffect::Serve { .. }
            | HostEffect::StopServing { .. }
            | HostEffect::Freeze { .. }
            | HostEffect::Promote { .. }
            | HostEffect::Demote { .. }
            | HostEffect::StopFollowing { .. }
            | HostEffect::Follow { .. } => *earlier == effect,
        };
        self.waiting.retain(|earlier| !is_replaced(earlier));
        if self.waiting.len() == WAITING_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(effect);
    }
}

impl Driver {
    /// An eviction is an event of the owner when it is ordered: a proposal may be lost, or void.
    pub(super) fn tell_ordered(&self, command: &Command, applied: Applied) {
        let Command::Evict { partition, revision, host } = *command else { return };
        let is_ordered = matches!(applied, Applied::Evicted(_) | Applied::MemberRemoved(_));
        let is_owner = self.host.role(partition) == Some(MemberRole::Serving);
        let Some(group) = self.state.group(partition).filter(|_| is_ordered && is_owner) else {
            return;
        };
        let kind = ClusterEventKind::Evicting(host, revision);
        let event = ClusterEvent { partition, view: group.view(), kind };
        self.notice(&ClusterNotice::Event(event));
    }

    pub(super) fn carry_out(&mut self) {
        let effects: Vec<HostEffect> = self.effects.drain().collect();
        for effect in effects {
            // What follows rests on it, above all a proposal: it is stored before.
            if let HostEffect::Store { partition, record } = effect {
                self.store_before(partition, record);
            } else if let Some(unstored) = self.unstored.get_mut(&effect.partition()) {
                unstored.add(effect);
            } else {
                self.carry_out_one(effect);
            }
        }
    }

    /// Stores the records that could not be stored, and carries out what has waited for that.
    pub(super) fn store_again(&mut self) {
        let records: Vec<_> = self.unstored.iter().map(|(of, one)| (*of, one.record)).collect();
        for (partition, record) in records {
            self.store_before(partition, record);
        }
    }

    fn store_before(&mut self, partition: PartitionId, record: MemberRecord) {
        match self.store(partition, record) {
            Ok(()) => {
                let unstored = self.unstored.remove(&partition);
                let waiting = unstored.map(|unstored| unstored.waiting).unwrap_or_default();
                for effect in waiting {
                    self.carry_out_one(effect);
                }
            }
            Err(error) => {
                let reason = error.to_string();
                self.notice(&ClusterNotice::Failed { partition, reason });
                let waiting = UnstoredRecord { record, waiting: VecDeque::new() };
                self.unstored.entry(partition).or_insert(waiting).record = record;
            }
        }
    }

    fn store(&self, partition: PartitionId, record: MemberRecord) -> Result<()> {
        let Some((copy, _)) = self.copies.get(&partition) else { return Ok(()) };
        let evicting = record.evicting.map_or(0, |host| host.0);
        let acted = Some((record.revision.0, evicting));
        copy.shared.copy.store_record(record.view.0, acted)
    }

    fn carry_out_one(&mut self, effect: HostEffect) {
        match effect {
            HostEffect::Store { .. } => invariant!("a record is stored before what follows"),
            HostEffect::Propose(command) => {
                let life = Duration::from_nanos(self.state.lease().proposal_ns());
                self.engine.propose(command.encode(), life);
            }
            HostEffect::Event(event) => self.notice(&ClusterNotice::Event(event)),
            HostEffect::SetReplicated { partition, position } => {
                self.at_once(partition, |copy| copy.set_replicated(position));
            }
            HostEffect::SetLease { partition, until } => {
                let until = Duration::from_nanos(until.0);
                self.at_once(partition, |copy| copy.set_lease(until));
            }
            HostEffect::GiveUpRegion { partition } => {
                self.at_once(partition, Partition::give_up_region);
            }
            HostEffect::SetFloor { partition, position } => {
                self.at_once(partition, |copy| {
                    copy.raise_floor(position);
                    Ok(())
                });
            }
            HostEffect::Answer { partition, view, stamp } => {
                self.at_once(partition, |copy| {
                    copy.answer(view.0, stamp.0);
                    Ok(())
                });
            }
            HostEffect::WatchLog { partition, view } => {
                self.at_once(partition, |copy| {
                    copy.watch_log(view.map(|view| view.0));
                    Ok(())
                });
            }
            HostEffect::Fence { partition } => self.add(partition, CopyTask::Fence(true)),
            HostEffect::Unfence { partition } => self.add(partition, CopyTask::Fence(false)),
            HostEffect::Serve { partition, view } => self.add(partition, CopyTask::Serve(view)),
            HostEffect::StopServing { partition } => self.add(partition, CopyTask::StopServing),
            HostEffect::Freeze { partition, view } => self.add(partition, CopyTask::Freeze(view)),
            HostEffect::Promote { partition, origin, seal, .. } => {
                self.add(partition, CopyTask::Promote { origin, seal });
            }
            HostEffect::Demote { partition, view, seal } => {
                self.add(partition, CopyTask::Demote { view, seal });
            }
            HostEffect::StopFollowing { partition } => {
                self.add(partition, CopyTask::StopFollowing);
            }
            HostEffect::Follow { partition, owner, view, start } => {
                self.follow(partition, owner, view, start);
            }
        }
    }

    fn add(&self, partition: PartitionId, task: CopyTask) {
        if let Some((copy, _)) = self.copies.get(&partition) {
            copy.add(task);
        }
    }

    /// What takes no time: a word of the region.
    fn at_once(&self, partition: PartitionId, work: impl FnOnce(&Partition) -> Result<()>) {
        let Some((copy, _)) = self.copies.get(&partition) else { return };
        if let Err(error) = work(&copy.shared.copy) {
            self.notice(&ClusterNotice::Failed { partition, reason: error.to_string() });
        }
    }

    fn follow(&self, partition: PartitionId, owner: HostId, view: ViewNumber, start: FollowStart) {
        let Some(address) = self.config.hosts.get(&owner) else { return };
        let Some((copy, port)) = self.copies.get(&partition) else { return };
        let group = self.state.group(partition);
        let seal = group.and_then(GroupState::seal);
        copy.add(CopyTask::Follow(FollowTask {
            view,
            name: address.name.clone(),
            address: address.peer.clone(),
            clients: format!("{}:{port}", address.clients),
            discards: start == FollowStart::Discard,
            ends: LogEnds { seal, loss: group.and_then(GroupState::loss) },
        }));
    }
}
