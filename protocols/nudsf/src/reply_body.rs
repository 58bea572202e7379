//! Bodies of responses, and what a connection holds of requests and responses.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use h2::{Reason, SendStream};
use hyper::body::{Body, Buf, Bytes, Frame, SizeHint};

use crate::limits::{
    CONNECTION_BODY_BYTES_MAX, REPLY_FRAME_BYTES, SEARCH_COUNTED_BYTES, STREAM_BYTES,
};
use crate::problem::Problem;

/// The state that a connection shares with its requests.
#[derive(Default)]
pub(crate) struct HttpConnectionState {
    /// Requests that were started, ascending.
    pub(crate) started: Cell<u64>,
    /// Requests in progress.
    pub(crate) in_progress: Cell<usize>,
    /// Bytes of request bodies in memory.
    pub(crate) body_bytes: Cell<usize>,
    /// Bytes of responses that are not sent completely.
    pub(crate) reply_bytes: Cell<usize>,
    /// Bytes of what searches in progress have found.
    search_bytes: Cell<usize>,
    /// Wakes the connection, which reports its memory to the node when it is polled.
    waker: RefCell<Option<Waker>>,
    /// Requests in progress, and responses that are not sent completely.
    pub(crate) open: Cell<usize>,
    /// The output of the connection has no room: its client does not read the socket.
    pub(crate) is_output_full: Cell<bool>,
    /// Streams of HTTP/2 whose last frame waits for the connection or for their window.
    unsent: RefCell<Vec<UnsentStream>>,
    /// The number of the last one.
    unsent_number: Cell<u64>,
}

impl fmt::Debug for HttpConnectionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, replies) = (self.open.get(), self.reply_bytes.get());
        let mut debug = f.debug_struct("HttpConnectionState");
        debug.field("open", &open).field("reply_bytes", &replies).finish_non_exhaustive()
    }
}

/// A stream of HTTP/2 whose response is complete, and not sent.
struct UnsentStream {
    number: u64,
    is_sent: bool,
    /// Bytes of the frame that the client has taken since then.
    taken: usize,
    /// When its last frame began to wait, as a reading of the core's clock.
    since: u64,
    stream: SendStream<ReplyFrame>,
}

impl HttpConnectionState {
    /// The number of the next last frame.
    pub(crate) fn next_unsent(&self) -> u64 {
        let number = self.unsent_number.get() + 1;
        self.unsent_number.set(number);
        number
    }

    /// Keeps a stream whose last frame, of this number, was given to HTTP.
    pub(crate) fn keep_unsent(&self, number: u64, since: u64, stream: SendStream<ReplyFrame>) {
        let mut unsent = self.unsent.borrow_mut();
        let last = unsent.last().map_or(0, |last| last.number);
        // Others may have ended while a long one was sent.
        let place = if last < number {
            unsent.len()
        } else {
            unsent.partition_point(|other| other.number < number)
        };
        unsent.insert(place, UnsentStream { number, is_sent: false, taken: 0, since, stream });
    }

    /// The stream of a frame that HTTP has dropped is not dropped here: h2 holds its lock.
    fn mark_sent(&self, number: u64) {
        self.with_unsent(number, |stream| stream.is_sent = true);
    }

    fn with_unsent(&self, number: u64, change: impl FnOnce(&mut UnsentStream)) {
        let mut unsent = self.unsent.borrow_mut();
        if let Ok(index) = unsent.binary_search_by_key(&number, |stream| stream.number)
            && let Some(stream) = unsent.get_mut(index)
        {
            change(stream);
        }
    }

    /// Forgets the streams that are sent, when h2 is not polled. True if some are left.
    pub(crate) fn forget_sent(&self) -> bool {
        let mut unsent = self.unsent.borrow_mut();
        unsent.retain(|stream| !stream.is_sent);
        !unsent.is_empty()
    }

    /// Resets the streams whose last frame has waited since this reading or longer. One of which
    /// the client has taken so many bytes meanwhile waits again.
    pub(crate) fn reset_unsent(&self, (until, now): (u64, u64), bytes_min: usize) {
        let is_stalled = |stream: &mut UnsentStream| {
            let is_old = stream.since <= until;
            if is_old && std::mem::take(&mut stream.taken) >= bytes_min {
                stream.since = now;
                return false;
            }
            is_old
        };
        let stalled: Vec<_> = self.unsent.borrow_mut().extract_if(.., is_stalled).collect();
        for mut unsent in stalled {
            unsent.stream.send_reset(Reason::CANCEL);
        }
    }

    /// Resets all streams whose last frame waits.
    pub(crate) fn reset_all_unsent(&self) {
        for mut unsent in self.unsent.take() {
            unsent.stream.send_reset(Reason::CANCEL);
        }
    }

