//! The clocks of the kernel.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use nearstate_model::{Error, Result};
use xxhash_rust::xxh3::xxh3_64;

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
pub(crate) static CLOCK_SHIFT_MS: AtomicI64 = AtomicI64::new(0);

/// The clock of leases and promises, `CLOCK_BOOTTIME`: it never goes back, and counts the time in
/// which the machine was suspended. It is that of the machine also in a process whose time
/// namespace shifts it (`time_namespaces(7)`), such as a container's.
pub fn lease_clock() -> Duration {
    let shifted = clock(libc::CLOCK_BOOTTIME);
    let shift = match BOOT_SHIFT_NS.load(Ordering::Relaxed) {
        SHIFT_UNKNOWN => first_shift_ns(),
        known => known,
    };
    let by = Duration::from_nanos(shift.unsigned_abs());
    if shift < 0 { shifted + by } else { shifted.saturating_sub(by) }
}

/// [`lease_clock`] in milliseconds.
pub fn lease_clock_ms() -> u64 {
    u64::try_from(lease_clock().as_millis()).unwrap_or(u64::MAX)
}

/// Which boot of the machine this is, in 48 bits. `None` if the kernel does not tell.
pub(crate) fn present_boot() -> Option<u64> {
    static BOOT: OnceLock<Option<u64>> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let id = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
        Some((xxh3_64(&id) >> 16) | 1)
    })
}

/// How far the boot-time clock of this process is ahead of that of the machine, in nanoseconds. A
/// process stays in its time namespace; a forked child may be in another one, and attaches anew.
static BOOT_SHIFT_NS: AtomicI64 = AtomicI64::new(SHIFT_UNKNOWN);

/// Nothing has asked for the clock.
const SHIFT_UNKNOWN: i64 = i64::MIN;

#[cold]
fn first_shift_ns() -> i64 {
    // A process of which it cannot be known attaches to no region.
    let shift = read_shift_ns().unwrap_or(0);
    BOOT_SHIFT_NS.store(shift, Ordering::Relaxed);
    shift
}

/// Learns how the time namespace of this process shifts the clock of leases. Each attach calls it,
/// so that leases of processes in other namespaces are judged by one clock.
///
/// # Errors
/// `System`: the process has made a time namespace for its children. The kernel shows the shift of
/// that one only.
pub(crate) fn learn_time_namespace() -> Result<()> {
    BOOT_SHIFT_NS.store(read_shift_ns()?, Ordering::Relaxed);
    Ok(())
}

/// A kernel before 5.6 and a process without `/proc` know no time namespaces.
fn read_shift_ns() -> Result<i64> {
    let namespace = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}")).ok();
    if namespace("time") != namespace("time_for_children") {
        let detail = "this process has made a time namespace for its children (unshare), and the \
                      kernel does not show how its own clock is shifted: attach before that, or \
                      in a child";
        return Err(Error::System { detail: detail.to_owned(), errno: 0 });
    }
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    Ok(shift_ns_of(&offsets))
}

/// The shift in a file with the lines `CLOCK SECONDS NANOSECONDS`, of which only the seconds may be
/// negative. Zero without a line of the boot-time clock.
fn shift_ns_of(offsets: &str) -> i64 {
    let of_line = |line: &str| {
        let mut words = line.split_whitespace();
        let (clock, seconds, nanos) = (words.next()?, words.next()?, words.next()?);
        let is_boot = clock == "boottime" || clock == "7";
        let seconds: i64 = is_boot.then(|| seconds.parse().ok()).flatten()?;
        let nanos: i64 = nanos.parse().ok()?;
        seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
    };
    offsets.lines().find_map(of_line).unwrap_or(0)
}

/// Milliseconds since 1970 at the last tick of the system clock (1 to 4 ms ago).
#[inline]
pub fn now_ms_coarse() -> u64 {
    let now = clock(libc::CLOCK_REALTIME_COARSE);
    // As `as_millis`, whose 128 bits take four times the instructions.
    let now = now.as_secs().saturating_mul(1000).saturating_add(u64::from(now.subsec_millis()));
    #[cfg(feature = "crash-points")]
    let now = now.saturating_add_signed(CLOCK_SHIFT_MS.load(Ordering::Relaxed));
    now
}

