//! The thread that detects tasks that do not return. A core checks the length of a poll after it
//! has ended; a poll that never ends is visible from another thread only.
//!
//! It samples twenty times a second, and not at all while every core sleeps: the first core that
//! wakes up wakes the sampler.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::executor::{ExecutorMetrics, PollStamp};

/// Interval of the samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);

/// A poll that lasts longer is reported as stuck. The largest request that the limits allow, of 128
/// MiB, takes some hundred milliseconds on a slow machine and is only a long poll.
pub(crate) const STUCK: Duration = Duration::from_secs(1);

/// After this many samples of sleeping cores the sampler sleeps, too: 0.2 s. A core that works more
/// often does not wake the sampler each time. One that works once a second wakes it, for some
/// microseconds; the samples of a second would cost ten times as much.
const IDLE_SAMPLES: u32 = 4;

/// A task that has not returned for too long, and may never return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckTask {
    /// The index of the core.
    pub core: usize,
    /// The name of the task.
    pub task: &'static str,
    /// How long the same poll has been observed.
    pub time: Duration,
}

/// Observes the cores of a node.
#[derive(Debug)]
pub(crate) struct Sampler {
    clock: Clock,
    cores: Vec<CoreSample>,
    idle_samples: u32,
}

#[derive(Debug)]
struct CoreSample {
    metrics: Arc<ExecutorMetrics>,
    poll_stamp: PollStamp,
    since: u64,
    is_reported: bool,
}

impl Sampler {
    pub(crate) fn new(clock: Clock, executors: Vec<Arc<ExecutorMetrics>>) -> Self {
        let now = clock.now();
        let cores = executors
            .into_iter()
            .map(|metrics| CoreSample {
                poll_stamp: metrics.poll_stamp(),
                metrics,
                since: now,
                is_reported: false,
            })
            .collect();
        Self { clock, cores, idle_samples: 0 }
    }

    /// Samples every core. Reports each stuck poll once.
    pub(crate) fn sample(&mut self) -> Vec<StuckTask> {
        let now = self.clock.now();
        let mut stuck = Vec::new();
        let mut is_idle = true;
        for (core, seen) in self.cores.iter_mut().enumerate() {
            let poll_stamp = seen.metrics.poll_stamp();
            is_idle &= poll_stamp.is_idle();
            if poll_stamp != seen.poll_stamp || poll_stamp.is_idle() {
                (seen.poll_stamp, seen.since, seen.is_reported) = (poll_stamp, now, false);
                continue;
            }
            let time = self.clock.time(now.saturating_sub(seen.since));
            if time >= STUCK && !seen.is_reported {
                seen.is_reported = true;
                stuck.push(StuckTask { core, task: seen.metrics.name_of(poll_stamp), time });
            }
        }
        self.idle_samples = if is_idle { self.idle_samples + 1 } else { 0 };
        stuck
    }

    /// Samples until `is_stopped`. Runs on a thread of its own.
    pub(crate) fn run(mut self, is_stopped: impl Fn() -> bool, report: fn(&StuckTask)) {
        while !is_stopped() {
            for stuck in self.sample() {
                if let Some(seen) = self.cores.get(stuck.core) {
                    seen.metrics.count_stuck(stuck.task);
                }
                report(&stuck);
            }
            if self.idle_samples < IDLE_SAMPLES {
                std::thread::park_timeout(SAMPLE_INTERVAL);
                continue;
            }
            let me = std::thread::current();
            if self.cores.iter().all(|seen| seen.metrics.wake_when_busy(&me)) {
                std::thread::park();
            }
            self.idle_samples = 0;
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
    fn a_stuck_task_is_reported_once_and_a_busy_one_is_not_reported() {
        let clock = Clock::new_virtual();
        let config = ExecutorConfig { clock: clock.clone(), ..ExecutorConfig::default() };
        let executor = Executor::new(&config).unwrap();
        let sampler = Rc::new(RefCell::new(Sampler::new(clock.clone(), vec![executor.metrics()])));
        let look = Rc::clone(&sampler);
        let hog = executor.spawn(TaskClass::Request, "hog", async move {
            let mut reported = Vec::new();
            for _ in 0..5 {
                clock.advance(STUCK * 3 / 5);
                reported.extend(look.borrow_mut().sample());
                crate::executor::yield_now().await;
            }
            assert_eq!(reported, [], "each poll is short");
            for _ in 0..5 {
                clock.advance(STUCK * 3 / 5);
                reported.extend(look.borrow_mut().sample());
            }
            reported
        });
        let reported = executor.run(hog).unwrap();
        assert_eq!(reported, [StuckTask { core: 0, task: "hog", time: STUCK * 6 / 5 }]);
        assert!(sampler.borrow_mut().sample().is_empty());
    }
}
