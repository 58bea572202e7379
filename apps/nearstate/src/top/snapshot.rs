//! Snapshots of a node and of a region.

use std::time::Duration;

/// A snapshot of the polled sources.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Snapshot {
    /// Time since the start of `nearstate top`.
    pub(super) at: Duration,
    pub(super) node: Option<NodeSnapshot>,
    pub(super) region: Option<RegionSnapshot>,
}

/// A node, from its metrics page.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodeSnapshot {
    pub(super) version: String,
    pub(super) pid: u64,
    /// The start time, in seconds since 1970. It identifies a run of the node.
    pub(super) started: f64,
    pub(super) clients: u64,
    pub(super) requests: u64,
    pub(super) errors: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) bytes_read: u64,
    pub(super) bytes_written: u64,
    /// Sorted by number.
    pub(super) cores: Vec<CoreSnapshot>,
    pub(super) classes: Vec<ClassSnapshot>,
}

/// A core of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CoreSnapshot {
    pub(super) number: u64,
    pub(super) connections: u64,
    pub(super) requests: u64,
    pub(super) busy_seconds: f64,
    pub(super) long_polls: u64,
}

/// A class of commands.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ClassSnapshot {
    pub(super) name: String,
    /// Upper bounds of latency buckets in seconds, ascending, each with the cumulative count.
    pub(super) within: Vec<(f64, u64)>,
}

/// A region.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RegionSnapshot {
    pub(super) path: String,
    pub(super) bytes_max: u64,
    pub(super) bytes_taken: u64,
    pub(super) epoch: u64,
    /// The number of epochs by which the oldest pin lags behind.
    pub(super) oldest_pin: u64,
    pub(super) records: u64,
    pub(super) sessions: u64,
    pub(super) sessions_dead: u64,
    pub(super) namespaces: Vec<NamespaceSnapshot>,
    /// The number of namespaces left out.
    pub(super) namespaces_omitted: u64,
    pub(super) processes: Vec<ProcessSnapshot>,
    /// The number of processes left out.
    pub(super) processes_omitted: u64,
}

/// A namespace of a region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NamespaceSnapshot {
    pub(super) name: String,
    pub(super) records: u64,
    pub(super) bytes: u64,
    pub(super) tags: u64,
    /// Bytes that are counted, if it has limits.
    pub(super) used_bytes: u64,
    /// The limits; 0 if there is none.
    pub(super) soft_bytes: u64,
    pub(super) hard_bytes: u64,
}

/// A process with sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ProcessSnapshot {
    pub(super) pid: u64,
    pub(super) name: String,
    pub(super) sessions: u64,
    pub(super) oldest_pin: u64,
    /// Bytes of retired records that its views keep from reuse.
    pub(super) held_bytes: u64,
    /// For how long the first of these views is known to do so.
    pub(super) held_seconds: u64,
}
