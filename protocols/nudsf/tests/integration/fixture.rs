//! A node with the storage `Realm01/Storage01` in the namespace `ue`, and an HTTP/1.1 client.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nearstate_node::{ConnectionLimits, Endpoint, ListenAddress, Node, NodeConfig, Protocol, Tls};
use nearstate_nudsf::{
    FeatureSet, NotifySettings, NudsfMetrics, NudsfProtocol, NudsfSettings, StorageSpec, TokenKeys,
};
use nearstate_store::{CreateOptions, Region, Session};
use serde_json::Value;

use crate::contract::check_exchange;

/// The storage.
pub(crate) const STORAGE: &str = "/nudsf-dr/v1/Realm01/Storage01";

/// A node that serves a region of its own.
pub(crate) struct TestNode {
    pub(crate) address: SocketAddr,
    pub(crate) metrics: Arc<NudsfMetrics>,
    region: Region,
    node: Option<Node>,
    folder: Option<tempfile::TempDir>,
}

pub(crate) fn node() -> TestNode {
    node_with(ConnectionLimits::default())
}

pub(crate) fn node_with(limits: ConnectionLimits) -> TestNode {
    node_of(TestNodeOptions { limits, ..TestNodeOptions::default() })
}

/// What differs between nodes.
#[derive(Default)]
pub(crate) struct TestNodeOptions {
    pub(crate) overload_delay: Duration,
    pub(crate) replication_wait: Option<Duration>,
    pub(crate) limits: ConnectionLimits,
    pub(crate) tls: Option<Tls>,
    pub(crate) tokens: Option<Arc<TokenKeys>>,
    pub(crate) notify: NotifySettings,
    pub(crate) features: FeatureSet,
}

pub(crate) fn node_of(options: TestNodeOptions) -> TestNode {
    let folder = tempfile::tempdir().unwrap();
    let mut node = node_at(&folder.path().join("region"), options);
    node.folder = Some(folder);
    node
}

/// A node that serves the region at a path, which it creates if there is none.
pub(crate) fn node_at(path: &Path, options: TestNodeOptions) -> TestNode {
    let TestNodeOptions { limits, tls, tokens, notify, features, .. } = options;
    let TestNodeOptions { overload_delay, replication_wait, .. } = options;
    let region = Region::attach_or_create(path, &CreateOptions::default()).unwrap();
    let storages = vec![
        StorageSpec::parse("Realm01/Storage01=ue").unwrap(),
        StorageSpec::parse("Realm01/Other").unwrap(),
    ];
    let default = NudsfSettings { storages, tokens, notify, features, ..NudsfSettings::default() };
    let replication_wait = replication_wait.unwrap_or(default.replication_wait);
    let settings = Arc::new(NudsfSettings { overload_delay, replication_wait, ..default });
    let metrics = Arc::<NudsfMetrics>::default();
    let protocol = NudsfProtocol::new(settings, Arc::clone(&metrics)).unwrap();
    let protocol = if tls.is_some() { protocol.over_tls() } else { protocol };
    let name = protocol.name().to_owned();
    let protocols: [Arc<dyn Protocol>; 1] = [Arc::new(protocol)];
    let endpoint = Endpoint {
        protocol: name,
        address: ListenAddress::Tcp(([127, 0, 0, 1], 0).into()),
        tls: tls.map(|tls| tls.with_alpn(NudsfProtocol::ALPN)),
    };
    let config = NodeConfig {
        cores: 1,
        is_pinned: false,
        endpoints: vec![endpoint],
        limits,
        ..NodeConfig::default()
    };
    let node = Node::start(&config, &region, &protocols).unwrap();
    let address = match node.addresses().first() {
        Some(ListenAddress::Tcp(address)) => *address,
        other => panic!("{other:?}"),
    };
    TestNode { address, metrics, region, node: Some(node), folder: None }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            node.shutdown();
            node.join().unwrap();
        }
        drop(self.folder.take());
    }
}

