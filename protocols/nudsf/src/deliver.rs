//! Delivery of the outbox: a task for each target, which sends its entries in their order and
//! removes those that were accepted. Targets do not wait for each other.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nearstate_model::Result;
use nearstate_node::ClientTls;
use nearstate_node::executor::{TaskClass, TaskEvent, sleep, spawn, timeout};
use nearstate_store::OwnerLease;

use crate::host_client::{HostClient, Sent};
use crate::limits::{
    BATCH_MAX, END_INTERVAL, FAILURES_MAX, RELEASE_INTERVAL, RETRY_MAX, RETRY_MIN, TARGET_IDLE_MAX,
    TARGETS_MAX, UNDELIVERED_MS_MAX,
};
use crate::outbox::{Outbox, OutboxEntry};
use crate::settings::{NotificationResult, NudsfMetrics};

/// The deliveries of a node.
pub(crate) struct Deliveries {
    pub(crate) outbox: Outbox,
    tls: Option<ClientTls>,
    metrics: Arc<NudsfMetrics>,
    /// The targets with a task, each with the event that wakes it.
    running: RefCell<BTreeMap<u64, Rc<TaskEvent>>>,
    /// The target whose task was started last. The next one is behind it, so that each has its
    /// turn.
    last: Cell<u64>,
    /// Targets wait for a task: those that do not answer give theirs up.
    is_crowded: Cell<bool>,
    is_over: Cell<bool>,
    /// Ends the pauses when the deliveries are over.
    over: TaskEvent,
}

/// Entries of one order, as far as they were sent.
struct Sequence {
    entries: Vec<OutboxEntry>,
    done: usize,
    /// The target did not answer.
    is_unanswered: bool,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchResult {
    /// All of it is done.
    Whole,
    /// The target answers, and refuses a part for now.
    Busy,
    /// The target does not answer.
    Unanswered,
}

/// Ends the tasks of all targets when the notifier ends.
pub(crate) struct DeliveriesGuard(pub(crate) Rc<Deliveries>);

impl Drop for DeliveriesGuard {
    fn drop(&mut self) {
        self.0.is_over.set(true);
        self.0.over.set();
        for event in self.0.running.borrow().values() {
            event.set();
        }
    }
}

impl Deliveries {
    pub(crate) fn new(outbox: Outbox, tls: Option<ClientTls>, metrics: Arc<NudsfMetrics>) -> Self {
        Self {
            outbox,
            tls,
            metrics,
            running: RefCell::default(),
            last: Cell::new(0),
            is_crowded: Cell::new(false),
            is_over: Cell::new(false),
            over: TaskEvent::default(),
        }
    }

    /// Starts or wakes the tasks of all targets that have entries.
    pub(crate) fn wake_all(self: &Rc<Self>) {
        self.is_crowded.set(false);
        self.wake(&self.outbox.targets());
    }

    /// Starts or wakes the tasks of targets that have entries, in ascending order.
    pub(crate) fn wake(self: &Rc<Self>, targets: &[u64]) {
        let before = targets.partition_point(|target| *target <= self.last.get());
        let (before, behind) = targets.split_at(before);
        for target in behind.iter().chain(before) {
            let mut running = self.running.borrow_mut();
            if let Some(event) = running.get(target) {
                event.set();
            } else if running.len() < TARGETS_MAX {
                let event = Rc::<TaskEvent>::default();
                running.insert(*target, Rc::clone(&event));
                self.last.set(*target);
                let (context, target) = (Rc::clone(self), *target);
                drop(spawn(TaskClass::Background, "nudsf-notify", async move {
                    // A failure of the region: the entries remain, and the next wake tries again.
                    let _ = context.deliver(target, &event).await;
                    context.running.borrow_mut().remove(&target);
                }));
            } else {
                self.is_crowded.set(true);
            }
        }
    }

