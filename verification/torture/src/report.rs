//! The results of a torture run, as a table and as JSON.

use std::fmt::Write as _;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::histories::options::HistoryTotals;
use crate::oracle::OracleCounts;
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
#[derive(Clone, Debug, Default)]
pub struct TortureReport {
    /// Seed of all random choices.
    pub seed: u64,
    /// Processes killed at random instants.
    pub kills: u64,
    pub kills_of_writers: u64,
    /// Processes killed before a check, all at the same time.
    pub stops: u64,
    /// Writes and transactions.
    pub counts: OracleCounts,
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
    pub after_kill_ns: WriteLatencies,
    pub writes_ns: WriteLatencies,
    /// Duration of the run.
    pub seconds: f64,
}

/// Latencies of writes.
#[derive(Clone, Debug)]
pub struct WriteLatencies(pub Histogram<u64>);

impl Default for WriteLatencies {
    fn default() -> Self {
        // Three digits: the range is fixed and valid.
        Self(Histogram::new_with_bounds(1, LONGEST_NS, 3).unwrap_or_else(|_| {
            Histogram::new(3).unwrap_or_else(|_| unreachable!("three digits are allowed"))
        }))
    }
}

impl TortureReport {
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
            "writes_acknowledged": self.counts.acks,
            "writes_cut_short": self.counts.cut_short,
            "acknowledged_states_verified": self.counts.verified,
            "writes_refused_for_a_held_view": self.counts.full,
            "transactions_acknowledged": self.counts.transactions,
            "transactions_cut_short": self.counts.transactions_cut_short,
            "transactions_cut_short_resolved": self.counts.transactions_resolved,
            "transactions_given_up": self.counts.conflicts,
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
            "longest_write_after_a_kill": spread(&self.after_kill_ns.0),
            "writes": spread(&self.writes_ns.0),
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
            ("writes acknowledged", self.counts.acks.to_string()),
            ("writes cut short by a kill", self.counts.cut_short.to_string()),
            ("acknowledged states verified", self.counts.verified.to_string()),
            ("refused for a held view", self.counts.full.to_string()),
            (
                "transactions",
                format!("{} ({} gave up)", self.counts.transactions, self.counts.conflicts),
            ),
            (
                "transactions cut short",
                format!(
                    "{}, all or nothing in each of {} that changed several own records",
                    self.counts.transactions_cut_short, self.counts.transactions_resolved
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
            ("longest write after a kill", us(&self.after_kill_ns.0)),
            ("all writes", us(&self.writes_ns.0)),
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
