//! The interface between the node and a protocol: the node moves bytes, the protocol handles
//! requests.
//!
//! A [`Protocol`] creates a [`CoreService`] on each core, and the service creates a
//! [`ConnectionHandler`] for each client. None of them knows sockets or threads, so a protocol is
//! tested with bytes alone.
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
use std::time::Duration;

use nearstate_model::Result;

use crate::core::Core;
use crate::local_stream::{DescriptorReply, LocalPeer};

/// The high-water mark of the output, 64 KiB: what fits into a socket's buffer. A handler stops
/// before the next request when its output has this size. The node calls it again when the client
/// has read the output. Without this limit, a thousand small pipelined requests for large values
/// would cost the memory of a thousand replies.
pub const OUTPUT_HIGH_WATER_BYTES: usize = 64 << 10;

/// A protocol. One instance per process.
pub trait Protocol: Send + Sync {
    /// The name that endpoints use: "resp".
    fn name(&self) -> &'static str;

    /// Creates the protocol's service on a core. Called once on each core's own thread, before the
    /// first connection.
    ///
    /// # Errors
    /// Anything that prevents the protocol from serving. The node does not start then.
    fn on_core(&self, core: &Core) -> Result<Rc<dyn CoreService>>;

    /// The error reply that the protocol sends before the node closes a connection because of a
    /// limit. Empty if the protocol has none. Also called by the task that accepts.
    fn limit_error(&self, limit: &LimitExceeded) -> Vec<u8>;
}

/// A protocol on one core: its session of the region, its caches, the state that its clients share.
pub trait CoreService {
    /// Starts background tasks. Called on the core, before the first connection.
    fn begin(&self) {}

    /// Creates the handler of a new connection.
    fn accept(&self, peer: &PeerIdentity) -> Box<dyn ConnectionHandler>;
}

/// The protocol's side of one connection. It never blocks.
pub trait ConnectionHandler {
    /// Handles complete requests at the front of `input` and appends the replies to `output`.
    /// Returns the number of bytes that it consumed, and what the node does next.
    ///
    /// `input` holds all bytes that were received and not consumed. The node calls again when more
    /// bytes arrive; and at once, after the replies are sent, if the handler consumed some bytes
    /// and left others. A handler may therefore stop after any request, and must stop when
    /// `output` has [`OUTPUT_HIGH_WATER_BYTES`]. If it consumes nothing, the node waits for more
    /// bytes; the handler itself keeps the parse state of an incomplete request.
    fn on_input(&mut self, input: &[u8], output: &mut Vec<u8>) -> Consumed;

    /// Continues work that yields (a long scan), and delivers messages of other clients. Polled
    /// after each [`ConnectionHandler::on_input`] and when it has woken the task.
    ///
    /// - `Pending`: nothing to do now. The handler wakes the task when that changes.
    /// - `Ready(Work)`: there is more work. The node polls again after other tasks. Between `Work`
    ///   and `Read` the task of the connection is of the background class.
    /// - `Ready(Read)`: the work is finished, or there was none.
    /// - `Ready(Close)`, `Ready(SendDescriptors)`: as for [`ConnectionHandler::on_input`].
    ///
    /// `output` holds the bytes that the client has not read yet. While it has
    /// [`OUTPUT_HIGH_WATER_BYTES`], the handler adds nothing; the node polls again when the client
    /// has read, and does not continue work before.
    fn poll_progress(&mut self, cx: &mut Context<'_>, output: &mut Vec<u8>) -> Poll<NextAction>;

    /// `Ready` if the connection must end although its client reads nothing: another client closed
    /// it, or its messages exceeded their limit. Polled in every phase while replies wait for the
    /// client, when [`ConnectionHandler::poll_progress`] may add nothing. The handler wakes the
    /// task when the answer changes.
    fn poll_end(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    /// Completes a request that returned [`NextAction::SendDescriptors`], after all earlier output
    /// was sent. Appends the reply to `output`, and returns the descriptors that travel with its
    /// first byte; `None` if the request failed.
    ///
    /// `peer` creates the descriptors. It is an error if this connection cannot carry any; the
    /// handler reports that error.
    fn send_descriptors(
        &mut self,
        peer: Result<&LocalPeer<'_>>,
        _output: &mut Vec<u8>,
    ) -> Option<DescriptorReply> {
        debug_assert!(peer.is_err(), "a handler that asks for descriptors implements this");
        None
    }

    /// True while the client has not authenticated although it has to. The node closes a connection
    /// of which this is true for [`crate::ConnectionLimits::auth_timeout`].
    fn is_unauthenticated(&self) -> bool {
        false
    }

    /// True while the work of this connection may wait without a limit of time. The node then reads
    /// ahead, so that it notices the end of the client, and keeps what it has read for the handler.
    fn may_wait_for_ever(&self) -> bool {
        false
    }

    /// The node ends, and the connection with it: the handler tells its client if the protocol has
    /// a message for that. Called once, before the next [`ConnectionHandler::poll_progress`].
    fn begin_drain(&mut self) {}

    /// False while requests are in progress although the handler has returned
    /// [`NextAction::Read`], or while a client has not seen yet that the node ends. A node that
    /// ends waits for their replies, for
    /// [`crate::ConnectionLimits::shutdown_timeout`] at most. It polls the handler before it asks.
    fn is_idle(&self) -> bool {
        true
    }

    /// Bytes that the handler buffers for its client between calls. They count towards
    /// [`crate::ConnectionLimits::core_bytes_max`], as incomplete requests do.
    fn buffered_bytes(&self) -> usize {
        0
    }
}

/// The result of [`ConnectionHandler::on_input`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consumed {
    /// The number of bytes at the front of the input that the handler consumed.
    pub bytes: usize,
    /// What the node does next.
    pub next: NextAction,
}

/// What the node does after a call of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// Read more requests.
    Read,
    /// Poll the handler's work. No input is handled before it returns [`NextAction::Read`].
    Work,
    /// Send the output, then close the connection.
    Close,
    /// Send the output, then call [`ConnectionHandler::send_descriptors`].
    SendDescriptors,
}

