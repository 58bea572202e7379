//! Tasks of operators: the steps of [`OperatorTask`], proposed by this host.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nearstate_cluster::{
    ClusterLevel, Command, GroupState, HostId, Lease, OperatorGoal, OperatorRefusal, OperatorStep,
    OperatorTask, OperatorWait, PartitionId, ViewNumber,
};
use nearstate_model::{Error, Result};
use nearstate_store::lease_clock;

use crate::consensus::ConsensusEngine;

use super::copy_thread::{CopyShared, now};
use super::driver::ClusterDriver;

/// The longest wait for the membership in one step.
const DECISION_MAX: Duration = Duration::from_secs(5);

/// The longest wait for the membership before a drain refuses writers. A command takes two writes
/// to a disk and one round trip; one that takes longer than this would hold writers as long.
const PROBE_MAX: Duration = Duration::from_secs(2);

/// A task takes one lease in which a living owner shows itself, and two for the end of its lease
/// and for reports, four if a host is preferred. An excluded owner returns after four.
const TASK_LEASES: u32 = 8;

/// How often the applied state is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// What has become of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorOutcome {
    /// The applied state says that this host owns the partition.
    Done {
        /// The owner.
        owner: HostId,
        /// True if an operator's decision made it the owner, and not the reports of the members.
        is_by_decision: bool,
    },
    /// It is not possible.
    Refused(OperatorRefusal),
    /// It has taken too long.
    Late {
        /// What was waited for.
        wait: Option<OperatorWait>,
        /// True if the owner is excluded.
        is_excluded: bool,
    },
}

impl ClusterDriver {
    /// Carries out a task of an operator, step by step, and returns what the applied state says
    /// about it. `discards_longer`: a loss is accepted although another host has a longer copy.
    /// Takes eight leases and five seconds at most.
    ///
    /// # Errors
    /// `BadArgument`: this host has no copy of the partition, or does not own what is to be
    /// drained, or it is drained already, or the level is too low to name the next owner;
    /// `Backend`: the membership orders nothing at present, so a drain has changed nothing; or it
    /// has not decided in time that the owner is excluded. It may do so later, so writers stay
    /// refused, and the driver proposes it until it is decided; those of
    /// [`ConsensusEngine::propose_and_wait`] and [`Partition::hold_writers`].
    ///
    /// [`Partition::hold_writers`]: crate::Partition::hold_writers
    pub fn carry_out(
        &self,
        engine: &dyn ConsensusEngine,
        partition: PartitionId,
        goal: (OperatorGoal, bool),
        lease: Lease,
    ) -> Result<OperatorOutcome> {
        if goal.0.is_drain() {
            self.require_owned(partition)?;
        }
        let copy = self.copy(partition).filter(|_| goal.0.is_drain());
        copy.iter().try_for_each(|copy| require_promotion(copy.copy.state()?.promotions_left))?;
        let possible = self.possible(goal.0)?;
        let goal = (self.staying(partition, possible, lease)?, goal.1);
        let draining = copy.as_ref().map(|copy| &copy.is_draining);
        let claim = draining.map(DrainClaim::take).transpose()?;
        let mut held = None;
        let outcome = self.carry_out_steps((engine, &mut held), partition, goal, lease);
        let Some(HeldWriters { copy, view, is_proposed }) = held else { return outcome };
        // In a later view the driver's order for the old one may not be carried out yet.
        let is_owner = self
            .known(partition)
            .is_some_and(|(group, _)| group.owner() == Some(self.host) && group.view() == view);
        if !(is_owner && is_proposed) {
            copy.copy.release_writers(is_owner)?;
            return outcome;
        }
        // The owner may be excluded yet. What writers would commit until then would be lost.
        copy.set_undecided(Some((view, named(goal.0))));
        claim.into_iter().for_each(DrainClaim::keep);
        let error = undecided(outcome);
        copy.tell_undecided(&error);
        Err(error)
    }

