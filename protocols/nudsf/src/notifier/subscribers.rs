//! The subscriptions of a storage, found by the record that has changed. A change costs what the
//! subscriptions that monitor its record cost, and not what all subscriptions of the storage do.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use crate::notifier::notified_record::{NotifiedRecord, changed_blocks};
use crate::request_path::MonitoredResource;
use crate::times::parse_date_time;

/// A change of a record.
pub(crate) struct NotifiableChange<'v> {
    /// The id.
    pub(crate) key: &'v str,
    pub(crate) before: Option<NotifiedRecord<'v>>,
    pub(crate) after: Option<NotifiedRecord<'v>>,
    pub(crate) time_ms: u64,
    /// What has changed, once it was asked for: each subscription would compare the record again.
    parts: OnceCell<ChangedParts>,
}

/// The parts of a record that a change has changed.
#[derive(Debug)]
struct ChangedParts {
    has_meta: bool,
    has_blocks: bool,
    /// The ids, ascending.
    blocks: Vec<String>,
}

impl<'v> NotifiableChange<'v> {
    pub(crate) fn new(
        key: &'v str,
        (before, after): (Option<NotifiedRecord<'v>>, Option<NotifiedRecord<'v>>),
        time_ms: u64,
    ) -> Self {
        Self { key, before, after, time_ms, parts: OnceCell::new() }
    }

    fn parts(&self) -> &ChangedParts {
        self.parts.get_or_init(|| {
            let (before, after) = (self.before.as_ref(), self.after.as_ref());
            let has_same_blocks = match (before, after) {
                (Some(before), Some(after)) => before.has_same_blocks(after),
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            };
            let blocks = if has_same_blocks { Vec::new() } else { changed_blocks(before, after) };
            ChangedParts {
                has_meta: before.map(|one| &one.meta) != after.map(|one| &one.meta),
                has_blocks: !has_same_blocks,
                blocks,
            }
        })
    }
}

/// What a subscription monitors of one record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct MonitoredRecord {
    /// Each change of it.
    is_whole: bool,
    has_meta: bool,
    has_blocks: bool,
    /// The ids of single blocks, ascending.
    blocks: Vec<String>,
}

impl MonitoredRecord {
    /// Whether a change concerns it, and the ids of blocks that were looked at.
    fn concerns(&self, change: &NotifiableChange<'_>) -> (bool, usize) {
        if self.is_whole {
            return (true, 0);
        }
        let changed = change.parts();
        if self.has_meta && changed.has_meta || self.has_blocks && changed.has_blocks {
            return (true, 0);
        }
        let (few, many) = if self.blocks.len() <= changed.blocks.len() {
            (&self.blocks, &changed.blocks)
        } else {
            (&changed.blocks, &self.blocks)
        };
        (few.iter().any(|id| many.binary_search(id).is_ok()), few.len())
    }
}

/// A subscription.
#[derive(Clone, Debug)]
pub(crate) struct NotifiedSubscription {
    pub(crate) callback: String,
    /// The URI of the storage.
    pub(crate) base: String,
    /// By the id of the record. `None`: all records.
    monitored: Option<BTreeMap<String, MonitoredRecord>>,
    /// Empty: all operations.
    operations: Vec<String>,
    /// 0: never.
    expires_ms: u64,
}