/// The address of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAddress {
    /// A TCP connection, possibly over loopback.
    Tcp {
        /// The client's end.
        remote: SocketAddr,
        /// The node's end.
        local: SocketAddr,
    },
    /// A connection to a Unix socket of this host.
    Unix {
        /// The client's process, if the kernel reports it.
        pid: Option<i32>,
        /// The client's user.
        uid: u32,
        /// The client's group.
        gid: u32,
    },
}

/// A client, as far as its socket identifies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// A number that is unique during the life of the node; ascending, from 1.
    pub id: u64,
    /// The address of the client.
    pub address: PeerAddress,
    /// The name in the client's TLS certificate, if it presented one.
    pub certificate: Option<String>,
}

/// A connection that the node closes because of its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForcedClose {
    /// The address of the client.
    pub address: PeerAddress,
    /// Why the node closes it.
    pub reason: CloseReason,
}

/// Why the node closes a connection because of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The client did not read its replies.
    SlowReader,
    /// The client did not complete a request in time.
    HalfSent,
    /// A request exceeded the size limit.
    TooLarge,
    /// The buffers of the core's connections exceeded their limit when this one needed more.
    OutOfMemory,
    /// The TLS handshake failed.
    Handshake,
    /// The client did not authenticate in time.
    Unauthenticated,
}

impl CloseReason {
    /// The name in log events.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SlowReader => "slow_reader",
            Self::HalfSent => "request_timeout",
            Self::TooLarge => "too_large",
            Self::OutOfMemory => "out_of_memory",
            Self::Handshake => "tls_handshake",
            Self::Unauthenticated => "auth_timeout",
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

/// A limit that a client exceeded. The node reports it to the client and closes the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitExceeded {
    /// The number of connections of the node.
    TooManyConnections {
        /// The limit.
        max: usize,
    },
    /// The size of a request.
    RequestTooLarge {
        /// The limit in bytes.
        max: usize,
    },
    /// The buffers of all connections of the core.
    OutOfMemory {
        /// The limit in bytes.
        max: usize,
    },
    /// The time without authentication.
    AuthTimeout {
        /// The limit.
        max: Duration,
    },
}

impl fmt::Display for LimitExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyConnections { max } => write!(
                f,
                "the node has reached its limit of {max} connections; close some, or raise \
                 limits.connections_max and `ulimit -n`"
            ),
            Self::RequestTooLarge { max } => write!(
                f,
                "the request exceeds the limit of {max} bytes; split it, or raise \
                 limits.input_bytes_max"
            ),
            Self::OutOfMemory { max } => write!(
                f,
                "incomplete requests, unread replies, subscriptions, queues and scans of this \
                 core's clients exceed {max} bytes; request less at once, or raise \
                 limits.core_bytes_max"
            ),
            Self::AuthTimeout { max } => write!(
                f,
                "the client did not authenticate within {max:?}; authenticate after connecting, \
                 or raise limits.auth_timeout"
            ),
        }
    }
}
