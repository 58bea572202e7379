//! Statistics of commands on one core. Written by this core only, read by all.

use crate::command::CommandFlags;
use nearstate_node::metrics::{Distribution, Histogram};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Statistics of one core.
#[derive(Debug)]
pub struct RespCoreStats {
    commands: Vec<CommandCounters>,
    requests: AtomicU64,
    errors: AtomicU64,
    /// Hits and misses of reads.
    hits_and_misses: [AtomicU64; 2],
}

#[derive(Debug)]
struct CommandCounters {
    name: &'static str,
    class: CommandClass,
    calls: AtomicU64,
    nanos: AtomicU64,
    failed: AtomicU64,
    rejected: AtomicU64,
    /// Latencies in nanoseconds. Allocated at the first call: 2 KiB.
    latencies: OnceLock<Box<Histogram>>,
}

/// Class of a command in latency statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CommandClass {
    /// Reads records.
    Read,
    /// May change records.
    Write,
    /// Uses channels.
    Pubsub,
    /// All others, including `EXEC` with its commands.
    Other,
}

impl CommandClass {
    /// All classes in the order of output.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Pubsub, Self::Other];

    /// The class of a command with these flags.
    pub const fn of(flags: CommandFlags) -> Self {
        if flags.has(CommandFlags::WRITE) {
            Self::Write
        } else if flags.has(CommandFlags::READONLY) {
            Self::Read
        } else if flags.has(CommandFlags::PUBSUB) {
            Self::Pubsub
        } else {
            Self::Other
        }
    }

    /// Name of the class.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Pubsub => "pubsub",
            Self::Other => "other",
        }
    }
}

/// Statistics of one command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandStats {
    /// Number of calls.
    pub calls: u64,
    /// Total duration in microseconds.
    pub micros: u64,
    /// Number of calls with an error reply.
    pub failed: u64,
    /// Number of requests that were rejected before a call: wrong number of arguments, missing
    /// authentication or permission, or not allowed while the client is subscribed.
    pub rejected: u64,
}

impl CommandStats {
    /// The difference from an earlier state.
    pub(crate) const fn since(&self, before: &Self) -> Self {
        Self {
            calls: self.calls.saturating_sub(before.calls),
            micros: self.micros.saturating_sub(before.micros),
            failed: self.failed.saturating_sub(before.failed),
            rejected: self.rejected.saturating_sub(before.rejected),
        }
    }
}

impl RespCoreStats {
    /// Zeroed statistics of these commands, in the order of their numbers.
    pub fn new(commands: impl Iterator<Item = (&'static str, CommandFlags)>) -> Self {
        let none = || AtomicU64::new(0);
        let count = |(name, flags)| CommandCounters {
            name,
            class: CommandClass::of(flags),
            calls: none(),
            nanos: none(),
            failed: none(),
            rejected: none(),
            latencies: OnceLock::new(),
        };
        Self {
            commands: commands.map(count).collect(),
            requests: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            hits_and_misses: [none(), none()],
        }
    }

    /// Counts a request. `None`: it was rejected before its command was known.
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
        count.latencies.get_or_init(Box::default).record(nanos);
        if is_refused {
            add(&count.failed, 1);
        }
    }

    /// Counts a request that was rejected before this command was called, in addition to
    /// [`RespCoreStats::count`] without a command.
    pub(crate) fn count_rejected(&self, command: u16) {
        if let Some(count) = self.commands.get(usize::from(command)) {
            add(&count.rejected, 1);
        }
    }

    /// Number of requests, and of those with error replies.
    pub fn totals(&self) -> (u64, u64) {
        (self.requests.load(Ordering::Relaxed), self.errors.load(Ordering::Relaxed))
    }

    /// Adds hits and misses of reads.
    pub(crate) fn add_hits_and_misses(&self, more: [u64; 2]) {
        for (count, more) in self.hits_and_misses.iter().zip(more) {
            add(count, more);
        }
    }

    /// Hits and misses of reads.
    pub fn hits_and_misses(&self) -> [u64; 2] {
        self.hits_and_misses.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// Latencies by class in nanoseconds, in the order of [`CommandClass::ALL`]. Of a sliced task
    /// only the first slice counts.
    pub fn latencies(&self) -> [Distribution; CommandClass::ALL.len()] {
        let mut all = CommandClass::ALL.map(|_| Distribution::default());
        for count in &self.commands {
            if let Some(latencies) = count.latencies.get()
                && let Some(sum) = all.get_mut(count.class as usize)
            {
                sum.merge(&latencies.snapshot());
            }
        }
        all
    }

    /// Latencies of the commands that were called, by name, in nanoseconds.
    pub fn command_latencies(&self) -> impl Iterator<Item = (&'static str, Distribution)> {
        let seen = |count: &CommandCounters| Some((count.name, count.latencies.get()?.snapshot()));
        self.commands.iter().filter_map(seen)
    }

    /// Statistics of the commands that were called or rejected, by name.
    pub fn commands(&self) -> impl Iterator<Item = (&'static str, CommandStats)> {
        self.commands.iter().filter_map(|count| {
            let tally = CommandStats {
                calls: count.calls.load(Ordering::Relaxed),
                micros: count.nanos.load(Ordering::Relaxed) / 1000,
                failed: count.failed.load(Ordering::Relaxed),
                rejected: count.rejected.load(Ordering::Relaxed),
            };
            (tally.calls > 0 || tally.rejected > 0).then_some((count.name, tally))
        })
    }
}

/// One writer per counter: no locked instruction.
#[inline]
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_for_its_command_and_its_class() {
        let rows =
            [("get", CommandFlags::READONLY.and(CommandFlags::FAST)), ("set", CommandFlags::WRITE)];
        let counts = RespCoreStats::new(rows.into_iter());
        counts.count(Some(0), 2_000, false);
        counts.count(Some(0), 3_000, true);
        counts.count(Some(1), 7_000, false);
        counts.count(None, 9_000, true);
        assert_eq!(counts.totals(), (4, 2));
        let [read, write, pubsub, other] = counts.latencies();
        assert_eq!((read.total(), read.sum, write.total()), (2, 5_000, 1));
        assert_eq!((pubsub.total(), other.total()), (0, 0));
        let latencies: Vec<_> = counts.command_latencies().collect();
        let totals = latencies.iter().map(|(name, latencies)| (*name, latencies.total()));
        assert_eq!(totals.collect::<Vec<_>>(), [("get", 2), ("set", 1)]);
        let stats: Vec<_> = counts.commands().collect();
        let get = CommandStats { calls: 2, micros: 5, failed: 1, rejected: 0 };
        assert_eq!(stats.first(), Some(&("get", get)));
        counts.count_rejected(1);
        assert_eq!(counts.commands().map(|(_, stats)| stats.rejected).sum::<u64>(), 1);
    }
}
