//! A core, as protocols see it: the region, a session of its own, limits, counts.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use nearstate_model::Result;
use nearstate_store::{Region, Session};

use crate::clock::Clock;
use crate::limits::Limits;
use crate::metric::{Counter, Distribution, Histogram};

/// What a core has for the protocols on it. Cheap to clone; stays on its thread. Tasks are begun
/// with [`crate::executor::spawn`].
#[derive(Clone)]
pub struct Core {
    inner: Rc<Inner>,
}

struct Inner {
    index: usize,
    count: usize,
    region: Region,
    session: Rc<Session>,
    limits: Arc<Limits>,
    metric: Arc<CoreMetric>,
    clock: Clock,
}

/// What a core is made of.
#[derive(Debug)]
pub struct CoreParts {
    /// Its number, from 0.
    pub index: usize,
    /// How many cores the node has.
    pub count: usize,
    /// The region that is served.
    pub region: Region,
    /// Bounds of connections.
    pub limits: Arc<Limits>,
    /// Its counts.
    pub metric: Arc<CoreMetric>,
    /// Its clock.
    pub clock: Clock,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("index", &self.inner.index).finish_non_exhaustive()
    }
}

impl Core {
    /// A core on this thread. The node makes one for each of its own; tests of a protocol make
    /// one without any thread.
    ///
    /// # Errors
    /// As [`Region::session`].
    pub fn new(parts: CoreParts) -> Result<Self> {
        let session = Rc::new(parts.region.session()?);
        let CoreParts { index, count, region, limits, metric, clock } = parts;
        Ok(Self { inner: Rc::new(Inner { index, count, region, session, limits, metric, clock }) })
    }

    /// Its number, from 0.
    pub fn index(&self) -> usize {
        self.inner.index
    }

    /// How many cores the node has.
    pub fn count(&self) -> usize {
        self.inner.count
    }

    /// The region that is served.
    pub fn region(&self) -> &Region {
        &self.inner.region
    }

    /// The core's session of the region. One for all protocols of the core: they take turns.
    pub fn session(&self) -> &Rc<Session> {
        &self.inner.session
    }

    /// Bounds of connections.
    pub fn limits(&self) -> &Arc<Limits> {
        &self.inner.limits
    }

    /// Its counts.
    pub fn metric(&self) -> &Arc<CoreMetric> {
        &self.inner.metric
    }

    /// Its clock.
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }
}

/// Declares the counts of a core, and what they look like when they are read.
macro_rules! counts {
    ($(#[doc = $doc:literal] $name:ident),* $(,)?) => {
        /// What a core counts of its connections. Written by the core, read by anybody.
        #[derive(Debug, Default)]
        pub struct CoreMetric {
            $(#[doc = $doc] pub $name: Counter,)*
            /// From the read to the written answer, in nanoseconds.
            pub turn_nanos: Histogram,
        }

        /// What a [`CoreMetric`] showed at some moment.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct CoreSeen {
            $(#[doc = $doc] pub $name: u64,)*
            /// From the read to the written answer, in nanoseconds.
            pub turn_nanos: Distribution,
        }

        impl CoreMetric {
            /// All counts.
            pub fn seen(&self) -> CoreSeen {
                CoreSeen { $($name: self.$name.get(),)* turn_nanos: self.turn_nanos.seen() }
            }
        }

        impl CoreSeen {
            /// Adds what another core has counted.
            pub fn merge(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
                self.turn_nanos.merge(&other.turn_nanos);
            }

            /// The counts with their names, for whoever shows them.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }

            /// What each count is, by its name.
            pub const EXPLAINED: &[(&'static str, &'static str)] =
                &[$((stringify!($name), $doc),)*];
        }
    };
}

counts! {
    /// Connections accepted, those included that are refused.
    accepted,
    /// Connections closed, for whatever reason.
    closed,
    /// Connections that were told that there are too many.
    refused,
    /// Times that the kernel gave no connection although it had one: too many open files.
    accept_errors,
    /// Connections closed because the client did not read.
    slow_clients,
    /// Connections closed because a request did not become whole in time.
    half_sent,
    /// Connections closed because a request was too large.
    too_large,
    /// Connections closed because the core had no more memory for its clients.
    out_of_memory,
    /// Connections closed because the client did not come to terms about TLS.
    no_tls,
    /// Connections closed because the client wrote into its ring what no client writes.
    ring_faults,
    /// Connections cut at the end of a shutdown.
    cut,
    /// Bytes from clients.
    bytes_read,
    /// Bytes to clients.
    bytes_written,
    /// Reads that brought something.
    reads,
    /// Writes to sockets.
    writes,
    /// Requests answered; counted by the protocol.
    requests,
}

impl CoreSeen {
    /// Connections that are open.
    pub fn open(&self) -> u64 {
        self.accepted.saturating_sub(self.closed)
    }
}
