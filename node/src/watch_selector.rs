//! Waiting for many watches: one thread that sleeps at all of them, and wakes a task.
//!
//! ```text
//!           wait_for: the task has read everything         an event after the last read
//!   waiting <--------------------------------------- idle <---------------------------- waiting
//!   the thread sleeps on the watches' rings          the thread sleeps until the next wait_for
//! ```
//!
//! The selector reports once, and not again until the task has read the reported watches, so a task
//! that lags costs nothing. Writers are not involved: they wake all threads that sleep on a ring of
//! events.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use nearstate_model::Result;
use nearstate_store::{Waiter, WatchPosition, with_signals_blocked};

use crate::placement;

/// How long the thread waits before it starts another wait. Correctness does not depend on it: an
/// event or the end wakes the thread. (The rings bound each sleep within.)
const ROUND: Duration = Duration::from_secs(60);

/// Waits for the watches of a task. Dropping it ends its thread.
pub struct WatchSelector {
    shared: Arc<SelectorShared>,
    thread: Option<JoinHandle<()>>,
}

/// Watches, and the position up to which each was read.
type SelectorWaits = Arc<[(Waiter, WatchPosition)]>;

#[derive(Default)]
struct SelectorShared {
    state: Mutex<SelectorState>,
    /// Signalled when there are watches to wait for, or at the end.
    changed: Condvar,
}

#[derive(Default)]
struct SelectorState {
    waits: SelectorWaits,
    /// Incremented with each new `waits`, which cancels a wait for older ones.
    round: u64,
    /// The thread is idle until there are new `waits`.
    is_idle: bool,
    /// The indices of watches that may have new events.
    result: Option<Result<Vec<usize>>>,
    is_ending: bool,
    waker: Option<Waker>,
}

impl fmt::Debug for WatchSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchSelector")
            .field("waits", &self.shared.lock().waits.len())
            .finish_non_exhaustive()
    }
}

