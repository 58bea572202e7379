//! Whether a core that has nothing to do looks for work for a while before it sleeps.
//!
//! To be woken costs what a sleep cost: some 20 us until the first instruction. A core whose work
//! comes every 10 us serves more if it looks; one whose work comes every 100 us would only burn the
//! time. So the mean of the recent gaps decides, and no look lasts longer than a sleep costs.

use std::time::Duration;

/// What to do before sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpinPolicy {
    /// Sleep at once.
    Never,
    /// Look for work for as long as a sleep costs, if work has been coming sooner than that. On a
    /// machine with one processor it sleeps at once.
    Adaptive {
        /// What a sleep costs, from the last work to the first instruction after the wake.
        cost: Duration,
    },
    /// Look for work for so long, always.
    Always {
        /// How long.
        time: Duration,
    },
}

impl Default for SpinPolicy {
    /// Adaptive, with what a sleep costs on a virtual machine of today.
    fn default() -> Self {
        Self::Adaptive { cost: Duration::from_micros(20) }
    }
}

impl SpinPolicy {
    /// The longest cost that is believed. A machine that is busy shows longer ones.
    pub const COST_MAX: Duration = Duration::from_micros(50);
}

/// The parts of the mean that a new gap is.
const SHARE_LOG2: u32 = 3;

/// Remembers gaps, and decides. In ticks.
#[derive(Clone, Debug)]
pub(crate) struct IdleGaps {
    /// How long a look may last.
    bound: u64,
    /// Below this mean it is worth it.
    worth_below: u64,
    /// What a sleep adds to a gap.
    cost: u64,
    mean: u64,
}

impl IdleGaps {
    pub(crate) fn new(
        spin: SpinPolicy,
        processors: usize,
        ticks: impl Fn(Duration) -> u64,
    ) -> Self {
        let (bound, worth_below, cost) = match spin {
            SpinPolicy::Adaptive { cost } if processors > 1 => {
                let cost = ticks(cost.min(SpinPolicy::COST_MAX));
                (cost, cost, cost)
            }
            SpinPolicy::Never | SpinPolicy::Adaptive { .. } => (0, 0, 0),
            SpinPolicy::Always { time } => (ticks(time), u64::MAX, 0),
        };
        Self { bound, worth_below, cost, mean: u64::MAX >> SHARE_LOG2 }
    }

    /// How long to look before sleeping.
    #[inline]
    pub(crate) fn look(&self) -> u64 {
        if self.mean < self.worth_below { self.bound } else { 0 }
    }

    /// Work has come after a gap. What a sleep added to it is not the work's.
    #[inline]
    pub(crate) fn note(&mut self, gap: u64, has_slept: bool) {
        let gap = if has_slept { gap.saturating_sub(self.cost) } else { gap };
        // One long pause does not make it forget that work comes fast, nor do many.
        let gap = gap.min(self.cost.saturating_mul(16));
        self.mean = self.mean.min(self.cost.saturating_mul(16));
        self.mean = self.mean - (self.mean >> SHARE_LOG2) + (gap >> SHARE_LOG2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(spin: SpinPolicy, processors: usize) -> IdleGaps {
        IdleGaps::new(spin, processors, |time| u64::try_from(time.as_nanos()).unwrap())
    }

    #[test]
    fn fast_work_is_looked_for_and_slow_work_is_slept_for() {
        let mut gaps = gaps(SpinPolicy::Adaptive { cost: Duration::from_micros(20) }, 2);
        assert_eq!(gaps.look(), 0, "nothing is known yet");
        (0..100).for_each(|_| gaps.note(35_000, true));
        assert_eq!(gaps.look(), 20_000, "15 us and a sleep");
        (0..100).for_each(|_| gaps.note(7_000, false));
        assert_eq!(gaps.look(), 20_000);
        (0..100).for_each(|_| gaps.note(104_000, true));
        assert_eq!(gaps.look(), 0);
        (0..5).for_each(|_| gaps.note(u64::MAX, true));
        (0..40).for_each(|_| gaps.note(7_000, true));
        assert_eq!(gaps.look(), 20_000, "a night's rest is forgotten after forty requests");
    }

    #[test]
    fn one_processor_is_left_to_the_client() {
        let mut one = gaps(SpinPolicy::default(), 1);
        let mut never = gaps(SpinPolicy::Never, 2);
        let mut always = gaps(SpinPolicy::Always { time: Duration::from_micros(50) }, 1);
        for _ in 0..100 {
            for gaps in [&mut one, &mut never, &mut always] {
                gaps.note(1000, false);
            }
        }
        assert_eq!((one.look(), never.look(), always.look()), (0, 0, 50_000));
    }
}
