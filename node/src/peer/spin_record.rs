//! Whether it is worth it to look again and again before a sleep.

/// While all polls are in vain, one of 2^6 pauses begins with a poll: half a microsecond for each
/// pause of a source, on average.
const SKIPPED_LOG2_MAX: u32 = 6;

/// What became of earlier busy-polls. A thread that polls on the processor of the one that it waits
/// for keeps it from running: each poll is in vain, and takes its whole time from the other one.
/// Which processor that is, no thread chooses. So one that was in vain is followed by 1, 3, 7 and
/// at most 63 sleeps at once, and the first success ends that.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SpinRecord {
    /// The number of polls in vain since the last success.
    vain: u32,
    /// So many are left out.
    skipped: u32,
}

impl SpinRecord {
    /// True if the thread polls before it sleeps. Then [`SpinRecord::note`] follows.
    pub(super) fn is_worth_it(&mut self) -> bool {
        let is_worth_it = self.skipped == 0;
        self.skipped = self.skipped.saturating_sub(1);
        is_worth_it
    }

    /// True if the last poll was in vain.
    pub(super) const fn is_in_vain(self) -> bool {
        self.vain > 0
    }

    /// A poll has ended.
    pub(super) fn note(&mut self, has_succeeded: bool) {
        self.vain = if has_succeeded { 0 } else { self.vain.saturating_add(1) };
        self.skipped = (1 << self.vain.min(SKIPPED_LOG2_MAX)) - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The polls among the next `count` pauses, if none of them succeeds.
    fn polls(record: &mut SpinRecord, count: u32) -> u32 {
        let mut polls = 0;
        for _ in 0..count {
            if record.is_worth_it() {
                polls += 1;
                record.note(false);
            }
        }
        polls
    }

    #[test]
    fn polls_in_vain_become_rare_and_a_success_brings_them_back() {
        let mut record = SpinRecord::default();
        assert!(!record.is_in_vain());
        // 1, then 1, 3, 7, 15 and 31 pauses without.
        assert_eq!(polls(&mut record, 63), 6);
        assert_eq!(polls(&mut record, 6400), 100);
        assert!(record.is_in_vain());
        while !record.is_worth_it() {}
        record.note(true);
        assert!(record.is_worth_it() && !record.is_in_vain());
    }
}
