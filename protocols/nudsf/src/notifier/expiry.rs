//! What becomes due by time: timers, and subscriptions that are about to expire. The ordered tag
//! [`DUE_TAG`] leads to them. The notification and the change that follows are one commit. A record
//! for which that commit fails is set aside, so that it does not stop the others. A timer that has
//! missed many repetitions takes some in each commit, and others are served in between. One for
//! whose notification the outbox has no room is looked at again later.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;

use hyper::body::Bytes;
use nearstate_model::{Error, Result};
use nearstate_node::executor::yield_now;
use nearstate_store::{Metadata, Namespace, Session, Txn, Values, View, now_ms};
use serde_json::{Value, json};

use crate::document::{Document, ExpiryAnnouncement, write_subscription};
use crate::limits::REPETITIONS_MISSED_MAX;
use crate::notifier::delivery::Deliveries;
use crate::notifier::notification::{Notification, OrderedKind, order_of, target_of};
use crate::notifier::outbox::Outbox;
use crate::notifier::room::{CommitLoad, DeferralQueue};
use crate::repository::StorageNamespaces;
use crate::settings::{
    NotificationKind, NotificationResult, NotifierEvent, NotifierLog, NudsfMetrics,
};
use crate::timer::{AfterExpiry, DUE_TAG, EndingTimer, Timer, is_expired_tag};
use crate::times::parse_date_time;

/// Records of which one commit takes care.
const BATCH: usize = 64;

/// Notifications and their bytes of one commit (the last one may exceed it by its own).
const NOTIFICATIONS_MAX: usize = 256;
const BYTES_MAX: usize = 4 << 20;

/// Timers that are still due after they were served, of which a process knows that others are to be
/// served before they are again. With more, all begin anew.
const SERVED_MAX: usize = 4096;

/// Records that a process remembers as set aside. Only a record of more than a 128th of the heap is
/// remembered, because the log of the region refuses to replace it: a heap has fewer of them.
const ASIDE_MAX: usize = 1024;

/// A namespace in which something becomes due.
#[derive(Clone, Copy, Debug)]
struct DueSource {
    namespace: Namespace,
    kind: OrderedKind,
    /// [`StorageNamespaces::name_hash`].
    name_hash: u64,
}

impl DueSource {
    fn order_of(self, key: &[u8]) -> u64 {
        order_of((self.name_hash, self.kind), key)
    }
}

/// A version of a record that no commit can change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct AsideRecord {
    namespace: u32,
    key: Vec<u8>,
    version: u64,
}

/// Takes care of what is due.
pub(crate) struct DueRecords {
    log: NotifierLog,
    metrics: Arc<NudsfMetrics>,
    /// Those that no commit can change.
    aside: RefCell<BTreeSet<AsideRecord>>,
    /// The namespaces and keys of those that were served and are still due.
    served: RefCell<BTreeSet<(u32, Vec<u8>)>>,
    /// The numbers of the namespaces that have failed since they last succeeded.
    failing: RefCell<BTreeSet<u32>>,
    deferred: RefCell<DeferralQueue>,
}

impl DueRecords {
    pub(crate) fn new(log: NotifierLog, metrics: Arc<NudsfMetrics>) -> Self {
        let (aside, served, failing) = <(RefCell<_>, RefCell<_>, RefCell<_>)>::default();
        Self { log, metrics, aside, served, failing, deferred: RefCell::default() }
    }

    /// Takes care of what is due in a storage. True if something was. A failure is reported and
    /// tried again by the next call: other storages do not wait for it.
    pub(crate) async fn take(
        &self,
        deliveries: &Rc<Deliveries>,
        (storage, uri): (&StorageNamespaces, &str),
    ) -> bool {
        let mut is_busy = false;
        let StorageNamespaces { timers, subscriptions, name_hash, .. } = *storage;
        for (namespace, kind) in
            [(timers, OrderedKind::Timer), (subscriptions, OrderedKind::Subscription)]
        {
            let source = DueSource { namespace, kind, name_hash };
            let number = namespace.number();
            match self.take_source(deliveries, source, uri).await {
                Ok(was_due) => {
                    is_busy |= was_due;
                    self.failing.borrow_mut().remove(&number);
                }
                Err(error) => {
                    if self.failing.borrow_mut().insert(number) {
                        let reason = format!("{uri}: {error}");
                        self.log.emit(&NotifierEvent::Failed { reason });
                    }
                }
            }
        }
        is_busy
    }

