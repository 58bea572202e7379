//! Fixture of the tests: a protocol of lines, each of which is echoed or is a command; a node that
//! serves it, and clients.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use nearstate_model::Result;
use nearstate_node::executor::{Inbox, InboxSender, inbox, is_due};
use nearstate_node::{
    ConnectionHandler, ConnectionLimits, Consumed, Core, CoreService, Endpoint, LimitExceeded,
    ListenAddress, NextAction, Node, NodeConfig, OUTPUT_HIGH_WATER_BYTES, PeerIdentity, Protocol,
};
use nearstate_store::{CreateOptions, Region, Schema};

/// The protocol. A test finds the mailboxes of listening clients here.
#[derive(Default)]
pub(crate) struct Echo {
    pub(crate) mailboxes: Arc<Mutex<Vec<InboxSender<String>>>>,
}

struct EchoOnCore {
    core: usize,
    mailboxes: Arc<Mutex<Vec<InboxSender<String>>>>,
    is_work_stopped: Rc<Cell<bool>>,
}

struct EchoConnection {
    id: u64,
    core: usize,
    mailboxes: Arc<Mutex<Vec<InboxSender<String>>>>,
    mailbox: Option<Inbox<String>>,
    work: Option<EchoWork>,
    is_work_stopped: Rc<Cell<bool>>,
    /// Where the search for the end of the line continues.
    searched: usize,
}

enum EchoWork {
    /// Runs this number of steps.
    Steps(u64),
    /// Runs until another client of the core sends "stop".
    UntilStopped,
}

impl Protocol for Echo {
    fn name(&self) -> &'static str {
        "echo"
    }

    fn on_core(&self, core: &Core) -> Result<Rc<dyn CoreService>> {
        // The session works.
        core.session().namespace("echo", &Schema::default())?;
        Ok(Rc::new(EchoOnCore {
            core: core.index(),
            mailboxes: Arc::clone(&self.mailboxes),
            is_work_stopped: Rc::default(),
        }))
    }

    fn limit_error(&self, why: &LimitExceeded) -> Vec<u8> {
        format!("refused: {why}\n").into_bytes()
    }
}

impl CoreService for EchoOnCore {
    fn accept(&self, peer: &PeerIdentity) -> Box<dyn ConnectionHandler> {
        Box::new(EchoConnection {
            id: peer.id,
            core: self.core,
            mailboxes: Arc::clone(&self.mailboxes),
            mailbox: None,
            work: None,
            is_work_stopped: Rc::clone(&self.is_work_stopped),
            searched: 0,
        })
    }
}

impl EchoConnection {
    fn command(&mut self, line: &[u8], output: &mut Vec<u8>) -> NextAction {
        let words: Vec<&str> = std::str::from_utf8(line).unwrap_or("").split(' ').collect();
        match words.as_slice() {
            ["core"] => output.extend_from_slice(self.core.to_string().as_bytes()),
            ["id"] => output.extend_from_slice(self.id.to_string().as_bytes()),
            ["big", bytes] => output.extend(std::iter::repeat_n(b'x', bytes.parse().unwrap())),
            ["work", steps] => {
                self.work = Some(EchoWork::Steps(steps.parse().unwrap()));
                return NextAction::Work;
            }
            ["work"] => {
                self.work = Some(EchoWork::UntilStopped);
                return NextAction::Work;
            }
            ["stop"] => self.is_work_stopped.set(true),
            ["listen"] => {
                let (outbox, inbox) = inbox(8);
                self.mailboxes.lock().unwrap().push(outbox);
                self.mailbox = Some(inbox);
            }
            ["panic"] => panic!("requested by a client"),
            ["quit"] => return NextAction::Close,
            _ => output.extend_from_slice(line),
        }
        output.push(b'\n');
        NextAction::Read
    }
}

