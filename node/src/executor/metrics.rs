//! What an executor counts, and what others see of it while it runs: how long polls take, who takes
//! too long, and who is being polled at this moment.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use crate::clock::Clock;
use crate::executor::class::TaskClass;
use crate::metrics::{Counter, Distribution, Histogram};

/// A poll that took too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LongPoll {
    /// The task's name.
    pub task: &'static str,
    /// Its class.
    pub class: TaskClass,
    /// How long the poll took.
    pub time: Duration,
}

/// The counts of one executor. It writes; any thread reads.
#[derive(Debug)]
pub struct ExecutorMetrics {
    clock: Clock,
    pub(crate) rounds: Counter,
    pub(crate) parks: Counter,
    pub(crate) spins: Counter,
    pub(crate) slices: Counter,
    pub(crate) remote_wakes: Counter,
    /// In ticks, a histogram for each class.
    polls: [Histogram; 3],
    long_polls: Counter,
    /// Only a long poll takes this lock.
    long_by_name: Mutex<BTreeMap<&'static str, u64>>,
    /// When the poll began, and below that [`NAME_BITS`] of who is being polled: 0 is nobody.
    poll_stamp: AtomicU64,
    names: Mutex<Vec<&'static str>>,
    /// Written by the sampler.
    stuck: Counter,
    /// The sampler sleeps until a core wakes up.
    is_watcher_asleep: AtomicBool,
    watcher: Mutex<Option<Thread>>,
}

/// In place of a name: the core has been woken, and polls nobody yet.
const AWAKE: u64 = (1 << NAME_BITS) - 1;

/// So many bits of the poll_stamp are a name.
const NAME_BITS: u32 = 16;

/// What a [`ExecutorMetrics`] showed at some moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorStats {
    /// Rounds begun.
    pub rounds: u64,
    /// Times that the thread went to sleep.
    pub parks: u64,
    /// Times that it looked for work instead.
    pub spins: u64,
    /// Slices that background tasks got.
    pub slices: u64,
    /// Tasks woken by other threads.
    pub remote_wakes: u64,
    /// How long polls took, in nanoseconds, by class in the order of [`TaskClass::ALL`].
    pub polls: [Distribution; 3],
    /// Polls that took too long.
    pub long_polls: u64,
    /// Polls that were seen to last so long that they may never end. Those that did end are among
    /// the long ones, too.
    pub stuck: u64,
    /// Both, by the task's name.
    pub long_by_name: BTreeMap<&'static str, u64>,
}

/// Who is being polled at some moment. Equal to another one only if the poll is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollStamp(u64);

impl PollStamp {
    /// True if nobody is being polled.
    pub fn is_idle(self) -> bool {
        self.0.trailing_zeros() >= NAME_BITS
    }
}

impl ExecutorMetrics {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            rounds: Counter::default(),
            parks: Counter::default(),
            spins: Counter::default(),
            slices: Counter::default(),
            remote_wakes: Counter::default(),
            polls: [const { None }; 3].map(|_: Option<()>| Histogram::default()),
            long_polls: Counter::default(),
            long_by_name: Mutex::default(),
            poll_stamp: AtomicU64::new(0),
            names: Mutex::default(),
            stuck: Counter::default(),
            is_watcher_asleep: AtomicBool::new(false),
            watcher: Mutex::default(),
        }
    }

    /// Gives a name its number, from 1. There are as many as there are `spawn`s in the program.
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
    pub(crate) fn rests(&self, now: u64) {
        self.poll_stamp.store(now << NAME_BITS, Ordering::Relaxed);
    }

    /// The core has slept and works again. Wakes the sampler if that has gone to sleep.
    pub(crate) fn awakes(&self, now: u64) {
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

    /// Has a thread unparked as soon as the core works again. `false`: it works already. Either W3
    /// sees the poll_stamp of A1, or A3 sees W1.
    pub(crate) fn wake_when_busy(&self, watcher: &Thread) -> bool {
        *self.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(watcher.clone());
        self.is_watcher_asleep.store(true, Ordering::Relaxed); // W1
        fence(Ordering::SeqCst); // W2, pairs with A2
        self.poll_stamp().is_idle() // W3
    }

    /// A poll was seen that does not end.
    pub(crate) fn task_is_stuck(&self, task: &'static str) {
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

    /// Who is being polled now.
    pub fn poll_stamp(&self) -> PollStamp {
        PollStamp(self.poll_stamp.load(Ordering::Relaxed))
    }

    /// The name of the task of a poll_stamp; empty if it is of nobody.
    pub fn name_of(&self, poll_stamp: PollStamp) -> &'static str {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let number = usize::try_from(poll_stamp.0 & ((1 << NAME_BITS) - 1)).unwrap_or(0);
        number.checked_sub(1).and_then(|at| names.get(at)).copied().unwrap_or_default()
    }

    /// All counts.
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
    /// Adds what another core has counted.
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
