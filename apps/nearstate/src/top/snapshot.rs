//! What was seen of a node and of a region at one moment, wherever it was read.

use std::time::Duration;

/// Both, as far as they were asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Snapshot {
    /// When, since the picture began.
    pub(super) at: Duration,
    pub(super) node: Option<NodeSnapshot>,
    pub(super) region: Option<RegionSnapshot>,
}

/// A node, by its page of metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodeSnapshot {
    pub(super) version: String,
    pub(super) pid: u64,
    /// When it began, in seconds since 1970: another one is another node.
    pub(super) started: f64,
    pub(super) clients: u64,
    pub(super) requests: u64,
    pub(super) errors: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) bytes_read: u64,
    pub(super) bytes_written: u64,
    /// In the order of their numbers.
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

/// Commands of one class.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ClassSnapshot {
    pub(super) name: String,
    /// Bounds of latencies in seconds, ascending, each with how many requests took at most that.
    pub(super) within: Vec<(f64, u64)>,
}

/// A region.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RegionSnapshot {
    pub(super) path: String,
    pub(super) bytes_max: u64,
    pub(super) bytes_taken: u64,
    pub(super) epoch: u64,
    /// How many epochs the oldest pin is behind.
    pub(super) oldest_pin: u64,
    pub(super) records: u64,
    pub(super) sessions: u64,
    pub(super) sessions_dead: u64,
    pub(super) namespaces: Vec<NamespaceSnapshot>,
    /// Namespaces that are not among those.
    pub(super) namespaces_omitted: u64,
    pub(super) processes: Vec<ProcessSnapshot>,
    /// Processes that are not among those.
    pub(super) processes_omitted: u64,
}

/// A namespace of a region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NamespaceSnapshot {
    pub(super) name: String,
    pub(super) records: u64,
    pub(super) bytes: u64,
    pub(super) tags: u64,
}

/// A process that has a region attached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ProcessSnapshot {
    pub(super) pid: u64,
    pub(super) name: String,
    pub(super) sessions: u64,
    pub(super) oldest_pin: u64,
}