    async fn take_source(
        &self,
        deliveries: &Rc<Deliveries>,
        source: DueSource,
        uri: &str,
    ) -> Result<bool> {
        let session = deliveries.outbox.session();
        let due = self.read(session, source.namespace, session.now_ms()?)?;
        if due.is_empty() {
            return Ok(self.begin_round(source.namespace));
        }
        let (mut rest, mut most) = (due.as_slice(), NOTIFICATIONS_MAX);
        let mut has_changed = false;
        while !rest.is_empty() {
            // The version that fails: one that a client writes meanwhile is not set aside.
            let alone = if most == 1 { rest.first() } else { None };
            let alone = alone.map(|key| session.get(source.namespace, key)).transpose()?;
            let version = alone.flatten().map(|view| view.version());
            let part = rest.split_at(rest.len().min(most)).0;
            let repetitions = most / part.len();
            let mut taken = TakenRecords::default();
            let take = |txn: &Txn<'_>| {
                let mut commit = DueCommit {
                    now_ms: session.now_ms()?,
                    repetitions,
                    outbox: &deliveries.outbox,
                    load: CommitLoad::default(),
                    deferred: &self.deferred,
                    taken: TakenRecords::default(),
                };
                // Together: each read of its own would validate all before it.
                txn.validated_once(|| take_due(txn, source, part, &mut commit))?;
                taken = commit.taken;
                Ok(std::mem::take(&mut taken.notifications))
            };
            let count = match deliveries.post(None, take).await {
                Ok(()) => {
                    self.count_served(source.namespace, &taken);
                    has_changed |= taken.changed > 0;
                    taken.records
                }
                Err(error) if !is_of_records(&error) => return Err(error),
                Err(_) if most > 1 => {
                    most /= 2;
                    0
                }
                Err(error) => {
                    has_changed = true;
                    for key in part {
                        let failed = (source.namespace, key.as_slice(), version);
                        self.set_aside(session, failed, (uri, &error));
                    }
                    part.len()
                }
            };
            rest = rest.get(count..).unwrap_or_default();
            if !rest.is_empty() {
                yield_now().await;
            }
        }
        // Entries of records that another client has changed meanwhile are nothing to do.
        Ok(has_changed || self.begin_round(source.namespace))
    }

    /// Nothing else is due: those that were served are served again. True if there are some.
    fn begin_round(&self, namespace: Namespace) -> bool {
        let mut served = self.served.borrow_mut();
        let before = served.len();
        served.retain(|(number, _)| *number != namespace.number());
        served.len() < before
    }

    fn count_served(&self, namespace: Namespace, taken: &TakenRecords) {
        let (kind, result) = (NotificationKind::TimerExpiry, NotificationResult::Dropped);
        self.metrics.count_notifications(kind, result, taken.dropped);
        let mut served = self.served.borrow_mut();
        if served.len() + taken.still_due.len() > SERVED_MAX {
            served.clear();
        }
        let keys = taken.still_due.iter().map(|key| (namespace.number(), key.clone()));
        served.extend(keys);
    }

    /// The keys of the records whose time has come, in the order of their times. Their commit reads
    /// the records.
    fn read(&self, session: &Session, namespace: Namespace, now_ms: u64) -> Result<Vec<Vec<u8>>> {
        let now = now_ms.to_be_bytes();
        let values = Values::Range(Bound::Unbounded, Bound::Included(&now));
        let (aside, served) = (self.aside.borrow(), self.served.borrow());
        let (mut due, mut failed) = (Vec::new(), Ok(()));
        let is_excluded = |key: &[u8]| -> Result<bool> {
            let (namespace_number, key) = (namespace.number(), key.to_vec());
            let id = (namespace_number, key);
            if served.contains(&id) {
                return Ok(true);
            }
            if aside.is_empty() {
                return Ok(false);
            }
            let Some(view) = session.get(namespace, &id.1)? else { return Ok(false) };
            let (namespace, key) = id;
            Ok(aside.contains(&AsideRecord { namespace, key, version: view.version() }))
        };
        let has_exclusions = !aside.is_empty() || !served.is_empty();
        session.find_keys(namespace, (DUE_TAG, values), |key| {
            match if has_exclusions { is_excluded(key) } else { Ok(false) } {
                Ok(false) => due.push(key.to_vec()),
                Ok(true) => {}
                Err(error) => {
                    failed = Err(error);
                    return false;
                }
            }
            due.len() < BATCH
        })?;
        failed.map(|()| due)
    }

    /// Excludes a record for which no commit succeeds. It loses its tag; if that fails as well, the
    /// process remembers the version of the record.
    fn set_aside(
        &self,
        session: &Session,
        (namespace, key, version): (Namespace, &[u8], Option<u64>),
        (uri, error): (&str, &Error),
    ) {
        let rewritten = session.transact(|txn| {
            let view = txn.get(namespace, key)?;
            let Some(view) = view.filter(|view| Some(view.version()) == version) else {
                return Ok(());
            };
            let tags: Vec<_> = view.tags().filter(|(name, _)| *name != DUE_TAG).collect();
            let metadata = Metadata { tags: &tags, expires_ms: view.expires_ms() };
            txn.put_with_metadata(namespace, key, view.bytes(), metadata)
        });
        if let (Err(_), Some(version)) = (rewritten, version) {
            let mut aside = self.aside.borrow_mut();
            if aside.len() >= ASIDE_MAX {
                aside.clear();
            }
            let (namespace, key) = (namespace.number(), key.to_vec());
            aside.insert(AsideRecord { namespace, key, version });
        }
        self.metrics.count_set_aside();
        let key = String::from_utf8_lossy(key).into_owned();
        let (storage, reason) = (uri.to_owned(), error.to_string());
        self.log.emit(&NotifierEvent::SetAside { storage, key, reason });
    }
}

