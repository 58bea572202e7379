//! Waits at several rings in one thread.

use std::time::{Duration, Instant};

use nearstate_model::{Error, Result};

use super::{RING_WAITERS, RingWaiter, SLEEP_MAX};
use crate::ring::words::register_waiter;
use crate::system::{FUTEXES_MAX, futex_wait_any};

/// Waits until one of several rings has an entry at or after the position of its reader, for at
/// most `timeout`, or until `is_over` returns true. That is evaluated again after a
/// [`RingWaiter::wake`] of the first ring. True if there is such an entry.
///
/// An entry of one of the first 128 rings ends the wait at once (on kernels before 5.16 within 5
/// ms), an entry of another ring within 100 ms. Without rings it returns at once.
///
/// # Errors
/// `Damaged`, `Forked`, `System`.
pub fn wait_any(
    waits: &[(RingWaiter, u64)],
    timeout: Duration,
    is_over: impl Fn() -> bool,
) -> Result<bool> {
    let started = Instant::now();
    let mut words = Vec::with_capacity(waits.len().min(FUTEXES_MAX));
    loop {
        if waits.iter().any(|(waiter, _)| waiter.is_forked()) {
            return Err(Error::Forked);
        }
        if is_any_beyond(waits)? {
            return Ok(true);
        }
        let left = timeout.saturating_sub(started.elapsed());
        if left.is_zero() || waits.is_empty() {
            return Ok(false);
        }
        words.clear();
        for (waiter, _) in waits.iter().take(FUTEXES_MAX) {
            let word = waiter.shared.map.word(waiter.ring_at.saturating_add(RING_WAITERS))?;
            words.push((word, register_waiter(word)));
        }
        // After the bits were set: a thread that ends the wait after this call finds them, and
        // wakes.
        if is_over() {
            return Ok(false);
        }
        debug_assert!(words.len() <= FUTEXES_MAX, "at most FUTEXES_MAX words");
        if !is_any_beyond(waits)? {
            futex_wait_any(&words, left.min(SLEEP_MAX))?;
        }
    }
}

fn is_any_beyond(waits: &[(RingWaiter, u64)]) -> Result<bool> {
    for (waiter, position) in waits {
        if waiter.is_beyond(*position)? {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::region::file::Region;
    use crate::ring::tests::TestRegion;
    use crate::ring::{RingRead, RingReader, RingStart};

    const LONG: Duration = Duration::from_secs(600);

    /// A region with this many rings, and a reader of each.
    fn rings(name: &str, count: usize) -> (TestRegion, Region, Vec<(u64, RingReader)>) {
        let place = TestRegion::new(name);
        let region = place.region();
        let member = region.member().unwrap();
        let rings = (0..count)
            .map(|number| {
                let table = member.namespace(format!("n{number}").as_bytes(), 1).unwrap();
                let at = member.open_watch_ring(table, 1 << 16).unwrap();
                (at, member.ring_reader(at, RingStart::Tail).unwrap())
            })
            .collect();
        (place, region, rings)
    }

    fn waits(rings: &[(u64, RingReader)]) -> Vec<(RingWaiter, u64)> {
        rings.iter().map(|(_, reader)| (reader.waiter(), reader.position())).collect()
    }

    #[test]
    fn an_entry_of_any_ring_ends_the_wait_also_beyond_the_limit_of_the_kernel() {
        let (_place, region, mut rings) = rings("any", FUTEXES_MAX + 2);
        for which in [0, 5, FUTEXES_MAX + 1] {
            let waits = waits(&rings);
            assert!(!wait_any(&waits, Duration::ZERO, || false).unwrap());
            let (at, reader) = &mut rings[which];
            let is_asleep = AtomicBool::new(false);
            let is_over = || {
                is_asleep.store(true, Ordering::SeqCst);
                false
            };
            let has_entry = std::thread::scope(|scope| {
                let waiting = scope.spawn(|| wait_any(&waits, LONG, is_over));
                while !is_asleep.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                let member = region.member().unwrap();
                assert!(member.append_to_ring(*at, b"entry").unwrap());
                waiting.join().unwrap().unwrap()
            });
            assert!(has_entry, "{which}");
            assert_eq!(reader.next(&mut Vec::new()).unwrap(), RingRead::Entry { number: 0 });
        }
    }

    #[test]
    fn a_wait_ends_at_its_condition_or_its_timeout() {
        let (_place, _region, rings) = rings("any-over", 3);
        let waits = waits(&rings);
        let (started, short) = (Instant::now(), Duration::from_millis(250));
        assert!(!wait_any(&waits, short, || false).unwrap());
        assert!(started.elapsed() >= short, "it did sleep");
        assert!(!wait_any(&[], LONG, || false).unwrap());
        let (is_asleep, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        let asked = || {
            is_asleep.store(true, Ordering::SeqCst);
            is_over.load(Ordering::SeqCst)
        };
        let has_entry = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| wait_any(&waits, LONG, asked));
            while !is_asleep.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            is_over.store(true, Ordering::SeqCst);
            waits[0].0.wake().unwrap();
            waiting.join().unwrap().unwrap()
        });
        assert!(!has_entry);
    }
}
