//! Changes of records as notifications. The log of the region has each committed change of a
//! storage in one order, whichever interface made it: with the record before and after, also one
//! that has expired. Subscriptions are in the same log, so that each takes effect at its place.

use std::collections::BTreeMap;

use nearstate_model::Result;
use nearstate_store::{
    CommitStream, Namespace, Session, StreamItem, StreamedChange, StreamedRecord, StreamedVersions,
};
use serde_json::{Value, json};

use crate::limits::NOTIFICATION_BYTES_MAX;
use crate::outbox::{Notification, order_of};
use crate::record::{RecordDraft, draft_of};
use crate::repository::StorageNamespaces;
use crate::settings::NotificationKind;
use crate::target::encode_segment;
use crate::times::parse_date_time;

/// What one read of the log returns at most: transactions, notifications and their bytes (the last
/// one may exceed it by its own). One commit posts them: a transaction has at most 4,096 records.
const TRANSACTIONS_MAX: usize = 64;
const NOTIFICATIONS_MAX: usize = 256;
const BYTES_MAX: usize = 4 << 20;

/// A resource that a subscription monitors.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Monitored {
    /// All records of the storage.
    Records,
    /// A record (encoded id).
    Record(String),
    /// The meta of a record.
    Meta(String),
    /// All blocks of a record.
    Blocks(String),
    /// A block of a record (encoded ids).
    Block(String, String),
}

impl Monitored {
    fn parse(uri: &str) -> Option<Self> {
        let (_, below) = uri.split_once("/records")?;
        let segments: Vec<&str> = below.split('/').skip(1).collect();
        Some(match segments.as_slice() {
            [] | [""] => Self::Records,
            [id] => Self::Record((*id).to_owned()),
            [id, "meta"] => Self::Meta((*id).to_owned()),
            [id, "blocks"] => Self::Blocks((*id).to_owned()),
            [id, "blocks", block] => Self::Block((*id).to_owned(), (*block).to_owned()),
            _ => return None,
        })
    }

    /// True if a change of this record changes the resource.
    fn is_changed(&self, change: &NotifiableChange) -> bool {
        let (before, after) = (change.before.as_ref(), change.after.as_ref());
        match self {
            Self::Records => true,
            Self::Record(id) => *id == change.id,
            Self::Meta(id) => {
                *id == change.id && before.map(|one| &one.meta) != after.map(|one| &one.meta)
            }
            Self::Blocks(id) => {
                *id == change.id && before.map(|one| &one.blocks) != after.map(|one| &one.blocks)
            }
            Self::Block(id, block) => {
                let find = |draft: &RecordDraft| {
                    draft.blocks.iter().find(|one| encode_segment(&one.id) == *block).cloned()
                };
                *id == change.id && before.and_then(find) != after.and_then(find)
            }
        }
    }
}

/// A subscription.
#[derive(Clone, Debug)]
struct NotifiedSubscription {
    callback: String,
    /// The URI of the storage.
    base: String,
    /// Empty: all records.
    monitored: Vec<Monitored>,
    /// Empty: all operations.
    operations: Vec<String>,
    /// 0: never.
    expires_ms: u64,
}

impl NotifiedSubscription {
    fn parse(value: &Value, base: &str) -> Option<Self> {
        let list = |name: &str| -> Vec<String> {
            let filter = value.get("subFilter").and_then(|filter| filter.get(name));
            let items = filter.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let expiry = value.get("expiry").and_then(Value::as_str).and_then(parse_date_time);
        Some(Self {
            callback: value.get("callbackReference")?.as_str()?.to_owned(),
            base: base.to_owned(),
            monitored: list("monitoredResourceUris")
                .iter()
                .filter_map(|uri| Monitored::parse(uri))
                .collect(),
            operations: list("operations"),
            expires_ms: expiry.unwrap_or(0),
        })
    }
}

/// A change of a record.
struct NotifiableChange {
    /// The id, encoded as in URIs.
    id: String,
    before: Option<RecordDraft>,
    after: Option<RecordDraft>,
    time_ms: u64,
}

/// A storage, and the subscriptions that its changes are matched with.
struct WatchedStorage {
    namespaces: StorageNamespaces,
    /// The URI, relative without an `apiRoot`.
    uri: String,
    subscribers: BTreeMap<Vec<u8>, NotifiedSubscription>,
}

/// A transaction of which a read has returned some notifications, because it has more than one read
/// returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartialTransaction {
    /// Its position in the log.
    pub(crate) number: u64,
    /// Its notifications that were returned.
    returned: usize,
}

/// The notifications of one read. Neither a transaction with many records nor many subscriptions
/// make it large: each notification is built only when it is returned.
#[derive(Debug, Default)]
struct NotificationPage {
    /// Those of the next transaction that earlier reads have returned.
    skipped: usize,
    found: Vec<Notification>,
    bytes: usize,
    /// There are more than this page has.
    has_more: bool,
}

