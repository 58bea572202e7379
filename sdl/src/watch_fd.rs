//! A watch with a file descriptor, for event loops: `poll`, `epoll`, `tokio`.
//!
//! Writers are not involved: they wake the threads that sleep on the ring of events, as for
//! [`Watch::wait`]. A `WatchFd` has one thread in the watcher's own process, which sleeps there and
//! makes the descriptor readable.
//!
//! ```text
//!           WatchFd::next: nothing left         an event beyond the last position
//!   armed <--------------------- signalled <-------------------------------- armed
//!   the thread sleeps at the ring    the thread sleeps until it is armed again
//! ```
//!
//! The descriptor is signalled once, and not again until the watcher has read everything, so a
//! watcher that lags costs nothing. The thread compares with the position of the last read that
//! found nothing: an event between that read and the arming is beyond the position and signals at
//! once.

use std::fmt;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use nearstate_model::Error as Cause;
use nearstate_model::limits::WATCH_FD_STACK_BYTES;
use nearstate_store::{Notice, Waiter, Watch, WatchPosition, create_eventfd, with_signals_blocked};

use crate::error::Result;

/// How long the thread waits at the ring before it starts another wait. Correctness does not depend
/// on it: an event or the end wakes the thread. (The ring bounds each sleep within.)
const ROUND: Duration = Duration::from_secs(60);

/// A watch whose descriptor is readable while there may be events.
///
/// Wait until the descriptor ([`AsFd`]) is readable, level- or edge-triggered, then call
/// [`WatchFd::next`] until it returns `None`: that makes the descriptor unreadable until the next
/// event of the namespace. The filter of the watch is applied by `next`, so a loop may wake up and
/// find nothing. Do not read or write the descriptor.
///
/// ```
/// # fn main() -> nearstate_sdl::Result<()> {
/// # let dir = tempfile::tempdir().expect("a folder");
/// use nearstate_sdl::WatchFd;
/// use nearstate_store::{CreateOptions, Filter, Notice, Region, Schema};
///
/// let region = Region::create(&dir.path().join("smf"), &CreateOptions::default())?;
/// let session = region.session()?;
/// let sessions = session.namespace("sessions", &Schema::default())?;
/// let mut watch_fd = WatchFd::new(session.watch(sessions, Filter::Namespace)?)?;
/// session.put(sessions, b"imsi-1/5", b"established")?;
/// // .. epoll says that the watch_fd's descriptor is readable ..
/// while let Some(notice) = watch_fd.next()? {
///     assert!(matches!(notice, Notice::Event(event) if event.key == b"imsi-1/5"));
/// }
/// # Ok(())
/// # }
/// ```
///
/// Cost: a descriptor and a sleeping thread, which checks the ring ten times a second, because a
/// writer that was killed before its wakeup wakes no watcher. After a fork, the child's `WatchFd`
/// returns `NotConnected` (`Forked`) and is not signalled.
pub struct WatchFd {
    watch: Watch,
    shared: Arc<SharedWatch>,
    thread: Option<JoinHandle<()>>,
}

/// The state that the watcher and the thread share.
struct SharedWatch {
    waiter: Waiter,
    descriptor: File,
    state: Mutex<WatchFdState>,
    /// Signalled when the descriptor is armed, or at the end.
    changed: Condvar,
}

struct WatchFdState {
    /// The position of the last read that found nothing.
    looked: WatchPosition,
    /// The descriptor is readable.
    is_signalled: bool,
    is_ending: bool,
    /// Why the thread has ended early.
    failed: Option<Cause>,
}

impl fmt::Debug for WatchFd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchFd").field("watch", &self.watch).finish_non_exhaustive()
    }
}

