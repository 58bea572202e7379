//! `CLIENT PAUSE`: requests of all clients, or those that write, wait until a time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The pause of the server. Times are since any fixed moment, the same in all calls.
#[derive(Debug, Default)]
pub struct ClientPause {
    /// True if there is a pause, which may be over. Written under the lock.
    is_set: AtomicBool,
    state: Mutex<PauseState>,
}

#[derive(Debug, Default)]
struct PauseState {
    until: Duration,
    /// Requests that read wait as well.
    is_for_all: bool,
    /// Waiting connections.
    wakers: BTreeMap<u64, Waker>,
}

impl ClientPause {
    fn lock(&self) -> MutexGuard<'_, PauseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pauses until a time. A pause that lasts longer, or concerns more requests, stays.
    pub fn begin(&self, until: Duration, is_for_all: bool, now: Duration) {
        let mut state = self.lock();
        let is_active = self.is_set.load(Ordering::Relaxed) && state.until > now;
        if is_active {
            state.until = state.until.max(until);
            state.is_for_all |= is_for_all;
        } else {
            (state.until, state.is_for_all) = (until, is_for_all);
        }
        self.is_set.store(true, Ordering::Release);
    }

    /// Ends the pause. The waiting connections continue.
    pub fn end(&self) {
        let mut state = self.lock();
        self.is_set.store(false, Ordering::Release);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_values().for_each(Waker::wake);
    }

    /// True if there may be a pause. Takes no lock.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// The remaining time for a request; `None` if it may run.
    pub fn left(&self, is_write: bool, now: Duration) -> Option<Duration> {
        if !self.is_set() {
            return None;
        }
        let state = self.lock();
        if state.until <= now {
            self.is_set.store(false, Ordering::Release);
            return None;
        }
        (is_write || state.is_for_all).then(|| state.until.saturating_sub(now))
    }

    /// `Ready` if a request may run. Otherwise the connection is woken when the pause is ended, and
    /// after the returned time of [`ClientPause::left`] it has to ask again.
    pub fn poll(&self, cx: &Context<'_>, id: u64, is_write: bool, now: Duration) -> Poll<()> {
        if self.left(is_write, now).is_none() {
            return Poll::Ready(());
        }
        let mut state = self.lock();
        // It may have ended since.
        if !self.is_set.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        state.wakers.insert(id, cx.waker().clone());
        Poll::Pending
    }

    /// The connection no longer waits. Its waker holds memory until then.
    pub fn forget(&self, id: u64) {
        self.lock().wakers.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_pause_concerns_its_requests_until_its_end() {
        let pause = ClientPause::default();
        assert_eq!((pause.is_set(), pause.left(true, seconds(1))), (false, None));
        pause.begin(seconds(10), false, seconds(1));
        assert_eq!(pause.left(true, seconds(4)), Some(seconds(6)));
        assert_eq!(pause.left(false, seconds(4)), None, "reads run");
        pause.begin(seconds(8), true, seconds(4));
        assert_eq!(pause.left(false, seconds(4)), Some(seconds(6)), "the longer one stays");
        pause.begin(seconds(9), false, seconds(4));
        assert_eq!(pause.left(false, seconds(4)), Some(seconds(6)), "the wider one stays");
        assert_eq!((pause.left(true, seconds(10)), pause.is_set()), (None, false));
        pause.begin(seconds(12), false, seconds(11));
        assert_eq!(pause.left(false, seconds(11)), None, "an old pause has no effect");
    }

    #[test]
    fn waiting_connections_continue_when_the_pause_is_ended() {
        let pause = ClientPause::default();
        let cx = Context::from_waker(Waker::noop());
        assert!(pause.poll(&cx, 1, true, seconds(1)).is_ready());
        pause.begin(seconds(10), false, seconds(1));
        assert!(pause.poll(&cx, 1, true, seconds(1)).is_pending());
        assert!(pause.poll(&cx, 2, false, seconds(1)).is_ready());
        assert_eq!(pause.lock().wakers.len(), 1);
        pause.end();
        assert_eq!(pause.lock().wakers.len(), 0);
        assert!(pause.poll(&cx, 1, true, seconds(1)).is_ready());
    }
}