impl TestNode {
    /// The number of notifications of a kind with this result.
    pub(crate) fn notified(&self, kind: &str, result: &str) -> u64 {
        let all = self.metrics.notifications();
        all.iter().find(|(k, r, _)| (*k, *r) == (kind, result)).unwrap().2
    }

    /// The number of notifications that were sent again, or will be.
    pub(crate) fn retries(&self) -> u64 {
        let [(name, retries), ..] = self.metrics.notifier_events();
        assert_eq!(name, "retry");
        retries
    }

    pub(crate) fn client(&self) -> TestClient {
        TestClient::connect(self.address)
    }

    /// Connections that were closed because the core had too much in memory.
    pub(crate) fn closed_for_memory(&self) -> u64 {
        self.node.as_ref().unwrap().stats().total().0.out_of_memory
    }

    /// Connections that were cut at the end of the time in which a node ends. It has ended.
    pub(crate) fn cut_connections(mut self) -> u64 {
        let node = self.node.take().unwrap();
        let metrics = node.metrics();
        node.join().unwrap();
        metrics.snapshot().total().0.drain_aborts
    }

    /// Asks the node to end.
    pub(crate) fn begin_shutdown(&self) {
        self.node.as_ref().unwrap().shutdown();
    }

    /// A session of the region, as an attached process has it.
    pub(crate) fn session(&self) -> Session {
        self.region.session().unwrap()
    }
}

/// A response.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestReply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl TestReply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value.as_str())
    }

    pub(crate) fn etag(&self) -> &str {
        self.header("etag").unwrap_or_else(|| panic!("no ETag: {self:?}"))
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The parts of a multipart body: (Content-Id, Content-Type, Content-Transfer-Encoding, bytes).
    pub(crate) fn parts(&self) -> Vec<[String; 4]> {
        let boundary = self.header("content-type").unwrap().split_once("boundary=").unwrap().1;
        let text = self.text();
        let whole =
            text.strip_prefix(&format!("--{boundary}\r\n")).unwrap_or_else(|| panic!("{text}"));
        let whole = whole
            .strip_suffix(&format!("\r\n--{boundary}--\r\n"))
            .unwrap_or_else(|| panic!("{text}"));
        let delimiter = format!("\r\n--{boundary}\r\n");
        let parts = whole.split(&delimiter).map(|part| {
            let (head, body) = part.split_once("\r\n\r\n").unwrap();
            let field = |name: &str| {
                let mut lines = head.lines().filter_map(|line| line.split_once(": "));
                lines
                    .find(|(known, _)| *known == name)
                    .map_or_else(String::new, |(_, v)| v.to_owned())
            };
            [
                field("Content-Id"),
                field("Content-Type"),
                field("Content-Transfer-Encoding"),
                body.to_owned(),
            ]
        });
        parts.collect()
    }

    /// Checks the status and, of an error, its `ProblemDetails`.
    #[track_caller]
    pub(crate) fn is(&self, status: u16, cause: &str) -> &Self {
        assert_eq!(self.status, status, "{self:?} {}", self.text());
        if !cause.is_empty() {
            assert_eq!(self.header("content-type"), Some("application/problem+json"));
            let problem = self.json();
            assert_eq!(problem["status"], status, "{problem}");
            assert_eq!(problem["cause"], cause, "{problem}");
            assert!(problem["title"].is_string() && problem["detail"].is_string(), "{problem}");
        }
        self
    }
}

/// A connection.
pub(crate) struct TestClient {
    pub(crate) stream: BufReader<TcpStream>,
}

/// The content type of [`record_body`].
pub(crate) const MIXED: (&str, &str) = ("Content-Type", "multipart/mixed; boundary=b");

/// A patch of JSON.
pub(crate) const PATCH: (&str, &str) = ("Content-Type", "application/json-patch+json");

/// JSON.
pub(crate) const JSON: (&str, &str) = ("Content-Type", "application/json");

