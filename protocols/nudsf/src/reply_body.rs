//! Bodies of responses, and what a connection holds of requests and responses.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use hyper::body::{Body, Buf, Bytes, Frame, SizeHint};

use crate::limits::{CONNECTION_BODY_BYTES_MAX, REPLY_FRAME_BYTES, STREAM_BYTES};
use crate::problem::Problem;

/// The state that a connection shares with its requests.
#[derive(Debug, Default)]
pub(crate) struct HttpConnectionState {
    /// Requests that were started, ascending.
    pub(crate) started: Cell<u64>,
    /// Requests in progress.
    pub(crate) in_progress: Cell<usize>,
    /// Bytes of request bodies in memory.
    pub(crate) body_bytes: Cell<usize>,
    /// Bytes of responses that are not sent completely.
    pub(crate) reply_bytes: Cell<usize>,
    /// Requests in progress, and responses that are not sent completely.
    pub(crate) open: Cell<usize>,
}

impl HttpConnectionState {
    /// The memory of requests and responses, with that of their streams.
    pub(crate) fn bytes(&self) -> usize {
        self.body_bytes.get() + self.reply_bytes.get() + self.open.get() * STREAM_BYTES
    }

    /// Fails if the connection has too many unread responses for one of this many bytes.
    ///
    /// # Errors
    /// 503.
    pub(crate) fn check_reply(&self, bytes: usize) -> Result<(), Problem> {
        let others = self.reply_bytes.get();
        if others > 0 && others + bytes > CONNECTION_BODY_BYTES_MAX {
            let detail = "the connection has too many large responses that it has not read";
            return Err(Problem::busy(detail));
        }
        Ok(())
    }
}

/// Counts a stream of a connection until it is dropped.
#[derive(Debug)]
struct OpenStream(Rc<HttpConnectionState>);

impl OpenStream {
    fn new(state: &Rc<HttpConnectionState>) -> Self {
        state.open.set(state.open.get() + 1);
        Self(Rc::clone(state))
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get().saturating_sub(1));
    }
}

/// Bytes of a response that count for its connection until this is dropped.
#[derive(Debug)]
pub(crate) struct CountedBytes {
    bytes: usize,
    state: Rc<HttpConnectionState>,
}

impl CountedBytes {
    pub(crate) fn new(bytes: usize, state: &Rc<HttpConnectionState>) -> Self {
        state.reply_bytes.set(state.reply_bytes.get() + bytes);
        Self { bytes, state: Rc::clone(state) }
    }

    /// Counts some of the bytes for themselves.
    fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { bytes, state: Rc::clone(&self.state) }
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        let left = self.state.reply_bytes.get().saturating_sub(self.bytes);
        self.state.reply_bytes.set(left);
    }
}

/// The body of a response of HTTP/1.1, which counts for its connection until it is sent or dropped.
/// A client that does not read has only so many.
pub(crate) struct CountedBody {
    bytes: Option<Bytes>,
    _counted: CountedBytes,
    _open: OpenStream,
}

impl CountedBody {
    pub(crate) fn new(bytes: Bytes, state: &Rc<HttpConnectionState>) -> Self {
        let counted = CountedBytes::new(bytes.len(), state);
        let bytes = Some(bytes).filter(|bytes| !bytes.is_empty());
        Self { bytes, _counted: counted, _open: OpenStream::new(state) }
    }
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(bytes) = &mut self.bytes else { return Poll::Ready(None) };
        // Flow control holds a frame back as a whole: the rest of the body stays countable.
        let frame = bytes.split_to(bytes.len().min(REPLY_FRAME_BYTES));
        if bytes.is_empty() {
            self.bytes = None;
        }
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, Bytes::len) as u64)
    }
}

/// A part of the body of a response of HTTP/2, which counts for its connection until all of it is
/// in the output of the connection, or its stream was reset.
#[derive(Debug)]
pub(crate) struct ReplyFrame {
    bytes: Bytes,
    counted: CountedBytes,
    /// Of the last frame.
    _open: Option<OpenStream>,
}

impl ReplyFrame {
    /// A whole body.
    pub(crate) fn new(bytes: Bytes, state: &Rc<HttpConnectionState>) -> Self {
        let counted = CountedBytes::new(bytes.len(), state);
        Self { bytes, counted, _open: Some(OpenStream::new(state)) }
    }

    /// The first bytes that HTTP may take at once, and the rest, if there are more.
    pub(crate) fn split(mut self) -> (Self, Option<Self>) {
        if self.bytes.len() <= REPLY_FRAME_BYTES {
            return (self, None);
        }
        let bytes = self.bytes.split_to(REPLY_FRAME_BYTES);
        (Self { counted: self.counted.split(bytes.len()), bytes, _open: None }, Some(self))
    }
}

impl Buf for ReplyFrame {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, bytes: usize) {
        self.bytes.advance(bytes);
    }
}

/// Counts a request and its body until it ends, in whatever way.
pub(crate) struct RequestGuard {
    state: Rc<HttpConnectionState>,
    /// Bytes of the body.
    pub(crate) bytes: usize,
    _open: OpenStream,
}

impl RequestGuard {
    pub(crate) fn new(state: &Rc<HttpConnectionState>) -> Self {
        state.started.set(state.started.get() + 1);
        state.in_progress.set(state.in_progress.get() + 1);
        Self { state: Rc::clone(state), bytes: 0, _open: OpenStream::new(state) }
    }

    /// Adds bytes of the body. False: the connection has too many.
    pub(crate) fn add(&mut self, bytes: usize) -> bool {
        let total = self.state.body_bytes.get() + bytes;
        if total > CONNECTION_BODY_BYTES_MAX {
            return false;
        }
        self.bytes += bytes;
        self.state.body_bytes.set(total);
        true
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.state.in_progress.set(self.state.in_progress.get().saturating_sub(1));
        self.state.body_bytes.set(self.state.body_bytes.get().saturating_sub(self.bytes));
    }
}
