//! The data access experiments of paper 1, Tables 2 and 3.
//!
//! A simulator node of the paper is a client process here. A sequence is a round: `--ops` is the
//! sequence size and `--rounds` the number of repeats. Readers of table 2 share all records; those
//! of table 3 have records of their own, so that no reader finds them in a cache. Only with
//! 1000 KB a megabyte do the data set sizes of the paper follow from its equation 1.
//!
//! The presets of table 3 (section 5.2) have a target for each memory node of this machine: a
//! region that is bound to it. Clients run on the processors of the first node.

use super::{Case, Preset, case};

/// A read experiment with every way to read that the targets have.
macro_rules! reads {
    ($name:literal, $about:literal, $words:literal) => {
        experiment(
            $name,
            $about,
            &[
                case("walk", concat!("--variant walk ", $words), &[]),
                case("view", concat!("--variant view ", $words), &[]),
                case("copy", concat!("--variant copy ", $words), &[]),
                case("batch", concat!("--variant batch ", $words), &[]),
                case("chain", concat!("--variant chain ", $words), &[]),
            ],
        )
    };
}

/// A write experiment: records are added to an empty database.
macro_rules! writes {
    ($name:literal, $about:literal, $words:literal) => {
        experiment(
            $name,
            $about,
            &[case("insert", concat!("--variant insert --warm-up 0 ", $words), &[])],
        )
    };
}

const fn experiment(name: &'static str, about: &'static str, cases: &'static [Case]) -> Preset {
    Preset { name, workload: "micro", about, cases }
}

/// Tables 2 and 3 by row.
pub(super) const PRESETS: [Preset; 11] = [
    writes!(
        "thesis-1",
        "paper 1, Table 2, row 1: 10 nodes write 10,000 records of 1 KB",
        "--clients 10 --ops 10000 --records 100000 --value-bytes 1024 --rounds 1 \
         --targets region,redis,redis-unix,whitedb"
    ),
    reads!(
        "thesis-2",
        "paper 1, Table 2, row 2: 10 nodes read the same 10,000 records of 1 KB",
        "--clients 10 --ops 10000 --records 10000 --value-bytes 1024 --rounds 1 \
         --warm-up 10000 --targets region,redis,redis-unix,whitedb"
    ),
    writes!(
        "thesis-3",
        "paper 1, Table 2, row 3: 100 nodes write 10,000 records of 1 KB",
        "--clients 100 --ops 10000 --records 1000000 --value-bytes 1024 --rounds 1 \
         --targets region,redis,redis-unix,whitedb"
    ),
    reads!(
        "thesis-4",
        "paper 1, Table 2, row 4: 100 nodes read the same 10,000 records of 1 KB",
        "--clients 100 --ops 10000 --records 10000 --value-bytes 1024 --rounds 1 \
         --warm-up 10000 --targets region,redis,redis-unix,whitedb"
    ),
    writes!(
        "thesis-5",
        "paper 1, Table 2, row 5: 3 nodes write 30,000 records of 1 KB ten times",
        "--clients 3 --ops 30000 --records 900000 --value-bytes 1024 --rounds 10 \
         --targets region,redis,redis-unix,whitedb"
    ),
    reads!(
        "thesis-6",
        "paper 1, Table 2, row 6: 3 nodes read the same 30,000 records of 1 KB ten times",
        "--clients 3 --ops 30000 --records 30000 --value-bytes 1024 --rounds 10 \
         --warm-up 30000 --targets region,redis,redis-unix,whitedb"
    ),
    writes!(
        "thesis-numa-1",
        "paper 1, Table 3, row 1: 10 nodes write 10,000 records of 1 KB",
        "--clients 10 --ops 10000 --records 100000 --value-bytes 1024 --rounds 1 \
         --targets region@nodes,redis,whitedb"
    ),
    reads!(
        "thesis-numa-2",
        "paper 1, Table 3, row 2: 10 nodes read 1,800 records of 1 KB each",
        "--clients 10 --ops 1800 --records 18000 --own-records --value-bytes 1024 --rounds 1 \
         --warm-up 1800 --targets region@nodes,redis,whitedb"
    ),
    writes!(
        "thesis-numa-3",
        "paper 1, Table 3, row 3: 1 node writes 8,000 records of 1 MB",
        "--clients 1 --ops 8000 --records 8000 --value-bytes 1024000 --rounds 1 \
         --targets region@nodes,redis,whitedb"
    ),
    reads!(
        "thesis-numa-4",
        "paper 1, Table 3, row 4: 55 nodes read 1,000 records of 1 MB each",
        "--clients 55 --ops 1000 --records 55000 --own-records --value-bytes 1024000 --rounds 1 \
         --warm-up 1000 --targets region@nodes,redis,whitedb"
    ),
    reads!(
        "thesis-numa-5",
        "paper 1, Table 3, row 5: 55 nodes read 500 records of 1 MB each, twice",
        "--clients 55 --ops 500 --records 27500 --own-records --value-bytes 1024000 --rounds 2 \
         --warm-up 500 --targets region@nodes,redis,whitedb"
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_presets_are_tables_2_and_3_of_the_paper() {
        // Sequence size, record size in KB, repeats, nodes.
        let expected = [
            ("thesis-1", 10_000, 1, 1, 10),
            ("thesis-2", 10_000, 1, 1, 10),
            ("thesis-3", 10_000, 1, 1, 100),
            ("thesis-4", 10_000, 1, 1, 100),
            ("thesis-5", 30_000, 1, 10, 3),
            ("thesis-6", 30_000, 1, 10, 3),
            ("thesis-numa-1", 10_000, 1, 1, 10),
            ("thesis-numa-2", 1_800, 1, 1, 10),
            ("thesis-numa-3", 8_000, 1000, 1, 1),
            ("thesis-numa-4", 1_000, 1000, 1, 55),
            ("thesis-numa-5", 500, 1000, 2, 55),
        ];
        assert_eq!(PRESETS.len(), expected.len());
        for (preset, (name, ops, kb, repeats, nodes)) in PRESETS.iter().zip(expected) {
            assert_eq!(preset.name, name);
            for case in preset.cases {
                let value = |option: &str| {
                    let mut words = case.words.split_whitespace();
                    words.find(|word| *word == option).unwrap();
                    words.next().unwrap().parse::<u64>().unwrap()
                };
                assert_eq!(value("--ops"), ops, "{name}");
                assert_eq!(value("--value-bytes"), kb * 1024, "{name}");
                assert_eq!((value("--rounds"), value("--clients")), (repeats, nodes), "{name}");
                let is_shared = case.name != "insert" && !case.words.contains("--own-records");
                let sequences = if case.name == "insert" { repeats * nodes } else { nodes };
                let records = if is_shared { ops } else { ops * sequences };
                assert_eq!(value("--records"), records, "{name}: what all nodes use together");
            }
        }
    }
}
