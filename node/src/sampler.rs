//! The thread that notices a task which does not return. The watchdog of a core judges a poll after
//! it; one that never ends is seen from outside only.
//!
//! It looks twenty times a second, and not at all while every core sleeps: the first core that
//! wakes up wakes it.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::executor::{ExecutorMetrics, PollStamp};

/// How long one poll may last before its task is named.
pub(crate) const STUCK: Duration = Duration::from_millis(50);

/// After so many looks at sleeping cores it sleeps, too: a core that works once a second does not
/// pay for a wake of the sampler each time.
const IDLE_LOOKS: u32 = 40;

/// A task that did not return for too long, and may never.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckTask {
    /// The core.
    pub core: usize,
    /// The task's name.
    pub task: &'static str,
    /// For how long it has been seen in the same poll.
    pub time: Duration,
}

/// What was seen of each core.
#[derive(Debug)]
pub(crate) struct Sampler {
    clock: Clock,
    cores: Vec<Seen>,
    idle_looks: u32,
}

#[derive(Debug)]
struct Seen {
    metrics: Arc<ExecutorMetrics>,
    poll_stamp: PollStamp,
    since: u64,
    is_told: bool,
}

impl Sampler {
    pub(crate) fn new(clock: Clock, executors: Vec<Arc<ExecutorMetrics>>) -> Self {
        let now = clock.now();
        let cores = executors
            .into_iter()
            .map(|metrics| Seen {
                poll_stamp: metrics.poll_stamp(),
                metrics,
                since: now,
                is_told: false,
            })
            .collect();
        Self { clock, cores, idle_looks: 0 }
    }

    /// Looks at every core. Tells of each stuck poll once.
    pub(crate) fn look(&mut self) -> Vec<StuckTask> {
        let now = self.clock.now();
        let mut stuck = Vec::new();
        let mut is_idle = true;
        for (core, seen) in self.cores.iter_mut().enumerate() {
            let poll_stamp = seen.metrics.poll_stamp();
            is_idle &= poll_stamp.is_idle();
            if poll_stamp != seen.poll_stamp || poll_stamp.is_idle() {
                (seen.poll_stamp, seen.since, seen.is_told) = (poll_stamp, now, false);
                continue;
            }
            let time = self.clock.time(now.saturating_sub(seen.since));
            if time >= STUCK && !seen.is_told {
                seen.is_told = true;
                stuck.push(StuckTask { core, task: seen.metrics.name_of(poll_stamp), time });
            }
        }
        self.idle_looks = if is_idle { self.idle_looks + 1 } else { 0 };
        stuck
    }

    /// Looks until told to stop. On a thread of its own.
    pub(crate) fn run(mut self, is_over: impl Fn() -> bool, tell: fn(&StuckTask)) {
        while !is_over() {
            for stuck in self.look() {
                if let Some(seen) = self.cores.get(stuck.core) {
                    seen.metrics.task_is_stuck(stuck.task);
                }
                tell(&stuck);
            }
            if self.idle_looks < IDLE_LOOKS {
                std::thread::park_timeout(STUCK);
                continue;
            }
            let me = std::thread::current();
            if self.cores.iter().all(|seen| seen.metrics.wake_when_busy(&me)) {
                std::thread::park();
            }
            self.idle_looks = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::{Executor, ExecutorConfig, TaskClass};
    use std::cell::RefCell;
    use std::rc::Rc;

    #[test]
    fn a_task_that_does_not_return_is_named_once_and_one_that_works_much_is_not() {
        let clock = Clock::new_virtual();
        let config = ExecutorConfig { clock: clock.clone(), ..ExecutorConfig::default() };
        let executor = Executor::new(&config).unwrap();
        let sampler = Rc::new(RefCell::new(Sampler::new(clock.clone(), vec![executor.metrics()])));
        let look = Rc::clone(&sampler);
        let hog = executor.spawn(TaskClass::Request, "hog", async move {
            let mut told = Vec::new();
            for _ in 0..5 {
                clock.advance(Duration::from_millis(30));
                told.extend(look.borrow_mut().look());
                crate::executor::yield_now().await;
            }
            assert_eq!(told, [], "each poll is short");
            for _ in 0..5 {
                clock.advance(Duration::from_millis(30));
                told.extend(look.borrow_mut().look());
            }
            told
        });
        let told = executor.run(hog).unwrap();
        assert_eq!(told, [StuckTask { core: 0, task: "hog", time: Duration::from_millis(60) }]);
        assert!(sampler.borrow_mut().look().is_empty());
    }
}
