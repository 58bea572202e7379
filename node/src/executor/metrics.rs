//! Metrics of an executor, and what other threads see while it runs: the lengths of polls, the
//! tasks of long polls, and the current task.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use crate::clock::Clock;
use crate::executor::class::TaskClass;
use crate::metrics::{CoreCounter, Distribution, Histogram};

/// A poll that took too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LongPoll {
    /// The name of the task.
    pub task: &'static str,
    /// The class of the task.
    pub class: TaskClass,
    /// The length of the poll.
    pub time: Duration,
}

/// The metrics of an executor. It writes them; any thread reads them.
#[derive(Debug)]
pub struct ExecutorMetrics {
    clock: Clock,
    pub(crate) rounds: CoreCounter,
    pub(crate) parks: CoreCounter,
    pub(crate) spins: CoreCounter,
    pub(crate) slices: CoreCounter,
    pub(crate) remote_wakes: CoreCounter,
    /// In ticks, one histogram per class.
    polls: [Histogram; 3],
    long_polls: CoreCounter,
    /// Locked for long polls only.
    long_by_name: Mutex<BTreeMap<&'static str, u64>>,
    /// The start of the current poll, and in the low [`NAME_BITS`] the number of its task's name;
    /// 0: none.
    poll_stamp: AtomicU64,
    names: Mutex<Vec<&'static str>>,
    /// Written by the sampler.
    stuck: CoreCounter,
    /// The sampler sleeps until a core wakes up.
    is_watcher_asleep: AtomicBool,
    watcher: Mutex<Option<Thread>>,
}

/// In place of a name: the core is awake and polls no task yet.
const AWAKE: u64 = (1 << NAME_BITS) - 1;

/// Bits of a poll stamp that are a name.
const NAME_BITS: u32 = 16;

/// A snapshot of [`ExecutorMetrics`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorStats {
    /// Rounds.
    pub rounds: u64,
    /// Times that the thread went to sleep.
    pub parks: u64,
    /// Times that the core busy-polled before a possible sleep.
    pub spins: u64,
    /// Time slices of background tasks.
    pub slices: u64,
    /// Tasks woken by other threads.
    pub remote_wakes: u64,
    /// Lengths of polls in nanoseconds, by class in the order of [`TaskClass::ALL`].
    pub polls: [Distribution; 3],
    /// Polls that took too long.
    pub long_polls: u64,
    /// Polls that the sampler reported as stuck. Those that have ended are long polls, too.
    pub stuck: u64,
    /// Long and stuck polls by the name of the task.
    pub long_by_name: BTreeMap<&'static str, u64>,
}

/// Identifies a poll. Two stamps are equal only if the poll is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollStamp(u64);

impl PollStamp {
    /// True if no task is being polled.
    pub fn is_idle(self) -> bool {
        self.0.trailing_zeros() >= NAME_BITS
    }
}

