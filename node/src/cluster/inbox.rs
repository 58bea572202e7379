//! What the driver has not yet seen: inputs of connections and of the copies' threads. The number
//! of inputs is limited: of acknowledgements and of position messages only the last one counts, and
//! of the connections of a member only the last one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use nearstate_cluster::{LogPosition, PartitionId, RegionState, ViewNumber};

use crate::peer::PartitionInput;

/// Inputs of connections that wait for the driver. Further ones are dropped: none of them is needed
/// for what is counted. That a member is connected is never dropped: what it acknowledges would not
/// count, as long as it stays connected.
const CONNECTION_INPUTS_MAX: usize = 4096;

/// What a copy's thread has found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyInput {
    /// The region, after an effect or a change.
    Facts(RegionState),
    /// The copy is frozen.
    Frozen(ViewNumber, LogPosition),
}

/// One input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DriverInput {
    Copy(PartitionId, CopyInput),
    Connection(PartitionId, PartitionInput),
}

/// The inputs, and the thread that takes them.
#[derive(Debug, Default)]
pub(super) struct DriverInbox {
    inputs: Mutex<Inputs>,
    driver: OnceLock<Thread>,
}

#[derive(Debug, Default)]
struct Inputs {
    queue: VecDeque<DriverInput>,
    facts: BTreeMap<PartitionId, RegionState>,
    /// With the number of the connection.
    connected: BTreeMap<(PartitionId, String), (u64, PartitionInput)>,
    heard: BTreeMap<PartitionId, PartitionInput>,
    acknowledged: BTreeMap<(PartitionId, String), PartitionInput>,
    written: BTreeMap<PartitionId, PartitionInput>,
}

impl DriverInbox {
    fn inputs(&self) -> MutexGuard<'_, Inputs> {
        self.inputs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present thread takes the inputs from now on.
    pub(super) fn begin(&self) {
        let _ = self.driver.set(std::thread::current());
    }

    pub(super) fn wake(&self) {
        if let Some(driver) = self.driver.get() {
            driver.unpark();
        }
    }

    /// Adds what a copy's thread has found out.
    pub(super) fn copy(&self, partition: PartitionId, input: CopyInput) {
        {
            let mut inputs = self.inputs();
            match input {
                // Frozen follows the facts that were read before it, so both keep their order.
                CopyInput::Facts(facts) => drop(inputs.facts.insert(partition, facts)),
                CopyInput::Frozen(..) => {
                    if let Some(facts) = inputs.facts.remove(&partition) {
                        let facts = DriverInput::Copy(partition, CopyInput::Facts(facts));
                        inputs.queue.push_back(facts);
                    }
                    inputs.queue.push_back(DriverInput::Copy(partition, input));
                }
            }
        }
        self.wake();
    }

    /// Adds what has happened on a connection, and wakes none.
    pub(super) fn connection(&self, partition: PartitionId, input: PartitionInput) {
        let mut inputs = self.inputs();
        match &input {
            PartitionInput::PositionReceived { .. } => {
                inputs.heard.insert(partition, input);
            }
            PartitionInput::LogWritten { .. } => {
                inputs.written.insert(partition, input);
            }
            PartitionInput::MemberAcknowledged { host, .. } => {
                let host = host.clone();
                inputs.acknowledge((partition, host), input);
            }
            PartitionInput::MemberConnected { host, connection, .. } => {
                let (key, connection) = ((partition, host.clone()), *connection);
                inputs.connect(key, (connection, input));
            }
            PartitionInput::MemberAhead { .. }
            | PartitionInput::MemberBehind { .. }
            | PartitionInput::MemberLeft { .. }
            | PartitionInput::Joined { .. }
            | PartitionInput::OwnerLost { .. }
            | PartitionInput::FollowFailed { .. }
            | PartitionInput::Panicked { .. }
            | PartitionInput::OwnerPromotes { .. }
            | PartitionInput::HigherView { .. } => {
                if inputs.queue.len() < CONNECTION_INPUTS_MAX {
                    inputs.queue.push_back(DriverInput::Connection(partition, input));
                }
            }
        }
    }

    /// Takes all inputs, those of connections that begin or end first.
    pub(super) fn take(&self, out: &mut Vec<DriverInput>) {
        let mut inputs = self.inputs();
        let Inputs { queue, facts, connected, heard, acknowledged, written } = &mut *inputs;
        // What the queue says of an earlier connection has no effect behind it.
        let connected = std::mem::take(connected).into_iter();
        out.extend(connected.map(|((of, _), (_, input))| DriverInput::Connection(of, input)));
        out.extend(queue.drain(..));
        let facts = std::mem::take(facts).into_iter();
        out.extend(facts.map(|(of, facts)| DriverInput::Copy(of, CopyInput::Facts(facts))));
        let heard = std::mem::take(heard).into_iter();
        out.extend(heard.map(|(of, input)| DriverInput::Connection(of, input)));
        let written = std::mem::take(written).into_iter();
        out.extend(written.map(|(of, input)| DriverInput::Connection(of, input)));
        let acknowledged = std::mem::take(acknowledged).into_iter();
        out.extend(acknowledged.map(|((of, _), input)| DriverInput::Connection(of, input)));
    }
}

