//! A client without a socket: bytes in, bytes out.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, clippy::allow_attributes, reason = "each test module uses a part of it")]

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use nearstate_node::clock::Clock;
use nearstate_node::{
    ConnectionHandler, ConnectionLimits, Core, CoreParts, CoreService, Endpoint, ListenAddress,
    NextAction, Node, NodeConfig, PeerAddress, PeerIdentity, Protocol,
};
use nearstate_resp::RespProtocol;
use nearstate_resp::acl::Users;
use nearstate_resp::server::{RespServer, RespSettings};
use nearstate_resp::table::TABLE;
use nearstate_store::{CreateOptions, Error, Region};

/// A server on one core.
pub(crate) struct TestNode {
    pub(crate) server: Arc<RespServer>,
    pub(crate) region: Region,
    service: Rc<dyn CoreService>,
    sentinel_service: Rc<dyn CoreService>,
    next: std::cell::Cell<u64>,
    dir: tempfile::TempDir,
}

/// A node that listens on a Unix socket.
pub(crate) struct SocketNode {
    pub(crate) node: Node,
    pub(crate) region: Region,
    pub(crate) server: Arc<RespServer>,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl SocketNode {
    pub(crate) fn start(cores: usize, settings: RespSettings, limits: ConnectionLimits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let region = Region::create(&dir.path().join("r"), &CreateOptions::default()).unwrap();
        let path = dir.path().join("s");
        let address = ListenAddress::Unix { path: path.clone(), mode: 0o600, any_owner: false };
        let config = NodeConfig {
            cores,
            is_pinned: false,
            endpoints: vec![Endpoint { protocol: "resp".to_owned(), address, tls: None }],
            limits,
            ..NodeConfig::default()
        };
        let server = Arc::new(RespServer::new(settings));
        let service = RespProtocol::new(Arc::clone(&server));
        let node = Node::start(&config, &region, &[Arc::new(service)]).unwrap();
        Self { node, region, server, path, _dir: dir }
    }

    pub(crate) fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.path).unwrap()
    }
}

/// Sets a flag when it is dropped. Threads of a scope that go on until it is set end as well when
/// the test fails, and the scope with them.
pub(crate) struct SetOnDrop<'f>(pub(crate) &'f AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A client.
pub(crate) struct TestClient {
    handler: Box<dyn ConnectionHandler>,
    unconsumed: Vec<u8>,
    /// True once the server has closed.
    pub(crate) is_closed: bool,
}

pub(crate) fn node() -> TestNode {
    node_with(RespSettings::new(Users::open(&TABLE)))
}

pub(crate) fn node_with(settings: RespSettings) -> TestNode {
    node_with_limits(settings, ConnectionLimits::default())
}

pub(crate) fn node_with_limits(settings: RespSettings, limits: ConnectionLimits) -> TestNode {
    build_node(settings, limits, &CreateOptions::default())
}

/// A node whose region has these options.
pub(crate) fn node_in(options: &CreateOptions) -> TestNode {
    build_node(RespSettings::new(Users::open(&TABLE)), ConnectionLimits::default(), options)
}

/// A node with these settings whose region has these options.
pub(crate) fn node_with_in(settings: RespSettings, options: &CreateOptions) -> TestNode {
    build_node(settings, ConnectionLimits::default(), options)
}

fn build_node(
    settings: RespSettings,
    limits: ConnectionLimits,
    options: &CreateOptions,
) -> TestNode {
    let dir = tempfile::tempdir().unwrap();
    let region = Region::create(&dir.path().join("region"), options).unwrap();
    let server = Arc::new(RespServer::new(settings));
    let parts = CoreParts::single(region.clone(), Clock::new_virtual());
    let core = Core::new(CoreParts { limits: Arc::new(limits), ..parts }).unwrap();
    let service = RespProtocol::new(Arc::clone(&server)).on_core(&core).unwrap();
    let sentinel_service = RespProtocol::sentinel(Arc::clone(&server)).on_core(&core).unwrap();
    let next = std::cell::Cell::new(1);
    TestNode { server, region, service, sentinel_service, next, dir }
}

