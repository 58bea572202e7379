//! Paper 1's Tables 2 and 3 by name.

use crate::legacy::protocol::Mode;

/// Words for `--preset`.
pub const NAMES: [&str; 13] = [
    "all",
    "numa",
    "thesis-1",
    "thesis-2",
    "thesis-3",
    "thesis-4",
    "thesis-5",
    "thesis-6",
    "thesis-numa-1",
    "thesis-numa-2",
    "thesis-numa-3",
    "thesis-numa-4",
    "thesis-numa-5",
];

/// A row of paper 1's Table 2 or 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its name on the command line.
    pub name: &'static str,
    /// Sequence size, in operations.
    pub ops: u64,
    /// Record size, in bytes.
    pub record_bytes: u64,
    /// Sequence repeats.
    pub loops: u64,
    /// Simulator nodes.
    pub nodes: u64,
    /// Access mode.
    pub mode: Mode,
}

const fn row(name: &'static str, [ops, record_bytes, loops, nodes]: [u64; 4], mode: Mode) -> Row {
    Row { name, ops, record_bytes, loops, nodes, mode }
}

/// The paper's kilobyte.
pub const KB: u64 = 1 << 10;
/// The paper's megabyte: only with 1000 KB do its data set sizes follow from its equation 1.
const MB: u64 = 1000 * KB;

/// Paper 1, Table 2, then Table 3. In the columns: sequence size, record size, repeats, nodes.
pub const ROWS: [Row; 11] = [
    row("thesis-1", [10_000, KB, 1, 10], Mode::Write),
    row("thesis-2", [10_000, KB, 1, 10], Mode::Read),
    row("thesis-3", [10_000, KB, 1, 100], Mode::Write),
    row("thesis-4", [10_000, KB, 1, 100], Mode::Read),
    row("thesis-5", [30_000, KB, 10, 3], Mode::Write),
    row("thesis-6", [30_000, KB, 10, 3], Mode::Read),
    row("thesis-numa-1", [10_000, KB, 1, 10], Mode::Write),
    row("thesis-numa-2", [1_800, KB, 1, 10], Mode::Read),
    row("thesis-numa-3", [8_000, MB, 1, 1], Mode::Write),
    row("thesis-numa-4", [1_000, MB, 1, 55], Mode::Read),
    row("thesis-numa-5", [500, MB, 2, 55], Mode::Read),
];

impl Row {
    /// Bytes that one sequence asks for (paper 1, equation 1).
    pub fn dataset_bytes(&self) -> u64 {
        self.ops * self.record_bytes
    }

    /// Table 3 has every reader read records of its own, so that none finds them in a cache.
    pub fn is_disjoint(&self) -> bool {
        self.name.starts_with("thesis-numa-") && self.mode == Mode::Read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_presets_are_tables_2_and_3_of_the_paper() {
        // Sequence size, record size in KB, repeats, nodes, data set in MB, mode.
        let expected = [
            ("thesis-1", 10_000, 1, 1, 10, "9.77 MB", Mode::Write),
            ("thesis-2", 10_000, 1, 1, 10, "9.77 MB", Mode::Read),
            ("thesis-3", 10_000, 1, 1, 100, "9.77 MB", Mode::Write),
            ("thesis-4", 10_000, 1, 1, 100, "9.77 MB", Mode::Read),
            ("thesis-5", 30_000, 1, 10, 3, "29.30 MB", Mode::Write),
            ("thesis-6", 30_000, 1, 10, 3, "29.30 MB", Mode::Read),
            ("thesis-numa-1", 10_000, 1, 1, 10, "9.77 MB", Mode::Write),
            ("thesis-numa-2", 1_800, 1, 1, 10, "1.76 MB", Mode::Read),
            ("thesis-numa-3", 8_000, 1000, 1, 1, "7.63 GB", Mode::Write),
            ("thesis-numa-4", 1_000, 1000, 1, 55, "0.95 GB", Mode::Read),
            ("thesis-numa-5", 500, 1000, 2, 55, "0.48 GB", Mode::Read),
        ];
        assert_eq!(ROWS.len(), expected.len());
        for (row, (name, ops, kb, loops, nodes, dataset, mode)) in ROWS.iter().zip(expected) {
            assert_eq!(
                (row.name, row.ops, row.record_bytes, row.loops, row.nodes, row.mode),
                (name, ops, kb * 1024, loops, nodes, mode)
            );
            // Equation 1: the column of data set sizes follows from the others.
            let kilobytes = f64::from(u32::try_from(row.dataset_bytes() >> 10).unwrap());
            let text = if dataset.ends_with("GB") {
                format!("{:.2} GB", kilobytes / 1024.0 / 1024.0)
            } else {
                format!("{:.2} MB", kilobytes / 1024.0)
            };
            assert_eq!(text, dataset, "{name}");
        }
    }
}
