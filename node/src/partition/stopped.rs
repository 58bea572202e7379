//! Kills a process that is stopped while it holds a lock for which a change of the region's role
//! waits, or the thread that applies the owner's log (`docs/decisions/035-stopped-holders.md`).

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use nearstate_store::{HeldLock, Holder, StallDecision, StallHook, StalledHolder};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Outcomes that are kept until they are taken. There are as many as stopped processes.
const OUTCOMES_MAX: usize = 64;

/// What was done about a process that holds a lock for which a session waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoppedHolder {
    /// It was killed.
    Killed(Holder),
    /// It was not killed, for this reason. What waited has failed, and is tried again.
    Kept(Holder, String),
}

#[derive(Debug, Default)]
struct StallRecord {
    /// The lock whose holder was told as killed or kept.
    done: Option<HeldLock>,
    outcomes: VecDeque<StoppedHolder>,
}

/// What is known of stopped processes of one region.
#[derive(Debug)]
pub(super) struct StoppedHolders {
    may_kill: bool,
    known: Mutex<StallRecord>,
}

impl StoppedHolders {
    pub(super) fn new(may_kill: bool) -> Arc<Self> {
        Arc::new(Self { may_kill, known: Mutex::default() })
    }

    /// What was done since the last call.
    pub(super) fn take(&self) -> Vec<StoppedHolder> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.outcomes.drain(..).collect()
    }

    /// For the session that changes the role. A stopped holder is killed after two bounds of a
    /// wait (`LOCK_WAIT_MAX`): 2 s.
    pub(super) fn hook(self: &Arc<Self>) -> StallHook {
        self.hook_with(StallDecision::WaitOn)
    }

    /// For the session that applies. It gives up after the first bound, so that the connection
    /// answers the owner, and applies the entry again on the next one. A holder that is still the
    /// same is killed then.
    pub(super) fn hook_of_applier(self: &Arc<Self>) -> StallHook {
        self.hook_with(StallDecision::GiveUp)
    }

    /// `first`: what follows when the bound is over for the first time. Each session counts its own
    /// waits.
    fn hook_with(self: &Arc<Self>, first: StallDecision) -> StallHook {
        let (holders, waited) = (Arc::clone(self), Cell::new(None));
        Box::new(move |holder| {
            let held = Some(holder.held_lock());
            if waited.replace(held) == held { holders.decide(holder) } else { first }
        })
    }

    /// What follows when the bound is over once more.
    fn decide(&self, holder: &StalledHolder<'_>) -> StallDecision {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let held = holder.held_lock();
        let process = holder.process().clone();
        let (outcome, decision) = match self.kill(holder) {
            // It goes on.
            Ok(false) => return StallDecision::WaitOn,
            Ok(true) => (StoppedHolder::Killed(process), StallDecision::WaitOn),
            Err(reason) => (StoppedHolder::Kept(process, reason), StallDecision::GiveUp),
        };
        // It may be stopped later: it is looked at each time, and told once.
        if known.done == Some(held) {
            return decision;
        }
        known.done = Some(held);
        known.outcomes.truncate(OUTCOMES_MAX - 1);
        known.outcomes.push_back(outcome);
        decision
    }

    /// The steps of the page. False: the lock was given up meanwhile.
    fn kill(&self, holder: &StalledHolder<'_>) -> Result<bool, String> {
        let failed = |error: nearstate_store::Error| error.to_string();
        if holder.is_own_process() {
            return Err("it is the node itself".to_owned());
        }
        if !self.may_kill {
            return Err("cluster.kill_stopped is false".to_owned());
        }
        if !holder.is_of_this_namespace().map_err(failed)? {
            let reason = "its slot does not name a process of the node's PID namespace";
            return Err(reason.to_owned());
        }
        let id = i32::try_from(holder.process().pid).ok().and_then(Pid::from_raw);
        let id = id.ok_or_else(|| "its slot has no process id".to_owned())?;
        let process = pidfd_open(id, PidfdFlags::empty())
            .map_err(|error| format!("it cannot be opened: {error}"))?;
        if !is_stopped(id)? {
            return Err("it is not stopped: it gives the lock up when it runs".to_owned());
        }
        // The holder has lived since its slot was read, so its id is not that of another process.
        if !holder.still_holds().map_err(failed)? {
            return Ok(false);
        }
        pidfd_send_signal(&process, Signal::KILL)
            .map_err(|error| format!("the signal is refused: {error}"))?;
        Ok(true)
    }
}

/// True if a process is stopped, or stopped by a debugger.
fn is_stopped(id: Pid) -> Result<bool, String> {
    let path = format!("/proc/{}/stat", id.as_raw_nonzero());
    let text = std::fs::read(&path).map_err(|error| format!("{path}: {error}"))?;
    Ok(matches!(state_in(&text), Some(b'T' | b't')))
}

/// The state in a line of `/proc/PID/stat`: behind the command name, which may contain anything.
fn state_in(stat: &[u8]) -> Option<u8> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(end + 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_behind_any_command_name() {
        assert_eq!(state_in(b"7 (cu) T 1 7 7"), Some(b'T'));
        assert_eq!(state_in(b"7 (a) T (b)) S 1 7 7"), Some(b'S'));
        assert_eq!(state_in(b"7 (cu)"), None);
        assert_eq!(state_in(b""), None);
    }
}
