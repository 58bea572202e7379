//! What the protocol has on a core.

use crate::command::stats::CommandCounts;
use crate::command_context::Command;
use crate::connection_state::{Link, Names, Outbox, Watching};
use crate::pubsub::mailbox::Mailbox;
use crate::records::Records;
use crate::reply::RespVersion;
use crate::server::{Card, Server, SlowRequest, Tallies};
use nearstate_node::{Core, Peer, PeerAddress};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// What the protocol has on a core.
#[derive(Debug)]
pub(crate) struct OnCore {
    pub(crate) server: Arc<Server>,
    pub(crate) records: Records,
    pub(crate) core: Core,
    counts: Arc<CommandCounts>,
    /// When the present request began: the end of the one before, in ticks.
    last: Cell<u64>,
}

impl OnCore {
    pub(crate) fn new(server: &Arc<Server>, core: &Core, counts: Arc<CommandCounts>) -> Self {
        Self {
            server: Arc::clone(server),
            records: Records::new(Rc::clone(core.session()), Arc::clone(server)),
            core: core.clone(),
            counts,
            last: Cell::new(0),
        }
    }

    /// A connection that has just come.
    pub(crate) fn link(&self, peer: &Peer) -> Link {
        let settings = &self.server.settings;
        // A certificate proves a name as well as a password would.
        let proven = peer
            .certificate
            .as_ref()
            .and_then(|name| settings.users.named(name.as_bytes()).filter(|user| user.is_on()));
        let user = proven.or_else(|| settings.users.welcome()).cloned();
        let mailbox = Arc::new(Mailbox::new(settings.mailbox_bytes_max, &self.server.hub.post));
        let (address, local, local_host, local_port) = match &peer.address {
            PeerAddress::Tcp { remote, local } => {
                (remote.to_string(), local.to_string(), local.ip().to_string(), local.port())
            }
            PeerAddress::Unix { pid, .. } => {
                let path = format!("unix:{}", pid.unwrap_or_default());
                (path.clone(), path, "127.0.0.1".to_owned(), settings.port)
            }
        };
        Tallies::add(&self.server.tallies.connections, 1);
        self.server.enter(
            peer.id,
            Card {
                address: address.clone(),
                local,
                name: String::new(),
                library: Default::default(),
                user: user.as_ref().map(|user| user.name().to_owned()).unwrap_or_default(),
                since_ms: nearstate_store::now_ms_coarse(),
                hears: [0; 2],
                protocol: 2,
                mailbox: Arc::clone(&mailbox),
            },
        );
        Link {
            id: peer.id,
            protocol: RespVersion::default(),
            user,
            name: Vec::new(),
            address,
            local_host,
            local_port,
            mailbox,
            channels: Names::default(),
            patterns: Names::default(),
            queue: None,
            watched: Watching::default(),
            outbox: Outbox::default(),
            work: None,
            is_closing: false,
            near: None,
        }
    }

    /// The most bytes that an answer may have.
    #[inline]
    pub(crate) fn answer_bytes_max(&self) -> usize {
        self.core.limits().output_bytes_max
    }

    /// Counts what reads have found.
    #[inline]
    pub(crate) fn note_found(&self) {
        let found = self.records.take_found();
        if found != [0, 0] {
            self.counts.add_found(found);
        }
    }

    /// Some requests have come.
    pub(crate) fn begin(&self) {
        self.last.set(self.core.clock().now());
    }

    /// Counts a request that was answered, and keeps it if it took long.
    #[inline]
    pub(crate) fn count(
        &self,
        command: Option<&'static Command>,
        is_refused: bool,
        slow: impl FnOnce(u64) -> SlowRequest,
    ) {
        let now = self.core.clock().now();
        let nanos = self.core.clock().nanos(now.saturating_sub(self.last.replace(now)));
        self.core.metrics().requests.add(1);
        self.counts.count(command.map(|command| command.number), nanos, is_refused);
        let micros = nanos / 1000;
        if micros >= self.server.settings.slow_micros {
            self.server.keep_slow(slow(micros));
        }
    }
}
