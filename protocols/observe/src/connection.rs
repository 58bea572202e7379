//! One client's side: requests in, pages out. A page of metrics is work: it is written in steps,
//! between which the core serves others.

use std::sync::Arc;
use std::task::{Context, Poll};

use nearstate_node::{ConnectionHandler, Consumed, Core, NextAction, OUTPUT_HIGH_WATER_BYTES};

use crate::request::{Parsed, Request, Wish, parse};
use crate::response::{Answer, METRICS, PLAIN};
use crate::source::{Report, Source};

/// What `/` says.
const INDEX: &str = "nearstate\n/metrics  for Prometheus\n/health   200: the process answers\n\
                     /ready    200: requests are served\n";

/// A client's side.
pub(crate) struct Asker {
    source: Arc<dyn Source>,
    core: Core,
    work: Option<Writing>,
}

/// A page of metrics on its way.
struct Writing {
    report: Box<dyn Report>,
    text: String,
    request: Request,
}

impl Asker {
    pub(crate) fn new(source: Arc<dyn Source>, core: Core) -> Self {
        Self { source, core, work: None }
    }

    fn answer(&mut self, request: Request, output: &mut Vec<u8>) -> NextAction {
        let not_ready;
        let (status, body) = match request.wish {
            Wish::Metrics => {
                let report = self.source.report(&self.core);
                self.work = Some(Writing { report, text: String::new(), request });
                return NextAction::Work;
            }
            Wish::Health => ("200 OK", "alive\n"),
            Wish::Index => ("200 OK", INDEX),
            Wish::Elsewhere => ("404 Not Found", INDEX),
            Wish::Otherwise => ("405 Method Not Allowed", "only GET and HEAD\n"),
            Wish::Readiness => match self.source.readiness() {
                Ok(()) => ("200 OK", "ready\n"),
                Err(why) => {
                    not_ready = why + "\n";
                    ("503 Service Unavailable", not_ready.as_str())
                }
            },
        };
        let Request { is_head, is_last, .. } = request;
        Answer { status, kind: PLAIN, body, is_head, is_last }.write(output);
        if is_last { NextAction::Close } else { NextAction::Read }
    }
}

/// The last answer to somebody who does not speak as we do.
fn refuse(status: &'static str, why: &str, output: &mut Vec<u8>) -> NextAction {
    let body = format!("{why}\n");
    let answer = Answer { status, kind: PLAIN, body: &body, is_head: false, is_last: true };
    answer.write(output);
    NextAction::Close
}

impl ConnectionHandler for Asker {
    fn on_input(&mut self, input: &[u8], output: &mut Vec<u8>) -> Consumed {
        let mut taken = 0;
        let mut then = NextAction::Read;
        while then == NextAction::Read && output.len() < OUTPUT_HIGH_WATER_BYTES {
            let rest = input.get(taken..).unwrap_or_default();
            then = match parse(rest) {
                Parsed::Incomplete => break,
                Parsed::Request(request, bytes) => {
                    taken += bytes;
                    self.answer(request, output)
                }
                Parsed::TooLarge => {
                    let why = "the head of a request may have 8 KiB and 64 headers";
                    refuse("431 Request Header Fields Too Large", why, output)
                }
                Parsed::Broken(why) => refuse("400 Bad Request", why, output),
            };
        }
        Consumed { bytes: taken, next: then }
    }

    fn poll_progress(&mut self, _: &mut Context<'_>, output: &mut Vec<u8>) -> Poll<NextAction> {
        let Some(writing) = &mut self.work else { return Poll::Pending };
        if writing.report.step(&mut writing.text) {
            return Poll::Ready(NextAction::Work);
        }
        let Request { is_head, is_last, .. } = writing.request;
        let body = &writing.text;
        Answer { status: "200 OK", kind: METRICS, body, is_head, is_last }.write(output);
        self.work = None;
        Poll::Ready(if is_last { NextAction::Close } else { NextAction::Read })
    }

    fn buffered_bytes(&self) -> usize {
        self.work.as_ref().map_or(0, |writing| writing.text.capacity())
    }
}
