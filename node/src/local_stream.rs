//! The stream of a client at a Unix socket: the socket, and a ring once the client has asked for
//! one. Then bytes go through the ring, and the socket says when to look, and when it is over.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use nearstate_local_transport::{LocalResource, PipeEnd, PipeInterest, ring_doorbell, send};
use nearstate_model::{Error, Result};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;

use crate::core::{Core, CoreMetrics};
use crate::executor::{PollSource, watch_source};

/// How many rings the node has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rings(Arc<AtomicUsize>);

/// A ring that is counted.
#[derive(Debug)]
struct Counted(Rings);

impl Rings {
    fn admit(&self, max: usize) -> Result<Counted> {
        let counted = Counted(self.clone());
        if self.0.fetch_add(1, Ordering::Relaxed) < max {
            return Ok(counted);
        }
        Err(Error::Full {
            detail: format!(
                "the node has {max} rings, as many as it may (limits.rings_max); go on over the \
                 socket"
            ),
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The stream.
#[derive(Debug)]
pub(crate) struct LocalStream {
    socket: UnixStream,
    ring: Option<Ring>,
    rings: Rings,
    is_region_given: bool,
}

#[derive(Debug)]
struct Ring {
    shared: Rc<Shared>,
    /// The socket has ended: what is in the ring is all.
    is_over: bool,
    metrics: Arc<CoreMetrics>,
    _counted: Counted,
}

/// What the connection and the core's list have of a ring.
#[derive(Debug)]
struct Shared {
    end: RefCell<PipeEnd>,
    wants: Cell<PipeInterest>,
    is_registered: Cell<bool>,
}

impl PollSource for Shared {
    #[inline]
    fn is_ready(&self) -> bool {
        self.end.borrow().has(self.wants.get())
    }

    fn arm(&self) -> bool {
        self.end.borrow().fall_asleep(self.wants.get())
    }

    #[inline]
    fn is_registered(&self) -> &Cell<bool> {
        &self.is_registered
    }
}

/// What is about to be given to a client.
#[derive(Debug)]
pub(crate) struct DescriptorReply {
    descriptors: Vec<OwnedFd>,
    ring: Option<Ring>,
}

impl LocalStream {
    pub(crate) fn new(socket: UnixStream, rings: Rings) -> Self {
        Self { socket, ring: None, rings, is_region_given: false }
    }

    /// Makes what a client asks for.
    pub(crate) fn prepare(&mut self, what: LocalResource, core: &Core) -> Result<DescriptorReply> {
        let refused = |detail: &str| Err(Error::BadArgument { detail: detail.to_owned() });
        if self.ring.is_some() {
            return refused("this connection is a ring; ask over another");
        }
        match what {
            // Descriptors on their way to a client that does not read are the node's until then.
            LocalResource::Region if self.is_region_given => {
                refused("this connection was given the region; ask over another")
            }
            LocalResource::Region => {
                let files = core.region().files()?;
                self.is_region_given = true;
                Ok(DescriptorReply { descriptors: vec![files.file, files.liveness], ring: None })
            }
            LocalResource::Ring => {
                let counted = self.rings.admit(core.limits().rings_max)?;
                let (end, memory) = PipeEnd::create()?;
                let shared = Rc::new(Shared {
                    end: RefCell::new(end),
                    wants: Cell::default(),
                    is_registered: Cell::default(),
                });
                let metrics = Arc::clone(core.metrics());
                let ring = Ring { shared, is_over: false, metrics, _counted: counted };
                Ok(DescriptorReply { descriptors: vec![memory], ring: Some(ring) })
            }
        }
    }

    /// Sends the answer, and with it what it gives.
    pub(crate) fn poll_give(
        &mut self,
        cx: &mut Context<'_>,
        answer: &[u8],
        reply: &mut DescriptorReply,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_write_ready(cx))?;
            let descriptors: Vec<_> = reply.descriptors.iter().map(AsFd::as_fd).collect();
            let give = || send(self.socket.as_fd(), answer, &descriptors);
            match self.socket.try_io(Interest::WRITABLE, give) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(bytes) if bytes < answer.len() => {
                    // A few bytes go whole or not at all.
                    return Poll::Ready(Err(io::Error::from(io::ErrorKind::WriteZero)));
                }
                Ok(_) => {
                    self.ring = reply.ring.take();
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl Ring {
    /// The client has written what no client writes. The connection ends with it, so it is counted
    /// once.
    fn broken(&self, error: &Error) -> io::Error {
        self.metrics.ring_faults.add(1);
        io::Error::new(io::ErrorKind::InvalidData, error.to_string())
    }

    /// Nothing can be done now: hears the calls, and looks out. `Ready`: look again. Not asked
    /// twice in one poll if there were calls, for a client may call for ever.
    fn wait(
        &mut self,
        socket: &mut UnixStream,
        cx: &mut Context<'_>,
        interest: PipeInterest,
    ) -> Poll<io::Result<()>> {
        self.shared.wants.set(interest);
        let mut calls = [0; 64];
        let mut into = ReadBuf::new(&mut calls);
        match Pin::new(socket).poll_read(cx, &mut into) {
            Poll::Ready(read) => {
                // An end by force is an end.
                if read.is_err() || into.filled().is_empty() {
                    self.is_over = true;
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
            let was_over = self.is_over;
            let free = into.initialize_unfilled();
            let read = self.shared.end.borrow_mut().read(free);
            let moved = read.map_err(|e| self.broken(&e))?;
            if moved.must_ring_doorbell {
                ring_doorbell(socket.as_fd());
            }
            if moved.bytes > 0 || was_over {
                into.advance(moved.bytes);
                return Poll::Ready(Ok(()));
            }
            ready!(self.wait(socket, cx, PipeInterest { readable: true, writable: false }))?;
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
            if self.is_over {
                return Poll::Ready(Err(io::Error::from(io::ErrorKind::BrokenPipe)));
            }
            let written = self.shared.end.borrow_mut().write(bytes);
            let moved = written.map_err(|e| self.broken(&e))?;
            if moved.must_ring_doorbell {
                ring_doorbell(socket.as_fd());
            }
            if moved.bytes > 0 {
                return Poll::Ready(Ok(moved.bytes));
            }
            // Only room: bytes that nobody reads now would wake the task for ever.
            ready!(self.wait(socket, cx, PipeInterest { readable: false, writable: true }))?;
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
        let line = &mut *self;
        match &mut line.ring {
            None => Pin::new(&mut line.socket).poll_read(cx, into),
            Some(ring) => ring.poll_read(&mut line.socket, cx, into),
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
        let line = &mut *self;
        match &mut line.ring {
            None => Pin::new(&mut line.socket).poll_write(cx, bytes),
            Some(ring) => ring.poll_write(&mut line.socket, cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    /// The end of the socket is the end of the ring: its client reads what is in it first.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