impl ExecutorMetrics {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            rounds: CoreCounter::default(),
            parks: CoreCounter::default(),
            spins: CoreCounter::default(),
            slices: CoreCounter::default(),
            remote_wakes: CoreCounter::default(),
            polls: [const { None }; 3].map(|_: Option<()>| Histogram::default()),
            long_polls: CoreCounter::default(),
            long_by_name: Mutex::default(),
            poll_stamp: AtomicU64::new(0),
            names: Mutex::default(),
            stuck: CoreCounter::default(),
            is_watcher_asleep: AtomicBool::new(false),
            watcher: Mutex::default(),
        }
    }

    /// The number of a name, from 1. A program has as many names as it has `spawn`s.
    pub(crate) fn number_of(&self, name: &'static str) -> u16 {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let at = names.iter().position(|known| *known == name).unwrap_or_else(|| {
            names.push(name);
            names.len() - 1
        });
        u16::try_from(at + 1).unwrap_or(u16::MAX - 1)
    }

    #[inline]
    pub(crate) fn poll_begins(&self, now: u64, name: u16) {
        self.poll_stamp.store((now << NAME_BITS) | u64::from(name), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn idles(&self, now: u64) {
        self.poll_stamp.store(now << NAME_BITS, Ordering::Relaxed);
    }

    /// The core has slept and works again. Wakes a sleeping sampler.
    pub(crate) fn wakes_up(&self, now: u64) {
        self.poll_stamp.store((now << NAME_BITS) | AWAKE, Ordering::Relaxed); // A1
        fence(Ordering::SeqCst); // A2, pairs with W2
        if self.is_watcher_asleep.load(Ordering::Relaxed) // A3
            && self.is_watcher_asleep.swap(false, Ordering::Relaxed)
        {
            let watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(watcher) = &*watcher {
                watcher.unpark();
            }
        }
    }

    /// Unparks a thread when the core works again. `false`: it works already. Either W3 sees the
    /// stamp of A1, or A3 sees W1.
    pub(crate) fn wake_when_busy(&self, watcher: &Thread) -> bool {
        *self.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(watcher.clone());
        self.is_watcher_asleep.store(true, Ordering::Relaxed); // W1
        fence(Ordering::SeqCst); // W2, pairs with A2
        self.poll_stamp().is_idle() // W3
    }

    /// Counts a stuck poll.
    pub(crate) fn count_stuck(&self, task: &'static str) {
        self.stuck.add(1);
        let mut by_name = self.long_by_name.lock().unwrap_or_else(PoisonError::into_inner);
        *by_name.entry(task).or_default() += 1;
    }

    #[inline]
    pub(crate) fn poll_ended(&self, class: TaskClass, ticks: u64) {
        if let Some(polls) = self.polls.get(class as usize) {
            polls.record(ticks);
        }
    }

    #[cold]
    pub(crate) fn poll_was_long(&self, name: u16, class: TaskClass, ticks: u64) -> LongPoll {
        let task = self.name_of(PollStamp(u64::from(name)));
        self.long_polls.add(1);
        let mut by_name = self.long_by_name.lock().unwrap_or_else(PoisonError::into_inner);
        *by_name.entry(task).or_default() += 1;
        LongPoll { task, class, time: self.clock.time(ticks) }
    }

    /// The current poll.
    pub fn poll_stamp(&self) -> PollStamp {
        PollStamp(self.poll_stamp.load(Ordering::Relaxed))
    }

    /// The name of the task of a poll; empty if there is none.
    pub fn name_of(&self, poll_stamp: PollStamp) -> &'static str {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let number = usize::try_from(poll_stamp.0 & ((1 << NAME_BITS) - 1)).unwrap_or(0);
        number.checked_sub(1).and_then(|at| names.get(at)).copied().unwrap_or_default()
    }

    /// Reads all metrics.
    pub fn snapshot(&self) -> ExecutorStats {
        let in_nanos = |histogram: &Histogram| histogram.snapshot().map(|t| self.clock.nanos(t));
        let [control, request, background] = &self.polls;
        let by_name = self.long_by_name.lock().unwrap_or_else(PoisonError::into_inner);
        ExecutorStats {
            rounds: self.rounds.get(),
            parks: self.parks.get(),
            spins: self.spins.get(),
            slices: self.slices.get(),
            remote_wakes: self.remote_wakes.get(),
            polls: [in_nanos(control), in_nanos(request), in_nanos(background)],
            long_polls: self.long_polls.get(),
            stuck: self.stuck.get(),
            long_by_name: by_name.clone(),
        }
    }
}

impl ExecutorStats {
    /// Adds the metrics of another core.
    pub fn merge(&mut self, other: &Self) {
        self.rounds += other.rounds;
        self.parks += other.parks;
        self.spins += other.spins;
        self.slices += other.slices;
        self.remote_wakes += other.remote_wakes;
        self.long_polls += other.long_polls;
        self.stuck += other.stuck;
        for (polls, others) in self.polls.iter_mut().zip(&other.polls) {
            polls.merge(others);
        }
        for (name, count) in &other.long_by_name {
            *self.long_by_name.entry(name).or_default() += count;
        }
    }
}
