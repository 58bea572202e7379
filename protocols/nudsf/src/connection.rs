//! A connection: HTTP/2 if the client begins with its preface, HTTP/1.1 otherwise. hyper parses and
//! frames; the node moves the bytes and enforces its limits.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use nearstate_node::executor::{Sleep, sleep};
use nearstate_node::{ConnectionHandler, Consumed, NextAction};

use crate::duplex::{Duplex, DuplexBuffers};
use crate::http2::Http2Server;
use crate::limits::{
    GOAWAY_TIME_MAX, HEAD_BYTES_MAX, HEADERS_MAX, INPUT_HIGH_WATER_BYTES, reply_bytes_min,
};
use crate::reply_body::{CountedBody, HttpConnectionState};
use crate::request_body::RequestBody;
use crate::service::{RequestContext, respond};

/// What an HTTP/2 client sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The service of a connection of HTTP/1.1.
#[derive(Clone)]
struct RequestService(Rc<RequestContext>);

impl Service<Request<Incoming>> for RequestService {
    type Response = Response<CountedBody>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let context = Rc::clone(&self.0);
        let arrived = context.core.clock().now();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let reply = respond(&context, (&head, RequestBody::One(body)), arrived).await;
            Ok(reply.into_response().map(|bytes| CountedBody::new(bytes, &context.state)))
        })
    }
}

/// The protocol of a connection.
enum HttpVersion {
    /// Not known yet: fewer bytes than the preface arrived, and all of them equal it.
    Unknown,
    One(Box<http1::Connection<TokioIo<Duplex>, RequestService>>),
    Two(Box<Http2Server>),
}

/// The handler of one connection.
pub(crate) struct NudsfConnection {
    http: HttpVersion,
    buffers: Rc<RefCell<DuplexBuffers>>,
    context: Rc<RequestContext>,
    state: Rc<HttpConnectionState>,
    /// The time limit of the head of a request of HTTP/1.1, or of the preface, and the number of
    /// requests when it began.
    head_timer: Option<(Sleep, u64)>,
    /// The time that a client of HTTP/2 has to notice that the node ends.
    goaway_timer: Option<Sleep>,
    is_goaway_over: bool,
    /// Responses of HTTP/2 wait for the client: when they are looked at.
    unsent_timer: Option<Sleep>,
}

impl NudsfConnection {
    pub(crate) fn new(context: RequestContext) -> Self {
        let state = Rc::clone(&context.state);
        Self {
            http: HttpVersion::Unknown,
            buffers: Rc::default(),
            context: Rc::new(context),
            state,
            head_timer: None,
            goaway_timer: None,
            is_goaway_over: true,
            unsent_timer: None,
        }
    }

    /// Resets the streams whose client takes the response too slowly, so that each ends in bounded
    /// time. A client that does not read the socket has the time limit of the node.
    fn reset_unsent(&mut self, cx: &mut Context<'_>) {
        let is_over = |timer: &mut Sleep| Pin::new(timer).poll(cx).is_ready();
        if self.unsent_timer.take_if(is_over).is_none() {
            return;
        }
        let clock = self.context.core.clock();
        let now = clock.now();
        if self.state.is_output_full.get() {
            self.state.wait_again(now);
        }
        let limit = self.context.core.limits().reply_timeout;
        let until = now.saturating_sub(clock.ticks(limit));
        self.state.reset_unsent((until, now), reply_bytes_min(limit));
    }

