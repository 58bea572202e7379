//! The result of a run.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::fault::ClusterFault;
use super::sentinel::SentinelTotals;
use crate::times::Times;

/// The goal for the time of a fail-over with a lease of 300 ms: 99 of 100.
pub const FAILOVER_GOAL_MS: u64 = 500;

/// The goal for the restart of a node under load.
pub const RESTART_GOAL_MS: u64 = 150;

/// What happened with one kind of fault.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FaultTotals {
    pub rounds: u64,
    /// Rounds after which another host owned the partition.
    pub failovers: u64,
    /// From the last reply of the old owner to the first one of the new one.
    pub failover_us: Times,
    /// The longest time without a reply, where the owner stayed.
    pub pause_us: Times,
}

/// The result of a run without violations.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FailoverTotals {
    pub seed: u64,
    pub lease_ms: u32,
    pub rounds: u64,
    pub failovers: u64,
    pub faults: BTreeMap<&'static str, FaultTotals>,
    /// Fail-overs after the owner was lost, of all kinds of loss.
    pub lost_owner_us: Times,
    /// Replicated transactions of attached writers.
    pub transactions_replicated: u64,
    /// Requests of RESP clients whose replies a follower had.
    pub requests_replicated: u64,
    pub records_compared: u64,
    pub copies_compared: u64,
    pub histories_checked: u64,
    pub histories_undecided: u64,
    pub operations: u64,
    pub seconds: f64,
    /// Fail-overs of Redis Sentinel beside, if they were wanted.
    pub sentinel: Option<SentinelTotals>,
}

impl FailoverTotals {
    /// Counts a round.
    pub(super) fn count(&mut self, fault: ClusterFault, has_moved: bool, us: u64) {
        self.rounds += 1;
        self.failovers += u64::from(has_moved);
        let of = self.faults.entry(fault.name()).or_default();
        of.rounds += 1;
        if has_moved {
            of.failovers += 1;
            of.failover_us.push(us);
            if fault.loses_the_owner() {
                self.lost_owner_us.push(us);
            }
        } else {
            of.pause_us.push(us);
        }
    }

    /// The result as a table.
    pub fn table(&self) -> String {
        let lines = [
            ("seed", self.seed.to_string()),
            ("lease", format!("{} ms", self.lease_ms)),
            ("fail-overs", format!("{} in {} rounds", self.failovers, self.rounds)),
            (
                "replicated writes",
                format!(
                    "{} transactions of attached writers, {} requests of clients: 0 lost",
                    self.transactions_replicated, self.requests_replicated
                ),
            ),
            ("records compared", self.records_compared.to_string()),
            ("copies compared", format!("{}: 0 divergent records", self.copies_compared)),
            (
                "histories",
                format!(
                    "{} strictly serializable, {} undecided, {} operations",
                    self.histories_checked, self.histories_undecided, self.operations
                ),
            ),
            (
                "owner lost, to the next reply",
                format!(
                    "{} ({} runs; goal: p99 below {FAILOVER_GOAL_MS} ms with a lease of 300 ms)",
                    self.lost_owner_us.summary(),
                    self.lost_owner_us.count()
                ),
            ),
            ("seconds", format!("{:.0}", self.seconds)),
        ];
        let mut text = crate::report_lines::table(lines);
        text.push_str(&self.lost_owner_us.bars());
        let _ = writeln!(
            text,
            "\n{:<28}{:>7}{:>12}  {:<49}owner stayed: longest pause (goal for a restart: \
             {RESTART_GOAL_MS} ms)",
            "fault", "rounds", "fail-overs", "last reply of the old to first of the new owner"
        );
        for (name, of) in &self.faults {
            let _ = writeln!(
                text,
                "{name:<28}{:>7}{:>12}  {:<49}{}",
                of.rounds,
                of.failovers,
                of.failover_us.summary(),
                of.pause_us.summary()
            );
        }
        if let Some(sentinel) = &self.sentinel {
            let _ = writeln!(text, "\n{}", sentinel.line());
        }
        text
    }
}
