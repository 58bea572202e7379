//! An HTTP/2 client for notifications: one connection to one host.

use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper::header::{CONTENT_LENGTH, CONTENT_LOCATION, CONTENT_TYPE, USER_AGENT};
use hyper::rt::Executor;
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use nearstate_node::executor::{TaskClass, spawn, timeout};
use nearstate_node::{ClientTls, OutboundStream};

use crate::notifier::notification::Notification;

/// How long a connection may take, with TLS.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// How long a notification may take until its response.
pub(crate) const RESPONSE_MAX: Duration = Duration::from_secs(5);

/// Runs the tasks of a connection on the core.
#[derive(Clone, Copy, Debug)]
struct ClientExecutor;

impl<F: Future + 'static> Executor<F> for ClientExecutor {
    fn execute(&self, task: F) {
        drop(spawn(TaskClass::Background, "nudsf-notify-connection", async move {
            task.await;
        }));
    }
}

/// What became of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The host has accepted it.
    Delivered,
    /// The host refuses it, and would refuse it again.
    Rejected,
    /// The host answers that it cannot accept it now.
    Busy,
    /// The host does not answer.
    Failed,
}

/// A connection. Clones share it.
#[derive(Clone)]
pub(crate) struct HostClient(http2::SendRequest<Full<Bytes>>);

impl HostClient {
    /// Connects to the host of a URI. `None`: it does not accept a connection in time, or has
    /// another scheme than this node can use.
    pub(crate) async fn connect(uri: &str, tls: Option<&ClientTls>) -> Option<Self> {
        let uri: Uri = uri.parse().ok()?;
        let is_tls = uri.scheme_str() == Some("https");
        let tls = match (is_tls, tls) {
            (false, _) => None,
            (true, Some(tls)) => Some((tls, &[&b"h2"[..]][..])),
            (true, None) => return None,
        };
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let host = uri.host()?.trim_start_matches('[').trim_end_matches(']');
        let connected = timeout(CONNECT_MAX, OutboundStream::connect((host, port), tls)).await;
        let stream = connected?.ok()?;
        let handshake = http2::handshake(ClientExecutor, TokioIo::new(stream));
        let (sender, connection) = timeout(CONNECT_MAX, handshake).await?.ok()?;
        ClientExecutor.execute(connection);
        Some(Self(sender))
    }

    /// True if the connection has ended: nothing is sent over it any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Sends a notification.
    pub(crate) async fn send(&mut self, notification: &Notification) -> Sent {
        let request = Request::post(notification.uri.as_str())
            .header(CONTENT_TYPE, notification.content_type.as_str())
            .header(CONTENT_LENGTH, notification.body.len())
            .header(USER_AGENT, "UDSF");
        let request = match notification.location.as_str() {
            "" => request,
            location => request.header(CONTENT_LOCATION, location),
        };
        let body = Full::new(notification.body.clone());
        let Ok(request) = request.body(body) else { return Sent::Rejected };
        let exchange = async {
            self.0.ready().await?;
            self.0.send_request(request).await
        };
        match timeout(RESPONSE_MAX, exchange).await {
            Some(Ok(response)) => match response.status().as_u16() {
                200..=299 => Sent::Delivered,
                408 | 425 | 429 | 500..=599 => Sent::Busy,
                _ => Sent::Rejected,
            },
            Some(Err(_)) | None => Sent::Failed,
        }
    }
}
