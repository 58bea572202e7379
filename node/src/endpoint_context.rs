//! State that connections share: the table of a core's connections with their buffers and the
//! memory that they use, and the protocol of an endpoint on a core.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use nearstate_model::invariant;

use crate::core::Core;
use crate::executor::{TaskEvent, TaskHandle};
use crate::protocol::{
    ConnectionHandler, CoreService, ForcedClose, LimitExceeded, PeerIdentity, Protocol,
};

/// The most bytes of one read: 64 KiB. All requests of a read are answered together, and other
/// connections wait for that long.
pub(crate) const READ_BYTES: usize = 64 << 10;

/// The largest output buffer that is kept for the next connection. Larger ones are freed.
const OUTPUT_BYTES_KEPT: usize = 1 << 20;

/// The connections of a core, and the buffers that they share.
#[derive(Default)]
pub(crate) struct ConnectionTable {
    scratch: Cell<Vec<u8>>,
    output: Cell<Vec<u8>>,
    bytes_buffered: Cell<usize>,
    is_draining: Cell<bool>,
    tasks: RefCell<BTreeMap<u64, TaskHandle<()>>>,
    /// Set when the table drains and its last connection has ended.
    pub(crate) is_drained: TaskEvent,
}

/// An endpoint on a core: its protocol, and the core's shared state.
pub(crate) struct EndpointContext {
    core: Core,
    protocol: Arc<dyn Protocol>,
    service: Rc<dyn CoreService>,
    connections: Rc<ConnectionTable>,
    on_forced_close: fn(&ForcedClose),
}

impl fmt::Debug for EndpointContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointContext").field("core", &self.core).finish_non_exhaustive()
    }
}

impl ConnectionTable {
    pub(crate) fn insert(&self, id: u64, task: TaskHandle<()>) {
        self.tasks.borrow_mut().insert(id, task);
    }

    pub(crate) fn remove(&self, id: u64) {
        let mut tasks = self.tasks.borrow_mut();
        tasks.remove(&id);
        if tasks.is_empty() && self.is_draining.get() {
            self.is_drained.set();
        }
    }

    /// Closes idle connections now, and the others after their replies.
    pub(crate) fn drain(&self) {
        self.is_draining.set(true);
        let tasks = self.tasks.borrow();
        tasks.values().for_each(TaskHandle::wake);
        if tasks.is_empty() {
            self.is_drained.set();
        }
    }

    /// Ends the remaining connections. Returns how many there were.
    pub(crate) fn cut(&self) -> usize {
        let tasks = self.tasks.take();
        tasks.values().for_each(TaskHandle::cancel);
        tasks.len()
    }
}

impl EndpointContext {
    pub(crate) fn new(
        core: Core,
        protocol: Arc<dyn Protocol>,
        service: Rc<dyn CoreService>,
        connections: Rc<ConnectionTable>,
        on_forced_close: fn(&ForcedClose),
    ) -> Self {
        Self { core, protocol, service, connections, on_forced_close }
    }

    /// Reports that the node closes a connection because of its client.
    pub(crate) fn report_forced_close(&self, closed: &ForcedClose) {
        (self.on_forced_close)(closed);
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    pub(crate) fn connections(&self) -> &Rc<ConnectionTable> {
        &self.connections
    }

    pub(crate) fn accept(&self, peer: &PeerIdentity) -> Box<dyn ConnectionHandler> {
        self.service.accept(peer)
    }

    pub(crate) fn limit_error(&self, limit: &LimitExceeded) -> Vec<u8> {
        self.protocol.limit_error(limit)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.connections.is_draining.get()
    }

    /// Takes the core's read buffer. The borrower returns it before it waits.
    pub(crate) fn borrow_scratch(&self) -> Vec<u8> {
        let mut scratch = self.connections.scratch.take();
        scratch.resize(READ_BYTES, 0);
        scratch
    }

    pub(crate) fn return_scratch(&self, scratch: Vec<u8>) {
        self.connections.scratch.set(scratch);
    }

    /// Takes the core's output buffer. A connection keeps it until its client has read everything.
    pub(crate) fn borrow_output(&self) -> Vec<u8> {
        let mut output = self.connections.output.take();
        output.reserve(1);
        output
    }

    /// Returns an empty output buffer for the next connection.
    pub(crate) fn return_output(&self, output: Vec<u8>) {
        if output.capacity() <= OUTPUT_BYTES_KEPT {
            self.connections.output.set(output);
        }
    }

    /// Records that a connection now buffers `after` bytes instead of `before`. Returns the total
    /// of the core.
    pub(crate) fn update_buffered(&self, before: usize, after: usize) -> usize {
        let buffered = &self.connections.bytes_buffered;
        invariant!(before <= buffered.get(), "a connection's bytes are part of the total");
        let total = buffered.get() - before + after;
        if before != after {
            buffered.set(total);
            self.core.metrics().bytes_buffered.set(total as u64);
        }
        total
    }
}
