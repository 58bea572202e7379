//! The results of a torture run, as a table and as JSON.

use std::fmt::Write as _;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::histories::options::HistoryTotals;
use crate::tags::stress;

/// True if the crash points are built in.
const HAS_POINTS: bool = cfg!(feature = "crash-points");

const POINTS: &str = if HAS_POINTS {
    "built in: processes also stop between two stores"
} else {
    "not built in: short faults are rarely detected (cargo build --features crash-points)"
};

/// The longest latency that the histograms can represent: ten minutes.
const LONGEST_NS: u64 = 600_000_000_000;

/// Results of a run.
#[derive(Clone, Debug)]
pub struct TortureReport {
    /// Seed of all random choices.
    pub seed: u64,
    /// Processes killed at random instants.
    pub kills: u64,
    pub kills_of_writers: u64,
    /// Processes killed before a check, all at the same time.
    pub stops: u64,
    /// Acknowledged writes.
    pub acks: u64,
    /// Writes that a kill cut short.
    pub cut_short: u64,
    /// Acknowledged states that were read back and compared.
    pub verified: u64,
    /// Writes refused because a view kept free cells from being reused.
    pub full: u64,
    /// Acknowledged transactions; their records count as writes as well.
    pub transactions: u64,
    /// Transactions that a kill cut short.
    pub transactions_cut_short: u64,
    /// Of these, transactions whose outcome one record revealed.
    pub transactions_resolved: u64,
    /// Transactions whose every attempt ended in a conflict.
    pub conflicts: u64,
    /// Views of which readers verified every byte.
    pub views: u64,
    /// Pairs of records, always written together, that readers checked.
    pub pairs: u64,
    /// Of these, pairs read in one transaction.
    pub pair_snapshots: u64,
    /// Results of the tag stress test, if it ran.
    pub tag_stress: Option<stress::TagStressTotals>,
    /// Results of the histories, if any ran.
    pub histories: Option<HistoryTotals>,
    /// Recovered sessions of dead processes.
    pub recoveries: u64,
    /// Of these, sessions that the check recovered.
    pub recoveries_by_check: u64,
    /// Offline checks, each with a comparison of all records.
    pub checks: u64,
    /// Records compared in all checks.
    pub records: u64,
    /// Unreachable bytes in all checks. More than 0 ends a run.
    pub bytes_leaked: u64,
    /// Allocated bytes of the heap, at most.
    pub bytes_taken_max: u64,
    /// Bytes of records and index at a check, at most.
    pub bytes_used_max: u64,
    /// The limit of allocated bytes. More ends a run.
    pub bytes_taken_bound: u64,
    /// For each kill, the longest write that was in flight or began within the next 5 ms.
    pub after_kill_ns: Histogram<u64>,
    pub writes_ns: Histogram<u64>,
    /// Duration of the run.
    pub seconds: f64,
}

fn histogram() -> Histogram<u64> {
    // Three digits: the range is fixed and valid.
    Histogram::new_with_bounds(1, LONGEST_NS, 3).unwrap_or_else(|_| {
        Histogram::new(3).unwrap_or_else(|_| unreachable!("three digits are allowed"))
    })
}

impl TortureReport {
    /// The results before the first kill.
    pub fn new(seed: u64, bytes_taken_bound: u64) -> Self {
        Self {
            seed,
            kills: 0,
            kills_of_writers: 0,
            stops: 0,
            acks: 0,
            cut_short: 0,
            verified: 0,
            full: 0,
            transactions: 0,
            transactions_cut_short: 0,
            transactions_resolved: 0,
            conflicts: 0,
            views: 0,
            pairs: 0,
            pair_snapshots: 0,
            tag_stress: None,
            histories: None,
            recoveries: 0,
            recoveries_by_check: 0,
            checks: 0,
            records: 0,
            bytes_leaked: 0,
            bytes_taken_max: 0,
            bytes_used_max: 0,
            bytes_taken_bound,
            after_kill_ns: histogram(),
            writes_ns: histogram(),
            seconds: 0.0,
        }
    }

