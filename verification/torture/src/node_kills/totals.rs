//! The results of a run that kills the node, as a table and as JSON.

use serde::{Serialize, Serializer};
use serde_json::json;

use crate::report_lines::table;
use crate::times::Times;

/// Counts of the requests of one client, or of all.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ClientCounts {
    /// Requests and transactions with a correct reply.
    pub answered: u64,
    pub transactions: u64,
    /// Requests without a reply when the node was killed.
    pub cut_short: u64,
    /// Of these, requests that were executed, each completely.
    pub cut_short_done: u64,
}

/// Results.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NodeKillTotals {
    /// Seed of all random choices.
    pub seed: u64,
    /// Nodes killed.
    pub kills: u64,
    /// Of these, before they served.
    pub kills_starting: u64,
    #[serde(flatten)]
    pub requests: ClientCounts,
    /// Acknowledged operations of embedded writers.
    pub embedded: u64,
    /// Of these, operations while no node was running.
    pub embedded_while_down: u64,
    /// Records read back over a socket and compared.
    pub records_by_socket: u64,
    /// Records read back from the region and compared.
    pub records_by_session: u64,
    /// Offline checks.
    pub checks: u64,
    /// Unreachable bytes in all checks. More than 0 ends a run.
    pub bytes_leaked: u64,
    /// Allocated bytes of the region at the last check.
    pub bytes_taken: u64,
    /// From the start of a node to its first reply, in microseconds.
    #[serde(serialize_with = "start_times")]
    pub starts_us: Times,
    /// Duration of the run.
    pub seconds: f64,
}

fn start_times<S: Serializer>(times: &Times, serializer: S) -> Result<S::Ok, S::Error> {
    json!({
        "count": times.count(),
        "p50": times.percentile_us(50),
        "p99": times.percentile_us(99),
        "max": times.percentile_us(100),
    })
    .serialize(serializer)
}

impl NodeKillTotals {
    pub fn table(&self) -> String {
        let ms = |percent| format!("{:.1} ms", self.starts_us.percentile_ms(percent));
        let lines = [
            ("seed", self.seed.to_string()),
            (
                "nodes killed",
                format!("{} ({} before they served)", self.kills, self.kills_starting),
            ),
            (
                "requests answered",
                format!(
                    "{} ({} transactions), none lost",
                    self.requests.answered, self.requests.transactions
                ),
            ),
            (
                "requests cut short by a kill",
                format!(
                    "{}, none executed partially; {} of them executed",
                    self.requests.cut_short, self.requests.cut_short_done
                ),
            ),
            (
                "embedded operations",
                format!(
                    "{} ({} while no node was running)",
                    self.embedded, self.embedded_while_down
                ),
            ),
            (
                "records read back",
                format!(
                    "{} over sockets, {} embedded",
                    self.records_by_socket, self.records_by_session
                ),
            ),
            ("start to the first PONG", format!("p50 {}, p99 {}, max {}", ms(50), ms(99), ms(100))),
            ("offline checks", format!("{}, {} bytes leaked", self.checks, self.bytes_leaked)),
            ("bytes taken", format!("{} MiB", self.bytes_taken >> 20)),
            ("seconds", format!("{:.1}", self.seconds)),
        ];
        table(lines)
    }
}
