//! Presets of single operations and of the executor.

use super::{Case, Goal, Preset};

/// A case of single operations on the stores of one host.
macro_rules! case {
    ($name:literal, $words:literal, $goals:expr) => {
        Case {
            name: $name,
            words: concat!(
                $words,
                " --ops 200000 --round-time 1 --rounds 5 --targets region,lmdb,dashmap,redis-unix"
            ),
            goals: $goals,
        }
    };
}

/// A case of one measured client beside another process.
macro_rules! beside {
    ($name:literal, $words:literal, $goals:expr) => {
        Case {
            name: $name,
            words: concat!(
                $words,
                " --records 100000 --ops 200000 --round-time 1 --rounds 5 --targets region,lmdb"
            ),
            goals: $goals,
        }
    };
}

/// A point of the growth of a region: records of 128 bytes are added, then read, then replaced.
macro_rules! point {
    ($name:literal, $words:literal) => {
        Case {
            name: $name,
            words: concat!($words, " --value-bytes 128 --targets region"),
            goals: &[],
        }
    };
}

/// A variant of the executor.
macro_rules! executor {
    ($name:literal, $ops:literal, $goals:expr) => {
        Case {
            name: $name,
            words: concat!("--variant ", $name, " --ops ", $ops, " --rounds 5 --targets null"),
            goals: $goals,
        }
    };
}

/// All of them.
pub(super) const PRESETS: [Preset; 3] = [
    Preset {
        name: "goals",
        workload: "micro",
        about: "single operations at 1,000, 100,000 and 1,000,000 records, and the goals of a read \
                and a write",
        cases: &[
            case!("view-1k", "--variant view --records 1000", &[Goal::NsAtMost("region", 12.0)]),
            case!("copy-1k", "--variant copy --records 1000", &[]),
            case!("chain-1k", "--variant chain --records 1000", &[]),
            case!(
                "view-100k",
                "--variant view --records 100000",
                &[Goal::TimesPeer("region", "lmdb", 14.0)]
            ),
            case!(
                "copy-100k",
                "--variant copy --records 100000",
                &[Goal::TimesPeer("region", "lmdb", 7.0)]
            ),
            case!("batch-100k", "--variant batch --records 100000", &[]),
            case!("batch-copy-100k", "--variant batch-copy --records 100000", &[]),
            case!("chain-100k", "--variant chain --records 100000", &[]),
            case!(
                "put-100k",
                "--variant put --records 100000",
                &[Goal::TimesPeer("region", "lmdb", 6.0)]
            ),
            case!(
                "walk-100k",
                "--variant walk --records 100000",
                &[Goal::NsAtMost("region", 10.0)]
            ),
            beside!(
                "put-beside-reader",
                "--variant put-beside-reader",
                &[Goal::TimesPeer("region", "lmdb", 15.0)]
            ),
            beside!(
                "view-beside-writer",
                "--variant view-beside-writer",
                &[Goal::TimesCase("region", "view-100k", 1.3)]
            ),
            beside!("view-beside-memory", "--variant view-beside-memory", &[]),
            case!(
                "view-1m",
                "--variant view --records 1000000",
                &[Goal::BytesAtMost("region", 1150.0)]
            ),
            case!("copy-1m", "--variant copy --records 1000000", &[]),
            case!(
                "batch-1m",
                "--variant batch --records 1000000",
                &[Goal::TimesPeer("region", "lmdb", 7.0)]
            ),
            case!(
                "batch-copy-1m",
                "--variant batch-copy --records 1000000",
                &[Goal::TimesPeer("region", "lmdb", 7.0)]
            ),
            case!("chain-1m", "--variant chain --records 1000000", &[]),
            case!("put-1m", "--variant put --records 1000000", &[]),
            case!("walk-1m", "--variant walk --records 1000000", &[Goal::NsAtMost("region", 10.0)]),
            Case {
                name: "writers",
                words: "--variant insert --clients 10 --records 500000 --ops 10000 --warm-up 0 \
                        --rounds 5 --unpinned --targets region,whitedb",
                goals: &[Goal::TimesPeer("region", "whitedb", 40.0)],
            },
        ],
    },
    Preset {
        name: "growth",
        workload: "micro",
        about: "the cost of an operation and of a record against the number of records",
        cases: &[
            point!(
                "insert-1k",
                "--variant insert --records 1000 --ops 1000 --warm-up 0 --rounds 1"
            ),
            point!("view-1k", "--variant view --records 1000"),
            point!("put-1k", "--variant put --records 1000"),
            point!(
                "insert-10k",
                "--variant insert --records 10000 --ops 10000 --warm-up 0 --rounds 1"
            ),
            point!("view-10k", "--variant view --records 10000"),
            point!("put-10k", "--variant put --records 10000"),
            point!(
                "insert-100k",
                "--variant insert --records 100000 --ops 100000 --warm-up 0 --rounds 1"
            ),
            point!("view-100k", "--variant view --records 100000"),
            point!("put-100k", "--variant put --records 100000"),
            point!(
                "insert-1m",
                "--variant insert --records 1000000 --ops 1000000 --warm-up 0 --rounds 1"
            ),
            point!("view-1m", "--variant view --records 1000000"),
            point!("put-1m", "--variant put --records 1000000"),
            point!(
                "insert-10m",
                "--variant insert --records 10000000 --ops 10000000 --warm-up 0 --rounds 1"
            ),
            point!("view-10m", "--variant view --records 10000000"),
            point!("put-10m", "--variant put --records 10000000"),
        ],
    },
    Preset {
        name: "core",
        workload: "executor",
        about: "the executor of a node's core, and the goals of a yield and of a suspended task",
        cases: &[
            executor!("clock", "2000000", &[]),
            executor!("yield", "2000000", &[Goal::NsAtMost("null", 20.0)]),
            executor!("yield-1000", "2000000", &[]),
            executor!("suspend-1000", "2000000", &[Goal::NsAtMost("null", 30.0)]),
            executor!("deadline", "2000000", &[]),
            executor!("spawn", "200000", &[]),
            executor!("tokio-yield", "2000000", &[]),
            executor!("tokio-yield-1000", "2000000", &[]),
            executor!("cross-core", "100000", &[]),
            executor!("cross-core-asleep", "10000", &[]),
        ],
    },
];
