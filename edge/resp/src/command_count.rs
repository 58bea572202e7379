//! Calls of each command on one core: written by that core alone, read by anybody.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of one core.
#[derive(Debug)]
pub struct CommandCounts {
    commands: Vec<Count>,
    requests: AtomicU64,
    errors: AtomicU64,
}

#[derive(Debug)]
struct Count {
    name: &'static str,
    calls: AtomicU64,
    nanos: AtomicU64,
    failed: AtomicU64,
}

/// What one command has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandTally {
    /// How often it was carried out.
    pub calls: u64,
    /// Microseconds in all.
    pub micros: u64,
    /// How often it answered with an error.
    pub failed: u64,
}

impl CommandCounts {
    /// Of commands in the order of their numbers; nothing was called yet.
    pub fn new(names: impl Iterator<Item = &'static str>) -> Self {
        let none = || AtomicU64::new(0);
        let count = |name| Count { name, calls: none(), nanos: none(), failed: none() };
        Self {
            commands: names.map(count).collect(),
            requests: AtomicU64::new(0),
            errors: AtomicU64::new(0),
        }
    }

    /// Counts a request. `None`: it was refused before a command was found.
    #[inline]
    pub fn count(&self, command: Option<u16>, nanos: u64, is_refused: bool) {
        add(&self.requests, 1);
        if is_refused {
            add(&self.errors, 1);
        }
        let Some(count) = command.and_then(|number| self.commands.get(usize::from(number))) else {
            return;
        };
        add(&count.calls, 1);
        add(&count.nanos, nanos);
        if is_refused {
            add(&count.failed, 1);
        }
    }

    /// Requests, and how many of them were refused.
    pub fn totals(&self) -> (u64, u64) {
        (self.requests.load(Ordering::Relaxed), self.errors.load(Ordering::Relaxed))
    }

    /// Each command that was called, by name.
    pub fn commands(&self) -> impl Iterator<Item = (&'static str, CommandTally)> {
        self.commands.iter().filter_map(|count| {
            let tally = CommandTally {
                calls: count.calls.load(Ordering::Relaxed),
                micros: count.nanos.load(Ordering::Relaxed) / 1000,
                failed: count.failed.load(Ordering::Relaxed),
            };
            (tally.calls > 0).then_some((count.name, tally))
        })
    }
}

/// One writer: no locked instruction.
#[inline]
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}
