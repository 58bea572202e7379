//! What a run of `bench run nudsf` has measured.

use crate::run_frame::RunFrame;
use crate::spread::RoundMeasurements;
use crate::stat::as_f64;
use serde::{Deserialize, Serialize};

/// The format of a saved run.
pub const FORMAT: u32 = 1;

/// A server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerKind {
    Node,
    Bare,
    Redis,
}

impl ServerKind {
    pub(crate) const ALL: [Self; 3] = [Self::Node, Self::Bare, Self::Redis];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Bare => "bare hyper",
            Self::Redis => "redis",
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NudsfRun {
    pub nudsf_format: u32,
    #[serde(flatten)]
    pub frame: RunFrame,
    pub records: u64,
    /// Requests of a case and round.
    pub requests: u64,
    pub cases: Vec<CaseResult>,
    pub memory: Option<MemoryResult>,
    pub timers: Option<TimersResult>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CaseResult {
    pub name: String,
    pub what: String,
    /// The least rate, as a share of that of the bare service.
    pub goal_of_bare: Option<f64>,
    /// The most processor time of the node for one request, in nanoseconds.
    pub goal_cpu_ns: Option<u64>,
    /// The least number of bytes per second.
    pub goal_bytes_per_s: Option<f64>,
    /// Bytes of the body of a response.
    pub response_bytes: u64,
    pub node: Vec<LoadRound>,
    pub bare: Vec<LoadRound>,
    pub redis: Vec<LoadRound>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadRound {
    /// Requests per second.
    pub rate: f64,
    /// User and system time of the server.
    pub cpu_ns_per_request: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct MemoryResult {
    pub connections: u64,
    pub streams: u64,
    pub requests: u64,
    /// Memory of the node without its region.
    pub before_bytes: u64,
    pub peak_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct TimersResult {
    pub timers: u64,
    /// Armed timers created per second over HTTP/2.
    pub created_per_s: f64,
    pub create_cpu_ns: u64,
    /// Bytes of the region for one armed timer.
    pub bytes_per_timer: u64,
    /// Timers created over HTTP/2 and fired on the same core, per second, while the armed ones
    /// exist.
    pub fired_per_s: f64,
    pub create_and_fire_cpu_ns: u64,
    pub fired: u64,
}

impl CaseResult {
    pub(crate) fn rounds_of(&mut self, kind: ServerKind) -> &mut Vec<LoadRound> {
        match kind {
            ServerKind::Node => &mut self.node,
            ServerKind::Bare => &mut self.bare,
            ServerKind::Redis => &mut self.redis,
        }
    }

    /// Ratios of the node to the bare service, round by round: rates, and processor time the other
    /// way round.
    pub fn ratios(&self) -> (RoundMeasurements, RoundMeasurements) {
        let both = || self.node.iter().zip(&self.bare);
        let rates = both().map(|(node, bare)| node.rate / bare.rate);
        let cpu = both().map(|(node, bare)| {
            as_f64(bare.cpu_ns_per_request) / as_f64(node.cpu_ns_per_request.max(1))
        });
        (RoundMeasurements::new(rates), RoundMeasurements::new(cpu))
    }
}

/// The median rate of some rounds.
pub fn rate(rounds: &[LoadRound]) -> f64 {
    RoundMeasurements::new(rounds.iter().map(|round| round.rate)).median()
}

/// The median processor time of some rounds, in nanoseconds for a request.
pub fn cpu_ns(rounds: &[LoadRound]) -> f64 {
    RoundMeasurements::new(rounds.iter().map(|round| as_f64(round.cpu_ns_per_request))).median()
}
