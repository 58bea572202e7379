//! The stream of a client on a Unix socket. It can carry file descriptors with a reply, and it can
//! continue over a ring in shared memory: then bytes go through the ring, and the socket is the
//! doorbell and signals the end of the connection.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use nearstate_local_transport::{PipeEnd, PipeInterest, ring_doorbell, send};
use nearstate_model::{Error, Result, invariant};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;

use crate::core::CoreMetrics;
use crate::executor::{PollSource, watch_source};

/// The number of rings of the node.
#[derive(Clone, Debug, Default)]
pub(crate) struct RingCount(Arc<AtomicUsize>);

/// Counts one ring while it exists.
#[derive(Debug)]
struct RingPermit(RingCount);

impl RingCount {
    fn acquire(&self, max: usize) -> Result<RingPermit> {
        let permit = RingPermit(self.clone());
        if self.0.fetch_add(1, Ordering::Relaxed) < max {
            return Ok(permit);
        }
        Err(Error::Full {
            detail: format!(
                "the node has reached its limit of {max} rings (limits.rings_max); use the socket"
            ),
            heap: None,
        })
    }
}

impl Drop for RingPermit {
    fn drop(&mut self) {
        let before = self.0.0.fetch_sub(1, Ordering::Relaxed);
        invariant!(before > 0, "each ring permit was counted once");
    }
}

/// The stream of one client.
#[derive(Debug)]
pub(crate) struct LocalStream {
    socket: UnixStream,
    ring: Option<ServedRing>,
    rings: RingCount,
    /// Descriptors were sent over this connection. The kernel counts descriptors in flight against
    /// the node's limit, so a client that never reads gets at most one set.
    has_sent_descriptors: bool,
}

/// The node's end of a ring.
#[derive(Debug)]
struct ServedRing {
    shared: Rc<RingSource>,
    /// The socket has ended. The bytes in the ring are the last ones.
    has_socket_ended: bool,
    metrics: Arc<CoreMetrics>,
    _permit: RingPermit,
}

/// The part of a ring that the connection shares with the core's list of poll sources.
#[derive(Debug)]
struct RingSource {
    end: RefCell<PipeEnd>,
    interest: Cell<PipeInterest>,
    is_registered: Cell<bool>,
}

impl PollSource for RingSource {
    #[inline]
    fn is_ready(&self) -> bool {
        self.end.borrow().is_ready(self.interest.get())
    }

    fn arm(&self) -> bool {
        self.end.borrow().fall_asleep(self.interest.get())
    }

    #[inline]
    fn is_registered(&self) -> &Cell<bool> {
        &self.is_registered
    }
}

/// A client on this host that can receive descriptors. A protocol uses it to build the reply to a
/// request for descriptors; see [`crate::ConnectionHandler::send_descriptors`].
#[derive(Debug)]
pub struct LocalPeer<'connection> {
    rings: &'connection RingCount,
    rings_max: usize,
    metrics: &'connection Arc<CoreMetrics>,
    has_sent_descriptors: bool,
}

/// The descriptors of a reply, and the ring over which the connection continues after it.
#[derive(Debug)]
pub struct DescriptorReply {
    descriptors: Vec<OwnedFd>,
    ring: Option<ServedRing>,
}

impl LocalPeer<'_> {
    /// A reply that carries these descriptors. The connection stays on its socket.
    ///
    /// # Errors
    /// `BadArgument` if this connection has carried descriptors before.
    pub fn descriptors(&self, descriptors: Vec<OwnedFd>) -> Result<DescriptorReply> {
        if self.has_sent_descriptors {
            return Err(bad_request(
                "this connection has received descriptors already; use another connection",
            ));
        }
        Ok(DescriptorReply { descriptors, ring: None })
    }

    /// A reply that carries the memory of a new ring, over which the connection continues.
    ///
    /// # Errors
    /// `Full` at the limit of rings, `System` if the kernel refuses the memory.
    pub fn ring(&self) -> Result<DescriptorReply> {
        let permit = self.rings.acquire(self.rings_max)?;
        let (end, memory) = PipeEnd::create()?;
        let shared = Rc::new(RingSource {
            end: RefCell::new(end),
            interest: Cell::default(),
            is_registered: Cell::default(),
        });
        let metrics = Arc::clone(self.metrics);
        let ring = ServedRing { shared, has_socket_ended: false, metrics, _permit: permit };
        Ok(DescriptorReply { descriptors: vec![memory], ring: Some(ring) })
    }
}

fn bad_request(detail: &str) -> Error {
    Error::BadArgument { detail: detail.to_owned() }
}

impl LocalStream {
    pub(crate) fn new(socket: UnixStream, rings: RingCount) -> Self {
        Self { socket, ring: None, rings, has_sent_descriptors: false }
    }

