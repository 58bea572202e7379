//! Requests to etcd's JSON gateway over HTTP/1.1. A connection that fails or takes too long is
//! closed, and the next endpoint is asked.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use nearstate_model::Error;
use nearstate_node::ClientTls;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinSet, spawn_blocking};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::limits::{ETCD_ERROR_BYTES_MAX, ETCD_REPLY_BYTES_MAX, RETRY_INTERVAL};
use crate::raft::{MemberStream, tune};

/// An address of an etcd member for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdEndpoint {
    /// The name or address, which its certificate has.
    pub host: String,
    /// The port.
    pub port: u16,
    /// True for `https`.
    pub is_tls: bool,
}

impl EtcdEndpoint {
    /// Parses `http://HOST:PORT` or `https://HOST:PORT`.
    ///
    /// # Errors
    /// `BadArgument`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let parsed = || {
            let (scheme, rest) = text.split_once("://")?;
            let (host, port) = rest.trim_end_matches('/').rsplit_once(':')?;
            let is_tls = match scheme {
                "http" => false,
                "https" => true,
                _ => return None,
            };
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            let port = port.parse().ok().filter(|_| !host.is_empty() && !host.contains('/'))?;
            Some(Self { host, port, is_tls })
        };
        parsed().ok_or_else(|| Error::BadArgument {
            detail: format!(
                "the endpoint {text:?} of etcd: expected http://HOST:PORT or https://HOST:PORT"
            ),
        })
    }
}

impl fmt::Display for EtcdEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// A user of etcd. The gateway does not take a client's certificate for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdUser {
    /// Its name.
    pub name: String,
    /// The file with its password, which is read whenever a token is asked for. A line break at its
    /// end does not count.
    pub password_file: PathBuf,
}

impl EtcdUser {
    /// Reads the password.
    ///
    /// # Errors
    /// `BadArgument`: the file cannot be read.
    pub fn password(&self) -> Result<String, Error> {
        let path = &self.password_file;
        let text = fs::read_to_string(path).map_err(|error| Error::BadArgument {
            detail: format!("etcd.password_file: {}: {error}", path.display()),
        })?;
        Ok(text.trim_end_matches(['\r', '\n']).to_owned())
    }
}

/// How etcd is reached.
#[derive(Clone, Debug)]
pub struct EtcdSettings {
    /// Its members, at least one. The first one that answers is used.
    pub endpoints: Vec<EtcdEndpoint>,
    /// Certificates for `https`.
    pub tls: Option<ClientTls>,
    /// A user of etcd. Without one, etcd must not require it.
    pub user: Option<EtcdUser>,
    /// True: after each snapshot, etcd forgets the history of all its keys before the snapshot that
    /// was replaced.
    pub compacts: bool,
}

/// How often the time for a reply is doubled.
const DOUBLINGS_MAX: u32 = 3;

/// The way to etcd.
pub(super) struct Gateway {
    settings: EtcdSettings,
    /// The endpoint that is used, or tried next.
    at: usize,
    connection: Option<GatewayConnection>,
    /// What etcd has given to the user; empty if it requires none. `None`: it is to be asked for.
    token: Option<String>,
    /// When etcd has refused the user, and why.
    denied: Option<(Instant, String)>,
    /// Calls that failed since the last reply.
    failures: u32,
    /// The kernel gives up what is not acknowledged for this long: a request from before a cut does
    /// not arrive when the link is back.
    unacknowledged: Duration,
}

/// A connection. Its task ends when this is dropped.
struct GatewayConnection {
    sender: SendRequest<Full<Bytes>>,
    task: AbortHandle,
}

impl GatewayConnection {
    async fn post(
        &mut self,
        path: &str,
        body: &Value,
        token: &str,
    ) -> io::Result<Response<Incoming>> {
        let mut request = Request::post(path).header(HOST, "etcd");
        if !token.is_empty() {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(serde_json::to_vec(body)?)))
            .map_err(io::Error::other)?;
        self.sender.ready().await.map_err(io::Error::other)?;
        self.sender.send_request(request).await.map_err(io::Error::other)
    }

    /// Asks for a token of a user.
    async fn authenticate(&mut self, user: &EtcdUser) -> io::Result<String> {
        let (name, reading) = (user.name.clone(), user.clone());
        let password =
            spawn_blocking(move || reading.password()).await.map_err(io::Error::other)?;
        let body = json!({ "name": name, "password": password.map_err(io::Error::other)? });
        let reply = self.post("/v3/auth/authenticate", &body, "").await?;
        if reply.status().is_success() {
            let reply: Value = serde_json::from_slice(&whole(reply).await?)?;
            let token = reply.get("token").and_then(Value::as_str);
            return token.map(str::to_owned).ok_or_else(|| io::Error::other("etcd gives no token"));
        }
        // Users are enabled later.
        let is_needless = reply.status() == StatusCode::PRECONDITION_FAILED;
        let error = failure(reply).await;
        if is_needless {
            return Ok(String::new());
        }
        Err(io::Error::new(io::ErrorKind::PermissionDenied, error))
    }
}

