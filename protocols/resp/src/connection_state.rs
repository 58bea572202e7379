//! State of one connection: user, subscriptions, queued commands, watched keys.

use crate::acl::User;
use crate::auth_limit::AuthSource;
use crate::command::{CommandFlags, CommandSpec};
use crate::parse::{Args, OwnedArgs};
use crate::pubsub::mailbox::Mailbox;
use crate::replication::ReplicaWait;
use crate::reply::RespVersion;
use crate::server::RespServer;
use crate::sliced_task::SlicedTask;
use nearstate_model::invariant;
use nearstate_node::executor::Sleep;
use nearstate_store::{Namespace, Receipt};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// State of one connection.
#[derive(Debug)]
pub struct ConnectionState {
    /// `CLIENT ID`.
    pub id: u64,
    /// Protocol version.
    pub protocol: RespVersion,
    /// The user, once authenticated or if no authentication is required.
    pub user: Option<Arc<User>>,
    /// The user of a new connection, to which `RESET` returns: that of the client's certificate, or
    /// the default user if it needs no password.
    pub initial_user: Option<Arc<User>>,
    /// Where failed authentications are counted.
    pub auth_source: AuthSource,
    /// Failed authentications of this connection.
    pub auth_failures: u32,
    /// True while a request runs whose delay of authentication is over.
    pub is_auth_due: bool,
    /// `CLIENT TRACKING`.
    pub tracking: Option<TrackingOptions>,
    /// A `WAIT` that is not over. Boxed: an idle connection has none.
    pub replica_wait: Option<Box<ReplicaWait>>,
    /// A request that runs later. Later requests of the connection wait.
    pub postponed: Option<PostponedRequest>,
    /// `CLIENT SETNAME`.
    pub name: Vec<u8>,
    /// The client's address, as `CLIENT LIST` shows it.
    pub address: String,
    /// The local host of the connection, for `SENTINEL`.
    pub local_host: String,
    /// The local port of the connection, 0 for a Unix socket.
    pub local_port: u16,
    /// True if the client connected to an address of the Sentinel.
    pub is_sentinel: bool,
    /// Receives published messages.
    pub mailbox: Arc<Mailbox>,
    /// Subscribed channels.
    pub channels: Subscriptions,
    /// Subscribed patterns.
    pub patterns: Subscriptions,
    /// Commands queued by `MULTI`.
    pub queue: Option<CommandQueue>,
    /// Keys and tag values watched by `WATCH` and `TAG WATCH`.
    pub watched: WatchedRecords,
    /// Messages of the commands of `EXEC`, to be sent after the commit.
    pub deferred_messages: DeferredMessages,
    /// Messages that are sent with the replies of this read that wait for their commits.
    pub waiting_messages: WaitingMessages,
    /// The rest of a command that runs in slices, such as a scan of a namespace.
    pub task: Option<Box<dyn SlicedTask>>,
    /// What the task reads: its reply waits for the commits that it tells of.
    pub task_reads: Option<Box<TaskReads>>,
    /// True if the connection closes after the current reply.
    pub is_closing: bool,
    /// `CLIENT REPLY`.
    pub reply_mode: ReplyMode,
    /// Resource of the local transport that the client requested and has not received yet.
    pub local_request: Option<nearstate_local_transport::LocalResource>,
}

/// What a task reads.
#[derive(Debug, Default)]
pub struct TaskReads {
    /// Keys, as clients write them.
    pub keys: Vec<Vec<u8>>,
    /// A namespace whose commits wait for other hosts, and which is searched.
    pub namespace: Option<Namespace>,
}

/// `CLIENT REPLY`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyMode {
    /// Every request is answered.
    #[default]
    On,
    /// None is.
    Off,
    /// The next one is not.
    Skip,
}

impl ReplyMode {
    /// True if some requests are not answered.
    pub fn is_limited(self) -> bool {
        self != Self::On
    }
}

