//! A core, as protocols see it: the region, a session of its own, limits, counts.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use nearstate_model::Result;
use nearstate_store::{Region, Session};

use crate::clock::Clock;
use crate::limits::Limits;
use crate::metric::{Counter, Histogram};

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

/// What a core counts of its connections. Written by the core, read by anybody.
#[derive(Debug, Default)]
pub struct CoreMetric {
    /// Connections accepted.
    pub accepted: Counter,
    /// Connections closed, for whatever reason.
    pub closed: Counter,
    /// Connections that were told that there are too many.
    pub refused: Counter,
    /// Connections that could not be accepted; the log says why.
    pub accept_errors: Counter,
    /// Connections closed because the client did not read.
    pub slow_clients: Counter,
    /// Connections closed because a request did not become whole in time.
    pub half_sent: Counter,
    /// Connections closed because a request was too large.
    pub too_large: Counter,
    /// Connections closed because the core had no more memory for its clients.
    pub out_of_memory: Counter,
    /// Connections cut at the end of a shutdown.
    pub cut: Counter,
    /// Bytes from clients.
    pub bytes_read: Counter,
    /// Bytes to clients.
    pub bytes_written: Counter,
    /// Reads that brought something.
    pub reads: Counter,
    /// Writes to sockets.
    pub writes: Counter,
    /// Requests answered; counted by the protocol.
    pub requests: Counter,
    /// From the read to the written answer, in nanoseconds.
    pub turn_nanos: Histogram,
}
