//! Threads, and where they run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle, Thread};
use std::time::Duration;

use nearstate_model::{Error, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::clock::Clock;

/// The processors that this process may use, by their numbers.
pub(crate) fn processors() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).map_err(|e| Error::System {
        detail: "asking which processors this process may use".to_owned(),
        errno: e.raw_os_error(),
    })?;
    Ok((0..CpuSet::MAX_CPU).filter(|number| set.is_set(*number)).collect())
}

/// Keeps the calling thread on one processor.
pub(crate) fn pin(processor: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set).map_err(|e| Error::System {
        detail: format!("pinning a thread to processor {processor}; start with pinning off"),
        errno: e.raw_os_error(),
    })
}

/// Begins a thread.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).spawn(run).map_err(|e| Error::System {
        detail: format!("beginning thread {name}; raise `ulimit -u`"),
        errno: e.raw_os_error().unwrap_or(0),
    })
}

/// Lets this process open as many files as the operator's hard limit allows: the soft one is for
/// programs of the seventies. Returns how many that are.
pub(crate) fn raise_open_files() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(soft) = current else { return u64::MAX };
    let raised = Rlimit { current: maximum, maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum.unwrap_or(u64::MAX),
        Err(_) => soft,
    }
}

/// How often a sleeper is woken to see what that costs.
const WAKES: u64 = 9;

/// What it costs to sleep on this machine: from the wake of a sleeper to its first instruction, the
/// median of a few. Half a millisecond.
pub(crate) fn wake_cost(clock: &Clock) -> Result<Duration> {
    let woken_at = Arc::new(AtomicU64::new(0));
    let sleeper = {
        let (woken_at, clock, caller) = (Arc::clone(&woken_at), clock.clone(), current());
        spawn("near-wake", move || {
            for _ in 0..WAKES {
                while woken_at.load(Ordering::Acquire) != WANTED {
                    std::thread::park();
                }
                woken_at.store(clock.now().max(WANTED + 1), Ordering::Release);
                caller.unpark();
            }
        })?
    };
    let mut costs = Vec::new();
    for _ in 0..WAKES {
        // Long enough for the sleeper to sleep.
        std::thread::park_timeout(Duration::from_micros(50));
        let begin = clock.now();
        woken_at.store(WANTED, Ordering::Release);
        sleeper.thread().unpark();
        let mut woken = woken_at.load(Ordering::Acquire);
        while woken == WANTED {
            std::thread::park();
            woken = woken_at.load(Ordering::Acquire);
        }
        costs.push(woken.saturating_sub(begin));
    }
    let _ = sleeper.join();
    costs.sort_unstable();
    Ok(clock.time(costs.get(costs.len() / 2).copied().unwrap_or_default()))
}

/// In place of a reading: the sleeper is to note one.
const WANTED: u64 = 1;

fn current() -> Thread {
    std::thread::current()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_stays_where_it_is_pinned() {
        let last = *processors().unwrap().last().unwrap();
        let seen = spawn("pinned", move || {
            pin(last).unwrap();
            (processors().unwrap(), current().name().map(str::to_owned))
        });
        assert_eq!(seen.unwrap().join().unwrap(), (vec![last], Some("pinned".to_owned())));
    }

    #[test]
    fn a_wake_costs_something() {
        assert!(wake_cost(&Clock::new()).unwrap() > Duration::ZERO);
    }

    #[test]
    fn the_soft_limit_of_files_becomes_the_hard_one() {
        let raised = raise_open_files();
        assert_eq!(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), raised);
    }
}
