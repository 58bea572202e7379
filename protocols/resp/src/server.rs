//! What all clients share, on every core: users, channels, who is connected, settings, counts.

use crate::acl::Users;
use crate::command::stats::{Class, CommandCounts, CommandTally};
use crate::keyspace_events::KeyspaceEvents;
use crate::keyspace_events::watches::Keyspace;
use crate::pubsub::Hub;
use crate::pubsub::mailbox::Mailbox;
use nearstate_node::metrics::Distribution;
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What the node says of itself to this protocol.
#[derive(Debug)]
pub struct Settings {
    /// The users; `Users::open` where none was declared.
    pub users: Users,
    /// The port that it is told to be reached by (`CONFIG GET port`, `SENTINEL`), 0 for none.
    pub port: u16,
    /// The address that `SENTINEL` answers, if clients are to use another than they came by.
    pub announced_host: Option<String>,
    /// The names that `SENTINEL` answers to; empty: to every name.
    pub masters: Vec<String>,
    /// The region's file.
    pub region: String,
    /// Bytes of messages that may wait for one client.
    pub mailbox_bytes_max: usize,
    /// Bytes of messages that may wait for all clients together.
    pub messages_bytes_max: usize,
    /// The most channels and patterns of one client.
    pub subscriptions_max: usize,
    /// The most bytes of one request.
    pub request_bytes_max: usize,
    /// How long the commands of one `EXEC`, and the sending of its messages, may keep their core;
    /// so long may the messages of one of SDL's commands take.
    pub exec_max: Duration,
    /// Requests that take longer are kept in the slow log.
    pub slow_micros: u64,
    /// The most entries of the slow log.
    pub slow_entries_max: usize,
    /// The events of keys that are told from the start on.
    pub keyspace_events: KeyspaceEvents,
    /// Milliseconds since 1970 at the start.
    pub started_ms: u64,
    /// The process's id.
    pub pid: u32,
}

/// The release of Redis whose commands and answers these are: clients go by it.
pub const REDIS_VERSION: &str = "7.0.15";

/// The most bytes of messages that wait for one client: what Redis allows a subscriber.
pub const MAILBOX_BYTES_MAX: usize = 32 << 20;

/// The most bytes of messages that wait for all clients together: 32 of them may be as far behind
/// as one may be. With more the client is closed for whom most waits, and then the next one, until
/// it is enough. The last message may pass it, while it is sent.
pub const MESSAGES_BYTES_MAX: usize = 1 << 30;

/// The most bytes of one request: the largest value, and as much for what comes with it.
pub const REQUEST_BYTES_MAX: usize = 256 << 20;

/// How long the commands of one `EXEC` may keep their core, conflicts, all that was run again and
/// the messages that it is about to send included. Then nothing of it is changed. It is what a
/// client waits for an answer, and others of the core wait as long.
pub const EXEC_MAX: Duration = Duration::from_secs(1);

/// Requests that take as long are kept in the slow log: what Redis keeps.
pub const SLOW_MICROS: u64 = 10_000;

/// The most entries of the slow log: what Redis keeps.
pub const SLOW_ENTRIES_MAX: usize = 128;

/// The most channels and patterns of one client. SDL's clients have a few.
pub const SUBSCRIPTIONS_MAX: usize = 100_000;

impl Settings {
    /// What holds where nobody has said anything else.
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
            slow_micros: SLOW_MICROS,
            slow_entries_max: SLOW_ENTRIES_MAX,
            keyspace_events: KeyspaceEvents::NONE,
            started_ms: nearstate_store::now_ms_coarse(),
            pid: std::process::id(),
        }
    }
}

/// What all clients share.
#[derive(Debug)]
pub struct Server {
    /// What the node says of itself.
    pub settings: Settings,
    /// Channels.
    pub hub: Hub,
    /// Namespaces that are watched for events of keys.
    pub keyspace: Keyspace,
    /// Requests of all clients, by command.
    pub tallies: Tallies,
    cards: Mutex<BTreeMap<u64, Card>>,
    slow: Mutex<Slow>,
}

/// What others may know of a connection (`CLIENT LIST`).
#[derive(Clone, Debug)]
pub struct Card {
    /// Its address, as `CLIENT LIST` shows it.
    pub address: String,
    /// Our end.
    pub local: String,
    /// `CLIENT SETNAME`.
    pub name: String,
    /// `CLIENT SETINFO`.
    pub library: [String; 2],
    /// Who it is; empty before `AUTH`.
    pub user: String,
    /// When it came, milliseconds since 1970.
    pub since_ms: u64,
    /// Channels and patterns that it hears.
    pub hears: [usize; 2],
    /// 2 or 3.
    pub protocol: u8,
    /// Where messages for it go.
    pub mailbox: Arc<Mailbox>,
}

/// A request that took long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowRequest {
    /// Ascending, from 0.
    pub id: u64,
    /// When, seconds since 1970.
    pub at_seconds: u64,
    /// How long, in microseconds.
    pub micros: u64,
    /// Its arguments, cut.
    pub args: Vec<Vec<u8>>,
    /// The client's address.
    pub address: String,
    /// The client's name.
    pub name: String,
}

#[derive(Debug, Default)]
struct Slow {
    next: u64,
    entries: VecDeque<SlowRequest>,
}

