//! State of all clients on all cores: users, subscriptions, connections, settings, statistics.

use crate::acl::Users;
use crate::auth_limit::AuthLimit;
use crate::client_pause::ClientPause;
use crate::command::stats::{CommandClass, CommandStats, RespCoreStats};
use crate::keyspace_events::KeyspaceEvents;
use crate::keyspace_events::watches::KeyspaceWatches;
use crate::latency::LatencyMonitor;
use crate::monitors::Monitors;
use crate::parse::Args;
use crate::pubsub::PubSub;
use crate::pubsub::mailbox::Mailbox;
use crate::purge_request::PurgeRequest;
use crate::replication::{Masters, Replicas};
use crate::runtime_settings::{RuntimeSettings, ServerLogLevel};
use crate::tracking::Tracking;
use nearstate_node::metrics::Distribution;
use nearstate_node::{ConnectionLimits, CoreMetrics};
use nearstate_store::{NamespaceUsage, OwnChange, REPLICATION_WAIT_MAX};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Settings of the protocol.
#[derive(Debug)]
pub struct RespSettings {
    /// The users; `Users::open` if none is declared.
    pub users: Users,
    /// The announced port (`CONFIG GET port`, `SENTINEL`), 0 for none. [`RespServer::set_port`]
    /// replaces it.
    pub port: u16,
    /// The host in replies of `SENTINEL`; by default the local address of the connection.
    pub announced_host: Option<String>,
    /// The master names that `SENTINEL` accepts; empty for all names.
    pub masters: Vec<String>,
    /// Path of the region.
    pub region: String,
    /// Limit of queued message bytes per client.
    pub mailbox_bytes_max: usize,
    /// Limit of queued message bytes of all clients together.
    pub messages_bytes_max: usize,
    /// Limit of channels and patterns per client.
    pub subscriptions_max: usize,
    /// Limit of the bytes of a request.
    pub request_bytes_max: usize,
    /// Limit of the time for the commands and messages of one `EXEC`, and for the messages of one
    /// command of the SDL module.
    pub exec_max: Duration,
    /// How long a reply waits for the replication of its commits, in namespaces whose commits wait.
    /// Then it is an error.
    pub replication_wait: Duration,
    /// Threshold of the slow log.
    pub slow_micros: u64,
    /// Limit of slow log entries.
    pub slow_entries_max: usize,
    /// Keyspace notifications enabled at start.
    pub keyspace_events: KeyspaceEvents,
    /// Start time in Unix milliseconds.
    pub started_ms: u64,
    /// Process id.
    pub pid: u32,
    /// The log level at start.
    pub log_level: ServerLogLevel,
    /// Called after `CONFIG SET loglevel`.
    pub on_log_level: fn(ServerLogLevel),
    /// Called on the core after an authentication that failed or was refused.
    pub on_auth_failure: fn(&AuthFailure<'_>),
    /// Called when a namespace exceeds its soft limit: its name, and what its records take.
    pub on_soft_limit: fn(&str, NamespaceUsage),
}

/// An authentication that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthFailure<'a> {
    /// The client's address.
    pub client: &'a str,
    /// The user, if one with this name is declared. Other names may be mistyped passwords.
    pub user: Option<&'a str>,
    /// Failures of the same source that are not forgotten.
    pub failures: u32,
    /// True if the password was not checked because of earlier failures.
    pub is_refused: bool,
}

/// The Redis release that clients are told. Some use it to decide what the server can do: redis-py
/// and Jedis use `CLIENT TRACKING` from 7.4 on, Lettuce `CLIENT SETINFO` from 7.2 on. Replies are
/// those of 7.0, apart from what later releases added to the commands of this server. A newer
/// release is not reported without a run of `cargo xtask soak clients`.
pub const REDIS_VERSION: &str = "7.4.0";

/// Limit of queued message bytes per client, as Redis' default for subscribers.
pub const MAILBOX_BYTES_MAX: usize = 32 << 20;

/// Limit of queued message bytes of all clients together: 32 clients at their own limit. Above it,
/// the client with the most queued bytes is closed, then the next one, until the total is below the
/// limit. The last message may exceed the limit while it is sent.
pub const MESSAGES_BYTES_MAX: usize = 1 << 30;

