//! Presets of single operations and of the executor.

use super::{Goal, Preset, case};

/// Options of single operations on the stores of one host.
macro_rules! stores {
    ($words:literal) => {
        concat!(
            $words,
            " --ops 200000 --round-time 1 --rounds 5 \
             --targets region,prototype,lmdb,dashmap,redis-unix"
        )
    };
}

/// Options of transactions on the stores that have them.
macro_rules! transactions {
    ($records:literal) => {
        concat!(
            "--variant update --records ",
            $records,
            " --ops 200000 --round-time 1 --rounds 5 --targets region,lmdb,redis-unix"
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

/// At most this many times the prototype's time: the distance from the limit of the machine.
const fn times_prototype(most: f64) -> Goal {
    Goal::TimePeer("region", "prototype", most)
}

/// At most this many times the time of a view and of a put.
const fn times_view_and_put(view: &'static str, put: &'static str) -> Goal {
    Goal::TimesSum("region", [view, put], 1.4)
}

const VIEW_1K: &[Goal] = &[times_prototype(2.5)];
const VIEW_100K: &[Goal] = &[times_prototype(1.6), Goal::TimePeer("region", "dashmap", 0.5)];
const VIEW_1M: &[Goal] = &[times_prototype(1.6), Goal::BytesAtMost("region", 1150.0)];
const COPY: &[Goal] = &[times_prototype(1.5)];
const BATCH: &[Goal] = &[times_prototype(1.7)];
const BATCH_COPY: &[Goal] = &[times_prototype(1.3)];
const PUT_1K: &[Goal] = &[Goal::NsAtMost("region", 90.0)];
const PUT: &[Goal] = &[times_prototype(1.7)];
const UPDATE_1K: &[Goal] = &[times_view_and_put("view-1k", "put-1k")];
const UPDATE_100K: &[Goal] = &[times_view_and_put("view-100k", "put-100k")];
const UPDATE_1M: &[Goal] = &[times_view_and_put("view-1m", "put-1m")];
const PUT_BESIDE: &[Goal] = &[Goal::TimesPeer("region", "lmdb", 15.0)];
const VIEW_BESIDE: &[Goal] = &[Goal::TimesCase("region", "view-100k", 1.3)];
const WALK: &[Goal] = &[Goal::NsAtMost("region", 10.0)];
const WRITERS: &[Goal] = &[Goal::TimesPeer("region", "whitedb", 40.0)];

pub(super) const PRESETS: [Preset; 3] = [
    Preset {
        name: "operations",
        workload: "micro",
        about: "single operations at 1,000, 100,000 and 1,000,000 records, and the goals of a read \
                and a write",
        cases: &[
            case("view-1k", stores!("--variant view --records 1000"), VIEW_1K),
            case("view-scope-1k", stores!("--variant view-scope --records 1000"), &[]),
            case("copy-1k", stores!("--variant copy --records 1000"), COPY),
            case("batch-1k", stores!("--variant batch --records 1000"), BATCH),
            case("batch-copy-1k", stores!("--variant batch-copy --records 1000"), BATCH_COPY),
            case("chain-1k", stores!("--variant chain --records 1000"), &[]),
            case("put-1k", stores!("--variant put --records 1000"), PUT_1K),
            case("update-1k", transactions!(1000), UPDATE_1K),
            case("view-100k", stores!("--variant view --records 100000"), VIEW_100K),
            case("view-scope-100k", stores!("--variant view-scope --records 100000"), &[]),
            case("copy-100k", stores!("--variant copy --records 100000"), COPY),
            case("batch-100k", stores!("--variant batch --records 100000"), BATCH),
            case("batch-copy-100k", stores!("--variant batch-copy --records 100000"), BATCH_COPY),
            case("chain-100k", stores!("--variant chain --records 100000"), &[]),
            case("put-100k", stores!("--variant put --records 100000"), PUT),
            case("update-100k", transactions!(100000), UPDATE_100K),
            case("walk-100k", stores!("--variant walk --records 100000"), WALK),
            case("put-beside-reader", beside!("--variant put-beside-reader"), PUT_BESIDE),
            case("view-beside-writer", beside!("--variant view-beside-writer"), VIEW_BESIDE),
            case("view-beside-memory", beside!("--variant view-beside-memory"), &[]),
            case("view-1m", stores!("--variant view --records 1000000"), VIEW_1M),
            case("view-scope-1m", stores!("--variant view-scope --records 1000000"), &[]),
            case("copy-1m", stores!("--variant copy --records 1000000"), COPY),
            case("batch-1m", stores!("--variant batch --records 1000000"), BATCH),
            case("batch-copy-1m", stores!("--variant batch-copy --records 1000000"), BATCH_COPY),
            case("chain-1m", stores!("--variant chain --records 1000000"), &[]),
            case("put-1m", stores!("--variant put --records 1000000"), PUT),
            case("update-1m", transactions!(1000000), UPDATE_1M),
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
