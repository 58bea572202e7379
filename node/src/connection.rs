//! One client's connection: reads requests, lets the handler answer them, writes the replies, and
//! enforces the limits. A task of its core for as long as the connection lasts.
//!
//! A connection is in one [`ConnectionPhase`]. In every phase it first writes its output, and then
//! does what the phase says:
//!
//! ```text
//! phase                action                                    transitions
//! Reading              poll the handler, then handle buffered    work_started => Working
//!                      input, then read                          descriptors_requested
//!                                                                  => SendingDescriptors
//!                                                                close_requested => Closing
//! Working              poll the handler, as background work;     work_finished => Reading
//!                      read ahead if it may wait for ever
//!                                                                descriptors_requested,
//!                                                                close_requested
//! SendingDescriptors   send one reply with descriptors           descriptors_finished => Reading
//! Closing              shut the write side down                  shutdown_sent => Lingering
//! Lingering            discard input                             (ends)
//! ```
//!
//! A limit that is exceeded (`limit_exceeded`), and a client that does not authenticate in time,
//! lead from each of the first three phases to Closing, with an error reply as the last output. The
//! connection ends with a [`ConnectionEnd`]:
//!
//! - `Closed` in any phase, when the client closes its side or the stream fails; in Reading also
//!   when the node drains and the connection is idle; in Lingering after [`LINGER`].
//! - `SlowReader` in any phase, when the client reads nothing for `reply_timeout`, the output
//!   exceeds its limit, or the handler ends the connection while output waits.
//! - `RequestTimeout` in Reading, when too few bytes of an incomplete request arrive in a period of
//!   `request_timeout`.
//!
//! While the client does not read its replies, the connection reads nothing either. In Reading the
//! handler is polled nevertheless, so that messages of other clients are delivered up to the limit.
//!
//! A read takes at most 64 KiB into memory of the core, so an idle connection owns no buffer. All
//! replies to a read are written together.

mod working;
mod buffers;
mod phase;

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nearstate_model::{Error, Result, invariant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::endpoint_context::{EndpointContext, READ_BYTES};
use crate::executor::{Sleep, TaskClass, become_class, is_due, sleep};
use crate::local_stream::{DescriptorReply, LocalStream};
use crate::protocol::{
    CloseReason, ConnectionHandler, Consumed, ForcedClose, LimitExceeded, NextAction,
    OUTPUT_HIGH_WATER_BYTES, PeerIdentity,
};
use buffers::{InputBuffer, OutputBuffer, RequestTimer};
use phase::ConnectionPhase;

/// How long a connection lingers after the node shut its side down: long enough for the last reply
/// to arrive.
const LINGER: Duration = Duration::from_secs(1);

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionEnd {
    /// The client or the handler closed it, or the stream failed.
    Closed,
    /// The client did not read its replies.
    SlowReader,
    /// The client did not complete a request in time.
    RequestTimeout,
}

struct ServedConnection<S> {
    stream: S,
    /// The stream as one that can carry descriptors, if it can.
    local: fn(&mut S) -> Option<&mut LocalStream>,
    handler: Box<dyn ConnectionHandler>,
    endpoint: Rc<EndpointContext>,
    phase: ConnectionPhase,
    input: InputBuffer,
    output: OutputBuffer,
    /// The reply of the phase `SendingDescriptors`, once the handler has made it.
    descriptor_reply: Option<(Vec<u8>, DescriptorReply)>,
    /// The timer of the phases Closing and Lingering.
    close_timer: Option<Sleep>,
    /// Set while the client has to authenticate.
    auth_timer: Option<Sleep>,
    /// The limit that the client exceeded, to be reported at the end.
    close_reason: Option<CloseReason>,
    /// The bytes of this connection in the core's total.
    bytes_buffered: usize,
    is_draining: bool,
}

/// Serves a client until the connection ends.
pub(crate) async fn serve<S>(endpoint: Rc<EndpointContext>, stream: S, peer: PeerIdentity)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    serve_stream(endpoint, stream, peer, |_| None).await;
}

/// As [`serve`], for a stream that can carry descriptors and continue over a ring.
pub(crate) async fn serve_local(
    endpoint: Rc<EndpointContext>,
    stream: LocalStream,
    peer: PeerIdentity,
) {
    serve_stream(endpoint, stream, peer, |stream| Some(stream)).await;
}

