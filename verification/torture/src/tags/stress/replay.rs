//! Replays the rings: each record's life by the stream and by the watchers' ring, and each
//! transaction by its writer's result. Compares all of it with the records.

use std::collections::{BTreeMap, BTreeSet};

use nearstate_store::meta::Meta;
use nearstate_store::{
    Event, EventKind, Namespace, Session, StreamEntry, StreamedChange, Values, now_ms,
};

use crate::error_context::ErrorContext as _;
use crate::tags::stress::worker::ZONES;

/// A record as it was put.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StoredPut {
    version: u64,
    value: String,
    tags: BTreeSet<(String, String)>,
    expires_ms: u64,
}

/// The kind of a change. In sorted order, a version is put before it is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ChangeKind {
    Put,
    Deleted,
}

/// The state of the region according to its rings.
#[derive(Debug, Default)]
pub(super) struct StreamReplay {
    /// Stored records according to the stream, without collected ones.
    stored: BTreeMap<String, StoredPut>,
    /// Changes of this round: key and version, and what was put.
    steps: BTreeMap<(String, u64, ChangeKind), Option<StoredPut>>,
    /// Transactions in the stream, by writer and number.
    committed: BTreeSet<(u16, u64)>,
    /// Stored versions according to the watchers' ring.
    watched: BTreeMap<String, u64>,
    /// Puts of this round that watchers received.
    delivered: BTreeSet<(String, u64)>,
    pub(super) events: u64,
    /// Records that were collected.
    pub(super) collected: u64,
    /// True once watchers have lost events: then their ring is not replayed any more.
    pub(super) has_lost_events: bool,
}

