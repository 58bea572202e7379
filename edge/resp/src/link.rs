//! The state of one connection: who it is, what it hears, what it has queued.

use crate::acl::User;
use crate::mailbox::Mailbox;
use crate::parse::KeptArgs;
use crate::reply::Protocol;
use crate::work::Work;
use std::collections::BTreeSet;
use std::sync::Arc;

/// One connection.
#[derive(Debug)]
pub struct Link {
    /// `CLIENT ID`.
    pub id: u64,
    /// Which protocol it speaks.
    pub protocol: Protocol,
    /// Who it is, once it has said so (or where nobody needs to).
    pub user: Option<Arc<User>>,
    /// `CLIENT SETNAME`.
    pub name: Vec<u8>,
    /// Its address, as `CLIENT LIST` shows it.
    pub address: String,
    /// The host that it reached us by, for `SENTINEL`.
    pub local_host: String,
    /// The port that it reached us by, 0 at a Unix socket.
    pub local_port: u16,
    /// Where messages for it go.
    pub mailbox: Arc<Mailbox>,
    /// The channels that it hears.
    pub channels: BTreeSet<Vec<u8>>,
    /// The patterns whose channels it hears.
    pub patterns: BTreeSet<Vec<u8>>,
    /// What `MULTI` has queued.
    pub queue: Option<Queue>,
    /// What `WATCH` has seen.
    pub watched: Vec<Watched>,
    /// Messages of the commands that `EXEC` runs: they are sent once it has committed. Each with
    /// its channel.
    pub to_publish: Vec<(Vec<u8>, Vec<u8>)>,
    /// Work that goes on after the request: a walk over a namespace.
    pub work: Option<Box<dyn Work>>,
    /// True once the connection is to be closed behind the present answer.
    pub is_closing: bool,
    /// What the client has asked the node for, to come near to it.
    pub near: Option<nearstate_node::Near>,
}

/// Requests between `MULTI` and `EXEC`.
#[derive(Debug, Default)]
pub struct Queue {
    /// Each with the number of its command.
    pub requests: Vec<(u16, KeptArgs)>,
    /// Bytes of all of them.
    pub bytes: usize,
    /// True once one of them was refused: `EXEC` refuses all.
    pub is_spoilt: bool,
}

/// A key that `WATCH` has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// As the client says it.
    pub key: Vec<u8>,
    /// The version of its record; `None`: there was none.
    pub version: Option<u64>,
}

impl Link {
    /// How many channels and patterns it hears.
    pub fn hears(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }
}
