//! What becomes due by time: timers, and subscriptions that are about to expire. The ordered tag
//! [`DUE_TAG`] leads to them. The notification and the change that follows are one commit. A record
//! for which that commit fails is set aside, so that it does not stop the others.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;

use nearstate_model::{Error, Result};
use nearstate_node::executor::yield_now;
use nearstate_store::{Metadata, Namespace, Session, Txn, Values, View, now_ms};
use serde_json::{Value, json};

use crate::deliver::Deliveries;
use crate::document::{Announcement, Document, write_subscription};
use crate::outbox::{Notification, order_of};
use crate::repository::StorageNamespaces;
use crate::settings::{NotificationKind, NotifierEvent, NotifierLog, NudsfMetrics};
use crate::timer::{AfterExpiry, DUE_TAG, EXPIRED_TAG, Timer};
use crate::times::parse_date_time;

/// Records of which one commit takes care.
const BATCH: usize = 64;

/// Records that a process remembers as set aside. Only a record of more than a 128th of the heap is
/// remembered, because the log of the region refuses to replace it: a heap has fewer of them.
const ASIDE_MAX: usize = 1024;

/// A namespace in which something becomes due.
#[derive(Clone, Copy, Debug)]
enum DueSource {
    Timers(Namespace),
    Subscriptions(Namespace),
}

impl DueSource {
    fn namespace(self) -> Namespace {
        match self {
            Self::Timers(namespace) | Self::Subscriptions(namespace) => namespace,
        }
    }
}

/// A version of a record whose time has come.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DueRecord {
    namespace: u32,
    key: Vec<u8>,
    version: u64,
}

/// Takes care of what is due.
pub(crate) struct DueRecords {
    log: NotifierLog,
    metrics: Arc<NudsfMetrics>,
    /// Those that no commit can change.
    aside: RefCell<BTreeSet<DueRecord>>,
    /// The numbers of the namespaces that have failed since they last succeeded.
    failing: RefCell<BTreeSet<u32>>,
}

impl DueRecords {
    pub(crate) fn new(log: NotifierLog, metrics: Arc<NudsfMetrics>) -> Self {
        Self { log, metrics, aside: RefCell::default(), failing: RefCell::default() }
    }

    /// Takes care of what is due in a storage. True if something was. A failure is reported and
    /// tried again by the next call: other storages do not wait for it.
    pub(crate) async fn take(
        &self,
        deliveries: &Rc<Deliveries>,
        (storage, uri): (&StorageNamespaces, &str),
    ) -> bool {
        let mut is_busy = false;
        let timers = DueSource::Timers(storage.timers);
        for source in [timers, DueSource::Subscriptions(storage.subscriptions)] {
            let number = source.namespace().number();
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
        let due = self.read(session, source.namespace(), now_ms())?;
        let (mut rest, mut most) = (due.as_slice(), BATCH);
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(rest.len().min(most));
            let take = |txn: &Txn<'_>| take_due(txn, source, part);
            match deliveries.outbox.post(None, take).await {
                Ok(targets) => {
                    deliveries.wake(&targets);
                    rest = behind;
                }
                Err(error) if !is_of_records(&error) => return Err(error),
                Err(_) if part.len() > 1 => most = part.len() / 2,
                Err(error) => {
                    for record in part {
                        self.set_aside(session, (source.namespace(), record), (uri, &error));
                    }
                    rest = behind;
                }
            }
            if !rest.is_empty() {
                yield_now().await;
            }
        }
        Ok(!due.is_empty())
    }

    /// The records whose time has come, in the order of their times.
    fn read(&self, session: &Session, namespace: Namespace, now_ms: u64) -> Result<Vec<DueRecord>> {
        let now = now_ms.to_be_bytes();
        let values = Values::Range(Bound::Unbounded, Bound::Included(&now));
        let aside = self.aside.borrow();
        let mut due = Vec::new();
        let limit = (BATCH + aside.len()) as u64;
        session.find_some(namespace, (DUE_TAG, values), limit, |view| {
            let (number, key) = (namespace.number(), view.key().to_vec());
            let record = DueRecord { namespace: number, key, version: view.version() };
            if !aside.contains(&record) {
                due.push(record);
            }
            due.len() < BATCH
        })?;
        Ok(due)
    }

