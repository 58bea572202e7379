//! Waiting for the intended start of an operation without being late, and without counting the
//! processor time of the wait as the operation's.

use crate::clock::monotonic_ns;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Shorter waits busy-poll: waking from a sleep takes some tens of microseconds.
const SPIN_NS: u64 = 150_000;

/// The processor time is read this long before the end of the wait: a reading is a system call of
/// some hundred nanoseconds, which would make the operation late.
const READ_NS: u64 = 2_000;

/// Waits, and the processor time that they used.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// Time of the thread.
    pub(crate) cpu_ns: u64,
}

impl Waits {
    /// Waits for a time of the monotonic clock: first sleeps, then busy-polls. Returns at once if
    /// it has passed.
    #[inline]
    pub(crate) fn until(&mut self, at_ns: u64) {
        if monotonic_ns() < at_ns {
            self.wait(at_ns);
        }
    }

    fn wait(&mut self, at_ns: u64) {
        let began_ns = thread_ns();
        loop {
            let left_ns = at_ns.saturating_sub(monotonic_ns());
            if left_ns <= READ_NS {
                break;
            }
            if left_ns > SPIN_NS {
                std::thread::sleep(Duration::from_nanos(left_ns - SPIN_NS));
            } else {
                std::hint::spin_loop();
            }
        }
        // The rest is busy-polled, so it counts fully; but not more than intended, in case another
        // process had the processor meanwhile.
        let left_ns = at_ns.saturating_sub(monotonic_ns()).min(READ_NS);
        self.cpu_ns += thread_ns().saturating_sub(began_ns) + left_ns;
        while monotonic_ns() < at_ns {
            std::hint::spin_loop();
        }
    }

    /// Sleeps for a duration.
    pub(crate) fn pause(&mut self, pause: Duration) {
        let began_ns = thread_ns();
        std::thread::sleep(pause);
        self.cpu_ns += thread_ns().saturating_sub(began_ns);
    }
}

/// Time of this thread on a processor so far, in nanoseconds.
pub(crate) fn thread_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_on_time_and_its_processor_time_is_counted() {
        let (mut waits, began_ns) = (Waits::default(), thread_ns());
        // Short enough that all of each is spun.
        for _ in 0..200 {
            let at_ns = monotonic_ns() + SPIN_NS - 10_000;
            waits.until(at_ns);
            assert!(monotonic_ns() >= at_ns);
        }
        let spent_ns = thread_ns() - began_ns;
        assert!(waits.cpu_ns > spent_ns / 2, "{} of {spent_ns} ns", waits.cpu_ns);
        assert!(waits.cpu_ns < spent_ns + 200 * READ_NS, "{} of {spent_ns} ns", waits.cpu_ns);
    }

    #[test]
    fn a_late_wait_returns_at_once() {
        let mut waits = Waits::default();
        waits.until(monotonic_ns());
        waits.until(0);
        assert_eq!(waits.cpu_ns, 0);
    }
}
