//! HTTP/2: h2 frames, and a request is answered while its connection is polled. One that has to
//! wait, for its body, for another writer or for its window, becomes a task of the core.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use h2::server::{Builder, Connection, Handshake, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use hyper::{Method, Request};
use nearstate_node::executor::{TaskClass, is_due, spawn, timeout};

use crate::duplex::Duplex;
use crate::limits::{
    CONNECTION_WINDOW_BYTES, HEAD_BYTES_MAX, RESET_STREAMS_MAX, STREAM_SEND_BYTES,
    STREAM_WINDOW_BYTES, STREAMS_MAX, reply_bytes_min,
};
use crate::reply_body::ReplyFrame;
use crate::request_body::RequestBody;
use crate::service::{RequestContext, respond};

/// A connection.
pub(crate) struct Http2Server {
    state: Http2State,
    context: Rc<RequestContext>,
    is_ending: bool,
    /// The memory of a request that has ended, for the next one.
    spare: Option<Box<dyn StreamSlot>>,
}

/// The memory of the future of a request, of some kilobytes, which serves one after the other.
trait StreamSlot {
    fn begin(&mut self, stream: NewStream);
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

/// A request, how to answer it, and when it arrived.
struct NewStream {
    context: Rc<RequestContext>,
    request: Request<RecvStream>,
    respond: SendResponse<ReplyFrame>,
    arrived: u64,
}

/// The slot of futures that `serve` makes.
struct FutureSlot<F, S> {
    future: Pin<Box<Option<F>>>,
    serve: S,
}

impl<F: Future<Output = ()>, S: Fn(NewStream) -> F> StreamSlot for FutureSlot<F, S> {
    fn begin(&mut self, stream: NewStream) {
        self.future.set(Some((self.serve)(stream)));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let polled = self.future.as_mut().as_pin_mut().map_or(Poll::Ready(()), |it| it.poll(cx));
        if polled.is_ready() {
            self.future.set(None);
        }
        polled
    }
}

fn new_slot<F: Future<Output = ()> + 'static>(
    serve: impl Fn(NewStream) -> F + 'static,
) -> Box<dyn StreamSlot> {
    Box::new(FutureSlot { future: Box::pin(None), serve })
}

enum Http2State {
    Handshake(Handshake<Duplex, ReplyFrame>),
    Open(Connection<Duplex, ReplyFrame>),
}

impl Http2Server {
    pub(crate) fn new(pipe: Duplex, context: Rc<RequestContext>) -> Self {
        let handshake = Builder::new()
            .max_concurrent_streams(STREAMS_MAX)
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_header_list_size(HEAD_BYTES_MAX)
            .max_send_buffer_size(STREAM_SEND_BYTES)
            .max_pending_accept_reset_streams(RESET_STREAMS_MAX)
            .max_local_error_reset_streams(Some(RESET_STREAMS_MAX))
            .handshake(pipe);
        Self { state: Http2State::Handshake(handshake), context, is_ending: false, spare: None }
    }

    /// Tells the client that the connection ends (GOAWAY): it sends no further requests, and
    /// [`Self::poll`] is ready once those in progress are answered.
    pub(crate) fn begin_end(&mut self) {
        self.is_ending = true;
        if let Http2State::Open(connection) = &mut self.state {
            connection.graceful_shutdown();
        }
    }

    /// Reads and writes frames, and answers requests. `Ready`: the connection has ended.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match &mut self.state {
                Http2State::Handshake(handshake) => match ready!(Pin::new(handshake).poll(cx)) {
                    Ok(mut connection) => {
                        if self.is_ending {
                            connection.graceful_shutdown();
                        }
                        self.state = Http2State::Open(connection);
                    }
                    Err(_) => return Poll::Ready(()),
                },
                Http2State::Open(connection) => match ready!(connection.poll_accept(cx)) {
                    Some(Ok((request, respond))) => {
                        let context = Rc::clone(&self.context);
                        let arrived = context.core.clock().now();
                        let new = NewStream { context, request, respond, arrived };
                        begin(&mut self.spare, new);
                    }
                    Some(Err(_)) | None => return Poll::Ready(()),
                },
            }
        }
    }
}

/// Answers a request as far as that is possible now. The rest is a task.
fn begin(spare: &mut Option<Box<dyn StreamSlot>>, new: NewStream) {
    let mut slot = spare.take().unwrap_or_else(|| new_slot(serve_stream));
    slot.begin(new);
    // A task is polled when it begins, so nothing needs the waker of this poll.
    let mut cx = Context::from_waker(Waker::noop());
    if !is_due() && slot.poll(&mut cx).is_ready() {
        *spare = Some(slot);
        return;
    }
    drop(spawn(TaskClass::Request, "nudsf-stream", poll_fn(move |cx| slot.poll(cx))));
}

async fn serve_stream(new: NewStream) {
    let NewStream { context, request, respond: mut stream, arrived } = new;
    let (head, body) = request.into_parts();
    let is_head = head.method == Method::HEAD;
    let reply = {
        let mut reply = pin!(respond(&context, (&head, RequestBody::Two(body)), arrived));
        poll_fn(|cx| match reply.as_mut().poll(cx) {
            Poll::Ready(reply) => Poll::Ready(Some(reply)),
            // The client resets the stream, or the connection has ended.
            Poll::Pending => stream.poll_reset(cx).map(|_| None),
        })
        .await
    };
    let Some(reply) = reply else { return };
    let (head, body) = reply.into_head(context.date());
    // A response to HEAD has no content (RFC 9110, section 9.3.2).
    let is_last = body.is_empty() || is_head;
    let Ok(mut sender) = stream.send_response(head, is_last) else {
        stream.send_reset(Reason::INTERNAL_ERROR);
        return;
    };
    if is_last {
        return;
    }
    let number = context.state.next_unsent();
    let mut rest = Some(ReplyFrame::new(body, number, &context.state));
    while let Some(body) = rest {
        let (frame, after) = body.split();
        rest = after;
        // The first frame waits in HTTP, where it is counted; the others wait here.
        if sender.send_data(frame, rest.is_none()).is_err() {
            return;
        }
        if let Some(rest) = &rest
            && !has_window(&context, &mut sender, rest).await
        {
            return;
        }
    }
    context.state.keep_unsent(number, context.core.clock().now(), sender);
}

/// Waits until the frame before is sent, and the client accepts more. False: the stream has ended,
/// or has ended now because the client takes too few bytes of it in `limits.reply_timeout`,
/// although it reads what the connection sends.
async fn has_window(
    context: &RequestContext,
    sender: &mut SendStream<ReplyFrame>,
    rest: &ReplyFrame,
) -> bool {
    sender.reserve_capacity(1);
    let period = context.core.limits().reply_timeout;
    rest.bytes_taken();
    loop {
        let window = poll_fn(|cx| {
            while sender.capacity() == 0 {
                match ready!(sender.poll_capacity(cx)) {
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return Poll::Ready(false),
                }
            }
            Poll::Ready(true)
        });
        match timeout(period, window).await {
            Some(has_window) => return has_window,
            None if rest.bytes_taken() >= reply_bytes_min(period) => {}
            None if context.state.is_output_full.get() => {}
            None => {
                sender.send_reset(Reason::CANCEL);
                return false;
            }
        }
    }
}