impl NotificationPage {
    fn is_full(&self) -> bool {
        self.found.len() >= NOTIFICATIONS_MAX || self.bytes >= BYTES_MAX
    }

    fn add(&mut self, build: impl FnOnce() -> Notification) {
        if self.skipped > 0 {
            self.skipped -= 1;
        } else if self.is_full() {
            self.has_more = true;
        } else {
            let notification = build();
            self.bytes += notification.body.len() + 512;
            self.found.push(notification);
        }
    }
}

/// What was read from the log.
#[derive(Debug, Default)]
pub(crate) struct ChangeBatch {
    pub(crate) notifications: Vec<Notification>,
    /// The position up to which the log was read.
    pub(crate) position: u64,
    /// The transaction behind it of which the notifications are a part.
    pub(crate) partial: Option<PartialTransaction>,
    /// Transactions that were read.
    pub(crate) transactions: usize,
    /// Transactions that the log has lost, at the end of the batch: subscriptions may have been
    /// among them, so that [`StorageSubscriptions::load`] comes before the next read.
    pub(crate) lost: u64,
}

/// The storages of a node, and the subscriptions of each.
pub(crate) struct StorageSubscriptions(Vec<WatchedStorage>);

impl StorageSubscriptions {
    /// Reads all subscriptions. Those that the log changes later are read from the log.
    ///
    /// # Errors
    /// As [`Session::scan`].
    pub(crate) fn load(
        session: &Session,
        storages: Vec<(StorageNamespaces, String)>,
    ) -> Result<Self> {
        let mut all = Vec::new();
        for (namespaces, uri) in storages {
            let mut subscribers = BTreeMap::new();
            let mut scan = session.scan(namespaces.subscriptions)?;
            while scan.step()? {
                if let Some(view) = scan.view()? {
                    let tags = view.tags();
                    let subscriber = subscriber_of(view.bytes(), tags, &uri);
                    subscribers.extend(subscriber.map(|found| (view.key().to_vec(), found)));
                }
            }
            drop(scan);
            all.push(WatchedStorage { namespaces, uri, subscribers });
        }
        Ok(Self(all))
    }

    /// Reads some transactions, in their order. `partial` is that of the read before, behind which
    /// the stream begins again.
    ///
    /// # Errors
    /// As [`CommitStream::next`].
    pub(crate) fn read(
        &mut self,
        stream: &mut CommitStream<'_>,
        position: u64,
        partial: Option<PartialTransaction>,
    ) -> Result<ChangeBatch> {
        let mut batch = ChangeBatch { position, ..ChangeBatch::default() };
        let mut page = NotificationPage::default();
        while batch.transactions < TRANSACTIONS_MAX && !page.is_full() {
            let Some(item) = stream.next()? else { break };
            batch.transactions += 1;
            let entry = match item {
                StreamItem::Lost { transactions } => {
                    batch.lost = transactions;
                    // What follows is matched with the subscriptions that were lost with these.
                    batch.position = stream.passed_position();
                    break;
                }
                StreamItem::Transaction(entry) => entry,
            };
            let time_ms = entry.time_ms()?;
            let versions = entry.versions()?;
            let returned = partial.filter(|partial| partial.number == entry.number);
            page.skipped = returned.map_or(0, |partial| partial.returned);
            let before = page.found.len();
            for version in &versions {
                self.0.iter().for_each(|storage| storage.apply_record(version, time_ms, &mut page));
            }
            if page.has_more {
                let returned = returned.map_or(0, |partial| partial.returned);
                let returned = returned + page.found.len() - before;
                batch.partial = Some(PartialTransaction { number: entry.number, returned });
                break;
            }
            // A subscription takes effect behind the transaction that writes it.
            for version in &versions {
                self.0.iter_mut().for_each(|storage| storage.apply_subscription(version));
            }
            batch.position = entry.number;
        }
        stream.release();
        batch.notifications = page.found;
        Ok(batch)
    }
}

/// The subscription of a document with these tags.
fn subscriber_of<'t>(
    bytes: &[u8],
    mut tags: impl Iterator<Item = (&'t str, &'t [u8])>,
    uri: &str,
) -> Option<NotifiedSubscription> {
    let (_, text) = bytes.split_first_chunk::<8>()?;
    let value: Value = serde_json::from_slice(text).ok()?;
    let base = tags.find(|(name, _)| *name == crate::document::URI_TAG);
    let base = base.and_then(|(_, uri)| str::from_utf8(uri).ok()).unwrap_or(uri);
    NotifiedSubscription::parse(&value, base)
}

fn subscriber_after(after: &StreamedRecord<'_>, uri: &str) -> Option<NotifiedSubscription> {
    let StreamedChange::Put { value, meta, is_set: false } = after.change else { return None };
    let meta = nearstate_store::meta::Meta::split(meta).ok().map(|(_, meta)| meta);
    let tags =
        meta.iter().flat_map(nearstate_store::meta::Meta::tags).filter_map(std::result::Result::ok);
    subscriber_of(value, tags, uri)
}

