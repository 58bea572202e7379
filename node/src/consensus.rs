//! What a node needs from the consensus engine of its cluster: commands in one order on every host.
//!
//! An engine orders opaque commands. It applies them to a [`StateMachine`], of which it takes and
//! restores snapshots, and it reports what it has applied as [`EngineEvent`]s. No lease and no data
//! passes through it (`docs/decisions/028-membership.md`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nearstate_model::Result;

/// The most events that wait for the node. When there are more, they are replaced by one
/// [`EngineEvent::Restored`], so a node that is stopped holds no memory.
const EVENTS_MAX: usize = 1024;

/// The largest command that an engine decides, in bytes. The commands of a cluster have some ten
/// bytes.
pub const ENGINE_COMMAND_BYTES_MAX: usize = 4096;

/// The largest snapshot of a state machine, in bytes.
pub const SNAPSHOT_BYTES_MAX: usize = 1 << 20;

/// What commands are applied to, on every host with the same result.
pub trait StateMachine: Send + 'static {
    /// Applies a command. A command that is not valid changes nothing.
    ///
    /// # Errors
    /// `BadArgument`: this program cannot apply what was decided. The engine must stop: a snapshot
    /// without the command would not be what the other hosts have.
    fn apply(&mut self, index: u64, command: &[u8]) -> Result<()>;

    /// The state, at most [`SNAPSHOT_BYTES_MAX`] bytes.
    fn snapshot(&self) -> Vec<u8>;

    /// Replaces the state.
    ///
    /// # Errors
    /// `Damaged`: the bytes are no snapshot of this state machine.
    fn restore(&mut self, snapshot: &[u8]) -> Result<()>;
}

/// What has happened in an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    /// A command was applied.
    Applied {
        /// Its place in the order. Indexes rise; some are not used.
        index: u64,
        /// Its bytes.
        command: Vec<u8>,
    },
    /// The state was replaced: every command up to the index has been applied to it.
    Restored {
        /// The index of the last command in the state.
        index: u64,
        /// The state.
        snapshot: Vec<u8>,
    },
    /// The engine has stopped: this host neither votes nor learns commands until it has recovered.
    Failed {
        /// What failed, and where.
        reason: String,
    },
    /// The engine works again.
    Recovered,
}

/// How an engine is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineStatus {
    /// The host that leads the engine, if one does.
    pub leader: Option<u64>,
    /// The hosts that vote. Empty before the cluster was initialized.
    pub voters: BTreeSet<u64>,
    /// The index of the last command that this host has applied.
    pub applied: u64,
    /// The number of the term of the leader, or what corresponds to it.
    pub term: u64,
    /// True if the cluster exists and this host does not vote: it was removed, or is added just
    /// now. It may learn no further decisions.
    pub is_removed: bool,
    /// Milliseconds since the last message of the engine of each other host that was heard.
    pub silent_ms: BTreeMap<u64, u64>,
    /// If this host leads: milliseconds for which each other voter has not answered it, since the
    /// last answer or since it leads.
    pub unanswered_ms: BTreeMap<u64, u64>,
    /// Why the engine does not work, if it does not.
    pub failure: Option<String>,
}

/// A change of a vote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoteChange {
    /// The host.
    pub host: u64,
    /// Whether it is to vote.
    pub votes: bool,
    /// The voters with which it was found that the change does no harm. If others vote when the
    /// leader makes the change, it is refused: two removals at the same time would each be
    /// harmless, and both together not.
    pub checked: Option<BTreeSet<u64>>,
}

/// A consensus engine. Its threads end when it is dropped.
pub trait ConsensusEngine: Send + Sync + fmt::Debug {
    /// The name of the engine, for status and logs.
    fn name(&self) -> &'static str;

    /// Creates the cluster with these hosts as voters. It is called on one host, once.
    ///
    /// # Errors
    /// `BadArgument`: the cluster exists already; `System`: the engine does not work.
    fn initialize(&self, voters: &BTreeSet<u64>) -> Result<()>;

    /// Hands a command to the engine, and returns at once. The command may be lost, and it may be
    /// applied later; a caller that does not see its effect proposes it again. The engine gives it
    /// up after `life`, or after the time of one request if that is longer.
    fn propose(&self, command: Vec<u8>, life: Duration);

    /// Hands a command to the engine, and waits until it is applied on a majority of voters.
    /// Returns its index.
    ///
    /// # Errors
    /// `Backend`: no leader, or no majority, within the time; the command may be applied later.
    fn propose_and_wait(&self, command: Vec<u8>, timeout: Duration) -> Result<u64>;

    /// Lets a host vote, or takes its vote, and waits until a majority has accepted it. A host that
    /// does not lead asks the leader, which makes one change after the other. A host that is
    /// removed and lives learns that it was.
    ///
    /// # Errors
    /// `Backend`: no leader, or no majority, within the time. `BadArgument`: an unknown host, the
    /// last one that votes, or other voters than those that were looked at.
    fn change_vote(&self, change: &VoteChange, timeout: Duration) -> Result<()>;

    /// Asks another host what it reports of itself, in text.
    ///
    /// # Errors
    /// `Backend`: no reply within the time. `BadArgument`: an unknown host.
    fn report_of(&self, host: u64, timeout: Duration) -> Result<String>;

