//! Background task that publishes keyspace notifications and tells tracking clients what has
//! changed. It runs on one core and reads watches of
//! the region, so that changes by embedded processes are published as well.
//!
//! Without an enabled event there is no watch, thread or timer. With enabled events the task sleeps
//! until a watched namespace has an event. On the host that owns a partition of a cluster, an event
//! is published when its change is replicated. Ten times a second the task looks for namespaces
//! that other processes created (the region sends no wake-up for them) and for expired records.

use crate::delayed_events::{DelayedEvent, DelayedEvents, EventRelease};
use crate::keyspace_events::watches::WatchedNamespace;
use crate::keyspace_events::{EventClass, KeyspaceEvents, names_of};
use crate::server::RespServer;
use nearstate_model::Result;
use nearstate_node::WatchSelector;
use nearstate_node::executor::{Sleep, is_due, sleep, yield_now};
use nearstate_store::{Event, EventKind, Notice, OwnChange, Session};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

/// Latency until the task notices a namespace that an embedded process created or a record that
/// expired. Redis' active expiry has the same interval.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Records deleted per call of the collector: some tens of microseconds.
const COLLECTED: usize = 8;

/// Calls of the collector per interval: forty thousand records a second.
const COLLECTIONS: usize = 512;

/// Events of one namespace before the task reads the next one.
const EVENTS_IN_A_ROW: usize = 1024;

/// Events between two checks of the clock.
const EVENTS_AT_ONCE: usize = 16;

/// Between two looks at whether changes are replicated: some round trips.
const RELEASE_INTERVAL: Duration = Duration::from_millis(1);

/// Publishes events for the lifetime of the core.
pub(crate) async fn run_notifier(server: Arc<RespServer>, session: Rc<Session>) {
    loop {
        let generation = poll_fn(|cx| server.keyspace.poll_enabled(cx)).await;
        let done = match KeyspaceNotifier::new(&server, &session, generation) {
            Ok(mut notifier) => notifier.run().await,
            Err(error) => Err(error),
        };
        if done.is_err() {
            // The notifier and its watches are dropped. The task starts again; events in between
            // are lost.
            server.keyspace.end_generation(generation);
            server.invalidate_all();
            sleep(POLL_INTERVAL).await;
        }
    }
}

struct KeyspaceNotifier<'s> {
    server: &'s RespServer,
    session: &'s Session,
    watch_selector: WatchSelector,
    watched: Vec<WatchedNamespace>,
    /// Indices in `watched` of the namespaces that may have events.
    ready: Vec<usize>,
    /// Numbers of the namespaces whose watches returned damaged entries.
    failed: Vec<u32>,
    /// True while `watch_selector` waits for all watched namespaces.
    is_waiting: bool,
    /// [`Session::namespace_changes`] at the last complete look.
    known_changes: Option<u64>,
    tick: Sleep,
    generation: u64,
    channel: Vec<u8>,
    /// Events whose changes are not replicated.
    delayed: DelayedEvents,
    /// The next look at those.
    release: Option<Sleep>,
}

impl<'s> KeyspaceNotifier<'s> {
    fn new(server: &'s RespServer, session: &'s Session, generation: u64) -> Result<Self> {
        Ok(Self {
            server,
            session,
            watch_selector: WatchSelector::new()?,
            watched: Vec::new(),
            ready: Vec::new(),
            failed: Vec::new(),
            is_waiting: false,
            known_changes: None,
            tick: sleep(POLL_INTERVAL),
            generation,
            channel: Vec::new(),
            delayed: DelayedEvents::default(),
            release: None,
        })
    }

