//! Parameters and results of histories.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

use super::model::HistoryModel;

/// Parameters.
#[derive(Clone, Debug)]
pub struct HistoryOptions {
    /// Rounds; each is one history.
    pub rounds: u64,
    /// Rounds between two offline checks.
    pub rounds_per_check: u64,
    pub processes: u16,
    /// Operations of each process in a round. The checker takes much longer for longer histories.
    pub operations: u64,
    /// The percentage of rounds in which processes are killed.
    pub kills_percent: u64,
    /// With the feature `crash-points`: processes yield the processor at one in so many points; 0
    /// means never.
    pub jitter: u64,
    /// Only this model.
    pub model: Option<HistoryModel>,
    /// A folder of its own. It is created, and removed after a run without violations.
    pub folder: PathBuf,
    /// Seed of all random choices.
    pub seed: u64,
    /// Continues after violations and counts them, for injected faults.
    pub is_survey: bool,
}

/// What detects a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detector {
    /// The checker of histories.
    History,
    /// The invariant of a model, on a snapshot.
    Invariant,
    /// A process, from its own reads.
    Process,
    /// The offline check.
    Check,
}

/// Results.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HistoryTotals {
    pub rounds: u64,
    /// Histories that the checker decided.
    pub histories_checked: u64,
    /// Histories that it did not decide in time.
    pub histories_undecided: u64,
    /// Operations in them.
    pub operations: u64,
    /// Committed transactions and completed writes.
    pub transactions_and_writes_done: u64,
    /// Refused: conflicts, and conditions that did not hold.
    pub refused: u64,
    /// Operations that a kill cut short.
    pub cut_short: u64,
    /// Processes killed.
    pub kills: u64,
    /// Snapshots of all keys whose invariant was checked.
    pub snapshots_checked: u64,
    /// Offline checks.
    pub checks: u64,
    /// Violations, in a survey.
    #[serde(skip)]
    pub caught: BTreeMap<Detector, u64>,
    /// The first violation of each kind.
    #[serde(skip)]
    pub first: BTreeMap<Detector, String>,
    /// Duration of the run.
    pub seconds: f64,
}

impl HistoryTotals {
    /// As a table.
    pub fn lines(&self) -> [(&'static str, String); 5] {
        [
            (
                "histories checked",
                format!(
                    "{} of {} rounds ({} undecided)",
                    self.histories_checked, self.rounds, self.histories_undecided
                ),
            ),
            (
                "operations in them",
                format!(
                    "{} ({} writes done, {} refused, {} cut short)",
                    self.operations,
                    self.transactions_and_writes_done,
                    self.refused,
                    self.cut_short
                ),
            ),
            ("processes killed in them", self.kills.to_string()),
            ("snapshots checked in them", self.snapshots_checked.to_string()),
            (
                "offline checks after them",
                format!("{}, in {:.1} seconds", self.checks, self.seconds),
            ),
        ]
    }
}

/// A violation and its detector.
pub(crate) struct Violation(pub(crate) Detector, pub(crate) String);

/// The first number of the values that one process writes in one round.
pub(crate) fn first_value(round: u64, process: u64, incarnation: u64) -> u64 {
    (round + 1) << 30 | process << 22 | (incarnation % 64) << 16
}