async fn whole(reply: Response<Incoming>) -> io::Result<Bytes> {
    let body = Limited::new(reply.into_body(), ETCD_REPLY_BYTES_MAX).collect().await;
    Ok(body.map_err(io::Error::other)?.to_bytes())
}

/// The error that a reply says, in one line.
async fn failure(reply: Response<Incoming>) -> io::Error {
    let (status, mut body, mut text) = (reply.status(), reply.into_body(), Vec::new());
    while text.len() < ETCD_ERROR_BYTES_MAX
        && let Some(Ok(frame)) = body.frame().await
    {
        let data = frame.data_ref().map_or(&[][..], |data| data);
        text.extend(data.iter().take(ETCD_ERROR_BYTES_MAX - text.len()));
    }
    let said = serde_json::from_slice(&text).ok();
    let said = said.as_ref().and_then(|said: &Value| said.get("error")?.as_str());
    let text = said.map_or_else(|| String::from_utf8_lossy(&text).into_owned(), str::to_owned);
    let text = text.replace(char::is_control, " ");
    io::Error::other(format!("etcd answers with status {status}: {}", text.trim()))
}

/// Whether a part of a watch says that etcd does not watch: the token is not valid any more.
pub(super) fn is_cancelled(part: &[u8]) -> bool {
    part.windows(CANCELLED.len()).any(|bytes| bytes == CANCELLED)
}

/// How the gateway says it.
const CANCELLED: &[u8] = b"\"canceled\":true";

impl Drop for GatewayConnection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Gateway {
    /// Begins with one of the endpoints.
    pub(super) fn new(settings: EtcdSettings, at: usize, unacknowledged: Duration) -> Self {
        let (connection, token, denied) = (None, None, None);
        Self { settings, at, connection, token, denied, failures: 0, unacknowledged }
    }

    async fn connect(&self) -> io::Result<GatewayConnection> {
        let endpoints = &self.settings.endpoints;
        let endpoint = endpoints.get(self.at % endpoints.len().max(1));
        let endpoint = endpoint.ok_or_else(|| io::Error::other("etcd has no endpoints"))?;
        let socket = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
        tune(&socket, self.unacknowledged)?;
        let stream: Box<dyn MemberStream> = match (&self.settings.tls, endpoint.is_tls) {
            (_, false) => Box::new(socket),
            (None, true) => return Err(io::Error::other("https needs the authorities of etcd")),
            (Some(tls), true) => {
                let name = ServerName::try_from(endpoint.host.clone()).map_err(io::Error::other)?;
                Box::new(TlsConnector::from(tls.config()).connect(name, socket).await?)
            }
        };
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        let task = tokio::spawn(async move { drop(connection.await) }).abort_handle();
        Ok(GatewayConnection { sender, task })
    }

    /// The token of the user, if there is one. A user that was refused is not tried again for a
    /// while: etcd needs much time to check a password, also a wrong one.
    async fn token(&mut self, connection: &mut GatewayConnection) -> io::Result<String> {
        let Some(user) = &self.settings.user else { return Ok(String::new()) };
        if let Some(token) = &self.token {
            return Ok(token.clone());
        }
        if let Some((when, why)) = &self.denied
            && when.elapsed() < RETRY_INTERVAL
        {
            return Err(io::Error::other(why.clone()));
        }
        let token = connection.authenticate(user).await;
        let is_denied = |error: &&io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        let why = token.as_ref().err().filter(is_denied).map(ToString::to_string);
        self.denied = why.map(|why| (Instant::now(), format!("etcd.user {:?}: {why}", user.name)));
        self.token = token.as_ref().ok().cloned();
        token
    }

