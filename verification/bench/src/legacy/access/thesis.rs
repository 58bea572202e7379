//! What paper 1 published: its Table 4, for the columns beside ours.

/// Mean and standard deviation of sequence averages, in nanoseconds.
pub type Published = (f64, f64);

/// One row of paper 1, Table 4.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// The experiment of Table 2.
    pub experiment: u32,
    /// Redis, over the virtual network between Docker containers.
    pub redis: Published,
    /// WhiteDB in shared memory; reads are steps to the next record.
    pub whitedb: Published,
}

/// Paper 1, Table 4.
pub const TABLE_4: [Row; 6] = [
    Row { experiment: 1, redis: (9468.0, 1701.0), whitedb: (4620.0, 466.4) },
    Row { experiment: 2, redis: (36_770.0, 1457.0), whitedb: (19.8, 4.094) },
    Row { experiment: 3, redis: (97_230.0, 46_140.0), whitedb: (5020.0, 852.8) },
    Row { experiment: 4, redis: (375_400.0, 2215.0), whitedb: (44.68, 58.82) },
    Row { experiment: 5, redis: (35_550.0, 4899.0), whitedb: (2200.0, 568.9) },
    Row { experiment: 6, redis: (97_055.0, 19_507.0), whitedb: (39.07, 32.67) },
];

/// Paper 1, Table 5: write latency of 1 MB records by NUMA node, in milliseconds.
pub const TABLE_5_MS: [f64; 8] = [2.032, 2.227, 2.226, 2.342, 2.447, 2.455, 2.568, 2.434];

/// The row of a preset such as `thesis-2`.
pub fn row(preset: &str) -> Option<Row> {
    let number: u32 = preset.strip_prefix("thesis-")?.parse().ok()?;
    TABLE_4.into_iter().find(|r| r.experiment == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_found_by_its_preset() {
        assert_eq!(row("thesis-2").unwrap().whitedb, (19.8, 4.094));
        assert!(row("thesis-numa-2").is_none() && row("custom").is_none());
    }
}
