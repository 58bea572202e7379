//! Transactions and plain operations, writers of the same record, and shared counters.

use super::{Goal, Preset, case};

const READ: &[Goal] = &[Goal::TimesCase("region", "views-4", 1.3)];
const COUNTER: &[Goal] = &[Goal::RateAtLeast("region", 20e6 / 256.0)];

pub(super) const PRESETS: [Preset; 1] = [Preset {
    name: "transactions",
    workload: "txn",
    about: "transactions and plain operations, writers of the same record, shared counters",
    cases: &[
        case("put", "--variant put --rounds 7 --targets region", &[]),
        case("update", "--variant update --rounds 7 --targets region", &[]),
        case("update-alone", "--variant update-alone --rounds 7 --targets region", &[]),
        case("put-in-txn", "--variant put-in-txn --rounds 7 --targets region", &[]),
        case("views-4", "--variant views-4 --rounds 7 --targets region", &[]),
        case("read-4", "--variant read-4 --rounds 7 --targets region", READ),
        case("contention", "--variant contention --clients 16 --ops 20000 --targets region", &[]),
        case(
            "contention-2",
            "--variant contention-2 --clients 16 --ops 5000 --targets region",
            &[],
        ),
        case("counter", "--variant counter --clients 2 --ops 20000 --targets region", COUNTER),
        case("own-counter", "--variant own-counter --clients 2 --ops 20000 --targets region", &[]),
    ],
}];