/// Limit of the bytes of a request: the largest value plus the same amount for all other arguments.
pub const REQUEST_BYTES_MAX: usize = 256 << 20;

/// Limit of the time that one `EXEC` occupies its core, including conflicts, retries and sending
/// its messages. Above it nothing is changed. The client, and others of the core, wait at most this
/// long.
pub const EXEC_MAX: Duration = Duration::from_secs(1);

/// Threshold of the slow log, as in Redis.
pub const SLOW_MICROS: u64 = 10_000;

/// Limit of slow log entries, as in Redis.
pub const SLOW_ENTRIES_MAX: usize = 128;

/// Limit of channels and patterns per client. SDL's clients use a few.
pub const SUBSCRIPTIONS_MAX: usize = 100_000;

impl RespSettings {
    /// Default settings.
    pub fn new(users: Users) -> Self {
        Self {
            users,
            port: 6379,
            announced_host: None,
            masters: Vec::new(),
            region: String::new(),
            mailbox_bytes_max: MAILBOX_BYTES_MAX,
            messages_bytes_max: MESSAGES_BYTES_MAX,
            subscriptions_max: SUBSCRIPTIONS_MAX,
            request_bytes_max: REQUEST_BYTES_MAX,
            exec_max: EXEC_MAX,
            replication_wait: REPLICATION_WAIT_MAX,
            slow_micros: SLOW_MICROS,
            slow_entries_max: SLOW_ENTRIES_MAX,
            keyspace_events: KeyspaceEvents::NONE,
            started_ms: nearstate_store::now_ms_coarse(),
            pid: std::process::id(),
            log_level: ServerLogLevel::Notice,
            on_log_level: |_| (),
            on_auth_failure: |_| (),
            on_soft_limit: |_, _| (),
        }
    }
}

/// State of all clients.
#[derive(Debug)]
pub struct RespServer {
    /// The settings, as the server was started.
    pub settings: RespSettings,
    /// The settings that `CONFIG SET` changes.
    pub runtime: RuntimeSettings,
    /// Channels and patterns.
    pub pubsub: PubSub,
    /// Namespaces watched for keyspace notifications.
    pub keyspace: KeyspaceWatches,
    /// Statistics of requests.
    pub stats: ServerStats,
    /// Failed authentications.
    pub auth_limit: AuthLimit,
    /// `CLIENT PAUSE`.
    pub pause: ClientPause,
    /// `MONITOR`.
    pub monitors: Monitors,
    /// `WAIT` and `ROLE`.
    pub replicas: Replicas,
    /// `SENTINEL`.
    pub masters: Masters,
    /// `CLIENT TRACKING`.
    pub tracking: Tracking,
    /// `LATENCY`.
    pub latency: LatencyMonitor,
    /// `MEMORY PURGE` was called, and the memory upkeep has not looked since.
    pub(crate) purge_request: PurgeRequest,
    /// Time that the memory upkeep has worked, in nanoseconds.
    pub upkeep_nanos: AtomicU64,
    port: AtomicU16,
    /// The limits of the node, once it is started.
    limits: OnceLock<Arc<ConnectionLimits>>,
    clients: Mutex<BTreeMap<u64, ClientEntry>>,
    slow: Mutex<SlowLog>,
}

/// Public state of a connection (`CLIENT LIST`).
#[derive(Clone, Debug)]
pub struct ClientEntry {
    /// The client's address, as `CLIENT LIST` shows it.
    pub address: String,
    /// Local address.
    pub local: String,
    /// `CLIENT SETNAME`.
    pub name: String,
    /// `CLIENT SETINFO`.
    pub library: [String; 2],
    /// User name, empty before `AUTH`.
    pub user: String,
    /// Connect time in Unix milliseconds.
    pub since_ms: u64,
    /// Numbers of subscribed channels and patterns.
    pub subscription_count: [usize; 2],
    /// 2 or 3.
    pub protocol: u8,
    /// `CLIENT NO-EVICT ON`.
    pub is_no_evict: bool,
    /// `MONITOR`.
    pub is_monitor: bool,
    /// `CLIENT TRACKING`: broadcasting, and the connection that receives the messages, 0 for none.
    pub tracking: Option<(bool, u64)>,
    /// Receives published messages.
    pub mailbox: Arc<Mailbox>,
}

