//! What will happen, in the order of time.

use crate::region::SimulatedEntry;
use nearstate_cluster::{Command, ConnectionNumber, HostId, Monotonic, OwnerMessage, ViewNumber};
use std::collections::BTreeMap;

/// What a follower says that it has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FollowerPosition {
    /// The log that it follows.
    pub(crate) log: u64,
    pub(crate) length: usize,
    /// Check value of everything up to there.
    pub(crate) check: u64,
}

/// A message between hosts.
#[derive(Debug, Clone)]
pub(crate) enum Message {
    /// A follower connects.
    Hello { view: ViewNumber, connection: ConnectionNumber, has: Option<FollowerPosition> },
    /// The owner accepts. If it says so, the follower has to discard what it has.
    Welcome { connection: ConnectionNumber, discard: bool, join_to: usize },
    /// Entries from this index on.
    Entries {
        connection: ConnectionNumber,
        index: usize,
        entries: Vec<SimulatedEntry>,
        base: usize,
        origin: ViewNumber,
        log: u64,
    },
    /// The state of the owner.
    Position { connection: ConnectionNumber, message: OwnerMessage },
    /// What the follower has applied.
    Acknowledge {
        connection: ConnectionNumber,
        view: ViewNumber,
        length: usize,
        position: Option<u64>,
        stamp: Monotonic,
    },
}

/// Something that happens at a time.
#[derive(Debug, Clone)]
pub(crate) enum SimulatedEvent {
    /// A process looks at the time.
    Tick(HostId, u64),
    /// Attached processes of a host read and commit.
    Work(HostId),
    /// A message arrives.
    Arrive { from: HostId, to: HostId, message: Message },
    /// Consensus orders a command.
    Append(Command),
    /// A process applies commands up to this number.
    Apply(HostId, u64, usize),
    /// A process has frozen its copy.
    Frozen(HostId, u64, ViewNumber),
    /// A process has promoted its copy.
    Promoted(HostId, u64, ViewNumber),
    /// A process starts.
    Start(HostId),
    /// Something fails.
    Fault,
    /// An operator looks at the cluster.
    Operate,
    /// The task of an operator makes a step.
    OperatorLooks,
}

/// Events in the order of time. Events of one time are in the order in which they were added.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    events: BTreeMap<(u64, u64), SimulatedEvent>,
    added: u64,
}

impl EventQueue {
    pub(crate) fn add(&mut self, time: u64, event: SimulatedEvent) {
        self.added += 1;
        self.events.insert((time, self.added), event);
    }

    pub(crate) fn next(&mut self) -> Option<(u64, SimulatedEvent)> {
        self.events.pop_first().map(|((time, _), event)| (time, event))
    }
}
