//! A client's connection to the node, and how it ends when the node is killed.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use nearstate_resp_client::{RespClient, RespReply, TimeoutSocket};

/// Longer than any reply takes on a busy machine: a node that does not reply ends a run.
const REPLY_WAIT_MAX: Duration = Duration::from_secs(60);

/// Why there is no reply.
#[derive(Debug)]
pub(super) enum NodeConnectionEnd {
    /// The connection is closed: the node is dead.
    Closed,
    /// Something that must not happen.
    Violation(String),
}

pub(super) struct NodeConnection(RespClient<TimeoutSocket>);

impl NodeConnection {
    /// Connects to the Unix socket.
    pub(super) fn unix(path: &Path) -> io::Result<Self> {
        TimeoutSocket::unix(path, REPLY_WAIT_MAX).map(|socket| Self(RespClient::new(socket)))
    }

    /// Connects over TCP.
    pub(super) fn tcp(address: &str) -> io::Result<Self> {
        let address = address.parse().map_err(io::Error::other)?;
        TimeoutSocket::tcp(address, REPLY_WAIT_MAX).map(|socket| Self(RespClient::new(socket)))
    }

    /// Sends encoded requests.
    pub(super) fn send(&mut self, requests: &[u8]) -> Result<(), NodeConnectionEnd> {
        self.0.send(requests).map_err(|e| end_of(&e))
    }

    /// The next reply.
    pub(super) fn receive(&mut self) -> Result<RespReply, NodeConnectionEnd> {
        self.0.receive().map_err(|e| end_of(&e))
    }

    /// Sends a request and returns its reply, which must arrive and must not be an error.
    pub(super) fn request(&mut self, args: &[&[u8]]) -> Result<RespReply, String> {
        match self.0.request(args) {
            Ok(RespReply::Error(text)) => {
                Err(format!("the node replied {}", String::from_utf8_lossy(&text)))
            }
            Ok(reply) => Ok(reply),
            Err(error) => match end_of(&error) {
                NodeConnectionEnd::Closed => Err("the node closed a connection".to_owned()),
                NodeConnectionEnd::Violation(text) => Err(text),
            },
        }
    }
}

/// A kill closes connections. It does not make them hang and it does not garble replies.
fn end_of(error: &io::Error) -> NodeConnectionEnd {
    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
        return NodeConnectionEnd::Violation(format!("no reply within {REPLY_WAIT_MAX:?}"));
    }
    if error.kind() == ErrorKind::InvalidData {
        return NodeConnectionEnd::Violation(error.to_string());
    }
    NodeConnectionEnd::Closed
}
