//! Nodes of partitions that stop. Replies in progress are waited for, so each node is stopped on a
//! thread of its own: meanwhile the main thread starts those of other partitions. No partition has
//! two nodes, so there are at most as many threads as partitions.

use std::collections::BTreeMap;
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;

use nearstate_cluster::PartitionId;

use super::host_events::MainThreadMessage;

/// The threads. Dropping waits until all nodes are stopped.
pub(super) struct StoppingNodes {
    threads: BTreeMap<PartitionId, JoinHandle<u64>>,
    messages: SyncSender<MainThreadMessage>,
}

impl StoppingNodes {
    /// The main thread gets [`MainThreadMessage::Stopped`] for each node.
    pub(super) const fn new(messages: SyncSender<MainThreadMessage>) -> Self {
        Self { threads: BTreeMap::new(), messages }
    }

    /// Stops the node of a partition. `stop` returns the connections that did not finish in time.
    pub(super) fn add(
        &mut self,
        partition: PartitionId,
        stop: impl FnOnce() -> u64 + Send + 'static,
    ) {
        let messages = self.messages.clone();
        let work = move || {
            let aborted = stop();
            // It does not fit if the main thread has ended, or is late. It looks again each second.
            drop(messages.try_send(MainThreadMessage::Stopped(partition)));
            aborted
        };
        // Without a thread the node is dropped here, which stops it.
        if let Ok(thread) = std::thread::Builder::new().name("ns-stop".to_owned()).spawn(work) {
            self.threads.insert(partition, thread);
        }
    }

    /// True until [`StoppingNodes::remove`] of a partition whose last node stops.
    pub(super) fn contains(&self, partition: PartitionId) -> bool {
        self.threads.contains_key(&partition)
    }

    /// Removes those that are stopped, whose messages may not have fitted.
    pub(super) fn remove_stopped(&mut self) {
        self.threads.retain(|_, thread| !thread.is_finished());
    }

    /// Waits until all nodes are stopped. Returns the connections that did not finish in time, of
    /// the nodes that were stopping.
    pub(super) fn finish(mut self) -> u64 {
        let threads = std::mem::take(&mut self.threads).into_values();
        threads.map(|thread| thread.join().unwrap_or(0)).sum()
    }

    /// The node is stopped, as a message says: its thread has nothing more to do.
    pub(super) fn remove(&mut self, partition: PartitionId) {
        if let Some(thread) = self.threads.remove(&partition) {
            let _ = thread.join();
        }
    }
}

impl Drop for StoppingNodes {
    fn drop(&mut self) {
        for thread in std::mem::take(&mut self.threads).into_values() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{channel, sync_channel};

    use super::*;

    const ONE: PartitionId = PartitionId(1);

    #[test]
    fn a_node_that_stops_slowly_is_not_waited_for() {
        let (messages, received) = sync_channel(4);
        let (finish, may_finish) = channel::<()>();
        let mut stopping = StoppingNodes::new(messages);
        stopping.add(ONE, move || may_finish.recv().map_or(0, |()| 3));
        assert!(stopping.contains(ONE), "no other node of the partition is started");
        assert!(!stopping.contains(PartitionId(2)));
        finish.send(()).unwrap();
        let stopped = received.recv().unwrap();
        assert!(matches!(stopped, MainThreadMessage::Stopped(ONE)));
        stopping.remove(ONE);
        assert!(!stopping.contains(ONE));
        stopping.add(ONE, || 4);
        stopping.add(PartitionId(2), || 5);
        assert_eq!(stopping.finish(), 9, "of the nodes that stop at the end");
    }
}
