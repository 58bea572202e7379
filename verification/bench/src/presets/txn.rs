//! Transactions and plain operations, writers of the same record, and shared counters.

use super::{Goal, Preset, case};

const READ: &[Goal] = &[Goal::TimesCase("region", "views-4", 1.3)];
const COUNTER: &[Goal] = &[Goal::RateAtLeast("region", 20e6 / 256.0)];

// Inserts on reused memory: 1,000,000 a second. Their cases have deletes too, so the goal is that
// of the class.
const REUSED: &[Goal] = &[Goal::ClassNsAtMost("region", "insert", 1e9 / 1e6)];
const FRESH: &[Goal] = &[Goal::RateAtLeast("region", 500e3)];
const FILLED: &[Goal] = &[Goal::TimesCase("region", "plain-at-50", 1.3)];
const TAGGED_FILLED: &[Goal] = &[Goal::TimesCase("region", "tagged-at-50", 1.3)];
const REGISTER: &[Goal] = &[Goal::RateAtLeast("region", 3e6)];

/// Records that come and go in a region whose heap is filled.
macro_rules! churn {
    ($variant:literal, $fill:literal) => {
        concat!(
            "--variant ",
            $variant,
            " --layout fill-",
            $fill,
            " --spread uniform --ops 200000 --warm-up 200000 --rounds 5 --classes --targets region"
        )
    };
}

pub(super) const PRESETS: [Preset; 4] = [
    Preset {
        name: "sessions",
        workload: "churn",
        about: "inserts and deletes of records with three tags and without, on fresh and reused \
                memory, at 50 % and 95 % of the heap",
        cases: &[
            case(
                "tagged-1k",
                "--variant tagged --records 2000 --spread uniform --ops 200000 --rounds 5 \
                 --classes --targets region",
                &[],
            ),
            case(
                "tagged-100k",
                "--variant tagged --records 200000 --spread uniform --ops 200000 \
                 --warm-up 400000 --rounds 5 --classes --targets region",
                REUSED,
            ),
            case(
                "tagged-fresh",
                "--variant tagged-fresh --records 1000000 --ops 150000 --warm-up 0 --rounds 5 \
                 --targets region",
                FRESH,
            ),
            case("plain-at-50", churn!("plain", "50"), &[]),
            case("plain-at-95", churn!("plain", "95"), FILLED),
            case("tagged-at-50", churn!("tagged", "50"), &[]),
            case("tagged-at-95", churn!("tagged", "95"), TAGGED_FILLED),
        ],
    },
    Preset {
        name: "location-register",
        workload: "tatp",
        about: "TATP on one core, one transaction after the other and 16 in flight",
        cases: &[
            case("tatp", "--ops 500000 --rounds 5 --targets region", REGISTER),
            case("tatp-16", "--ops 2000000 --depth 16 --rounds 5 --targets region", REGISTER),
        ],
    },
    Preset {
        name: "signalling",
        workload: "ue-signalling",
        about: "the procedures of UEs, to compare two commits (`bench compare`)",
        cases: &[case(
            "procedures",
            "--ops 20000000 --warm-up 20000 --rounds 5 --round-time 2 --targets region",
            &[],
        )],
    },
    TRANSACTIONS,
];

const TRANSACTIONS: Preset = Preset {
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
};