    /// Publishes events until none is enabled.
    async fn run(&mut self) -> Result<()> {
        self.watch_new_namespaces().await?;
        loop {
            let Some(new_watches) = self.server.keyspace.take_new(self.generation) else {
                return Ok(());
            };
            if !new_watches.is_empty() {
                // Their first records may be older than the watches.
                self.server.invalidate_all();
            }
            for watched in new_watches {
                self.ready.push(self.watched.len());
                self.watched.push(watched);
                self.is_waiting = false;
            }
            for place in std::mem::take(&mut self.ready) {
                self.is_waiting = false;
                self.read(place).await;
            }
            self.drop_failed();
            self.release()?;
            if self.ready.is_empty() && !self.is_waiting {
                let waits = self.watched.iter();
                let waits = waits.map(|one| (one.watch.waiter(), one.watch.position()));
                self.watch_selector.wait_for(waits.collect());
                self.is_waiting = true;
            }
            if !self.ready.is_empty() {
                yield_now().await;
            }
            let is_tick = poll_fn(|cx| self.poll(cx)).await?;
            if is_tick {
                self.watch_new_namespaces().await?;
                self.collect().await;
                self.tick = sleep(POLL_INTERVAL);
            }
        }
    }

    /// Ready when there is work. True: the poll interval has passed.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool>> {
        if let Poll::Ready(ready_now) = self.watch_selector.poll(cx) {
            self.ready.extend(ready_now?);
        }
        let is_fresh = self.server.keyspace.poll_new(cx, self.generation).is_ready();
        let is_tick = Pin::new(&mut self.tick).poll(cx).is_ready();
        let release = self.release.as_mut();
        let is_release = release.is_some_and(|at| Pin::new(at).poll(cx).is_ready());
        if is_tick || is_fresh || is_release || !self.ready.is_empty() {
            return Poll::Ready(Ok(is_tick));
        }
        Poll::Pending
    }

    /// Watches the namespaces that are new, and ends the watches of those that were removed.
    async fn watch_new_namespaces(&mut self) -> Result<()> {
        let changes = self.session.namespace_changes()?;
        if changes.is_some() && self.known_changes == changes {
            return Ok(());
        }
        let mut is_whole = true;
        let namespaces = self.session.namespaces()?;
        let live: BTreeSet<u32> = namespaces.iter().map(|(_, one)| one.number()).collect();
        self.read_removed(&live).await;
        for removed in self.watched.extract_if(.., |one| !live.contains(&one.number)) {
            self.server.keyspace.unwatch_removed(removed.number);
            self.is_waiting = false;
        }
        if !self.is_waiting {
            // Indices may have changed: read all namespaces.
            self.ready = (0..self.watched.len()).collect();
        }
        for (name, namespace) in namespaces {
            let watched = self.server.keyspace.try_watch(self.session, &name, namespace);
            if watched.is_err() {
                self.server.keyspace.counts.failed.fetch_add(1, Ordering::Relaxed);
                is_whole = false;
            }
        }
        self.known_changes = changes.filter(|_| is_whole);
        Ok(())
    }

    /// Reads the last events of namespaces that were removed. No more follow.
    async fn read_removed(&mut self, live: &BTreeSet<u32>) {
        for place in 0..self.watched.len() {
            let is_removed = self.watched.get(place).is_some_and(|one| !live.contains(&one.number));
            let mut has_more = is_removed;
            while has_more {
                self.ready.retain(|other| *other != place);
                self.read(place).await;
                has_more = self.ready.contains(&place);
            }
        }
        // A watch whose namespace was removed ends with an error, which is no failure.
        self.failed.retain(|number| live.contains(number));
    }

    /// Publishes the delayed events whose changes are replicated by now.
    fn release(&mut self) -> Result<()> {
        let (server, events) = (self.server, self.server.keyspace.events());
        let channel = &mut self.channel;
        let lost = self.delayed.release(self.session, |event| {
            publish_event(server, events, event, channel);
        })?;
        server.keyspace.counts.lost.fetch_add(lost, Ordering::Relaxed);
        self.release = (!self.delayed.is_empty()).then(|| sleep(RELEASE_INTERVAL));
        Ok(())
    }

    /// Reads the events of one namespace, and publishes those whose changes need not be replicated.
    /// Marks it ready again if there are more.
    async fn read(&mut self, place: usize) {
        let (server, events) = (self.server, self.server.keyspace.events());
        for count in 1..=EVENTS_IN_A_ROW {
            let Some(watched) = self.watched.get_mut(place) else { return };
            let WatchedNamespace { number, namespace, prefix, watch } = watched;
            match watch.next() {
                Ok(None) => return,
                Ok(Some(Notice::Event(event))) => {
                    server.keyspace.counts.seen.fetch_add(1, Ordering::Relaxed);
                    let has_subscribers = server.pubsub.has_subscribers();
                    if has_subscribers || server.tracking.is_any() {
                        let key = [prefix, event.key].concat();
                        // What clients have cached is old from the commit on.
                        invalidate(server, (*number, &key), &event);
                        let event = DelayedEvent { key, kind: event.kind, form: event.form };
                        let is_named = has_subscribers && is_enabled(events, &event);
                        match is_named.then(|| self.delayed.hold(self.session, *namespace, event)) {
                            None | Some(Ok(EventRelease::Delayed)) => {}
                            Some(Ok(EventRelease::Now(event))) => {
                                publish_event(server, events, &event, &mut self.channel);
                            }
                            Some(Ok(EventRelease::Lost)) => {
                                server.keyspace.counts.lost.fetch_add(1, Ordering::Relaxed);
                            }
                            Some(Err(_)) => {
                                self.failed.push(*number);
                                return;
                            }
                        }
                    }
                }
                Ok(Some(Notice::Lost { events })) => {
                    self.server.keyspace.counts.lost.fetch_add(events, Ordering::Relaxed);
                    self.server.invalidate_all();
                }
                Err(_) => {
                    self.failed.push(*number);
                    return;
                }
            }
            if count % EVENTS_AT_ONCE == 0 && is_due() {
                yield_now().await;
            }
        }
        self.ready.push(place);
    }

    /// Drops watches that returned damaged entries. The next interval watches their namespaces
    /// again.
    fn drop_failed(&mut self) {
        for number in std::mem::take(&mut self.failed) {
            self.server.keyspace.unwatch_failed(number);
            self.server.invalidate_all();
            self.watched.retain(|one| one.number != number);
            // Indices have changed: read all namespaces.
            self.ready = (0..self.watched.len()).collect();
            self.known_changes = None;
        }
    }

    /// Deletes expired records, which creates their events: sooner than `expiry_upkeep`.
    async fn collect(&self) {
        let keyspace = &self.server.keyspace;
        if !keyspace.events().has(EventClass::EXPIRED) && !keyspace.is_tracking() {
            return;
        }
        for _ in 0..COLLECTIONS {
            match self.session.collect_expired(COLLECTED) {
                Ok(collected) if collected.has_more => yield_now().await,
                // A failure is retried in the next interval.
                Ok(_) | Err(_) => return,
            }
        }
    }
}