impl NotifiedSubscription {
    pub(crate) fn parse(value: &Value, base: &str) -> Option<Self> {
        let list = |name: &str| -> Vec<String> {
            let filter = value.get("subFilter").and_then(|filter| filter.get(name));
            let items = filter.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let expiry = value.get("expiry").and_then(Value::as_str).and_then(parse_date_time);
        let uris = list("monitoredResourceUris");
        Some(Self {
            callback: value.get("callbackReference")?.as_str()?.to_owned(),
            base: base.to_owned(),
            monitored: if uris.is_empty() { None } else { monitored(&uris) },
            operations: list("operations"),
            expires_ms: expiry.unwrap_or(0),
        })
    }

    /// Whether a change is notified to it, and the URIs of blocks that were looked at.
    pub(crate) fn wants(&self, operation: &str, change: &NotifiableChange<'_>) -> (bool, usize) {
        let is_over = self.expires_ms != 0 && self.expires_ms <= change.time_ms;
        let is_wanted =
            self.operations.is_empty() || self.operations.iter().any(|wanted| wanted == operation);
        if is_over || !is_wanted {
            return (false, 0);
        }
        match &self.monitored {
            None => (true, 0),
            Some(records) => {
                records.get(change.key).map_or((false, 0), |record| record.concerns(change))
            }
        }
    }
}

/// What URIs monitor; `None`: all records. A URI that names no records matches none.
fn monitored(uris: &[String]) -> Option<BTreeMap<String, MonitoredRecord>> {
    let mut records: BTreeMap<String, MonitoredRecord> = BTreeMap::new();
    for uri in uris {
        let Some((_, _, resource)) = MonitoredResource::parse(uri) else { continue };
        match resource {
            MonitoredResource::Records => return None,
            MonitoredResource::Record(id) => records.entry(id).or_default().is_whole = true,
            MonitoredResource::Meta(id) => records.entry(id).or_default().has_meta = true,
            MonitoredResource::Blocks(id) => records.entry(id).or_default().has_blocks = true,
            MonitoredResource::Block(id, block) => {
                records.entry(id).or_default().blocks.push(block);
            }
        }
    }
    for record in records.values_mut() {
        record.blocks.sort_unstable();
        record.blocks.dedup();
    }
    Some(records)
}

/// The subscriptions of a storage by their ids, and by what they monitor.
#[derive(Debug, Default)]
pub(crate) struct SubscriberIndex {
    all: BTreeMap<Rc<[u8]>, NotifiedSubscription>,
    /// Those of all records.
    of_all_records: BTreeSet<Rc<[u8]>>,
    /// The hash of the id of a record, and a subscription that monitors the record or a part of it.
    of_records: BTreeSet<(u64, Rc<[u8]>)>,
}

fn hash_of(record: &str) -> u64 {
    xxh3_64(record.as_bytes())
}

impl SubscriberIndex {
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Adds or replaces a subscription.
    pub(crate) fn insert(&mut self, key: &[u8], subscription: NotifiedSubscription) {
        self.remove(key);
        let key: Rc<[u8]> = key.into();
        match &subscription.monitored {
            None => drop(self.of_all_records.insert(Rc::clone(&key))),
            Some(records) => {
                let hashes = records.keys().map(|record| hash_of(record));
                self.of_records.extend(hashes.map(|hash| (hash, Rc::clone(&key))));
            }
        }
        self.all.insert(key, subscription);
    }

    /// Removes a subscription, if it is there.
    pub(crate) fn remove(&mut self, key: &[u8]) {
        let Some((key, subscription)) = self.all.remove_entry(key) else { return };
        for record in subscription.monitored.iter().flat_map(BTreeMap::keys) {
            self.of_records.remove(&(hash_of(record), Rc::clone(&key)));
        }
        self.of_all_records.remove(&key);
    }

    /// True if a subscription may monitor a record.
    pub(crate) fn has_any(&self, record: &str) -> bool {
        self.of_record(record, None).next().is_some()
    }

