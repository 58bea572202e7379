//! Changes of records as notifications. The log of the region has each committed change of a
//! storage in one order, whichever interface made it: with the record before and after, also one
//! that has expired. Subscriptions are in the same log, so that each takes effect at its place.

use std::collections::BTreeMap;
use std::ops::Bound;

use nearstate_model::Result;
use nearstate_node::executor::yield_if_due;
use nearstate_store::{
    CommitStream, Namespace, Session, StreamItem, StreamedChange, StreamedRecord, StreamedVersions,
};
use serde_json::{Value, json};

use crate::limits::{LAST_NOTIFICATION_BYTES_MAX, NOTIFICATION_BYTES_MAX, SCAN_STEPS};
use crate::notifier::notification::{Notification, OrderedKind, order_of};
use crate::notifier::notification_page::{
    NotificationPage, NotificationPlace, PartialTransaction, RecordStep, TRANSACTIONS_MAX,
};
use crate::notifier::notified_record::{NotifiedRecord, bytes_of, expires_ms, is_same_block};
use crate::record::StoredBlock;
use crate::repository::StorageNamespaces;
use crate::request_path::{MonitoredResource, encode_segment};
use crate::settings::NotificationKind;
use crate::times::parse_date_time;

/// True if a change of this record changes the resource.
fn is_changed(resource: &MonitoredResource, change: &NotifiableChange<'_>) -> bool {
    let (before, after) = (change.before.as_ref(), change.after.as_ref());
    match resource {
        MonitoredResource::Records => true,
        MonitoredResource::Record(id) => id == change.key,
        MonitoredResource::Meta(id) => {
            id == change.key && before.map(|one| &one.meta) != after.map(|one| &one.meta)
        }
        MonitoredResource::Blocks(id) => {
            id == change.key && is_other(before, after, NotifiedRecord::has_same_blocks)
        }
        MonitoredResource::Block(id, block) => {
            let (before, after) = (block_of(before, block), block_of(after, block));
            id == change.key && is_other(before, after, is_same_block)
        }
    }
}

/// True if only one exists, or both are not the same.
fn is_other<T>(before: Option<&T>, after: Option<&T>, is_same: impl Fn(&T, &T) -> bool) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => !is_same(before, after),
        (None, None) => false,
        (Some(_), None) | (None, Some(_)) => true,
    }
}

/// The block with this id.
fn block_of<'r, 'v>(
    record: Option<&'r NotifiedRecord<'v>>,
    id: &str,
) -> Option<&'r StoredBlock<'v>> {
    record?.blocks.iter().find(|block| block.id == id)
}

/// A subscription.
#[derive(Clone, Debug)]
struct NotifiedSubscription {
    callback: String,
    /// The URI of the storage.
    base: String,
    /// `None`: all records.
    monitored: Option<Vec<MonitoredResource>>,
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
            // A URI that names no records matches none.
            monitored: Some(list("monitoredResourceUris"))
                .filter(|uris| !uris.is_empty())
                .map(|uris| uris.iter().filter_map(|uri| resource_of(uri)).collect()),
            operations: list("operations"),
            expires_ms: expiry.unwrap_or(0),
        })
    }
}

fn resource_of(uri: &str) -> Option<MonitoredResource> {
    MonitoredResource::parse(uri).map(|(_, _, resource)| resource)
}

/// A change of a record.
struct NotifiableChange<'v> {
    /// The id.
    key: &'v str,
    before: Option<NotifiedRecord<'v>>,
    after: Option<NotifiedRecord<'v>>,
    time_ms: u64,
}

/// A storage, and the subscriptions that its changes are matched with.
struct WatchedStorage {
    namespaces: StorageNamespaces,
    /// The URI, relative without an `apiRoot`.
    uri: String,
    subscribers: BTreeMap<Vec<u8>, NotifiedSubscription>,
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
    /// A subscription was written or removed.
    pub(crate) has_subscription: bool,
    /// Transactions that the log has lost, at the end of the batch: subscriptions may have been
    /// among them, so that [`StorageSubscriptions::load`] comes before the next read.
    pub(crate) lost: u64,
}

/// The storages of a node, and the subscriptions of each.
pub(crate) struct StorageSubscriptions(Vec<WatchedStorage>);