/// An entry of the slow log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowLogEntry {
    /// Ascending, from 0.
    pub id: u64,
    /// Start time in Unix seconds.
    pub at_seconds: u64,
    /// Duration in microseconds.
    pub micros: u64,
    /// Arguments, truncated.
    pub args: Vec<Vec<u8>>,
    /// The client's address.
    pub address: String,
    /// The client's name.
    pub name: String,
}

#[derive(Debug, Default)]
struct SlowLog {
    next: u64,
    entries: VecDeque<SlowLogEntry>,
}

impl RespServer {
    /// A server without connections.
    pub fn new(settings: RespSettings) -> Self {
        let log_level = settings.log_level;
        let server = Self {
            keyspace: KeyspaceWatches::new(settings.keyspace_events),
            pubsub: PubSub::new(settings.messages_bytes_max),
            port: AtomicU16::new(settings.port),
            limits: OnceLock::new(),
            runtime: RuntimeSettings::new(
                settings.slow_micros,
                settings.slow_entries_max,
                settings.mailbox_bytes_max,
            ),
            settings,
            stats: ServerStats::default(),
            auth_limit: AuthLimit::default(),
            pause: ClientPause::default(),
            monitors: Monitors::default(),
            replicas: Replicas::default(),
            masters: Masters::default(),
            tracking: Tracking::default(),
            latency: LatencyMonitor::default(),
            clients: Mutex::default(),
            purge_request: PurgeRequest::default(),
            upkeep_nanos: AtomicU64::new(0),
            slow: Mutex::default(),
        };
        server.runtime.set_log_level(log_level);
        server
    }

    /// The announced port.
    pub fn port(&self) -> u16 {
        self.port.load(Ordering::Relaxed)
    }

    /// Sets the announced port, once the kernel has chosen one.
    pub fn set_port(&self, port: u16) {
        self.port.store(port, Ordering::Relaxed);
    }

    /// The limits of the node's connections, once it is started.
    pub(crate) fn connection_limits(&self) -> Option<&ConnectionLimits> {
        self.limits.get().map(Arc::as_ref)
    }

    /// Called by each core. All cores have the same limits.
    pub(crate) fn set_connection_limits(&self, limits: &Arc<ConnectionLimits>) {
        self.limits.get_or_init(|| Arc::clone(limits));
    }

    fn lock_clients(&self) -> MutexGuard<'_, BTreeMap<u64, ClientEntry>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a connection.
    pub fn add_client(&self, id: u64, client_entry: ClientEntry) {
        self.lock_clients().insert(id, client_entry);
    }

    /// Removes a connection.
    pub fn remove_client(&self, id: u64) {
        self.lock_clients().remove(&id);
    }

    /// Changes the public state of a connection.
    pub fn update_client(&self, id: u64, change: impl FnOnce(&mut ClientEntry)) {
        if let Some(client_entry) = self.lock_clients().get_mut(&id) {
            change(client_entry);
        }
    }

    /// All connections, oldest first.
    pub fn clients(&self) -> Vec<(u64, ClientEntry)> {
        self.lock_clients().iter().map(|(id, client_entry)| (*id, client_entry.clone())).collect()
    }

    /// The public state of one connection.
    pub fn client_entry(&self, id: u64) -> Option<ClientEntry> {
        self.lock_clients().get(&id).cloned()
    }

    /// Publishes a message of a client. Returns the number of deliveries.
    pub fn publish(&self, channel: &[u8], payload: &[u8]) -> usize {
        ServerStats::add(&self.stats.published, 1);
        self.deliver_event(channel, payload)
    }

    /// As [`RespServer::publish`] for messages that no client sent.
    pub fn deliver_event(&self, channel: &[u8], payload: &[u8]) -> usize {
        let deliveries = self.pubsub.publish(channel, payload);
        self.check_message_budget();
        deliveries
    }

