//! Presets of single operations and of the executor.

use super::{Goal, Preset, case};

/// Options of single operations on the stores of one host.
macro_rules! stores {
    ($words:literal) => {
        concat!(
            $words,
            " --ops 200000 --round-time 1 --rounds 5 --targets region,lmdb,dashmap,redis-unix"
        )
    };
}

/// Options of one measured client while another process runs.
macro_rules! beside {
    ($words:literal) => {
        concat!(
            $words,
            " --records 100000 --ops 200000 --round-time 1 --rounds 5 --targets region,lmdb"
        )
    };
}

/// One size of a growing region: records of 128 bytes are added, then read, then replaced.
macro_rules! sizes {
    ($($size:literal $records:literal),*) => {
        &[$(
            case(
                concat!("insert-", $size),
                concat!("--variant insert --records ", $records, " --ops ", $records,
                    " --warm-up 0 --rounds 1 --value-bytes 128 --targets region"),
                &[],
            ),
            case(
                concat!("view-", $size),
                concat!("--variant view --records ", $records,
                    " --value-bytes 128 --targets region"),
                &[],
            ),
            case(
                concat!("put-", $size),
                concat!("--variant put --records ", $records,
                    " --value-bytes 128 --targets region"),
                &[],
            ),
        )*]
    };
}

/// A variant of the executor.
macro_rules! executor {
    ($name:literal, $ops:literal, $goals:expr) => {
        case(
            $name,
            concat!("--variant ", $name, " --ops ", $ops, " --rounds 5 --targets null"),
            $goals,
        )
    };
}

const VIEW_1K: &[Goal] = &[Goal::NsAtMost("region", 12.0)];
const VIEW_100K: &[Goal] = &[Goal::TimesPeer("region", "lmdb", 14.0)];
const SEVEN_TIMES_LMDB: &[Goal] = &[Goal::TimesPeer("region", "lmdb", 7.0)];
const PUT_100K: &[Goal] = &[Goal::TimesPeer("region", "lmdb", 6.0)];
const PUT_BESIDE: &[Goal] = &[Goal::TimesPeer("region", "lmdb", 15.0)];
const VIEW_BESIDE: &[Goal] = &[Goal::TimesCase("region", "view-100k", 1.3)];
const WALK: &[Goal] = &[Goal::NsAtMost("region", 10.0)];
const RECORD_BYTES: &[Goal] = &[Goal::BytesAtMost("region", 1150.0)];
const WRITERS: &[Goal] = &[Goal::TimesPeer("region", "whitedb", 40.0)];

pub(super) const PRESETS: [Preset; 3] = [
    Preset {
        name: "goals",
        workload: "micro",
        about: "single operations at 1,000, 100,000 and 1,000,000 records, and the goals of a read \
                and a write",
        cases: &[
            case("view-1k", stores!("--variant view --records 1000"), VIEW_1K),
            case("copy-1k", stores!("--variant copy --records 1000"), &[]),
            case("chain-1k", stores!("--variant chain --records 1000"), &[]),
            case("view-100k", stores!("--variant view --records 100000"), VIEW_100K),
            case("copy-100k", stores!("--variant copy --records 100000"), SEVEN_TIMES_LMDB),
            case("batch-100k", stores!("--variant batch --records 100000"), &[]),
            case("batch-copy-100k", stores!("--variant batch-copy --records 100000"), &[]),
            case("chain-100k", stores!("--variant chain --records 100000"), &[]),
            case("put-100k", stores!("--variant put --records 100000"), PUT_100K),
            case("walk-100k", stores!("--variant walk --records 100000"), WALK),
            case("put-beside-reader", beside!("--variant put-beside-reader"), PUT_BESIDE),
            case("view-beside-writer", beside!("--variant view-beside-writer"), VIEW_BESIDE),
            case("view-beside-memory", beside!("--variant view-beside-memory"), &[]),
            case("view-1m", stores!("--variant view --records 1000000"), RECORD_BYTES),
            case("copy-1m", stores!("--variant copy --records 1000000"), &[]),
            case("batch-1m", stores!("--variant batch --records 1000000"), SEVEN_TIMES_LMDB),
            case(
                "batch-copy-1m",
                stores!("--variant batch-copy --records 1000000"),
                SEVEN_TIMES_LMDB,
            ),
            case("chain-1m", stores!("--variant chain --records 1000000"), &[]),
            case("put-1m", stores!("--variant put --records 1000000"), &[]),
            case("walk-1m", stores!("--variant walk --records 1000000"), WALK),
            case(
                "writers",
                "--variant insert --clients 10 --records 500000 --ops 10000 --warm-up 0 \
                 --rounds 5 --unpinned --targets region,whitedb",
                WRITERS,
            ),
        ],
    },
    Preset {
        name: "growth",
        workload: "micro",
        about: "the cost of an operation and of a record against the number of records",
        cases: sizes!("1k" 1000, "10k" 10000, "100k" 100000, "1m" 1000000, "10m" 10000000),
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