impl WatchSelector {
    /// Starts the thread, with no watches.
    ///
    /// # Errors
    /// `System` if the process may not start another thread.
    pub fn new() -> Result<Self> {
        let shared = Arc::<SelectorShared>::default();
        shared.lock().is_idle = true;
        let threads = Arc::clone(&shared);
        // Signal handlers of the program continue to run in the program's own threads.
        let thread =
            with_signals_blocked(|| placement::spawn("ns-watch-select", move || threads.run()))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Waits for these watches from now on. Each was read up to its position. Discards a
    /// result for earlier watches.
    pub fn wait_for(&self, waits: Vec<(Waiter, WatchPosition)>) {
        let mut state = self.shared.lock();
        let old = std::mem::replace(&mut state.waits, Arc::from(waits));
        state.round += 1;
        state.result = None;
        let was_idle = std::mem::take(&mut state.is_idle);
        drop(state);
        if was_idle || old.is_empty() {
            self.shared.changed.notify_one();
        } else {
            wake(&old);
        }
    }

    /// The indices, in the argument of [`WatchSelector::wait_for`], of watches that may have new
    /// events. Reported once; then `wait_for` must be called again.
    ///
    /// # Errors
    /// `Damaged`, `Forked`, `System`: also reported once.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<Vec<usize>>> {
        let mut state = self.shared.lock();
        if let Some(result) = state.result.take() {
            return Poll::Ready(result);
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for WatchSelector {
    /// Ends the thread and waits for it, some microseconds.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_ending = true;
        let waits = Arc::clone(&state.waits);
        drop(state);
        self.shared.changed.notify_one();
        wake(&waits);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Makes a thread that waits for these check whether its wait is cancelled. A damaged region ends
/// the wait by itself.
fn wake(waits: &[(Waiter, WatchPosition)]) {
    if let Some((first, _)) = waits.first() {
        let _ = first.wake();
    }
}

impl SelectorShared {
    /// A panic of a lock holder leaves the state consistent.
    fn lock(&self) -> MutexGuard<'_, SelectorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the thread.
    fn run(&self) {
        while let Some((round, waits)) = self.next() {
            let is_over = || {
                let state = self.lock();
                state.is_ending || state.round != round
            };
            let waited = Waiter::wait_any(&waits, ROUND, is_over);
            let found = waited.and_then(|_| with_events(&waits));
            let mut state = self.lock();
            if state.is_ending {
                return;
            }
            let is_nothing = found.as_ref().is_ok_and(Vec::is_empty);
            if state.round != round || is_nothing {
                continue;
            }
            state.result = Some(found);
            state.is_idle = true;
            let waker = state.waker.take();
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// The watches to wait for, once there are some; `None` at the end.
    fn next(&self) -> Option<(u64, SelectorWaits)> {
        let mut state = self.lock();
        while (state.is_idle || state.waits.is_empty()) && !state.is_ending {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        (!state.is_ending).then(|| (state.round, Arc::clone(&state.waits)))
    }
}

/// The indices of the watches that have new events.
fn with_events(waits: &[(Waiter, WatchPosition)]) -> Result<Vec<usize>> {
    let mut found = Vec::new();
    for (place, (waiter, looked)) in waits.iter().enumerate() {
        if waiter.has_more(*looked)? {
            found.push(place);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::task::Wake;
    use std::thread::Thread;

    use nearstate_store::{CreateOptions, Filter, Namespace, Region, Schema, Session, Watch};

    use super::*;

    struct Unparks(Thread);

    impl Wake for Unparks {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn result(watch_selector: &WatchSelector) -> Vec<usize> {
        let waker = Waker::from(Arc::new(Unparks(std::thread::current())));
        loop {
            match watch_selector.poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(result) => return result.unwrap(),
                Poll::Pending => std::thread::park(),
            }
        }
    }

    fn is_silent(watch_selector: &WatchSelector) -> bool {
        watch_selector.poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    fn watched(session: &Session, names: &[&str]) -> Vec<(Namespace, Watch)> {
        let watched = names.iter().map(|name| {
            let namespace = session.namespace(name, &Schema::default()).unwrap();
            (namespace, session.watch(namespace, Filter::Namespace).unwrap())
        });
        watched.collect()
    }

    fn waits(watched: &[(Namespace, Watch)]) -> Vec<(Waiter, WatchPosition)> {
        watched.iter().map(|(_, watch)| (watch.waiter(), watch.position())).collect()
    }

    #[test]
    fn watches_with_events_are_reported_once_per_wait() {
        let dir = tempfile::tempdir().unwrap();
        let options = CreateOptions::default();
        let region = Region::create(&dir.path().join("region"), &options).unwrap();
        let session = region.session().unwrap();
        let watch_selector = WatchSelector::new().unwrap();
        assert!(is_silent(&watch_selector));
        let mut watched = watched(&session, &["a", "b", "c"]);
        watch_selector.wait_for(waits(&watched));
        session.put(watched[1].0, b"k", b"1").unwrap();
        assert_eq!(result(&watch_selector), [1]);
        session.put(watched[2].0, b"k", b"1").unwrap();
        assert!(is_silent(&watch_selector), "it rests");
        // Events that were not read are reported again.
        watch_selector.wait_for(waits(&watched));
        assert_eq!(result(&watch_selector), [1, 2]);
        for (_, watch) in &mut watched {
            while watch.next().unwrap().is_some() {}
        }
        watch_selector.wait_for(waits(&watched));
        session.put(watched[0].0, b"k", b"1").unwrap();
        assert_eq!(result(&watch_selector), [0]);
    }

    #[test]
    fn the_watches_can_be_replaced_and_the_selector_ends_during_a_wait() {
        let dir = tempfile::tempdir().unwrap();
        let options = CreateOptions::default();
        let region = Region::create(&dir.path().join("region"), &options).unwrap();
        let session = region.session().unwrap();
        let watch_selector = WatchSelector::new().unwrap();
        let [first, second] = [&["a"], &["b"]].map(|names| watched(&session, names));
        watch_selector.wait_for(waits(&first));
        watch_selector.wait_for(waits(&second));
        session.put(first[0].0, b"k", b"1").unwrap();
        session.put(second[0].0, b"k", b"1").unwrap();
        assert_eq!(result(&watch_selector), [0]);
        watch_selector.wait_for(Vec::new());
        assert!(is_silent(&watch_selector));
        watch_selector.wait_for(waits(&watched(&session, &["c"])));
        drop(watch_selector);
    }
}