impl WatchedStorage {
    /// Follows a change of a subscription.
    fn apply_subscription(&mut self, versions: &StreamedVersions<'_>) {
        if versions.namespace != self.namespaces.subscriptions.number() {
            return;
        }
        let after = versions.after.as_ref();
        match after.and_then(|after| subscriber_after(after, &self.uri)) {
            Some(found) => drop(self.subscribers.insert(versions.key.to_vec(), found)),
            None => drop(self.subscribers.remove(versions.key)),
        }
    }

    /// Adds what a changed record makes due.
    fn apply_record(
        &self,
        versions: &StreamedVersions<'_>,
        time_ms: u64,
        page: &mut NotificationPage,
    ) {
        if versions.namespace != self.namespaces.records.number() {
            return;
        }
        let Ok(id) = str::from_utf8(versions.key).map(encode_segment) else { return };
        let order = order_of(self.namespaces.records, versions.key);
        let mut before = versions.before.as_ref().and_then(draft_of);
        let after = versions.after.as_ref().and_then(draft_of);
        let has_expired =
            |draft: &RecordDraft| draft.meta.expires_ms != 0 && draft.meta.expires_ms <= time_ms;
        // A record that has expired is replaced, deleted or collected: then it is notified.
        if let Some(draft) = before.take_if(|draft| has_expired(draft)) {
            if let Some(callback) = &draft.meta.callback {
                page.add(|| self.record_expired(&id, (&draft, callback), order, time_ms));
            }
            let change =
                NotifiableChange { id: id.clone(), before: Some(draft), after: None, time_ms };
            self.notify(&change, order, page);
        }
        let change = NotifiableChange { id, before, after, time_ms };
        self.notify(&change, order, page);
    }

    fn record_expired(
        &self,
        id: &str,
        (draft, callback): (&RecordDraft, &str),
        order: u64,
        due_ms: u64,
    ) -> Notification {
        let (content_type, body) = draft.to_notification(None, NOTIFICATION_BYTES_MAX);
        Notification {
            kind: NotificationKind::RecordExpired,
            due_ms,
            order,
            uri: callback.to_owned(),
            content_type,
            location: format!("{}/records/{id}", self.uri),
            body: body.into(),
        }
    }

    /// Adds the notification of each subscription that a change concerns.
    fn notify(&self, change: &NotifiableChange, order: u64, page: &mut NotificationPage) {
        let (operation, draft) = match (&change.before, &change.after) {
            (None, None) => return,
            (None, Some(after)) => ("CREATED", after),
            (Some(_), Some(after)) => ("UPDATED", after),
            (Some(before), None) => ("DELETED", before),
        };
        for (key, subscriber) in &self.subscribers {
            let is_over = subscriber.expires_ms != 0 && subscriber.expires_ms <= change.time_ms;
            let is_wanted = subscriber.operations.is_empty()
                || subscriber.operations.iter().any(|wanted| wanted == operation);
            let is_monitored = subscriber.monitored.is_empty()
                || subscriber.monitored.iter().any(|monitored| monitored.is_changed(change));
            if is_over || !is_wanted || !is_monitored {
                continue;
            }
            page.add(|| {
                let descriptor = json!({
                    "recordRef": format!("{}/records/{}", subscriber.base, change.id),
                    "operationType": operation,
                    "subscriptionId": String::from_utf8_lossy(key),
                });
                let first = Some(("recordnotification", &descriptor));
                let (content_type, body) = draft.to_notification(first, NOTIFICATION_BYTES_MAX);
                Notification {
                    kind: NotificationKind::DataChange,
                    due_ms: change.time_ms,
                    order,
                    uri: subscriber.callback.clone(),
                    content_type,
                    location: String::new(),
                    body: body.into(),
                }
            });
        }
    }
}

/// The namespaces whose changes are read.
pub(crate) fn watched(storages: &[(StorageNamespaces, String)]) -> Vec<Namespace> {
    let of = |(storage, _): &(StorageNamespaces, String)| [storage.records, storage.subscriptions];
    storages.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uri_of_a_resource_says_what_is_monitored() {
        let base = "http://udsf/nudsf-dr/v1/r/s/records";
        for (below, monitored) in [
            ("", Monitored::Records),
            ("/a%2Fb", Monitored::Record("a%2Fb".to_owned())),
            ("/a/meta", Monitored::Meta("a".to_owned())),
            ("/a/blocks", Monitored::Blocks("a".to_owned())),
            ("/a/blocks/b", Monitored::Block("a".to_owned(), "b".to_owned())),
        ] {
            assert_eq!(Monitored::parse(&format!("{base}{below}")), Some(monitored));
        }
        assert_eq!(Monitored::parse("http://udsf/x"), None);
    }
}