/// True if a commit with fewer or other records may succeed.
fn is_of_records(error: &Error) -> bool {
    matches!(
        error,
        Error::TransactionTooLarge { .. }
            | Error::BadArgument { .. }
            | Error::KeyTooLarge { .. }
            | Error::ValueTooLarge { .. }
            | Error::WrongKind { .. }
            | Error::TagTaken { .. }
    )
}

/// True if the time of a record has come. A tag that is no time, which another client has written,
/// counts as past: the index leads to it as long as it is there, and others behind it would wait.
fn is_due(view: &View<'_>, now_ms: u64) -> bool {
    let mut due = view.tags().filter(|(name, _)| *name == DUE_TAG);
    due.any(|(_, due)| due.try_into().map_or(true, |due| u64::from_be_bytes(due) <= now_ms))
}

/// What a commit takes.
#[derive(Default)]
struct TakenRecords {
    notifications: Vec<Notification>,
    /// Bytes of the notifications.
    bytes: usize,
    /// Repetitions that are not notified.
    dropped: u64,
    /// The records that the commit took care of, from the first one.
    records: usize,
    /// Those of them that were due.
    changed: usize,
    /// The keys of those that are still due.
    still_due: Vec<Vec<u8>>,
}

impl TakenRecords {
    fn add(&mut self, notification: Notification) {
        self.bytes += notification.body.len();
        self.notifications.push(notification);
    }
}

/// A commit for records that are due.
struct DueCommit<'a> {
    now_ms: u64,
    /// Each timer takes at most so many.
    repetitions: usize,
    outbox: &'a Outbox,
    /// What the outbox gets.
    load: CommitLoad,
    deferred: &'a RefCell<DeferralQueue>,
    taken: TakenRecords,
}

/// Takes care of some of these records, as far as they are still due: at least of the first one.
fn take_due(
    txn: &Txn<'_>,
    source: DueSource,
    due: &[Vec<u8>],
    commit: &mut DueCommit<'_>,
) -> Result<()> {
    for key in due {
        if commit.taken.bytes >= BYTES_MAX {
            break;
        }
        commit.taken.records += 1;
        let view = txn.get(source.namespace, key)?;
        let Some(view) = view.as_ref().filter(|view| is_due(view, commit.now_ms)) else { continue };
        commit.taken.changed += 1;
        if source.kind == OrderedKind::Timer {
            expire_timer(txn, source, view, commit)?;
        } else if let Some(due) = expire_subscription(txn, source, view, commit.now_ms)? {
            commit.taken.add(due);
        }
    }
    Ok(())
}

fn notification(kind: NotificationKind, uri: String, body: Bytes, order: u64) -> Notification {
    Notification {
        kind,
        due_ms: now_ms(),
        order,
        uri,
        content_type: "application/json".to_owned(),
        location: String::new(),
        body,
    }
}

/// The notification of an ending timer, which is deleted.
fn end_timer(
    txn: &Txn<'_>,
    source: DueSource,
    (view, timer): (&View<'_>, &EndingTimer<'_>),
    commit: &mut DueCommit<'_>,
) -> Result<()> {
    let (namespace, key) = (source.namespace, view.key());
    if let Some(uri) = timer.callback {
        let (kind, text) = (NotificationKind::TimerExpiry, Bytes::copy_from_slice(timer.text));
        let due = notification(kind, uri.to_owned(), text, source.order_of(key));
        let target = target_of(uri);
        if !commit.outbox.take_room(&mut commit.load, target, due.entry_bytes_max()) {
            let later = commit.deferred.borrow_mut().next_ms(target, commit.now_ms);
            return Timer::defer(txn, namespace, view, later);
        }
        commit.taken.add(due);
    }
    txn.delete(namespace, key).map(drop)
}