/// Tells tracking clients that a key has changed.
fn invalidate(server: &RespServer, (namespace, key): (u32, &[u8]), event: &Event<'_>) {
    if !server.tracking.is_any() {
        return;
    }
    let change = || OwnChange {
        namespace,
        key: event.key.to_vec(),
        version: event.version,
        is_deleted: event.kind == EventKind::Deleted,
    };
    let change = (event.kind != EventKind::Expired).then(change);
    server.invalidate(key, change.as_ref());
}

/// True if one of the names under which an event is published is enabled.
fn is_enabled(events: KeyspaceEvents, event: &DelayedEvent) -> bool {
    names_of(event.kind, event.form).any(|(class, _)| events.has(class))
}

/// Publishes one event.
fn publish_event(
    server: &RespServer,
    events: KeyspaceEvents,
    event: &DelayedEvent,
    channel: &mut Vec<u8>,
) {
    let key = event.key.as_slice();
    for (class, name) in names_of(event.kind, event.form) {
        if !events.has(class) {
            continue;
        }
        let mut publish = |way: &[u8], about: &[u8], payload: &[u8]| {
            channel.clear();
            channel.extend_from_slice(way);
            channel.extend_from_slice(about);
            server.deliver_event(channel, payload);
        };
        if events.has(EventClass::KEYSPACE) {
            publish(b"__keyspace@0__:", key, name.as_bytes());
        }
        if events.has(EventClass::KEYEVENT) {
            publish(b"__keyevent@0__:", name.as_bytes(), key);
        }
    }
}
