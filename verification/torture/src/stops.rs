//! Processes that are stopped for a while, and whether a refusal of another process with `Stalled`
//! names one of them.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::clock::now_ns;
use crate::journal::{EntryKind, JournalEntry, STALLED, WriteKind};

/// A stop that has ended.
#[derive(Clone, Copy, Debug)]
struct PastStop {
    pid: u32,
    from_ns: u64,
    to_ns: u64,
}

/// The stops since the last check.
#[derive(Debug, Default)]
pub(crate) struct StopLog(Vec<PastStop>);

/// A process that is stopped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoppedProcess {
    pid: u32,
    from_ns: u64,
    until_ns: u64,
}

impl StoppedProcess {
    /// Stops a process.
    pub(crate) fn stop(pid: u32, ms: u64) -> Result<Self, String> {
        let from_ns = now_ns();
        signal(pid, Signal::SIGSTOP)?;
        Ok(Self { pid, from_ns, until_ns: from_ns + ms * 1_000_000 })
    }

    pub(crate) fn is_due(&self) -> bool {
        now_ns() >= self.until_ns
    }

    /// Lets the process continue.
    pub(crate) fn resume(self, log: &mut StopLog) -> Result<(), String> {
        signal(self.pid, Signal::SIGCONT)?;
        log.add(self);
        Ok(())
    }
}

fn signal(pid: u32, signal: Signal) -> Result<(), String> {
    kill(Pid::from_raw(pid.cast_signed()), signal).map_err(|e| format!("{signal} to {pid}: {e}"))
}

impl StopLog {
    /// A stopped process has continued, or was killed.
    pub(crate) fn add(&mut self, process: StoppedProcess) {
        let StoppedProcess { pid, from_ns, .. } = process;
        self.0.push(PastStop { pid, from_ns, to_ns: now_ns() });
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// The number of refusals in a journal that name a process which was not stopped during the
    /// call. A lock can be held for a second by several processes in turn, if few of them run.
    pub(crate) fn unexplained(&self, entries: &[JournalEntry]) -> u64 {
        let (mut started, mut unexplained) = (0, 0);
        for entry in entries {
            if entry.tag == EntryKind::Intent {
                started = entry.at_ns;
            }
            let is_stalled = entry.op == WriteKind::PutStale && entry.mask == STALLED;
            if entry.tag != EntryKind::Ack || !is_stalled {
                continue;
            }
            let was_stopped = self.0.iter().any(|stop| {
                let is_at_that_time = stop.from_ns <= entry.at_ns && stop.to_ns >= started;
                u64::from(stop.pid) == entry.old && is_at_that_time
            });
            unexplained += u64::from(!was_stopped);
        }
        unexplained
    }
}