async fn serve_stream<S>(
    endpoint: Rc<EndpointContext>,
    stream: S,
    peer: PeerIdentity,
    local: fn(&mut S) -> Option<&mut LocalStream>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let handler = endpoint.accept(&peer);
    let mut connection = ServedConnection {
        stream,
        local,
        handler,
        endpoint,
        phase: ConnectionPhase::Reading,
        input: InputBuffer::default(),
        output: OutputBuffer::default(),
        descriptor_reply: None,
        close_timer: None,
        auth_timer: None,
        close_reason: None,
        bytes_buffered: 0,
        is_draining: false,
    };
    let end = poll_fn(|cx| connection.poll(cx)).await;
    let metrics = connection.endpoint.core().metrics();
    let reason = match end {
        ConnectionEnd::Closed => connection.close_reason,
        ConnectionEnd::SlowReader => {
            metrics.slow_clients.add(1);
            Some(CloseReason::SlowReader)
        }
        ConnectionEnd::RequestTimeout => {
            metrics.request_timeouts.add(1);
            Some(CloseReason::HalfSent)
        }
    };
    if let Some(reason) = reason {
        let address = peer.address;
        connection.endpoint.report_forced_close(&ForcedClose { address, reason });
    }
}

impl<S> Drop for ServedConnection<S> {
    fn drop(&mut self) {
        self.endpoint.update_buffered(self.bytes_buffered, 0);
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> ServedConnection<S> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionEnd> {
        if self.endpoint.is_draining() && !std::mem::replace(&mut self.is_draining, true) {
            self.handler.begin_drain();
        }
        let end = self.run(cx);
        if end.is_pending() {
            self.release_buffers();
            if self.account_buffers() && self.check_authentication(cx) {
                return end;
            }
            // The next poll sends the error reply.
            cx.waker().wake_by_ref();
        }
        end
    }

    /// Writes the output and acts by phase, until the connection waits or its time slice is over.
    fn run(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionEnd> {
        let mut is_first_round = true;
        loop {
            if self.output.is_over_limit {
                return Poll::Ready(ConnectionEnd::SlowReader);
            }
            match self.write_output(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(end)) => return Poll::Ready(end),
                Poll::Pending => return self.wait_for_reader(cx),
            }
            if !is_first_round && is_due() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            is_first_round = false;
            let end = match self.phase {
                ConnectionPhase::Reading => ready!(self.poll_reading(cx)),
                ConnectionPhase::Working => ready!(self.poll_working(cx)),
                ConnectionPhase::SendingDescriptors => ready!(self.poll_sending_descriptors(cx)),
                ConnectionPhase::Closing => ready!(self.poll_closing(cx)),
                ConnectionPhase::Lingering => Some(ready!(self.poll_lingering(cx))),
            };
            if let Some(end) = end {
                return Poll::Ready(end);
            }
        }
    }

    /// Reading: messages of other clients, then requests. `Ready(None)`: output, or another phase.
    fn poll_reading(&mut self, cx: &mut Context<'_>) -> Poll<Option<ConnectionEnd>> {
        match self.poll_handler(cx) {
            Poll::Ready(NextAction::Read) | Poll::Pending => {}
            Poll::Ready(next) => {
                self.follow(next);
                return Poll::Ready(None);
            }
        }
        if !self.output.is_empty() {
            return Poll::Ready(None);
        }
        if self.input.is_handled_again {
            self.handle_buffered();
            return Poll::Ready(None);
        }
        match self.read_requests(cx) {
            Poll::Ready(Ok(0) | Err(_)) => Poll::Ready(Some(ConnectionEnd::Closed)),
            Poll::Ready(Ok(_)) => Poll::Ready(None),
            Poll::Pending => self.wait_for_request(cx),
        }
    }

    /// `SendingDescriptors`: the handler makes the reply once; the stream sends it in one message.
    fn poll_sending_descriptors(&mut self, cx: &mut Context<'_>) -> Poll<Option<ConnectionEnd>> {
        let made = self.descriptor_reply.take().or_else(|| self.make_descriptor_reply());
        let Some((bytes, mut reply)) = made else {
            self.phase = self.phase.descriptors_finished();
            return Poll::Ready(None);
        };
        let sent = match (self.local)(&mut self.stream) {
            Some(stream) => stream.poll_send(cx, &bytes, &mut reply),
            None => unreachable!("only a local peer makes a descriptor reply"),
        };
        match sent {
            Poll::Ready(Ok(())) => {
                self.output.write_timer = None;
                self.output.requested_at = 0;
                self.phase = self.phase.descriptors_finished();
                Poll::Ready(None)
            }
            Poll::Ready(Err(_)) => Poll::Ready(Some(ConnectionEnd::Closed)),
            Poll::Pending => {
                self.descriptor_reply = Some((bytes, reply));
                self.poll_write_timer(cx).map(Some)
            }
        }
    }

    /// Lets the handler make the reply with descriptors. `None`: its output is an error reply.
    fn make_descriptor_reply(&mut self) -> Option<(Vec<u8>, DescriptorReply)> {
        let core = self.endpoint.core();
        let peer = if self.input.unconsumed() > 0 {
            // After the switch to a ring, bytes that follow on the socket would be lost.
            Err(bad_request("send nothing after this request before its reply has arrived"))
        } else {
            match (self.local)(&mut self.stream) {
                Some(stream) => stream.peer(core.limits().rings_max, core.metrics()),
                None => Err(bad_request("this request needs a connection to a Unix socket")),
            }
        };
        let mut bytes = Vec::new();
        let peer = match &peer {
            Ok(peer) => Ok(peer),
            Err(error) => Err(error.clone()),
        };
        let reply = self.handler.send_descriptors(peer, &mut bytes);
        if reply.is_none() {
            self.borrow_output();
            self.output.bytes.extend_from_slice(&bytes);
        }
        reply.map(|reply| (bytes, reply))
    }

    /// Closing: shuts the write side down. TLS writes its last message if the client leaves room.
    fn poll_closing(&mut self, cx: &mut Context<'_>) -> Poll<Option<ConnectionEnd>> {
        if Pin::new(&mut self.stream).poll_shutdown(cx).is_pending() {
            let timer = self.close_timer.get_or_insert_with(|| sleep(LINGER));
            return Pin::new(timer).poll(cx).map(|()| Some(ConnectionEnd::Closed));
        }
        self.phase = self.phase.shutdown_sent();
        self.close_timer = Some(sleep(LINGER));
        self.input.clear();
        Poll::Ready(None)
    }

    /// Lingering: discards input until the client closes its side, or [`LINGER`] is over.
    fn poll_lingering(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionEnd> {
        let timer = self.close_timer.get_or_insert_with(|| sleep(LINGER));
        if Pin::new(timer).poll(cx).is_ready() {
            return Poll::Ready(ConnectionEnd::Closed);
        }
        let mut scratch = self.endpoint.borrow_scratch();
        let read = self.read_into(&mut scratch, cx);
        self.endpoint.return_scratch(scratch);
        match read {
            Poll::Ready(Ok(bytes)) if bytes > 0 => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(_) => Poll::Ready(ConnectionEnd::Closed),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Changes the phase as the handler asks.
    #[inline]
    fn follow(&mut self, next: NextAction) {
        self.phase = match (next, self.phase) {
            (NextAction::Read, ConnectionPhase::Working) => self.phase.work_finished(),
            (NextAction::Read, phase) => phase,
            (NextAction::Work, phase) => {
                become_class(TaskClass::Background);
                phase.work_started()
            }
            (NextAction::Close, phase) => phase.close_requested(),
            (NextAction::SendDescriptors, phase) => phase.descriptors_requested(),
        };
    }

    fn poll_handler(&mut self, cx: &mut Context<'_>) -> Poll<NextAction> {
        self.borrow_output();
        let next = self.handler.poll_progress(cx, &mut self.output.bytes);
        self.check_output_limit();
        if matches!(next, Poll::Ready(NextAction::Work)) {
            become_class(TaskClass::Background);
        }
        next
    }

    /// Reads once and lets the handler answer. Returns the number of bytes that were read.
    fn read_requests(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<usize>> {
        let mut scratch = self.endpoint.borrow_scratch();
        let read = self.read_into(&mut scratch, cx);
        if let Poll::Ready(Ok(bytes)) = read
            && bytes > 0
        {
            self.output.requested_at = self.endpoint.core().clock().now();
            let Some(received) = scratch.get(..bytes) else {
                invariant!("a read fills at most its buffer");
            };
            let max = self.endpoint.core().limits().input_bytes_max;
            if self.input.is_empty() {
                let consumed = self.handle(received);
                let remaining = received.get(consumed..).unwrap_or_default();
                if !remaining.is_empty() {
                    self.input.append(remaining, max);
                    self.check_input_limit();
                }
            } else {
                self.input.append(received, max);
                self.handle_buffered();
            }
        }
        self.endpoint.return_scratch(scratch);
        read
    }

    fn read_into(
        &mut self,
        scratch: &mut [u8],
        cx: &mut Context<'_>,
    ) -> Poll<std::io::Result<usize>> {
        let mut into = ReadBuf::new(scratch);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut into))?;
        let bytes = into.filled().len();
        if bytes > 0 {
            let metrics = self.endpoint.core().metrics();
            metrics.reads.add(1);
            metrics.bytes_read.add(bytes as u64);
        }
        Poll::Ready(Ok(bytes))
    }

    /// Lets the handler continue with the buffered input.
    fn handle_buffered(&mut self) {
        let (bytes, start) = self.input.take();
        let Some(input) = bytes.get(start..) else {
            invariant!("input starts inside its buffer");
        };
        let consumed = self.handle(input);
        self.input.restore(bytes, consumed);
        self.check_input_limit();
    }

    /// Lets the handler answer requests. Returns the number of bytes that it consumed.
    fn handle(&mut self, input: &[u8]) -> usize {
        self.borrow_output();
        let Consumed { bytes, next } = self.handler.on_input(input, &mut self.output.bytes);
        invariant!(bytes <= input.len(), "a handler consumes at most its input");
        self.input.is_handled_again = bytes > 0 && bytes < input.len();
        if bytes > 0 {
            self.input.request_timer = None;
        }
        self.follow(next);
        self.check_output_limit();
        bytes
    }

    /// Closes the connection if an incomplete request exceeds the size limit.
    fn check_input_limit(&mut self) {
        let max = self.endpoint.core().limits().input_bytes_max;
        let is_incomplete = !self.input.is_handled_again && self.phase == ConnectionPhase::Reading;
        if is_incomplete && self.input.unconsumed() > max {
            self.endpoint.core().metrics().too_large.add(1);
            self.exceed(&LimitExceeded::RequestTooLarge { max });
        }
    }

    fn check_output_limit(&mut self) {
        self.output.check_limit(self.endpoint.core().limits().output_bytes_max);
    }

    /// The client exceeded a limit: replies with the protocol's error and closes.
    fn exceed(&mut self, limit: &LimitExceeded) {
        self.input.clear();
        self.input.is_handled_again = false;
        self.output.bytes.extend_from_slice(&self.endpoint.limit_error(limit));
        self.phase = self.phase.limit_exceeded();
        self.close_reason = match limit {
            LimitExceeded::TooManyConnections { .. } => None,
            LimitExceeded::RequestTooLarge { .. } => Some(CloseReason::TooLarge),
            LimitExceeded::OutOfMemory { .. } => Some(CloseReason::OutOfMemory),
            LimitExceeded::AuthTimeout { .. } => Some(CloseReason::Unauthenticated),
        };
    }

    /// Writes and flushes the output. `Pending`: the stream is full.
    fn write_output(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectionEnd>> {
        if self.output.is_empty() && self.output.unflushed == 0 {
            return Poll::Ready(Ok(()));
        }
        while !self.output.unsent().is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, self.output.unsent())) {
                Ok(0) | Err(_) => return Poll::Ready(Err(ConnectionEnd::Closed)),
                Ok(bytes) => {
                    self.output.advance(bytes);
                    let metrics = self.endpoint.core().metrics();
                    metrics.writes.add(1);
                    metrics.bytes_written.add(bytes as u64);
                }
            }
        }
        if ready!(Pin::new(&mut self.stream).poll_flush(cx)).is_err() {
            return Poll::Ready(Err(ConnectionEnd::Closed));
        }
        self.output.finish();
        if self.output.requested_at > 0 {
            let core = self.endpoint.core();
            let ticks = core.clock().now().saturating_sub(self.output.requested_at);
            core.metrics().response_nanos.record(core.clock().nanos(ticks));
            self.output.requested_at = 0;
        }
        Poll::Ready(Ok(()))
    }

    /// The client does not read. In Reading, messages of other clients are delivered all the same.
    fn wait_for_reader(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionEnd> {
        self.input.request_timer = None;
        if self.handler.poll_end(cx).is_ready() {
            return Poll::Ready(ConnectionEnd::SlowReader);
        }
        if self.phase == ConnectionPhase::Reading {
            self.output.compact();
            match self.poll_handler(cx) {
                // The client could not receive the last reply.
                Poll::Ready(NextAction::Close) => return Poll::Ready(ConnectionEnd::SlowReader),
                Poll::Ready(next) => self.follow(next),
                Poll::Pending => {}
            }
        }
        self.poll_write_timer(cx)
    }

    fn poll_write_timer(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionEnd> {
        let timeout = self.endpoint.core().limits().reply_timeout;
        Pin::new(self.output.write_timer(timeout)).poll(cx).map(|()| ConnectionEnd::SlowReader)
    }

    /// The client has sent nothing, or an incomplete request, which must make progress.
    fn wait_for_request(&mut self, cx: &mut Context<'_>) -> Poll<Option<ConnectionEnd>> {
        if self.input.is_empty() {
            self.input.request_timer = None;
            if self.endpoint.is_draining() && self.handler.is_idle() {
                return Poll::Ready(Some(ConnectionEnd::Closed));
            }
            return Poll::Pending;
        }
        let limits = self.endpoint.core().limits();
        let arrived = self.input.unconsumed();
        let start =
            |bytes_before| RequestTimer { bytes_before, sleep: sleep(limits.request_timeout) };
        let timer = self.input.request_timer.get_or_insert_with(|| start(0));
        while Pin::new(&mut timer.sleep).poll(cx).is_ready() {
            if arrived.saturating_sub(timer.bytes_before) < limits.request_progress_min() {
                return Poll::Ready(Some(ConnectionEnd::RequestTimeout));
            }
            *timer = start(arrived);
        }
        Poll::Pending
    }

    /// Takes the core's output buffer, unless the connection has one.
    fn borrow_output(&mut self) {
        if self.output.bytes.capacity() == 0 {
            self.output.bytes = self.endpoint.borrow_output();
        }
    }

    /// Before the connection waits: returns an empty output buffer, and shrinks large buffers.
    fn release_buffers(&mut self) {
        if self.output.is_empty() && self.output.bytes.capacity() > 0 {
            self.endpoint.return_output(std::mem::take(&mut self.output.bytes));
        }
        self.input.shrink();
        self.output.shrink();
    }

    /// Updates the core's total of buffered bytes. `false`: the total exceeds its limit, and the
    /// connection is about to be closed.
    fn account_buffers(&mut self) -> bool {
        let bytes =
            self.input.capacity() + self.output.bytes.capacity() + self.handler.buffered_bytes();
        let has_grown = bytes > self.bytes_buffered;
        let total = self.endpoint.update_buffered(self.bytes_buffered, bytes);
        self.bytes_buffered = bytes;
        let max = self.endpoint.core().limits().core_bytes_max;
        if !has_grown || total <= max || self.is_ending() {
            return true;
        }
        self.endpoint.core().metrics().out_of_memory.add(1);
        self.exceed(&LimitExceeded::OutOfMemory { max });
        if self.output.bytes.capacity() > OUTPUT_HIGH_WATER_BYTES + READ_BYTES {
            // The replies themselves are too large: they are dropped, with the error reply.
            self.output.discard();
        }
        false
    }

    fn is_ending(&self) -> bool {
        matches!(self.phase, ConnectionPhase::Closing | ConnectionPhase::Lingering)
    }

    /// `false`: the client has to authenticate and did not in time, and the connection is about to
    /// be closed.
    fn check_authentication(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.handler.is_unauthenticated() || self.is_ending() {
            self.auth_timer = None;
            return true;
        }
        let max = self.endpoint.core().limits().auth_timeout;
        let timer = self.auth_timer.get_or_insert_with(|| sleep(max));
        if Pin::new(timer).poll(cx).is_pending() {
            return true;
        }
        self.endpoint.core().metrics().auth_timeouts.add(1);
        self.exceed(&LimitExceeded::AuthTimeout { max });
        false
    }
}

fn bad_request(detail: &str) -> Error {
    Error::BadArgument { detail: detail.to_owned() }
}