fn utf8(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl StreamReplay {
    /// Adds an entry of the stream.
    pub(super) fn add_entry(&mut self, entry: &StreamEntry<'_>) -> Result<(), String> {
        let (mut mark, mut is_only_expiry) = (None, true);
        for record in entry.records() {
            let record = record.map_err(|e| format!("{entry:?}: {e:?}"))?;
            let key = utf8(record.key);
            let (kind, put) = match record.change {
                StreamedChange::Put { value, meta, .. } => {
                    let split = if meta.is_empty() { None } else { Meta::split(meta).ok() };
                    let tags = split.iter().flat_map(|(_, meta)| meta.tags()).flatten();
                    let put = StoredPut {
                        version: record.version,
                        value: utf8(value),
                        tags: tags.map(|(name, value)| (name.to_owned(), utf8(value))).collect(),
                        expires_ms: split.map_or(0, |(_, meta)| meta.expires_ms),
                    };
                    if key.ends_with("-mark") {
                        mark = Some(put.value.clone());
                    }
                    (ChangeKind::Put, Some(put))
                }
                StreamedChange::Deleted { is_expiry } => {
                    self.collected += u64::from(is_expiry);
                    is_only_expiry &= is_expiry;
                    (ChangeKind::Deleted, None)
                }
                StreamedChange::Patched { .. } | StreamedChange::Elements { .. } => {
                    return Err(format!("{key}: an unexpected patch"));
                }
            };
            let id = (key, record.version, kind);
            if self.steps.insert(id.clone(), put).is_some() {
                return Err(format!("{id:?} is in the stream twice"));
            }
        }
        let Some(mark) = mark else {
            return if is_only_expiry { Ok(()) } else { Err(format!("half of {entry:?}")) };
        };
        let mut words = mark.split(' ').map(str::parse::<u64>);
        let (Some(Ok(writer)), Some(Ok(seq))) = (words.next(), words.next()) else {
            return Err(format!("a mark of {mark:?}"));
        };
        let writer = u16::try_from(writer).unwrap_or(u16::MAX);
        if !self.committed.insert((writer, seq)) {
            return Err(format!("transaction {seq} of writer {writer} is in the stream twice"));
        }
        Ok(())
    }

    /// Adds an event of the watchers' ring.
    pub(super) fn add_event(&mut self, event: &Event<'_>) -> Result<(), String> {
        self.events += 1;
        let key = utf8(event.key);
        let before = self.watched.get(&key).copied();
        let is_right = match event.kind {
            EventKind::Created => before.is_none(),
            EventKind::Updated => before.is_some_and(|before| before < event.version),
            EventKind::Deleted | EventKind::Expired => before == Some(event.version),
        };
        if !is_right {
            return Err(format!("{event:?} of a record at {before:?}"));
        }
        if matches!(event.kind, EventKind::Created | EventKind::Updated) {
            if !self.delivered.insert((key.clone(), event.version)) {
                return Err(format!("{event:?} was delivered twice"));
            }
            self.watched.insert(key, event.version);
        } else {
            self.watched.remove(&key);
        }
        Ok(())
    }

    /// Applies the changes of the round, record by record in the order of versions.
    pub(super) fn apply_round(&mut self) -> Result<(), String> {
        let puts = self.steps.keys().filter(|(_, _, kind)| *kind == ChangeKind::Put);
        let puts: BTreeSet<(String, u64)> =
            puts.map(|(key, version, _)| (key.clone(), *version)).collect();
        let delivered = std::mem::take(&mut self.delivered);
        if !self.has_lost_events && puts != delivered {
            let differing: Vec<_> = puts.symmetric_difference(&delivered).take(5).collect();
            return Err(format!("in the stream or in the events, not in both: {differing:?}"));
        }
        for ((key, version, _), put) in std::mem::take(&mut self.steps) {
            let before = self.stored.get(&key).map(|put| put.version);
            if let Some(put) = put {
                if before.is_some_and(|before| before >= version) {
                    return Err(format!("{key}: version {version} after {before:?}"));
                }
                self.stored.insert(key, put);
            } else {
                if before != Some(version) {
                    return Err(format!("{key}: {version} was deleted when it was {before:?}"));
                }
                self.stored.remove(&key);
            }
        }
        let stored: BTreeMap<&String, u64> =
            self.stored.iter().map(|(key, put)| (key, put.version)).collect();
        let watched: BTreeMap<&String, u64> =
            self.watched.iter().map(|(key, version)| (key, *version)).collect();
        if !self.has_lost_events && stored != watched {
            return Err(format!("the stream leads to {stored:?}, the events to {watched:?}"));
        }
        Ok(())
    }

    /// Checks a writer's results: the stream contains its acknowledged transactions and no refused
    /// ones. Returns how many were done, refused because of a tag, cut short, and cut short but
    /// committed.
    pub(super) fn check_writer(&self, writer: u16, journal: &str) -> Result<[u64; 4], String> {
        let [mut done, mut taken, mut cut, mut cut_done] = [0; 4];
        let mut open = None;
        for line in journal.lines() {
            let (result, seq) = line.split_once(' ').ok_or_else(|| format!("{line:?}"))?;
            let seq: u64 = seq.parse().map_err(|e| format!("{line:?}: {e}"))?;
            let is_committed = |seq| self.committed.contains(&(writer, seq));
            if result == "begun" {
                if let Some(open) = open.replace(seq) {
                    (cut, cut_done) = (cut + 1, cut_done + u64::from(is_committed(open)));
                }
                continue;
            }
            open = None;
            if is_committed(seq) != (result == "done") {
                return Err(format!(
                    "writer {writer}: {line:?}, in the stream: {}",
                    is_committed(seq)
                ));
            }
            done += u64::from(result == "done");
            taken += u64::from(result == "taken");
        }
        if let Some(open) = open {
            let is_committed = self.committed.contains(&(writer, open));
            (cut, cut_done) = (cut + 1, cut_done + u64::from(is_committed));
        }
        Ok([done, taken, cut, cut_done])
    }

    /// Compares with the records of a posting list.
    fn compare_zone(&self, session: &Session, ns: Namespace, zone: &str) -> Result<(), String> {
        let tag = ("zone".to_owned(), zone.to_owned());
        let begun_ms = now_ms();
        let mut found = BTreeSet::new();
        session
            .find_all(ns, "zone", Values::Equal(zone.as_bytes()), |view| {
                found.insert(utf8(view.key()))
            })
            .map_err(|e| format!("find all of {zone}: {e}"))?;
        let now_ms = now_ms();
        for (key, put) in self.stored.iter().filter(|(_, put)| put.tags.contains(&tag)) {
            let is_living = put.expires_ms == 0 || put.expires_ms > now_ms;
            let was_past = put.expires_ms != 0 && put.expires_ms <= begun_ms;
            let is_found = found.remove(key);
            if is_living && !is_found || was_past && is_found {
                return Err(format!("{key}: found by {zone}: {is_found}, it is {put:?}"));
            }
        }
        match found.first() {
            Some(key) => Err(format!("{key} is found by {zone}, which it does not have")),
            None => Ok(()),
        }
    }

    /// Compares with the records of the namespace and with their counts.
    pub(super) fn compare(&self, session: &Session, ns: Namespace) -> Result<u64, String> {
        let begun_ms = now_ms();
        let mut seen = BTreeSet::new();
        let mut scan = session.scan(ns).context("scan")?;
        while let Some(view) = scan.next().context("scan")? {
            let actual = StoredPut {
                version: view.version(),
                value: utf8(view.bytes()),
                tags: view.tags().map(|(name, value)| (name.to_owned(), utf8(value))).collect(),
                expires_ms: view.expires_ms(),
            };
            let key = utf8(view.key());
            let expected = self.stored.get(&key);
            if expected != Some(&actual) {
                return Err(format!("{key} is {actual:?}, expected {expected:?}"));
            }
            seen.insert(key);
        }
        let now_ms = now_ms();
        let (mut counts, mut holders) = (BTreeMap::new(), BTreeMap::new());
        for (key, put) in &self.stored {
            let is_living = put.expires_ms == 0 || put.expires_ms > now_ms;
            let was_past = put.expires_ms != 0 && put.expires_ms <= begun_ms;
            if is_living && !seen.contains(key) || was_past && seen.contains(key) {
                return Err(format!("{key}: seen: {}, it is {put:?}", seen.contains(key)));
            }
            for tag in &put.tags {
                *counts.entry(tag.clone()).or_insert(0_u64) += 1;
                if !["cell", "zone"].contains(&tag.0.as_str())
                    && let Some(other) = holders.insert(tag.clone(), key)
                {
                    return Err(format!("{tag:?} has two holders: {key} and {other}"));
                }
            }
        }
        for zone in 0..ZONES {
            self.compare_zone(session, ns, &format!("z{zone}"))?;
        }
        for ((name, value), expected) in
            counts.iter().filter(|((name, _), _)| name != "guti" && name != "zone")
        {
            let count = session
                .count_tagged(ns, name, value.as_bytes())
                .map_err(|e| format!("count of {value}: {e}"))?;
            if count != *expected {
                return Err(format!("{count} records are counted with {value}, not {expected}"));
            }
        }
        Ok(self.stored.len() as u64)
    }
}
