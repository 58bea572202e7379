//! `nearstate cluster add | remove NAME --partition P`: the hosts of a group, by the steps of
//! decision 040.

use std::time::{Duration, Instant};

use nearstate_cluster::limits::COPIES_MAX;
use nearstate_cluster::{ClusterLevel, Command, GroupState, HostId, PartitionId};
use nearstate_model::{Error, Result};
use serde_json::{Value, json};

use super::operator::{DECISION_MAX, OperatorContext, invalid};

/// How long a change is tried beyond [`DECISION_MAX`]: an eviction waits for the others, and a
/// partition without owner for a seal.
const CHANGE_LEASES: u32 = 8;

/// How often the applied state is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// What is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupStep {
    Done,
    /// The owner, or a seal, is waited for.
    Wait(&'static str),
    Propose(Command),
    /// What the operator can do instead.
    Refused(&'static str),
}

/// What is next until a host belongs to the group, or does not.
fn next_step(group: &GroupState, host: HostId, is_member: bool) -> GroupStep {
    let (partition, revision) = (group.partition(), group.revision());
    let (is_in, is_leaving) = (group.group().contains(&host), group.leaving().contains(&host));
    if is_in == is_member && !is_leaving {
        return GroupStep::Done;
    }
    if group.owner().is_none() {
        return GroupStep::Wait("the partition has no owner");
    }
    if is_member {
        return if is_leaving || group.group().len() < COPIES_MAX {
            GroupStep::Propose(Command::AddMember { partition, revision, host })
        } else {
            GroupStep::Refused("the group has as many hosts as are possible: remove one first")
        };
    }
    let stay = |hosts: usize| hosts - group.leaving().len() > group.acknowledgements();
    if group.owner() == Some(host) {
        GroupStep::Refused("it owns the partition: drain it first")
    } else if is_leaving {
        GroupStep::Wait("the other copies do not hold everything yet")
    } else if group.full().len() < group.acknowledgements() {
        GroupStep::Refused(
            "fewer copies than acknowledgements are complete, so each copy may be needed: wait \
             until more of them count",
        )
    } else if !stay(group.group().len()) {
        GroupStep::Refused("fewer hosts than acknowledgements would remain: add another one first")
    } else if group.full().contains(&host) && !stay(group.full().len()) {
        GroupStep::Refused(
            "fewer complete copies than acknowledgements would remain: wait until another one \
             counts",
        )
    } else {
        GroupStep::Propose(Command::RemoveMember { partition, revision, host })
    }
}

/// Waits for the next look at the applied state, unless the time is over.
fn look_again(end: Instant, waits_for: &str) -> Result<()> {
    if Instant::now() >= end {
        return Err(Error::Backend { detail: format!("not in time: {waits_for}") });
    }
    std::thread::park_timeout(LOOK_INTERVAL);
    Ok(())
}

impl OperatorContext {
    /// Adds a host to the group of a partition, or removes it. Returns when the applied state says
    /// so.
    pub(super) fn change_group(
        &self,
        partition: PartitionId,
        (host, is_member): (HostId, bool),
    ) -> Result<Value> {
        let (file, level) = (&self.report.file, self.driver.status().level);
        if level < ClusterLevel::GROUP_CHANGES {
            return Err(invalid(format!(
                "the cluster has level {level}, and groups can be changed from level {} on: \
                 `nearstate cluster finalize` raises it",
                ClusterLevel::GROUP_CHANGES
            )));
        }
        if is_member {
            self.check_new_member(host)?;
        }
        let lease = Duration::from_millis(file.config.lease_ms.into());
        let end = Instant::now() + DECISION_MAX + lease * CHANGE_LEASES;
        // The present level changes nothing. When this host has applied it, it has applied whatever
        // was decided before: an older state could say that nothing is to be done.
        let what = "this host has not applied what was decided before. Nothing is changed";
        self.decide(&Command::Finalize { level }, end, what)?;
        loop {
            let Some(group) = self.driver.group(partition) else {
                return Err(invalid("this host knows no such partition yet: try again"));
            };
            match next_step(&group, host, is_member) {
                GroupStep::Done => return Ok(json!({ "counts": group.full().contains(&host) })),
                GroupStep::Refused(reason) => {
                    return Err(invalid(format!("{}: {reason}", file.host_name(host))));
                }
                GroupStep::Wait(what) => {
                    look_again(end, &format!("{what}. It may still happen: see the status"))?;
                }
                GroupStep::Propose(_) if Instant::now() >= end => {
                    let detail = "not in time: other changes of the group came first".to_owned();
                    return Err(Error::Backend { detail });
                }
                GroupStep::Propose(command) => {
                    let what = "the decision is not applied on this host. It may still happen: \
                                see the status";
                    self.decide(&command, end, what)?;
                }
            }
        }
    }

    /// Orders a command, and waits until this host has applied it. Returns its index.
    pub(super) fn decide(&self, command: &Command, end: Instant, waits_for: &str) -> Result<u64> {
        let index = self.engine.propose_and_wait(command.encode(), DECISION_MAX)?;
        while self.driver.applied() < index {
            look_again(end, waits_for)?;
        }
        Ok(index)
    }

    /// A member must learn decisions and have a copy, and its node must run.
    fn check_new_member(&self, host: HostId) -> Result<()> {
        let file = &self.report.file;
        let name = file.host_name(host);
        let Some(known) = file.hosts.iter().find(|known| known.id == host) else {
            return Err(invalid(format!("{name} is not in the cluster file")));
        };
        if known.witness {
            return Err(invalid(format!("{name} is a witness, which has no copy")));
        }
        let votes = self.engine.status().voters.contains(&host.0.into());
        if !votes && file.engine_name() == "raft" {
            return Err(invalid(format!(
                "{name} does not vote, so it would learn no decision: `nearstate cluster add \
                 {name}` first"
            )));
        }
        match self.status_of(known).get("unreachable").and_then(Value::as_str) {
            Some(reason) => {
                Err(invalid(format!("{name} does not answer: start its node first ({reason})")))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearstate_cluster::{
        ClusterConfig, ClusterState, CopyMissingPolicy, HostConfig, PartitionConfig, ViewNumber,
    };

    const PARTITION: PartitionId = PartitionId(1);

    /// Three hosts of four, of which the first two count.
    fn state() -> ClusterState {
        let mut state = new_state();
        full(&mut state, 2);
        state
    }

    /// Three hosts of four, of which the owner alone counts.
    fn new_state() -> ClusterState {
        let host = |id| HostConfig { id: HostId(id), name: id.to_string() };
        let partition = PartitionConfig {
            id: PARTITION,
            name: "amf".to_owned(),
            group: [1, 2, 3].map(HostId).to_vec(),
        };
        let mut state = ClusterState::new(&ClusterConfig {
            hosts: (1..=4).map(host).collect(),
            partitions: vec![partition],
            copies: 3,
            acknowledgements: 2,
            lease_ms: 300,
            copy_missing: CopyMissingPolicy::Stop,
        })
        .unwrap();
        state.apply(&Command::Finalize { level: ClusterLevel::GROUP_CHANGES });
        state
    }

    fn full(state: &mut ClusterState, host: u16) {
        let revision = state.group(PARTITION).unwrap().revision();
        state.apply(&Command::Full { partition: PARTITION, revision, host: HostId(host) });
    }

    fn next(state: &ClusterState, host: u16, is_member: bool) -> GroupStep {
        next_step(state.group(PARTITION).unwrap(), HostId(host), is_member)
    }

    /// Applies what is next.
    fn step(state: &mut ClusterState, host: u16, is_member: bool) -> GroupStep {
        let step = next(state, host, is_member);
        if let GroupStep::Propose(command) = &step {
            assert!(!matches!(state.apply(command), nearstate_cluster::Applied::Refused(_)));
        }
        step
    }

    fn refusal(step: GroupStep) -> &'static str {
        let GroupStep::Refused(reason) = step else { panic!("{step:?}") };
        reason
    }

    #[test]
    fn the_steps_of_a_change_end_when_the_state_says_so() {
        let mut state = state();
        assert_eq!(next(&state, 3, true), GroupStep::Done);
        assert!(matches!(step(&mut state, 4, true), GroupStep::Propose(_)));
        assert_eq!(next(&state, 4, true), GroupStep::Done);
        for host in [3, 4] {
            full(&mut state, host);
        }
        assert!(matches!(step(&mut state, 3, false), GroupStep::Propose(_)));
        assert!(matches!(next(&state, 3, false), GroupStep::Wait(_)));
        // It is added again before it has left.
        assert!(matches!(step(&mut state, 3, true), GroupStep::Propose(_)));
        assert_eq!(next(&state, 3, true), GroupStep::Done);
        let view = ViewNumber(1);
        state.apply(&Command::Exclude { partition: PARTITION, view });
        assert!(matches!(next(&state, 3, false), GroupStep::Wait(_)));
    }

    #[test]
    fn a_change_that_would_leave_too_few_copies_is_refused_with_advice() {
        let mut state = state();
        assert!(refusal(next(&new_state(), 3, false)).contains("until more of them count"));
        assert!(refusal(next(&state, 1, false)).contains("drain it first"));
        assert!(refusal(next(&state, 2, false)).contains("wait until another one counts"));
        // One that does not count may go.
        assert!(matches!(step(&mut state, 3, false), GroupStep::Propose(_)));
        assert!(refusal(next(&state, 2, false)).contains("add another one first"));
    }
}