impl WatchFd {
    /// Gives a watch a descriptor. It is readable at once if there are events.
    ///
    /// # Errors
    /// `NotConnected` if the process may not start another thread or open another descriptor.
    pub fn new(watch: Watch) -> Result<Self> {
        let state = WatchFdState {
            looked: watch.position(),
            is_signalled: false,
            is_ending: false,
            failed: None,
        };
        let shared = Arc::new(SharedWatch {
            waiter: watch.waiter(),
            descriptor: File::from(create_eventfd()?),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let threads = Arc::clone(&shared);
        let builder =
            Builder::new().name("ns-watch-fd".to_owned()).stack_size(WATCH_FD_STACK_BYTES);
        let thread = with_signals_blocked(|| builder.spawn(move || threads.run()));
        let thread = thread.map_err(|error| Cause::System {
            detail: "cannot start the thread of a WatchFd; raise `ulimit -u`".to_owned(),
            errno: error.raw_os_error().unwrap_or(0),
        })?;
        Ok(Self { watch, shared, thread: Some(thread) })
    }

    /// The next notice, as [`Watch::next`] returns it. `None`: the descriptor is not readable until
    /// there may be another.
    ///
    /// # Errors
    /// As [`Watch::next`]; the descriptor stays readable.
    #[expect(clippy::should_implement_trait, reason = "it lends: a notice ends before the next")]
    pub fn next(&mut self) -> Result<Option<Notice<'_>>> {
        let shared = &self.shared;
        Ok(self.watch.next_or(|looked| shared.arm(looked))?)
    }

    /// Waits without the descriptor, as [`Watch::wait`] does.
    ///
    /// # Errors
    /// As [`Watch::wait`].
    pub fn wait(&self, timeout: Duration) -> Result<bool> {
        Ok(self.watch.wait(timeout)?)
    }
}

impl AsFd for WatchFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.descriptor.as_fd()
    }
}

impl AsRawFd for WatchFd {
    fn as_raw_fd(&self) -> RawFd {
        self.shared.descriptor.as_raw_fd()
    }
}

impl Drop for WatchFd {
    /// Ends the thread and waits for it, some microseconds. A forked child has no thread, and may
    /// have another one of the same number: dropping the handle would detach that one.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.shared.waiter.is_forked() {
            std::mem::forget(thread);
            return;
        }
        self.shared.lock().is_ending = true;
        self.shared.changed.notify_one();
        // A damaged region ends the thread by itself.
        let _ = self.shared.waiter.wake();
        let _ = thread.join();
    }
}

impl SharedWatch {
    /// A panic of a lock holder leaves the state consistent.
    fn lock(&self) -> MutexGuard<'_, WatchFdState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The watch was read up to `looked`: the descriptor is readable only if there are events
    /// beyond.
    fn arm(&self, looked: WatchPosition) -> Result<(), Cause> {
        let mut state = self.lock();
        if let Some(cause) = &state.failed {
            return Err(cause.clone());
        }
        state.looked = looked;
        if state.is_signalled {
            // Only the thread writes, and only while it is not signalled, so this read empties it.
            let mut count = [0; 8];
            let _ = (&self.descriptor).read(&mut count);
            state.is_signalled = false;
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Runs the thread.
    fn run(&self) {
        loop {
            let Some(looked) = self.armed() else { return };
            let waited = self.waiter.wait(looked, ROUND, || self.lock().is_ending);
            let mut state = self.lock();
            // The watch may have been read since the wait started: only events beyond that count.
            let has_more = waited.and_then(|_| self.waiter.has_more(state.looked));
            if state.is_ending {
                return;
            }
            match has_more {
                Ok(false) => {}
                Ok(true) => self.signal(&mut state),
                Err(cause) => {
                    state.failed = Some(cause);
                    self.signal(&mut state);
                    return;
                }
            }
        }
    }

    /// The position of the watch once it is armed; `None` at the end.
    fn armed(&self) -> Option<WatchPosition> {
        let mut state = self.lock();
        while state.is_signalled && !state.is_ending {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        (!state.is_ending).then_some(state.looked)
    }

    fn signal(&self, state: &mut WatchFdState) {
        state.is_signalled = true;
        // Any number makes it readable. The write cannot fail: there is room for 2^64 - 2.
        let _ = (&self.descriptor).write(&1_u64.to_le_bytes());
    }
}
