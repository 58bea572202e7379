//! The border between the node and a protocol: bytes on this side, requests on the other.
//!
//! A [`Protocol`] is a protocol. On each core it has a [`CoreService`], and that makes a
//! [`ConnectionHandler`] for every client of the core. None of them knows a socket or a thread, so that
//! a protocol is tested with bytes alone.
//!
//! ```
//! use std::task::{Context, Poll};
//! use nearstate_node::{ConnectionHandler, Consumed, NextAction};
//!
//! /// Answers each line with the same line.
//! struct Echo;
//!
//! impl ConnectionHandler for Echo {
//!     fn on_input(&mut self, input: &[u8], output: &mut Vec<u8>) -> Consumed {
//!         let whole = input.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
//!         output.extend_from_slice(&input[..whole]);
//!         Consumed { bytes: whole, next: NextAction::Read }
//!     }
//!     fn poll_progress(&mut self, _: &mut Context<'_>, _: &mut Vec<u8>) -> Poll<NextAction> {
//!         Poll::Pending
//!     }
//! }
//!
//! let mut output = Vec::new();
//! let consumed = Echo.on_input(b"one\ntwo\nthr", &mut output);
//! assert_eq!((consumed.bytes, consumed.next), (8, NextAction::Read));
//! assert_eq!(output, b"one\ntwo\n");
//! ```

use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

use nearstate_local_transport::LocalResource;
use nearstate_model::{Error, Result};

use crate::core::Core;

/// So many bytes of output are enough for now. A handler that takes one request after the
/// other stops when its output has grown to this, leaves the rest of the input, and is asked again
/// as soon as the client has read. So a small request for something large, sent a thousand times at
/// once, costs the memory of one answer. What fits in a socket's buffer.
pub const OUTPUT_HIGH_WATER_BYTES: usize = 64 << 10;

/// A protocol. One for the process.
pub trait Protocol: Send + Sync {
    /// What an endpoint calls it: "resp".
    fn name(&self) -> &'static str;

    /// What the protocol keeps on a core. Called once on each core's own thread, before the first
    /// connection.
    ///
    /// # Errors
    /// Whatever keeps it from serving; the node does not start then.
    fn on_core(&self, core: &Core) -> Result<Rc<dyn CoreService>>;

    /// What a client is told before its connection is closed, in words of the protocol; empty where
    /// the protocol has none. Also called from the thread that accepts.
    fn limit_error(&self, why: &LimitExceeded) -> Vec<u8>;
}

/// A protocol's part on one core: a session of the region, caches, what its clients share.
pub trait CoreService {
    /// Begins what it does by itself, before the first client comes. Called on the core, where
    /// tasks can be begun.
    fn begin(&self) {}

    /// Begins to talk with a client.
    fn accept(&self, peer: &Peer) -> Box<dyn ConnectionHandler>;
}

/// One client's side. Never waits, never blocks.
pub trait ConnectionHandler {
    /// Takes whole requests off the front of `input`, appends answers to `output`. Returns how many
    /// bytes it has taken, and what is to happen next.
    ///
    /// Called with everything that has come and was not taken: when more has come, and again at
    /// once (after the answers were sent) as long as it takes some of it and leaves some. So it may
    /// stop after any request, and does when `output` has [`OUTPUT_HIGH_WATER_BYTES`]. If it takes nothing, the node
    /// waits for more bytes; what a handler wants to remember of a half request it keeps
    /// itself.
    fn on_input(&mut self, input: &[u8], output: &mut Vec<u8>) -> Consumed;