    /// The peer, for the reply to a request for descriptors.
    ///
    /// # Errors
    /// `BadArgument` if the connection uses a ring already.
    pub(crate) fn peer<'connection>(
        &'connection self,
        rings_max: usize,
        metrics: &'connection Arc<CoreMetrics>,
    ) -> Result<LocalPeer<'connection>> {
        if self.ring.is_some() {
            return Err(bad_request("this connection uses a ring already; use another connection"));
        }
        let has_sent_descriptors = self.has_sent_descriptors;
        Ok(LocalPeer { rings: &self.rings, rings_max, metrics, has_sent_descriptors })
    }

    /// Sends the reply and its descriptors in one message.
    pub(crate) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        reply: &mut DescriptorReply,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_write_ready(cx))?;
            let descriptors: Vec<_> = reply.descriptors.iter().map(AsFd::as_fd).collect();
            let send_all = || send(self.socket.as_fd(), bytes, &descriptors);
            match self.socket.try_io(Interest::WRITABLE, send_all) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(count) if count < bytes.len() => {
                    // The kernel takes a few bytes completely or not at all.
                    return Poll::Ready(Err(io::Error::from(io::ErrorKind::WriteZero)));
                }
                Ok(_) => {
                    self.ring = reply.ring.take();
                    self.has_sent_descriptors = true;
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl ServedRing {
    /// The client wrote invalid positions into the ring. The connection ends with this error, so it
    /// is counted once.
    fn broken(&self, error: &Error) -> io::Error {
        self.metrics.ring_faults.add(1);
        io::Error::new(io::ErrorKind::InvalidData, error.to_string())
    }

    /// Waits for the ring: reads the doorbell and registers the ring as a poll source. `Ready`:
    /// check the ring again. After a doorbell the task yields first, because a client may ring
    /// without end.
    fn poll_ready(
        &mut self,
        socket: &mut UnixStream,
        cx: &mut Context<'_>,
        interest: PipeInterest,
    ) -> Poll<io::Result<()>> {
        self.shared.interest.set(interest);
        let mut doorbell = [0; 64];
        let mut into = ReadBuf::new(&mut doorbell);
        match Pin::new(socket).poll_read(cx, &mut into) {
            Poll::Ready(read) => {
                // A reset is an end, too.
                if read.is_err() || into.filled().is_empty() {
                    self.has_socket_ended = true;
                    return Poll::Ready(Ok(()));
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Pending => {
                watch_source(&self.shared, cx);
                Poll::Pending
            }
        }
    }

    fn poll_read(
        &mut self,
        socket: &mut UnixStream,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.shared.end.borrow().wake();
        loop {
            let had_socket_ended = self.has_socket_ended;
            let free = into.initialize_unfilled();
            let read = self.shared.end.borrow_mut().read(free);
            let transfer = read.map_err(|e| self.broken(&e))?;
            if transfer.must_ring_doorbell {
                ring_doorbell(socket.as_fd());
            }
            if transfer.bytes > 0 || had_socket_ended {
                into.advance(transfer.bytes);
                return Poll::Ready(Ok(()));
            }
            let interest = PipeInterest { readable: true, writable: false };
            ready!(self.poll_ready(socket, cx, interest))?;
        }
    }

    fn poll_write(
        &mut self,
        socket: &mut UnixStream,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.shared.end.borrow().wake();
        loop {
            if self.has_socket_ended {
                return Poll::Ready(Err(io::Error::from(io::ErrorKind::BrokenPipe)));
            }
            let written = self.shared.end.borrow_mut().write(bytes);
            let transfer = written.map_err(|e| self.broken(&e))?;
            if transfer.must_ring_doorbell {
                ring_doorbell(socket.as_fd());
            }
            if transfer.bytes > 0 {
                return Poll::Ready(Ok(transfer.bytes));
            }
            // Readable bytes are of no interest here: they would wake the task in a loop.
            let interest = PipeInterest { readable: false, writable: true };
            ready!(self.poll_ready(socket, cx, interest))?;
        }
    }
}

impl AsyncRead for LocalStream {
    #[inline]
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = &mut *self;
        match &mut stream.ring {
            None => Pin::new(&mut stream.socket).poll_read(cx, into),
            Some(ring) => ring.poll_read(&mut stream.socket, cx, into),
        }
    }
}

impl AsyncWrite for LocalStream {
    #[inline]
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let stream = &mut *self;
        match &mut stream.ring {
            None => Pin::new(&mut stream.socket).poll_write(cx, bytes),
            Some(ring) => ring.poll_write(&mut stream.socket, cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    /// Shuts the socket down. The client reads the bytes in the ring before it sees the end.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