impl TestNode {
    /// The file of the region.
    pub(crate) fn region_file(&self) -> PathBuf {
        self.dir.path().join("region")
    }

    /// Starts the background tasks of the server on the executor of this thread.
    pub(crate) fn begin(&self) {
        self.service.begin();
    }

    pub(crate) fn client(&self) -> TestClient {
        self.client_of(&*self.service)
    }

    /// A client that connected to an address of the Sentinel.
    pub(crate) fn sentinel_client(&self) -> TestClient {
        self.client_of(&*self.sentinel_service)
    }

    fn client_of(&self, service: &dyn CoreService) -> TestClient {
        let id = self.next.replace(self.next.get() + 1);
        let remote = format!("127.0.0.1:{}", 40_000 + id).parse().unwrap();
        let local = "127.0.0.1:6379".parse().unwrap();
        let peer =
            PeerIdentity { id, address: PeerAddress::Tcp { remote, local }, certificate: None };
        TestClient { handler: service.accept(&peer), unconsumed: Vec::new(), is_closed: false }
    }
}

impl TestClient {
    /// Sends bytes. Returns all output, including that of sliced commands and messages.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.unconsumed.extend_from_slice(bytes);
        let mut all = Vec::new();
        loop {
            let mut output = Vec::new();
            let received = self.handler.on_input(&self.unconsumed, &mut output);
            self.unconsumed.drain(..received.bytes);
            all.append(&mut output);
            match received.next {
                NextAction::Close => self.is_closed = true,
                NextAction::Read | NextAction::Work => all.append(&mut self.poll_progress()),
                NextAction::SendDescriptors => {
                    // Without a node there are no descriptors to send.
                    let why = Error::BadArgument { detail: "no node".to_owned() };
                    assert!(self.handler.send_descriptors(Err(why), &mut all).is_none());
                }
            }
            if received.bytes == 0 || self.is_closed || self.unconsumed.is_empty() {
                return all;
            }
        }
    }

    /// Sends a request without polling for progress. Returns its first output.
    pub(crate) fn begin(&mut self, words: &[&[u8]]) -> (Vec<u8>, NextAction) {
        let mut output = Vec::new();
        let received = self.handler.on_input(&request(words), &mut output);
        (output, received.next)
    }

    /// Polls for progress once.
    pub(crate) fn step(&mut self) -> (Vec<u8>, Poll<NextAction>) {
        let mut output = Vec::new();
        let then = self.handler.poll_progress(&mut Context::from_waker(Waker::noop()), &mut output);
        (output, then)
    }

    /// Bytes that the connection buffers.
    pub(crate) fn kept(&self) -> usize {
        self.handler.buffered_bytes()
    }

    /// Polls until no progress is made. Returns the output.
    pub(crate) fn poll_progress(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let mut output = Vec::new();
            let then =
                self.handler.poll_progress(&mut Context::from_waker(Waker::noop()), &mut output);
            all.append(&mut output);
            match then {
                Poll::Ready(NextAction::Work) => {}
                Poll::Ready(NextAction::Close) => {
                    self.is_closed = true;
                    return all;
                }
                Poll::Ready(NextAction::Read | NextAction::SendDescriptors) | Poll::Pending => {
                    return all;
                }
            }
        }
    }

    /// Sends a request of words separated by blanks. Returns the reply as text.
    pub(crate) fn ask(&mut self, words: &str) -> String {
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        self.ask_bytes(&words)
    }

    /// Sends a request. Returns the reply as text with `|` for `\r\n`.
    pub(crate) fn ask_bytes(&mut self, words: &[&[u8]]) -> String {
        let reply = self.send(&request(words));
        String::from_utf8_lossy(&reply).replace("\r\n", "|")
    }
}

pub(crate) fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
