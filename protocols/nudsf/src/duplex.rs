//! The byte streams between the node, which owns the socket, and HTTP, which hyper and h2
//! implement: two buffers in memory.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use nearstate_node::OUTPUT_HIGH_WATER_BYTES;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Buffers above this size are released when they are empty.
const KEPT_BYTES: usize = 16 << 10;

/// The two buffers.
#[derive(Debug, Default)]
pub(crate) struct DuplexBuffers {
    input: Vec<u8>,
    /// The first byte of the input that HTTP has not read.
    at: usize,
    /// The node's output buffer while HTTP is polled.
    pub(crate) output: Vec<u8>,
    /// The output had no room for what HTTP wrote last.
    pub(crate) is_full: bool,
}

impl DuplexBuffers {
    /// Adds input.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.at > 0 && self.at >= self.input.len() / 2 {
            self.input.drain(..self.at);
            self.at = 0;
        }
        self.input.extend_from_slice(bytes);
    }

    /// Input that HTTP has not read.
    pub(crate) fn unread(&self) -> &[u8] {
        self.input.get(self.at..).unwrap_or_default()
    }

    /// The memory of the input.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.input.capacity()
    }

    fn advance(&mut self, bytes: usize) {
        self.at += bytes;
        if self.at >= self.input.len() {
            self.at = 0;
            self.input.clear();
            self.input.shrink_to(KEPT_BYTES);
        }
    }
}

/// The end of the byte streams that HTTP reads and writes. The connection polls HTTP after each
/// change, so that no waker is needed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Duplex(pub(crate) Rc<RefCell<DuplexBuffers>>);

impl AsyncRead for Duplex {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut buffers = self.0.borrow_mut();
        let bytes = buffers.unread().len().min(into.remaining());
        if bytes == 0 {
            return Poll::Pending;
        }
        into.put_slice(buffers.unread().get(..bytes).unwrap_or_default());
        buffers.advance(bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Duplex {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffers = self.0.borrow_mut();
        let room = OUTPUT_HIGH_WATER_BYTES.saturating_sub(buffers.output.len());
        let taken = room.min(bytes.len());
        buffers.is_full = taken < bytes.len();
        if taken == 0 && !bytes.is_empty() {
            return Poll::Pending;
        }
        buffers.output.extend_from_slice(bytes.get(..taken).unwrap_or_default());
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