impl StorageSubscriptions {
    /// Reads all subscriptions. Those that the log changes later are read from the log. Yields to
    /// requests: there may be some 10,000 of each storage.
    ///
    /// # Errors
    /// As [`Session::scan`].
    pub(crate) async fn load(
        session: &Session,
        storages: Vec<(StorageNamespaces, String)>,
    ) -> Result<Self> {
        let mut all = Vec::new();
        for (namespaces, uri) in storages {
            let mut subscribers = BTreeMap::new();
            let (mut scan, mut steps) = (session.scan(namespaces.subscriptions)?, 0_u32);
            while scan.step()? {
                steps += 1;
                if steps.is_multiple_of(SCAN_STEPS) {
                    yield_if_due().await;
                }
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
        partial: Option<&PartialTransaction>,
    ) -> Result<ChangeBatch> {
        let mut batch = ChangeBatch { position, ..ChangeBatch::default() };
        let mut page = NotificationPage::default();
        while batch.transactions < TRANSACTIONS_MAX && !page.is_over() {
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
            let (number, time_ms) = (entry.number, entry.time_ms()?);
            let versions = entry.versions()?;
            let place = match partial {
                Some(partial) if partial.number == number => partial.place.clone(),
                Some(_) | None => NotificationPlace::default(),
            };
            if let Some(place) = self.apply_records(&versions, time_ms, place, &mut page) {
                batch.partial = Some(PartialTransaction { number, place });
                break;
            }
            // A subscription takes effect behind the transaction that writes it.
            for version in &versions {
                for storage in &mut self.0 {
                    batch.has_subscription |= storage.apply_subscription(version);
                }
            }
            batch.position = number;
        }
        stream.release();
        batch.notifications = page.found;
        Ok(batch)
    }

    /// Adds the notifications of a transaction from a place on. Returns the place of those that do
    /// not fit.
    fn apply_records(
        &self,
        versions: &[StreamedVersions<'_>],
        time_ms: u64,
        from: NotificationPlace,
        page: &mut NotificationPage,
    ) -> Option<NotificationPlace> {
        let mut place = from;
        for (record, version) in versions.iter().enumerate().skip(place.record) {
            for (storage, watched) in self.0.iter().enumerate() {
                if record == place.record && storage < place.storage {
                    continue;
                }
                if (record, storage) != (place.record, place.storage) {
                    place = NotificationPlace { record, storage, ..NotificationPlace::default() };
                    if page.is_over() {
                        return Some(place);
                    }
                }
                if !watched.apply_record(version, time_ms, &mut place, page) {
                    return Some(place);
                }
            }
        }
        None
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
    /// Follows a change of a subscription. True if it was one.
    fn apply_subscription(&mut self, versions: &StreamedVersions<'_>) -> bool {
        if versions.namespace != self.namespaces.subscriptions.number() {
            return false;
        }
        let after = versions.after.as_ref();
        match after.and_then(|after| subscriber_after(after, &self.uri)) {
            Some(found) => drop(self.subscribers.insert(versions.key.to_vec(), found)),
            None => drop(self.subscribers.remove(versions.key)),
        }
        true
    }

    /// Adds what a changed record makes due, from a place on. False if not all of it fits: then the
    /// place is that of the rest.
    fn apply_record(
        &self,
        versions: &StreamedVersions<'_>,
        time_ms: u64,
        place: &mut NotificationPlace,
        page: &mut NotificationPage,
    ) -> bool {
        if versions.namespace != self.namespaces.records.number() {
            return true;
        }
        let Ok(key) = str::from_utf8(versions.key) else { return true };
        // A record that has expired is replaced, deleted or collected: then it is notified.
        let has_expired = versions.before.as_ref().is_some_and(|before| {
            let expires_ms = expires_ms(before);
            expires_ms != 0 && expires_ms <= time_ms
        });
        if self.subscribers.is_empty() && !has_expired {
            return true;
        }
        let both = [versions.before.as_ref(), versions.after.as_ref()];
        page.examined += both.into_iter().flatten().map(bytes_of).sum::<usize>();
        let order = order_of((self.namespaces.name_hash, OrderedKind::Record), versions.key);
        let mut before = versions.before.as_ref().and_then(NotifiedRecord::of);
        let after = versions.after.as_ref().and_then(NotifiedRecord::of);
        if let Some(record) = before.take_if(|_| has_expired) {
            if place.step == RecordStep::Expired
                && let Some(callback) = &record.meta.callback
            {
                if page.is_full() {
                    return false;
                }
                page.add(self.record_expired(key, (&record, callback), order, time_ms));
            }
            let change = NotifiableChange { key, before: Some(record), after: None, time_ms };
            place.step = place.step.max(RecordStep::Ended);
            if place.step == RecordStep::Ended && !self.notify(&change, order, place, page) {
                return false;
            }
        }
        place.step = RecordStep::Changed;
        let change = NotifiableChange { key, before, after, time_ms };
        self.notify(&change, order, place, page)
    }

    fn record_expired(
        &self,
        key: &str,
        (record, callback): (&NotifiedRecord<'_>, &str),
        order: u64,
        due_ms: u64,
    ) -> Notification {
        let (content_type, body) = record.to_notification(None, LAST_NOTIFICATION_BYTES_MAX);
        Notification {
            kind: NotificationKind::RecordExpired,
            due_ms,
            order,
            uri: callback.to_owned(),
            content_type,
            location: format!("{}/records/{}", self.uri, encode_segment(key)),
            body: body.into(),
        }
    }

    /// Adds the notification of each subscription that a change concerns, from a place on. False if
    /// not all fit: then the place names the next subscription.
    fn notify(
        &self,
        change: &NotifiableChange<'_>,
        order: u64,
        place: &mut NotificationPlace,
        page: &mut NotificationPage,
    ) -> bool {
        let from = place.subscription.take();
        let (operation, record, bytes_max) = match (&change.before, &change.after) {
            (None, None) => return true,
            (None, Some(after)) => ("CREATED", after, NOTIFICATION_BYTES_MAX),
            (Some(_), Some(after)) => ("UPDATED", after, NOTIFICATION_BYTES_MAX),
            (Some(before), None) => ("DELETED", before, LAST_NOTIFICATION_BYTES_MAX),
        };
        let first = from.as_deref().map_or(Bound::Unbounded, Bound::Included);
        for (key, subscriber) in self.subscribers.range::<[u8], _>((first, Bound::Unbounded)) {
            if page.is_full() {
                place.subscription = Some(key.clone());
                return false;
            }
            page.looks += 1;
            let is_over = subscriber.expires_ms != 0 && subscriber.expires_ms <= change.time_ms;
            let is_wanted = subscriber.operations.is_empty()
                || subscriber.operations.iter().any(|wanted| wanted == operation);
            let is_monitored = subscriber
                .monitored
                .as_ref()
                .is_none_or(|all| all.iter().any(|monitored| is_changed(monitored, change)));
            if is_over || !is_wanted || !is_monitored {
                continue;
            }
            let descriptor = json!({
                "recordRef": format!("{}/records/{}", subscriber.base, encode_segment(change.key)),
                "operationType": operation,
                "subscriptionId": String::from_utf8_lossy(key),
            });
            let first = Some(("recordnotification", &descriptor));
            let (content_type, body) = record.to_notification(first, bytes_max);
            page.add(Notification {
                kind: NotificationKind::DataChange,
                due_ms: change.time_ms,
                order,
                uri: subscriber.callback.clone(),
                content_type,
                location: String::new(),
                body: body.into(),
            });
        }
        true
    }
}

/// The namespaces whose changes are read.
pub(crate) fn watched(storages: &[(StorageNamespaces, String)]) -> Vec<Namespace> {
    let of = |(storage, _): &(StorageNamespaces, String)| [storage.records, storage.subscriptions];
    storages.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use nearstate_node::executor::{Executor, ExecutorConfig, TaskClass, spawn, yield_now};
    use nearstate_store::{CreateOptions, Kind, Region, Schema, WhenFull};

    use super::*;
    use crate::timer::document_bytes;

    /// A region with a storage whose records are logged.
    fn storage(folder: &tempfile::TempDir) -> (Session, StorageNamespaces) {
        let region = Region::create(&folder.path().join("region"), &CreateOptions::default());
        let session = region.unwrap().session().unwrap();
        let open = |name, kind| session.namespace(name, &Schema { kind, ..Schema::default() });
        let records = open("records", Kind::Mixed).unwrap();
        session.stream(records, WhenFull::LoseOldest).unwrap();
        let documents = |name| open(name, Kind::Value).unwrap();
        let [subscriptions, schemas, timers] = ["s", "m", "t"].map(documents);
        let name_hash = 0;
        (session, StorageNamespaces { records, subscriptions, schemas, timers, name_hash })
    }

    fn subscriptions(namespaces: StorageNamespaces, count: usize) -> StorageSubscriptions {
        let value = json!({"callbackReference": "http://nf/"});
        let one = |number: usize| {
            let subscription = NotifiedSubscription::parse(&value, "").unwrap();
            (format!("{number:04}").into_bytes(), subscription)
        };
        let subscribers = (0..count).map(one).collect();
        StorageSubscriptions(vec![WatchedStorage { namespaces, uri: String::new(), subscribers }])
    }

    #[test]
    fn each_notification_of_a_large_transaction_is_looked_at_once() {
        const RECORDS: usize = 20;
        const SUBSCRIBERS: usize = 700;
        let folder = tempfile::tempdir().unwrap();
        let (session, namespaces) = storage(&folder);
        let written = session.transact(|txn| -> Result<()> {
            for number in 0..RECORDS {
                txn.put(namespaces.records, format!("r{number:02}").as_bytes(), b"")?;
            }
            Ok(())
        });
        written.unwrap();
        let all = subscriptions(namespaces, SUBSCRIBERS);
        let mut stream = session.commit_stream().unwrap();
        let entry = loop {
            match stream.next().unwrap().unwrap() {
                StreamItem::Transaction(entry) if entry.versions().unwrap().len() == RECORDS => {
                    break entry;
                }
                StreamItem::Transaction(_) | StreamItem::Lost { .. } => {}
            }
        };
        let versions = entry.versions().unwrap();
        let (mut place, mut bodies, mut looks) = (NotificationPlace::default(), Vec::new(), 0);
        loop {
            let mut page = NotificationPage::default();
            let rest = all.apply_records(&versions, 1, place, &mut page);
            looks += page.looks;
            assert!((1..=256).contains(&page.found.len()));
            bodies.extend(page.found.into_iter().map(|found| found.body));
            match rest {
                Some(next) => place = next,
                None => break,
            }
        }
        assert_eq!((looks, bodies.len()), (RECORDS * SUBSCRIBERS, RECORDS * SUBSCRIBERS));
        let expected =
            (0..RECORDS).flat_map(|record| (0..SUBSCRIBERS).map(move |one| (record, one)));
        for ((record, subscriber), body) in expected.zip(&bodies) {
            let body = str::from_utf8(body).unwrap();
            assert!(body.contains(&format!("/records/r{record:02}\"")), "{body}");
            assert!(body.contains(&format!("\"{subscriber:04}\"")), "{body}");
        }
    }

    #[test]
    fn one_read_looks_at_a_bounded_number_of_bytes_and_at_none_that_concern_no_subscription() {
        const CHANGES: usize = 24;
        let folder = tempfile::tempdir().unwrap();
        let (session, namespaces) = storage(&folder);
        for number in 0..CHANGES {
            let key = format!("r{number}");
            session.put(namespaces.records, key.as_bytes(), &vec![1; 1 << 20]).unwrap();
        }
        let read = |all: &mut StorageSubscriptions| {
            let mut stream = session.commit_stream().unwrap();
            let (mut position, mut most, mut count) = (0, 0, 0);
            loop {
                let batch = all.read(&mut stream, position, None).unwrap();
                if batch.transactions == 0 {
                    return (most, count);
                }
                assert_eq!((batch.lost, batch.partial), (0, None));
                position = batch.position;
                most = most.max(batch.transactions);
                count += batch.transactions;
            }
        };
        // Neither subscription is for one of these records.
        let mut all = subscriptions(namespaces, 2);
        for subscriber in all.0.iter_mut().flat_map(|storage| storage.subscribers.values_mut()) {
            subscriber.monitored = Some(vec![MonitoredResource::Blocks("other".to_owned())]);
        }
        let (most, count) = read(&mut all);
        assert!(count >= CHANGES && most <= 10, "{most} of {count} in one read");
        assert_eq!(read(&mut subscriptions(namespaces, 0)), (count, count));
    }

    #[test]
    fn requests_are_served_while_many_subscriptions_are_read() {
        const SUBSCRIBERS: usize = 3000;
        let folder = tempfile::tempdir().unwrap();
        let (session, namespaces) = storage(&folder);
        let value = json!({"callbackReference": "http://nf/", "text": "x".repeat(500)});
        for number in 0..SUBSCRIBERS {
            let (key, bytes) = (format!("s{number}"), document_bytes(0, &value));
            session.put(namespaces.subscriptions, key.as_bytes(), &bytes).unwrap();
        }
        let (requests, is_over) = (Rc::<Cell<usize>>::default(), Rc::<Cell<bool>>::default());
        let (counted, over) = (Rc::clone(&requests), Rc::clone(&is_over));
        let executor = Executor::new(&ExecutorConfig::default()).unwrap();
        let (read, during) = executor.run(async move {
            drop(spawn(TaskClass::Request, "requests", async move {
                while !over.get() {
                    counted.set(counted.get() + 1);
                    yield_now().await;
                }
            }));
            let load = spawn(TaskClass::Background, "load", async move {
                let before = requests.get();
                let all = StorageSubscriptions::load(&session, vec![(namespaces, String::new())]);
                let read = all.await.unwrap().0.iter().map(|one| one.subscribers.len()).sum();
                is_over.set(true);
                (read, requests.get() - before)
            });
            load.await.unwrap_or_default()
        });
        let read: usize = read;
        assert_eq!(read, SUBSCRIBERS);
        assert!(during > 0, "no request was served");
    }

    #[test]
    fn a_uri_that_names_no_records_matches_none() {
        let value = |uris: Value| {
            json!({"callbackReference": "http://nf/", "subFilter": {
            "monitoredResourceUris": uris}})
        };
        let of = |uris: Value| NotifiedSubscription::parse(&value(uris), "").unwrap().monitored;
        assert_eq!(of(Value::Null), None);
        assert_eq!(of(json!(["http://nf/records/a/"])), Some(Vec::new()));
        let uri = "http://records/nudsf-dr/v1/r/s/records/a%40b";
        assert_eq!(of(json!([uri])), Some(vec![MonitoredResource::Record("a@b".to_owned())]));
    }
}
