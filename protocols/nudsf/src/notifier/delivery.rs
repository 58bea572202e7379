//! Delivery of the outbox: a task for each target, which sends its entries in their order and
//! removes those that were accepted. Targets do not wait for each other, and a callback that fails
//! does not stop the others of its target ([`CallbackState`]).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nearstate_model::{Error, Result};
use nearstate_node::ClientTls;
use nearstate_node::executor::{
    TaskClass, TaskEvent, TaskHandle, sleep, spawn, timeout, yield_now,
};
use nearstate_store::{OwnerLease, Txn, since_boot};

use crate::limits::{
    BATCH_MAX, END_INTERVAL, RELEASE_INTERVAL, TARGET_IDLE_MAX, TARGETS_MAX, UNDELIVERED_MS_MAX,
};
use crate::notifier::callback_state::CallbackState;
use crate::notifier::expiry_collector::ExpiryCollector;
use crate::notifier::host_client::HostClient;
use crate::notifier::notification::Notification;
use crate::notifier::outbox::{BATCH_BYTES, Outbox, OutboxEntry};
use crate::notifier::sender::{BatchSender, Sequence, SequenceEnd, is_answered};
use crate::settings::{NotificationResult, NudsfMetrics};

/// The longest pause after a commit that found the region full. Targets that wait for a task get
/// one so often.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// The deliveries of a node.
pub(crate) struct Deliveries {
    pub(crate) outbox: Outbox,
    pub(crate) collector: RefCell<ExpiryCollector>,
    sender: Rc<BatchSender>,
    tls: Option<ClientTls>,
    metrics: Arc<NudsfMetrics>,
    /// The targets with a task, each with the event that wakes it.
    running: RefCell<BTreeMap<u64, Rc<TaskEvent>>>,
    /// What has failed at targets without a task. Each has entries in the outbox: this bounds them.
    states: RefCell<BTreeMap<u64, CallbackState>>,
    /// The target whose task was started last. The next one is behind it, so that each has its
    /// turn.
    last: Cell<u64>,
    /// Targets wait for a task: each task ends after a batch.
    is_crowded: Cell<bool>,
}

/// What a batch says of its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchScope {
    /// If nothing is answered, the target does not answer.
    Whole,
    /// It has only what failed before.
    Retry,
}

/// A batch of what failed before, in its own task.
struct Retry {
    task: TaskHandle<Vec<Sequence>>,
    is_done: Rc<Cell<bool>>,
}

/// What a target gets next.
enum NextBatch {
    Entries {
        /// Those of lanes that have waited, if they are not sent with the others.
        again: Vec<OutboxEntry>,
        others: Vec<OutboxEntry>,
    },
    /// More are to be read.
    Unread,
    /// Nothing until then.
    Wait(Duration),
    /// It has no entries.
    Empty,
}

/// Ends the tasks of all targets when the notifier ends.
pub(crate) struct DeliveriesGuard(pub(crate) Rc<Deliveries>);

impl Drop for DeliveriesGuard {
    fn drop(&mut self) {
        self.0.sender.is_over.set(true);
        for event in self.0.running.borrow().values() {
            event.set();
        }
    }
}

impl Deliveries {
    pub(crate) fn new(
        outbox: Outbox,
        collector: ExpiryCollector,
        tls: Option<ClientTls>,
        metrics: Arc<NudsfMetrics>,
    ) -> Self {
        let sender = Rc::new(BatchSender::new(Rc::clone(outbox.session()), Arc::clone(&metrics)));
        Self {
            outbox,
            collector: RefCell::new(collector),
            sender,
            tls,
            metrics,
            running: RefCell::default(),
            states: RefCell::default(),
            last: Cell::new(0),
            is_crowded: Cell::new(false),
        }
    }

