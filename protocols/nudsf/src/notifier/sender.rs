//! Batches of notifications in flight: entries of one order are sent one after the other, others at
//! the same time. What is in flight when the lease of the host ends is cancelled, because another
//! host may deliver from then on. This host waits as long as an answer may take before it sends
//! anything again.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use nearstate_node::executor::{TaskClass, TaskEvent, sleep, spawn, timeout};
use nearstate_store::{OwnerLease, Session, since_boot};

use crate::limits::LEASE_INTERVAL;
use crate::notifier::host_client::{HostClient, RESPONSE_MAX, Sent};
use crate::notifier::outbox::OutboxEntry;
use crate::settings::{NotificationResult, NudsfMetrics};

/// Entries of one order, as far as they were sent.
pub(crate) struct Sequence {
    pub(crate) entries: Vec<OutboxEntry>,
    pub(crate) done: usize,
    /// The target has answered.
    is_answered: bool,
    /// Why it does not go on; `None`: all were sent.
    pub(crate) end: Option<SequenceEnd>,
}

impl Sequence {
    pub(crate) fn new(entries: Vec<OutboxEntry>) -> Self {
        Self { entries, done: 0, is_answered: false, end: None }
    }
}

/// What became of the first entry that was neither delivered nor rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SequenceEnd {
    /// The host refuses it for now.
    Refused,
    /// The host has not answered.
    Unanswered,
    /// It was not sent, or was cancelled: another host may deliver.
    Stopped,
}

/// True if the target has answered. If not, the next batch has a new connection.
pub(crate) fn is_answered(sent: &[Sequence]) -> bool {
    sent.iter().any(|sequence| sequence.is_answered)
}

/// What the tasks that send, of one run of the notifier share.
pub(crate) struct BatchSender {
    session: Rc<Session>,
    metrics: Arc<NudsfMetrics>,
    /// The run of the notifier has ended.
    pub(crate) is_over: Cell<bool>,
}

impl BatchSender {
    pub(crate) fn new(session: Rc<Session>, metrics: Arc<NudsfMetrics>) -> Self {
        Self { session, metrics, is_over: Cell::new(false) }
    }

    /// True if another host may deliver.
    fn has_lost_lease(&self) -> bool {
        !self.session.owner_lease().is_ok_and(|lease| lease != OwnerLease::Expired)
    }

    /// False if another host may deliver, or another run of the notifier will.
    fn may_send(&self) -> bool {
        !self.is_over.get() && !self.has_lost_lease()
    }

    /// Sends a batch, and waits for the answers: as long as the host has its lease.
    pub(crate) async fn send(
        self: &Rc<Self>,
        batch: Vec<OutboxEntry>,
        client: Option<&HostClient>,
    ) -> Vec<Sequence> {
        let mut sequences: BTreeMap<u64, Vec<OutboxEntry>> = BTreeMap::new();
        for entry in batch {
            sequences.entry(entry.order).or_default().push(entry);
        }
        let stop = Rc::<TaskEvent>::default();
        let tasks: Vec<_> = sequences
            .into_values()
            .map(|entries| {
                let (client, context, stop) = (client.cloned(), Rc::clone(self), Rc::clone(&stop));
                spawn(TaskClass::Background, "nudsf-notify-send", async move {
                    context.send_sequence(Sequence::new(entries), client, &stop).await
                })
            })
            .collect();
        let mut all = pin!(async {
            let mut sent = Vec::with_capacity(tasks.len());
            for task in tasks {
                sent.extend(task.await);
            }
            sent
        });
        loop {
            if let Some(sent) = timeout(LEASE_INTERVAL, all.as_mut()).await {
                return sent;
            }
            if self.has_lost_lease() {
                stop.set();
            }
        }
    }

    /// Sends the entries of one order until one fails, or another host may deliver.
    pub(crate) async fn send_sequence(
        &self,
        mut sequence: Sequence,
        mut client: Option<HostClient>,
        stop: &TaskEvent,
    ) -> Sequence {
        for entry in &sequence.entries {
            if !self.may_send() {
                sequence.end = Some(SequenceEnd::Stopped);
                break;
            }
            let Some(notification) = &entry.notification else {
                sequence.done += 1;
                continue;
            };
            let begun = since_boot();
            let sent = match &mut client {
                Some(client) => until_stopped(stop, client.send(notification)).await,
                None => Some(Sent::Failed),
            };
            sequence.is_answered |= sent.is_some_and(|sent| sent != Sent::Failed);
            let result = match sent {
                Some(Sent::Delivered) => NotificationResult::Delivered,
                Some(Sent::Rejected) => NotificationResult::Rejected,
                Some(Sent::Busy) => {
                    sequence.end = Some(SequenceEnd::Refused);
                    break;
                }
                Some(Sent::Failed) => {
                    sequence.end = Some(SequenceEnd::Unanswered);
                    break;
                }
                None => {
                    // The target may have it: what this host sends next must not overtake it.
                    let left = RESPONSE_MAX.saturating_sub(since_boot().saturating_sub(begun));
                    sleep(left).await;
                    sequence.end = Some(SequenceEnd::Stopped);
                    break;
                }
            };
            self.metrics.count_notification(notification.kind, result);
            sequence.done += 1;
        }
        sequence
    }
}

/// Waits for a future. `None`: the event was set before, and the future was dropped.
async fn until_stopped<F: Future>(stop: &TaskEvent, future: F) -> Option<F::Output> {
    let (mut future, mut stopped) = (pin!(future), pin!(stop.wait()));
    std::future::poll_fn(|cx| {
        // First: after a pause of the process, the answer may be late as well.
        if stopped.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        future.as_mut().poll(cx).map(Some)
    })
    .await
}