    /// Whatever happens by itself: work that was begun and yields (a long scan), messages of
    /// others. Polled after each `hear` and whenever it has woken the task.
    ///
    /// `Pending`: nothing for now; it wakes the task when there is. `Ready(Work)`: there is more,
    /// ask again; other tasks run meanwhile, and between `Work` and `Listen` the connection's task
    /// is of the background class. `Ready(Listen)`: the work is done, or there was none.
    /// `Ready(Close)`: as for `hear`.
    ///
    /// `output` holds what the client has not read yet. While that is [`OUTPUT_HIGH_WATER_BYTES`] nothing should be
    /// added; the call is repeated when the client has read. Work is not asked to go on before.
    fn poll_progress(&mut self, cx: &mut Context<'_>, output: &mut Vec<u8>) -> Poll<NextAction>;

    /// What came of [`NextAction::Near`]: appends the answer, with whose first byte the descriptors
    /// travel ([`nearstate_local_transport::response_line`]), or says why there are none, and the handler goes
    /// on as before. A handler that never asks needs none of it.
    fn near(&mut self, _: LocalResource, _refused: Option<&Error>, _output: &mut Vec<u8>) {}

    /// Bytes that the handler keeps for its client while it waits, whatever they are: they
    /// count as those of half requests do, for [`crate::ConnectionLimits::core_bytes_max`].
    fn buffered_bytes(&self) -> usize {
        0
    }
}

/// What came of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consumed {
    /// How many bytes at the front of the input are done with.
    pub bytes: usize,
    /// What is next.
    pub next: NextAction,
}

/// What is next in a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// Needs more bytes, or has nothing more to do now.
    Read,
    /// Has work of its own: `hear` is not called again before `poll_progress` has answered `Listen`.
    Work,
    /// Flush, then close.
    Close,
    /// The client has asked to come near: for the region's file, or to go on over a ring.
    Near(LocalResource),
}

/// Where a client is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAddress {
    /// At another address, or at a loopback one.
    Tcp {
        /// The client's end.
        remote: SocketAddr,
        /// Our end.
        local: SocketAddr,
    },
    /// On this host, at a Unix socket.
    Unix {
        /// The client's process, where the kernel says it.
        pid: Option<i32>,
        /// The client's user.
        uid: u32,
        /// The client's group.
        gid: u32,
    },
}

/// Who a client is, as far as its socket tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Unique in the life of the node, ascending, from 1.
    pub id: u64,
    /// Where it is.
    pub address: PeerAddress,
    /// The name in the certificate that the client has shown, if it has shown one.
    pub certificate: Option<String>,
}

/// A client that was sent away for what it did, or did not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForcedClose {
    /// Where it is.
    pub address: PeerAddress,
    /// Why.
    pub reason: CloseReason,
}

/// Why a client was sent away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// It did not read its answers.
    SlowReader,
    /// It did not finish a request in time.
    HalfSent,
    /// It sent a request that was larger than it may be.
    TooLarge,
    /// The clients of its core together kept too much memory, and it was the one that wanted more.
    OutOfMemory,
    /// It did not come to terms about TLS.
    Handshake,
}

impl CloseReason {
    /// A word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SlowReader => "slow_reader",
            Self::HalfSent => "request_timeout",
            Self::TooLarge => "too_large",
            Self::OutOfMemory => "out_of_memory",
            Self::Handshake => "tls_handshake",
        }
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { remote, .. } => write!(f, "{remote}"),
            Self::Unix { pid: Some(pid), uid, .. } => write!(f, "unix:pid={pid},uid={uid}"),
            Self::Unix { pid: None, uid, .. } => write!(f, "unix:uid={uid}"),
        }
    }
}

/// Why a client is sent away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitExceeded {
    /// The node has as many connections as it may.
    TooManyConnections {
        /// How many that are.
        max: usize,
    },
    /// A request is larger than the node accepts.
    RequestTooLarge {
        /// Bytes that it may have.
        max: usize,
    },
    /// All requests of the core together are larger than it accepts.
    OutOfMemory {
        /// Bytes that they may have.
        max: usize,
    },
}

impl fmt::Display for LimitExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyConnections { max } => write!(
                f,
                "the node has {max} connections, as many as it may; close some, or raise \
                 limits.connections_max and `ulimit -n`"
            ),
            Self::RequestTooLarge { max } => write!(
                f,
                "a request may have {max} bytes; send it in parts, or raise limits.input_bytes_max"
            ),
            Self::OutOfMemory { max } => write!(
                f,
                "half sent requests, unread answers, subscriptions, queues and walks of all \
                 clients of this core passed {max} bytes; ask for less at once, or raise \
                 limits.core_bytes_max"
            ),
        }
    }
}
