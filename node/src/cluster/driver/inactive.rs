//! When this host acts for no partition, or for one of them no longer, and whose answers count.

use nearstate_cluster::HostId;

use crate::consensus::EngineStatus;

use super::super::copy_thread::{CopyTask, CopyThread};
use super::super::notice::ClusterNotice;
use super::super::published::is_older;
use super::{Driver, new_host};

impl Driver {
    /// A host that was removed learns no further decision. So it acts for no partition, until it
    /// votes again: then it begins as after a start. An engine that has failed knows no voters.
    pub(super) fn note_removal(&mut self, engine: &EngineStatus) {
        let is_removed = engine.is_removed;
        if engine.voters.is_empty() || is_removed == self.is_removed {
            return;
        }
        self.is_removed = is_removed;
        self.stop_acting(is_removed);
        self.notice(&ClusterNotice::Removed { is_removed });
        self.step_state();
    }

    /// Notes which hosts learn decisions.
    pub(super) fn note_voters(&mut self, engine: &EngineStatus) {
        if self.engine.only_voters_learn() && !engine.voters.is_empty() {
            self.learners = Some(engine.voters.clone());
        }
    }

    /// Does a member learn decisions? One that was removed while it was cut off may follow without
    /// knowing it. What it answers does not count, so it does not become full, and is evicted if it
    /// is: a fail-over would wait for its suspicion and its report.
    pub(super) fn learns(&self, host: HostId) -> bool {
        self.learners.as_ref().is_none_or(|voters| voters.contains(&u64::from(host.0)))
    }

    /// Acts for no partition, until it begins as after a start.
    fn stop_acting(&mut self, gives_up_receipts: bool) {
        self.host = new_host(&self.config);
        self.members.clear();
        for (copy, _) in self.copies.values() {
            stop_copy(copy, gives_up_receipts);
        }
    }

    /// The group of a partition goes on without this host: nothing will decide what of the copy's
    /// own log is not replicated. After a start the state may be an older one than that of the
    /// process before, which the record in the region shows.
    pub(super) fn give_up_left(&mut self, engine: &EngineStatus) {
        if engine.voters.is_empty() || self.is_removed || self.is_outdated {
            return;
        }
        let me = self.config.host;
        for group in self.state.groups() {
            let partition = group.partition();
            if group.group().contains(&me) {
                self.left.remove(&partition);
            } else if let Some((copy, _)) = self.copies.get(&partition)
                && !self.left.contains(&partition)
                && copy.shared.facts().is_ok_and(|facts| !is_older(group, &facts.record))
            {
                self.left.insert(partition);
                stop_copy(copy, true);
            }
        }
    }

    /// A program that cannot do the decided level does not know all commands that follow. What it
    /// was told of partitions is not what the others have, so it acts for none of them.
    pub(super) fn note_level(&mut self) {
        let (decided, highest) = (self.state.level(), self.config.highest);
        if decided > highest && !self.is_outdated {
            self.is_outdated = true;
            self.stop_acting(false);
            self.notice(&ClusterNotice::LevelTooHigh { decided, highest });
        }
    }
}

/// The copy serves, follows and admits no writers.
fn stop_copy(copy: &CopyThread, gives_up_receipts: bool) {
    copy.shared.copy.watch_log(None);
    for task in [CopyTask::Fence(true), CopyTask::StopServing, CopyTask::StopFollowing] {
        copy.add(task);
    }
    if gives_up_receipts {
        copy.add(CopyTask::GiveUpReceipts);
    }
}
