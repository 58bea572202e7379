//! What is played, and what came of it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::model::HistoryModel;

/// What is played.
#[derive(Clone, Debug)]
pub struct HistoryOptions {
    /// HistoryRun, and as many histories.
    pub rounds: u64,
    /// HistoryRun between two offline checks.
    pub rounds_per_check: u64,
    /// Processes.
    pub players: u16,
    /// Operations of each in a round; longer histories take the checker much longer.
    pub operations: u64,
    /// Of all rounds, those in which processes are killed.
    pub kills_percent: u64,
    /// With the feature `crash-points`: the processor is given away at one point in so many; 0
    /// never.
    pub jitter: u64,
    /// One model only.
    pub model: Option<HistoryModel>,
    /// A folder of its own; made, and removed at the end if nothing was found.
    pub folder: PathBuf,
    /// Seed of all choices.
    pub seed: u64,
    /// Goes on after what is found, and counts it: for faults that are planted.
    pub is_survey: bool,
}

/// Who finds that something is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detector {
    /// The checker of histories.
    History,
    /// The promise of a model, on a snapshot.
    Invariant,
    /// A process, of what it saw itself.
    Process,
    /// The offline check.
    Check,
}

/// What was done and found.
#[derive(Clone, Debug, Default)]
pub struct HistoryTotals {
    /// HistoryRun.
    pub rounds: u64,
    /// Histories that the checker has decided.
    pub histories: u64,
    /// Histories that it has not decided in time.
    pub undecided: u64,
    /// Operations in them.
    pub ops: u64,
    /// Transactions and writes that were done.
    pub done: u64,
    /// Refused: conflicts, and conditions that did not hold.
    pub refused: u64,
    /// Operations that a kill cut short.
    pub unknown: u64,
    /// Processes killed.
    pub kills: u64,
    /// Snapshots of all keys that were judged.
    pub snapshots: u64,
    /// Offline checks.
    pub checks: u64,
    /// What was found, in a survey.
    pub caught: BTreeMap<Detector, u64>,
    /// The first of it by each, in words.
    pub first: BTreeMap<Detector, String>,
    /// How long it took.
    pub seconds: f64,
}

impl HistoryTotals {
    /// For programs.
    pub fn json(&self) -> Value {
        json!({
            "rounds": self.rounds,
            "histories_checked": self.histories,
            "histories_undecided": self.undecided,
            "operations": self.ops,
            "transactions_and_writes_done": self.done,
            "refused": self.refused,
            "cut_short": self.unknown,
            "kills": self.kills,
            "snapshots_judged": self.snapshots,
            "checks": self.checks,
            "seconds": self.seconds,
        })
    }

    /// For people.
    pub fn lines(&self) -> [(&'static str, String); 5] {
        [
            (
                "histories checked",
                format!(
                    "{} of {} rounds ({} undecided)",
                    self.histories, self.rounds, self.undecided
                ),
            ),
            (
                "operations in them",
                format!(
                    "{} ({} writes done, {} refused, {} cut short)",
                    self.ops, self.done, self.refused, self.unknown
                ),
            ),
            ("processes killed in them", self.kills.to_string()),
            ("snapshots judged in them", self.snapshots.to_string()),
            (
                "offline checks after them",
                format!("{}, in {:.1} seconds", self.checks, self.seconds),
            ),
        ]
    }
}

/// Something that must not be.
pub(crate) struct Violation(pub(crate) Detector, pub(crate) String);

/// The first number of the values of one process in one round.
pub(crate) fn first_value(round: u64, player: u64, incarnation: u64) -> u64 {
    (round + 1) << 30 | player << 22 | (incarnation % 64) << 16
}
