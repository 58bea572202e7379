//! What a run of flips has found.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::report_lines::table;

/// What happened after the flips in one part of the region.
#[derive(Clone, Debug, Default, Serialize)]
pub struct AreaTotals {
    pub flips: u64,
    /// Flips after which the offline check has found a fault.
    pub found: u64,
    /// Flips after which a process got an error.
    pub with_errors: u64,
    /// Flips that hid or changed a record which they concern.
    pub concerned: u64,
    /// Flips that hid or changed another record.
    pub others: u64,
}

/// Results of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FlipTotals {
    /// Seed of all random choices.
    pub seed: u64,
    pub flips: u64,
    /// Processes that ended by a signal or by a panic.
    pub crashes: u64,
    /// Processes that made no progress.
    pub hangs: u64,
    /// Regions that have faults after the repair.
    pub unrepaired: u64,
    pub areas: BTreeMap<String, AreaTotals>,
    /// Errors that processes got, by variant.
    pub errors: BTreeMap<String, u64>,
    /// What each violation was, at most some hundred.
    pub violations: Vec<String>,
    pub seconds: f64,
}

/// Violations that are reported with all they say.
const VIOLATIONS_MAX: usize = 1000;

impl FlipTotals {
    pub(crate) fn violation(&mut self, text: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(text);
        }
    }

    /// Flips that changed or hid a record which they do not concern.
    pub fn others(&self) -> u64 {
        self.areas.values().map(|area| area.others).sum()
    }

    /// Flips that the offline check has found.
    pub fn found(&self) -> u64 {
        self.areas.values().map(|area| area.found).sum()
    }

    /// True if nothing happened that must not happen.
    pub fn is_passed(&self) -> bool {
        self.crashes == 0 && self.hangs == 0 && self.others() == 0 && self.unrepaired == 0
    }

    pub fn table(&self) -> String {
        let errors: Vec<String> =
            self.errors.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let lines = [
            ("seed", self.seed.to_string()),
            ("flips", self.flips.to_string()),
            ("processes that crashed", self.crashes.to_string()),
            ("processes without progress", self.hangs.to_string()),
            ("wrong reads of other records", self.others().to_string()),
            ("not clean after the repair", self.unrepaired.to_string()),
            ("found by the check", format!("{} of {}", self.found(), self.flips)),
            ("errors", errors.join(", ")),
            ("seconds", format!("{:.1}", self.seconds)),
        ];
        let mut text = table(lines);
        text.push_str("\npart                    flips   found  errors  concerned  others\n");
        for (name, area) in &self.areas {
            let _ = writeln!(
                text,
                "{name:<22} {:>6}  {:>6}  {:>6}  {:>9}  {:>6}",
                area.flips, area.found, area.with_errors, area.concerned, area.others
            );
        }
        for violation in &self.violations {
            text.push_str(violation);
            text.push('\n');
        }
        text
    }
}
