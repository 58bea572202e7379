//! The room of the outbox: what a commit may add to it, and when the timers for whose notifications
//! there is none are looked at again.

use std::collections::BTreeMap;

use crate::limits::{DEFERRED_MS_MAX, DEFERRED_MS_MIN, DEFERRED_PER_MS, OutboxLimits};

/// What the region holds for a target, or a commit adds for it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TargetLoad {
    pub(crate) entries: usize,
    pub(crate) bytes: usize,
}

/// What the outbox holds.
#[derive(Debug, Default)]
pub(crate) struct OutboxLoad {
    pub(crate) targets: BTreeMap<u64, TargetLoad>,
    /// The bytes of all entries.
    pub(crate) bytes: usize,
}

impl OutboxLoad {
    /// An entry of a target is there.
    pub(crate) fn add(&mut self, target: u64, bytes: usize) {
        let load = self.targets.entry(target).or_default();
        load.entries += 1;
        load.bytes += bytes;
        self.bytes += bytes;
    }

    /// Entries of a target are removed.
    pub(crate) fn subtract(&mut self, target: u64, removed: TargetLoad) {
        if let Some(load) = self.targets.get_mut(&target) {
            load.entries = load.entries.saturating_sub(removed.entries);
            load.bytes = load.bytes.saturating_sub(removed.bytes);
            self.bytes = self.bytes.saturating_sub(removed.bytes);
            if load.entries == 0 {
                self.targets.remove(&target);
            }
        }
    }

    /// A target has no entries.
    pub(crate) fn forget(&mut self, target: u64) {
        if let Some(load) = self.targets.remove(&target) {
            self.bytes = self.bytes.saturating_sub(load.bytes);
        }
    }
}

/// What one commit adds to the outbox.
#[derive(Debug, Default)]
pub(crate) struct CommitLoad(OutboxLoad);

impl CommitLoad {
    /// Takes the room for an entry. False: there is none.
    pub(crate) fn take(
        &mut self,
        (before, limits): (&OutboxLoad, &OutboxLimits),
        target: u64,
        bytes: usize,
    ) -> bool {
        let of = |load: &OutboxLoad| load.targets.get(&target).copied().unwrap_or_default();
        let (held, own) = (of(before), of(&self.0));
        let has_room = before.bytes + self.0.bytes + bytes <= limits.bytes
            && held.entries + own.entries < limits.target_entries
            && held.bytes + own.bytes + bytes <= limits.target_bytes;
        if has_room {
            self.0.add(target, bytes);
        }
        has_room
    }
}

/// Targets of which a [`DeferralQueue`] knows the last place. With more, it begins anew.
const TARGETS_MAX: usize = 4096;

/// When the timers of each target that have found no room are looked at again: one after the
/// other, so that many of them take a bounded part of the time.
#[derive(Debug, Default)]
pub(crate) struct DeferralQueue {
    /// The last place of each target, in parts of a millisecond since 1970.
    last: BTreeMap<u64, u64>,
}

impl DeferralQueue {
    /// The time of the next place of a target, in milliseconds.
    pub(crate) fn next_ms(&mut self, target: u64, now_ms: u64) -> u64 {
        let after = |ms: u64| now_ms.saturating_add(ms).saturating_mul(DEFERRED_PER_MS);
        let (first, end) = (after(DEFERRED_MS_MIN), after(DEFERRED_MS_MAX));
        if self.last.len() >= TARGETS_MAX {
            self.last.retain(|_, last| *last >= first);
            if self.last.len() >= TARGETS_MAX {
                self.last.clear();
            }
        }
        let last = self.last.entry(target).or_default();
        // The end also bounds what a clock that was set back leaves.
        *last = (*last).saturating_add(1).clamp(first, end);
        *last / DEFERRED_PER_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_takes_what_a_target_and_all_together_may_have() {
        let limits = OutboxLimits { target_entries: 3, target_bytes: 100, bytes: 150 };
        let mut before = OutboxLoad::default();
        before.add(1, 40);
        let mut commit = CommitLoad::default();
        let mut take = |target, bytes| commit.take((&before, &limits), target, bytes);
        assert!(take(1, 50) && !take(1, 11) && take(1, 10), "bytes of a target");
        assert!(!take(1, 0), "entries of a target");
        assert!(!take(2, 51) && take(2, 50) && !take(3, 1) && take(3, 0), "bytes of all");
        before.subtract(1, TargetLoad { entries: 1, bytes: 40 });
        assert!(before.targets.is_empty() && before.bytes == 0);
    }

    #[test]
    fn timers_of_a_target_are_looked_at_one_after_the_other() {
        let (mut queue, now_ms) = (DeferralQueue::default(), 10_000_000);
        let mut next = |target| queue.next_ms(target, now_ms) - now_ms;
        assert_eq!((next(1), next(2)), (DEFERRED_MS_MIN, DEFERRED_MS_MIN));
        let many = 20 * DEFERRED_PER_MS;
        assert_eq!((0..many).map(|_| next(1)).max(), Some(DEFERRED_MS_MIN + 20));
        assert_eq!(next(2), DEFERRED_MS_MIN, "others do not wait for them");
        assert_eq!(queue.next_ms(1, 0), DEFERRED_MS_MAX, "the clock was set back");
        assert_eq!(queue.next_ms(1, 2 * now_ms), 2 * now_ms + DEFERRED_MS_MIN);
    }
}
