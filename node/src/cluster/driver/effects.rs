//! Carries out what the rules of this host ask for.

use std::collections::BTreeSet;
use std::time::Duration;

use nearstate_cluster::{
    FollowStart, GroupState, HostEffect, HostId, LogEnds, MemberRecord, PartitionId, ViewNumber,
};
use nearstate_model::{Result, invariant};

use crate::partition::Partition;

use super::super::copy_thread::{CopyTask, FollowTask};
use super::super::notice::ClusterNotice;
use super::Driver;

impl Driver {
    pub(super) fn carry_out(&mut self) {
        let effects: Vec<HostEffect> = self.effects.drain().collect();
        let mut failed = BTreeSet::new();
        for effect in effects {
            if failed.contains(&effect.partition()) {
                continue;
            }
            // What follows rests on it, above all a proposal: it is stored before.
            if let HostEffect::Store { partition, record } = effect {
                if let Err(error) = self.store(partition, record) {
                    let reason = error.to_string();
                    self.notice(&ClusterNotice::Failed { partition, reason });
                    failed.insert(partition);
                }
            } else {
                self.carry_out_one(effect);
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
