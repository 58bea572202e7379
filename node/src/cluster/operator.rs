//! Tasks of operators: the steps of [`OperatorTask`], proposed by this host.

use std::time::Duration;

use nearstate_cluster::{
    HostId, Lease, OperatorGoal, OperatorRefusal, OperatorStep, OperatorTask, OperatorWait,
    PartitionId,
};
use nearstate_model::{Error, Result};
use nearstate_store::lease_clock;

use crate::consensus::ConsensusEngine;

use super::copy_thread::now;
use super::driver::ClusterDriver;

/// The longest wait for the membership in one step.
const DECISION_MAX: Duration = Duration::from_secs(5);

/// A task takes one lease in which a living owner shows itself, two for the end of its lease and
/// for reports, and an excluded owner returns after four.
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
    /// `BadArgument`: this host has no copy of the partition; those of
    /// [`ConsensusEngine::propose_and_wait`].
    pub fn carry_out(
        &self,
        engine: &dyn ConsensusEngine,
        partition: PartitionId,
        (goal, discards_longer): (OperatorGoal, bool),
        lease: Lease,
    ) -> Result<OperatorOutcome> {
        let end =
            lease_clock() + Duration::from_nanos(lease.promise_ns()) * TASK_LEASES + DECISION_MAX;
        let mut task = None;
        loop {
            let Some((group, is_owner_heard)) = self.known(partition) else {
                let detail = format!("this host has no copy of partition {partition}");
                return Err(Error::BadArgument { detail });
            };
            let task = task.get_or_insert_with(|| {
                OperatorTask::new(goal, &group, lease, now()).with_longer_discarded(discards_longer)
            });
            let wait = match task.step(now(), &group, is_owner_heard) {
                OperatorStep::Wait(wait) => Some(wait),
                OperatorStep::Propose(command) => {
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
}
