//! A connection: HTTP/2 if the client begins with its preface, HTTP/1.1 otherwise. hyper parses and
//! frames; the node moves the bytes and enforces its limits.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper::{Request, Response};
use nearstate_node::executor::{Sleep, TaskClass, sleep, spawn};
use nearstate_node::{ConnectionHandler, Consumed, NextAction};

use crate::limits::{
    CONNECTION_WINDOW_BYTES, HEAD_BYTES_MAX, HEADERS_MAX, INPUT_HIGH_WATER_BYTES,
    RESET_STREAMS_MAX, STREAM_WINDOW_BYTES, STREAMS_MAX,
};
use crate::pipe::{Pipe, PipeBuffers};
use crate::service::{CountedBody, HttpConnectionState, RequestContext, respond};

/// What an HTTP/2 client sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Runs the streams of HTTP/2 as tasks of the core.
#[derive(Clone, Copy, Debug)]
struct CoreExecutor;

impl<F: Future + 'static> Executor<F> for CoreExecutor {
    fn execute(&self, stream: F) {
        drop(spawn(TaskClass::Request, "nudsf-stream", async move {
            stream.await;
        }));
    }
}

/// The service of a connection.
#[derive(Clone)]
struct RequestService(Rc<RequestContext>);

impl Service<Request<Incoming>> for RequestService {
    type Response = Response<CountedBody>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let context = Rc::clone(&self.0);
        let arrived = context.core.clock().now();
        Box::pin(async move { Ok(respond(context, request, arrived).await) })
    }
}

/// The protocol of a connection.
enum HttpVersion {
    /// Not known yet: fewer bytes than the preface arrived, and all of them equal it.
    Unknown,
    One(Box<http1::Connection<Pipe, RequestService>>),
    Two(Box<http2::Connection<Pipe, RequestService, CoreExecutor>>),
}

/// The handler of one connection.
pub(crate) struct NudsfConnection {
    http: HttpVersion,
    buffers: Rc<RefCell<PipeBuffers>>,
    context: Rc<RequestContext>,
    state: Rc<HttpConnectionState>,
    /// The time limit of the head of a request of HTTP/1.1, or of the preface, and the number of
    /// requests when it began.
    head_timer: Option<(Sleep, u64)>,
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
        let service = RequestService(Rc::clone(&self.context));
        let pipe = Pipe(Rc::clone(&self.buffers));
        self.http = if is_two {
            let mut builder = http2::Builder::new(CoreExecutor);
            builder
                .max_concurrent_streams(STREAMS_MAX)
                .initial_stream_window_size(STREAM_WINDOW_BYTES)
                .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
                .max_header_list_size(HEAD_BYTES_MAX)
                .max_pending_accept_reset_streams(RESET_STREAMS_MAX)
                .max_local_error_reset_streams(RESET_STREAMS_MAX);
            self.head_timer = None;
            HttpVersion::Two(Box::new(builder.serve_connection(pipe, service)))
        } else {
            let mut builder = http1::Builder::new();
            builder.max_buf_size(HEAD_BYTES_MAX as usize).max_headers(HEADERS_MAX);
            HttpVersion::One(Box::new(builder.serve_connection(pipe, service)))
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
        let before = self.buffers.borrow().unread().len();
        std::mem::swap(&mut self.buffers.borrow_mut().output, output);
        let ended = match &mut self.http {
            HttpVersion::Unknown => Poll::Pending,
            HttpVersion::One(connection) => Pin::new(connection).poll(cx).map(drop),
            HttpVersion::Two(connection) => Pin::new(connection).poll(cx).map(drop),
        };
        std::mem::swap(&mut self.buffers.borrow_mut().output, output);
        if ended.is_ready() || self.update_head_timer(cx) {
            return Poll::Ready(NextAction::Close);
        }
        let after = self.buffers.borrow().unread().len();
        if before > INPUT_HIGH_WATER_BYTES && after <= INPUT_HIGH_WATER_BYTES {
            return Poll::Ready(NextAction::Read);
        }
        Poll::Pending
    }

    fn is_idle(&self) -> bool {
        self.state.open.get() == 0
    }

    fn buffered_bytes(&self) -> usize {
        self.buffers.borrow().memory_bytes() + self.state.bytes()
    }
}
