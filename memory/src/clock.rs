//! The clocks of the kernel.

use std::time::Duration;

/// The time of a kernel clock. Takes some nanoseconds and no system call. Zero if the clock does
/// not exist.
fn clock(which: libc::clockid_t) -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills `now`, which outlives the call.
    let failed = unsafe { libc::clock_gettime(which, &raw mut now) };
    if failed != 0 {
        return Duration::ZERO;
    }
    debug_assert!((0..1_000_000_000).contains(&now.tv_nsec), "nanoseconds are below a second");
    let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
    // A clock that is set before 1970 counts as 1970.
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), nanos)
}

/// The shift of the clock of this process in milliseconds, for tests of clocks that jump.
#[cfg(feature = "crash-points")]
pub(crate) static CLOCK_SHIFT_MS: std::sync::atomic::AtomicI64 =
    std::sync::atomic::AtomicI64::new(0);

/// The clock of leases and promises, `CLOCK_BOOTTIME`: it never goes back, and counts the time in
/// which the machine was suspended.
pub fn lease_clock() -> Duration {
    clock(libc::CLOCK_BOOTTIME)
}

/// Milliseconds since 1970 at the last tick of the system clock (1 to 4 ms ago).
pub fn now_ms_coarse() -> u64 {
    let now = u64::try_from(clock(libc::CLOCK_REALTIME_COARSE).as_millis()).unwrap_or(u64::MAX);
    #[cfg(feature = "crash-points")]
    let now = now.saturating_add_signed(CLOCK_SHIFT_MS.load(std::sync::atomic::Ordering::Relaxed));
    now
}

/// Milliseconds since 1970. Slower than [`now_ms_coarse`], and never behind the clock of another
/// process of the host: an expiry time that a client computed is not further away than the
/// client requested.
pub fn now_ms() -> u64 {
    let now = u64::try_from(clock(libc::CLOCK_REALTIME).as_millis()).unwrap_or(u64::MAX);
    #[cfg(feature = "crash-points")]
    let now = now.saturating_add_signed(CLOCK_SHIFT_MS.load(std::sync::atomic::Ordering::Relaxed));
    LAST_EXACT_MS.set(now);
    now
}

/// Milliseconds since 1970 for a change that is committed now: not before any time by which this
/// thread has judged something ([`now_ms`], [`is_reached`]), and at most a tick before now. Costs
/// as much as [`now_ms_coarse`], a fifth of [`now_ms`].
pub(crate) fn judged_ms() -> u64 {
    let (tick, exact) = (now_ms_coarse(), LAST_EXACT_MS.get());
    // A larger difference is that of a clock that was set back.
    if exact.saturating_sub(tick) <= TICK_MS_MAX { exact.max(tick) } else { tick }
}

/// The longest time between two ticks of the system clock, with 100 ticks per second.
const TICK_MS_MAX: u64 = 10;

std::thread_local! {
    /// What [`now_ms`] has returned last on this thread.
    static LAST_EXACT_MS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    /// True while this thread judges no expiry.
    static EXPIRES_NOTHING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Runs `body` as if no time of expiry had come: for changes that another host has judged.
pub fn without_expiry<T>(body: impl FnOnce() -> T) -> T {
    /// Also after a panic.
    struct Restored(bool);
    impl Drop for Restored {
        fn drop(&mut self) {
            EXPIRES_NOTHING.set(self.0);
        }
    }
    let _restored = Restored(EXPIRES_NOTHING.replace(true));
    body()
}

/// True if this time, in milliseconds since 1970, has come. As exact as [`now_ms`], and as fast as
/// [`now_ms_coarse`] unless the time is within one tick.
#[inline]
pub fn is_reached(time_ms: u64) -> bool {
    if EXPIRES_NOTHING.get() {
        return false;
    }
    let left = time_ms.saturating_sub(now_ms_coarse());
    left == 0 || left <= TICK_MS_MAX && is_reached_exactly(time_ms)
}

#[cold]
fn is_reached_exactly(time_ms: u64) -> bool {
    time_ms <= now_ms()
}

/// The time since the machine was started, at the last tick of the clock. It never jumps.
pub fn since_boot() -> Duration {
    clock(libc::CLOCK_MONOTONIC_COARSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_reached_in_the_millisecond_in_which_it_comes() {
        // Several ticks of 1 to 10 ms.
        let end = now_ms() + 50;
        let mut next = now_ms() + 1;
        while next < end {
            let before = now_ms();
            let is_there = is_reached(next);
            assert!(is_there || before < next, "{next} is not reached at {before}");
            assert!(!is_there || next <= now_ms(), "{next} is reached too early");
            next += u64::from(is_there);
        }
        assert!(is_reached(0) && !is_reached(u64::MAX));
    }

    #[test]
    fn a_change_is_not_older_than_what_its_thread_has_judged() {
        for _ in 0..10_000 {
            let exact = now_ms();
            let judged = judged_ms();
            assert!(judged >= exact, "{judged} behind {exact}");
        }
        // Without such a judgement, or behind one before the clock was set back.
        for exact in [0, now_ms() + 3_600_000] {
            LAST_EXACT_MS.set(exact);
            let (before, judged) = (now_ms_coarse(), judged_ms());
            assert!((before..=now_ms()).contains(&judged), "{judged} after {before}");
        }
    }
}
