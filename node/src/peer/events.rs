//! How a source serves followers, and what both report.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use nearstate_store::NamespaceRules;

use crate::tls::Tls;

/// How to send the log of a region.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// Addresses that followers connect to.
    pub listen: Vec<SocketAddr>,
    /// TLS; without it bytes and names travel as they are.
    pub tls: Option<Tls>,
    /// Patterns of the names of the namespaces that are added to the log, new ones included.
    /// Followers get all that are logged.
    pub namespaces: Vec<String>,
    /// True if commits are refused when no follower has acknowledged the oldest entries of a full
    /// log; otherwise these are lost, and the follower gets all records again.
    pub keeps: bool,
    /// The most followers at a time.
    pub followers_max: usize,
    /// The name of this host in messages.
    pub name: String,
    /// Called on the threads of the peers.
    pub on_event: fn(&PeerEvent<'_>),
}

/// What happens to followers.
#[derive(Debug)]
pub enum PeerEvent<'a> {
    /// A follower is served.
    Connected {
        /// Its name.
        name: &'a str,
        /// Its address.
        address: SocketAddr,
        /// True if it gets all records first.
        joins: bool,
    },
    /// A follower has everything.
    Joined {
        /// Its name.
        name: &'a str,
        /// The position.
        position: u64,
    },
    /// A follower is served no longer.
    Left {
        /// Its name.
        name: &'a str,
        /// The reason.
        reason: &'a str,
    },
    /// A connection was refused.
    Refused {
        /// Its address.
        address: SocketAddr,
        /// The reason.
        reason: &'a str,
        /// True for a member of a group that comes too early or too late: while the owner changes,
        /// or a host starts. It connects again by itself.
        is_passing: bool,
    },
    /// A namespace could not be added to the log. It is tried again.
    NotLogged {
        /// Its name.
        namespace: &'a str,
        /// The reason.
        reason: &'a str,
    },
}

/// A follower, for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowerStats {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: SocketAddr,
    /// True while it gets all records.
    pub is_joining: bool,
    /// The last position that it has acknowledged.
    pub acknowledged: u64,
    /// The end of the log at that moment.
    pub tail: u64,
    /// Milliseconds since 1970 of its last acknowledgement.
    pub acknowledged_ms: u64,
}

/// How far a follower is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowProgress {
    /// True while it gets all records.
    pub is_joining: bool,
    /// Records that were applied while it joined.
    pub records: u64,
    /// Transactions that were applied.
    pub entries: u64,
    /// The last position that was applied.
    pub position: u64,
    /// The end of the source's log, as it was told last.
    pub tail: u64,
}

/// What happens to a follower.
#[derive(Clone, Debug)]
pub enum FollowEvent<'a> {
    /// It is connected.
    Connected {
        /// The name of the source.
        source: &'a str,
        /// True if it gets all records first.
        joins: bool,
    },
    /// It has everything up to this position.
    Joined {
        /// The position.
        position: u64,
        /// The records that were applied while it joined.
        records: u64,
    },
    /// The connection has ended. It connects again after a pause.
    Disconnected {
        /// The reason.
        reason: &'a str,
        /// The pause.
        retry: Duration,
    },
    /// How far it is.
    Progress(FollowProgress),
}

impl FollowProgress {
    /// It has everything up to this position.
    pub(super) fn joined(&self, position: u64) -> FollowEvent<'static> {
        FollowEvent::Joined { position, records: self.records }
    }
}

/// How followers of a region are served.
#[derive(Clone, Debug)]
pub(crate) struct SourceConfig {
    pub(crate) namespaces: NamespaceRules,
    pub(crate) keeps: bool,
    pub(crate) followers_max: usize,
    /// In a cluster, the hosts that may follow.
    pub(crate) members: BTreeSet<String>,
    pub(crate) name: String,
    pub(crate) on_event: fn(&PeerEvent<'_>),
}
