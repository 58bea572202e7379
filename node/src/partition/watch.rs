//! The thread that reads the own log while one copy suffices (rule 12 of decision 026): no follower
//! does, and the log has to be read, said to be written, and forgotten all the same. It opens its
//! session itself and tries again after a failure, so that an order cannot fail.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nearstate_model::{Error, Result};
use nearstate_store::{AcknowledgedPlace, FollowPosition, Session, StreamItem};

use crate::peer::group::{PanicInput, PartitionInput};
use crate::peer::served::PeerShared;

/// The name of the thread.
const THREAD: &str = "ns-log-watch";

/// The entries that are read before the driver is told.
const ENTRIES_AT_ONCE: usize = 256;

/// The sleeps of an idle log: a commit that waits, waits as long for the driver to learn of it.
const SLEEP_MIN: Duration = Duration::from_micros(50);
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// The wait after a failure: no session is free, or the log is damaged.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// What the thread and those that give it orders share.
#[derive(Debug, Default)]
struct WatchOrders {
    state: Mutex<LogWatchState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LogWatchState {
    /// The view in which the log is to be read.
    ordered: Option<u64>,
    /// The view in which the thread reads it.
    reading: Option<u64>,
    is_over: bool,
}

impl WatchOrders {
    fn state(&self) -> MutexGuard<'_, LogWatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, LogWatchState>) -> MutexGuard<'s, LogWatchState> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn is_ordered(&self, view: u64) -> bool {
        self.state().ordered == Some(view)
    }

    fn change(&self, change: impl FnOnce(&mut LogWatchState)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// The next view in which the log is to be read. `None`: it is over.
    fn next(&self) -> Option<u64> {
        let mut state = self.state();
        state.reading = None;
        self.changed.notify_all();
        while !state.is_over {
            if let Some(view) = state.ordered {
                state.reading = Some(view);
                return Some(view);
            }
            state = self.wait(state);
        }
        None
    }
}

/// The thread, which sleeps until it gets an order. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct LogWatch {
    orders: Arc<WatchOrders>,
    thread: Option<JoinHandle<()>>,
}

impl LogWatch {
    pub(super) fn start(shared: &Arc<PeerShared>) -> Result<Self> {
        let orders = Arc::<WatchOrders>::default();
        let (shared, running) = (Arc::clone(shared), Arc::clone(&orders));
        let work = move || {
            let inputs = shared.group.as_ref().map(|group| Arc::clone(&group.inputs));
            let _told = inputs.map(|inputs| PanicInput { thread: THREAD, inputs });
            while let Some(view) = running.next() {
                watch(&shared, view, &running);
            }
        };
        let thread =
            std::thread::Builder::new().name(THREAD.to_owned()).spawn(work).map_err(|error| {
                let detail = format!("cannot start a thread: {error}");
                Error::System { detail, errno: error.raw_os_error().unwrap_or(0) }
            })?;
        Ok(Self { orders, thread: Some(thread) })
    }

    /// Reads the log in this view from now on, or reads it no more. Returns at once.
    pub(super) fn order(&self, view: Option<u64>) {
        self.orders.change(|state| state.ordered = view);
    }

    /// Waits until nothing is read of an earlier order than the last one.
    pub(super) fn wait_until_idle(&self) {
        let mut state = self.orders.state();
        while state.reading.is_some() && state.reading != state.ordered {
            state = self.orders.wait(state);
        }
    }
}

impl Drop for LogWatch {
    fn drop(&mut self) {
        self.orders.change(|state| (state.ordered, state.is_over) = (None, true));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch(shared: &PeerShared, view: u64, orders: &WatchOrders) {
    let mut failed = None;
    while orders.is_ordered(view) {
        let outcome =
            shared.region.session().and_then(|session| read(shared, &session, view, orders));
        // The reason is said once; the driver sees a log that does not go on.
        let Err(error) = outcome else { continue };
        let reason = error.to_string();
        if failed.as_ref() != Some(&reason) {
            if let Some(group) = &shared.group {
                group.tell(PartitionInput::FollowFailed { view, reason: reason.clone() });
            }
            failed = Some(reason);
        }
        std::thread::park_timeout(RETRY_INTERVAL);
    }
}

/// Reads the log behind what is replicated until it is over.
fn read(shared: &PeerShared, session: &Session, view: u64, orders: &WatchOrders) -> Result<()> {
    let Some(group) = &shared.group else { return Ok(()) };
    let mut stream = session.commit_stream_behind(session.replicated_position()?)?;
    let (mut told, mut sleep) = (None, SLEEP_MIN);
    let mut last = session.last_entry()?;
    while orders.is_ordered(view) {
        for _ in 0..ENTRIES_AT_ONCE {
            match stream.next()? {
                None => break,
                Some(StreamItem::Transaction(entry)) => {
                    let check = entry.check_value()?;
                    last = FollowPosition { position: entry.number, check };
                }
                Some(StreamItem::Lost { .. }) => {}
            }
        }
        stream.release();
        let position = stream.passed_position();
        if told == Some(position) {
            std::thread::park_timeout(sleep);
            sleep = (sleep * 2).min(SLEEP_MAX);
        } else {
            told = Some(position);
            group.tell(PartitionInput::LogWritten { view, position });
            sleep = SLEEP_MIN;
        }
        let watched = AcknowledgedPlace { entry: last, position };
        shared.release_to_members(session, (last.position <= position).then_some(watched))?;
    }
    Ok(())
}
