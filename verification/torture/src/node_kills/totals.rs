//! The results of a run that kills the node, as a table and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

/// Results.
#[derive(Clone, Debug, Default)]
pub struct NodeKillTotals {
    /// Seed of all random choices.
    pub seed: u64,
    /// Nodes killed.
    pub kills: u64,
    /// Of these, before they served.
    pub kills_starting: u64,
    /// Requests and transactions with a correct reply.
    pub answered: u64,
    pub transactions: u64,
    /// Requests in flight at a kill.
    pub cut: u64,
    /// Of these, requests that were executed, each completely.
    pub cut_done: u64,
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
    /// From the start of a node to its first reply, in microseconds, ascending at the end.
    pub starts_us: Vec<u64>,
    /// Duration of the run.
    pub seconds: f64,
}

impl NodeKillTotals {
    /// This percentile of the start times, in microseconds.
    fn start_us(&self, percent: usize) -> u64 {
        let last = self.starts_us.len().saturating_sub(1);
        self.starts_us.get(last * percent / 100).copied().unwrap_or(0)
    }

    pub fn json(&self) -> Value {
        json!({
            "seed": self.seed,
            "kills_of_the_node": self.kills,
            "kills_while_it_starts": self.kills_starting,
            "requests_answered": self.answered,
            "transactions_answered": self.transactions,
            "requests_cut_short": self.cut,
            "requests_cut_short_done": self.cut_done,
            "embedded_operations": self.embedded,
            "embedded_operations_while_down": self.embedded_while_down,
            "records_verified_by_socket": self.records_by_socket,
            "records_verified_embedded": self.records_by_session,
            "checks": self.checks,
            "bytes_leaked": self.bytes_leaked,
            "bytes_taken": self.bytes_taken,
            "start_to_pong_us": {
                "count": self.starts_us.len(),
                "p50": self.start_us(50),
                "p99": self.start_us(99),
                "max": self.start_us(100),
            },
            "seconds": self.seconds,
        })
    }

    pub fn table(&self) -> String {
        let ms = |percent| {
            let us = self.start_us(percent);
            format!("{}.{} ms", us / 1000, us % 1000 / 100)
        };
        let lines = [
            ("seed", self.seed.to_string()),
            (
                "nodes killed",
                format!("{} ({} before they served)", self.kills, self.kills_starting),
            ),
            (
                "requests answered",
                format!("{} ({} transactions), none lost", self.answered, self.transactions),
            ),
            (
                "requests cut short by a kill",
                format!(
                    "{}, none executed partially; {} of them executed",
                    self.cut, self.cut_done
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
        let mut text = String::new();
        for (name, value) in lines {
            let _ = writeln!(text, "{name:<30} {value}");
        }
        text
    }
}
