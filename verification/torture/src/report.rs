//! The results of a torture run, as a table and as JSON.

use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};
use serde_json::json;

use crate::histories::options::HistoryTotals;
use crate::oracle::OracleCounts;
use crate::report_lines::{HAS_POINTS, table};
use crate::tags::stress;

const POINTS: &str = if HAS_POINTS {
    "built in: processes also stop between two stores"
} else {
    "not built in: short faults are rarely detected (cargo build --features crash-points)"
};

/// The longest latency that the histograms can represent: ten minutes.
const LONGEST_NS: u64 = 600_000_000_000;

/// Results of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TortureReport {
    /// Seed of all random choices.
    pub seed: u64,
    /// True if the crash points are built in.
    pub has_crash_points: bool,
    /// Processes killed at random instants.
    pub kills: u64,
    pub kills_of_writers: u64,
    /// Processes killed before a check, all at the same time.
    pub stops_before_checks: u64,
    /// Writes and transactions.
    #[serde(flatten)]
    pub counts: OracleCounts,
    /// Views of which readers verified every byte.
    pub views_verified: u64,
    /// Pairs of records, always written together, that readers checked.
    pub pairs_verified: u64,
    /// Of these, pairs read in one transaction.
    pub pairs_verified_in_transactions: u64,
    /// Results of the tag stress test, if it ran.
    pub tag_stress: Option<stress::TagStressTotals>,
    /// Results of the histories, if any ran.
    pub histories: Option<HistoryTotals>,
    /// Results of a full region, if the run kept one.
    pub full_region: Option<FullRegionTotals>,
    /// Recovered sessions of dead processes.
    pub recoveries: u64,
    /// Of these, sessions that the check recovered.
    pub recoveries_by_check: u64,
    /// Offline checks, each with a comparison of all records.
    pub checks: u64,
    /// Records compared in all checks.
    pub records_compared: u64,
    /// Unreachable bytes in all checks. More than 0 ends a run.
    pub bytes_leaked: u64,
    /// Allocated bytes of the heap, at most.
    pub bytes_taken_max: u64,
    /// Bytes of records and index at a check, at most.
    pub bytes_used_max: u64,
    /// The limit of allocated bytes. More ends a run.
    pub bytes_taken_bound: u64,
    /// For each kill, the longest write that was in flight or began within the next 5 ms.
    pub longest_write_after_a_kill: WriteLatencies,
    /// Without the time in which the writer itself was stopped.
    pub writes: WriteLatencies,
    pub slow_writes: SlowWrites,
    /// Duration of the run.
    pub seconds: f64,
}

/// Writes that took longer than a second, by what they met.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct SlowWrites {
    /// Refused with `Stalled`.
    pub refused: u64,
    /// Carried out, and another process was stopped meanwhile.
    pub beside_stopped: u64,
    /// The rest.
    pub others: u64,
    /// The longest one during which no other process was stopped.
    pub longest_of_others_ms: u64,
}

impl SlowWrites {
    fn text(self) -> String {
        format!(
            "{} refused as stalled, {} beside a stopped process, {} others (at most {} ms)",
            self.refused, self.beside_stopped, self.others, self.longest_of_others_ms
        )
    }
}

/// What a run in a full region adds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct FullRegionTotals {
    /// Processes stopped for a while.
    pub stops: u64,
    /// Refusals that name a process which was not stopped during the call.
    pub refused_for_a_running_process: u64,
    /// Checks after all processes were killed: used and free bytes are all bytes.
    pub checks: u64,
    /// The smallest share of free memory at a check.
    pub free_percent_min: u64,
    /// Free bytes at the last check.
    pub free: u64,
    /// The largest range of free bytes at the last check.
    pub free_largest: u64,
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

impl Serialize for WriteLatencies {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let spread = json!({
            "count": self.0.len(),
            "p50_ns": self.0.value_at_quantile(0.5),
            "p99_ns": self.0.value_at_quantile(0.99),
            "p999_ns": self.0.value_at_quantile(0.999),
            "max_ns": self.0.max(),
        });
        spread.serialize(serializer)
    }
}

impl TortureReport {
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
        let counts = &self.counts;
        let mib = |bytes: u64| format!("{}.{} MiB", bytes >> 20, (bytes >> 10) % 1024 * 10 / 1024);
        let [taken, used, bound] =
            [self.bytes_taken_max, self.bytes_used_max, self.bytes_taken_bound].map(mib);
        let lines = [
            ("seed", self.seed.to_string()),
            ("crash points", POINTS.to_owned()),
            (
                "processes killed",
                format!(
                    "{} ({} writers), and {} before checks",
                    self.kills, self.kills_of_writers, self.stops_before_checks
                ),
            ),
            ("writes acknowledged", counts.writes_acknowledged.to_string()),
            ("writes cut short by a kill", counts.writes_cut_short.to_string()),
            ("acknowledged states verified", counts.acknowledged_states_verified.to_string()),
            ("refused for a held view", counts.writes_refused_for_a_held_view.to_string()),
            (
                "transactions",
                format!(
                    "{} ({} gave up)",
                    counts.transactions_acknowledged, counts.transactions_given_up
                ),
            ),
            (
                "transactions cut short",
                format!(
                    "{}, all or nothing in each of {} that changed several own records",
                    counts.transactions_cut_short, counts.transactions_cut_short_resolved
                ),
            ),
            ("views verified byte by byte", self.views_verified.to_string()),
            (
                "pairs, none half written",
                format!(
                    "{} ({} in transactions)",
                    self.pairs_verified, self.pairs_verified_in_transactions
                ),
            ),
            (
                "recoveries",
                format!("{} ({} of them by the check)", self.recoveries, self.recoveries_by_check),
            ),
            ("longest write after a kill", us(&self.longest_write_after_a_kill.0)),
            ("all writes", us(&self.writes.0)),
            ("writes above a second", self.slow_writes.text()),
            (
                "offline checks",
                format!("{}, {} records compared", self.checks, self.records_compared),
            ),
            ("bytes leaked", self.bytes_leaked.to_string()),
            ("bytes taken at most", format!("{taken} (used {used}, bound {bound})")),
            ("seconds", format!("{:.1}", self.seconds)),
        ];
        let full_region = self.full_region.iter().flat_map(|full| full.lines(counts));
        let tag_stress = self.tag_stress.iter().flat_map(stress::TagStressTotals::lines);
        let more = full_region
            .chain(tag_stress)
            .chain(self.histories.iter().flat_map(HistoryTotals::lines));
        table(lines.into_iter().chain(more))
    }
}

impl FullRegionTotals {
    fn lines(&self, counts: &OracleCounts) -> [(&'static str, String); 3] {
        [
            ("processes stopped", self.stops.to_string()),
            (
                "refused in a full region",
                format!(
                    "{} full ({} deletions), {} for a held view, {} for a process that held a \
                     lock ({} of which were not stopped)",
                    counts.writes_refused_as_full,
                    counts.deletions_refused,
                    counts.writes_refused_for_a_held_view,
                    counts.writes_refused_as_stalled,
                    self.refused_for_a_running_process
                ),
            ),
            (
                "free memory",
                format!(
                    "at least {} %; last {} KiB, largest range {} KiB ({} times live + free = \
                     total)",
                    self.free_percent_min,
                    self.free >> 10,
                    self.free_largest >> 10,
                    self.checks
                ),
            ),
        ]
    }
}