    /// The subscriptions that may monitor a record, in the order of their ids, from one on.
    pub(crate) fn of_record(
        &self,
        record: &str,
        from: Option<&[u8]>,
    ) -> impl Iterator<Item = (&Rc<[u8]>, &NotifiedSubscription)> {
        let hash = hash_of(record);
        let first = from.map_or(Bound::Unbounded, Bound::Included);
        let begin: Rc<[u8]> = from.unwrap_or_default().into();
        let of_all = self.of_all_records.range::<[u8], _>((first, Bound::Unbounded));
        let of_one = self.of_records.range((hash, begin)..);
        let of_one = of_one.take_while(move |(known, _)| *known == hash).map(|(_, key)| key);
        let (mut of_all, mut of_one) = (of_all.peekable(), of_one.peekable());
        // Both ascend, and have no subscription in common.
        let keys = std::iter::from_fn(move || match (of_all.peek(), of_one.peek()) {
            (Some(one), Some(other)) if other < one => of_one.next(),
            (Some(_), _) => of_all.next(),
            (None, _) => of_one.next(),
        });
        keys.filter_map(|key| self.all.get_key_value(key))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::meta::RecordMeta;
    use crate::record::StoredBlock;

    fn subscription(uris: &[String]) -> NotifiedSubscription {
        let filter = json!({"monitoredResourceUris": uris});
        let value = json!({"callbackReference": "http://nf/", "subFilter": filter});
        NotifiedSubscription::parse(&value, "").unwrap()
    }

    fn uri(below: &str) -> String {
        format!("http://udsf/nudsf-dr/v1/r/s/records{below}")
    }

    fn record<'v>(blocks: &'v [(String, String)]) -> NotifiedRecord<'v> {
        let block = |(id, text): &'v (String, String)| {
            StoredBlock::logged((id.as_str(), text.as_bytes()), "", "")
        };
        NotifiedRecord { meta: RecordMeta::default(), blocks: blocks.iter().map(block).collect() }
    }

    fn blocks(count: usize, text: &str) -> Vec<(String, String)> {
        (0..count).map(|number| (format!("b{number:04}"), text.to_owned())).collect()
    }

    #[test]
    fn a_uri_that_names_no_records_matches_none() {
        assert_eq!(subscription(&[]).monitored, None);
        assert_eq!(subscription(&["http://nf/records/a/".to_owned()]).monitored, Some([].into()));
        let monitored = subscription(&[uri("/a%40b")]).monitored.unwrap();
        assert!(monitored.len() == 1 && monitored["a@b"].is_whole);
        assert_eq!(subscription(&[uri("/a"), uri("")]).monitored, None);
    }

    #[test]
    fn what_a_subscription_looks_at_is_bounded_by_the_blocks_that_have_changed() {
        const URIS: usize = 1024;
        let uris: Vec<String> =
            (0..URIS).map(|number| uri(&format!("/a/blocks/b{number:04}"))).collect();
        let subscription = subscription(&uris);
        let (old, mut new) = (blocks(URIS, "old"), blocks(URIS, "old"));
        new[7].1 = "new".to_owned();
        let change = |key, (old, new)| NotifiableChange::new(key, (Some(old), Some(new)), 1);
        let one = change("a", (record(&old), record(&new)));
        assert_eq!(subscription.wants("UPDATED", &one), (true, 1));
        let other = blocks(3, "x").into_iter().map(|(id, text)| (format!("c{id}"), text));
        let other: Vec<_> = old.iter().cloned().chain(other).collect();
        let others = change("a", (record(&old), record(&other)));
        assert_eq!(subscription.wants("UPDATED", &others), (false, 3));
        let same = change("a", (record(&old), record(&old)));
        assert_eq!(subscription.wants("UPDATED", &same), (false, 0));
        let of_another = change("b", (record(&old), record(&new)));
        assert_eq!(subscription.wants("UPDATED", &of_another), (false, 0));
    }

    proptest! {
        #[test]
        fn the_index_finds_each_subscription_of_a_record_once_and_in_order(
            all in prop::collection::btree_map("[a-c]{1,2}", prop::collection::vec(
                prop::sample::select(vec!["", "/a", "/b", "/a/meta", "/b/blocks/x", "/c/blocks"]),
                1..4,
            ), 0..12),
            removed in "[a-c]{1,2}",
            from in "[a-c]{0,2}",
        ) {
            let mut index = SubscriberIndex::default();
            for (key, uris) in &all {
                // The second one replaces the first.
                index.insert(key.as_bytes(), subscription(&[uri("/d")]));
                let uris: Vec<String> = uris.iter().map(|below| uri(below)).collect();
                index.insert(key.as_bytes(), subscription(&uris));
            }
            index.remove(removed.as_bytes());
            for record in ["a", "b", "c", "d"] {
                let begins = |uri: &&str| {
                    uri.is_empty() || uri.split('/').nth(1).is_some_and(|id| id == record)
                };
                let wanted = all.iter().filter(|(key, uris)| {
                    **key != removed && **key >= from && uris.iter().any(begins)
                });
                let wanted: Vec<&[u8]> = wanted.map(|(key, _)| key.as_bytes()).collect();
                let found = index.of_record(record, Some(from.as_bytes()));
                let found: Vec<&[u8]> = found.map(|(key, _)| &**key).collect();
                prop_assert_eq!(found, wanted);
            }
        }
    }
}
