//! What was measured of transactions: rows of arms that took turns, the goals, the verdicts.

use crate::machine::Machine;
use crate::stat::median;
use crate::table::Table;
use serde_json::Value;

/// In what a row counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds for each operation.
    Ns,
    /// Operations a second.
    Rate,
    /// A factor.
    Times,
    /// A number of things.
    Count,
}

/// What the first arm of a row must reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// At most so much, in the unit of the row.
    AtMost(f64),
    /// At least so much, in the unit of the row.
    AtLeast(f64),
    /// At most so many times what this arm needs.
    TimesAtMost(&'static str, f64),
}

/// The samples of one way to do it.
#[derive(Clone, Debug, PartialEq)]
pub struct Arm {
    /// Its name.
    pub name: String,
    /// One for each round.
    pub samples: Vec<f64>,
}

/// One measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What was measured.
    pub title: String,
    /// Records of the namespace; 0 where that does not matter.
    pub records: u64,
    /// In what it counts.
    pub unit: Unit,
    /// The arms; the one that is judged is the first.
    pub arms: Vec<Arm>,
    /// What the first arm must reach.
    pub goals: Vec<Goal>,
}

impl Row {
    /// A row without samples.
    pub fn new(title: &str, records: u64, unit: Unit) -> Self {
        Self { title: title.to_owned(), records, unit, arms: Vec::new(), goals: Vec::new() }
    }

    /// Adds a sample.
    pub fn add(&mut self, name: &str, sample: f64) {
        match self.arms.iter_mut().find(|a| a.name == name) {
            Some(arm) => arm.samples.push(sample),
            None => self.arms.push(Arm { name: name.to_owned(), samples: vec![sample] }),
        }
    }

    /// The samples of an arm.
    pub fn of(&self, name: &str) -> Option<&Arm> {
        self.arms.iter().find(|a| a.name == name)
    }

    /// How many times as much as this arm the first one is, round by round.
    pub fn ratios(&self, name: &str) -> Option<Vec<f64>> {
        let (first, other) = (self.arms.first()?, self.of(name)?);
        Some(first.samples.iter().zip(&other.samples).map(|(f, o)| f / o).collect())
    }

    /// What was reached of a goal; `None` if it was not measured.
    pub fn reached(&self, goal: Goal) -> Option<f64> {
        match goal {
            Goal::AtMost(_) | Goal::AtLeast(_) => self.arms.first().map(Arm::median),
            Goal::TimesAtMost(arm, _) => self.ratios(arm).map(|ratios| median(&ratios)),
        }
    }

    /// Whether a goal is met; `None` if it was not measured.
    pub fn is_met(&self, goal: Goal) -> Option<bool> {
        let reached = self.reached(goal)?;
        Some(match goal {
            Goal::AtMost(most) | Goal::TimesAtMost(_, most) => reached <= most,
            Goal::AtLeast(least) => reached >= least,
        })
    }
}

impl Arm {
    /// The middle sample.
    pub fn median(&self) -> f64 {
        median(&self.samples)
    }

    /// The least and the greatest one.
    pub fn spread(&self) -> (f64, f64) {
        spread(&self.samples)
    }
}

/// The least and the greatest of some samples.
pub fn spread(samples: &[f64]) -> (f64, f64) {
    let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
    (least, samples.iter().copied().fold(0.0, f64::max))
}

/// A table of its own, beside the rows.
#[derive(Clone, Debug)]
pub struct Sheet {
    /// What it shows.
    pub title: String,
    /// For people.
    pub table: Table,
    /// The same for programs.
    pub json: Value,
}

/// Everything of one call.
#[derive(Debug)]
pub struct Findings {
    /// The command line, as it was given.
    pub command: String,
    /// The machine.
    pub machine: Machine,
    /// What a reader has to know to judge the figures.
    pub caveats: Vec<String>,
    /// The measures, in order.
    pub rows: Vec<Row>,
    /// Tables of their own.
    pub sheets: Vec<Sheet>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_compares_round_by_round() {
        let mut row = Row::new("update", 1000, Unit::Ns);
        // The machine was three times slower in the second round, for both.
        for (txn, put) in [(150.0, 100.0), (450.0, 300.0), (170.0, 100.0)] {
            row.add("transaction", txn);
            row.add("put", put);
        }
        assert_eq!(row.ratios("put"), Some(vec![1.5, 1.5, 1.7]));
        assert_eq!(row.is_met(Goal::TimesAtMost("put", 1.5)), Some(true));
        assert_eq!(row.is_met(Goal::TimesAtMost("put", 1.4)), Some(false));
        assert_eq!(row.is_met(Goal::AtMost(169.0)), Some(false));
        assert_eq!(row.is_met(Goal::AtLeast(170.0)), Some(true));
        assert_eq!(row.is_met(Goal::TimesAtMost("get", 9.0)), None);
    }
}
