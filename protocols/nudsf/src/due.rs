//! What becomes due by time: timers, and subscriptions that are about to expire. The ordered tag
//! [`DUE_TAG`] leads to them. The notification and the change that follows are one commit.

use std::ops::Bound;

use hyper::body::Bytes;
use nearstate_model::Result;
use nearstate_store::{Namespace, Session, Txn, Values, View, now_ms};
use serde_json::{Value, json};

use crate::document::{Document, write_subscription};
use crate::outbox::{Notification, order_of};
use crate::repository::StorageNamespaces;
use crate::settings::NotificationKind;
use crate::timer::{AfterExpiry, DUE_TAG, EXPIRED_TAG, Timer};
use crate::times::parse_date_time;

/// Records of which one commit takes care.
const BATCH: u64 = 64;

/// The keys of the records whose time has come, in the order of their times.
///
/// # Errors
/// As [`Session::find_some`].
pub(crate) fn due_keys(
    session: &Session,
    namespace: Namespace,
    now_ms: u64,
) -> Result<Vec<Vec<u8>>> {
    let now = now_ms.to_be_bytes();
    let values = Values::Range(Bound::Unbounded, Bound::Included(&now));
    let mut keys = Vec::new();
    session.find_some(namespace, (DUE_TAG, values), BATCH, |view| {
        keys.push(view.key().to_vec());
        true
    })?;
    Ok(keys)
}

fn is_due(view: &View<'_>, now_ms: u64) -> bool {
    let due = view.tags().find(|(name, _)| *name == DUE_TAG).map(|(_, due)| due);
    due.and_then(|due| due.first_chunk()).is_some_and(|due| u64::from_be_bytes(*due) <= now_ms)
}

/// Takes care of the due timers and subscriptions of a storage with these keys. Returns what is to
/// be notified.
///
/// # Errors
/// As the operations of [`Txn`].
pub(crate) fn take_due(
    txn: &Txn<'_>,
    storage: &StorageNamespaces,
    (timers, subscriptions): (&[Vec<u8>], &[Vec<u8>]),
) -> Result<Vec<Notification>> {
    let now_ms = now_ms();
    let mut notifications = Vec::new();
    for key in timers {
        let view = txn.get(storage.timers, key)?;
        if let Some(view) = view.as_ref().filter(|view| is_due(view, now_ms)) {
            notifications.extend(expire_timer(txn, storage.timers, view, now_ms)?);
        }
    }
    for key in subscriptions {
        let view = txn.get(storage.subscriptions, key)?;
        if let Some(view) = view.as_ref().filter(|view| is_due(view, now_ms)) {
            notifications.extend(expire_subscription(txn, storage.subscriptions, view, now_ms)?);
        }
    }
    Ok(notifications)
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

fn expire_timer(
    txn: &Txn<'_>,
    namespace: Namespace,
    view: &View<'_>,
    now_ms: u64,
) -> Result<Option<Notification>> {
    let key = view.key();
    let id = String::from_utf8_lossy(key);
    let text = view.bytes().get(size_of::<u64>()..).map(Bytes::copy_from_slice);
    let timer = text.and_then(|text| Timer::read(&text, &id).ok());
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
    let posted = |uri: &String| notification(kind, uri.clone(), timer.text().clone(), order);
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
        write_subscription(txn, (namespace, key), &value, (times, None, base))?;
    }
    let Some(uri) = value.get("expiryCallbackReference").and_then(Value::as_str) else {
        return Ok(None);
    };
    let (kind, order) = (NotificationKind::SubscriptionExpiry, order_of(namespace, key));
    let body = json!({"expiredSubscriptions": [value]});
    Ok(Some(notification(kind, uri.to_owned(), body.to_string().into(), order)))
}
