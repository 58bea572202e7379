//! A watch with a descriptor, for event loops: `poll`, `epoll`, `tokio`.
//!
//! Writers know nothing of it: they wake whoever sleeps at the ring of events, as they do for
//! [`Watch::wait`]. The watch_fd has one thread in the watcher's own process, which sleeps there and
//! makes the descriptor readable.
//!
//! ```text
//!           WatchFd::next: nothing left         an event beyond what was looked at
//!   armed <------------------------- rung <------------------------------------ armed
//!   the thread sleeps at the ring    the thread sleeps until it is armed again
//! ```
//!
//! It rings once and not again until the watcher has read everything, so a watcher that lags costs
//! nothing. What the thread compares with is how far the watch had looked when it found nothing:
//! an event that came between that look and the arming is beyond it, and rings at once.

use std::fmt;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use nearstate_model::Error as Cause;
use nearstate_model::limits::BELL_STACK_BYTES;
use nearstate_store::{Notice, Waiter, Watch, WatchPosition, create_eventfd, with_signals_blocked};

use crate::error::Result;

/// How long the thread waits at the ring before it begins to wait again. Nothing depends on it: it
/// is woken for an event and for its end. (Each sleep within is bounded by the ring itself.)
const ROUND: Duration = Duration::from_secs(60);

/// A watch whose descriptor is readable as long as there may be something to tell.
///
/// Wait for the descriptor ([`AsFd`]) to be readable, level- or edge-triggered, then call
/// [`WatchFd::next`] until it gives `None`: that makes the descriptor unreadable until the next
/// event of the namespace. Whether the watch's filter lets that one through is judged then, so a
/// loop may wake and find nothing. Nobody else reads or writes the descriptor.
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
/// Cost: a descriptor, and a thread that sleeps; it wakes ten times a second for a look at the
/// ring, because a writer that was killed before it could wake anybody wakes nobody. In a fork the
/// watch_fd answers `NotConnected` (`Forked`) and does not ring.
pub struct WatchFd {
    watch: Watch,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the watcher and the thread share.
struct Shared {
    waiter: Waiter,
    descriptor: File,
    state: Mutex<State>,
    /// Told when the state is not rung any more, or is ending.
    changed: Condvar,
}

struct State {
    /// How far the watch had looked when it last found nothing.
    looked: WatchPosition,
    /// The descriptor is readable.
    is_rung: bool,
    is_ending: bool,
    /// Why the thread has ended before its time.
    failed: Option<Cause>,
}

impl fmt::Debug for WatchFd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchFd").field("watch", &self.watch).finish_non_exhaustive()
    }
}

impl WatchFd {
    /// Gives a watch a descriptor. If there is something to tell already it becomes readable at
    /// once.
    ///
    /// # Errors
    /// `NotConnected` if the process may have no further thread or descriptor.
    pub fn new(watch: Watch) -> Result<Self> {
        let state =
            State { looked: watch.looked(), is_rung: false, is_ending: false, failed: None };
        let shared = Arc::new(Shared {
            waiter: watch.waiter(),
            descriptor: File::from(create_eventfd()?),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let threads = Arc::clone(&shared);
        let builder =
            Builder::new().name("nearstate-watch_fd".to_owned()).stack_size(BELL_STACK_BYTES);
        let thread = with_signals_blocked(|| builder.spawn(move || threads.attend()));
        let thread = thread.map_err(|error| Cause::System {
            detail: "cannot start a watch_fd's thread: raise the limit (ulimit -u)".to_owned(),
            errno: error.raw_os_error().unwrap_or(0),
        })?;
        Ok(Self { watch, shared, thread: Some(thread) })
    }

    /// The next notice, as [`Watch::next`] gives it, or `None`: then the descriptor is not readable
    /// until there may be something more.
    ///
    /// # Errors
    /// As [`Watch::next`]; the descriptor stays readable then.
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
    /// Ends the thread and waits for it, some microseconds. In a fork there is no thread.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.shared.waiter.is_forked() {
            return;
        }
        self.shared.lock().is_ending = true;
        self.shared.changed.notify_one();
        // If the region is damaged the thread ends by itself.
        let _ = self.shared.waiter.wake();
        let _ = thread.join();
    }
}

impl Shared {
    /// A panic of whoever held it leaves nothing half done.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The watch has looked so far and found nothing: the descriptor is readable only if there is
    /// something beyond.
    fn arm(&self, looked: WatchPosition) -> Result<(), Cause> {
        let mut state = self.lock();
        if let Some(cause) = &state.failed {
            return Err(cause.clone());
        }
        state.looked = looked;
        if state.is_rung {
            // Only the thread writes, and only while it is not rung, so this empties it.
            let mut count = [0; 8];
            let _ = (&self.descriptor).read(&mut count);
            state.is_rung = false;
            self.changed.notify_one();
        }
        Ok(())
    }

    /// The life of the thread.
    fn attend(&self) {
        loop {
            let Some(looked) = self.armed() else { return };
            let waited = self.waiter.wait(looked, ROUND, || self.lock().is_ending);
            let mut state = self.lock();
            // The watch may have gone on since the wait began: only what is beyond that rings.
            let has_more = waited.and_then(|_| self.waiter.has_more(state.looked));
            if state.is_ending {
                return;
            }
            match has_more {
                Ok(false) => {}
                Ok(true) => self.ring(&mut state),
                Err(cause) => {
                    state.failed = Some(cause);
                    self.ring(&mut state);
                    return;
                }
            }
        }
    }

    /// How far the watch has looked, once it has found nothing; `None` if the watch_fd ends.
    fn armed(&self) -> Option<WatchPosition> {
        let mut state = self.lock();
        while state.is_rung && !state.is_ending {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        (!state.is_ending).then_some(state.looked)
    }

    fn ring(&self, state: &mut State) {
        state.is_rung = true;
        // Any number makes it readable. It cannot fail: there is room for 2^64 - 2.
        let _ = (&self.descriptor).write(&1_u64.to_le_bytes());
    }
}
