//! One request: head, body, operation, response.

use std::cell::{Cell, RefCell};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use nearstate_node::executor::{Sleep, sleep, timeout};
use nearstate_node::{ConnectionLimits, Core};
use nearstate_store::{Receipt, now_ms};

use crate::call::Call;
use crate::limits::{
    BODY_BYTES_MAX, BODY_STEP_BYTES, CONNECTION_BODY_BYTES_MAX, REPLY_FRAME_BYTES, STREAM_BYTES,
};
use crate::load::CoreLoad;
use crate::operations::execute;
use crate::problem::Problem;
use crate::reply::Reply;
use crate::repository::Repository;
use crate::sbi::{SbiHeaders, timed_out};
use crate::table::NudsfOperation;
use crate::target::{self, NudsfTarget};
use crate::token::Grant;

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
}

/// Counts a stream of a connection until it is dropped.
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
struct CountedBytes {
    bytes: usize,
    state: Rc<HttpConnectionState>,
}

impl CountedBytes {
    fn new(bytes: usize, state: &Rc<HttpConnectionState>) -> Self {
        state.reply_bytes.set(state.reply_bytes.get() + bytes);
        Self { bytes, state: Rc::clone(state) }
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        let left = self.state.reply_bytes.get().saturating_sub(self.bytes);
        self.state.reply_bytes.set(left);
    }
}

/// The body of a response, which counts for its connection until it is sent or dropped. A client
/// that does not read has only so many.
pub(crate) struct CountedBody {
    bytes: Option<Bytes>,
    _counted: CountedBytes,
    _open: OpenStream,
}

impl CountedBody {
    fn new(bytes: Bytes, state: &Rc<HttpConnectionState>) -> Self {
        let counted = CountedBytes::new(bytes.len(), state);
        let bytes = Some(bytes).filter(|bytes| !bytes.is_empty());
        Self { bytes, _counted: counted, _open: OpenStream::new(state) }
    }

    /// The reply to send: 503 instead of a body with which the connection has too many.
    fn admitted(reply: Reply, state: &HttpConnectionState) -> Reply {
        let others = state.reply_bytes.get();
        if others > 0 && others + reply.body_bytes() > CONNECTION_BODY_BYTES_MAX {
            let detail = "the connection has too many large responses that it has not read";
            return Reply::problem(&Problem::busy(detail));
        }
        reply
    }
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
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

/// What a connection needs to serve requests.
pub(crate) struct RequestContext {
    pub(crate) repository: Rc<Repository>,
    pub(crate) core: Core,
    pub(crate) state: Rc<HttpConnectionState>,
    /// `http` or `https`.
    pub(crate) scheme: &'static str,
    /// The last valid token of the connection: clients send one many times.
    pub(crate) grant: RefCell<Option<(HeaderValue, Grant)>>,
    pub(crate) load: Rc<CoreLoad>,
}

impl RequestContext {
    /// Checks the access token of a request, if tokens are required.
    async fn authorize(&self, headers: &HeaderMap, scope: &str) -> Result<(), Problem> {
        let Some(keys) = &self.repository.settings.tokens else { return Ok(()) };
        let (given, now_ms) = (headers.get(AUTHORIZATION), now_ms());
        if let Some((known, grant)) = &*self.grant.borrow()
            && Some(known) == given
            && grant.is_current(now_ms)
        {
            return grant.check(scope);
        }
        let grant = keys.verify(headers, now_ms).await?;
        let checked = grant.check(scope);
        *self.grant.borrow_mut() = given.map(|given| (given.clone(), grant));
        checked
    }
}

/// Counts a request and its body until it ends, in whatever way.
struct RequestGuard {
    state: Rc<HttpConnectionState>,
    bytes: usize,
    _open: OpenStream,
}

impl RequestGuard {
    fn new(state: &Rc<HttpConnectionState>) -> Self {
        state.started.set(state.started.get() + 1);
        state.in_progress.set(state.in_progress.get() + 1);
        Self { state: Rc::clone(state), bytes: 0, _open: OpenStream::new(state) }
    }

