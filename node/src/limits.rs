//! The bounds of what a stranger may take of the node, each with its reason and what happens at it.

use std::time::Duration;

use nearstate_model::limits::VALUE_BYTES_MAX;

/// Rings of the node unless an operator says otherwise: 132 MiB of memory.
pub const RINGS_MAX: usize = 1024;

/// The bounds of connections. Each has a default; an operator may set it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Connections of the node, over all cores. The next one is told so and closed. 20,000 take
    /// about 55 MiB while they are idle. A process may open at most as many files as `ulimit -n`
    /// says: if that is less, so many less some that the node needs itself.
    pub connections_max: usize,
    /// Bytes of a request that is not whole yet. The largest value and a MiB for the words around
    /// it. Who sends more is told so and closed.
    pub input_bytes_max: usize,
    /// Bytes of answers that a client has not read yet. The largest value and some words around it
    /// are an answer; a handler adds no further one while [`crate::OUTPUT_HIGH_WATER_BYTES`] bytes are waiting.
    /// A client with more is closed, and counted as slow.
    pub output_bytes_max: usize,
    /// Bytes that all connections of a core keep for half requests, unread answers, and whatever
    /// their conversations keep. The connection that would pass it is closed: thousands of clients
    /// within their own bounds could fill the machine's memory.
    pub core_bytes_max: usize,
    /// How long a request may be half sent, before [`ConnectionLimits::input_bytes_per_second_min`] counts.
    /// Clients send a request in one piece; whoever sends it byte by byte is closed.
    pub half_sent_max: Duration,
    /// A half sent request may last longer if it is large: a second for each so many bytes that
    /// have come. A bad radio backhaul gives this to one connection.
    pub input_bytes_per_second_min: usize,
    /// How long a client may read nothing of an answer that waits for it. Then it is closed, and
    /// counted as slow.
    pub unread_max: Duration,
    /// After how long without a sign of life TCP asks whether the client is still there. A host
    /// that lost its power says nothing; its connection would last for ever.
    pub keep_alive: Duration,
    /// How long a shutdown waits for answers that are under way. Then connections are cut.
    pub drain_max: Duration,
    /// Connections that the kernel keeps until a core accepts them; the kernel refuses the next.
    /// Shortened by `net.core.somaxconn`.
    pub backlog: i32,
    /// Rings of the node, over all cores: 132 KiB of memory each, taken when it is made. The next
    /// client is told so, and goes on over its socket. 0: no rings.
    pub rings_max: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            connections_max: 20_000,
            input_bytes_max: VALUE_BYTES_MAX + (1 << 20),
            output_bytes_max: VALUE_BYTES_MAX + (32 << 20),
            core_bytes_max: 2 << 30,
            half_sent_max: Duration::from_secs(30),
            input_bytes_per_second_min: 64 << 10,
            unread_max: Duration::from_secs(60),
            keep_alive: Duration::from_secs(300),
            drain_max: Duration::from_secs(5),
            backlog: 4096,
            rings_max: RINGS_MAX,
        }
    }
}

/// Files that a node has open beside its connections: the region, the log, sockets that listen;
/// and some for whoever opens one for a moment.
const FILES_KEPT: u64 = 64;

/// And on each core: what it waits with, what wakes it.
const FILES_KEPT_PER_CORE: u64 = 8;

impl ConnectionLimits {
    /// Not more connections than the process may have files, and the node and its protocols their own.
    /// The kernel would say nothing to the next client, and keep it waiting.
    #[must_use]
    pub(crate) fn within_files(mut self, files: u64, cores: usize) -> Self {
        let kept = FILES_KEPT + FILES_KEPT_PER_CORE * cores as u64;
        let left = usize::try_from(files.saturating_sub(kept)).unwrap_or(usize::MAX);
        self.connections_max = self.connections_max.min(left.max(1));
        self
    }

    /// How long a request may be half sent of which so many bytes have come.
    pub(crate) fn half_sent(&self, bytes: usize) -> Duration {
        let seconds = bytes / self.input_bytes_per_second_min.max(1);
        self.half_sent_max.saturating_add(Duration::from_secs(seconds as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_connections_than_files() {
        let limits = ConnectionLimits { connections_max: 1000, ..ConnectionLimits::default() };
        assert_eq!(limits.clone().within_files(u64::MAX, 2).connections_max, 1000);
        assert_eq!(limits.clone().within_files(1024, 2).connections_max, 944);
        assert_eq!(limits.within_files(10, 2).connections_max, 1);
    }

    #[test]
    fn a_large_request_may_take_longer_than_a_small_one() {
        let limits = ConnectionLimits::default();
        assert_eq!(limits.half_sent(10), Duration::from_secs(30));
        assert_eq!(limits.half_sent(640 << 10), Duration::from_secs(40));
    }
}
