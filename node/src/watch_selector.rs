//! Waiting for many watches: one thread that sleeps at all of them, and wakes a task.
//!
//! ```text
//!           WatchSelector::wait_for: the task has read everything         an event beyond that
//!   waiting <-------------------------------------------- resting <------------------- waiting
//!   the thread sleeps at the watches' rings          the thread sleeps until it is told to wait
//! ```
//!
//! It tells once and not again until the task has read what it was told of, so a task that lags
//! costs nothing. Writers know nothing of it: they wake whoever sleeps at a ring of events.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use nearstate_model::Result;
use nearstate_store::{Waiter, WatchPosition, with_signals_blocked};

use crate::placement;

/// How long the thread waits before it begins to wait again. Nothing depends on it: it is woken for
/// an event and for its end. (Each sleep within is bounded by the rings themselves.)
const ROUND: Duration = Duration::from_secs(60);

/// What waits for watches that a task reads. Ends its thread when it is dropped.
pub struct WatchSelector {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Watches, and how far each had looked.
type Waits = Arc<[(Waiter, WatchPosition)]>;

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// CompletionGuard when there is something to wait for, or the end has come.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waits: Waits,
    /// Grows with each new `waits`: a wait for others is over.
    turn: u64,
    /// The thread has nothing to do until there are new `waits`.
    is_resting: bool,
    /// Which of the watches may have something to tell.
    told: Option<Result<Vec<usize>>>,
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
    /// Begins the thread. There is nothing to wait for yet.
    ///
    /// # Errors
    /// `System` if the process may have no further thread.
    pub fn new() -> Result<Self> {
        let shared = Arc::<Shared>::default();
        shared.lock().is_resting = true;
        let threads = Arc::clone(&shared);
        // The program's handlers go on running in the program's own threads.
        let thread = with_signals_blocked(|| {
            placement::spawn("near-watch_selector", move || threads.attend())
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// From now on waits for these watches, each of which has looked so far and found nothing. What
    /// was told of others is forgotten.
    pub fn wait_for(&self, waits: Vec<(Waiter, WatchPosition)>) {
        let mut state = self.shared.lock();
        let old = std::mem::replace(&mut state.waits, Arc::from(waits));
        state.turn += 1;
        state.told = None;
        let was_resting = std::mem::take(&mut state.is_resting);
        drop(state);
        if was_resting || old.is_empty() {
            self.shared.changed.notify_one();
        } else {
            wake(&old);
        }
    }

    /// Which of the watches may have something to tell, by their places in what was given to
    /// [`WatchSelector::wait_for`]. CompletionGuard once; then that is to be called again.
    ///
    /// # Errors
    /// `Damaged`, `Forked`, `System`: also told once.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<Vec<usize>>> {
        let mut state = self.shared.lock();
        if let Some(told) = state.told.take() {
            return Poll::Ready(told);
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

/// Makes a thread that waits for these ask whether it is over. If the region is damaged its wait
/// ends by itself.
fn wake(waits: &[(Waiter, WatchPosition)]) {
    if let Some((first, _)) = waits.first() {
        let _ = first.wake();
    }
}

impl Shared {
    /// A panic of whoever held it leaves nothing half done.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of the thread.
    fn attend(&self) {
        while let Some((turn, waits)) = self.next() {
            let is_over = || {
                let state = self.lock();
                state.is_ending || state.turn != turn
            };
            let waited = Waiter::wait_any(&waits, ROUND, is_over);
            let found = waited.and_then(|_| beyond(&waits));
            let mut state = self.lock();
            if state.is_ending {
                return;
            }
            let is_nothing = found.as_ref().is_ok_and(Vec::is_empty);
            if state.turn != turn || is_nothing {
                continue;
            }
            state.told = Some(found);
            state.is_resting = true;
            let waker = state.waker.take();
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// What to wait for, once there is something; `None` at the end.
    fn next(&self) -> Option<(u64, Waits)> {
        let mut state = self.lock();
        while (state.is_resting || state.waits.is_empty()) && !state.is_ending {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        (!state.is_ending).then(|| (state.turn, Arc::clone(&state.waits)))
    }
}

/// The places of the watches that have something to look at.
fn beyond(waits: &[(Waiter, WatchPosition)]) -> Result<Vec<usize>> {
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

    fn told(watch_selector: &WatchSelector) -> Vec<usize> {
        let waker = Waker::from(Arc::new(Unparks(std::thread::current())));
        loop {
            match watch_selector.poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(told) => return told.unwrap(),
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
        watched.iter().map(|(_, watch)| (watch.waiter(), watch.looked())).collect()
    }

    #[test]
    fn it_tells_once_which_watches_have_something_and_again_when_it_waits_anew() {
        let dir = tempfile::tempdir().unwrap();
        let options = CreateOptions::default();
        let region = Region::create(&dir.path().join("region"), &options).unwrap();
        let session = region.session().unwrap();
        let watch_selector = WatchSelector::new().unwrap();
        assert!(is_silent(&watch_selector));
        let mut watched = watched(&session, &["a", "b", "c"]);
        watch_selector.wait_for(waits(&watched));
        session.put(watched[1].0, b"k", b"1").unwrap();
        assert_eq!(told(&watch_selector), [1]);
        session.put(watched[2].0, b"k", b"1").unwrap();
        assert!(is_silent(&watch_selector), "it rests");
        // What was not read is told again.
        watch_selector.wait_for(waits(&watched));
        assert_eq!(told(&watch_selector), [1, 2]);
        for (_, watch) in &mut watched {
            while watch.next().unwrap().is_some() {}
        }
        watch_selector.wait_for(waits(&watched));
        session.put(watched[0].0, b"k", b"1").unwrap();
        assert_eq!(told(&watch_selector), [0]);
    }

    #[test]
    fn it_goes_over_to_other_watches_and_ends_in_the_midst_of_a_wait() {
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
        assert_eq!(told(&watch_selector), [0]);
        watch_selector.wait_for(Vec::new());
        assert!(is_silent(&watch_selector));
        watch_selector.wait_for(waits(&watched(&session, &["c"])));
        drop(watch_selector);
    }
}