    /// Moves the events since the last call to the end of `out`.
    fn take_events(&self, out: &mut Vec<EngineEvent>);

    /// The status.
    fn status(&self) -> EngineStatus;

    /// True if a host that does not vote learns no decisions. Its copy cannot count: it would
    /// neither suspect an owner nor report what it holds.
    fn only_voters_learn(&self) -> bool {
        false
    }
}

/// Called when there are events. It must not block.
pub type EventWaker = Box<dyn Fn() + Send + Sync>;

/// The events of an engine, and the state machine to which it applies commands. Events are in the
/// order of their application.
pub struct EngineState {
    inner: Mutex<Inner>,
    waker: EventWaker,
}

struct Inner {
    machine: Box<dyn StateMachine>,
    applied: u64,
    events: VecDeque<EngineEvent>,
}

impl fmt::Debug for EngineState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineState").finish_non_exhaustive()
    }
}

impl EngineState {
    /// A state to which nothing was applied.
    pub fn new(machine: Box<dyn StateMachine>, waker: EventWaker) -> Self {
        let inner = Inner { machine, applied: 0, events: VecDeque::new() };
        Self { inner: Mutex::new(inner), waker }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies the command with this index, if its index is higher than that of the last one.
    ///
    /// # Errors
    /// Those of [`StateMachine::apply`]: nothing was changed.
    pub fn apply(&self, index: u64, command: &[u8]) -> Result<()> {
        {
            let mut inner = self.lock();
            if index <= inner.applied {
                return Ok(());
            }
            inner.machine.apply(index, command)?;
            inner.applied = index;
            inner.push(EngineEvent::Applied { index, command: command.to_vec() });
        }
        (self.waker)();
        Ok(())
    }

    /// Replaces the state, if the snapshot is newer.
    ///
    /// # Errors
    /// `Damaged`: the bytes are no snapshot.
    pub fn restore(&self, index: u64, snapshot: &[u8]) -> Result<()> {
        {
            let mut inner = self.lock();
            if index <= inner.applied {
                return Ok(());
            }
            inner.machine.restore(snapshot)?;
            inner.applied = index;
            inner.push(EngineEvent::Restored { index, snapshot: snapshot.to_vec() });
        }
        (self.waker)();
        Ok(())
    }

    /// The state, and the index of the last command in it.
    pub fn snapshot(&self) -> (u64, Vec<u8>) {
        let inner = self.lock();
        (inner.applied, inner.machine.snapshot())
    }

    /// The index of the last command.
    pub fn applied(&self) -> u64 {
        self.lock().applied
    }

    /// Adds an event that changes no state.
    pub fn emit(&self, event: EngineEvent) {
        self.lock().push(event);
        (self.waker)();
    }

    /// Moves the events to the end of `out`.
    pub fn take_events(&self, out: &mut Vec<EngineEvent>) {
        out.extend(self.lock().events.drain(..));
    }
}

impl Inner {
    fn push(&mut self, event: EngineEvent) {
        if self.events.len() >= EVENTS_MAX {
            let snapshot = self.machine.snapshot();
            self.events.clear();
            self.events.push_back(EngineEvent::Restored { index: self.applied, snapshot });
            // The state contains what the event says, unless it is one of the engine itself.
            if matches!(event, EngineEvent::Applied { .. } | EngineEvent::Restored { .. }) {
                return;
            }
        }
        self.events.push_back(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of the first bytes of all commands.
    #[derive(Default)]
    struct Sum(u64);

    impl StateMachine for Sum {
        fn apply(&mut self, _: u64, command: &[u8]) -> Result<()> {
            self.0 += command.first().copied().map_or(0, u64::from);
            Ok(())
        }
        fn snapshot(&self) -> Vec<u8> {
            self.0.to_le_bytes().to_vec()
        }
        fn restore(&mut self, snapshot: &[u8]) -> Result<()> {
            self.0 = u64::from_le_bytes(snapshot.try_into().unwrap());
            Ok(())
        }
    }

    #[test]
    fn a_node_that_takes_no_events_gets_the_state_instead() {
        let state = EngineState::new(Box::new(Sum::default()), Box::new(|| ()));
        let last = EVENTS_MAX as u64 + 10;
        for index in 1..=last {
            state.apply(index, &[1]).unwrap();
        }
        let mut events = Vec::new();
        state.take_events(&mut events);
        let (first, rest) = events.split_first().unwrap();
        let EngineEvent::Restored { index, snapshot } = first else { panic!("{first:?}") };
        assert_eq!(u64::from_le_bytes(snapshot.as_slice().try_into().unwrap()), *index);
        let indexes: Vec<u64> = rest
            .iter()
            .map(|event| match event {
                EngineEvent::Applied { index, .. } => *index,
                other @ (EngineEvent::Restored { .. }
                | EngineEvent::Failed { .. }
                | EngineEvent::Recovered) => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(indexes, (index + 1..=last).collect::<Vec<_>>());
    }

    #[test]
    fn a_command_is_applied_once() {
        let state = EngineState::new(Box::new(Sum::default()), Box::new(|| ()));
        state.apply(3, &[5]).unwrap();
        state.apply(3, &[5]).unwrap();
        state.restore(2, &[9; 8]).unwrap();
        assert_eq!(state.snapshot(), (3, 5_u64.to_le_bytes().to_vec()));
    }
}
