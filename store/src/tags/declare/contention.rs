//! Conflict handling of a declaration that runs in parts: a part ends at its first conflict and
//! returns the thread to the caller. The next part continues at the same record.
//!
//! No work is lost: each conflict means that another transaction committed, and indexed values stay
//! indexed. The declaration completes for three reasons. The caller runs other work between two
//! parts, so the conflicting writer has moved on. The next part may retry more often, and an
//! immediate retry finds its data in the cache and is faster. From then on a record is indexed
//! value by value (`indexing.rs`), so each transaction can conflict with fewer changes.

use std::cell::Cell;
use std::time::Duration;

use nearstate_model::{Error, Result, invariant};

use crate::txn::RetryPolicy;

/// The binary logarithm of the largest number of runs of a transaction in one part: eight, with
/// pauses of some microseconds.
const TRIES_LOG_MAX: u32 = 3;

/// The conflicts of one transaction, over the parts that it took so far.
#[derive(Debug, Default)]
pub(super) struct Contention {
    /// Consecutive parts that ended with a conflict.
    parts: u32,
    runs: u32,
    since: Duration,
    /// True if a transaction has succeeded since then.
    is_over: Cell<bool>,
}

impl Contention {
    /// The number of runs of a transaction in the next part.
    pub(super) fn tries(&self) -> u32 {
        if self.is_over.get() { 1 } else { 1 << self.parts.min(TRIES_LOG_MAX) }
    }

    /// Records that a transaction has succeeded.
    pub(super) fn end(&self) {
        self.is_over.set(true);
    }

    /// Records that a part has ended after this many conflicts.
    ///
    /// # Errors
    /// `Deadline` if the retry policy is exhausted.
    pub(super) fn record_conflicts(
        &mut self,
        tries: u32,
        retry_policy: RetryPolicy,
        now: Duration,
    ) -> Result<()> {
        if self.is_over.get() || self.parts == 0 {
            *self = Self { since: now, ..Self::default() };
        }
        self.parts = self.parts.saturating_add(1);
        self.runs = self.runs.saturating_add(tries);
        invariant!(self.parts > 0 && tries > 0, "a part has had {tries} conflicts");
        // Clocks of two cores may differ by a few ticks.
        let spent = now.saturating_sub(self.since);
        if self.runs >= retry_policy.tries
            || retry_policy.within.is_some_and(|within| spent >= within)
        {
            return Err(Error::Deadline { tries: self.runs });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Duration = Duration::from_secs(5);

    fn conflict(
        contention: &mut Contention,
        retry_policy: RetryPolicy,
        now: Duration,
    ) -> Result<u32> {
        let tries = contention.tries();
        contention.record_conflicts(tries, retry_policy, now).map(|()| tries)
    }

    #[test]
    fn each_part_tries_more_often_than_the_one_before_up_to_a_limit() {
        let (mut contention, retry_policy) = (Contention::default(), RetryPolicy::default());
        let mut tries = Vec::new();
        for _ in 0..6 {
            tries.push(conflict(&mut contention, retry_policy, AT).unwrap());
        }
        assert_eq!(tries, [1, 2, 4, 8, 8, 8]);
        contention.end();
        assert_eq!(conflict(&mut contention, retry_policy, AT), Ok(1), "another transaction");
        assert_eq!(conflict(&mut contention, retry_policy, AT), Ok(2));
    }

    #[test]
    fn the_retry_policy_covers_all_parts_of_one_transaction() {
        let retry_policy = RetryPolicy { tries: 7, within: Some(Duration::from_secs(1)) };
        let mut contention = Contention::default();
        for tries in [1, 2] {
            assert_eq!(conflict(&mut contention, retry_policy, AT), Ok(tries));
        }
        assert_eq!(conflict(&mut contention, retry_policy, AT), Err(Error::Deadline { tries: 7 }));
        let mut contention = Contention::default();
        assert_eq!(conflict(&mut contention, retry_policy, AT), Ok(1));
        contention.end();
        let later = AT + Duration::from_secs(2);
        assert_eq!(
            conflict(&mut contention, retry_policy, later),
            Ok(1),
            "the time counts from its first conflict"
        );
        let late = conflict(&mut contention, retry_policy, later + Duration::from_secs(1));
        assert_eq!(late, Err(Error::Deadline { tries: 3 }));
    }
}
