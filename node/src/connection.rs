//! One client's connection: bytes in, bytes out, bounds. A task of its core for as long as it
//! lasts.
//!
//! ```text
//!      +------------------------------- all sent -------------------------------+
//!      v                                                                        |
//!   what happens by itself -> the input that is left, or a read -> hear -> send -+
//!      |                         |                                         |
//!   Work: again, as background   nothing there: wait for the client        client does not read:
//!   work, until Listen           (in mid-request with a time-out)          wait, read nothing more
//! ```
//!
//! A read takes what has come, 64 KB at most, into memory of the core; so a connection that waits
//! for its client keeps no buffer. All answers to it leave in one write.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nearstate_local_transport::LocalResource;
use nearstate_model::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::endpoint_context::{EndpointContext, READ_BYTES};
use crate::executor::{Sleep, TaskClass, become_class, is_due, sleep};
use crate::local_stream::{DescriptorReply, LocalStream};
use crate::protocol::{
    CloseReason, ConnectionHandler, ForcedClose, LimitExceeded, NextAction,
    OUTPUT_HIGH_WATER_BYTES, Peer,
};

/// How long a connection that we close waits for the client to close its side, so that the last
/// answer arrives. Bytes that nobody has read would make the kernel cut the connection and drop
/// the answer with it.
const LINGER: Duration = Duration::from_secs(1);

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Client or handler have closed it, or the socket has failed.
    Over,
    /// The client did not read.
    Slow,
    /// The client did not finish a request.
    HalfSent,
}

/// A request that is not whole yet.
struct Half {
    since: u64,
    alarm: Sleep,
}

struct Connection<S> {
    stream: S,
    /// The stream, if it can give a client what is near.
    near: fn(&mut S) -> Option<&mut LocalStream>,
    /// What the client has asked for and is about to be given.
    reply: Option<(Vec<u8>, DescriptorReply)>,
    handler: Box<dyn ConnectionHandler>,
    endpoint: Rc<EndpointContext>,
    then: NextAction,
    /// What has come and was not taken, from `taken` on.
    input: Vec<u8>,
    taken: usize,
    /// The handler took something and left something: ask it again.
    is_to_hear: bool,
    /// Answers, from `sent` on not sent yet.
    output: Vec<u8>,
    sent: usize,
    /// Bytes that the stream itself may still hold: TLS does.
    unflushed: usize,
    /// When the answers that are not sent yet were asked for; 0 if nobody did.
    asked_at: u64,
    half: Option<Half>,
    /// Set while the client does not read, or before we close.
    retry_policy: Option<Sleep>,
    is_lingering: bool,
    /// Set when the client was refused.
    refused: Option<CloseReason>,
    /// More answers are waiting than may.
    is_flooded: bool,
    /// Bytes that the core has noted for this connection.
    kept: usize,
}

/// Serves a client until one of both has enough.
pub(crate) async fn serve<S>(endpoint: Rc<EndpointContext>, stream: S, peer: Peer)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    serve_over(endpoint, stream, peer, |_| None).await;
}

/// The same, for one that may come near.
pub(crate) async fn serve_near(endpoint: Rc<EndpointContext>, line: LocalStream, peer: Peer) {
    serve_over(endpoint, line, peer, |line| Some(line)).await;
}

async fn serve_over<S>(
    endpoint: Rc<EndpointContext>,
    stream: S,
    peer: Peer,
    near: fn(&mut S) -> Option<&mut LocalStream>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let handler = endpoint.accept(&peer);
    let mut connection = Connection {
        stream,
        near,
        reply: None,
        handler,
        endpoint,
        then: NextAction::Read,
        input: Vec::new(),
        taken: 0,
        is_to_hear: false,
        output: Vec::new(),
        sent: 0,
        unflushed: 0,
        asked_at: 0,
        half: None,
        retry_policy: None,
        is_lingering: false,
        refused: None,
        is_flooded: false,
        kept: 0,
    };
    let end = poll_fn(|cx| connection.poll(cx)).await;
    let metrics = connection.endpoint.core().metrics();
    let reason = match end {
        End::Over => connection.refused,
        End::Slow => {
            metrics.slow_clients.add(1);
            Some(CloseReason::SlowReader)
        }
        End::HalfSent => {
            metrics.half_sent.add(1);
            Some(CloseReason::HalfSent)
        }
    };
    if let Some(reason) = reason {
        connection.endpoint.report_forced_close(&ForcedClose { address: peer.address, reason });
    }
}

impl<S> Drop for Connection<S> {
    fn drop(&mut self) {
        self.endpoint.update_buffered(self.kept, 0);
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let end = self.go_on(cx);
        if end.is_pending() {
            self.put_away();
            if self.note_kept() {
                return end;
            }
            // The next call sends the refusal.
            cx.waker().wake_by_ref();
        }
        end
    }

