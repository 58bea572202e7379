//! The state of one connection: who it is, what it hears, what it has queued.

use crate::acl::User;
use crate::parse::KeptArgs;
use crate::pubsub::mailbox::Mailbox;
use crate::reply::RespVersion;
use crate::sliced_task::Work;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// One connection.
#[derive(Debug)]
pub struct Link {
    /// `CLIENT ID`.
    pub id: u64,
    /// Which protocol it speaks.
    pub protocol: RespVersion,
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
    pub channels: Names,
    /// The patterns whose channels it hears.
    pub patterns: Names,
    /// What `MULTI` has queued.
    pub queue: Option<Queue>,
    /// What `WATCH` has seen.
    pub watched: Watching,
    /// Messages of the commands that `EXEC` runs: they are sent once it has committed.
    pub outbox: Outbox,
    /// Work that goes on after the request: a walk over a namespace.
    pub work: Option<Box<dyn Work>>,
    /// True once the connection is to be closed behind the present answer.
    pub is_closing: bool,
    /// What the client has asked the node for, to come near to it.
    pub near: Option<nearstate_node::LocalResource>,
}

/// Names of what a client hears, and what they cost the node.
#[derive(Debug, Default)]
pub struct Names {
    names: BTreeSet<Vec<u8>>,
    bytes: usize,
}

/// What a name costs beside its bytes, here and in the hub: places in three trees, half of them
/// empty; of a pattern what it is found by; and the allocator's share.
const NAME_COST: usize = 512;

impl Names {
    /// What a name costs: it stands here and in the hub.
    pub const fn cost(name: &[u8]) -> usize {
        2 * name.len() + NAME_COST
    }

    /// What all of them cost, in bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether this is one of them.
    pub fn contains(&self, name: &[u8]) -> bool {
        self.names.contains(name)
    }

    /// Adds one. False if it was there.
    pub fn insert(&mut self, name: &[u8]) -> bool {
        let is_new = self.names.insert(name.to_vec());
        self.bytes += if is_new { Self::cost(name) } else { 0 };
        is_new
    }

    /// Takes one away.
    pub fn remove(&mut self, name: &[u8]) {
        if self.names.remove(name) {
            self.bytes = self.bytes.saturating_sub(Self::cost(name));
        }
    }

    /// All of them, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.names.iter().map(Vec::as_slice)
    }
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

/// Messages that are sent behind a commit, and how long that will take: behind it, it would be too
/// late to refuse.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Each with its channel.
    pub messages: Vec<(Vec<u8>, Vec<u8>)>,
    /// What it costs to send them.
    pub weight: Weight,
}

/// What it costs to send messages, as far as that is known before.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weight {
    /// How many messages.
    pub messages: usize,
    /// To how many clients they go: as many letters as that.
    pub letters: usize,
    /// How long it will take to send all of them, at the most.
    pub takes: Duration,
}

/// What a letter takes: a lock, a place in a mailbox, and now and then a call to another core. It
/// is some tenths of that where the hearers are few and the caches warm; a message without a
/// letter counts as one.
const LETTER_TAKES: Duration = Duration::from_micros(1);
/// What a byte of a message takes: it is copied once, into new memory.
const BYTE_TAKES: Duration = Duration::from_nanos(1);

impl Weight {
    /// One more message, of so many bytes with its channel, for so many hearers. To find them took
    /// `finding`, and will once more.
    pub fn add(&mut self, bytes: usize, hearers: usize, finding: Duration) {
        let times = |each: Duration, count: usize| {
            each.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
        };
        let sending = times(LETTER_TAKES, hearers.saturating_add(1));
        for more in [finding, sending, times(BYTE_TAKES, bytes)] {
            self.takes = self.takes.saturating_add(more);
        }
        self.letters = self.letters.saturating_add(hearers);
        self.messages += 1;
    }
}

impl Outbox {
    /// A message for so many hearers, who were found in so long.
    pub fn put(&mut self, channel: &[u8], payload: &[u8], hearers: usize, finding: Duration) {
        self.weight.add(channel.len() + payload.len(), hearers, finding);
        self.messages.push((channel.to_vec(), payload.to_vec()));
    }
}

/// What `WATCH` and `TAG WATCH` have seen.
#[derive(Clone, Debug, Default)]
pub struct Watching {
    /// Keys as the client says them, each with the version of its record; `None`: there was none.
    keys: BTreeMap<Vec<u8>, Option<u64>>,
    tags: Vec<WatchedTag>,
    bytes: usize,
}

/// A tag's value that `TAG WATCH` has looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedTag {
    /// The tag's name.
    pub name: String,
    /// The value.
    pub value: Vec<u8>,
    /// The key that it led to, as clients say it; where it led to none, an empty one of the tag's
    /// namespace.
    pub key: Vec<u8>,
    /// The version of that key's record; `None`: the value led to none.
    pub version: Option<u64>,
}

/// What a place in a tree or a list costs beside its bytes: half of them may be empty.
const WATCHED_COST: usize = 2 * size_of::<WatchedTag>();

impl Watching {
    /// Whether this key is watched.
    pub fn has(&self, key: &[u8]) -> bool {
        self.keys.contains_key(key)
    }

    /// Watches a key, which had this version.
    pub fn add(&mut self, key: &[u8], version: Option<u64>) {
        if self.keys.insert(key.to_vec(), version).is_none() {
            self.bytes += key.len() + WATCHED_COST;
        }
    }

    /// Watches a tag's value.
    pub fn add_tag(&mut self, tag: WatchedTag) {
        self.bytes += tag.key.len() + tag.name.len() + tag.value.len() + WATCHED_COST;
        self.tags.push(tag);
    }

    /// The keys, each with its version.
    pub fn keys(&self) -> impl Iterator<Item = (&[u8], Option<u64>)> {
        self.keys.iter().map(|(key, version)| (key.as_slice(), *version))
    }

    /// The tags' values.
    pub fn tags(&self) -> &[WatchedTag] {
        &self.tags
    }

    /// How many records of a transaction they take: a tag's value is one, and the record that it
    /// leads to.
    pub fn records(&self) -> usize {
        self.keys.len() + 2 * self.tags.len()
    }

    /// What it keeps of the node's memory, in bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Link {
    /// What it keeps of the node's memory while it waits, its mailbox aside, in bytes.
    pub fn kept(&self) -> usize {
        let queued = self.queue.as_ref().map_or(0, |queue| queue.bytes);
        let work = self.work.as_ref().map_or(0, |work| work.kept());
        queued + self.watched.bytes() + work + self.channels.bytes() + self.patterns.bytes()
    }

    /// How many channels and patterns it hears.
    pub fn hears(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }
}
