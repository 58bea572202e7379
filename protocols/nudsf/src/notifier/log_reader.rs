//! Changes of records as notifications. The log of the region has each committed change of a
//! storage in one order, whichever interface made it: with the record before and after, also one
//! that has expired. Subscriptions are in the same log, so that each takes effect at its place.

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
use crate::notifier::notified_record::{NotifiedRecord, bytes_of, expires_ms};
use crate::notifier::subscribers::{NotifiableChange, NotifiedSubscription, SubscriberIndex};
use crate::repository::StorageNamespaces;
use crate::request_path::encode_segment;
use crate::settings::NotificationKind;

/// A storage, and the subscriptions that its changes are matched with.
struct WatchedStorage {
    namespaces: StorageNamespaces,
    /// The URI, relative without an `apiRoot`.
    uri: String,
    subscribers: SubscriberIndex,
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
            let mut subscribers = SubscriberIndex::default();
            let (mut scan, mut steps) = (session.scan(namespaces.subscriptions)?, 0_u32);
            while scan.step()? {
                steps += 1;
                if steps.is_multiple_of(SCAN_STEPS) {
                    yield_if_due().await;
                }
                if let Some(view) = scan.view()? {
                    let tags = view.tags();
                    if let Some(subscriber) = subscriber_of(view.bytes(), tags, &uri) {
                        subscribers.insert(view.key(), subscriber);
                    }
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
            Some(found) => self.subscribers.insert(versions.key, found),
            None => self.subscribers.remove(versions.key),
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
        if !self.subscribers.has_any(key) && !has_expired {
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
            let change = NotifiableChange::new(key, (Some(record), None), time_ms);
            place.step = place.step.max(RecordStep::Ended);
            if place.step == RecordStep::Ended && !self.notify(&change, order, place, page) {
                return false;
            }
        }
        place.step = RecordStep::Changed;
        let change = NotifiableChange::new(key, (before, after), time_ms);
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
        for (key, subscriber) in self.subscribers.of_record(change.key, from.as_deref()) {
            if page.is_full() {
                place.subscription = Some(key.to_vec());
                return false;
            }
            let (is_wanted, looks) = subscriber.wants(operation, change);
            page.looks += 1 + looks;
            if !is_wanted {
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

    /// Subscriptions that monitor the same resources; none: all records.
    fn subscriptions(
        namespaces: StorageNamespaces,
        count: usize,
        below: &[String],
    ) -> StorageSubscriptions {
        let mut value = json!({"callbackReference": "http://nf/"});
        if !below.is_empty() {
            let uri = |below: &String| Value::from(format!("/nudsf-dr/v1/r/s/records/{below}"));
            value["subFilter"]["monitoredResourceUris"] = below.iter().map(uri).collect();
        }
        let mut subscribers = SubscriberIndex::default();
        for number in 0..count {
            let subscription = NotifiedSubscription::parse(&value, "").unwrap();
            subscribers.insert(format!("{number:04}").as_bytes(), subscription);
        }
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
        let all = subscriptions(namespaces, SUBSCRIBERS, &[]);
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
        let of_block = |number: usize| format!("r{number}/blocks/none");
        let of_blocks: Vec<String> = (0..CHANGES).map(of_block).collect();
        let (most, count) = read(&mut subscriptions(namespaces, 2, &of_blocks));
        assert!(count >= CHANGES && most <= 10, "{most} of {count} in one read");
        assert_eq!(read(&mut subscriptions(namespaces, 0, &[])), (count, count));
        // Neither subscription is for one of these records.
        let of_other = ["other/blocks".to_owned()];
        assert_eq!(read(&mut subscriptions(namespaces, 2, &of_other)), (count, count));
    }

    /// The looks of each page of the last change, and the notifications of all.
    fn pages(session: &Session, all: &StorageSubscriptions) -> (Vec<usize>, usize) {
        let mut stream = session.commit_stream().unwrap();
        let (mut looks, mut count) = (Vec::new(), 0);
        while let Some(item) = stream.next().unwrap() {
            let StreamItem::Transaction(entry) = item else { continue };
            let (versions, mut place) =
                (entry.versions().unwrap(), Some(NotificationPlace::default()));
            looks.clear();
            count = 0;
            while let Some(from) = place {
                let mut page = NotificationPage::default();
                place = all.apply_records(&versions, 1, from, &mut page);
                looks.push(page.looks);
                count += page.found.len();
            }
        }
        (looks, count)
    }

    #[test]
    fn a_read_looks_at_a_bounded_number_of_the_blocks_that_subscriptions_monitor() {
        const SUBSCRIBERS: usize = 400;
        const BLOCKS: usize = 1024;
        let folder = tempfile::tempdir().unwrap();
        let (session, namespaces) = storage(&folder);
        let put = |prefix: &str, text: &[u8]| {
            let names: Vec<String> = (0..BLOCKS).map(|n| format!("{prefix}{n:04}")).collect();
            let fields: Vec<_> = names.iter().map(|name| (name.as_bytes(), text)).collect();
            let none = nearstate_store::Metadata::default();
            let put =
                session.transact(|txn| txn.put_fields(namespaces.records, b"a", &fields, none));
            put.unwrap();
        };
        put("x", b"1");
        let of = |record: &str| -> Vec<String> {
            (0..BLOCKS).map(|number| format!("{record}/blocks/b{number:04}")).collect()
        };
        // No subscription of another record is looked at.
        let of_other = subscriptions(namespaces, SUBSCRIBERS, &of("other"));
        assert_eq!(pages(&session, &of_other), (vec![0], 0));
        // Each subscription compares its blocks with the other ones, which have changed.
        let of_record = subscriptions(namespaces, SUBSCRIBERS, &of("a"));
        let (looks, count) = pages(&session, &of_record);
        assert_eq!((looks.iter().sum(), count), (SUBSCRIBERS * (BLOCKS + 1), 0));
        assert!(looks.iter().all(|looks| *looks <= 5 * (BLOCKS + 1)), "{looks:?}");
        put("b", b"1");
        let (looks, count) = pages(&session, &of_record);
        assert_eq!(count, SUBSCRIBERS);
        assert!(looks.iter().all(|looks| *looks <= 5 * (BLOCKS + 1)), "{looks:?}");
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
}