    pub fn json(&self) -> Value {
        let spread = |h: &Histogram<u64>| {
            json!({
                "count": h.len(),
                "p50_ns": h.value_at_quantile(0.5),
                "p99_ns": h.value_at_quantile(0.99),
                "p999_ns": h.value_at_quantile(0.999),
                "max_ns": h.max(),
            })
        };
        json!({
            "seed": self.seed,
            "has_crash_points": HAS_POINTS,
            "kills": self.kills,
            "kills_of_writers": self.kills_of_writers,
            "stops_before_checks": self.stops,
            "writes_acknowledged": self.acks,
            "writes_cut_short": self.cut_short,
            "acknowledged_states_verified": self.verified,
            "writes_refused_for_a_held_view": self.full,
            "transactions_acknowledged": self.transactions,
            "transactions_cut_short": self.transactions_cut_short,
            "transactions_cut_short_resolved": self.transactions_resolved,
            "transactions_given_up": self.conflicts,
            "views_verified": self.views,
            "pairs_verified": self.pairs,
            "pairs_verified_in_transactions": self.pair_snapshots,
            "tag_stress": self.tag_stress.as_ref().map(stress::TagStressTotals::json),
            "histories": self.histories.as_ref().map(HistoryTotals::json),
            "recoveries": self.recoveries,
            "recoveries_by_check": self.recoveries_by_check,
            "checks": self.checks,
            "records_compared": self.records,
            "bytes_leaked": self.bytes_leaked,
            "bytes_taken_max": self.bytes_taken_max,
            "bytes_used_max": self.bytes_used_max,
            "bytes_taken_bound": self.bytes_taken_bound,
            "longest_write_after_a_kill": spread(&self.after_kill_ns),
            "writes": spread(&self.writes_ns),
            "seconds": self.seconds,
        })
    }

    pub fn table(&self) -> String {
        let us = |h: &Histogram<u64>| {
            format!(
                "p50 {} us, p99 {} us, p99.9 {} us, max {} us",
                h.value_at_quantile(0.5) / 1000,
                h.value_at_quantile(0.99) / 1000,
                h.value_at_quantile(0.999) / 1000,
                h.max() / 1000
            )
        };
        let mib = |bytes: u64| format!("{}.{} MiB", bytes >> 20, (bytes >> 10) % 1024 * 10 / 1024);
        let lines = [
            ("seed", self.seed.to_string()),
            ("crash points", POINTS.to_owned()),
            (
                "processes killed",
                format!(
                    "{} ({} writers), and {} before checks",
                    self.kills, self.kills_of_writers, self.stops
                ),
            ),
            ("writes acknowledged", self.acks.to_string()),
            ("writes cut short by a kill", self.cut_short.to_string()),
            ("acknowledged states verified", self.verified.to_string()),
            ("refused for a held view", self.full.to_string()),
            ("transactions", format!("{} ({} gave up)", self.transactions, self.conflicts)),
            (
                "transactions cut short",
                format!(
                    "{}, all or nothing in each of {} that changed several own records",
                    self.transactions_cut_short, self.transactions_resolved
                ),
            ),
            ("views verified byte by byte", self.views.to_string()),
            (
                "pairs, none half written",
                format!("{} ({} in transactions)", self.pairs, self.pair_snapshots),
            ),
            (
                "recoveries",
                format!("{} ({} of them by the check)", self.recoveries, self.recoveries_by_check),
            ),
            ("longest write after a kill", us(&self.after_kill_ns)),
            ("all writes", us(&self.writes_ns)),
            ("offline checks", format!("{}, {} records compared", self.checks, self.records)),
            ("bytes leaked", self.bytes_leaked.to_string()),
            (
                "bytes taken at most",
                format!(
                    "{} (used {}, bound {})",
                    mib(self.bytes_taken_max),
                    mib(self.bytes_used_max),
                    mib(self.bytes_taken_bound)
                ),
            ),
            ("seconds", format!("{:.1}", self.seconds)),
        ];
        let mut text = String::new();
        let tag_stress = self.tag_stress.iter().flat_map(stress::TagStressTotals::lines);
        let more = tag_stress.chain(self.histories.iter().flat_map(HistoryTotals::lines));
        for (name, value) in lines.into_iter().chain(more) {
            let _ = writeln!(text, "{name:<30} {value}");
        }
        text
    }
}
