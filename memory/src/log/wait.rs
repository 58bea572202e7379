//! Waits for acknowledgements of the log (`docs/decisions/044-replication-waits.md`).

use std::time::{Duration, Instant};

use nearstate_model::{Result, invariant};

use crate::atomic::{AtomicU64, Ordering};
use crate::layout::{Corruption, LOG_DOORBELL, LOG_SOURCE_CPU, LOG_WAKE};
use crate::log::reader::{PositionState, SLEEP_MAX};
use crate::log::wake::{announce_in, is_announced, is_awaited, register_sleeper, register_source};
use crate::member::Member;
use crate::region::map::Map;
use crate::system::{futex_wait, present_cpu};

/// How long a waiter spins at most. A follower that takes longer is not one of the next rack, and
/// a sleep costs little beside that.
const SPIN_MAX: Duration = Duration::from_micros(200);
/// How long a waiter spins however short its last waits were: as long as it takes to wake a thread
/// of a processor that was halted.
const SPIN_MIN: Duration = Duration::from_micros(20);
/// How long it spins if it is not known where the source runs: as long as two system calls take.
const SPIN_UNKNOWN: Duration = Duration::from_micros(2);
/// The mean of the waits of a session that has not waited yet.
const MEAN_AT_FIRST: Duration = Duration::from_micros(50);
/// The longest wait that counts for the mean: so that some short ones make up for one that has
/// failed.
const WAIT_COUNTED_MAX: Duration = Duration::from_millis(1);
/// The part of the difference between a wait and the mean that the mean gets.
const MEAN_SHARE: u64 = 8;

/// Looks at the position between two looks at the time and at the processor.
const LOOKS_OF_CHECK: u32 = 16;

/// The highest processor number, + 1. Linux has 8,192 processors at most.
const CPUS_MAX: u64 = 1 << 16;

const _: () = assert!(SPIN_UNKNOWN.as_nanos() < SPIN_MIN.as_nanos());
const _: () = assert!(SPIN_MIN.as_nanos() < SPIN_MAX.as_nanos());
const _: () = assert!(SPIN_MAX.as_nanos() < WAIT_COUNTED_MAX.as_nanos(), "a long wait counts");
const _: () = assert!(LOOKS_OF_CHECK > 0 && MEAN_SHARE > 1, "both divide");
const _: () = assert!(MEAN_AT_FIRST.as_nanos() <= SPIN_MAX.as_nanos(), "the first wait spins");

/// How long a waiter may spin whose last waits took `mean`, on the processor `own`. `source`: the
/// word of the source's processor.
fn spin_limit(mean: Duration, source: u64, own: Option<u64>) -> Duration {
    match (source.checked_sub(1), own) {
        (Some(source), Some(own)) if source == own => Duration::ZERO,
        (Some(_), Some(_)) if mean > SPIN_MAX => Duration::ZERO,
        (Some(_), Some(_)) => (mean * 2).clamp(SPIN_MIN, SPIN_MAX),
        (None, _) | (_, None) => SPIN_UNKNOWN,
    }
}

/// The word of the source's processor.
pub(crate) fn source_cpu(map: &Map) -> Result<u64, Corruption> {
    match map.word(LOG_SOURCE_CPU)?.load(Ordering::Relaxed) {
        cpu if cpu <= CPUS_MAX => Ok(cpu),
        _ => Err(Corruption("the processor of the source of the log has a flipped bit")),
    }
}

impl Member {
    /// Waits until the consumer has acknowledged or lost a position, for at most `timeout`. Spins
    /// before it sleeps, as the first that waits, while the source of the log runs on another
    /// processor: for twice as long as its last waits took, 200 us at most.
    ///
    /// # Errors
    /// `Damaged`, `Forked`, `System`.
    pub fn wait_for_position(&self, position: u64, timeout: Duration) -> Result<PositionState> {
        let mut state = self.position_state(position)?;
        if state != PositionState::Pending {
            return Ok(state);
        }
        let begin = Instant::now();
        let word = self.map().word(LOG_WAKE)?;
        // A source sends at once what is waited for.
        if announce_in(self.map())? {
            state = self.spin_for_position(position, word, (begin, timeout))?;
        }
        while state == PositionState::Pending {
            self.check_usable()?;
            let seen = register_sleeper(word);
            state = self.position_state(position)?;
            let left = timeout.saturating_sub(begin.elapsed());
            if state != PositionState::Pending || left.is_zero() {
                break;
            }
            futex_wait(word, seen, left.min(SLEEP_MAX))?;
        }
        let wait = begin.elapsed();
        // One that was given up early tells nothing.
        if state != PositionState::Pending || wait > self.mean_wait() {
            self.count_wait(wait);
        }
        Ok(state)
    }