/// Milliseconds since 1970. Slower than [`now_ms_coarse`], and never behind the clock of another
/// process of the host: an expiry time that a client computed is not further away than the
/// client requested.
pub fn now_ms() -> u64 {
    let now = u64::try_from(clock(libc::CLOCK_REALTIME).as_millis()).unwrap_or(u64::MAX);
    #[cfg(feature = "crash-points")]
    let now = now.saturating_add_signed(CLOCK_SHIFT_MS.load(Ordering::Relaxed));
    LAST_EXACT_MS.set(now);
    now
}

/// The wall clock in nanoseconds since 1970, which is judged by nothing.
fn wall_clock_ns() -> i128 {
    let now = i128::try_from(clock(libc::CLOCK_REALTIME).as_nanos()).unwrap_or(i128::MAX);
    #[cfg(feature = "crash-points")]
    let now = now + i128::from(CLOCK_SHIFT_MS.load(Ordering::Relaxed)) * NANOS_PER_MS;
    now
}

const NANOS_PER_MS: i128 = 1_000_000;

/// Attempts to read two clocks at the same time.
const READINGS_MAX: u32 = 8;

/// How far the wall clock is ahead of [`lease_clock`], in milliseconds, exact to one of them. The
/// kernel lets both run at one rate, that of NTP, so only a step of the wall clock changes it.
/// `None`: the thread was interrupted between the readings of the two clocks, each time.
pub fn wall_ahead_ms() -> Option<i64> {
    (0..READINGS_MAX).find_map(|_| {
        let (before, wall, after) = (lease_clock(), wall_clock_ns(), lease_clock());
        let [before, after] =
            [before, after].map(|time| i128::try_from(time.as_nanos()).unwrap_or(i128::MAX));
        let is_exact = after - before < NANOS_PER_MS;
        let ahead = (wall - i128::midpoint(before, after)).div_euclid(NANOS_PER_MS);
        is_exact.then(|| i64::try_from(ahead).ok()).flatten()
    })
}

/// This thread has judged by this time of the wall clock ([`judged_ms`]).
pub(crate) fn note_judged(wall_ms: u64) {
    LAST_EXACT_MS.set(wall_ms);
}

/// Milliseconds since 1970 for a change that is committed now: not before any time by which this
/// thread has judged something ([`now_ms`], [`is_reached`]), and at most a tick before now. Costs
/// as much as [`now_ms_coarse`], a fifth of [`now_ms`].
#[inline]
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

/// How much later than the tick of the system clock says a time may have come: by the longest tick,
/// and by what the clock of expiry of a region may differ from its shift
/// (`region/expiry_clock.rs`).
const NEAR_MS: u64 = TICK_MS_MAX + 2;

/// False if this time, in milliseconds since 1970, has not come. Costs as much as
/// [`now_ms_coarse`].
#[inline]
pub(crate) fn may_be_reached(time_ms: u64) -> bool {
    !EXPIRES_NOTHING.get() && time_ms.saturating_sub(now_ms_coarse()) <= NEAR_MS
}

/// True if this time, in milliseconds since 1970, has come. As exact as [`now_ms`], and as fast as
/// [`now_ms_coarse`] unless the time is within one tick.
#[inline]
pub(crate) fn is_reached(time_ms: u64) -> bool {
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

/// The processor time of the calling thread.
pub fn thread_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shift_of_a_time_namespace_is_that_of_the_boot_time_clock() {
        assert_eq!(shift_ns_of("monotonic 5 0\nboottime 7 1000\n"), 7_000_001_000);
        let padded = "monotonic          5    0\nboottime        -600    0\n";
        assert_eq!(shift_ns_of(padded), -600_000_000_000);
        // -1.5 s.
        assert_eq!(shift_ns_of("7 -2 500000000"), -1_500_000_000);
        let too_large = "boottime 9223372036854775807 0";
        for none in ["", "monotonic 5 0", "boottime", "boottime x 0", too_large] {
            assert_eq!(shift_ns_of(none), 0, "{none:?}");
        }
    }

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
