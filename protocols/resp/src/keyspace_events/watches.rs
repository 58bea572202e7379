//! Which namespaces are watched for keyspace events: what all cores and the one task that tells
//! share.
//!
//! A namespace is followed before whoever made it writes into it, and so its first change is told.
//! Nothing is watched while no event is chosen.

use crate::key_name::prefix_of;
use crate::keyspace_events::KeyspaceEvents;
use nearstate_model::Result;
use nearstate_store::{Filter, Kind, Namespace, Session, Watch};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The watched namespaces.
#[derive(Debug, Default)]
pub struct KeyspaceWatches {
    /// The events that are told. Written under the lock.
    events: AtomicU16,
    /// Counts of what was told.
    pub counts: KeyspaceStats,
    state: Mutex<WatchState>,
}

/// What `INFO` says of the events.
#[derive(Debug, Default)]
pub struct KeyspaceStats {
    /// Changes of records that were read from the region, heard by somebody or not.
    pub seen: AtomicU64,
    /// Changes that nobody was told, because more came than the node could read.
    pub lost: AtomicU64,
    /// Times that a namespace could not be watched, or what its watch gave was damaged.
    pub failed: AtomicU64,
    /// Namespaces that are watched.
    pub watched: AtomicUsize,
}

#[derive(Debug, Default)]
struct WatchState {
    /// The numbers of the namespaces that are watched.
    numbers: BTreeSet<u32>,
    /// Watches that the task has not taken yet.
    new_watches: Vec<WatchedNamespace>,
    /// Grows whenever all watches end.
    generation: u64,
    waker: Option<Waker>,
}

/// A namespace that is watched.
#[derive(Debug)]
pub(crate) struct WatchedNamespace {
    pub(crate) number: u32,
    /// What stands before its keys where clients say them.
    pub(crate) prefix: Vec<u8>,
    pub(crate) watch: Watch,
}

impl KeyspaceWatches {
    /// With these events chosen from the start.
    pub fn new(events: KeyspaceEvents) -> Self {
        Self { events: AtomicU16::new(events.bits()), ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The events that are told.
    pub fn events(&self) -> KeyspaceEvents {
        KeyspaceEvents::of_bits(self.events.load(Ordering::Acquire))
    }

    /// Chooses the events that are told from now on. Where there are none all watches end; where
    /// there were none, the namespaces that are there are to be [followed](Self::follow) one by
    /// one.
    pub fn set_events(&self, events: KeyspaceEvents) {
        let mut state = self.lock();
        self.events.store(events.bits(), Ordering::Release);
        if !events.is_any() {
            state.end();
            self.counts.watched.store(0, Ordering::Relaxed);
        }
        wake(state);
    }

    /// Follows a namespace, if events are chosen and it is not followed: its changes from now on
    /// are told. A failure is counted, and whoever asks again tries again: a client's write does
    /// not fail because others cannot be told of it.
    pub fn watch_namespace(&self, session: &Session, name: &str, namespace: Namespace) {
        if !self.events().is_any() {
            return;
        }
        if self.try_watch(session, name, namespace).is_err() {
            self.counts.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// As [`KeyspaceWatches::watch_namespace`], for who wants to know.
    ///
    /// # Errors
    /// As [`Session::watch`].
    pub fn try_watch(&self, session: &Session, name: &str, namespace: Namespace) -> Result<()> {
        let (Some(prefix), false) = (prefix_of(name), namespace.kind() == Kind::Counters) else {
            return Ok(());
        };
        // Held meanwhile: who finds the namespace followed may rely on it.
        let mut state = self.lock();
        let number = namespace.number();
        if !self.events().is_any() || state.numbers.contains(&number) {
            return Ok(());
        }
        let watch = session.watch(namespace, Filter::Namespace)?;
        state.numbers.insert(number);
        state.new_watches.push(WatchedNamespace { number, prefix, watch });
        self.counts.watched.store(state.numbers.len(), Ordering::Relaxed);
        wake(state);
        Ok(())
    }

    /// A namespace's watch has ended: it may be followed anew.
    pub(crate) fn unwatch_failed(&self, number: u32) {
        let mut state = self.lock();
        state.numbers.remove(&number);
        self.counts.watched.store(state.numbers.len(), Ordering::Relaxed);
        self.counts.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// All watches of a turn have ended: the namespaces may be followed anew.
    pub(crate) fn end_generation(&self, generation: u64) {
        let mut state = self.lock();
        if state.generation == generation {
            state.end();
        }
        self.counts.watched.store(state.numbers.len(), Ordering::Relaxed);
        self.counts.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Ready once events are chosen: the turn in which that is.
    pub(crate) fn poll_enabled(&self, cx: &mut Context<'_>) -> Poll<u64> {
        let mut state = self.lock();
        if self.events().is_any() {
            return Poll::Ready(state.generation);
        }
        state.store_waker(cx);
        Poll::Pending
    }

    /// Ready once there are watches to take, or those of this turn have ended.
    pub(crate) fn poll_new(&self, cx: &mut Context<'_>, generation: u64) -> Poll<()> {
        let mut state = self.lock();
        if state.generation != generation || !state.new_watches.is_empty() {
            return Poll::Ready(());
        }
        state.store_waker(cx);
        Poll::Pending
    }

    /// The watches that nobody has taken yet; `None` if those of this turn have ended.
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
