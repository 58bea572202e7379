//! The processes of the stress test: they create and delete sessions with contended tags, collect
//! expired records, and search by tags.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nearstate_store::{
    Error, Metadata, Namespace, Schema, Session, TagSchema, Values, View, now_ms_coarse,
};

use crate::error_context::ErrorContext as _;
use crate::region_access::open_session;
use crate::rng::{Rng, percent};
use crate::tags::script_process::tags;

/// Keys of each writer.
const KEYS: u64 = 24;
/// Values of each unique tag over all writers: fewer than their keys, so that they collide.
pub(super) const UNIQUES: u64 = 40;
/// Values of the counted tag.
pub(super) const CELLS: u64 = 6;
/// Values of the tag that is searched by equality only.
pub(super) const ZONES: u64 = 2;
/// The longest time until a record expires, if it does.
const ENDS_MS_MAX: u64 = 60;

const NAME: &str = "sessions";

/// Opens the namespace of the stress test.
pub(super) fn open(session: &Session) -> Result<Namespace, String> {
    let zone = TagSchema { name: "zone".to_owned(), ..TagSchema::default() };
    let tags = tags().into_iter().chain([zone]).collect();
    let schema = Schema { tags, ..Schema::default() };
    session.namespace(NAME, &schema).context("open")
}

/// The file of a process's results.
pub(super) fn path_of(folder: &Path, role: &str, number: u16) -> PathBuf {
    folder.join(format!("{role}-{number}"))
}

fn append_to(path: &Path) -> Result<File, String> {
    OpenOptions::new().create(true).append(true).open(path).context(path.display())
}

fn attach(folder: &Path) -> Result<Session, String> {
    open_session(&folder.join("region"))
}

/// The value of a record; its tags and its expiry must match it.
pub(super) fn value_of(writer: u16, seq: u64, tags: &[String], expires_ms: u64) -> String {
    format!("{writer} {seq} {expires_ms} {}", tags.join(" "))
}

/// The change of one record.
enum SessionChange {
    Put { key: String, tags: Vec<String>, expires_ms: u64 },
    Delete { key: String },
}

fn step(number: u16, rng: &mut Rng, key: u64) -> SessionChange {
    // Long keys, so that lists of a few dozen postings are split and joined.
    let key = format!("w{number}-{key:050}");
    if percent(rng, 25) {
        return SessionChange::Delete { key };
    }
    // In the order of a record's tags.
    let mut tags = vec![format!("cell=c{}", rng.u64(..CELLS))];
    if percent(rng, 90) {
        tags.push(format!("guti=g{}", rng.u64(..UNIQUES)));
    }
    if percent(rng, 60) {
        tags.push(format!("teid=t{}", rng.u64(..UNIQUES)));
    }
    if percent(rng, 80) {
        tags.push(format!("zone=z{}", rng.u64(..ZONES)));
    }
    let ends = if percent(rng, 40) { now_ms_coarse() + rng.u64(..ENDS_MS_MAX) } else { 0 };
    SessionChange::Put { key, tags, expires_ms: ends }
}

/// Writes until it is killed.
pub(crate) fn write(folder: &Path, number: u16, rng: &mut Rng) -> Result<(), String> {
    let path = path_of(folder, "writer", number);
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let mut seq = text.lines().count() as u64;
    let mut file = append_to(&path)?;
    let mut record = |line: String| file.write_all(line.as_bytes()).context("results");
    let session = attach(folder)?;
    let ns = open(&session)?;
    loop {
        let key = rng.u64(..KEYS);
        let mut steps = vec![step(number, rng, key)];
        if percent(rng, 30) {
            let other = (key + 1 + rng.u64(..KEYS - 1)) % KEYS;
            steps.push(step(number, rng, other));
        }
        // A transaction whose two records want the same unique value is refused.
        seq += 1;
        record(format!("begun {seq}\n"))?;
        let done = session.transact(|txn| {
            // Identifies the transaction in the stream.
            let mark = value_of(number, seq, &[], 0);
            txn.put(ns, format!("w{number}-mark").as_bytes(), mark.as_bytes())?;
            for step in &steps {
                match step {
                    SessionChange::Delete { key } => {
                        txn.delete(ns, key.as_bytes())?;
                    }
                    SessionChange::Put { key, tags, expires_ms } => {
                        let value = value_of(number, seq, tags, *expires_ms);
                        let pairs: Vec<(&str, &[u8])> = tags
                            .iter()
                            .filter_map(|tag| tag.split_once('='))
                            .map(|(name, value)| (name, value.as_bytes()))
                            .collect();
                        let metadata = Metadata { tags: &pairs, expires_ms: *expires_ms };
                        txn.put_with_metadata(ns, key.as_bytes(), value.as_bytes(), metadata)?;
                    }
                }
            }
            Ok(())
        });
        let result = match done {
            Ok(()) => "done",
            Err(Error::TagTaken { .. }) => "taken",
            Err(Error::Deadline { .. } | Error::Conflict { .. }) => "late",
            Err(Error::Behind { .. }) => {
                std::thread::sleep(Duration::from_millis(1));
                "behind"
            }
            Err(error) => return Err(format!("transaction {seq}: {error}")),
        };
        record(format!("{result} {seq}\n"))?;
    }
}