fn expire_timer(
    txn: &Txn<'_>,
    source: DueSource,
    view: &View<'_>,
    commit: &mut DueCommit<'_>,
) -> Result<()> {
    let (namespace, key, now_ms) = (source.namespace, view.key(), commit.now_ms);
    let is_over = view.tags().any(is_expired_tag);
    let text = view.bytes().get(size_of::<u64>()..);
    if let Some(ending) = text.and_then(|text| EndingTimer::read(text, key)).filter(|_| !is_over) {
        return end_timer(txn, source, (view, &ending), commit);
    }
    let id = String::from_utf8_lossy(key);
    let text = text.map(Bytes::copy_from_slice);
    let timer = text.and_then(|text| Timer::of_stored(&text, &id));
    // What another client has written as a timer, and is none, is removed as well.
    let Some(mut timer) = timer.filter(|_| !is_over) else {
        txn.delete(namespace, key)?;
        return Ok(());
    };
    let (kind, order) = (NotificationKind::TimerExpiry, source.order_of(key));
    let target = timer.callback.as_deref().map(target_of);
    let notified_max = if target.is_some() { REPETITIONS_MISSED_MAX } else { 1 };
    let skipped = timer.missed(now_ms).saturating_sub(notified_max);
    if skipped > 0
        && let AfterExpiry::Again(next) = timer.after_expiries(skipped)
    {
        timer = *next;
    }
    let mut left = commit.repetitions;
    let next = loop {
        if let Some((uri, target)) = timer.callback.as_ref().zip(target) {
            let due = notification(kind, uri.clone(), timer.text().clone(), order);
            if !commit.outbox.take_room(&mut commit.load, target, due.entry_bytes_max()) {
                if left == commit.repetitions {
                    let later = commit.deferred.borrow_mut().next_ms(target, now_ms);
                    return Timer::defer(txn, namespace, view, later);
                }
                break AfterExpiry::Again(Box::new(timer.clone()));
            }
            commit.taken.add(due);
        }
        left -= 1;
        match timer.after_expiry() {
            AfterExpiry::Again(next) if next.missed(now_ms) > 0 => {
                if left == 0 || commit.taken.bytes >= BYTES_MAX {
                    commit.taken.still_due.push(key.to_vec());
                    break AfterExpiry::Again(next);
                }
                timer = *next;
            }
            next @ (AfterExpiry::Again(_) | AfterExpiry::Kept(_) | AfterExpiry::Deleted) => {
                break next;
            }
        }
    };
    commit.taken.dropped += target.map_or(0, |_| skipped);
    match next {
        AfterExpiry::Again(next) => next.write(txn, (namespace, key), None, now_ms),
        AfterExpiry::Kept(until) => timer.write(txn, (namespace, key), Some(until), now_ms),
        AfterExpiry::Deleted => txn.delete(namespace, key).map(drop),
    }
}

/// The subscription is announced once, and deleted when it has expired.
fn expire_subscription(
    txn: &Txn<'_>,
    source: DueSource,
    view: &View<'_>,
    now_ms: u64,
) -> Result<Option<Notification>> {
    let (namespace, key) = (source.namespace, view.key());
    let Ok(document) = Document::of(view) else {
        txn.delete(namespace, key)?;
        return Ok(None);
    };
    let value = document.value;
    let expires_ms = value.get("expiry").and_then(Value::as_str).and_then(parse_date_time);
    let expires_ms = expires_ms.unwrap_or(0);
    if expires_ms != 0 && expires_ms <= now_ms {
        txn.delete(namespace, key)?;
    } else {
        let base = view.tags().find(|(name, _)| *name == crate::document::URI_TAG);
        let base = base.and_then(|(_, uri)| str::from_utf8(uri).ok()).unwrap_or_default();
        let times = (document.modified_ms, expires_ms);
        let announced = ExpiryAnnouncement::Done(document.version);
        write_subscription(txn, (namespace, key), &value, (times, announced, base))?;
    }
    let Some(uri) = value.get("expiryCallbackReference").and_then(Value::as_str) else {
        return Ok(None);
    };
    let (kind, order) = (NotificationKind::SubscriptionExpiry, source.order_of(key));
    let body = json!({"expiredSubscriptions": [value]});
    Ok(Some(notification(kind, uri.to_owned(), body.to_string().into(), order)))
}