/// `CLIENT TRACKING` of a connection.
#[expect(clippy::struct_excessive_bools, reason = "words that a client may give together")]
#[derive(Clone, Debug, Default)]
pub struct TrackingOptions {
    /// `BCAST`.
    pub is_broadcast: bool,
    /// `OPTIN`.
    pub is_opt_in: bool,
    /// `OPTOUT`.
    pub is_opt_out: bool,
    /// `NOLOOP`.
    pub is_no_loop: bool,
    /// `REDIRECT`.
    pub redirect: Option<u64>,
    /// `PREFIX`; the empty one without a prefix in broadcasting mode.
    pub prefixes: BTreeSet<Vec<u8>>,
    /// `CLIENT CACHING`, for the next request.
    pub caching: CachingMode,
    /// True until all namespaces are watched.
    pub is_starting: bool,
}

/// `CLIENT CACHING`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CachingMode {
    /// Not given.
    #[default]
    Unset,
    /// `YES`
    Yes,
    /// `NO`
    No,
}

impl TrackingOptions {
    /// Whether keys that the next request reads are tracked.
    pub fn is_tracking_reads(&self) -> bool {
        !self.is_broadcast
            && (!self.is_opt_in || self.caching == CachingMode::Yes)
            && self.caching != CachingMode::No
    }
}

/// A request that runs later.
#[derive(Debug)]
pub struct PostponedRequest {
    /// The request.
    pub request: OwnedArgs,
    /// What it waits for.
    pub cause: PostponeCause,
    /// How long it waits.
    pub wait: Duration,
    /// Set once it waits.
    pub timer: Option<Sleep>,
}

/// Why a request runs later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostponeCause {
    /// Earlier authentications failed.
    Auth,
    /// `CLIENT PAUSE`. True if the request writes.
    Pause(bool),
    /// `WAIT`: not enough followers have acknowledged.
    Replicas,
}

impl PostponeCause {
    /// True if the wait may last for as long as the client, or another one, has chosen.
    pub const fn is_unbounded(self) -> bool {
        match self {
            Self::Auth => false,
            Self::Pause(_) | Self::Replicas => true,
        }
    }
}

/// Names of subscribed channels or patterns, with their memory.
#[derive(Debug, Default)]
pub struct Subscriptions {
    names: BTreeSet<Vec<u8>>,
    bytes: usize,
}

/// Memory overhead of a subscription, here and in [`PubSub`](crate::pubsub::PubSub):
/// entries of three trees that may be half empty, the search prefix of a pattern, and allocator
/// overhead.
const NAME_COST: usize = 512;

impl Subscriptions {
    /// Memory of a subscription. The name is stored twice.
    pub const fn cost(name: &[u8]) -> usize {
        2 * name.len() + NAME_COST
    }

    /// Memory of all subscriptions in bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of names.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// True if there are no names.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether a name is subscribed.
    pub fn contains(&self, name: &[u8]) -> bool {
        self.names.contains(name)
    }

    /// Adds a name. Returns false if it was present.
    pub fn insert(&mut self, name: &[u8]) -> bool {
        let is_new = self.names.insert(name.to_vec());
        self.bytes += if is_new { Self::cost(name) } else { 0 };
        is_new
    }

    /// Removes a name.
    pub fn remove(&mut self, name: &[u8]) {
        if self.names.remove(name) {
            invariant!(Self::cost(name) <= self.bytes, "a subscribed name is counted");
            self.bytes -= Self::cost(name);
        }
    }

    /// All names in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.names.iter().map(Vec::as_slice)
    }
}

/// Requests between `MULTI` and `EXEC`.
#[derive(Debug, Default)]
pub struct CommandQueue {
    /// Requests, each with the number of its command.
    pub requests: Vec<(u16, OwnedArgs)>,
    /// Bytes of all requests.
    pub bytes: usize,
    /// True if a request was rejected: `EXEC` then fails.
    pub is_dirty: bool,
}

