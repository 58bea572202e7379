//! What the driver has not yet seen: inputs of connections and of the copies' threads. The number
//! of inputs is limited: of acknowledgements and of position messages only the last one counts.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use nearstate_cluster::{LogPosition, PartitionId, RegionFacts, ViewNumber};

use crate::peer::PartitionInput;

/// Inputs of connections that wait for the driver. Further ones are dropped: connections begin
/// anew, and then tell everything.
const CONNECTION_INPUTS_MAX: usize = 4096;

/// What a copy's thread has found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyInput {
    /// The region, after an effect or a change.
    Facts(RegionFacts),
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
    facts: BTreeMap<PartitionId, RegionFacts>,
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

    /// Adds what has happened on a connection.
    pub(super) fn connection(&self, partition: PartitionId, input: PartitionInput) {
        {
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
                PartitionInput::MemberConnected { .. }
                | PartitionInput::MemberBehind { .. }
                | PartitionInput::MemberLeft { .. }
                | PartitionInput::Joined { .. }
                | PartitionInput::OwnerLost { .. }
                | PartitionInput::FollowFailed { .. }
                | PartitionInput::HigherView { .. } => {
                    if inputs.queue.len() < CONNECTION_INPUTS_MAX {
                        inputs.queue.push_back(DriverInput::Connection(partition, input));
                    }
                }
            }
        }
        self.wake();
    }

    /// Takes all inputs, those of connections that begin or end first.
    pub(super) fn take(&self, out: &mut Vec<DriverInput>) {
        let mut inputs = self.inputs();
        let Inputs { queue, facts, heard, acknowledged, written } = &mut *inputs;
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
    /// Of two acknowledgements on one connection the later one counts, with the higher stamp.
    fn acknowledge(&mut self, key: (PartitionId, String), mut input: PartitionInput) {
        let earlier = self.acknowledged.remove(&key);
        if let (
            PartitionInput::MemberAcknowledged { connection, stamp, .. },
            Some(PartitionInput::MemberAcknowledged {
                connection: earlier,
                stamp: earlier_stamp,
                ..
            }),
        ) = (&mut input, earlier)
            && *connection == earlier
        {
            *stamp = (*stamp).max(earlier_stamp);
        }
        self.acknowledged.insert(key, input);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
