//! What was measured: rows of samples, the goals that they are judged by, and the verdicts.

use super::options::Group;
use crate::machine::Machine;
use crate::stat::median;

/// In what a row counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds for each operation.
    Ns,
    /// Bytes for each record.
    Bytes,
    /// A factor.
    Times,
    /// A number of things.
    Count,
}

/// What a figure of ours must reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// At most so much, in the unit of the row.
    AtMost(f64),
    /// So many times less than this peer needs.
    Ahead(&'static str, f64),
}

/// The samples of one target.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Name of the target.
    pub target: String,
    /// One for each round.
    pub samples: Vec<f64>,
}

/// One measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The group that it belongs to.
    pub group: Group,
    /// What was measured.
    pub title: String,
    /// Records of the database; 0 where that does not matter.
    pub records: u64,
    /// In what it counts.
    pub unit: Unit,
    /// One for each target; ours, if there, is the first.
    pub cells: Vec<Cell>,
    /// What our figure must reach.
    pub goals: Vec<Goal>,
}

/// Our target.
pub const OURS: &str = "region";

impl Row {
    /// A row without samples.
    pub fn new(group: Group, title: &str, records: u64, unit: Unit) -> Self {
        Self { group, title: title.to_owned(), records, unit, cells: Vec::new(), goals: Vec::new() }
    }

    /// Adds a sample.
    pub fn add(&mut self, target: &str, sample: f64) {
        match self.cells.iter_mut().find(|c| c.target == target) {
            Some(cell) => cell.samples.push(sample),
            None => self.cells.push(Cell { target: target.to_owned(), samples: vec![sample] }),
        }
    }

    /// The samples of a target.
    pub fn of(&self, target: &str) -> Option<&Cell> {
        self.cells.iter().find(|c| c.target == target)
    }

    /// How many times more than ours a target needs: the median over the rounds, each compared
    /// with the same round of ours.
    pub fn ratio(&self, target: &str) -> Option<f64> {
        let (ours, theirs) = (self.of(OURS)?, self.of(target)?);
        if ours.samples.len() != theirs.samples.len() {
            return Some(theirs.median() / ours.median());
        }
        let pairs = theirs.samples.iter().zip(&ours.samples);
        Some(median(&pairs.map(|(t, o)| t / o).collect::<Vec<f64>>()))
    }

    /// What was reached of a goal; `None` if it was not measured.
    pub fn reached(&self, goal: Goal) -> Option<f64> {
        match goal {
            Goal::AtMost(_) => self.of(OURS).map(Cell::median),
            Goal::Ahead(peer, _) => self.ratio(peer),
        }
    }

    /// Whether a goal is met; `None` if it was not measured.
    pub fn is_met(&self, goal: Goal) -> Option<bool> {
        let reached = self.reached(goal)?;
        Some(match goal {
            Goal::AtMost(most) => reached <= most,
            Goal::Ahead(_, least) => reached >= least,
        })
    }

    /// The goal that is judged in the line of this target.
    pub fn goal_for(&self, target: &str) -> Option<Goal> {
        self.goals.iter().copied().find(|goal| match goal {
            Goal::AtMost(_) => target == OURS,
            Goal::Ahead(peer, _) => *peer == target,
        })
    }
}

impl Cell {
    /// The middle sample.
    pub fn median(&self) -> f64 {
        median(&self.samples)
    }

    /// The least and the greatest one.
    pub fn spread(&self) -> (f64, f64) {
        let least = self.samples.iter().copied().fold(f64::INFINITY, f64::min);
        (least, self.samples.iter().copied().fold(0.0, f64::max))
    }
}

/// A point on the curve of growth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Records that are there.
    pub records: u64,
    /// Nanoseconds for each insert since the point before.
    pub insert_ns: f64,
    /// Nanoseconds for a keyed view.
    pub view_ns: f64,
    /// Nanoseconds for a keyed put to a record that is there.
    pub put_ns: f64,
    /// Bytes taken for each record, everything counted.
    pub record_bytes: f64,
    /// Bytes on 2 MiB pages.
    pub huge_bytes: u64,
}

/// Everything of one call.
#[derive(Debug)]
pub struct Findings {
    /// The command line, as it was given.
    pub command: String,
    /// The machine.
    pub machine: Machine,
    /// Name and version of each target that was measured.
    pub versions: Vec<(String, String)>,
    /// What a reader has to know to judge the figures.
    pub caveats: Vec<String>,
    /// The measures, in order.
    pub rows: Vec<Row>,
    /// The curve of growth.
    pub growth: Vec<Point>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        let mut row = Row::new(Group::Reads, "keyed view", 1000, Unit::Ns);
        for (round, ours) in [10.0, 20.0, 10.0].into_iter().enumerate() {
            row.add(OURS, ours);
            row.add("lmdb", ours * (10.0 + f64::from(u32::try_from(round).unwrap())));
        }
        row
    }

    #[test]
    fn a_ratio_compares_round_by_round() {
        let row = row();
        // 10, 11 and 12: a machine that was slow for a round does not move it.
        assert!((row.ratio("lmdb").unwrap() - 11.0).abs() < 1e-9);
        assert_eq!(row.ratio("redis"), None);
        assert_eq!(row.of("lmdb").unwrap().spread(), (100.0, 220.0));
    }

    #[test]
    fn goals_can_be_met_missed_or_not_measured() {
        let row = row();
        assert_eq!(row.is_met(Goal::AtMost(10.0)), Some(true));
        assert_eq!(row.is_met(Goal::AtMost(9.9)), Some(false));
        assert_eq!(row.is_met(Goal::Ahead("lmdb", 11.0)), Some(true));
        assert_eq!(row.is_met(Goal::Ahead("lmdb", 11.1)), Some(false));
        assert_eq!(row.is_met(Goal::Ahead("whitedb", 1.0)), None);
    }
}