    /// Looks at a position again and again. `Pending`: the waiter has to sleep.
    fn spin_for_position(
        &self,
        position: u64,
        word: &AtomicU64,
        (begin, timeout): (Instant, Duration),
    ) -> Result<PositionState> {
        let mean = self.mean_wait();
        let mut look = 0_u32;
        loop {
            let state = self.position_state(position)?;
            if state != PositionState::Pending {
                return Ok(state);
            }
            if look.is_multiple_of(LOOKS_OF_CHECK) {
                // An acknowledgement of an earlier position ends all announcements. Another waiter
                // may have been the first since.
                let is_first = is_announced(word) || announce_in(self.map())?;
                // A damaged word tells nothing.
                let source = source_cpu(self.map()).unwrap_or(0);
                let limit = spin_limit(mean, source, present_cpu()).min(timeout);
                if !is_first || begin.elapsed() >= limit {
                    return Ok(PositionState::Pending);
                }
            }
            look = look.wrapping_add(1);
            std::hint::spin_loop();
        }
    }

    fn mean_wait(&self) -> Duration {
        match self.log.mean_wait_ns.get() {
            0 => MEAN_AT_FIRST,
            mean => Duration::from_nanos(mean),
        }
    }

    fn count_wait(&self, wait: Duration) {
        let wait = wait.min(WAIT_COUNTED_MAX);
        let mean = self.mean_wait();
        let mean = mean.saturating_sub(mean / MEAN_SHARE as u32) + wait / MEAN_SHARE as u32;
        invariant!(mean <= WAIT_COUNTED_MAX, "a mean is not above its highest value");
        // 0 stands for none.
        self.log.mean_wait_ns.set((mean.as_nanos() as u64).max(1));
    }

    /// True if an acknowledgement may be waited for. It stays true behind a wait that was given up,
    /// until the next acknowledgement. Relaxed: a source of the log looks again.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn is_acknowledgement_awaited(&self) -> Result<bool> {
        self.checked(is_awaited(self.map().word(LOG_WAKE)?))
    }

    /// A source that has sent everything sleeps until a process waits for an acknowledgement, for
    /// at most `bound`. False, at once, if one may wait already. A commit alone wakes no source.
    ///
    /// # Errors
    /// `Damaged`, `Forked`, `System`.
    pub fn sleep_until_awaited(&self, bound: Duration) -> Result<bool> {
        self.check_usable()?;
        let (map, doorbell) = (self.map(), self.map().word(LOG_DOORBELL)?);
        let seen = self.checked(register_source(map.word(LOG_WAKE)?, doorbell))?;
        let Some(seen) = seen else { return Ok(false) };
        futex_wait(doorbell, seen, bound)?;
        self.checked(true)
    }

    /// This thread sends the log: waiters learn on which processor it runs. `told`: the number that
    /// the last call has returned, 0 for the first. Of several threads the last one that has
    /// changed its processor counts.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn tell_source_cpu(&self, told: u64) -> Result<u64> {
        let cpu = present_cpu().map_or(0, |cpu| cpu + 1);
        if cpu != told && cpu <= CPUS_MAX {
            self.map().word(LOG_SOURCE_CPU)?.store(cpu, Ordering::Relaxed);
        }
        self.check_not_truncated()?;
        Ok(cpu)
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_spins_while_its_source_runs_elsewhere_and_its_waits_are_short() {
        let us = Duration::from_micros;
        assert_eq!(
            spin_limit(us(50), 1, Some(0)),
            Duration::ZERO,
            "the source needs the processor"
        );
        assert_eq!(spin_limit(us(50), 2, Some(0)), us(100));
        assert_eq!(spin_limit(us(150), 2, Some(0)), SPIN_MAX);
        assert_eq!(spin_limit(us(3), 2, Some(0)), SPIN_MIN);
        assert_eq!(spin_limit(us(201), 2, Some(0)), Duration::ZERO, "a distant follower");
        assert_eq!(
            [spin_limit(us(50), 0, Some(0)), spin_limit(us(50), 2, None)],
            [SPIN_UNKNOWN; 2]
        );
    }
}
