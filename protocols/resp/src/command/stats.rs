//! Calls of each command on one core: written by that core alone, read by anybody.

use crate::command::Flags;
use nearstate_node::metrics::{Distribution, Histogram};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of one core.
#[derive(Debug)]
pub struct CommandCounts {
    commands: Vec<Count>,
    requests: AtomicU64,
    errors: AtomicU64,
    /// Reads that found a record, and that found none.
    found: [AtomicU64; 2],
    /// How long requests of each class took, in nanoseconds.
    latencies: [Histogram; Class::ALL.len()],
}

#[derive(Debug)]
struct Count {
    name: &'static str,
    class: Class,
    calls: AtomicU64,
    nanos: AtomicU64,
    failed: AtomicU64,
}

/// What kind of request it is, for whoever wants to know how long such take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Reads records.
    Read,
    /// May change records.
    Write,
    /// About channels.
    Pubsub,
    /// All others; `EXEC` with what it runs, too.
    Other,
}

impl Class {
    /// All, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Pubsub, Self::Other];

    /// That of a command with these flags.
    pub const fn of(flags: Flags) -> Self {
        if flags.has(Flags::WRITE) {
            Self::Write
        } else if flags.has(Flags::READONLY) {
            Self::Read
        } else if flags.has(Flags::PUBSUB) {
            Self::Pubsub
        } else {
            Self::Other
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Pubsub => "pubsub",
            Self::Other => "other",
        }
    }
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
    pub fn new(commands: impl Iterator<Item = (&'static str, Flags)>) -> Self {
        let none = || AtomicU64::new(0);
        let count = |(name, flags)| Count {
            name,
            class: Class::of(flags),
            calls: none(),
            nanos: none(),
            failed: none(),
        };
        Self {
            commands: commands.map(count).collect(),
            requests: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            found: [none(), none()],
            latencies: Class::ALL.map(|_| Histogram::default()),
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
        if let Some(latencies) = self.latencies.get(count.class as usize) {
            latencies.record(nanos);
        }
        if is_refused {
            add(&count.failed, 1);
        }
    }

    /// Requests, and how many of them were refused.
    pub fn totals(&self) -> (u64, u64) {
        (self.requests.load(Ordering::Relaxed), self.errors.load(Ordering::Relaxed))
    }

    /// Adds reads that found a record, and that found none.
    pub(crate) fn add_found(&self, more: [u64; 2]) {
        for (count, more) in self.found.iter().zip(more) {
            add(count, more);
        }
    }

    /// Reads that found a record, and that found none.
    pub fn found(&self) -> [u64; 2] {
        self.found.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// How long the requests of each class took, in nanoseconds, in the order of [`Class::ALL`].
    /// Of a walk over a namespace only the request itself counts, not the work that goes on.
    pub fn latencies(&self) -> [Distribution; Class::ALL.len()] {
        self.latencies.each_ref().map(Histogram::snapshot)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_for_its_command_and_its_class() {
        let rows = [("get", Flags::READONLY.and(Flags::FAST)), ("set", Flags::WRITE)];
        let counts = CommandCounts::new(rows.into_iter());
        counts.count(Some(0), 2_000, false);
        counts.count(Some(0), 3_000, true);
        counts.count(Some(1), 7_000, false);
        counts.count(None, 9_000, true);
        assert_eq!(counts.totals(), (4, 2));
        let [read, write, pubsub, other] = counts.latencies();
        assert_eq!((read.total(), read.sum, write.total()), (2, 5_000, 1));
        assert_eq!((pubsub.total(), other.total()), (0, 0));
        let tallies: Vec<_> = counts.commands().collect();
        let get = CommandTally { calls: 2, micros: 5, failed: 1 };
        assert_eq!(tallies.first(), Some(&("get", get)));
    }
}
