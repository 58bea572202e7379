//! Requests of the node to servers of the control plane: the NRF, and the server of the key set.
//! They are rare (some in a minute), so that each has a connection of its own, on the thread of the
//! client. Every request is bounded in time and its response in size.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST};
use hyper::rt::Executor;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use nearstate_model::{Error, Result};
use nearstate_node::{ClientTls, NameResolver};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// The longest time of a request, from the connection to the end of the response.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(5);

/// The longest body of a response, in bytes.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// The version of HTTP on connections without TLS. Over TLS, the server chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlainHttp {
    One,
    /// HTTP/2 with prior knowledge, as TS 29.500 requires of network functions.
    Two,
}

/// Sends requests to one server.
#[derive(Clone, Debug)]
pub(crate) struct OutboundClient {
    root: Uri,
    plain: PlainHttp,
    tls: Option<ClientTls>,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutboundReply {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

impl OutboundClient {
    /// A client of the server with this URI, whose path precedes that of requests.
    ///
    /// # Errors
    /// `BadArgument`: no absolute `http` or `https` URI, or `https` without authorities.
    pub(crate) fn new(root: &str, plain: PlainHttp, tls: Option<ClientTls>) -> Result<Self> {
        let refused = |why: &str| Error::BadArgument { detail: format!("URI {root:?}: {why}") };
        let parsed: Uri = root.parse().map_err(|error| refused(&format!("{error}")))?;
        match parsed.scheme_str() {
            Some("http") if parsed.host().is_some() => {}
            Some("https") if parsed.host().is_some() => {
                if tls.is_none() {
                    return Err(refused("https requires the authorities of certificates"));
                }
            }
            _ => return Err(refused("must be an absolute http or https URI")),
        }
        let tls = tls.map(|tls| tls.with_alpn(&[b"h2", b"http/1.1"]));
        Ok(Self { root: parsed, plain, tls })
    }

    /// Sends a request. `path` follows the path of the root. With an empty one, the request is for
    /// the root as it was given, with its query.
    ///
    /// # Errors
    /// Why there is no response.
    pub(crate) async fn send(
        &self,
        (method, path): (Method, &str),
        body: Option<(&str, String)>,
    ) -> std::result::Result<OutboundReply, String> {
        let sent = self.send_unbounded((method, path), body);
        match tokio::time::timeout(REQUEST_TIME_MAX, sent).await {
            Ok(done) => done,
            Err(_) => Err(format!("no response within {REQUEST_TIME_MAX:?}")),
        }
    }

    async fn send_unbounded(
        &self,
        (method, path): (Method, &str),
        body: Option<(&str, String)>,
    ) -> std::result::Result<OutboundReply, String> {
        let failed = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
        let host = self.root.host().unwrap_or_default();
        let is_tls = self.root.scheme_str() == Some("https");
        let port = self.root.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let found = NameResolver::of_thread().resolve(name).await;
        let found = found.map_err(|error| failed("resolve", &error))?;
        let all: Vec<_> = found.iter().map(|address| SocketAddr::new(*address, port)).collect();
        let stream = TcpStream::connect(all.as_slice()).await.map_err(|e| failed("connect", &e))?;
        let (media, body) = body.map_or((None, String::new()), |(media, body)| (Some(media), body));
        let path = self.target(path);
        let mut request = Request::builder().method(method).header(ACCEPT, "application/json");
        if let Some(media) = media {
            request = request.header(CONTENT_TYPE, media);
        }
        let authority = self.root.authority().map_or("", |authority| authority.as_str());
        let (scheme, body) =
            (self.root.scheme_str().unwrap_or("http"), Full::new(Bytes::from(body)));
        let parts = RequestParts { request, scheme, authority, path, body };
        let Some(tls) = self.tls.as_ref().filter(|_| is_tls) else {
            return exchange(TokioIo::new(stream), self.plain, parts).await;
        };
        let server = ServerName::try_from(name.to_owned()).map_err(|e| failed("name", &e))?;
        let connector = TlsConnector::from(tls.config());
        let stream = connector.connect(server, stream).await.map_err(|e| failed("TLS", &e))?;
        let is_two = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let version = if is_two { PlainHttp::Two } else { PlainHttp::One };
        exchange(TokioIo::new(stream), version, parts).await
    }
}

impl OutboundClient {
    /// The target of a request below the root, or for the root itself.
    fn target(&self, below: &str) -> String {
        if !below.is_empty() {
            return format!("{}{below}", self.root.path().trim_end_matches('/'));
        }
        let whole = self.root.path_and_query().map_or("/", |whole| whole.as_str());
        if whole.starts_with('/') { whole.to_owned() } else { format!("/{whole}") }
    }
}

struct RequestParts<'a> {
    request: hyper::http::request::Builder,
    scheme: &'a str,
    authority: &'a str,
    path: String,
    body: Full<Bytes>,
}

/// Sends a request over a new connection and reads its response.
async fn exchange<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    stream: TokioIo<S>,
    version: PlainHttp,
    parts: RequestParts<'_>,
) -> std::result::Result<OutboundReply, String> {
    let RequestParts { request, scheme, authority, path, body } = parts;
    let failed = |error: &dyn std::fmt::Display| format!("HTTP: {error}");
    match version {
        PlainHttp::Two => {
            let handshake = hyper::client::conn::http2::handshake(ThreadExecutor, stream);
            let (mut sender, connection) = handshake.await.map_err(|e| failed(&e))?;
            let request = request.uri(format!("{scheme}://{authority}{path}")).body(body);
            let reply = async move {
                let request = request.map_err(|e| failed(&e))?;
                let response = sender.send_request(request).await.map_err(|e| failed(&e))?;
                read(response).await
            };
            alongside(connection, reply).await
        }
        PlainHttp::One => {
            let handshake = hyper::client::conn::http1::handshake(stream);
            let (mut sender, connection) = handshake.await.map_err(|e| failed(&e))?;
            let request = request.uri(path).header(HOST, authority).body(body);
            let reply = async move {
                let request = request.map_err(|e| failed(&e))?;
                let response = sender.send_request(request).await.map_err(|e| failed(&e))?;
                read(response).await
            };
            alongside(connection, reply).await
        }
    }
}

