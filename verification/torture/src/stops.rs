//! Processes that are stopped for a while, and whether a refusal of another process with `Stalled`
//! names one of them.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::clock::now_ns;
use crate::journal::{EntryKind, JournalEntry};

/// A stop that has ended.
#[derive(Clone, Copy, Debug)]
struct PastStop {
    pid: u32,
    writer: Option<u16>,
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
    /// Its number, if it is a writer.
    writer: Option<u16>,
    from_ns: u64,
    until_ns: u64,
}

impl StoppedProcess {
    /// Stops a process.
    pub(crate) fn stop(pid: u32, writer: Option<u16>, ms: u64) -> Result<Self, String> {
        let from_ns = now_ns();
        signal(pid, Signal::SIGSTOP)?;
        Ok(Self { pid, writer, from_ns, until_ns: from_ns + ms * 1_000_000 })
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
        let StoppedProcess { pid, writer, from_ns, .. } = process;
        self.0.push(PastStop { pid, writer, from_ns, to_ns: now_ns() });
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// How long a writer itself was stopped between two times.
    pub(crate) fn own_ns(&self, writer: u16, from_ns: u64, to_ns: u64) -> u64 {
        let own = self.0.iter().filter(|stop| stop.writer == Some(writer));
        own.map(|stop| stop.to_ns.min(to_ns).saturating_sub(stop.from_ns.max(from_ns))).sum()
    }

    /// True if another process was stopped at some time between two times.
    pub(crate) fn has_other(&self, writer: u16, from_ns: u64, to_ns: u64) -> bool {
        let mut others = self.0.iter().filter(|stop| stop.writer != Some(writer));
        others.any(|stop| stop.from_ns <= to_ns && stop.to_ns >= from_ns)
    }

    /// The number of refusals in a journal that name a process which was not stopped during the
    /// call. A lock can be held for a second by several processes in turn, if few of them run.
    pub(crate) fn unexplained(&self, entries: &[JournalEntry]) -> u64 {
        let (mut started, mut unexplained) = (0, 0);
        for entry in entries {
            if entry.tag == EntryKind::Intent {
                started = entry.at_ns;
            }
            if entry.tag != EntryKind::Ack || !entry.is_stalled() {
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