    /// The client has not read the socket: all waited for that.
    pub(crate) fn wait_again(&self, now: u64) {
        self.unsent.borrow_mut().iter_mut().for_each(|stream| stream.since = now);
    }

    /// The memory of requests, searches and responses, with that of their streams.
    pub(crate) fn bytes(&self) -> usize {
        let bodies = self.body_bytes.get() + self.reply_bytes.get();
        bodies + self.search_bytes.get() + self.open.get() * STREAM_BYTES
    }

    /// Keeps what wakes the connection.
    pub(crate) fn keep_waker(&self, waker: &Waker) {
        let mut known = self.waker.borrow_mut();
        if known.as_ref().is_none_or(|known| !known.will_wake(waker)) {
            *known = Some(waker.clone());
        }
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

/// The memory of a search in progress, which counts for its connection until this is dropped. A
/// search is a task of its own: when it has grown, the connection is woken, so that the node
/// compares the memory of the core with its limit.
#[derive(Debug)]
pub(crate) struct SearchMemory<'s> {
    state: &'s HttpConnectionState,
    /// Keys that are kept so that none is found twice.
    seen: Cell<usize>,
    /// What the request keeps of the records that were found.
    kept: Cell<usize>,
    /// The bytes when the connection was last woken.
    reported: Cell<usize>,
}

impl<'s> SearchMemory<'s> {
    pub(crate) fn new(state: &'s HttpConnectionState) -> Self {
        let (seen, kept, reported) = Default::default();
        Self { state, seen, kept, reported }
    }

    /// The search has so many bytes of keys.
    pub(crate) fn set_seen(&self, bytes: usize) {
        self.set(&self.seen, bytes);
    }

    /// The request keeps so many bytes of what was found.
    pub(crate) fn set_kept(&self, bytes: usize) {
        self.set(&self.kept, bytes);
    }

    fn set(&self, part: &Cell<usize>, bytes: usize) {
        let before = part.replace(bytes);
        self.state.search_bytes.set(self.state.search_bytes.get() - before + bytes);
        let now = self.seen.get() + self.kept.get();
        if now >= self.reported.get() + SEARCH_COUNTED_BYTES {
            self.reported.set(now);
            if let Some(waker) = &*self.state.waker.borrow() {
                waker.wake_by_ref();
            }
        }
    }
}

impl Drop for SearchMemory<'_> {
    fn drop(&mut self) {
        let left = self.state.search_bytes.get() - self.seen.get() - self.kept.get();
        self.state.search_bytes.set(left);
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
    last: Option<LastFrame>,
    /// Of a body in several frames: the bytes of it that the client has taken.
    taken: Option<Rc<Cell<usize>>>,
}

/// Tells the connection that the last frame of a response is sent, or its stream was reset.
#[derive(Debug)]
struct LastFrame {
    open: OpenStream,
    number: u64,
}

impl Drop for LastFrame {
    fn drop(&mut self) {
        self.open.0.mark_sent(self.number);
    }
}

impl ReplyFrame {
    /// A whole body, whose last frame has this number.
    pub(crate) fn new(bytes: Bytes, number: u64, state: &Rc<HttpConnectionState>) -> Self {
        let counted = CountedBytes::new(bytes.len(), state);
        let last = LastFrame { open: OpenStream::new(state), number };
        Self { bytes, counted, last: Some(last), taken: None }
    }

    /// The first bytes that HTTP may take at once, and the rest, if there are more.
    pub(crate) fn split(mut self) -> (Self, Option<Self>) {
        if self.bytes.len() <= REPLY_FRAME_BYTES {
            return (self, None);
        }
        let bytes = self.bytes.split_to(REPLY_FRAME_BYTES);
        let taken = Some(Rc::clone(self.taken.get_or_insert_default()));
        let counted = self.counted.split(bytes.len());
        (Self { counted, bytes, last: None, taken }, Some(self))
    }

    /// The bytes of this body that the client has taken since the last call.
    pub(crate) fn bytes_taken(&self) -> usize {
        self.taken.as_ref().map_or(0, |taken| taken.take())
    }

    /// The client has taken a part of the frame.
    #[cold]
    fn count_taken(&self, bytes: usize) {
        if let Some(taken) = &self.taken {
            taken.set(taken.get() + bytes);
        }
        if let Some(LastFrame { open, number }) = &self.last {
            open.0.with_unsent(*number, |stream| stream.taken += bytes);
        }
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
        // A frame that is sent completely is dropped, which tells as much.
        if bytes > 0 && !self.bytes.is_empty() {
            self.count_taken(bytes);
        }
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
