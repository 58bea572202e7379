//! HTTP connection. The metrics page is written in steps between which the core serves other
//! clients.

use std::sync::Arc;
use std::task::{Context, Poll};

use nearstate_node::{ConnectionHandler, Consumed, Core, NextAction, OUTPUT_HIGH_WATER_BYTES};

use crate::request::{HttpParseResult, HttpRequest, RequestTarget, parse};
use crate::response::{HttpResponse, METRICS, PLAIN};
use crate::source::{MetricsReport, ObserveSource};

/// Body of `/`.
const INDEX: &str = "nearstate\n/metrics  for Prometheus\n/health   200: the process answers\n\
                     /ready    200: requests are served\n";

/// Handler of one connection.
pub(crate) struct ObserveConnection {
    source: Arc<dyn ObserveSource>,
    core: Core,
    work: Option<MetricsResponse>,
}

/// A metrics page that is being written.
struct MetricsResponse {
    report: Box<dyn MetricsReport>,
    text: String,
    request: HttpRequest,
}

impl ObserveConnection {
    pub(crate) fn new(source: Arc<dyn ObserveSource>, core: Core) -> Self {
        Self { source, core, work: None }
    }

    fn respond(&mut self, request: HttpRequest, output: &mut Vec<u8>) -> NextAction {
        let not_ready;
        let (status, body) = match request.target {
            RequestTarget::Metrics => {
                let report = self.source.report(&self.core);
                self.work = Some(MetricsResponse { report, text: String::new(), request });
                return NextAction::Work;
            }
            RequestTarget::Health => ("200 OK", "alive\n"),
            RequestTarget::Index => ("200 OK", INDEX),
            RequestTarget::UnknownPath => ("404 Not Found", INDEX),
            RequestTarget::UnsupportedMethod => ("405 Method Not Allowed", "only GET and HEAD\n"),
            RequestTarget::Readiness => match self.source.readiness() {
                Ok(()) => ("200 OK", "ready\n"),
                Err(why) => {
                    not_ready = why + "\n";
                    ("503 Service Unavailable", not_ready.as_str())
                }
            },
        };
        let HttpRequest { is_head, is_last, .. } = request;
        HttpResponse { status, kind: PLAIN, body, is_head, is_last }.write(output);
        if is_last { NextAction::Close } else { NextAction::Read }
    }
}

/// Writes an error response after which the connection closes.
fn refuse(status: &'static str, why: &str, output: &mut Vec<u8>) -> NextAction {
    let body = format!("{why}\n");
    let respond = HttpResponse { status, kind: PLAIN, body: &body, is_head: false, is_last: true };
    respond.write(output);
    NextAction::Close
}

impl ConnectionHandler for ObserveConnection {
    fn on_input(&mut self, input: &[u8], output: &mut Vec<u8>) -> Consumed {
        let mut taken = 0;
        let mut then = NextAction::Read;
        while then == NextAction::Read && output.len() < OUTPUT_HIGH_WATER_BYTES {
            let rest = input.get(taken..).unwrap_or_default();
            then = match parse(rest) {
                HttpParseResult::Incomplete => break,
                HttpParseResult::Request(request, bytes) => {
                    taken += bytes;
                    self.respond(request, output)
                }
                HttpParseResult::TooLarge => {
                    let why = "the head of a request may have 8 KiB and 64 headers";
                    refuse("431 Request Header Fields Too Large", why, output)
                }
                HttpParseResult::Invalid(why) => refuse("400 Bad Request", why, output),
            };
        }
        Consumed { bytes: taken, next: then }
    }

    fn poll_progress(&mut self, _: &mut Context<'_>, output: &mut Vec<u8>) -> Poll<NextAction> {
        let Some(writing) = &mut self.work else { return Poll::Pending };
        if writing.report.step(&mut writing.text) {
            return Poll::Ready(NextAction::Work);
        }
        let HttpRequest { is_head, is_last, .. } = writing.request;
        let body = &writing.text;
        HttpResponse { status: "200 OK", kind: METRICS, body, is_head, is_last }.write(output);
        self.work = None;
        Poll::Ready(if is_last { NextAction::Close } else { NextAction::Read })
    }

    fn buffered_bytes(&self) -> usize {
        self.work.as_ref().map_or(0, |writing| writing.text.capacity())
    }
}