    /// As [`Outbox::try_post`], and wakes the targets. `also` runs again after a conflict. A full
    /// region is tried again until it has space: meanwhile each target gets its turns and expired
    /// records are collected, because both make space.
    ///
    /// # Errors
    /// What no other attempt changes.
    pub(crate) async fn post(
        self: &Rc<Self>,
        position: Option<u64>,
        mut also: impl FnMut(&Txn<'_>) -> Result<Vec<Notification>>,
    ) -> Result<()> {
        let mut pause = Duration::from_millis(1);
        loop {
            match self.outbox.try_post(position, &mut also) {
                Ok(targets) => {
                    self.wake(&targets);
                    return Ok(());
                }
                Err(Error::Conflict { .. }) => yield_now().await,
                Err(
                    Error::Full { .. }
                    | Error::Behind { .. }
                    | Error::Stalled { .. }
                    | Error::Deadline { .. },
                ) => {
                    self.metrics.count_stall();
                    self.wake_all();
                    self.collector.borrow_mut().look_next();
                    self.collector.borrow_mut().round(self.outbox.session());
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                Err(error) => return Err(error),
            }
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
            } else if !self.is_crowded.replace(true) {
                // Those that are idle or wait end.
                running.values().for_each(|event| event.set());
            }
        }
    }

    /// Delivers the entries of a target until it has none for a while, or others wait for the task.
    async fn deliver(self: &Rc<Self>, target: u64, event: &Rc<TaskEvent>) -> Result<()> {
        let mut state = self.states.borrow_mut().remove(&target).unwrap_or_default();
        let mut retry = None::<Retry>;
        let mut delivered = self.deliver_all((target, event), &mut state, &mut retry).await;
        // However it ends: the next task of the target must not send beside this one.
        if let Some(retry) = retry {
            let sent = retry.task.await.unwrap_or_default();
            let finished = self.finish((target, BatchScope::Retry), sent, &mut state).await;
            delivered = delivered.and(finished);
        }
        if !state.is_clear() {
            self.states.borrow_mut().insert(target, state);
        }
        delivered
    }

    /// Leaves what is sent again, and has not ended, in `retry`.
    async fn deliver_all(
        self: &Rc<Self>,
        (target, event): (u64, &Rc<TaskEvent>),
        state: &mut CallbackState,
        retry: &mut Option<Retry>,
    ) -> Result<()> {
        let mut client = None::<HostClient>;
        while !self.sender.is_over.get() {
            event.reset();
            if let Some(done) = retry.take_if(|retry| retry.is_done.get()) {
                let sent = done.task.await.unwrap_or_default();
                client = client.filter(|_| is_answered(&sent));
                self.finish((target, BatchScope::Retry), sent, state).await?;
            }
            let (again, others) = match self.next_batch(target, state, retry.is_some())? {
                NextBatch::Entries { again, others } => (again, others),
                NextBatch::Unread => {
                    yield_now().await;
                    continue;
                }
                NextBatch::Wait(pause) => {
                    if self.is_crowded.get() {
                        break;
                    }
                    timeout(pause, event.wait()).await;
                    continue;
                }
                NextBatch::Empty => {
                    if self.is_crowded.get()
                        || timeout(TARGET_IDLE_MAX, event.wait()).await.is_none()
                    {
                        break;
                    }
                    continue;
                }
            };
            if !self.may_release().await? {
                return Ok(());
            }
            client = client.filter(|client| !client.is_closed());
            let first = others.first().or(again.first());
            let uri = first.and_then(|entry| Some(entry.notification.as_ref()?.uri.as_str()));
            if let (None, Some(uri)) = (&client, uri) {
                client = HostClient::connect(uri, self.tls.as_ref()).await;
            }
            if !again.is_empty() {
                *retry = Some(self.retry(again, client.as_ref(), event));
            }
            if !others.is_empty() {
                let sent = self.sender.send(others, client.as_ref()).await;
                client = client.filter(|_| is_answered(&sent));
                self.finish((target, BatchScope::Whole), sent, state).await?;
            }
            if self.is_crowded.get() {
                break;
            }
        }
        Ok(())
    }

    /// Waits until no task delivers any more, after [`DeliveriesGuard`] was dropped: those that
    /// come next begin with the first entry of each target, and one that is in flight must not be
    /// overtaken by those behind it. Takes as long as a target may take to answer.
    pub(crate) async fn ended(&self) {
        while !self.running.borrow().is_empty() {
            sleep(END_INTERVAL).await;
        }
    }

    /// Sends what has failed before, while others are sent: it may hang.
    fn retry(
        &self,
        entries: Vec<OutboxEntry>,
        client: Option<&HostClient>,
        event: &Rc<TaskEvent>,
    ) -> Retry {
        let is_done = Rc::<Cell<bool>>::default();
        let (sender, client) = (Rc::clone(&self.sender), client.cloned());
        let (event, done) = (Rc::clone(event), Rc::clone(&is_done));
        let task = spawn(TaskClass::Background, "nudsf-notify-retry", async move {
            let sent = sender.send(entries, client.as_ref()).await;
            done.set(true);
            event.set();
            sent
        });
        Retry { task, is_done }
    }

    /// Reads what the target gets next: entries of lanes that have waited, and those of others.
    fn next_batch(
        &self,
        target: u64,
        state: &mut CallbackState,
        is_retrying: bool,
    ) -> Result<NextBatch> {
        let now = since_boot();
        if let Some(pause) = state.pause(now) {
            return Ok(NextBatch::Wait(pause));
        }
        let (limit, mut is_end) = (state.batch_max(), true);
        let mut others = Vec::new();
        if state.reads_on() {
            let range = (state.read_from, limit);
            let page = self.outbox.read(target, range, &|lane| state.is_waiting(lane))?;
            (state.read_from, is_end) = (page.next, page.is_end);
            others = page.entries;
        }
        let mut again = Vec::new();
        if !is_retrying && limit > 1 {
            again = self.due_entries(state, (now, limit))?;
        } else if !is_retrying && others.is_empty() && is_end {
            others = self.due_entries(state, (now, 1))?;
        }
        if !again.is_empty() || !others.is_empty() {
            return Ok(NextBatch::Entries { again, others });
        }
        if !is_end {
            return Ok(NextBatch::Unread);
        }
        if is_retrying {
            return Ok(NextBatch::Wait(TARGET_IDLE_MAX));
        }
        if let Some(pause) = state.next_retry(now) {
            return Ok(NextBatch::Wait(pause.max(Duration::from_millis(1))));
        }
        if state.read_from != 0 {
            state.read_from = 0;
            return Ok(NextBatch::Unread);
        }
        *state = CallbackState::default();
        self.outbox.forget(target);
        Ok(NextBatch::Empty)
    }

    /// Entries of lanes that have waited, at most `limit`.
    fn due_entries(
        &self,
        state: &mut CallbackState,
        (now, limit): (Duration, usize),
    ) -> Result<Vec<OutboxEntry>> {
        let (mut entries, mut bytes) = (Vec::<OutboxEntry>::new(), 0);
        for (lane, place) in state.due(now) {
            if entries.len() >= limit || bytes >= BATCH_BYTES {
                break;
            }
            match self.outbox.entry(place)? {
                None => state.passed(lane, place),
                // The first one of a record and that of its callback may be the same.
                Some(entry) if entries.iter().any(|one| one.key == entry.key) => {}
                Some(entry) if state.is_postponed(lane, [entry.order, entry.callback], now) => {}
                Some(entry) => {
                    bytes += entry.bytes;
                    entries.push(entry);
                }
            }
        }
        entries.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        Ok(entries)
    }

    /// Waits until what was read may leave this host: in a cluster, the host has a lease, and
    /// everything that was committed until now is replicated. False: the deliveries end first.
    async fn may_release(&self) -> Result<bool> {
        let session = self.outbox.session();
        let read = session.log_tail_position()?;
        while !self.sender.is_over.get() {
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

    /// Removes what was delivered or rejected, and what has failed for too long.
    async fn finish(
        &self,
        (target, batch): (u64, BatchScope),
        sequences: Vec<Sequence>,
        state: &mut CallbackState,
    ) -> Result<()> {
        let now = since_boot();
        let is_answered = is_answered(&sequences);
        let (mut removed, mut refused) = (Vec::new(), Vec::new());
        // The callbacks that do not answer, each with its first entry.
        let mut failed = BTreeMap::<u64, u128>::new();
        for Sequence { entries, done, end, .. } in sequences {
            match (end, entries.get(done)) {
                (Some(SequenceEnd::Unanswered), Some(entry)) => {
                    let first = failed.entry(entry.callback).or_insert(u128::MAX);
                    *first = entry.place().min(*first);
                }
                (Some(SequenceEnd::Refused), Some(entry)) => {
                    refused.push(((entry.order, entry.callback), entry.place()));
                }
                (Some(SequenceEnd::Stopped) | None, _) | (Some(_), None) => {}
            }
            removed.extend(entries.into_iter().take(done));
        }
        if !self.outbox.remove(target, &removed, &self.sender.is_over).await? {
            return Ok(());
        }
        for entry in &removed {
            state.passed(entry.order, entry.place());
            state.passed(entry.callback, entry.place());
        }
        if is_answered {
            state.answered();
        } else if !failed.is_empty() && batch == BatchScope::Whole {
            state.unanswered(now);
        }
        if !failed.is_empty() || !refused.is_empty() {
            self.metrics.count_retry();
        }
        for (lanes, place) in refused {
            if state.refused(lanes, place, now) {
                self.drop_old(target, state, Some(lanes.0)).await?;
            }
        }
        for (lane, place) in failed {
            if state.failed(lane, place, now) {
                self.drop_old(target, state, Some(lane)).await?;
            }
        }
        if state.is_given_up(now) {
            self.drop_old(target, state, None).await?;
        }
        Ok(())
    }

    /// Drops the entries of a target, or of one of its lanes, that became due too long ago.
    async fn drop_old(
        &self,
        target: u64,
        state: &mut CallbackState,
        lane: Option<u64>,
    ) -> Result<()> {
        let mut from = 0;
        loop {
            let mut old = self.outbox.read(target, (from, BATCH_MAX), &|_| false)?.entries;
            let count = old.len();
            let end = old.iter().position(|entry| !is_old(entry)).unwrap_or(count);
            old.truncate(end);
            let Some(last) = old.last() else { return Ok(()) };
            from = last.place().saturating_add(1);
            old.retain(|entry| {
                lane.is_none_or(|lane| [entry.order, entry.callback].contains(&lane))
            });
            if !self.outbox.remove(target, &old, &self.sender.is_over).await? {
                return Ok(());
            }
            for entry in &old {
                if let Some(notification) = &entry.notification {
                    let (kind, result) = (notification.kind, NotificationResult::Dropped);
                    self.metrics.count_notification(kind, result);
                }
                state.dropped(entry.order, entry.place());
                state.dropped(entry.callback, entry.place());
            }
            yield_now().await;
        }
    }
}

/// True for an entry that became due too long ago.
fn is_old(entry: &OutboxEntry) -> bool {
    let due = entry.notification.as_ref();
    due.is_none_or(|due| Outbox::age_ms(due) > UNDELIVERED_MS_MAX)
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use hyper::body::Bytes;
    use nearstate_node::executor::{Executor, ExecutorConfig};
    use nearstate_store::{CreateOptions, Region, lease_clock};

    use super::*;
    use crate::limits::OutboxLimits;
    use crate::settings::{NotificationKind, NotifierLog};

    /// The outcome of a future that waits for nothing.
    fn ready<T>(future: impl Future<Output = T>) -> T {
        let polled = std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(outcome) = polled else { panic!("it waits") };
        outcome
    }

    fn notification() -> Notification {
        Notification {
            kind: NotificationKind::DataChange,
            due_ms: 0,
            order: 7,
            uri: "http://127.0.0.1:1/".to_owned(),
            content_type: String::new(),
            location: String::new(),
            body: Bytes::new(),
        }
    }

    #[test]
    fn what_is_not_sent_without_a_lease_is_no_failure_of_the_target() {
        let folder = tempfile::tempdir().unwrap();
        let region = Region::create(&folder.path().join("region"), &CreateOptions::default());
        let session = Rc::new(region.unwrap().session().unwrap());
        let (metrics, limits) = (Arc::<NudsfMetrics>::default(), OutboxLimits::default());
        let outbox = Outbox::open(Rc::clone(&session), limits, Arc::clone(&metrics)).unwrap();
        let collector = ExpiryCollector::new(NotifierLog::default());
        let deliveries = Deliveries::new(outbox, collector, None, Arc::clone(&metrics));
        let (key, notification) = (vec![1; 16], Some(notification()));
        let entry = OutboxEntry { key, bytes: 1, order: 7, callback: 3, notification };
        let send = |deliveries: &Deliveries, state: &mut CallbackState| {
            let entries = vec![entry.clone()];
            let (sequence, stop) = (Sequence::new(entries), TaskEvent::default());
            let sent = ready(deliveries.sender.send_sequence(sequence, None, &stop));
            ready(deliveries.finish((1, BatchScope::Whole), vec![sent], state)).unwrap();
        };
        let mut state = CallbackState::default();
        session.set_owner_lease(Duration::from_nanos(1)).unwrap();
        send(&deliveries, &mut state);
        assert!(state.is_clear(), "{state:?}");
        assert_eq!(metrics.notifier_events()[0], ("retry", 0));
        // With a lease, that there is no connection is one.
        session.set_owner_lease(lease_clock() + Duration::from_secs(3600)).unwrap();
        send(&deliveries, &mut state);
        assert!(state.is_waiting(3) && state.pause(since_boot()).is_some(), "{state:?}");
        assert_eq!(metrics.notifier_events()[0], ("retry", 1));
    }

    #[test]
    fn while_a_full_region_stops_the_notifier_targets_get_tasks() {
        let folder = tempfile::tempdir().unwrap();
        let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
        let region = Region::create(&folder.path().join("region"), &options).unwrap();
        let session = Rc::new(region.session().unwrap());
        let (metrics, limits) = (Arc::<NudsfMetrics>::default(), OutboxLimits::default());
        let outbox = Outbox::open(Rc::clone(&session), limits, Arc::clone(&metrics)).unwrap();
        let post = |outbox: &Outbox, bytes: usize| {
            let body = Bytes::from(vec![1; bytes]);
            outbox.try_post(None, |_| Ok(vec![Notification { body, ..notification() }]))
        };
        let full = (0..1000).find_map(|_| post(&outbox, 100_000).err());
        assert!(matches!(full, Some(Error::Full { .. })), "{full:?}");
        let executor = Executor::new(&ExecutorConfig::default()).unwrap();
        let running = executor.run(async move {
            let collector = ExpiryCollector::new(NotifierLog::default());
            let deliveries = Rc::new(Deliveries::new(outbox, collector, None, metrics));
            let body = Bytes::from(vec![1; 4 << 20]);
            let is_due =
                |_: &Txn<'_>| Ok(vec![Notification { body: body.clone(), ..notification() }]);
            let posted = timeout(Duration::from_millis(5), deliveries.post(None, is_due)).await;
            assert!(posted.is_none(), "{posted:?}: the region is full");
            let running = deliveries.running.borrow().len();
            drop(DeliveriesGuard(Rc::clone(&deliveries)));
            deliveries.ended().await;
            running
        });
        assert_eq!(running, 1);
    }
}