impl ConnectionHandler for EchoConnection {
    fn on_input(&mut self, input: &[u8], output: &mut Vec<u8>) -> Consumed {
        let mut taken = 0;
        let mut then = NextAction::Read;
        while then == NextAction::Read && output.len() < OUTPUT_HIGH_WATER_BYTES {
            let rest = &input[taken + self.searched..];
            let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
                self.searched = input.len() - taken;
                break;
            };
            let line = &input[taken..taken + self.searched + end];
            taken += line.len() + 1;
            self.searched = 0;
            then = self.command(line, output);
        }
        Consumed { bytes: taken, next: then }
    }

    fn poll_progress(&mut self, cx: &mut Context<'_>, output: &mut Vec<u8>) -> Poll<NextAction> {
        match &mut self.work {
            Some(EchoWork::Steps(0)) => {
                self.work = None;
                output.extend_from_slice(b"done\n");
                return Poll::Ready(NextAction::Read);
            }
            Some(EchoWork::Steps(steps)) => {
                *steps -= 1;
                return Poll::Ready(NextAction::Work);
            }
            Some(EchoWork::UntilStopped) if self.is_work_stopped.get() => {
                self.work = Some(EchoWork::Steps(0));
                return Poll::Ready(NextAction::Work);
            }
            Some(EchoWork::UntilStopped) => {
                while !is_due() {
                    std::hint::spin_loop();
                }
                return Poll::Ready(NextAction::Work);
            }
            None => {}
        }
        let Some(mailbox) = &mut self.mailbox else { return Poll::Pending };
        while output.len() < OUTPUT_HIGH_WATER_BYTES {
            let Poll::Ready(Some(message)) = mailbox.poll(cx) else { break };
            output.extend_from_slice(message.as_bytes());
            output.push(b'\n');
        }
        Poll::Pending
    }
}

/// A node that echoes on a TCP port and a Unix socket.
pub(crate) struct TestNode {
    pub(crate) node: Option<Node>,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) mailboxes: Arc<Mutex<Vec<InboxSender<String>>>>,
    // Dropped after the node.
    _region: Region,
}

/// The longest wait for a required event. Only a broken node needs it.
const WAIT_MAX: Duration = Duration::from_secs(60);

pub(crate) fn serve(cores: usize, limits: ConnectionLimits) -> TestNode {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::create(&folder.path().join("region"), &CreateOptions::default()).unwrap();
    let endpoint = |address| Endpoint { protocol: "echo".to_owned(), address, tls: None };
    let path = folder.path().join("node.sock");
    let config = NodeConfig {
        cores,
        is_pinned: false,
        endpoints: vec![
            endpoint(ListenAddress::Unix { path, mode: 0o600, any_owner: false }),
            endpoint(ListenAddress::Tcp("127.0.0.1:0".parse().unwrap())),
        ],
        limits,
        ..NodeConfig::default()
    };
    let echo = Echo::default();
    let mailboxes = Arc::clone(&echo.mailboxes);
    let node = Node::start(&config, &region, &[Arc::new(echo)]).unwrap();
    TestNode { node: Some(node), folder, mailboxes, _region: region }
}

impl TestNode {
    pub(crate) fn node(&self) -> &Node {
        self.node.as_ref().unwrap()
    }

    pub(crate) fn tcp(&self) -> LineClient<TcpStream> {
        let ListenAddress::Tcp(address) = self.node().addresses()[1] else { panic!("not TCP") };
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        LineClient::new(stream.try_clone().unwrap(), stream)
    }

    pub(crate) fn unix(&self) -> LineClient<std::os::unix::net::UnixStream> {
        let path = self.folder.path().join("node.sock");
        let stream = std::os::unix::net::UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        LineClient::new(stream.try_clone().unwrap(), stream)
    }

    /// Waits until the statistics of the node satisfy a condition.
    pub(crate) fn until(&self, what: impl Fn(&nearstate_node::CoreStats) -> bool) {
        for _ in 0..WAIT_MAX.as_millis() {
            if what(&self.node().stats().total().0) {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        panic!("the condition is not satisfied: {:?}", self.node().stats().total().0);
    }
}

/// A client that sends and receives lines.
pub(crate) struct LineClient<S: Read> {
    pub(crate) reader: BufReader<S>,
    pub(crate) writer: S,
}

impl<S: Read + Write> LineClient<S> {
    fn new(reader: S, writer: S) -> Self {
        Self { reader: BufReader::new(reader), writer }
    }

    pub(crate) fn send(&mut self, bytes: &str) {
        self.writer.write_all(bytes.as_bytes()).unwrap();
    }

    /// The next line without its end; empty at the end of the connection.
    pub(crate) fn receive(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        line.trim_end_matches('\n').to_owned()
    }

    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.send(&format!("{line}\n"));
        self.receive()
    }

    /// True if the node has closed.
    pub(crate) fn is_closed(&mut self) -> bool {
        matches!(self.reader.read(&mut [0; 64]), Ok(0) | Err(_))
    }
}
