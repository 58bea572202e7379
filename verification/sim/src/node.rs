//! A simulated host: its clock, its region, and its process if that runs.

use crate::region::Region;
use nearstate_cluster::{
    ConnectionNumber, FollowStart, Host, HostId, Monotonic, OperatorGoal, OperatorTask, ViewNumber,
};
use std::collections::BTreeMap;

/// A clock that runs fast or slow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SimulatedClock {
    /// The clock's time at time 0.
    pub(crate) offset: u64,
    /// Nanoseconds of the clock in a million nanoseconds: 980,000 to 1,020,000.
    pub(crate) rate: u64,
}

impl SimulatedClock {
    pub(crate) fn at(self, time: u64) -> Monotonic {
        Monotonic(
            self.offset + time / 1_000_000 * self.rate + time % 1_000_000 * self.rate / 1_000_000,
        )
    }
}

/// A follower's side of replication.
#[derive(Debug, Clone)]
pub(crate) struct Follow {
    pub(crate) owner: HostId,
    pub(crate) view: ViewNumber,
    pub(crate) start: FollowStart,
    pub(crate) connection: ConnectionNumber,
    pub(crate) is_connected: bool,
    /// The join is complete with so many entries.
    pub(crate) join_to: usize,
    /// The log of the owner, once it has sent entries.
    pub(crate) log: Option<u64>,
    pub(crate) heard_at: u64,
    /// The latest stamp that may be sent back.
    pub(crate) stamp: Monotonic,
}

/// An owner's side of replication.
#[derive(Debug, Clone)]
pub(crate) struct Serve {
    pub(crate) view: ViewNumber,
    /// From where on it has the log before its own one.
    pub(crate) kept_from: Option<usize>,
    /// The connection of each follower, and how many entries it has acknowledged.
    pub(crate) followers: BTreeMap<HostId, (ConnectionNumber, usize)>,
    /// When each follower was heard last, and up to where it has the log.
    pub(crate) heard: BTreeMap<HostId, (Monotonic, u64)>,
}

/// A process of a host.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) host: Host,
    /// How many commands it has applied.
    pub(crate) applied: usize,
    pub(crate) follow: Option<Follow>,
    /// A connection that has said hello, and whose thread has not yet seen that it is not wanted.
    pub(crate) ending: Option<ConnectionNumber>,
    pub(crate) serve: Option<Serve>,
    /// How many entries are older than those that it has applied itself, and keeps for others.
    pub(crate) kept_from: Option<usize>,
    /// The view in which it says what is decided.
    pub(crate) watched: Option<ViewNumber>,
    /// An operator holds the writers.
    pub(crate) hold: Option<WriterHold>,
}

/// Writers are refused, whatever the rules order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriterHold {
    /// The last order of the rules.
    pub(crate) is_fenced: bool,
    /// It was given since writers are held.
    pub(crate) is_ordered: bool,
}

impl Process {
    /// Follows another one, or none.
    pub(crate) fn set_follow(&mut self, follow: Option<Follow>) {
        let last = std::mem::replace(&mut self.follow, follow);
        self.ending = last.filter(|last| !last.is_connected).map(|last| last.connection);
    }
}

/// A host.
#[derive(Debug)]
pub(crate) struct SimulatedHost {
    pub(crate) clock: SimulatedClock,
    pub(crate) region: Region,
    /// A copy of its file, of an earlier moment.
    pub(crate) older: Option<Region>,
    pub(crate) process: Option<Process>,
    /// Counts processes: what belongs to an earlier one is dropped.
    pub(crate) generation: u64,
    /// Nothing happens at this host before.
    pub(crate) paused_until: u64,
    /// Commands reach the host only afterwards.
    pub(crate) uninformed_until: u64,
    /// It never comes back.
    pub(crate) is_gone: bool,
}

/// What an operator drains.
#[derive(Debug)]
pub(crate) struct Drain {
    /// The process that carries the task out: another one knows nothing of it.
    pub(crate) generation: u64,
    /// A task that takes longer ends.
    pub(crate) ends_at: u64,
    /// The view in which writers are held.
    pub(crate) held_in: Option<ViewNumber>,
    /// The owner may be excluded at any time.
    pub(crate) is_proposed: bool,
    /// The task has ended before the exclusion was decided: it is proposed until it is.
    pub(crate) is_undecided: bool,
}

/// A task of an operator, at one host.
#[derive(Debug)]
pub(crate) struct Operator {
    pub(crate) host: HostId,
    pub(crate) goal: OperatorGoal,
    /// `None` before the first step.
    pub(crate) task: Option<OperatorTask>,
    /// For a task at the owner.
    pub(crate) drain: Option<Drain>,
}