    /// Adds bytes of the body. False: the connection has too many.
    fn add(&mut self, bytes: usize) -> bool {
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

/// Answers a request that arrived at this reading of the core's clock.
pub(crate) async fn respond(
    context: Rc<RequestContext>,
    request: Request<Incoming>,
    arrived: u64,
) -> Response<CountedBody> {
    let mut guard = RequestGuard::new(&context.state);
    context.core.metrics().requests.add(1);
    let mut operation = None;
    let done = serve(&context, request, (&mut guard, &mut operation), arrived).await;
    let reply = done.unwrap_or_else(|problem| Reply::problem(&problem));
    let reply = CountedBody::admitted(reply, &context.state);
    context.repository.metrics.count(operation, reply.status.as_u16());
    reply.into_response().map(|bytes| CountedBody::new(bytes, &context.state))
}

async fn serve(
    context: &RequestContext,
    request: Request<Incoming>,
    (guard, operation): (&mut RequestGuard, &mut Option<usize>),
    arrived: u64,
) -> Result<Reply, Problem> {
    let (head, body) = request.into_parts();
    let target = target::parse(&head.method, &head.uri)?;
    *operation = Some(target.spec.operation as usize);
    let clock = context.core.clock();
    let waited = clock.time(clock.now().saturating_sub(arrived));
    let sbi = SbiHeaders::parse(&head.headers, waited, now_ms());
    context.load.probe(&context.core);
    context.load.admit(sbi.priority, context.repository.settings.overload_delay)?;
    context.authorize(&head.headers, target.spec.scope).await?;
    let execution = execute_request(context, (&head, body), &target, guard);
    match sbi.remaining {
        None => execution.await,
        Some(Duration::ZERO) => Err(timed_out()),
        // Dropping an operation is what the end of a connection does: a transaction has committed
        // or it has not, and 504 does not tell which.
        Some(remaining) => timeout(remaining, execution).await.unwrap_or_else(|| Err(timed_out())),
    }
}

async fn execute_request(
    context: &RequestContext,
    (head, body): (&Parts, Incoming),
    target: &NudsfTarget<'_>,
    guard: &mut RequestGuard,
) -> Result<Reply, Problem> {
    let authority = head.uri.authority().map(hyper::http::uri::Authority::as_str);
    let host = || head.headers.get(hyper::header::HOST).and_then(|value| value.to_str().ok());
    let authority = authority.or_else(host).unwrap_or("localhost");
    let origin = (context.scheme, authority);
    // A body of another request is read and ignored by HTTP itself.
    let has_body = head.method == Method::PUT || head.method == Method::PATCH;
    let limits = context.core.limits();
    let body = if has_body { collect(body, guard, limits).await? } else { Bytes::new() };
    let call = Call::new(&context.repository, target, (&head.headers, origin), body)?;
    let reply = execute(&call).await;
    let reply = when_replicated(context, &call, reply).await;
    // The `OpenAPI` file calls a schema `multipart/mixed` by mistake, and so do generated clients.
    if target.spec.operation == NudsfOperation::GetMetaSchema {
        return Ok(reply);
    }
    Ok(reply.checked_for(&head.headers))
}

/// Waits until the commits of a request are replicated, if those of its storage must be
/// (`docs/decisions/029-policies.md`). The core, and other requests of the connection, go on.
async fn when_replicated(context: &RequestContext, call: &Call<'_>, reply: Reply) -> Reply {
    let receipt = match call.owed(&reply) {
        Ok(Receipt::NONE) => return reply,
        Ok(receipt) => receipt,
        Err(error) => return Reply::problem(&Problem::from(error)),
    };
    // Responses with what was there before may be large.
    let reply = CountedBody::admitted(reply, &context.state);
    let _counted = CountedBytes::new(reply.body_bytes(), &context.state);
    let limit = context.repository.settings.replication_wait;
    let replicated = match context.core.wait_replicated(receipt) {
        Ok(wait) => {
            let waited = timeout(limit, wait).await;
            waited.unwrap_or_else(|| context.core.session().receipt_state(receipt))
        }
        // Without the thread that wakes, the look of this moment.
        Err(_) => context.core.session().receipt_state(receipt),
    };
    match replicated.and_then(|state| state.require(receipt, limit)) {
        Ok(()) => reply,
        Err(error) => Reply::problem(&Problem::from(error)),
    }
}

/// Reads a body into memory, within the limits of size and of time.
async fn collect(
    body: Incoming,
    guard: &mut RequestGuard,
    limits: &ConnectionLimits,
) -> Result<Bytes, Problem> {
    let announced = body.size_hint().lower();
    if announced > BODY_BYTES_MAX as u64 {
        return Err(too_large());
    }
    let mut body = pin!(body);
    let mut whole: Vec<u8> = Vec::new();
    let mut first: Option<Bytes> = None;
    let mut progress = BodyProgress::new(limits);
    loop {
        let frame = std::future::poll_fn(|cx| match body.as_mut().poll_frame(cx) {
            Poll::Ready(frame) => Poll::Ready(Ok(frame)),
            Poll::Pending => progress.poll(cx).map(Err),
        });
        let Some(frame) = frame.await? else { break };
        let frame =
            frame.map_err(|error| Problem::message(format!("the body broke off: {error}")))?;
        let Ok(bytes) = frame.into_data() else { continue };
        if guard.bytes + bytes.len() > BODY_BYTES_MAX {
            return Err(too_large());
        }
        if !guard.add(bytes.len()) {
            let detail = "the connection has too many large requests in progress";
            return Err(Problem::busy(detail));
        }
        progress.arrived += bytes.len();
        // A body of one frame, which most are, is not copied.
        match (first.take(), whole.is_empty()) {
            (None, true) => first = Some(bytes),
            (before, _) => {
                for part in before.iter().chain([&bytes]) {
                    make_room(&mut whole, part.len(), announced);
                    whole.extend_from_slice(part);
                }
            }
        }
    }
    Ok(first.unwrap_or_else(|| Bytes::from(whole)))
}

/// Room for the next bytes of a body: what was announced, but at most [`BODY_STEP_BYTES`], or as
/// much again as has arrived. A client cannot reserve memory by words alone, and a body of a
/// megabyte is not moved while it grows.
fn make_room(whole: &mut Vec<u8>, next: usize, announced: u64) {
    if whole.capacity() - whole.len() >= next {
        return;
    }
    let announced = usize::try_from(announced).unwrap_or(usize::MAX);
    let left = announced.checked_sub(whole.len()).filter(|left| *left > 0);
    let step = whole.len().max(BODY_STEP_BYTES);
    whole.reserve_exact(left.map_or(step, |left| left.min(step)).max(next));
}

fn too_large() -> Problem {
    let detail = format!("the body exceeds {BODY_BYTES_MAX} bytes: write the record in parts");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "PAYLOAD_TOO_LARGE", detail)
}

/// The time limit of a body: each period must bring some bytes.
struct BodyProgress {
    /// Begins when the body is waited for: most bodies arrive with their head.
    timer: Option<Sleep>,
    period: Duration,
    bytes_min: usize,
    arrived: usize,
    arrived_before: usize,
}

impl BodyProgress {
    fn new(limits: &ConnectionLimits) -> Self {
        let period = limits.request_timeout;
        let per_second = limits.request_bytes_per_second_min;
        let seconds = usize::try_from(period.as_secs()).unwrap_or(usize::MAX).max(1);
        let bytes_min = per_second.saturating_mul(seconds);
        Self { timer: None, period, bytes_min, arrived: 0, arrived_before: 0 }
    }