    /// Watches the responses that are not sent, while there are some.
    fn watch_unsent(&mut self, cx: &mut Context<'_>) {
        self.state.is_output_full.set(self.buffers.borrow().is_full);
        if self.state.forget_sent() && self.unsent_timer.is_none() {
            let mut timer = sleep(self.context.core.limits().reply_timeout);
            if Pin::new(&mut timer).poll(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
            self.unsent_timer = Some(timer);
        }
    }

    /// Chooses the protocol once enough bytes have arrived.
    fn choose(&mut self) {
        if !matches!(self.http, HttpVersion::Unknown) {
            return;
        }
        let is_two = {
            let buffers = self.buffers.borrow();
            let begin = buffers.unread().get(..PREFACE.len()).unwrap_or(buffers.unread());
            if begin.is_empty() || (begin.len() < PREFACE.len() && PREFACE.starts_with(begin)) {
                return;
            }
            begin == PREFACE
        };
        let (context, pipe) = (Rc::clone(&self.context), Duplex(Rc::clone(&self.buffers)));
        self.http = if is_two {
            self.head_timer = None;
            HttpVersion::Two(Box::new(Http2Server::new(pipe, context)))
        } else {
            let mut builder = http1::Builder::new();
            builder.max_buf_size(HEAD_BYTES_MAX as usize).max_headers(HEADERS_MAX);
            let service = RequestService(context);
            HttpVersion::One(Box::new(builder.serve_connection(TokioIo::new(pipe), service)))
        };
    }

    /// Starts or ends the timer of a head that arrives slowly. HTTP/2 connections may be idle
    /// between requests, and h2 bounds a head in parts.
    fn update_head_timer(&mut self, cx: &mut Context<'_>) -> bool {
        let is_waiting = !matches!(self.http, HttpVersion::Two(_));
        match &mut self.head_timer {
            Some((timer, started)) if is_waiting && *started == self.state.started.get() => {
                Pin::new(timer).poll(cx).is_ready()
            }
            _ => {
                self.head_timer = None;
                false
            }
        }
    }
}

impl Drop for NudsfConnection {
    fn drop(&mut self) {
        // Streams that h2 keeps alive through each other.
        self.state.reset_all_unsent();
    }
}

impl ConnectionHandler for NudsfConnection {
    fn on_input(&mut self, input: &[u8], _: &mut Vec<u8>) -> Consumed {
        self.buffers.borrow_mut().push(input);
        let is_idle =
            self.state.in_progress.get() == 0 && !matches!(self.http, HttpVersion::Two(_));
        if is_idle && self.head_timer.is_none() {
            let limit = self.context.core.limits().request_timeout;
            self.head_timer = Some((sleep(limit), self.state.started.get()));
        }
        // The node reads nothing more until hyper has read the input.
        let is_full = self.buffers.borrow().unread().len() > INPUT_HIGH_WATER_BYTES;
        let next = if is_full { NextAction::Work } else { NextAction::Read };
        Consumed { bytes: input.len(), next }
    }

    fn poll_progress(&mut self, cx: &mut Context<'_>, output: &mut Vec<u8>) -> Poll<NextAction> {
        self.choose();
        self.state.keep_waker(cx.waker());
        self.reset_unsent(cx);
        let before = self.buffers.borrow().unread().len();
        std::mem::swap(&mut self.buffers.borrow_mut().output, output);
        let ended = match &mut self.http {
            HttpVersion::Unknown => Poll::Pending,
            HttpVersion::One(connection) => Pin::new(connection).poll(cx).map(drop),
            HttpVersion::Two(connection) => connection.poll(cx),
        };
        std::mem::swap(&mut self.buffers.borrow_mut().output, output);
        self.watch_unsent(cx);
        if let Some(timer) = &mut self.goaway_timer
            && Pin::new(timer).poll(cx).is_ready()
        {
            self.goaway_timer = None;
            self.is_goaway_over = true;
        }
        if ended.is_ready() || self.update_head_timer(cx) {
            return Poll::Ready(NextAction::Close);
        }
        let after = self.buffers.borrow().unread().len();
        if before > INPUT_HIGH_WATER_BYTES && after <= INPUT_HIGH_WATER_BYTES {
            return Poll::Ready(NextAction::Read);
        }
        Poll::Pending
    }

    fn begin_drain(&mut self) {
        match &mut self.http {
            HttpVersion::Unknown => {}
            // The response to the request in progress has `Connection: close`.
            HttpVersion::One(connection) => Pin::new(connection.as_mut()).graceful_shutdown(),
            HttpVersion::Two(connection) => {
                connection.begin_end();
                self.goaway_timer = Some(sleep(GOAWAY_TIME_MAX));
                self.is_goaway_over = false;
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.state.open.get() == 0 && self.is_goaway_over
    }

    fn buffered_bytes(&self) -> usize {
        self.buffers.borrow().memory_bytes() + self.state.bytes()
    }
}