/// Messages to be sent after a commit, and the estimated time to send them. The time is limited
/// before the commit, because a commit cannot be undone.
#[derive(Debug, Default)]
pub struct DeferredMessages {
    /// Channel and payload of each message.
    pub messages: Vec<(Vec<u8>, Vec<u8>)>,
    /// Cost of sending them.
    pub weight: PublishCost,
}

/// Estimated cost of sending messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct PublishCost {
    /// Number of messages.
    pub messages: usize,
    /// Number of receivers of all messages.
    pub deliveries: usize,
    /// Upper estimate of the time to send all messages.
    pub takes: Duration,
}

/// Time of a delivery: a lock, an entry of a mailbox, and sometimes a wake-up of another core. With
/// few subscribers and warm caches it is some tenths of this. A message without subscribers counts
/// as one delivery.
const DELIVERY_TIME: Duration = Duration::from_micros(1);
/// Time per byte of a message, which is copied once.
const BYTE_TIME: Duration = Duration::from_nanos(1);

impl PublishCost {
    /// Adds a message of `bytes` bytes including its channel. Finding its subscribers took
    /// `lookup_time` and takes it again when the message is sent.
    pub fn add(&mut self, bytes: usize, subscribers: usize, lookup_time: Duration) {
        let times = |each: Duration, count: usize| {
            each.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
        };
        let sending = times(DELIVERY_TIME, subscribers.saturating_add(1));
        for more in [lookup_time, sending, times(BYTE_TIME, bytes)] {
            self.takes = self.takes.saturating_add(more);
        }
        self.deliveries = self.deliveries.saturating_add(subscribers);
        self.messages += 1;
    }
}

impl DeferredMessages {
    /// Adds a message for `subscribers` clients.
    pub fn put(
        &mut self,
        channel: &[u8],
        payload: &[u8],
        subscribers: usize,
        lookup_time: Duration,
    ) {
        self.weight.add(channel.len() + payload.len(), subscribers, lookup_time);
        self.messages.push((channel.to_vec(), payload.to_vec()));
    }
}

/// Messages of the requests of one read, from the first request on whose reply waits until its
/// commit is replicated. A subscriber could otherwise act on what a fail-over discards, and get the
/// messages of one client in another order than they were sent.
#[derive(Debug, Default)]
pub struct WaitingMessages {
    /// In the order in which they were sent.
    pub messages: Vec<WaitingMessage>,
    /// A reply of this read waits.
    pub is_behind_reply: bool,
}

/// A message that waits.
#[derive(Debug)]
pub struct WaitingMessage {
    /// Its channel.
    pub channel: Vec<u8>,
    /// Its payload.
    pub payload: Vec<u8>,
    /// The commit that it tells of. [`Receipt::NONE`]: it only waits for its turn.
    pub receipt: Receipt,
}

impl WaitingMessages {
    /// Adds a message of the request that is executed.
    pub fn put(&mut self, channel: &[u8], payload: &[u8]) {
        let (channel, payload) = (channel.to_vec(), payload.to_vec());
        self.messages.push(WaitingMessage { channel, payload, receipt: Receipt::NONE });
    }

    /// The reply of a request waits for this commit, and so do its messages: those from `first` on.
    pub fn owe(&mut self, first: usize, receipt: Receipt) {
        self.is_behind_reply = true;
        for message in self.messages.iter_mut().skip(first) {
            message.receipt = receipt;
        }
    }
}

/// What `WATCH` and `TAG WATCH` monitor.
#[derive(Clone, Debug, Default)]
pub struct WatchedRecords {
    /// Keys as sent by the client, with the version of the record or `None` if it did not exist.
    keys: BTreeMap<Vec<u8>, Option<u64>>,
    tags: Vec<WatchedTag>,
    bytes: usize,
}