    /// A key was created, changed or deleted: tells the tracking clients.
    pub(crate) fn invalidate(&self, key: &[u8], change: Option<&OwnChange>) {
        self.tracking.invalidate(key, change, &self.pubsub.budget);
        self.check_message_budget();
    }

    /// Changes may have been missed: tracking clients discard what they have cached.
    pub(crate) fn invalidate_all(&self) {
        if self.tracking.is_any() {
            self.tracking.invalidate_all(&self.pubsub.budget);
            self.check_message_budget();
        }
    }

    #[inline]
    fn check_message_budget(&self) {
        if self.pubsub.budget.is_full() {
            self.enforce_message_budget();
        }
    }

    /// Sends a request to the clients that monitor.
    #[cold]
    pub(crate) fn monitor(&self, address: &str, args: Args<'_>) {
        let at_micros = nearstate_store::now_ms() * 1000;
        self.monitors.send(&self.pubsub.budget, at_micros, address, args);
        self.check_message_budget();
    }

    /// Closes the clients with the most queued bytes until the total is within the limit. Closing
    /// one may release little, because messages are shared with other clients. If the mailboxes
    /// together are within the limit, the excess is in messages being written, and no client is
    /// closed.
    #[cold]
    fn enforce_message_budget(&self) {
        // The lock is held throughout, so that two cores together close no more clients than one
        // would.
        let clients = self.lock_clients();
        let held = clients
            .values()
            .map(|client_entry| (client_entry.mailbox.held(), &client_entry.mailbox));
        let mut held: Vec<_> = held.filter(|(bytes, _)| *bytes > 0).collect();
        held.sort_unstable_by_key(|(bytes, _)| Reverse(*bytes));
        let mut together = held.iter().fold(0_usize, |all, (bytes, _)| all.saturating_add(*bytes));
        for (bytes, mailbox) in held {
            if !self.pubsub.budget.is_full() || together <= self.pubsub.budget.bytes_max() {
                return;
            }
            together = together.saturating_sub(bytes);
            mailbox.overrun();
        }
    }

    /// Number of connections.
    pub fn client_count(&self) -> usize {
        self.lock_clients().len()
    }

    fn slow(&self) -> MutexGuard<'_, SlowLog> {
        self.slow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry to the slow log. Removes the oldest ones above the limit.
    pub fn log_slow(&self, mut request: SlowLogEntry) {
        let mut slow = self.slow();
        request.id = slow.next;
        slow.next += 1;
        slow.entries.push_front(request);
        slow.entries.truncate(self.runtime.slow_entries_max());
    }

    /// Removes the oldest slow log entries above the limit.
    pub(crate) fn truncate_slow_log(&self) {
        self.slow().entries.truncate(self.runtime.slow_entries_max());
    }

    /// Entries of the slow log, newest first.
    pub fn slow_log_entries(&self, count: usize) -> Vec<SlowLogEntry> {
        self.slow().entries.iter().take(count).cloned().collect()
    }

    /// Number of slow log entries.
    pub fn slow_log_len(&self) -> usize {
        self.slow().entries.len()
    }

    /// Clears the slow log.
    pub fn reset_slow_log(&self) {
        self.slow().entries.clear();
    }
}

/// Statistics of all cores.
#[derive(Debug, Default)]
pub struct ServerStats {
    /// Connections accepted.
    pub connections: AtomicU64,
    /// Messages published.
    pub published: AtomicU64,
    /// Statistics of requests, by core.
    cores: Mutex<Vec<Arc<RespCoreStats>>>,
    /// Metrics of connections, by core.
    connection_metrics: Mutex<Vec<Arc<CoreMetrics>>>,
    /// The counters at the last `CONFIG RESETSTAT`.
    baseline: Mutex<StatsSnapshot>,
}

/// The counters of `INFO`.
#[derive(Clone, Debug, Default)]
pub(crate) struct StatsSnapshot {
    /// Connections, requests, error replies, hits, misses, messages.
    pub(crate) counts: [u64; 6],
    /// By name.
    pub(crate) commands: BTreeMap<&'static str, CommandStats>,
}

impl ServerStats {
    /// Adds to a counter.
    pub fn add(count: &AtomicU64, more: u64) {
        count.fetch_add(more, Ordering::Relaxed);
    }