    fn carry_out_steps(
        &self,
        (engine, held): (&dyn ConsensusEngine, &mut Option<HeldWriters>),
        partition: PartitionId,
        (goal, discards_longer): (OperatorGoal, bool),
        lease: Lease,
    ) -> Result<OperatorOutcome> {
        let end =
            lease_clock() + Duration::from_nanos(lease.promise_ns()) * TASK_LEASES + DECISION_MAX;
        let (mut task, mut has_ordered) = (None, false);
        loop {
            let Some((group, is_owner_heard)) = self.known(partition) else {
                let detail = format!("this host has no copy of partition {partition}");
                return Err(Error::BadArgument { detail });
            };
            let task = task.get_or_insert_with(|| {
                OperatorTask::new(goal, &group, lease, now()).with_longer_discarded(discards_longer)
            });
            if let Some(held) = held {
                task.replicated(held.copy.copy.state()?.replicated);
            }
            if goal.is_drain() {
                task.members_heard(self.members_heard(partition, lease));
            }
            let wait = match task.step(now(), &group, is_owner_heard) {
                OperatorStep::Wait(wait) => Some(wait),
                OperatorStep::Freeze if !has_ordered => {
                    self.require_order(engine, &group)?;
                    has_ordered = true;
                    continue;
                }
                OperatorStep::Freeze => {
                    let holding = held.insert(self.holding(&group)?);
                    task.frozen(now(), holding.copy.copy.hold_writers()?);
                    continue;
                }
                OperatorStep::Propose(command) => {
                    if let Some(held) = held {
                        held.is_proposed = true;
                    }
                    engine.propose_and_wait(command.encode(), DECISION_MAX)?;
                    None
                }
                OperatorStep::Done { owner, is_by_decision } => {
                    return Ok(OperatorOutcome::Done { owner, is_by_decision });
                }
                OperatorStep::Refused(refusal) => return Ok(OperatorOutcome::Refused(refusal)),
            };
            if lease_clock() >= end {
                let is_excluded = group.owner().is_none();
                return Ok(OperatorOutcome::Late { wait, is_excluded });
            }
            std::thread::park_timeout(LOOK_INTERVAL);
        }
    }

    /// Writers are refused until the exclusion is decided, so it is asked before whether the
    /// membership decides anything. The owner suspects nothing, so the command has no effect.
    fn require_order(&self, engine: &dyn ConsensusEngine, group: &GroupState) -> Result<()> {
        let status = engine.status();
        let reason = if let Some(failure) = status.failure {
            format!("the membership has failed on this host ({failure})")
        } else if status.leader.is_none() {
            "this host knows no leader of the membership: start a majority of the voters".to_owned()
        } else {
            let (partition, view, host) = (group.partition(), group.view(), self.host);
            let harmless = Command::Trust { partition, view, host };
            let Err(error) = engine.propose_and_wait(harmless.encode(), PROBE_MAX) else {
                return Ok(());
            };
            format!("the membership has not ordered anything in time ({error})")
        };
        let detail = format!(
            "{reason}. No other member could take over, so the owner goes on, and nothing has \
             changed"
        );
        Err(Error::Backend { detail })
    }

    /// Only the owner hears the members, so at another host a drain would be refused for a reason
    /// that is not true. Without an owner the task says so.
    fn require_owned(&self, partition: PartitionId) -> Result<()> {
        let owner = self.known(partition).and_then(|(group, _)| group.owner());
        if owner.is_none_or(|owner| owner == self.host) { Ok(()) } else { Err(not_owned()) }
    }

    /// The goal at the present level: a program that does not know a hand-over must not meet one.
    fn possible(&self, goal: OperatorGoal) -> Result<OperatorGoal> {
        let (level, needed) = (self.level(), ClusterLevel::HAND_OVERS);
        match goal {
            OperatorGoal::DrainPreferring(_) if level < needed => Ok(OperatorGoal::Drain),
            OperatorGoal::DrainTo(_) if level < needed => {
                let detail = format!(
                    "the cluster has level {level}, and level {needed} is needed to name the next \
                     owner: run `nearstate cluster finalize`, or drain without a name. Nothing \
                     has changed"
                );
                Err(Error::BadArgument { detail })
            }
            OperatorGoal::Drain
            | OperatorGoal::DrainPreferring(_)
            | OperatorGoal::DrainTo(_)
            | OperatorGoal::AcceptLoss(_)
            | OperatorGoal::ForceNew(_) => Ok(goal),
        }
    }

    /// A drain of which a host that is to leave the group cannot become the owner, if there is one:
    /// as an owner it would stay. Of the others, the one with the longest copy is named.
    fn staying(
        &self,
        partition: PartitionId,
        goal: OperatorGoal,
        lease: Lease,
    ) -> Result<OperatorGoal> {
        let is_named = match goal {
            OperatorGoal::Drain => None,
            OperatorGoal::DrainPreferring(host) => Some(host),
            OperatorGoal::DrainTo(_) | OperatorGoal::AcceptLoss(_) | OperatorGoal::ForceNew(_) => {
                return Ok(goal);
            }
        };
        let group = self.group(partition).filter(|group| !group.leaving().is_empty());
        let Some(group) = group.filter(|_| self.level() >= ClusterLevel::HAND_OVERS) else {
            return Ok(goal);
        };
        let heard = self.members_heard(partition, lease);
        let stays = |host: &&HostId| group.can_take_over(**host);
        // Of equal copies the first one of the group.
        let longest = group.group().iter().rev().filter(stays).max_by_key(|host| heard.get(host));
        // The preferred one only if it answers and has as much: a drain to it could fail.
        let best = longest.and_then(|host| heard.get(host));
        let has_all = |host: &HostId| heard.get(host).is_some_and(|has| Some(has) >= best);
        let named = is_named.filter(|host| group.can_take_over(*host) && has_all(host));
        named.or(longest.copied()).map(OperatorGoal::DrainTo).ok_or_else(|| Error::BadArgument {
            detail: "each other host with a complete copy is to leave the group, and as an owner \
                     it would stay: wait until another copy counts (COUNTED in cluster status), \
                     or let one stay (`nearstate cluster add NAME --partition`)"
                .to_owned(),
        })
    }

