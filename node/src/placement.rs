//! Threads and their placement on processors, and the limit of open files.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle, Thread};
use std::time::Duration;

use nearstate_model::{Error, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::clock::Clock;

/// The numbers of the processors that this process may use.
pub(crate) fn processors() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).map_err(|e| Error::System {
        detail: "cannot read the processors that this process may use".to_owned(),
        errno: e.raw_os_error(),
    })?;
    Ok((0..CpuSet::MAX_CPU).filter(|number| set.is_set(*number)).collect())
}

/// The processors that the caller chose; all that this process may use if it chose none.
pub(crate) fn chosen_processors(chosen: &[usize]) -> Result<Vec<usize>> {
    let allowed = processors()?;
    if chosen.is_empty() {
        return Ok(allowed);
    }
    let is_repeated = |(index, number): (usize, &usize)| {
        chosen.iter().take(index).any(|earlier| earlier == number)
    };
    let mut numbered = chosen.iter().enumerate();
    let wrong =
        numbered.find(|(index, number)| !allowed.contains(number) || is_repeated((*index, number)));
    match wrong {
        None => Ok(chosen.to_vec()),
        Some((_, number)) => Err(Error::BadArgument {
            detail: format!(
                "processor {number} is given twice, or this process may not use it; it may use \
                 {allowed:?}"
            ),
        }),
    }
}

/// Pins the calling thread to a processor.
pub(crate) fn pin(processor: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set).map_err(|e| Error::System {
        detail: format!("cannot pin a thread to processor {processor}; disable pinning"),
        errno: e.raw_os_error(),
    })
}

/// Starts a thread.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).spawn(run).map_err(|e| Error::System {
        detail: format!("cannot start thread {name}; raise `ulimit -u`"),
        errno: e.raw_os_error().unwrap_or(0),
    })
}

/// Raises the soft limit of open files to the hard limit, and returns it. The soft limit is low for
/// programs that use `select`, which this one does not.
pub(crate) fn raise_open_files() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(soft) = current else { return u64::MAX };
    let raised = Rlimit { current: maximum, maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum.unwrap_or(u64::MAX),
        Err(_) => soft,
    }
}

/// Measured wakeups.
const WAKES: u64 = 9;

/// The cost of a sleep on this machine: from the wakeup of a thread to its first instruction, the
/// median of [`WAKES`]. Takes half a millisecond.
pub(crate) fn wake_cost(clock: &Clock) -> Result<Duration> {
    let woken_at = Arc::new(AtomicU64::new(0));
    let sleeper = {
        let (woken_at, clock, caller) = (Arc::clone(&woken_at), clock.clone(), current());
        spawn("ns-wake-cost", move || {
            for _ in 0..WAKES {
                while woken_at.load(Ordering::Acquire) != REQUESTED {
                    std::thread::park();
                }
                woken_at.store(clock.now().max(REQUESTED + 1), Ordering::Release);
                caller.unpark();
            }
        })?
    };
    let mut costs = Vec::new();
    for _ in 0..WAKES {
        // Long enough for the other thread to fall asleep.
        std::thread::park_timeout(Duration::from_micros(50));
        let begin = clock.now();
        woken_at.store(REQUESTED, Ordering::Release);
        sleeper.thread().unpark();
        let mut woken = woken_at.load(Ordering::Acquire);
        while woken == REQUESTED {
            std::thread::park();
            woken = woken_at.load(Ordering::Acquire);
        }
        costs.push(woken.saturating_sub(begin));
    }
    let _ = sleeper.join();
    costs.sort_unstable();
    Ok(clock.time(costs.get(costs.len() / 2).copied().unwrap_or_default()))
}

/// A request for a clock reading, in place of a reading.
const REQUESTED: u64 = 1;

fn current() -> Thread {
    std::thread::current()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_stays_on_its_processor() {
        let last = *processors().unwrap().last().unwrap();
        let seen = spawn("pinned", move || {
            pin(last).unwrap();
            (processors().unwrap(), current().name().map(str::to_owned))
        });
        assert_eq!(seen.unwrap().join().unwrap(), (vec![last], Some("pinned".to_owned())));
    }

    #[test]
    fn chosen_processors_must_be_allowed_and_distinct() {
        let allowed = processors().unwrap();
        assert_eq!(chosen_processors(&[]).unwrap(), allowed);
        let last = *allowed.last().unwrap();
        assert_eq!(chosen_processors(&[last]).unwrap(), [last]);
        for wrong in [vec![last, last], vec![1023]] {
            let refused = chosen_processors(&wrong).unwrap_err().to_string();
            assert!(refused.contains("it may use"), "{refused}");
        }
    }

    #[test]
    fn the_measured_cost_of_a_wake_is_positive() {
        assert!(wake_cost(&Clock::new()).unwrap() > Duration::ZERO);
    }

    #[test]
    fn the_soft_limit_of_files_becomes_the_hard_one() {
        let raised = raise_open_files();
        assert_eq!(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), raised);
    }
}
