//! Overload: which requests a core refuses, by its measured load and by the priority of requests
//! (`3gpp-Sbi-Message-Priority`, TS 29.500, 6.8).
//!
//! The load is the time that a task waits in the queue of the core. While requests arrive, a probe
//! is queued every [`PROBE_INTERVAL`], behind everything that is ready. The *standing* delay is the
//! shortest wait of the last [`WINDOW`]: a burst that the core works off is no overload, a queue
//! that never empties is one. One prompt probe ends the overload.
//!
//! | standing delay | refused priorities | response |
//! |---|---|---|
//! | 1 x limit | 25 to 31 | 429 `NF_CONGESTION_RISK` |
//! | 2 x limit | 16 to 31, and so the default, 24 | 503 `NF_CONGESTION` |
//! | 4 x limit | 1 to 31 | 503 `NF_CONGESTION` |
//!
//! Requests of priority 0 are bounded by the limits of connections, streams and memory only.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::RETRY_AFTER;
use nearstate_node::Core;
use nearstate_node::executor::{TaskClass, spawn};

use crate::problem::Problem;

/// The least time between two probes of a core: a poll of some hundred nanoseconds each.
const PROBE_INTERVAL: Duration = Duration::from_millis(2);

/// A queue that was never shorter for this long is overload. As the interval of `CoDel` (RFC 8289).
const WINDOW: Duration = Duration::from_millis(100);

/// The standing delay of a queue, from the waits of probes. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct QueueDelay {
    window_began: u64,
    /// When the last probe ended.
    probed: u64,
    /// The shortest wait of the current window, if a probe has ended in it.
    shortest: Option<u64>,
    /// The shortest wait of the last window, or of this one if that is less.
    standing: u64,
}

impl QueueDelay {
    /// A probe begins. One that follows a pause knows nothing of the time before.
    fn begin(&mut self, now: u64) {
        if now.saturating_sub(self.probed) > nanos(WINDOW) {
            *self = Self { window_began: now, ..Self::default() };
        }
    }

    /// A probe ends after this wait.
    fn end(&mut self, now: u64, wait: u64) {
        if now.saturating_sub(self.window_began) >= nanos(WINDOW) {
            self.standing = self.shortest.unwrap_or(wait);
            self.window_began = now;
            self.shortest = None;
        }
        let shortest = self.shortest.map_or(wait, |shortest| shortest.min(wait));
        self.shortest = Some(shortest);
        self.standing = self.standing.min(shortest);
        self.probed = now;
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The lowest priority (the highest number) that is served, and the status of the refusal of
/// others.
fn admitted(standing: u64, limit: u64) -> (u8, StatusCode) {
    match standing.checked_div(limit).unwrap_or(0) {
        0 => (31, StatusCode::TOO_MANY_REQUESTS),
        1 => (24, StatusCode::TOO_MANY_REQUESTS),
        2 | 3 => (15, StatusCode::SERVICE_UNAVAILABLE),
        _ => (0, StatusCode::SERVICE_UNAVAILABLE),
    }
}

/// The load of a core, shared by its connections.
#[derive(Debug, Default)]
pub(crate) struct CoreLoad {
    delay: Cell<QueueDelay>,
    is_probing: Cell<bool>,
}

impl CoreLoad {
    /// Queues a probe if none is queued and the last one is old enough.
    pub(crate) fn probe(self: &Rc<Self>, core: &Core) {
        if self.is_probing.get() {
            return;
        }
        let clock = core.clock().clone();
        let begun = clock.nanos(clock.now());
        let mut delay = self.delay.get();
        if begun.saturating_sub(delay.probed) < nanos(PROBE_INTERVAL) {
            return;
        }
        delay.begin(begun);
        self.delay.set(delay);
        self.is_probing.set(true);
        let load = Rc::clone(self);
        drop(spawn(TaskClass::Request, "nudsf-load", async move {
            let now = clock.nanos(clock.now());
            let mut delay = load.delay.get();
            delay.end(now, now.saturating_sub(begun));
            load.delay.set(delay);
            load.is_probing.set(false);
        }));
    }

    /// Refuses a request if the core is overloaded and others come first.
    ///
    /// # Errors
    /// 429, 503, each with `Retry-After`.
    pub(crate) fn check(&self, priority: u8, limit: Duration) -> Result<(), Problem> {
        let standing = self.delay.get().standing;
        let (lowest, status) = admitted(standing, nanos(limit));
        if priority <= lowest {
            return Ok(());
        }
        let cause = match status {
            StatusCode::TOO_MANY_REQUESTS => "NF_CONGESTION_RISK",
            _ => "NF_CONGESTION",
        };
        let detail = format!(
            "requests wait {:?} for the core: only priorities 0 to {lowest} are served, and this \
             request has {priority}",
            Duration::from_nanos(standing)
        );
        Err(Problem::new(status, cause, detail).with_header(RETRY_AFTER, "1"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn add_all(delay: &mut QueueDelay, from_ms: u64, to_ms: u64, wait_ms: u64) {
        for at in (from_ms..to_ms).step_by(2) {
            delay.begin(at * MS);
            delay.end(at * MS, wait_ms * MS);
        }
    }

    #[test]
    fn a_standing_queue_is_overload_and_a_burst_is_not() {
        let mut delay = QueueDelay::default();
        add_all(&mut delay, 1000, 1090, 50);
        assert_eq!(delay.standing, 0, "a window has not passed");
        add_all(&mut delay, 1090, 1210, 50);
        assert_eq!(delay.standing, 50 * MS);
        delay.end(1211 * MS, MS);
        assert_eq!(delay.standing, MS, "one prompt probe ends it");
        let mut delay = QueueDelay::default();
        add_all(&mut delay, 1000, 1050, 90);
        delay.end(1051 * MS, 0);
        add_all(&mut delay, 1052, 1150, 90);
        assert_eq!(delay.standing, 0, "the queue was empty once");
    }

    #[test]
    fn a_pause_ends_the_overload_and_a_wait_longer_than_the_window_does_not() {
        let mut delay = QueueDelay::default();
        for end in [1000, 1500, 2000] {
            delay.begin((end - 499) * MS);
            delay.end(end * MS, 499 * MS);
        }
        assert_eq!(delay.standing, 499 * MS);
        delay.begin(5000 * MS);
        assert_eq!(delay.standing, 0);
    }

    #[test]
    fn low_priorities_are_refused_first_and_the_highest_never() {
        let load = CoreLoad::default();
        let limit = Duration::from_millis(10);
        for (standing_ms, priority, refused) in [
            (9, 31, None),
            (10, 25, Some(429)),
            (10, 24, None),
            (20, 24, Some(503)),
            (20, 15, None),
            (39, 16, Some(503)),
            (40, 1, Some(503)),
            (100_000, 0, None),
        ] {
            load.delay.set(QueueDelay { standing: standing_ms * MS, ..QueueDelay::default() });
            let problem = load.check(priority, limit).err();
            let status = problem.as_ref().map(|problem| problem.status.as_u16());
            assert_eq!(status, refused, "{standing_ms} ms, priority {priority}");
            let header = problem.and_then(|problem| problem.header).map(|header| header.0.clone());
            assert_eq!(header, refused.map(|_| RETRY_AFTER));
        }
    }

    #[test]
    fn without_a_limit_nothing_is_refused() {
        let load = CoreLoad::default();
        load.delay.set(QueueDelay { standing: u64::MAX, ..QueueDelay::default() });
        assert_eq!(load.check(31, Duration::ZERO), Ok(()));
    }
}
