//! Decides whether an idle core busy-polls before it sleeps.
//!
//! A wakeup takes about 20 us until the first instruction. A core whose work arrives every 10 us
//! serves more if it busy-polls; one whose work arrives every 100 us would only waste the time. So
//! the mean of recent idle times decides, and no busy-poll lasts longer than a sleep costs.

use std::time::Duration;

/// What an idle core does before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpinPolicy {
    /// Sleep at once.
    Never,
    /// Busy-poll for as long as a sleep costs, if work has been arriving sooner than that. On a
    /// machine with one processor: sleep at once.
    Adaptive {
        /// The cost of a sleep: from the wakeup to the first instruction.
        cost: Duration,
    },
    /// Always busy-poll for this long.
    Always {
        /// How long.
        time: Duration,
    },
}

impl Default for SpinPolicy {
    /// Adaptive, with the typical cost of a sleep on a virtual machine.
    fn default() -> Self {
        Self::Adaptive { cost: Duration::from_micros(20) }
    }
}

impl SpinPolicy {
    /// Upper bound of the cost: measurements on a busy machine are too long.
    pub const COST_MAX: Duration = Duration::from_micros(50);
}

/// The weight of a new idle time in the mean (as a power of two).
const SHARE_LOG2: u32 = 3;

/// The mean of recent idle times, in ticks, and the decision.
#[derive(Clone, Debug)]
pub(crate) struct IdleGaps {
    /// How long a busy-poll may last.
    bound: u64,
    /// A busy-poll pays off below this mean.
    worth_below: u64,
    /// The part of an idle time that the sleep itself caused.
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

    /// How long to busy-poll before sleeping.
    #[inline]
    pub(crate) fn spin_time(&self) -> u64 {
        if self.mean < self.worth_below { self.bound } else { 0 }
    }

    /// Records an idle time. The cost of a sleep is not part of it.
    #[inline]
    pub(crate) fn note(&mut self, gap: u64, has_slept: bool) {
        let gap = if has_slept { gap.saturating_sub(self.cost) } else { gap };
        // Long pauses are capped, so that a few of them do not outweigh fast work.
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
    fn a_core_spins_for_fast_work_and_sleeps_for_slow_work() {
        let mut gaps = gaps(SpinPolicy::Adaptive { cost: Duration::from_micros(20) }, 2);
        assert_eq!(gaps.spin_time(), 0, "no idle time is known yet");
        (0..100).for_each(|_| gaps.note(35_000, true));
        assert_eq!(gaps.spin_time(), 20_000, "15 us and a sleep");
        (0..100).for_each(|_| gaps.note(7_000, false));
        assert_eq!(gaps.spin_time(), 20_000);
        (0..100).for_each(|_| gaps.note(104_000, true));
        assert_eq!(gaps.spin_time(), 0);
        (0..5).for_each(|_| gaps.note(u64::MAX, true));
        (0..40).for_each(|_| gaps.note(7_000, true));
        assert_eq!(gaps.spin_time(), 20_000, "a long pause is forgotten after forty requests");
    }

    #[test]
    fn a_core_does_not_spin_on_the_only_processor() {
        let mut one = gaps(SpinPolicy::default(), 1);
        let mut never = gaps(SpinPolicy::Never, 2);
        let mut always = gaps(SpinPolicy::Always { time: Duration::from_micros(50) }, 1);
        for _ in 0..100 {
            for gaps in [&mut one, &mut never, &mut always] {
                gaps.note(1000, false);
            }
        }
        assert_eq!((one.spin_time(), never.spin_time(), always.spin_time()), (0, 0, 50_000));
    }
}