    fn cores(&self) -> MutexGuard<'_, Vec<Arc<RespCoreStats>>> {
        self.cores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the statistics of requests of a core.
    pub(crate) fn add_core(&self, core: Arc<RespCoreStats>) {
        self.cores().push(core);
    }

    /// Adds the metrics of the connections of a core.
    pub(crate) fn add_connection_metrics(&self, metrics: Arc<CoreMetrics>) {
        self.connection_metrics().push(metrics);
    }

    fn connection_metrics(&self) -> MutexGuard<'_, Vec<Arc<CoreMetrics>>> {
        self.connection_metrics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that connections of all cores buffer.
    pub(crate) fn bytes_buffered(&self) -> u64 {
        self.connection_metrics().iter().map(|core| core.bytes_buffered.get()).sum()
    }

    /// The sum of the most bytes that connections of each core buffered since the last call.
    pub(crate) fn take_bytes_buffered_peak(&self) -> u64 {
        self.connection_metrics().iter().map(|core| core.bytes_buffered.take_peak()).sum()
    }

    /// Hits and misses of reads.
    pub fn hits_and_misses(&self) -> [u64; 2] {
        self.cores()
            .iter()
            .map(|core| core.hits_and_misses())
            .fold([0, 0], |[hits, misses], [more, less]| [hits + more, misses + less])
    }

    /// Number of requests, and of those with error replies.
    pub fn requests(&self) -> (u64, u64) {
        let totals = self.cores().iter().map(|core| core.totals()).collect::<Vec<_>>();
        totals.iter().fold((0, 0), |(all, bad), (more, worse)| (all + more, bad + worse))
    }

    /// Latencies of requests by class, in nanoseconds, of all cores.
    pub fn latencies(&self) -> [(CommandClass, Distribution); CommandClass::ALL.len()] {
        let mut all = CommandClass::ALL.map(|class| (class, Distribution::default()));
        for core in self.cores().iter() {
            for ((_, sum), more) in all.iter_mut().zip(core.latencies()) {
                sum.merge(&more);
            }
        }
        all
    }

    /// Latencies of the commands that were called, by name, in nanoseconds.
    pub(crate) fn command_latencies(&self) -> BTreeMap<&'static str, Distribution> {
        let mut all: BTreeMap<&'static str, Distribution> = BTreeMap::new();
        for core in self.cores().iter() {
            for (name, more) in core.command_latencies() {
                all.entry(name).or_default().merge(&more);
            }
        }
        all
    }

    /// `CONFIG RESETSTAT`.
    pub(crate) fn reset(&self) {
        let now = self.snapshot();
        *self.baseline.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// The counters since the last `CONFIG RESETSTAT`. The exported metrics are never reset.
    pub(crate) fn since_reset(&self) -> StatsSnapshot {
        let before = self.baseline.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut now = self.snapshot();
        for (count, before) in now.counts.iter_mut().zip(before.counts) {
            *count = count.saturating_sub(before);
        }
        for (name, before) in &before.commands {
            if let Some(stats) = now.commands.get_mut(name) {
                *stats = stats.since(before);
            }
        }
        now.commands.retain(|_, stats| stats.calls > 0 || stats.rejected > 0);
        now
    }

    fn snapshot(&self) -> StatsSnapshot {
        let (requests, errors) = self.requests();
        let [hits, misses] = self.hits_and_misses();
        let connections = self.connections.load(Ordering::Relaxed);
        let published = self.published.load(Ordering::Relaxed);
        let counts = [connections, requests, errors, hits, misses, published];
        StatsSnapshot { counts, commands: self.commands() }
    }

    /// Statistics of the commands that were called or rejected, by name.
    pub fn commands(&self) -> BTreeMap<&'static str, CommandStats> {
        let mut all: BTreeMap<&'static str, CommandStats> = BTreeMap::new();
        for core in self.cores().iter() {
            for (name, more) in core.commands() {
                let tally = all.entry(name).or_default();
                tally.calls += more.calls;
                tally.micros += more.micros;
                tally.failed += more.failed;
                tally.rejected += more.rejected;
            }
        }
        all
    }
}
