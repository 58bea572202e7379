//! What a check has found.

use nearstate_model::HeapUsage;

/// Faults that a report lists. Further faults are only counted.
const FAULTS_NAMED_MAX: usize = 100;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Contradictions, one sentence each; the first hundred.
    pub faults: Vec<String>,
    /// Number of contradictions.
    pub faults_count: u64,
    /// Namespaces walked.
    pub namespaces: u64,
    /// Records walked.
    pub records: u64,
    /// Bytes of the cells of records and their blocks.
    pub bytes_live: u64,
    /// Bytes of the index.
    pub bytes_index: u64,
    /// Bytes of free units, of cells in queues and of bump ranges.
    pub bytes_free: u64,
    /// Bytes of replaced versions and transactions that the log holds. They are not free until the
    /// log gives them up.
    pub bytes_held: u64,
    /// Bytes of cells that are not reachable.
    pub bytes_leaked: u64,
    /// Bytes of the parts of the heap that were never used. They are free as well.
    pub bytes_unused: u64,
    /// Bytes of the heap. If there is no contradiction, they are the sum of those that are live, of
    /// the index, free, held, leaked and unused.
    pub bytes_total: u64,
    /// Bytes of the heap that were allocated.
    pub bytes_taken: u64,
    /// What the heap is used for, and how much of it is usable for cells of some sizes. Not filled
    /// if there is a contradiction.
    pub heap: HeapUsage,
}

impl CheckReport {
    /// True if there is no contradiction and no leak.
    pub fn is_clean(&self) -> bool {
        self.faults_count == 0
    }

    /// Adds a fault that an upper layer found.
    pub fn add_fault(&mut self, text: impl Into<String>) {
        self.fault(text);
    }

    pub(super) fn fault(&mut self, text: impl Into<String>) {
        debug_assert!(self.faults.len() as u64 <= self.faults_count, "named faults are counted");
        self.faults_count += 1;
        if self.faults.len() < FAULTS_NAMED_MAX {
            self.faults.push(text.into());
        }
    }
}