    /// Delivers the entries of a target until it has none for a while.
    async fn deliver(self: &Rc<Self>, target: u64, event: &TaskEvent) -> Result<()> {
        // Failures in a row, and those without an answer.
        let (mut client, mut failures, mut unanswered) = (None, 0_u32, 0_u32);
        while !self.is_over.get() {
            event.reset();
            // The circuit is open after some silence: one entry probes the target. A target that
            // answers gets others behind those that it refuses.
            let limit = if unanswered >= FAILURES_MAX { 1 } else { BATCH_MAX };
            let batch = self.outbox.first(target, limit)?;
            let Some(first) = batch.first() else {
                self.outbox.forget(target);
                if timeout(TARGET_IDLE_MAX, event.wait()).await.is_none() {
                    return Ok(());
                }
                continue;
            };
            if !self.may_release().await? {
                return Ok(());
            }
            if let (None, Some(first)) = (&client, &first.notification) {
                client = HostClient::connect(&first.uri, self.tls.as_ref()).await;
            }
            match self.send(target, batch, client.as_ref()).await? {
                BatchResult::Whole => {
                    (failures, unanswered) = (0, 0);
                    continue;
                }
                BatchResult::Busy => unanswered = 0,
                BatchResult::Unanswered => {
                    (client, unanswered) = (None, unanswered.saturating_add(1));
                }
            }
            failures = failures.saturating_add(1);
            self.metrics.count_retry();
            self.pause(retry_pause(failures)).await;
            if unanswered >= FAILURES_MAX && self.is_crowded.get() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Waits, and no longer if the deliveries end.
    async fn pause(&self, length: Duration) {
        timeout(length, self.over.wait()).await;
    }

    /// Waits until no task delivers any more, after [`DeliveriesGuard`] was dropped: those that
    /// come next begin with the first entry of each target, and one that is in flight must not be
    /// overtaken by those behind it. Takes as long as a target may take to answer.
    pub(crate) async fn ended(&self) {
        while !self.running.borrow().is_empty() {
            sleep(END_INTERVAL).await;
        }
    }

    /// False if another host may deliver, or another run of the notifier will.
    fn may_send(&self) -> bool {
        let lease = self.outbox.session().owner_lease();
        !self.is_over.get() && lease.is_ok_and(|lease| lease != OwnerLease::Expired)
    }

    /// Waits until what was read may leave this host: in a cluster, the host has a lease, and
    /// everything that was committed until now is replicated. False: the deliveries end first.
    async fn may_release(&self) -> Result<bool> {
        let session = self.outbox.session();
        let read = session.log_tail_position()?;
        while !self.is_over.get() {
            match session.owner_lease()? {
                OwnerLease::Unclustered => return Ok(true),
                OwnerLease::Held { .. } if session.replicated_position()? >= read => {
                    return Ok(true);
                }
                OwnerLease::Held { .. } | OwnerLease::Expired => sleep(RELEASE_INTERVAL).await,
            }
        }
        Ok(false)
    }

    /// Sends a batch: entries of one order one after the other, others at the same time. Removes
    /// what was delivered, rejected, or is too old.
    async fn send(
        self: &Rc<Self>,
        target: u64,
        batch: Vec<OutboxEntry>,
        client: Option<&HostClient>,
    ) -> Result<BatchResult> {
        let count = batch.len();
        let mut sequences: BTreeMap<u64, Vec<OutboxEntry>> = BTreeMap::new();
        for entry in batch {
            let order = entry.notification.as_ref().map_or(0, |notification| notification.order);
            sequences.entry(order).or_default().push(entry);
        }
        let tasks: Vec<_> = sequences
            .into_values()
            .map(|entries| {
                let (client, context) = (client.cloned(), Rc::clone(self));
                spawn(TaskClass::Background, "nudsf-notify-send", async move {
                    send_sequence(
                        Sequence { entries, done: 0, is_unanswered: false },
                        client,
                        &context,
                    )
                    .await
                })
            })
            .collect();
        let (mut removed, mut is_unanswered) = (Vec::new(), false);
        for task in tasks {
            if let Some(sequence) = task.await {
                is_unanswered |= sequence.is_unanswered;
                removed.extend(sequence.entries.into_iter().take(sequence.done));
            }
        }
        if !removed.is_empty() {
            self.outbox.remove(target, &removed).await?;
        }
        Ok(match (removed.len() == count, is_unanswered) {
            (true, _) => BatchResult::Whole,
            (false, false) => BatchResult::Busy,
            (false, true) => BatchResult::Unanswered,
        })
    }
}

/// Sends the entries of one order until one fails, or another host may deliver.
async fn send_sequence(
    mut sequence: Sequence,
    mut client: Option<HostClient>,
    context: &Deliveries,
) -> Sequence {
    for entry in &sequence.entries {
        if !context.may_send() {
            break;
        }
        let Some(notification) = &entry.notification else {
            sequence.done += 1;
            continue;
        };
        let sent = match &mut client {
            Some(client) => client.send(notification).await,
            None => Sent::Failed,
        };
        let result = match sent {
            Sent::Delivered => NotificationResult::Delivered,
            Sent::Rejected => NotificationResult::Rejected,
            Sent::Busy | Sent::Failed if Outbox::age_ms(notification) > UNDELIVERED_MS_MAX => {
                NotificationResult::Dropped
            }
            Sent::Busy => break,
            Sent::Failed => {
                sequence.is_unanswered = true;
                break;
            }
        };
        context.metrics.count_notification(notification.kind, result);
        sequence.done += 1;
    }
    sequence
}

/// The pause after so many failures.
fn retry_pause(failures: u32) -> Duration {
    let factor = 1_u32 << failures.saturating_sub(1).min(16);
    RETRY_MIN.saturating_mul(factor).min(RETRY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_their_limit() {
        assert_eq!([1, 2, 3].map(retry_pause), [1, 2, 4].map(|factor| RETRY_MIN * factor));
        assert_eq!([20, u32::MAX].map(retry_pause), [RETRY_MAX; 2]);
    }
}