impl Inputs {
    /// Of the connections of a member the one with the highest number counts.
    fn connect(&mut self, key: (PartitionId, String), (number, input): (u64, PartitionInput)) {
        if self.connected.get(&key).is_none_or(|(known, _)| *known < number) {
            self.connected.insert(key, (number, input));
        }
    }

    /// Of two acknowledgements on one connection the later one counts, with the higher stamp. One
    /// of an earlier connection than the last one does not count.
    fn acknowledge(&mut self, key: (PartitionId, String), mut input: PartitionInput) {
        let earlier = self.acknowledged.remove(&key);
        if let (
            PartitionInput::MemberAcknowledged { connection, stamp, .. },
            Some(PartitionInput::MemberAcknowledged {
                connection: known,
                stamp: earlier_stamp,
                ..
            }),
        ) = (&mut input, &earlier)
        {
            if *connection < *known {
                self.acknowledged.extend(earlier.map(|earlier| (key, earlier)));
                return;
            }
            if *connection == *known {
                *stamp = (*stamp).max(*earlier_stamp);
            }
        }
        self.acknowledged.insert(key, input);
    }
}

/// The driver, for its own thread and for those of connections.
///
/// ```text
/// thread of a connection                          driver's thread
/// C1  add the input                               D1  take the driver
/// C2  try to take the driver: all inputs, C4      D2  all inputs, time
/// C3  another thread has it: unpark               D3  give it back
/// C4  give it back                                D4  park, unless C3 has come since D1
/// ```
///
/// The steps of the rules stay one sequence, in which inputs have the order of the inbox. An input
/// that C1 adds behind D2, or behind the C2 of another thread, finds the driver free in C2, or C3
/// makes D4 return at once. So an acknowledgement raises what is replicated on the thread that has
/// received it: no other thread has to be woken and scheduled first.
#[derive(Debug)]
pub(super) struct SharedDriver<D> {
    pub(super) inbox: Arc<DriverInbox>,
    /// `None` before the driver has started, and once it has ended.
    driver: Mutex<Option<D>>,
}

impl<D> Default for SharedDriver<D> {
    fn default() -> Self {
        Self { inbox: Arc::default(), driver: Mutex::new(None) }
    }
}

impl<D> SharedDriver<D> {
    /// Connections find the driver from now on.
    pub(super) fn begin(&self, driver: D) {
        *self.driver.lock().unwrap_or_else(PoisonError::into_inner) = Some(driver);
    }

    /// C1 to C4. Does not wait: neither does a step.
    pub(super) fn connection(
        &self,
        partition: PartitionId,
        input: PartitionInput,
        take_inputs: impl FnMut(&mut D),
    ) {
        // Not what the thread says that reads the own log: a step may wait for the end of that one.
        let may_be_waited_for = matches!(
            input,
            PartitionInput::MemberAcknowledged { .. } | PartitionInput::PositionReceived { .. }
        );
        self.inbox.connection(partition, input);
        // After a panic the lock is poisoned: the driver's thread ends.
        if may_be_waited_for && let Ok(mut driver) = self.driver.try_lock() {
            driver.iter_mut().for_each(take_inputs);
        } else {
            self.inbox.wake();
        }
    }

    /// D1 to D3. False if the driver has ended, or a step has panicked on whichever thread.
    pub(super) fn step(&self, step: impl FnOnce(&mut D)) -> bool {
        let Ok(mut driver) = self.driver.lock() else { return false };
        driver.as_mut().map(step).is_some()
    }

    /// The driver, which connections do not find any more.
    pub(super) fn end(&self) -> Option<D> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread::ScopedJoinHandle;
    use std::time::Duration;

    use nearstate_store::lease_clock;

    use super::*;

