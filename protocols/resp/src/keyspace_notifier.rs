//! The task that tells clients what happens to keys: on one core, in the background class, fed by
//! watches of the region, so that changes by embedded processes are told as well.
//!
//! While no event is chosen it waits for that alone: there is no watch, no thread and no timer.
//! While some are, it sleeps until a watched namespace has something to tell, and looks ten times a
//! second whether others have made a namespace (the region wakes nobody for that) and whether
//! records have ended (nobody changes those).

use crate::keyspace_events::watches::WatchedNamespace;
use crate::keyspace_events::{EventClass, KeyspaceEvents, names_of};
use crate::server::RespServer;
use nearstate_model::Result;
use nearstate_node::WatchSelector;
use nearstate_node::executor::{Sleep, is_due, sleep, yield_now};
use nearstate_store::{Event, Notice, Session};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

/// How long the task does not know of a namespace that an embedded process has made, or of a record
/// whose time has passed: what Redis takes to look for the latter.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Records that are collected at a time: some tens of microseconds.
const COLLECTED: usize = 8;

/// How often in a row that is done at a look: forty thousand records a second.
const COLLECTIONS: usize = 512;

/// Events of a namespace after which another has its turn.
const EVENTS_IN_A_ROW: usize = 1024;

/// Events between two looks at the clock.
const EVENTS_AT_ONCE: usize = 16;

/// Tells for as long as the core lives.
pub(crate) async fn run_notifier(server: Arc<RespServer>, session: Rc<Session>) {
    loop {
        let generation = poll_fn(|cx| server.keyspace.poll_enabled(cx)).await;
        let done = match KeyspaceNotifier::new(&server, &session, generation) {
            Ok(mut teller) => teller.run().await,
            Err(error) => Err(error),
        };
        if done.is_err() {
            // The watches are gone with the teller: all begins anew, and what came is lost.
            server.keyspace.end_generation(generation);
            sleep(POLL_INTERVAL).await;
        }
    }
}

struct KeyspaceNotifier<'s> {
    server: &'s RespServer,
    session: &'s Session,
    watch_selector: WatchSelector,
    watched: Vec<WatchedNamespace>,
    /// Those that may have something to tell, by their places in `watched`.
    ready: Vec<usize>,
    /// The numbers of those whose watches gave damage.
    failed: Vec<u32>,
    /// The watch_selector waits for all that are followed.
    is_waiting: bool,
    /// How many namespaces there were when they were looked through.
    known_namespaces: Option<usize>,
    tick: Sleep,
    generation: u64,
    channel: Vec<u8>,
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
            known_namespaces: None,
            tick: sleep(POLL_INTERVAL),
            generation,
            channel: Vec::new(),
        })
    }

    /// Tells until no event is chosen any more.
    async fn run(&mut self) -> Result<()> {
        self.watch_new_namespaces()?;
        loop {
            let Some(new_watches) = self.server.keyspace.take_new(self.generation) else {
                return Ok(());
            };
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
            if self.ready.is_empty() && !self.is_waiting {
                let waits = self.watched.iter();
                let waits = waits.map(|one| (one.watch.waiter(), one.watch.looked()));
                self.watch_selector.wait_for(waits.collect());
                self.is_waiting = true;
            }
            if !self.ready.is_empty() {
                yield_now().await;
            }
            let is_tick = poll_fn(|cx| self.poll(cx)).await?;
            if is_tick {
                self.watch_new_namespaces()?;
                self.collect().await;
                self.tick = sleep(POLL_INTERVAL);
            }
        }
    }

    /// Ready with something to do; true: it is time for a look.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool>> {
        if let Poll::Ready(ready_now) = self.watch_selector.poll(cx) {
            self.ready.extend(ready_now?);
        }
        let is_fresh = self.server.keyspace.poll_new(cx, self.generation).is_ready();
        let is_tick = Pin::new(&mut self.tick).poll(cx).is_ready();
        if is_tick || is_fresh || !self.ready.is_empty() {
            return Poll::Ready(Ok(is_tick));
        }
        Poll::Pending
    }

    /// Follows the namespaces that are new.
    fn watch_new_namespaces(&mut self) -> Result<()> {
        let count = self.session.namespace_count()?;
        if self.known_namespaces == Some(count) {
            return Ok(());
        }
        let mut is_whole = true;
        for (name, namespace) in self.session.namespaces()? {
            let watched = self.server.keyspace.try_watch(self.session, &name, namespace);
            if watched.is_err() {
                self.server.keyspace.counts.failed.fetch_add(1, Ordering::Relaxed);
                is_whole = false;
            }
        }
        self.known_namespaces = is_whole.then_some(count);
        Ok(())
    }

    /// Reads what a namespace has to tell; it is due again if there is more.
    async fn read(&mut self, place: usize) {
        let events = self.server.keyspace.events();
        for count in 1..=EVENTS_IN_A_ROW {
            let Some(WatchedNamespace { number, prefix, watch }) = self.watched.get_mut(place)
            else {
                return;
            };
            match watch.next() {
                Ok(None) => return,
                Ok(Some(Notice::Event(event))) => {
                    publish_event(self.server, events, (prefix, &event), &mut self.channel);
                }
                Ok(Some(Notice::Lost { events })) => {
                    self.server.keyspace.counts.lost.fetch_add(events, Ordering::Relaxed);
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

    /// Lets go of watches that gave damage. The next look follows their namespaces anew.
    fn drop_failed(&mut self) {
        for number in std::mem::take(&mut self.failed) {
            self.server.keyspace.unwatch_failed(number);
            self.watched.retain(|one| one.number != number);
            // Their places have changed: all are looked at.
            self.ready = (0..self.watched.len()).collect();
            self.known_namespaces = None;
        }
    }

    /// Deletes what has ended, which tells of it.
    async fn collect(&self) {
        if !self.server.keyspace.events().has(EventClass::EXPIRED) {
            return;
        }
        for _ in 0..COLLECTIONS {
            match self.session.collect_expired(COLLECTED) {
                Ok(collected) if collected.has_more => yield_now().await,
                // What keeps one record from ending is met again at the next look.
                Ok(_) | Err(_) => return,
            }
        }
    }
}

/// Tells what happened to a key.
fn publish_event(
    server: &RespServer,
    events: KeyspaceEvents,
    (prefix, event): (&[u8], &Event<'_>),
    channel: &mut Vec<u8>,
) {
    server.keyspace.counts.seen.fetch_add(1, Ordering::Relaxed);
    if !server.pubsub.has_subscribers() {
        return;
    }
    let key = [prefix, event.key].concat();
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
            publish(b"__keyspace@0__:", &key, name.as_bytes());
        }
        if events.has(EventClass::KEYEVENT) {
            publish(b"__keyevent@0__:", name.as_bytes(), &key);
        }
    }
}
