//! The thread that notices a task which does not return. The watchdog of a core judges a poll after
//! it; one that never ends is seen from outside only.
//!
//! It looks twenty times a second, and not at all while every core sleeps: the first core that
//! wakes up wakes it.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::executor::{Meter, Pulse};

/// How long one poll may last before its task is named.
pub(crate) const STUCK: Duration = Duration::from_millis(50);

/// After so many looks at sleeping cores it sleeps, too: a core that works once a second does not
/// pay for a wake of the sampler each time.
const IDLE_LOOKS: u32 = 40;

/// A task that did not return for too long, and may never.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
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
    meter: Arc<Meter>,
    pulse: Pulse,
    since: u64,
    is_told: bool,
}

impl Sampler {
    pub(crate) fn new(clock: Clock, meters: Vec<Arc<Meter>>) -> Self {
        let now = clock.now();
        let cores = meters
            .into_iter()
            .map(|meter| Seen { pulse: meter.pulse(), meter, since: now, is_told: false })
            .collect();
        Self { clock, cores, idle_looks: 0 }
    }

    /// Looks at every core. Tells of each stuck poll once.
    pub(crate) fn look(&mut self) -> Vec<Stuck> {
        let now = self.clock.now();
        let mut stuck = Vec::new();
        let mut is_idle = true;
        for (core, seen) in self.cores.iter_mut().enumerate() {
            let pulse = seen.meter.pulse();
            is_idle &= pulse.is_idle();
            if pulse != seen.pulse || pulse.is_idle() {
                (seen.pulse, seen.since, seen.is_told) = (pulse, now, false);
                continue;
            }
            let time = self.clock.time(now.saturating_sub(seen.since));
            if time >= STUCK && !seen.is_told {
                seen.is_told = true;
                stuck.push(Stuck { core, task: seen.meter.name_of(pulse), time });
            }
        }
        self.idle_looks = if is_idle { self.idle_looks + 1 } else { 0 };
        stuck
    }

    /// Looks until told to stop. On a thread of its own.
    pub(crate) fn run(mut self, is_over: impl Fn() -> bool, tell: fn(&Stuck)) {
        while !is_over() {
            for stuck in self.look() {
                if let Some(seen) = self.cores.get(stuck.core) {
                    seen.meter.task_is_stuck(stuck.task);
                }
                tell(&stuck);
            }
            if self.idle_looks < IDLE_LOOKS {
                std::thread::park_timeout(STUCK);
                continue;
            }
            let me = std::thread::current();
            if self.cores.iter().all(|seen| seen.meter.wake_when_busy(&me)) {
                std::thread::park();
            }
            self.idle_looks = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::{Class, Config, Executor};
    use std::cell::RefCell;
    use std::rc::Rc;

    #[test]
    fn a_task_that_does_not_return_is_named_once_and_one_that_works_much_is_not() {
        let clock = Clock::new_virtual();
        let config = Config { clock: clock.clone(), ..Config::default() };
        let executor = Executor::new(&config).unwrap();
        let sampler = Rc::new(RefCell::new(Sampler::new(clock.clone(), vec![executor.meter()])));
        let look = Rc::clone(&sampler);
        let hog = executor.spawn(Class::Request, "hog", async move {
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
        assert_eq!(told, [Stuck { core: 0, task: "hog", time: Duration::from_millis(60) }]);
        assert!(sampler.borrow_mut().look().is_empty());
    }
}