    #[test]
    fn an_acknowledgement_is_taken_on_its_thread_behind_what_came_before_it() {
        let shared = SharedDriver::default();
        let partition = PartitionId(1);
        let take = |inputs: &mut Vec<DriverInput>| shared.inbox.take(inputs);
        shared.begin(Vec::new());
        let connected =
            PartitionInput::MemberConnected { host: "b".to_owned(), view: 1, connection: 1 };
        shared.connection(partition, connected.clone(), take);
        assert!(shared.step(|taken| assert_eq!(*taken, [])));
        shared.connection(partition, acknowledged(1, 7, 0), take);
        let expected = [connected, acknowledged(1, 7, 0)]
            .map(|input| DriverInput::Connection(partition, input));
        assert!(shared.step(|taken| assert_eq!(*taken, expected)));
        assert_eq!(shared.end().map(|taken| taken.len()), Some(2));
        assert!(!shared.step(|_| ()));
    }

    #[test]
    fn an_acknowledgement_that_finds_the_driver_at_work_wakes_its_thread() {
        const ROUNDS: u64 = 2000;
        const HANG: Duration = Duration::from_secs(5);
        let (shared, taken) = (SharedDriver::<()>::default(), [0, 0].map(AtomicU64::new));
        shared.begin(());
        let take = || {
            let mut inputs = Vec::new();
            shared.inbox.take(&mut inputs);
            for input in inputs {
                if let DriverInput::Connection(
                    of,
                    PartitionInput::MemberAcknowledged { stamp, .. },
                ) = input
                {
                    taken[usize::from(of.0 == 1)].fetch_max(stamp, Ordering::AcqRel);
                }
            }
        };
        let is_over = || taken.iter().all(|taken| taken.load(Ordering::Acquire) == ROUNDS);
        std::thread::scope(|scope| {
            let connections: Vec<_> = (0..)
                .zip(&taken)
                .map(|(partition, seen)| {
                    let (shared, take) = (&shared, &take);
                    scope.spawn(move || {
                        for stamp in 1..=ROUNDS {
                            let input = acknowledged(1, 1, stamp);
                            shared.connection(PartitionId(partition), input, |()| take());
                            let end = lease_clock() + HANG;
                            while seen.load(Ordering::Acquire) < stamp {
                                assert!(lease_clock() < end, "the input {stamp} is not taken");
                                std::thread::yield_now();
                            }
                        }
                        shared.inbox.wake();
                    })
                })
                .collect();
            shared.inbox.begin();
            while !is_over() && !connections.iter().all(ScopedJoinHandle::is_finished) {
                // It holds the driver for a while behind the last input.
                shared.step(|()| {
                    take();
                    std::thread::yield_now();
                });
                if !is_over() {
                    std::thread::park_timeout(2 * HANG);
                }
            }
        });
    }

    fn acknowledged(connection: u64, position: u64, stamp: u64) -> PartitionInput {
        let (host, position) = ("b".to_owned(), Some(position));
        PartitionInput::MemberAcknowledged { host, view: 1, connection, position, stamp }
    }

    #[test]
    fn of_acknowledgements_the_last_position_and_the_last_stamp_of_a_connection_remain() {
        let inbox = DriverInbox::default();
        let partition = PartitionId(1);
        inbox.connection(partition, acknowledged(1, 10, 90));
        inbox.connection(partition, acknowledged(2, 20, 30));
        inbox.connection(partition, acknowledged(2, 21, 0));
        let mut inputs = Vec::new();
        inbox.take(&mut inputs);
        assert_eq!(inputs, [DriverInput::Connection(partition, acknowledged(2, 21, 30))]);
        inputs.clear();
        inbox.take(&mut inputs);
        assert_eq!(inputs, []);
    }

    #[test]
    fn a_member_that_is_connected_is_not_dropped_however_many_inputs_wait() {
        let (inbox, partition) = (DriverInbox::default(), PartitionId(1));
        let connected = |connection| {
            let host = "b".to_owned();
            PartitionInput::MemberConnected { host, view: 1, connection }
        };
        for _ in 0..2 * CONNECTION_INPUTS_MAX {
            inbox.connection(partition, PartitionInput::HigherView { view: 3 });
        }
        // The thread of the earlier connection is late.
        inbox.connection(partition, connected(8));
        inbox.connection(partition, connected(7));
        let mut inputs = Vec::new();
        inbox.take(&mut inputs);
        assert_eq!(inputs.len(), CONNECTION_INPUTS_MAX + 1);
        assert_eq!(inputs.first(), Some(&DriverInput::Connection(partition, connected(8))));
    }

    #[test]
    fn a_connection_that_begins_and_ends_all_the_time_takes_limited_memory() {
        let inbox = DriverInbox::default();
        for _ in 0..2 * CONNECTION_INPUTS_MAX {
            inbox.connection(PartitionId(1), PartitionInput::HigherView { view: 3 });
        }
        let mut inputs = Vec::new();
        inbox.take(&mut inputs);
        assert_eq!(inputs.len(), CONNECTION_INPUTS_MAX);
    }
}