/// A body of a record: its meta, and blocks with id and text.
pub(crate) fn record_body(meta: &str, blocks: &[(&str, &str)]) -> String {
    multipart("meta", "application/json", meta, blocks)
}

/// A body of a patch of a record.
pub(crate) fn patch_body(patch: &str, blocks: &[(&str, &str)]) -> String {
    multipart("patch", "application/json-patch+json", patch, blocks)
}

fn multipart(id: &str, media: &str, first: &str, blocks: &[(&str, &str)]) -> String {
    let mut body = format!("--b\r\nContent-Id: {id}\r\nContent-Type: {media}\r\n\r\n{first}\r\n");
    for (id, text) in blocks {
        let _ = write!(
            body,
            "--b\r\nContent-Id: {id}\r\nContent-Type: text/plain\r\n\
             Content-Transfer-Encoding: binary\r\n\r\n{text}\r\n"
        );
    }
    body + "--b--\r\n"
}

impl TestClient {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    /// Sends a request and reads its response. A path other than `/` and those of
    /// `/nudsf-` is below the storage.
    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) -> TestReply {
        self.try_send((method, path), headers, body.as_ref()).unwrap()
    }

    /// Sends a request whose response is not read yet. Returns its whole path.
    pub(crate) fn write(
        &mut self,
        (method, path): (&str, &str),
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<String> {
        let root = if path.starts_with("/nudsf-") || path == "/" { "" } else { STORAGE };
        let mut head = format!("{method} {root}{path} HTTP/1.1\r\nHost: udsf.example\r\n");
        for (name, value) in headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        if !body.is_empty() || method == "PUT" || method == "PATCH" {
            let _ = write!(head, "Content-Length: {}\r\n", body.len());
        }
        head += "\r\n";
        std::io::Write::write_all(self.stream.get_mut(), head.as_bytes())?;
        std::io::Write::write_all(self.stream.get_mut(), body)?;
        Ok(format!("{root}{path}"))
    }

    /// As [`TestClient::send`]; an error if the node has ended.
    pub(crate) fn try_send(
        &mut self,
        (method, path): (&str, &str),
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<TestReply> {
        let whole = self.write((method, path), headers, body)?;
        let reply = self.try_read(method)?;
        let mut types = headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case(MIXED.0));
        let media = types.next().map(|(_, value)| *value);
        check_exchange((method, &whole), (media, body), &reply);
        Ok(reply)
    }

    pub(crate) fn get(&mut self, path: &str) -> TestReply {
        self.send("GET", path, &[], "")
    }

    pub(crate) fn put_record(
        &mut self,
        id: &str,
        meta: &str,
        blocks: &[(&str, &str)],
    ) -> TestReply {
        self.send("PUT", &format!("/records/{id}"), &[MIXED], record_body(meta, blocks))
    }

    /// Reads a response.
    pub(crate) fn read(&mut self, method: &str) -> TestReply {
        self.try_read(method).unwrap()
    }

    fn try_read(&mut self, method: &str) -> std::io::Result<TestReply> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| std::io::Error::other(format!("{line:?}")))?;
        let mut reply = TestReply { status, ..TestReply::default() };
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            match line.trim_end().split_once(':') {
                None => break,
                Some((name, value)) => {
                    reply.headers.push((name.to_owned(), value.trim().to_owned()));
                }
            }
        }
        let length = reply.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        let has_body = method != "HEAD" && status != 304 && status != 204;
        reply.body.resize(if has_body { length } else { 0 }, 0);
        self.stream.read_exact(&mut reply.body)?;
        Ok(reply)
    }
}

/// Percent-encodes a query value.
/// Waits until the present second is over: a date does not tell changes of one second apart.
#[expect(clippy::disallowed_methods, reason = "the test has no executor")]
pub(crate) fn wait_for_next_second() {
    let second = || nearstate_store::now_ms() / 1000;
    let begun = second();
    while second() == begun {
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn encode(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(encode).collect()
}
