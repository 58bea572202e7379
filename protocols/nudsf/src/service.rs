//! One request: head, body, operation, response.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Version};
use nearstate_node::Core;
use nearstate_node::executor::timeout;
use nearstate_store::{Receipt, now_ms};

use crate::grant::Grant;
use crate::load::CoreLoad;
use crate::operation_context::OperationContext;
use crate::operations::execute;
use crate::problem::Problem;
use crate::reply::Reply;
use crate::reply_body::{CountedBytes, HttpConnectionState, RequestGuard};
use crate::repository::Repository;
use crate::request_body::{RequestBody, collect};
use crate::request_path::{self, RequestPath};
use crate::sbi::{SbiHeaders, timed_out};
use crate::times::format_http_date;

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
    /// The second since 1970 of the last response, and its date.
    pub(crate) date: RefCell<(u64, HeaderValue)>,
}

impl RequestContext {
    /// The date of a response.
    pub(crate) fn date(&self) -> HeaderValue {
        let now = now_ms();
        let (second, known) = &mut *self.date.borrow_mut();
        if *second != now / 1000 {
            *second = now / 1000;
            // A date has visible characters only.
            *known = HeaderValue::try_from(format_http_date(now)).unwrap_or_else(|_| known.clone());
        }
        known.clone()
    }

    /// Checks the access token of a request, if tokens are required.
    async fn authorize(&self, headers: &HeaderMap, scope: &str) -> Result<(), Problem> {
        let Some(keys) = &self.repository.settings.tokens else { return Ok(()) };
        let (given, now_ms) = (headers.get(AUTHORIZATION), now_ms());
        if let Some((known, grant)) = &*self.grant.borrow()
            && Some(known) == given
            && grant.is_current(keys.generation(), now_ms)
        {
            return grant.check(scope);
        }
        let grant = keys.verify(headers, now_ms).await?;
        let checked = grant.check(scope);
        *self.grant.borrow_mut() = given.map(|given| (given.clone(), grant));
        checked
    }
}

/// Answers a request that arrived at this reading of the core's clock.
pub(crate) async fn respond(
    context: &RequestContext,
    request: (&Parts, RequestBody),
    arrived: u64,
) -> Reply {
    let mut guard = RequestGuard::new(&context.state);
    context.core.metrics().requests.add(1);
    let mut operation = None;
    let done = serve(context, request, (&mut guard, &mut operation), arrived).await;
    let reply = done.unwrap_or_else(|problem| Reply::problem(&problem));
    context.repository.responses.count(operation, reply.status.as_u16());
    reply
}

/// A request of HTTP/1.1 names its host exactly once (RFC 9112, section 3.2).
fn check_host(head: &Parts) -> Result<(), Problem> {
    if head.version != Version::HTTP_11 || head.headers.get_all(HOST).iter().count() == 1 {
        return Ok(());
    }
    Err(Problem::form("header Host", "must occur exactly once"))
}

async fn serve(
    context: &RequestContext,
    (head, body): (&Parts, RequestBody),
    (guard, operation): (&mut RequestGuard, &mut Option<usize>),
    arrived: u64,
) -> Result<Reply, Problem> {
    check_host(head)?;
    let path = request_path::parse(&head.method, &head.uri)?;
    *operation = Some(path.spec.operation as usize);
    let clock = context.core.clock();
    let times = || (clock.time(clock.now().saturating_sub(arrived)), now_ms());
    let sbi = SbiHeaders::parse(&head.headers, times);
    context.load.probe(&context.core);
    context.load.check(sbi.priority, context.repository.settings.overload_delay)?;
    context.authorize(&head.headers, path.spec.scope).await?;
    let execution = execute_request(context, (head, body), &path, guard);
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
    (head, body): (&Parts, RequestBody),
    path: &RequestPath<'_>,
    guard: &mut RequestGuard,
) -> Result<Reply, Problem> {
    let authority = head.uri.authority().map(hyper::http::uri::Authority::as_str);
    let host = || head.headers.get(HOST).and_then(|value| value.to_str().ok());
    let authority = authority.or_else(host).unwrap_or("localhost");
    let origin = (context.scheme, authority);
    // A body of another request is read and ignored by HTTP itself.
    let has_body = head.method == Method::PUT || head.method == Method::PATCH;
    let limits = context.core.limits();
    let body = if has_body {
        collect(body, &head.headers, guard, limits).await?
    } else {
        // Its window is free for others while the operation runs.
        drop(body);
        Bytes::new()
    };
    let (repository, state) = (&*context.repository, &*context.state);
    let operation =
        OperationContext::new((repository, state), path, (&head.headers, origin), body)?;
    let reply = execute(&operation).await;
    // What is committed was checked before the commit, and is not refused any more.
    if !operation.has_committed() {
        operation.check_reply(&reply)?;
    }
    match operation.owed(&reply) {
        Ok(Receipt::NONE) => Ok(reply),
        Ok(receipt) => Ok(when_replicated(context, receipt, reply).await),
        Err(error) => Err(Problem::from(error)),
    }
}

/// Waits until the commits of a request, up to this receipt, are replicated, because those of its
/// storage must be (`docs/decisions/029-policies.md`). The core, and other requests of the
/// connection, go on.
async fn when_replicated(context: &RequestContext, receipt: Receipt, reply: Reply) -> Reply {
    // Responses with what was there before may be large.
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
