//! `nearstate cluster init --new-membership`: the membership begins, or goes on, behind what the
//! regions of all hosts have acted on.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nearstate_cluster::{ClusterLevel, Command, HostId, Revision, ViewNumber};
use nearstate_model::{Error, Result};
use serde_json::{Value, json};

use crate::cluster::{admin, level};

use super::lost_membership::{self, SeenState};
use super::operator::{DECISION_MAX, OperatorContext, RAFT, invalid};
use super::votes;

/// How often the statuses are taken until all hosts have applied what was decided.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

impl OperatorContext {
    /// Creates the cluster behind what regions have seen. If that was interrupted, or the
    /// membership was restored from an older copy, it exists already, and hosts wait for more than
    /// it has. `without`: hosts that do not answer, and are off.
    pub(super) fn initialize_anew(&self, without: &[u16]) -> Result<Value> {
        let file = &self.report.file;
        let name = |host: &u16| file.host_name(HostId(*host));
        let without: Vec<String> = without.iter().map(name).collect();
        let known = self.engine.status().voters;
        let is_there = !known.is_empty();
        let mut statuses = self.statuses();
        // With etcd its members vote.
        let voters = match file.engine_name() {
            RAFT if is_there => known,
            RAFT => file.voters(),
            _ => BTreeSet::new(),
        };
        let refusal = lost_membership::unnamed(&statuses, &without)
            .or_else(|| votes::no_majority((file, &voters), &statuses.clone().into()))
            .or_else(|| if is_there { None } else { lost_membership::is_unsafe(file, &statuses) });
        if let Some(reason) = refusal {
            return Err(invalid(reason));
        }
        let level = level::for_raised_views(&statuses, &without).map_err(invalid)?;
        let mut applied = None;
        if is_there {
            let (settled, index) = self.settled()?;
            (statuses, applied) = (settled, Some(index));
            if let Some(reason) = lost_membership::unnamed(&statuses, &without) {
                return Err(invalid(reason));
            }
        }
        let seen = lost_membership::seen(&statuses, applied);
        let leased = lost_membership::leased(&statuses, applied);
        let is_free = |state: &&SeenState| !leased.contains_key(&state.partition);
        let free: Vec<&SeenState> = seen.iter().filter(is_free).collect();
        let leased: Vec<&String> = leased.values().collect();
        if is_there && free.is_empty() {
            return Err(invalid(lost_membership::nothing_to_raise(&leased)));
        }
        if !is_there {
            file.check_begins()?;
            self.engine.initialize(&file.voters())?;
        }
        self.raise(level, &free).map_err(|error| {
            let done = if is_there { "not all is done" } else { "the cluster is created" };
            let detail = format!(
                "{done}, and {}. Stop the nodes of hosts that serve, if any, and repeat the \
                 command: it continues",
                admin::reason(&error)
            );
            Error::Backend { detail }
        })?;
        Ok(json!({
            "level": self.driver.status().level.0,
            "created": !is_there,
            "without_owner": free.iter().map(|state| &state.partition).collect::<Vec<_>>(),
            "leased": leased,
            "silent": lost_membership::silent(&statuses),
        }))
    }

    /// The statuses of all hosts, behind an index that those which learn decisions have applied: an
    /// older state could say that its host waits.
    fn settled(&self) -> Result<(Vec<Value>, u64)> {
        let level = self.driver.status().level;
        let end = Instant::now() + DECISION_MAX;
        // The present level changes nothing.
        let what = "this host has not applied what was decided before. Nothing is changed";
        let index = self.decide(&Command::Finalize { level }, end, what)?;
        loop {
            let statuses = self.statuses();
            if lost_membership::have_applied(&statuses, index) || Instant::now() >= end {
                return Ok((statuses, index));
            }
            std::thread::park_timeout(LOOK_INTERVAL);
        }
    }

    /// Raises the level, then the views. Earlier programs stop at the level, and drop no view.
    fn raise(&self, level: Option<ClusterLevel>, seen: &[&SeenState]) -> Result<()> {
        let end = || Instant::now() + 2 * DECISION_MAX;
        if let Some(level) = level {
            let what = format!("level {level} is decided, and not applied on this host yet");
            self.decide(&Command::Finalize { level }, end(), &what)?;
        }
        for state in seen {
            let mut partitions = self.report.file.partitions.iter();
            let Some(partition) = partitions.find(|one| one.name == state.partition) else {
                let detail = format!("{} is not in the file of this host", state.partition);
                return Err(Error::Backend { detail });
            };
            let (partition, view) = (partition.id, ViewNumber(state.view));
            let revision = Revision(state.revision);
            let command = Command::RaiseView { partition, view, revision };
            let waits = format!("{} still waits", state.partition);
            self.decide(&command, end(), &waits).map_err(|error| {
                let detail = format!("{waits} ({})", admin::reason(&error));
                Error::Backend { detail }
            })?;
            // It has no effect if the state is another one than it was.
            let is_raised = self
                .driver
                .group(partition)
                .is_some_and(|group| group.is_operator_needed() && group.view() > view);
            if !is_raised {
                let detail = format!(
                    "{waits}: the membership has refused view {view}, because the partition has \
                     another one meanwhile, or no further ones",
                );
                return Err(Error::Backend { detail });
            }
        }
        Ok(())
    }
}