/// Polls a connection until the response is complete.
async fn alongside<T>(
    connection: impl Future<Output = hyper::Result<()>>,
    reply: impl Future<Output = std::result::Result<T, String>>,
) -> std::result::Result<T, String> {
    let (mut connection, mut reply) = (std::pin::pin!(connection), std::pin::pin!(reply));
    let mut is_open = true;
    std::future::poll_fn(|cx| {
        // The end of the connection shows in the response as well.
        if is_open && connection.as_mut().poll(cx).is_ready() {
            is_open = false;
        }
        reply.as_mut().poll(cx)
    })
    .await
}

async fn read(
    response: hyper::Response<hyper::body::Incoming>,
) -> std::result::Result<OutboundReply, String> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await;
    let body = body.map_err(|error| format!("body: {error}"))?.to_bytes();
    Ok(OutboundReply { status: head.status, body })
}

/// Runs tasks of HTTP/2 on the thread of the client.
#[derive(Clone, Copy, Debug)]
struct ThreadExecutor;

impl<F: Future + 'static> Executor<F> for ThreadExecutor {
    fn execute(&self, task: F) {
        drop(tokio::task::spawn_local(async move {
            task.await;
        }));
    }
}

/// Starts a thread of the control plane that runs `body` on a runtime of its own.
///
/// # Errors
/// `System`: the thread or its runtime cannot be created.
pub(crate) fn start_thread<F: Future<Output = ()>>(
    name: &str,
    body: impl FnOnce() -> F + Send + 'static,
) -> Result<std::thread::JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(|error| system("create a runtime", &error))?;
    let thread = std::thread::Builder::new().name(name.to_owned());
    let run = move || {
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, body());
    };
    thread.spawn(run).map_err(|error| system("start a thread", &error))
}

fn system(what: &str, error: &io::Error) -> Error {
    let detail = format!("cannot {what}");
    Error::System { detail, errno: error.raw_os_error().unwrap_or_default() }
}

/// A flag that ends a thread, which waits for it.
#[derive(Clone, Debug)]
pub(crate) struct StopFlag(Arc<tokio::sync::watch::Sender<bool>>);

impl Default for StopFlag {
    fn default() -> Self {
        Self(Arc::new(tokio::sync::watch::Sender::new(false)))
    }
}

impl StopFlag {
    /// Sets the flag.
    pub(crate) fn set(&self) {
        self.0.send_replace(true);
    }

    /// Waits until the flag is set, or for this time. True: it is set.
    pub(crate) async fn wait(&self, time: Duration) -> bool {
        let mut receiver = self.0.subscribe();
        let waited = tokio::time::timeout(time, receiver.wait_for(|is_set| *is_set)).await;
        waited.is_ok()
    }

    /// Waits for a future. `None`: the flag was set before, and the future was dropped.
    pub(crate) async fn unless_set<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut receiver = self.0.subscribe();
        let mut is_set = std::pin::pin!(receiver.wait_for(|is_set| *is_set));
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|cx| {
            if is_set.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_an_absolute_uri_and_https_needs_authorities() {
        for root in ["", "nrf", "/nrf", "ftp://nrf", "https://nrf", "http://"] {
            assert!(OutboundClient::new(root, PlainHttp::Two, None).is_err(), "{root:?}");
        }
        assert!(OutboundClient::new("http://nrf:8000/x", PlainHttp::Two, None).is_ok());
    }

    #[test]
    fn a_request_for_the_root_has_its_path_and_query_unchanged() {
        for (root, target, below) in [
            ("http://h", "/", "/a"),
            ("http://h/", "/", "/a"),
            ("http://h?a=1", "/?a=1", "/a"),
            ("http://h/keys/?a=1&b=%2F", "/keys/?a=1&b=%2F", "/keys/a"),
            ("http://h/keys//", "/keys//", "/keys/a"),
        ] {
            let client = OutboundClient::new(root, PlainHttp::One, None).unwrap();
            assert_eq!((client.target(""), client.target("/a")), (target.into(), below.into()));
        }
    }
}