impl Server {
    /// Nobody is connected yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            keyspace: Keyspace::new(settings.keyspace_events),
            hub: Hub::new(settings.messages_bytes_max),
            settings,
            tallies: Tallies::default(),
            cards: Mutex::default(),
            slow: Mutex::default(),
        }
    }

    fn cards(&self) -> MutexGuard<'_, BTreeMap<u64, Card>> {
        self.cards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client has come.
    pub fn enter(&self, id: u64, card: Card) {
        self.cards().insert(id, card);
    }

    /// A client has gone.
    pub fn leave(&self, id: u64) {
        self.cards().remove(&id);
    }

    /// Changes what others know of a client.
    pub fn note(&self, id: u64, change: impl FnOnce(&mut Card)) {
        if let Some(card) = self.cards().get_mut(&id) {
            change(card);
        }
    }

    /// All clients, in the order in which they came.
    pub fn clients(&self) -> Vec<(u64, Card)> {
        self.cards().iter().map(|(id, card)| (*id, card.clone())).collect()
    }

    /// What is known of one client.
    pub fn card(&self, id: u64) -> Option<Card> {
        self.cards().get(&id).cloned()
    }

    /// Sends a message to all that hear a channel; how many letters that were.
    pub fn publish(&self, channel: &[u8], payload: &[u8]) -> usize {
        Tallies::add(&self.tallies.published, 1);
        self.tell(channel, payload)
    }

    /// As [`Server::publish`], of what no client has published.
    pub fn tell(&self, channel: &[u8], payload: &[u8]) -> usize {
        let letters = self.hub.publish(channel, payload);
        if self.hub.post.is_full() {
            self.make_room();
        }
        letters
    }

    /// Closes clients for whom most waits until what waits for all is within its bound. Closing one
    /// may give little back: others may wait for the same messages. Those whose mailboxes are
    /// within the bound together are innocent: what is over is on its way to clients that read.
    #[cold]
    fn make_room(&self) {
        // Two cores that find the post full at once close no more than one would: this is held.
        let cards = self.cards();
        let held = cards.values().map(|card| (card.mailbox.held(), &card.mailbox));
        let mut held: Vec<_> = held.filter(|(bytes, _)| *bytes > 0).collect();
        held.sort_unstable_by_key(|(bytes, _)| Reverse(*bytes));
        let mut together = held.iter().fold(0_usize, |all, (bytes, _)| all.saturating_add(*bytes));
        for (bytes, mailbox) in held {
            if !self.hub.post.is_full() || together <= self.hub.post.bytes_max() {
                return;
            }
            together = together.saturating_sub(bytes);
            mailbox.overrun();
        }
    }

    /// How many clients there are.
    pub fn client_count(&self) -> usize {
        self.cards().len()
    }

    fn slow(&self) -> MutexGuard<'_, Slow> {
        self.slow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a request that took long; the oldest goes where there are too many.
    pub fn keep_slow(&self, mut request: SlowRequest) {
        let mut slow = self.slow();
        request.id = slow.next;
        slow.next += 1;
        slow.entries.push_front(request);
        slow.entries.truncate(self.settings.slow_entries_max);
    }

    /// The slow log, the newest first.
    pub fn slow_requests(&self, count: usize) -> Vec<SlowRequest> {
        self.slow().entries.iter().take(count).cloned().collect()
    }

    /// How many entries the slow log has.
    pub fn slow_count(&self) -> usize {
        self.slow().entries.len()
    }

    /// Empties the slow log.
    pub fn forget_slow(&self) {
        self.slow().entries.clear();
    }
}

/// Counts over all cores.
#[derive(Debug, Default)]
pub struct Tallies {
    /// Connections that came.
    pub connections: AtomicU64,
    /// Messages published.
    pub published: AtomicU64,
    /// Requests, core by core.
    cores: Mutex<Vec<Arc<CommandCounts>>>,
}

impl Tallies {
    /// Adds to a count.
    pub fn add(count: &AtomicU64, more: u64) {
        count.fetch_add(more, Ordering::Relaxed);
    }

    fn cores(&self) -> MutexGuard<'_, Vec<Arc<CommandCounts>>> {
        self.cores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the requests of one more core count.
    pub(crate) fn enlist(&self, core: Arc<CommandCounts>) {
        self.cores().push(core);
    }

    /// Reads that found a record, and that found none.
    pub fn found(&self) -> [u64; 2] {
        self.cores()
            .iter()
            .map(|core| core.found())
            .fold([0, 0], |[hits, misses], [more, less]| [hits + more, misses + less])
    }

    /// All requests, and how many of them were answered with an error.
    pub fn requests(&self) -> (u64, u64) {
        let totals = self.cores().iter().map(|core| core.totals()).collect::<Vec<_>>();
        totals.iter().fold((0, 0), |(all, bad), (more, worse)| (all + more, bad + worse))
    }

    /// How long the requests of each class took, in nanoseconds, over all cores.
    pub fn latencies(&self) -> [(Class, Distribution); Class::ALL.len()] {
        let mut all = Class::ALL.map(|class| (class, Distribution::default()));
        for core in self.cores().iter() {
            for ((_, sum), more) in all.iter_mut().zip(core.latencies()) {
                sum.merge(&more);
            }
        }
        all
    }

    /// All commands that were called, by name.
    pub fn commands(&self) -> BTreeMap<&'static str, CommandTally> {
        let mut all: BTreeMap<&'static str, CommandTally> = BTreeMap::new();
        for core in self.cores().iter() {
            for (name, more) in core.commands() {
                let tally = all.entry(name).or_default();
                tally.calls += more.calls;
                tally.micros += more.micros;
                tally.failed += more.failed;
            }
        }
        all
    }
}
