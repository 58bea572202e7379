//! What the connections of one endpoint on one core share: the protocol, buffers, the bound of
//! their memory, and the list of who is there.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use crate::core::Core;
use crate::executor::{Gate, Join};
use crate::protocol::{ConnectionHandler, CoreService, Dismissal, Peer, Protocol, Refusal};

/// The most that is read at once. More would be answered in one go, while others wait.
pub(crate) const READ_BYTES: usize = 64 << 10;

/// A buffer for answers is kept for the next connection up to this size.
const OUTPUT_BYTES_KEPT: usize = 1 << 20;

/// What all connections of a core share.
#[derive(Default)]
pub(crate) struct Lobby {
    scratch: Cell<Vec<u8>>,
    output: Cell<Vec<u8>>,
    bytes_kept: Cell<usize>,
    is_draining: Cell<bool>,
    connections: RefCell<BTreeMap<u64, Join<()>>>,
    /// Open once nobody is there any more and nobody comes.
    pub(crate) is_empty: Gate,
}

/// An endpoint's share of a core.
pub(crate) struct Reception {
    core: Core,
    face: Arc<dyn Protocol>,
    on_core: Rc<dyn CoreService>,
    lobby: Rc<Lobby>,
    on_dismissed: fn(&Dismissal),
}

impl fmt::Debug for Reception {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reception").field("core", &self.core).finish_non_exhaustive()
    }
}

impl Lobby {
    /// A connection is there.
    pub(crate) fn enter(&self, id: u64, task: Join<()>) {
        self.connections.borrow_mut().insert(id, task);
    }

    /// It is gone.
    pub(crate) fn leave(&self, id: u64) {
        let mut connections = self.connections.borrow_mut();
        connections.remove(&id);
        if connections.is_empty() && self.is_draining.get() {
            self.is_empty.open();
        }
    }

    /// Connections that wait for their client end now, others when they have answered.
    pub(crate) fn drain(&self) {
        self.is_draining.set(true);
        let connections = self.connections.borrow();
        connections.values().for_each(Join::wake);
        if connections.is_empty() {
            self.is_empty.open();
        }
    }

    /// Ends those that are still there. Returns how many.
    pub(crate) fn cut(&self) -> usize {
        let connections = self.connections.take();
        connections.values().for_each(Join::cancel);
        connections.len()
    }
}

impl Reception {
    pub(crate) fn new(
        core: Core,
        face: Arc<dyn Protocol>,
        on_core: Rc<dyn CoreService>,
        lobby: Rc<Lobby>,
        on_dismissed: fn(&Dismissal),
    ) -> Self {
        Self { core, face, on_core, lobby, on_dismissed }
    }

    /// Tells that a client was sent away.
    pub(crate) fn tell(&self, dismissal: &Dismissal) {
        (self.on_dismissed)(dismissal);
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    pub(crate) fn lobby(&self) -> &Rc<Lobby> {
        &self.lobby
    }

    pub(crate) fn accept(&self, peer: &Peer) -> Box<dyn ConnectionHandler> {
        self.on_core.accept(peer)
    }

    pub(crate) fn refusal(&self, why: &Refusal) -> Vec<u8> {
        self.face.refusal(why)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.lobby.is_draining.get()
    }

    /// Lends the core's read buffer. Whoever has it does not wait before it is back.
    pub(crate) fn borrow_scratch(&self) -> Vec<u8> {
        let mut scratch = self.lobby.scratch.take();
        scratch.resize(READ_BYTES, 0);
        scratch
    }

    pub(crate) fn return_scratch(&self, scratch: Vec<u8>) {
        self.lobby.scratch.set(scratch);
    }

    /// Lends a buffer for answers. A client that does not read keeps it.
    pub(crate) fn borrow_output(&self) -> Vec<u8> {
        let mut output = self.lobby.output.take();
        output.reserve(1);
        output
    }

    /// Takes it back, empty.
    pub(crate) fn return_output(&self, output: Vec<u8>) {
        if output.capacity() <= OUTPUT_BYTES_KEPT {
            self.lobby.output.set(output);
        }
    }

    /// Notes that a connection keeps so many bytes instead of so many. Returns what all keep.
    pub(crate) fn note_kept(&self, before: usize, now: usize) -> usize {
        let total = self.lobby.bytes_kept.get().saturating_sub(before) + now;
        self.lobby.bytes_kept.set(total);
        total
    }
}
