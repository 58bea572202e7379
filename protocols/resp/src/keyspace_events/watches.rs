//! Namespaces watched for keyspace notifications and tracking clients: state shared by all cores
//! and the notifier task.
//!
//! A namespace is watched before its creator writes to it, so that its first change is published.
//! Nothing is watched while no event is enabled.

use crate::key_name::prefix_of;
use crate::keyspace_events::KeyspaceEvents;
use nearstate_model::Result;
use nearstate_store::{Filter, Kind, Namespace, Session, Watch};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The watched namespaces.
#[derive(Debug, Default)]
pub struct KeyspaceWatches {
    /// Enabled events. Written under the lock.
    events: AtomicU16,
    /// True if clients track keys, which needs all changes. Written under the lock.
    is_tracking: AtomicBool,
    /// Statistics of notifications.
    pub counts: KeyspaceStats,
    state: Mutex<WatchState>,
}

/// Statistics of notifications in `INFO`.
#[derive(Debug, Default)]
pub struct KeyspaceStats {
    /// Changes read from the region, with or without subscribers.
    pub seen: AtomicU64,
    /// Changes that were not published because the node read too slowly.
    pub lost: AtomicU64,
    /// Failures: a namespace could not be watched, or its watch returned damaged entries.
    pub failed: AtomicU64,
    /// Number of watched namespaces.
    pub watched: AtomicUsize,
}

#[derive(Debug, Default)]
struct WatchState {
    /// Numbers of the watched namespaces.
    numbers: BTreeSet<u32>,
    /// Watches that the notifier has not taken yet.
    new_watches: Vec<WatchedNamespace>,
    /// Incremented whenever all watches end.
    generation: u64,
    waker: Option<Waker>,
}

/// A watched namespace.
#[derive(Debug)]
pub(crate) struct WatchedNamespace {
    pub(crate) number: u32,
    pub(crate) namespace: Namespace,
    /// Prefix of its keys as clients write them.
    pub(crate) prefix: Vec<u8>,
    pub(crate) watch: Watch,
}

impl KeyspaceWatches {
    /// With these events enabled.
    pub fn new(events: KeyspaceEvents) -> Self {
        Self { events: AtomicU16::new(events.bits()), ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enabled events.
    pub fn events(&self) -> KeyspaceEvents {
        KeyspaceEvents::of_bits(self.events.load(Ordering::Acquire))
    }

    /// True if namespaces are watched, for events or for tracking clients.
    pub fn is_watching(&self) -> bool {
        self.events().is_any() || self.is_tracking()
    }

    /// True if clients track keys.
    pub fn is_tracking(&self) -> bool {
        self.is_tracking.load(Ordering::Acquire)
    }

    /// Starts or ends the watches of tracking clients. The caller
    /// [watches](Self::watch_namespace) the existing namespaces. `is_any` is called under the lock:
    /// of two clients, one that begins and one that ends, the last call sees both.
    pub fn update_tracking(&self, is_any: impl FnOnce() -> bool) {
        let mut state = self.lock();
        self.is_tracking.store(is_any(), Ordering::Release);
        self.end_if_unused(&mut state);
        wake(state);
    }

    fn end_if_unused(&self, state: &mut WatchState) {
        if !self.is_watching() {
            state.end();
            self.counts.watched.store(0, Ordering::Relaxed);
        }
    }

    /// Enables events. Without any, all watches end. If none was enabled before, the caller
    /// [watches](Self::watch_namespace) the existing namespaces.
    pub fn set_events(&self, events: KeyspaceEvents) {
        let mut state = self.lock();
        self.events.store(events.bits(), Ordering::Release);
        self.end_if_unused(&mut state);
        wake(state);
    }

    /// Watches a namespace if events are enabled. A failure is counted and the next call retries: a
    /// write does not fail because its event cannot be published.
    pub fn watch_namespace(&self, session: &Session, name: &str, namespace: Namespace) {
        if !self.is_watching() {
            return;
        }
        if self.try_watch(session, name, namespace).is_err() {
            self.counts.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// As [`KeyspaceWatches::watch_namespace`], and returns the error.
    ///
    /// # Errors
    /// As [`Session::watch`].
    pub fn try_watch(&self, session: &Session, name: &str, namespace: Namespace) -> Result<()> {
        let (Some(prefix), false) = (prefix_of(name), namespace.kind() == Kind::Counters) else {
            return Ok(());
        };
        // Held until the watch exists, so that other callers can rely on it.
        let mut state = self.lock();
        let number = namespace.number();
        if !self.is_watching() || state.numbers.contains(&number) {
            return Ok(());
        }
        let watch = match session.watch(namespace, Filter::Namespace) {
            // It was removed meanwhile, and has no events.
            Err(_) if !session.has_namespace(namespace) => return Ok(()),
            watch => watch?,
        };
        state.numbers.insert(number);
        state.new_watches.push(WatchedNamespace { number, namespace, prefix, watch });
        self.counts.watched.store(state.numbers.len(), Ordering::Relaxed);
        wake(state);
        Ok(())
    }

    /// The watch of a namespace failed: it may be watched again.
    pub(crate) fn unwatch_failed(&self, number: u32) {
        let mut state = self.lock();
        state.numbers.remove(&number);
        self.counts.watched.store(state.numbers.len(), Ordering::Relaxed);
        self.counts.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// A namespace was removed. Its number never occurs again.
    pub(crate) fn unwatch_removed(&self, number: u32) {
        let mut state = self.lock();
        state.numbers.remove(&number);
        self.counts.watched.store(state.numbers.len(), Ordering::Relaxed);
    }

    /// All watches of a generation ended: their namespaces may be watched again.
    pub(crate) fn end_generation(&self, generation: u64) {
        let mut state = self.lock();
        if state.generation == generation {
            state.end();
        }
        self.counts.watched.store(state.numbers.len(), Ordering::Relaxed);
        self.counts.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Ready with the current generation once events are enabled.
    pub(crate) fn poll_enabled(&self, cx: &mut Context<'_>) -> Poll<u64> {
        let mut state = self.lock();
        if self.is_watching() {
            return Poll::Ready(state.generation);
        }
        state.store_waker(cx);
        Poll::Pending
    }

    /// Ready once there are new watches or the generation has ended.
    pub(crate) fn poll_new(&self, cx: &mut Context<'_>, generation: u64) -> Poll<()> {
        let mut state = self.lock();
        if state.generation != generation || !state.new_watches.is_empty() {
            return Poll::Ready(());
        }
        state.store_waker(cx);
        Poll::Pending
    }

    /// Takes the new watches; `None` if the generation has ended.
    pub(crate) fn take_new(&self, generation: u64) -> Option<Vec<WatchedNamespace>> {
        let mut state = self.lock();
        (state.generation == generation).then(|| std::mem::take(&mut state.new_watches))
    }
}

impl WatchState {
    fn end(&mut self) {
        self.numbers.clear();
        self.new_watches.clear();
        self.generation += 1;
    }

    fn store_waker(&mut self, cx: &Context<'_>) {
        if !self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
        }
    }
}

fn wake(mut state: MutexGuard<'_, WatchState>) {
    let waker = state.waker.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}
