//! `nearstate cluster finalize`: the cluster is raised to the level that all hosts can do.

use std::time::Instant;

use nearstate_cluster::{Command, HostId};
use nearstate_model::{Error, Result};
use serde_json::{Value, json};

use crate::cluster::level;

use super::lost_membership;
use super::operator::{DECISION_MAX, OperatorContext, invalid};

/// How often the applied state is looked at.
const LOOK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(20);

impl OperatorContext {
    /// Creates the cluster, with the level of its hosts if all of them answer.
    pub(super) fn initialize(&self) -> Result<Value> {
        self.report.file.check_begins()?;
        // The engine says that a cluster exists.
        if self.engine.status().voters.is_empty()
            && let Some(reason) = lost_membership::earlier(&self.statuses())
        {
            return Err(invalid(reason));
        }
        self.engine.initialize(&self.report.file.voters())?;
        Ok(self.level_of_all())
    }

    /// Raises the level to that of all hosts, if all of them answer.
    fn level_of_all(&self) -> Value {
        self.raise_level(&[]).unwrap_or_else(|error| {
            let level = self.driver.status().level.0;
            json!({ "level": level, "reason": error.to_string() })
        })
    }

    /// Raises the level of a cluster that exists, although hosts in `without` do not answer.
    pub(super) fn finalize(&self, without: &[u16]) -> Result<Value> {
        if self.engine.status().voters.is_empty() {
            let detail = "this host knows no cluster: `nearstate cluster init` creates it";
            return Err(invalid(detail));
        }
        self.raise_level(without)
    }

    fn raise_level(&self, without: &[u16]) -> Result<Value> {
        let statuses = self.statuses();
        let name = |host: &u16| self.report.file.host_name(HostId(*host));
        let without: Vec<String> = without.iter().map(name).collect();
        let Some(level) = level::next(&statuses, &without).map_err(invalid)? else {
            let decided = self.driver.status().level.0;
            return Ok(json!({ "level": decided, "raised": false }));
        };
        self.engine.propose_and_wait(Command::Finalize { level }.encode(), DECISION_MAX)?;
        let end = Instant::now() + DECISION_MAX;
        loop {
            let decided = self.driver.status().level;
            if decided >= level {
                return Ok(json!({ "level": decided.0, "raised": true }));
            }
            if Instant::now() >= end {
                let detail = format!("level {level} is decided, and not applied on this host yet");
                return Err(Error::Backend { detail });
            }
            std::thread::park_timeout(LOOK_INTERVAL);
        }
    }
}