    /// What the members of an owned partition have that have answered in the last lease.
    fn members_heard(&self, partition: PartitionId, lease: Lease) -> BTreeMap<HostId, u64> {
        let now = now();
        let members = self.member_positions(partition).into_iter();
        let heard = members.filter(|(_, (_, at))| now <= at.plus(lease.promise_ns()));
        heard.filter_map(|(host, (position, _))| Some((host, position?))).collect()
    }

    /// What is held if this host owns the partition.
    fn holding(&self, group: &GroupState) -> Result<HeldWriters> {
        match self.copy(group.partition()) {
            Some(copy) if group.owner() == Some(self.host) => {
                Ok(HeldWriters { copy, view: group.view(), is_proposed: false })
            }
            Some(_) | None => Err(not_owned()),
        }
    }
}

/// A drain is refused if no host could take over.
fn require_promotion(promotions_left: u64) -> Result<()> {
    if promotions_left > 0 {
        return Ok(());
    }
    let detail = "no host can take the partition over: the versions of its records are used up \
                  (NS-5018). Nothing has changed. Move the records to another partition";
    Err(Error::BadArgument { detail: detail.to_owned() })
}

fn not_owned() -> Error {
    let detail = "another host owns the partition: drain that one".to_owned();
    Error::BadArgument { detail }
}

/// The host to which a partition is drained, if it can be.
fn named(goal: OperatorGoal) -> Option<HostId> {
    match goal {
        OperatorGoal::DrainPreferring(host) | OperatorGoal::DrainTo(host) => Some(host),
        OperatorGoal::Drain | OperatorGoal::AcceptLoss(_) | OperatorGoal::ForceNew(_) => None,
    }
}

/// The writers of an owner that is drained are refused.
struct HeldWriters {
    copy: Arc<CopyShared>,
    /// The view in which it owns the partition.
    view: ViewNumber,
    /// Its exclusion was proposed.
    is_proposed: bool,
}

/// The membership has not answered whether the owner is excluded. The driver goes on.
fn undecided(outcome: Result<OperatorOutcome>) -> Error {
    let reason = outcome.err().map_or_else(String::new, |error| format!(": {error}"));
    let detail = format!(
        "the membership has not decided in time that the owner gives the partition away{reason}. \
         It may do so later, and writers are refused until it has: then another member takes over, \
         or this host is the owner again if too few report"
    );
    Error::Backend { detail }
}

/// The one drain of a partition. The end of another one would admit its writers.
#[derive(Debug)]
struct DrainClaim<'d>(&'d AtomicBool);

impl<'d> DrainClaim<'d> {
    fn take(is_draining: &'d AtomicBool) -> Result<Self> {
        if is_draining.swap(true, Ordering::AcqRel) {
            let detail = "the partition is being drained: wait until that has ended. If it stays, \
                          the alarm NS-5015 says what is missing"
                .to_owned();
            return Err(Error::BadArgument { detail });
        }
        Ok(Self(is_draining))
    }
}

impl DrainClaim<'_> {
    /// The drain goes on when its task has ended.
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for DrainClaim<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_that_is_not_decided_does_not_promise_another_owner() {
        let error = undecided(Err(Error::Backend { detail: "no majority".to_owned() }));
        let text = error.to_string();
        assert!(text.contains("no majority") && text.contains("owner again if too few"), "{text}");
    }

    #[test]
    fn a_second_drain_of_a_partition_is_refused_until_the_first_has_ended() {
        let is_draining = AtomicBool::new(false);
        let first = DrainClaim::take(&is_draining).unwrap();
        for _ in 0..2 {
            let error = DrainClaim::take(&is_draining).unwrap_err().to_string();
            assert!(error.contains("is being drained"), "{error}");
        }
        drop(first);
        drop(DrainClaim::take(&is_draining).unwrap());
    }
}