    /// Sends a request, unless that is not possible until this time.
    async fn send(
        &mut self,
        path: &str,
        body: &Value,
        until: Option<Instant>,
    ) -> io::Result<Response<Incoming>> {
        // It is put back by the caller, after a whole reply.
        let mut connection = match self.connection.take() {
            Some(connection) if !connection.sender.is_closed() => connection,
            Some(_) | None => self.connect().await?,
        };
        let token = self.token(&mut connection).await?;
        if until.is_some_and(|until| Instant::now() >= until) {
            return Err(io::Error::other("no connection to etcd in time"));
        }
        let reply = connection.post(path, body, &token).await?;
        self.connection = Some(connection);
        if reply.status().is_success() {
            return Ok(reply);
        }
        // The token has ended, or users were enabled.
        if matches!(reply.status(), StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED) {
            self.token = None;
        }
        Err(failure(reply).await)
    }

    /// Sends a request and returns its reply. After a failure the next endpoint is used, and waited
    /// for twice as long, up to eight times: an etcd that is slow, because its disk or its machine
    /// is, must answer some time. It is not sent after `until`.
    pub(super) async fn call(
        &mut self,
        path: &str,
        body: &Value,
        max: Duration,
        until: Option<Instant>,
    ) -> io::Result<Value> {
        let call_max = max * (1 << self.failures.min(DOUBLINGS_MAX));
        let exchange = async {
            let reply = self.send(path, body, until).await?;
            Ok(serde_json::from_slice(&whole(reply).await?)?)
        };
        let done = timeout(call_max, exchange).await;
        let done = done.unwrap_or_else(|_| Err(io::Error::other("etcd does not answer in time")));
        if done.is_err() {
            self.close();
            self.failures += 1;
        } else {
            self.failures = 0;
        }
        done
    }

    /// Begins to watch. The body says something whenever a key changes.
    pub(super) async fn watch(&mut self, body: &Value, max: Duration) -> io::Result<Incoming> {
        let begun = timeout(max, self.send("/v3/watch", body, None)).await;
        let begun = begun.unwrap_or_else(|_| Err(io::Error::other("no watch in time")));
        if begun.is_err() {
            self.close();
        }
        begun.map(Response::into_body)
    }

    /// The next request asks for a new token.
    pub(super) fn forget_token(&mut self) {
        self.token = None;
    }

    /// Is there more than one endpoint?
    pub(super) fn has_others(&self) -> bool {
        self.settings.endpoints.len() > 1
    }

    /// The endpoint that is used, or tried next.
    pub(super) fn endpoint(&self) -> String {
        let endpoints = &self.settings.endpoints;
        endpoints.get(self.at % endpoints.len().max(1)).map(ToString::to_string).unwrap_or_default()
    }

    /// Asks all endpoints the same, at the same time. Returns the replies of those that answer. The
    /// first one of them is used next.
    pub(super) async fn ask_all(
        &mut self,
        (path, body): (&'static str, &Value),
        max: Duration,
    ) -> Vec<(String, Value)> {
        let mut calls = JoinSet::new();
        for at in 0..self.settings.endpoints.len() {
            let mut gateway = Self::new(self.settings.clone(), at, self.unacknowledged);
            let (endpoint, body) = (gateway.endpoint(), body.clone());
            calls.spawn(async move {
                let reply = gateway.call(path, &body, max, None).await;
                (at, endpoint, reply)
            });
        }
        let mut replies = BTreeMap::new();
        while let Some(done) = calls.join_next().await {
            if let Ok((at, endpoint, Ok(reply))) = done {
                replies.insert(at, (endpoint, reply));
            }
        }
        self.connection = None;
        self.at = replies.first_key_value().map_or(self.at, |(at, _)| *at);
        replies.into_values().collect()
    }

    /// Closes the connection. The next one is to the next endpoint.
    pub(super) fn close(&mut self) {
        self.connection = None;
        self.at = self.at.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_urls_of_hosts() {
        let parse = |text| EtcdEndpoint::parse(text).map(|one| (one.host, one.port, one.is_tls));
        assert_eq!(parse("http://10.0.0.1:2379").unwrap(), ("10.0.0.1".to_owned(), 2379, false));
        assert_eq!(parse("https://[::1]:2379/").unwrap(), ("::1".to_owned(), 2379, true));
        for bad in ["10.0.0.1:2379", "ftp://a:1", "http://a", "http://:1", "http://a/b:1"] {
            assert!(parse(bad).unwrap_err().to_string().contains(bad), "{bad}");
        }
    }
}