    fn go_on(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let mut has_turned = false;
        loop {
            if self.is_flooded {
                return Poll::Ready(End::Slow);
            }
            match self.send(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(end)) => return Poll::Ready(end),
                Poll::Pending => return self.wait_for_reader(cx),
            }
            if has_turned && is_due() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            has_turned = true;
            match self.then {
                NextAction::Close => return self.linger(cx),
                NextAction::Work => ready!(self.work(cx)),
                NextAction::Near(what) => {
                    if let Some(end) = ready!(self.give(what, cx)) {
                        return Poll::Ready(end);
                    }
                }
                NextAction::Read => {
                    if let Some(end) = ready!(self.listen(cx)) {
                        return Poll::Ready(end);
                    }
                }
            }
        }
    }

    /// Lets work go on by one step. `Ready`: something is to be sent, or the work is over.
    fn work(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.poll_progress(cx) {
            Poll::Ready(NextAction::Work) => {
                become_class(TaskClass::Background);
                // What there is to send is sent first; the rest of the work is for the next poll.
                cx.waker().wake_by_ref();
                if self.output.is_empty() { Poll::Pending } else { self.send_between(cx) }
            }
            Poll::Ready(then) => {
                become_class(TaskClass::Request);
                self.then = then;
                Poll::Ready(())
            }
            Poll::Pending if self.output.is_empty() => Poll::Pending,
            Poll::Pending => Poll::Ready(()),
        }
    }

    /// Sends what a step of work has made, and gives way. Errors show with the next poll.
    fn send_between(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.send(cx) {
            Poll::Ready(Ok(())) => Poll::Pending,
            Poll::Pending | Poll::Ready(Err(_)) => Poll::Ready(()),
        }
    }

    /// Gives the client what it has asked for, or lets the handler say why not.
    fn give(&mut self, what: LocalResource, cx: &mut Context<'_>) -> Poll<Option<End>> {
        let (answer, mut reply) = match self.reply.take() {
            Some(begun) => begun,
            None => match self.prepare(what) {
                Ok(reply) => {
                    let mut answer = Vec::new();
                    self.handler.near(what, None, &mut answer);
                    (answer, reply)
                }
                Err(why) => {
                    self.borrow_output();
                    self.handler.near(what, Some(&why), &mut self.output);
                    self.then = NextAction::Read;
                    return Poll::Ready(None);
                }
            },
        };
        let given = match (self.near)(&mut self.stream) {
            Some(line) => line.poll_give(cx, &answer, &mut reply),
            None => Poll::Ready(Err(std::io::Error::from(std::io::ErrorKind::Unsupported))),
        };
        match given {
            Poll::Ready(Ok(())) => {
                self.retry_policy = None;
                self.asked_at = 0;
                self.then = NextAction::Read;
                Poll::Ready(None)
            }
            Poll::Ready(Err(_)) => Poll::Ready(Some(End::Over)),
            Poll::Pending => {
                self.reply = Some((answer, reply));
                let unread_max = self.endpoint.core().limits().unread_max;
                let retry_policy = self.retry_policy.get_or_insert_with(|| sleep(unread_max));
                Pin::new(retry_policy).poll(cx).map(|()| Some(End::Slow))
            }
        }
    }

    fn prepare(&mut self, what: LocalResource) -> Result<DescriptorReply, Error> {
        let refused = |detail: &str| Err(Error::BadArgument { detail: detail.to_owned() });
        if self.input.len() > self.taken {
            // It would be heard, and what follows it on the socket would not.
            return refused("send nothing behind this request before its answer has come");
        }
        match (self.near)(&mut self.stream) {
            Some(line) => line.prepare(what, self.endpoint.core()),
            None => refused("this works over a Unix socket only: connect to the node's"),
        }
    }

    /// What happens by itself, then what the client says. `Ready(None)`: there may be something to
    /// send.
    fn listen(&mut self, cx: &mut Context<'_>) -> Poll<Option<End>> {
        match self.poll_progress(cx) {
            Poll::Ready(NextAction::Read) | Poll::Pending => {}
            Poll::Ready(then) => {
                self.then = then;
                return Poll::Ready(None);
            }
        }
        if !self.output.is_empty() {
            return Poll::Ready(None);
        }
        if self.is_to_hear {
            self.hear_again();
            return Poll::Ready(None);
        }
        match self.read(cx) {
            Poll::Ready(Ok(0) | Err(_)) => Poll::Ready(Some(End::Over)),
            Poll::Ready(Ok(_)) => Poll::Ready(None),
            Poll::Pending => self.wait_for_request(cx),
        }
    }

    /// Reads once, and lets the handler hear it. Returns how many bytes have come.
    fn read(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<usize>> {
        let mut scratch = self.endpoint.borrow_scratch();
        let read = self.read_into(&mut scratch, cx);
        if let Poll::Ready(Ok(bytes)) = read
            && bytes > 0
        {
            self.asked_at = self.endpoint.core().clock().now();
            let come = scratch.get(..bytes).unwrap_or_default();
            if self.input.is_empty() {
                let taken = self.on_input(come);
                let rest = come.get(taken..).unwrap_or_default();
                if !rest.is_empty() {
                    self.keep(rest);
                    self.judge_input();
                }
            } else {
                self.keep(come);
                self.hear_again();
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

    /// Lets the handler hear what it has left.
    fn hear_again(&mut self) {
        let input = std::mem::take(&mut self.input);
        let taken = self.on_input(input.get(self.taken..).unwrap_or_default());
        self.input = input;
        self.taken += taken;
        if self.taken >= self.input.len() {
            self.input = Vec::new();
            self.taken = 0;
        }
        self.judge_input();
    }

    /// Returns how much was taken.
    fn on_input(&mut self, input: &[u8]) -> usize {
        self.borrow_output();
        let consumed = self.handler.on_input(input, &mut self.output);
        debug_assert!(consumed.bytes <= input.len(), "a handler takes what it was given");
        let taken = consumed.bytes.min(input.len());
        self.is_to_hear = taken > 0 && taken < input.len();
        if taken > 0 {
            self.half = None;
        }
        self.follow(consumed.next);
        self.judge_output();
        taken
    }

    fn follow(&mut self, then: NextAction) {
        self.then = then;
        if then == NextAction::Work {
            become_class(TaskClass::Background);
        }
    }

    fn poll_progress(&mut self, cx: &mut Context<'_>) -> Poll<NextAction> {
        self.borrow_output();
        let happened = self.handler.poll_progress(cx, &mut self.output);
        self.judge_output();
        if let Poll::Ready(then) = happened
            && self.then != NextAction::Close
        {
            if then == NextAction::Work {
                become_class(TaskClass::Background);
            }
            return Poll::Ready(then);
        }
        if self.then == NextAction::Close { Poll::Ready(NextAction::Close) } else { Poll::Pending }
    }

    /// Keeps bytes that were not taken.
    fn keep(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.input.drain(..self.taken);
            self.taken = 0;
        }
        let max = self.endpoint.core().limits().input_bytes_max;
        let needed = self.input.len() + bytes.len();
        if needed > self.input.capacity() {
            // Grows by halves, but not past the bound: what is needed passes it by a read at most.
            let wanted = needed.max((needed + needed / 2).min(max));
            self.input.reserve_exact(wanted - self.input.len());
        }
        self.input.extend_from_slice(bytes);
    }

    /// A request that is larger than allowed ends the handler.
    fn judge_input(&mut self) {
        let max = self.endpoint.core().limits().input_bytes_max;
        if !self.is_to_hear && self.then == NextAction::Read && self.input.len() - self.taken > max
        {
            self.endpoint.core().metrics().too_large.add(1);
            self.refuse(&LimitExceeded::RequestTooLarge { max });
        }
    }

    /// So do answers that the client does not read.
    fn judge_output(&mut self) {
        if self.output.len() > self.endpoint.core().limits().output_bytes_max {
            self.is_flooded = true;
        }
    }

    fn refuse(&mut self, why: &LimitExceeded) {
        self.input = Vec::new();
        self.taken = 0;
        self.is_to_hear = false;
        self.output.extend_from_slice(&self.endpoint.limit_error(why));
        self.then = NextAction::Close;
        self.refused = match why {
            LimitExceeded::TooManyConnections { .. } => None,
            LimitExceeded::RequestTooLarge { .. } => Some(CloseReason::TooLarge),
            LimitExceeded::OutOfMemory { .. } => Some(CloseReason::OutOfMemory),
        };
    }

    /// Sends what there is. `Pending`: the socket is full.
    fn send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        if self.output.is_empty() && self.unflushed == 0 {
            return Poll::Ready(Ok(()));
        }
        while self.sent < self.output.len() {
            let rest = self.output.get(self.sent..).unwrap_or_default();
            match ready!(Pin::new(&mut self.stream).poll_write(cx, rest)) {
                Ok(0) | Err(_) => return Poll::Ready(Err(End::Over)),
                Ok(bytes) => {
                    self.sent += bytes;
                    self.unflushed += bytes;
                    self.retry_policy = None;
                    let metrics = self.endpoint.core().metrics();
                    metrics.writes.add(1);
                    metrics.bytes_written.add(bytes as u64);
                }
            }
        }
        if ready!(Pin::new(&mut self.stream).poll_flush(cx)).is_err() {
            return Poll::Ready(Err(End::Over));
        }
        self.unflushed = 0;
        self.retry_policy = None;
        self.output.clear();
        self.sent = 0;
        if self.asked_at > 0 {
            let core = self.endpoint.core();
            let ticks = core.clock().now().saturating_sub(self.asked_at);
            core.metrics().response_nanos.record(core.clock().nanos(ticks));
            self.asked_at = 0;
        }
        Poll::Ready(Ok(()))
    }

    /// The client does not read. Messages of others go on as far as they fit; requests and work
    /// wait.
    fn wait_for_reader(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        self.half = None;
        if self.then == NextAction::Read {
            self.output.drain(..self.sent);
            self.sent = 0;
            match self.poll_progress(cx) {
                // It would have to be told, and it does not read.
                Poll::Ready(NextAction::Close) => return Poll::Ready(End::Slow),
                Poll::Ready(then @ (NextAction::Work | NextAction::Near(_))) => self.then = then,
                Poll::Ready(NextAction::Read) | Poll::Pending => {}
            }
        }
        let unread_max = self.endpoint.core().limits().unread_max;
        let retry_policy = self.retry_policy.get_or_insert_with(|| sleep(unread_max));
        Pin::new(retry_policy).poll(cx).map(|()| End::Slow)
    }

    /// The client has said nothing, or half of something.
    fn wait_for_request(&mut self, cx: &mut Context<'_>) -> Poll<Option<End>> {
        if self.input.is_empty() {
            self.half = None;
            if self.endpoint.is_draining() {
                return Poll::Ready(Some(End::Over));
            }
            return Poll::Pending;
        }
        let core = self.endpoint.core();
        let max = core.limits().half_sent(self.input.len());
        let now = core.clock().now();
        let half = self.half.get_or_insert_with(|| Half { since: now, alarm: sleep(max) });
        while Pin::new(&mut half.alarm).poll(cx).is_ready() {
            let left = max.saturating_sub(core.clock().time(now.saturating_sub(half.since)));
            if left.is_zero() {
                return Poll::Ready(Some(End::HalfSent));
            }
            half.alarm = sleep(left);
        }
        Poll::Pending
    }

    /// All is said and sent. Waits until the client has closed as well, for a moment.
    fn linger(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        if !self.is_lingering {
            if Pin::new(&mut self.stream).poll_shutdown(cx).is_pending() {
                // The last words of TLS find no room: the client does not read.
                let retry_policy = self.retry_policy.get_or_insert_with(|| sleep(LINGER));
                return Pin::new(retry_policy).poll(cx).map(|()| End::Over);
            }
            self.is_lingering = true;
            self.retry_policy = Some(sleep(LINGER));
            self.input = Vec::new();
            self.taken = 0;
        }
        if let Some(retry_policy) = &mut self.retry_policy
            && Pin::new(retry_policy).poll(cx).is_ready()
        {
            return Poll::Ready(End::Over);
        }
        let mut scratch = self.endpoint.borrow_scratch();
        let read = self.read_into(&mut scratch, cx);
        self.endpoint.return_scratch(scratch);
        match read {
            Poll::Ready(Ok(bytes)) if bytes > 0 => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(_) => Poll::Ready(End::Over),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Takes the core's buffer for answers, unless there are answers in one.
    fn borrow_output(&mut self) {
        if self.output.capacity() == 0 {
            self.output = self.endpoint.borrow_output();
        }
    }

    /// Before waiting: buffers that hold nothing go back, those that hold little shrink.
    fn put_away(&mut self) {
        if self.output.is_empty() && self.output.capacity() > 0 {
            self.endpoint.return_output(std::mem::take(&mut self.output));
        }
        for buffer in [&mut self.input, &mut self.output] {
            if buffer.capacity() > READ_BYTES && buffer.capacity() / 4 > buffer.len() {
                buffer.shrink_to_fit();
            }
        }
    }

    /// Notes how much memory the connection keeps while it waits. `false`: the core has no more,
    /// and the connection is about to be closed.
    fn note_kept(&mut self) -> bool {
        let kept = self.input.capacity() + self.output.capacity() + self.handler.buffered_bytes();
        let is_more = kept > self.kept;
        let total = self.endpoint.update_buffered(self.kept, kept);
        self.kept = kept;
        let max = self.endpoint.core().limits().core_bytes_max;
        if !is_more || total <= max || self.then == NextAction::Close {
            return true;
        }
        self.endpoint.core().metrics().out_of_memory.add(1);
        self.refuse(&LimitExceeded::OutOfMemory { max });
        if self.output.capacity() > OUTPUT_HIGH_WATER_BYTES + READ_BYTES {
            // The answers are what is too much: the client gets none of the rest.
            self.output = Vec::new();
            self.sent = 0;
        }
        false
    }
}
