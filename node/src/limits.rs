//! Limits of the resources that clients can use, each with its reason and what happens at the
//! limit.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nearstate_model::limits::VALUE_BYTES_MAX;

/// Default number of rings: 132 MiB of memory.
pub const RINGS_MAX: usize = 1024;

/// Limits of connections. Each has a default that an operator may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Connections of the node, over all cores. Further ones get an error and are closed. 20,000
    /// idle connections take about 55 MiB. The limit of open files (`ulimit -n`), less the files of
    /// the node itself, bounds it further.
    pub connections_max: usize,
    /// Bytes of an incomplete request: the largest value, and 1 MiB for the rest of the request. A
    /// larger request gets an error, and the connection is closed.
    pub input_bytes_max: usize,
    /// Bytes of replies that a client has not read: the largest value, and the rest of its reply. A
    /// handler adds no reply while [`crate::OUTPUT_HIGH_WATER_BYTES`] are unread. A connection
    /// above the limit is closed as a slow reader.
    pub output_bytes_max: usize,
    /// Bytes that all connections of a core buffer: incomplete requests, unread replies and the
    /// buffers of handlers. The connection that exceeds it is closed. Without it, thousands of
    /// clients within their own limits could exhaust the memory of the machine.
    pub core_bytes_max: usize,
    /// Time limit of an incomplete request. Clients send a request at once; one that sends it byte
    /// by byte is closed. A large request gets a further period of this length as long as bytes
    /// arrive at [`ConnectionLimits::request_bytes_per_second_min`]. A request of which nothing
    /// further arrives therefore ends after at most two periods, regardless of its size.
    pub request_timeout: Duration,
    /// The least rate at which a large request must arrive in each period of
    /// [`ConnectionLimits::request_timeout`]. A single connection over a poor radio backhaul
    /// reaches this rate.
    pub request_bytes_per_second_min: usize,
    /// How long a client that has to authenticate may stay connected without. Client libraries
    /// authenticate in their first request. Then the connection gets an error and is closed:
    /// without this limit, clients without a password could use up all connections.
    pub auth_timeout: Duration,
    /// How long a client may read nothing while a reply waits. Then the connection is closed as a
    /// slow reader.
    pub reply_timeout: Duration,
    /// Idle time before TCP keep-alive probes. A host that lost power sends no FIN, so its
    /// connections would stay open.
    pub tcp_keepalive: Duration,
    /// Time for replies in progress at a shutdown. Then connections are closed.
    pub shutdown_timeout: Duration,
    /// Connections that wait for an accept, capped by `net.core.somaxconn`. The kernel refuses
    /// further ones.
    pub tcp_backlog: i32,
    /// Rings of the node, over all cores, of 132 KiB each, allocated when a ring is created.
    /// Further requests for a ring get an error, and the client stays on its socket. 0 disables
    /// rings.
    pub rings_max: usize,
    /// A lower limit of connections that was set while the node runs.
    pub connections_lowered: LoweredCount,
}

/// A limit that can be lowered while the node runs, for all cores together.
#[derive(Debug)]
pub struct LoweredCount(AtomicUsize);

impl Default for LoweredCount {
    fn default() -> Self {
        Self(AtomicUsize::new(usize::MAX))
    }
}

impl Clone for LoweredCount {
    fn clone(&self) -> Self {
        Self(AtomicUsize::new(self.0.load(Ordering::Relaxed)))
    }
}

impl PartialEq for LoweredCount {
    fn eq(&self, other: &Self) -> bool {
        self.0.load(Ordering::Relaxed) == other.0.load(Ordering::Relaxed)
    }
}

impl Eq for LoweredCount {}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            connections_max: 20_000,
            input_bytes_max: VALUE_BYTES_MAX + (1 << 20),
            output_bytes_max: VALUE_BYTES_MAX + (32 << 20),
            core_bytes_max: 2 << 30,
            request_timeout: Duration::from_secs(30),
            request_bytes_per_second_min: 64 << 10,
            auth_timeout: Duration::from_secs(30),
            reply_timeout: Duration::from_secs(60),
            tcp_keepalive: Duration::from_secs(300),
            shutdown_timeout: Duration::from_secs(5),
            tcp_backlog: 4096,
            rings_max: RINGS_MAX,
            connections_lowered: LoweredCount::default(),
        }
    }
}

/// Files of a node in addition to its connections: region, log, listening sockets, and some that
/// are open for a short time.
const FILES_KEPT: u64 = 64;

/// Files of each core: event loop and wakeups.
const FILES_KEPT_PER_CORE: u64 = 8;

fn files_kept(cores: usize) -> u64 {
    FILES_KEPT + FILES_KEPT_PER_CORE * cores as u64
}

impl ConnectionLimits {
    /// The current limit of connections.
    pub fn connections_max_now(&self) -> usize {
        self.connections_max.min(self.connections_lowered.0.load(Ordering::Relaxed))
    }

    /// Lowers the limit of connections, or raises it up to [`ConnectionLimits::connections_max`].
    /// Open connections above the limit stay open.
    pub fn set_connections_max(&self, connections: usize) {
        self.connections_lowered.0.store(connections, Ordering::Relaxed);
    }

    /// Limits the connections to the files that the process may open. Beyond that, the kernel would
    /// leave the next client waiting without an answer.
    #[must_use]
    pub(crate) fn within_files(mut self, files: u64, cores: usize) -> Self {
        let left = files.saturating_sub(files_kept(cores));
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        self.connections_max = self.connections_max.min(left.max(1));
        self
    }

    /// The limit of open files with which a node with this many cores serves
    /// [`ConnectionLimits::connections_max`] connections.
    pub fn files_needed(&self, cores: usize) -> u64 {
        (self.connections_max as u64).saturating_add(files_kept(cores))
    }

    /// The bytes of an incomplete request that must arrive in a period of
    /// [`ConnectionLimits::request_timeout`], at least one.
    pub(crate) fn request_progress_min(&self) -> usize {
        let millis = usize::try_from(self.request_timeout.as_millis()).unwrap_or(usize::MAX);
        (self.request_bytes_per_second_min.saturating_mul(millis) / 1000).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_limit_is_within_the_file_limit() {
        let limits = ConnectionLimits { connections_max: 1000, ..ConnectionLimits::default() };
        assert_eq!(limits.clone().within_files(u64::MAX, 2).connections_max, 1000);
        assert_eq!(limits.clone().within_files(1024, 2).connections_max, 944);
        let files = limits.files_needed(2);
        assert_eq!(limits.clone().within_files(files, 2).connections_max, 1000);
        assert_eq!(limits.clone().within_files(files - 1, 2).connections_max, 999);
        assert_eq!(limits.within_files(10, 2).connections_max, 1);
    }

    #[test]
    fn a_request_must_arrive_at_the_least_rate_in_each_period() {
        let limits = ConnectionLimits::default();
        assert_eq!(limits.request_progress_min(), 30 * (64 << 10));
        let short = ConnectionLimits { request_timeout: Duration::from_millis(500), ..limits };
        assert_eq!(short.request_progress_min(), 32 << 10);
        let any = ConnectionLimits { request_bytes_per_second_min: 0, ..short };
        assert_eq!(any.request_progress_min(), 1, "without progress a request ends");
    }
}