    /// `Ready`: too few bytes arrived in a period.
    fn poll(&mut self, cx: &mut std::task::Context<'_>) -> Poll<Problem> {
        while pin!(self.timer.get_or_insert_with(|| sleep(self.period))).poll(cx).is_ready() {
            if self.arrived - self.arrived_before < self.bytes_min {
                let detail = "the body did not arrive in time: send it faster, or raise \
                              limits.request_timeout";
                return Poll::Ready(Problem::new(
                    StatusCode::REQUEST_TIMEOUT,
                    "REQUEST_TIMEOUT",
                    detail,
                ));
            }
            self.arrived_before = self.arrived;
            self.timer = None;
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_has_room_for_what_was_announced_but_not_for_words_alone() {
        const FRAME: usize = 16 << 10;
        let arrive = |frames: usize, announced: u64| {
            let (mut whole, mut moves) = (Vec::new(), 0);
            for _ in 0..frames {
                let before = whole.capacity();
                make_room(&mut whole, FRAME, announced);
                whole.resize(whole.len() + FRAME, 1);
                moves += usize::from(whole.capacity() != before);
            }
            (whole.capacity(), moves)
        };
        // A megabyte is placed once; what was announced is the end of a larger one.
        assert_eq!(arrive(64, 1 << 20), (1 << 20, 1));
        assert_eq!(arrive(640, 10 << 20), (10 << 20, 5));
        // Two frames of a large body, and of one of unknown length.
        for announced in [100 << 20, 0] {
            assert_eq!(arrive(2, announced), (BODY_STEP_BYTES, 1));
            let (capacity, moves) = arrive(640, announced);
            assert!(capacity <= 20 << 20 && moves <= 5, "{capacity} {moves}");
        }
        // More than was announced, which HTTP refuses before.
        assert!(arrive(640, 100).0 <= 20 << 20);
    }
}