    /// Excludes a record for which no commit succeeds. It loses its tag; if that fails as well, the
    /// process remembers the version of the record.
    fn set_aside(
        &self,
        session: &Session,
        (namespace, record): (Namespace, &DueRecord),
        (uri, error): (&str, &Error),
    ) {
        let rewritten = session.transact(|txn| {
            let view = txn.get(namespace, &record.key)?;
            let Some(view) = view.filter(|view| view.version() == record.version) else {
                return Ok(());
            };
            let tags: Vec<_> = view.tags().filter(|(name, _)| *name != DUE_TAG).collect();
            let metadata = Metadata { tags: &tags, expires_ms: view.expires_ms() };
            txn.put_with_metadata(namespace, &record.key, view.bytes(), metadata)
        });
        if rewritten.is_err() {
            let mut aside = self.aside.borrow_mut();
            if aside.len() >= ASIDE_MAX {
                aside.clear();
            }
            aside.insert(record.clone());
        }
        self.metrics.count_set_aside();
        let key = String::from_utf8_lossy(&record.key).into_owned();
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

fn is_due(view: &View<'_>, now_ms: u64) -> bool {
    let due = view.tags().find(|(name, _)| *name == DUE_TAG).map(|(_, due)| due);
    due.and_then(|due| due.first_chunk()).is_some_and(|due| u64::from_be_bytes(*due) <= now_ms)
}

/// Takes care of these records, as far as they are still due. Returns what is to be notified.
fn take_due(txn: &Txn<'_>, source: DueSource, due: &[DueRecord]) -> Result<Vec<Notification>> {
    let now_ms = now_ms();
    let mut notifications = Vec::new();
    for record in due {
        let view = txn.get(source.namespace(), &record.key)?;
        let Some(view) = view.as_ref().filter(|view| is_due(view, now_ms)) else { continue };
        notifications.extend(match source {
            DueSource::Timers(namespace) => expire_timer(txn, namespace, view, now_ms)?,
            DueSource::Subscriptions(namespace) => {
                expire_subscription(txn, namespace, view, now_ms)?
            }
        });
    }
    Ok(notifications)
}

fn notification(kind: NotificationKind, uri: String, body: &Value, order: u64) -> Notification {
    Notification {
        kind,
        due_ms: now_ms(),
        order,
        uri,
        content_type: "application/json".to_owned(),
        location: String::new(),
        body: body.to_string().into(),
    }
}

fn expire_timer(
    txn: &Txn<'_>,
    namespace: Namespace,
    view: &View<'_>,
    now_ms: u64,
) -> Result<Option<Notification>> {
    let key = view.key();
    let document = Document::of(view).ok();
    let id = String::from_utf8_lossy(key);
    let timer = document.and_then(|document| Timer::parse(document.value, &id).ok());
    let is_over = view.tags().any(|(name, _)| name == EXPIRED_TAG);
    // What another client has written as a timer, and is none, is removed as well.
    let Some(timer) = timer.filter(|_| !is_over) else {
        txn.delete(namespace, key)?;
        return Ok(None);
    };
    match timer.after_expiry() {
        AfterExpiry::Again(next) => next.write(txn, (namespace, key), None, now_ms)?,
        AfterExpiry::Kept(until) => timer.write(txn, (namespace, key), Some(until), now_ms)?,
        AfterExpiry::Deleted => drop(txn.delete(namespace, key)?),
    }
    let (kind, order) = (NotificationKind::TimerExpiry, order_of(namespace, key));
    let posted = |uri: &String| notification(kind, uri.clone(), timer.value(), order);
    Ok(timer.callback.as_ref().map(posted))
}

/// The subscription is announced once, and deleted when it has expired.
fn expire_subscription(
    txn: &Txn<'_>,
    namespace: Namespace,
    view: &View<'_>,
    now_ms: u64,
) -> Result<Option<Notification>> {
    let key = view.key();
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
        let announced = Announcement::Done(document.version);
        write_subscription(txn, (namespace, key), &value, (times, announced, base))?;
    }
    let Some(uri) = value.get("expiryCallbackReference").and_then(Value::as_str) else {
        return Ok(None);
    };
    let (kind, order) = (NotificationKind::SubscriptionExpiry, order_of(namespace, key));
    let body = json!({"expiredSubscriptions": [value]});
    Ok(Some(notification(kind, uri.to_owned(), &body, order)))
}