/// A tag value monitored by `TAG WATCH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedTag {
    /// Name of the tag.
    pub name: String,
    /// The value.
    pub value: Vec<u8>,
    /// Key of the record with this value, as clients write it. If there is none, the empty key of
    /// the tag's namespace.
    pub key: Vec<u8>,
    /// Version of that record, or `None` if there is none.
    pub version: Option<u64>,
}

/// Memory overhead of an entry: trees and lists may be half empty.
const WATCHED_COST: usize = 2 * size_of::<WatchedTag>();

impl WatchedRecords {
    /// Whether a key is watched.
    pub fn has(&self, key: &[u8]) -> bool {
        self.keys.contains_key(key)
    }

    /// Watches a key with its current version.
    pub fn add(&mut self, key: &[u8], version: Option<u64>) {
        if self.keys.insert(key.to_vec(), version).is_none() {
            self.bytes += key.len() + WATCHED_COST;
        }
    }

    /// Watches a tag value.
    pub fn add_tag(&mut self, tag: WatchedTag) {
        self.bytes += tag.key.len() + tag.name.len() + tag.value.len() + WATCHED_COST;
        self.tags.push(tag);
    }

    /// The keys with their versions.
    pub fn keys(&self) -> impl Iterator<Item = (&[u8], Option<u64>)> {
        self.keys.iter().map(|(key, version)| (key.as_slice(), *version))
    }

    /// The tag values.
    pub fn tags(&self) -> &[WatchedTag] {
        &self.tags
    }

    /// Number of records that they add to a transaction. A tag value adds its posting and its
    /// record.
    pub fn records(&self) -> usize {
        self.keys.len() + 2 * self.tags.len()
    }

    /// Memory in bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl ConnectionState {
    /// The task searches a namespace whose commits wait for other hosts.
    pub fn note_search(&mut self, namespace: Option<Namespace>) {
        if namespace.is_some() {
            self.task_reads.get_or_insert_default().namespace = namespace;
        }
    }

    /// Tracks the keys of a request that reads, before it reads them.
    #[cold]
    pub fn track_keys<R>(&self, server: &RespServer, command: &CommandSpec<R>, args: Args<'_>) {
        let is_tracked = self.tracking.as_ref().is_some_and(TrackingOptions::is_tracking_reads);
        if is_tracked && command.flags.has(CommandFlags::READONLY) && !command.keys.is_none() {
            let keys = command.keys.of(args).filter_map(|at| args.get(at));
            server.tracking.track(self.id, keys, &server.pubsub.budget);
        }
    }

    /// `CLIENT TRACKING ON NOLOOP`.
    pub fn is_no_loop(&self) -> bool {
        self.tracking.as_ref().is_some_and(|options| options.is_no_loop)
    }

    /// Ends `CLIENT TRACKING`.
    pub fn stop_tracking(&mut self, server: &RespServer) {
        if self.tracking.take().is_none() {
            return;
        }
        server.update_client(self.id, |client_entry| client_entry.tracking = None);
        if server.tracking.remove(self.id) {
            server.keyspace.update_tracking(|| server.tracking.is_any());
        }
    }

    /// The mode of the server in `HELLO` and `INFO`.
    pub const fn mode(&self) -> &'static str {
        if self.is_sentinel { "sentinel" } else { "standalone" }
    }

    /// Memory in bytes, without the mailbox.
    pub fn memory_bytes(&self) -> usize {
        let queued = self.queue.as_ref().map_or(0, |queue| queue.bytes);
        let task = self.task.as_ref().map_or(0, |task| task.memory_bytes());
        let task = task + self.postponed.as_ref().map_or(0, |one| one.request.bytes());
        let prefixes = self.tracking.iter().flat_map(|options| &options.prefixes);
        let task = task + prefixes.map(|prefix| 2 * prefix.len() + NAME_COST).sum::<usize>();
        queued + self.watched.bytes() + task + self.channels.bytes() + self.patterns.bytes()
    }

    /// Number of subscribed channels and patterns.
    pub fn subscription_count(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }
}
