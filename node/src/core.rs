//! The core as protocols see it: the region, the core's own session, limits and metrics.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use nearstate_model::Result;
use nearstate_store::{CommitWait, REPLICATION_WAIT_MAX, Receipt, ReceiptWait, Region, Session};

use crate::clock::Clock;
use crate::limits::ConnectionLimits;
use crate::metrics::{CoreCounter, CoreGauge, Distribution, Histogram};
use crate::receipt_thread::ReceiptQueue;

/// The resources of a core for its protocols. Cheap to clone. It stays on its thread.
/// [`crate::executor::spawn`] starts tasks on the core.
#[derive(Clone)]
pub struct Core {
    inner: Rc<Inner>,
}

struct Inner {
    index: usize,
    count: usize,
    region: Region,
    session: Rc<Session>,
    limits: Arc<ConnectionLimits>,
    metrics: Arc<CoreMetrics>,
    clock: Clock,
    receipts: Arc<ReceiptQueue>,
}

/// The arguments of [`Core::new`].
#[derive(Debug)]
pub struct CoreParts {
    /// The index of the core, from 0.
    pub index: usize,
    /// The number of cores of the node.
    pub count: usize,
    /// The region that the node serves.
    pub region: Region,
    /// Limits of connections.
    pub limits: Arc<ConnectionLimits>,
    /// The metrics of the core.
    pub metrics: Arc<CoreMetrics>,
    /// The clock of the core.
    pub clock: Clock,
    /// The receipts that the cores of the node wait for.
    pub receipts: Arc<ReceiptQueue>,
}

impl CoreParts {
    /// The only core of a node with the default limits: for a protocol without a node's threads.
    pub fn single(region: Region, clock: Clock) -> Self {
        let (limits, metrics, receipts) = (Arc::default(), Arc::default(), Arc::default());
        Self { index: 0, count: 1, region, limits, metrics, clock, receipts }
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("index", &self.inner.index).finish_non_exhaustive()
    }
}

impl Core {
    /// Creates a core for this thread. The node creates one for each of its threads; a test of a
    /// protocol creates one without a thread.
    ///
    /// # Errors
    /// As [`Region::session`].
    pub fn new(parts: CoreParts) -> Result<Self> {
        let session = Rc::new(parts.region.session()?);
        // A connection waits for its replies, and never its thread.
        session.set_commit_wait(CommitWait::Never, REPLICATION_WAIT_MAX);
        let CoreParts { index, count, region, limits, metrics, clock, receipts } = parts;
        let inner = Inner { index, count, region, session, limits, metrics, clock, receipts };
        Ok(Self { inner: Rc::new(inner) })
    }

    /// The index of the core, from 0.
    pub fn index(&self) -> usize {
        self.inner.index
    }

    /// The number of cores of the node.
    pub fn count(&self) -> usize {
        self.inner.count
    }

    /// The region that the node serves.
    pub fn region(&self) -> &Region {
        &self.inner.region
    }

    /// The core's session of the region, which all protocols of the core share.
    pub fn session(&self) -> &Rc<Session> {
        &self.inner.session
    }

    /// A future that completes when a commit of the core's session is replicated or lost
    /// ([`Session::take_owed_receipt`]). It has no time limit. The first call starts a thread of
    /// the node, which wakes all of them.
    ///
    /// # Errors
    /// `System`: the process may not start another thread.
    pub fn wait_replicated(&self, receipt: Receipt) -> Result<ReceiptWait> {
        self.inner.receipts.wait(&self.inner.session, receipt)
    }

    /// Limits of connections.
    pub fn limits(&self) -> &Arc<ConnectionLimits> {
        &self.inner.limits
    }

    /// The metrics of the core.
    pub fn metrics(&self) -> &Arc<CoreMetrics> {
        &self.inner.metrics
    }

    /// The clock of the core.
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }
}

/// Declares the counters of a core and their snapshot.
macro_rules! core_counters {
    ($(#[doc = $doc:literal] $name:ident),* $(,)?) => {
        /// The counters of a core. Only the core writes them; any thread may read them.
        #[derive(Debug, Default)]
        pub struct CoreMetrics {
            $(#[doc = $doc] pub $name: CoreCounter,)*
            /// Bytes that the connections of the core buffer now.
            pub bytes_buffered: CoreGauge,
            /// Time from a read to the written replies, in nanoseconds.
            pub response_nanos: Histogram,
        }

        /// A snapshot of [`CoreMetrics`].
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct CoreStats {
            $(#[doc = $doc] pub $name: u64,)*
            /// Bytes that the connections of the core buffer now.
            pub bytes_buffered: u64,
            /// Time from a read to the written replies, in nanoseconds.
            pub response_nanos: Distribution,
        }

        impl CoreMetrics {
            /// Reads all counters.
            pub fn snapshot(&self) -> CoreStats {
                let response_nanos = self.response_nanos.snapshot();
                let bytes_buffered = self.bytes_buffered.get();
                CoreStats { $($name: self.$name.get(),)* bytes_buffered, response_nanos }
            }
        }

        impl CoreStats {
            /// Adds the counters of another core.
            pub fn merge(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
                self.bytes_buffered += other.bytes_buffered;
                self.response_nanos.merge(&other.response_nanos);
            }

            /// The names and values of the counters.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }

            /// The names and descriptions of the counters.
            pub const DESCRIPTIONS: &[(&'static str, &'static str)] =
                &[$((stringify!($name), $doc),)*];
        }
    };
}

core_counters! {
    /// Connections accepted, including those that exceeded the limit of connections.
    accepted,
    /// Connections closed, for any reason.
    closed,
    /// Connections rejected because the limit of connections was reached.
    refused,
    /// Failed accepts, for example because too many files are open.
    accept_errors,
    /// Connections closed because the client did not read its replies.
    slow_clients,
    /// Connections closed because a request did not arrive completely in time.
    request_timeouts,
    /// Connections closed because the client did not authenticate in time.
    auth_timeouts,
    /// Connections closed because a request exceeded the size limit.
    too_large,
    /// Connections closed because the core's buffers exceeded their limit.
    out_of_memory,
    /// Connections closed because the TLS handshake failed.
    tls_failures,
    /// Connections closed because the client wrote invalid positions into its ring.
    ring_faults,
    /// Connections closed at the end of the drain time of a shutdown.
    drain_aborts,
    /// Bytes received from clients.
    bytes_read,
    /// Bytes sent to clients.
    bytes_written,
    /// Reads that returned bytes.
    reads,
    /// Writes to sockets and rings.
    writes,
    /// Requests answered, counted by the protocol.
    requests,
}

impl CoreStats {
    /// Open connections.
    pub fn open(&self) -> u64 {
        self.accepted.saturating_sub(self.closed)
    }
}