/// Collects until it is killed.
pub(crate) fn collect(folder: &Path, rng: &mut Rng) -> Result<(), String> {
    let session = attach(folder)?;
    open(&session)?;
    loop {
        match session.collect_expired(1 + usize::from(percent(rng, 50)) * 20) {
            Ok(_) | Err(Error::Behind { .. }) => {}
            Err(error) => return Err(format!("collect: {error}")),
        }
        std::thread::sleep(Duration::from_micros(rng.u64(..2000)));
    }
}

/// Checks a view by itself: its value matches its tags and its expiry.
fn check_view(view: &View<'_>) -> Result<(), String> {
    let tags: Vec<String> =
        view.tags().map(|(name, value)| format!("{name}={}", value.escape_ascii())).collect();
    let text = String::from_utf8_lossy(view.bytes()).into_owned();
    let mut words = text.splitn(3, ' ');
    let (writer, seq) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let expected = format!("{writer} {seq} {} {}", view.expires_ms(), tags.join(" "));
    let key = view.key().escape_ascii().to_string();
    if text != expected || !key.starts_with(&format!("w{writer}-")) {
        return Err(format!("{key}: its value is {text:?}, its tags are {tags:?}"));
    }
    Ok(())
}

struct LookupReader {
    session: Session,
    ns: Namespace,
    /// The last known holder of each unique value.
    holders: BTreeMap<String, Vec<u8>>,
}

/// Searches until it is killed.
pub(crate) fn read(folder: &Path, number: u16, rng: &mut Rng) -> Result<(), String> {
    let mut file = append_to(&path_of(folder, "reader", number))?;
    let session = attach(folder)?;
    let ns = open(&session)?;
    let mut reader = LookupReader { session, ns, holders: BTreeMap::new() };
    loop {
        let mut lookups = 0;
        for _ in 0..100 {
            lookups += reader.look_up(rng)?;
        }
        lookups += reader.find_all(rng)?;
        file.write_all(format!("{lookups}\n").as_bytes()).context("results")?;
    }
}

impl LookupReader {
    /// Finds one record by a unique value and checks that no other record has the value at the same
    /// moment. Returns the number of lookups.
    fn look_up(&mut self, rng: &mut Rng) -> Result<u64, String> {
        let (name, letter) = if percent(rng, 50) { ("guti", 'g') } else { ("teid", 't') };
        let value = format!("{letter}{}", rng.u64(..UNIQUES));
        let found = match self.session.find(self.ns, name, value.as_bytes()) {
            Ok(found) => found,
            Err(Error::Conflict { .. }) => return Ok(0),
            Err(error) => return Err(format!("find {value}: {error}")),
        };
        if let Some(view) = &found {
            check_view(view)?;
            if !view.tags().any(|tag| tag == (name, value.as_bytes())) {
                return Err(format!("{value} led to {:?}", view.key().escape_ascii().to_string()));
            }
        }
        let holder = found.map(|view| view.key().to_vec());
        let before = self.holders.get(&value).cloned();
        if let Some(holder) = &holder {
            self.holders.insert(value.clone(), holder.clone());
        }
        let others = before.into_iter().chain(holder);
        for other in others {
            match self.has_two((name, &value), &other) {
                Ok(None) | Err(Error::Conflict { .. }) => {}
                Ok(Some(holder)) => {
                    let (one, other) = (holder.escape_ascii(), other.escape_ascii());
                    return Err(format!("{value} has two holders: {one} and {other}"));
                }
                Err(error) => return Err(format!("find {value} in a transaction: {error}")),
            }
        }
        Ok(2)
    }

    /// In one transaction: if another record has the value too, returns the holder according to the
    /// index; returns an empty key if the index has none.
    fn has_two(&self, (name, value): (&str, &str), other: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let txn = self.session.begin()?;
        // The index first: a record that expires between the two reads is absent in the second one.
        let holder = txn.find(self.ns, name, value.as_bytes())?.map(|(key, _)| key);
        let Some(record) = txn.get(self.ns, other)? else { return Ok(None) };
        let has_it = record.tags().any(|tag| tag == (name, value.as_bytes()));
        if !has_it || holder.as_deref() == Some(other) {
            return Ok(None);
        }
        // The index names another record or none, and this one has the value and has not expired.
        Ok(Some(holder.unwrap_or_default()))
    }

    /// Finds every record with a value of the counted tag or of the one with posting lists, none
    /// twice.
    fn find_all(&self, rng: &mut Rng) -> Result<u64, String> {
        let (name, value) = if percent(rng, 50) {
            ("cell", format!("c{}", rng.u64(..CELLS)))
        } else {
            ("zone", format!("z{}", rng.u64(..ZONES)))
        };
        let (mut lookups, mut failure, mut keys) = (1, Ok(()), BTreeSet::new());
        let result =
            self.session.find_all(self.ns, name, Values::Equal(value.as_bytes()), |view| {
                lookups += 1;
                let has_it = view.tags().any(|tag| tag == (name, value.as_bytes()));
                let is_new = keys.insert(view.key().to_vec());
                failure = check_view(view).and_then(|()| match (has_it, is_new) {
                    (true, true) => Ok(()),
                    (false, _) => Err(format!("{value} led to a record without it")),
                    (_, false) => Err(format!("{value} led to one record twice")),
                });
                failure.is_ok()
            });
        match result {
            Ok(()) | Err(Error::Conflict { .. }) => failure.map(|()| lookups),
            Err(error) => Err(format!("find all of {value}: {error}")),
        }
    }
}
