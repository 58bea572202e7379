//! The model of a script: the records after each prefix of its transactions, and the expected
//! events and stream entries. Pure. All state is text, so that a difference is readable.

use std::collections::{BTreeMap, BTreeSet};

/// A time in the past on every clock.
pub const PAST: u64 = 1;
/// A time that is in the past once a script sets its clock forward.
pub const SOON: u64 = 4_000_000_000_000;
/// A time that is still in the future then.
pub const LATE: u64 = 8_000_000_000_000;
/// How far a script sets its clock forward: a hundred years.
pub const FORWARD_MS: i64 = 3_155_760_000_000;

/// A change of one record in a transaction. A key is `space/name`, tags are
/// `name=value name=value`.
#[derive(Clone, Copy, Debug)]
pub enum ScriptChange {
    /// Sets value, tags and expiry.
    Put(&'static str, &'static str, &'static str, u64),
    /// Sets tags and expiry.
    Label(&'static str, &'static str, u64),
    /// Sets or deletes one block.
    Patch(&'static str, &'static str, Option<&'static str>),
    /// Deletes the record.
    Delete(&'static str),
    /// Allocates an object whose bytes are the key and these.
    Alloc(&'static str, &'static str),
    /// Overwrites the object's bytes after its key, with the same length.
    Write(&'static str, &'static str),
    /// Frees the object.
    Free(&'static str),
}

#[derive(Clone, Debug)]
pub enum ScriptStep {
    /// One transaction.
    Txn(Vec<ScriptChange>),
    /// A plain put of one record, which the store turns into a transaction if necessary.
    Plain(&'static str, &'static str),
    /// Collects all expired records, each in a transaction.
    Collect,
    /// Sets the clock forward, or back to the right time.
    Forward(bool),
    /// Declares the tags of `late`.
    Declare,
    /// Declares the tags of `late`, two of whose records have the same unique value.
    DeclareConflicting,
    /// Begins to declare the tag `cell` of `late` and does not finish.
    DeclareUnfinished,
    /// Watches a space, from the process that writes.
    Watch(&'static str),
    /// Streams a space; true means that a full stream refuses commits.
    Stream(&'static str, bool),
    /// Reads the streams and acknowledges them.
    Acknowledge,
    /// Adds to a counter.
    Add(&'static str, i64),
    /// Deletes a counter.
    Drop(&'static str),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelRecord {
    /// Blocks by name. The block of a record with one value has no name.
    pub blocks: BTreeMap<String, String>,
    pub tags: BTreeSet<(String, String)>,
    /// Expiry.
    pub expires: u64,
}

impl ModelRecord {
    pub fn text(&self) -> String {
        let blocks: Vec<String> = self.blocks.iter().map(|(n, b)| format!("{n}:{b}")).collect();
        format!("[{}] {} ends {}", blocks.join(","), tags_text(&self.tags), self.expires)
    }

    fn is_past(&self, is_forward: bool) -> bool {
        self.expires != 0 && self.expires <= if is_forward { SOON } else { PAST }
    }
}

pub fn tags_text(tags: &BTreeSet<(String, String)>) -> String {
    let all: Vec<String> = tags.iter().map(|(name, value)| format!("{name}={value}")).collect();
    format!("{{{}}}", all.join(" "))
}

/// Tags from text.
pub fn tags_of(text: &str) -> BTreeSet<(String, String)> {
    let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The space of a key.
pub fn space_of(key: &str) -> &str {
    key.split_once('/').map_or("", |(space, _)| space)
}

/// The records, the events and the stream.
#[derive(Clone, Debug, Default)]
pub struct TagModel {
    /// Records by key, including expired ones.
    pub records: BTreeMap<String, ModelRecord>,
    /// Counters by key.
    pub counters: BTreeMap<String, i64>,
    /// Watched spaces, and the events of each.
    pub events: BTreeMap<String, Vec<String>>,
    /// Streamed spaces.
    pub streamed: BTreeSet<String>,
    /// Transactions in the stream: the steps of each.
    pub stream: Vec<Vec<String>>,
    /// The earliest entry of each record in the order of expiry. A record whose expiry was moved
    /// later keeps it.
    pub entries: BTreeMap<String, u64>,
    /// True if the tags of `late` can be searched.
    pub is_late_ready: bool,
    /// True once writers maintain the tag `cell` of `late`, also if it cannot be searched yet.
    pub is_cell_kept: bool,
    /// True while the clock is set forward.
    pub is_forward: bool,
}

impl TagModel {
    /// The models after zero, one, two ... transactions of a step; the last one is after the whole
    /// step. A step without visible changes has only one: it is repeated.
    pub fn after(&self, step: &ScriptStep) -> Vec<Self> {
        let mut models = vec![self.clone()];
        let mut next = self.clone();
        match step {
            ScriptStep::Txn(changes) => {
                next.transact(changes);
                models.push(next);
            }
            ScriptStep::Plain(key, value) => {
                next.transact(&[ScriptChange::Put(key, value, "", 0)]);
                models.push(next);
            }
            ScriptStep::Collect => {
                let mut due: Vec<(u64, String)> = Vec::new();
                for (key, record) in &self.records {
                    if record.is_past(self.is_forward) {
                        let entry = self.entries.get(key).copied();
                        due.push((entry.unwrap_or(record.expires), key.clone()));
                    }
                }
                due.sort();
                for (_, key) in due {
                    next.expire(&key);
                    models.push(next.clone());
                }
            }
            ScriptStep::Forward(is_forward) => {
                next.is_forward = *is_forward;
                models = vec![next];
            }
            ScriptStep::Declare => {
                next.is_late_ready = true;
                models.push(next);
            }
            ScriptStep::DeclareConflicting | ScriptStep::Watch(_) => {}
            ScriptStep::DeclareUnfinished => {
                next.is_cell_kept = true;
                models.push(next);
            }
            ScriptStep::Stream(space, _) => {
                next.streamed.insert((*space).to_owned());
                models = vec![next];
            }
            ScriptStep::Acknowledge => {
                next.stream.clear();
                models.push(next);
            }
            ScriptStep::Add(key, delta) => {
                *next.counters.entry((*key).to_owned()).or_default() += delta;
                models.push(next);
            }
            ScriptStep::Drop(key) => {
                next.counters.remove(*key);
                models.push(next);
            }
        }
        models
    }

    /// The model after a whole script.
    #[must_use]
    pub fn after_all(&self, steps: &[ScriptStep]) -> Self {
        let mut model = self.clone();
        for step in steps {
            model = model.after(step).pop().unwrap_or_default();
        }
        model
    }

    fn add_event(&mut self, key: &str, kind: &str, before: &ModelRecord, after: &ModelRecord) {
        if let Some(events) = self.events.get_mut(space_of(key)) {
            let (before, after) = (tags_text(&before.tags), tags_text(&after.tags));
            events.push(format!("{kind} {key} {before} -> {after}"));
        }
    }

    fn transact(&mut self, changes: &[ScriptChange]) {
        let mut steps = Vec::new();
        let mut evicted = Vec::new();
        for change in changes {
            let key = change.key();
            let old = self.records.get(key).cloned();
            let living = old.clone().filter(|record| !record.is_past(self.is_forward));
            let none = ModelRecord::default();
            if let (Some(old), None) = (&old, &living) {
                self.add_event(key, "expired", old, &none);
            }
            let before = living.as_ref().unwrap_or(&none);
            let new = change.applied(before);
            if let Some(new) = &new {
                let kind = if living.is_some() { "updated" } else { "created" };
                self.add_event(key, kind, before, new);
                evicted.extend(self.evicted_by(key, new));
                if new.expires != 0 {
                    let entry = self.entries.entry(key.to_owned()).or_insert(new.expires);
                    *entry = new.expires.min(*entry);
                }
                self.records.insert(key.to_owned(), new.clone());
            } else {
                if living.is_some() {
                    self.add_event(key, "deleted", before, &none);
                }
                self.records.remove(key);
            }
            if self.streamed.contains(space_of(key)) {
                let is_anew = living.is_none();
                steps.push(change.step(new.as_ref(), is_anew));
            }
        }
        for key in evicted {
            if self.streamed.contains(space_of(&key)) {
                steps.push(format!("expired {key}"));
            }
            let none = ModelRecord::default();
            let old = self.records.remove(&key).unwrap_or_default();
            self.add_event(&key, "expired", &old, &none);
        }
        if !steps.is_empty() {
            self.stream.push(steps);
        }
    }

    /// Another record that has expired and has a unique value of this one.
    fn evicted_by(&self, key: &str, new: &ModelRecord) -> Option<String> {
        let is_unique = |tag: &&(String, String)| tag.0 == "guti" || tag.0 == "teid";
        let shares = |record: &ModelRecord| {
            new.tags.iter().filter(is_unique).any(|tag| record.tags.contains(tag))
        };
        let mut others = self
            .records
            .iter()
            .filter(|(other, _)| other.as_str() != key && space_of(other) == space_of(key));
        others
            .find(|(_, record)| shares(record) && record.is_past(self.is_forward))
            .map(|(k, _)| k.clone())
    }

    /// A record is collected.
    fn expire(&mut self, key: &str) {
        let Some(old) = self.records.remove(key) else { return };
        self.add_event(key, "expired", &old, &ModelRecord::default());
        if self.streamed.contains(space_of(key)) {
            self.stream.push(vec![format!("expired {key}")]);
        }
    }

    /// The records that a process with the right clock sees.
    pub fn seen(&self) -> BTreeMap<String, String> {
        let living = self.records.iter().filter(|(_, record)| !record.is_past(false));
        living.map(|(key, record)| (key.clone(), record.text())).collect()
    }

    /// The number of records of a space with a value of a tag, including expired ones.
    pub fn count(&self, space: &str, name: &str, value: &str) -> u64 {
        let tag = (name.to_owned(), value.to_owned());
        let all = self.records.iter().filter(|(key, _)| space_of(key) == space);
        all.filter(|(_, record)| record.tags.contains(&tag)).count() as u64
    }
}

impl ScriptChange {
    /// The record's key.
    pub const fn key(&self) -> &'static str {
        match self {
            Self::Put(key, ..)
            | Self::Label(key, ..)
            | Self::Patch(key, ..)
            | Self::Delete(key)
            | Self::Alloc(key, _)
            | Self::Write(key, _)
            | Self::Free(key) => key,
        }
    }

    fn applied(&self, before: &ModelRecord) -> Option<ModelRecord> {
        let mut new = before.clone();
        match self {
            Self::Put(_, value, tags, expires) => {
                new.blocks = [(String::new(), (*value).to_owned())].into();
                (new.tags, new.expires) = (tags_of(tags), *expires);
            }
            Self::Label(_, tags, expires) => (new.tags, new.expires) = (tags_of(tags), *expires),
            Self::Patch(_, block, Some(bytes)) => {
                new.blocks.insert((*block).to_owned(), (*bytes).to_owned());
            }
            Self::Patch(_, block, None) => {
                new.blocks.remove(*block);
            }
            Self::Alloc(key, bytes) | Self::Write(key, bytes) => {
                new.blocks = [(String::new(), format!("{key} {bytes}"))].into();
            }
            Self::Delete(_) | Self::Free(_) => return None,
        }
        Some(new)
    }

    /// The stream's text of the change.
    fn step(&self, new: Option<&ModelRecord>, is_anew: bool) -> String {
        let key = self.key();
        let text = new.map(ModelRecord::text).unwrap_or_default();
        match self {
            Self::Label(_, tags, expires) if space_of(key) == "blocks" => {
                let tags = tags_text(&tags_of(tags));
                format!("patch {key} false [] {tags} ends {expires}")
            }
            Self::Put(..) | Self::Label(..) => format!("put {key} {text}"),
            Self::Patch(_, block, bytes) => {
                let bytes = bytes.map_or_else(|| "-".to_owned(), |b| format!(":{b}"));
                format!("patch {key} {is_anew} [{block}{bytes}]")
            }
            Self::Alloc(..) | Self::Write(..) => format!("put object {text}"),
            Self::Free(_) => "deleted object".to_owned(),
            Self::Delete(_) => format!("deleted {key}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expired_holder_is_evicted_with_one_event() {
        let mut model = TagModel::default();
        model.events.insert("tagged".to_owned(), Vec::new());
        let steps = [
            ScriptStep::Txn(vec![ScriptChange::Put("tagged/a", "1", "guti=g", PAST)]),
            ScriptStep::Txn(vec![ScriptChange::Put("tagged/b", "2", "guti=g", 0)]),
            ScriptStep::Collect,
        ];
        let model = model.after_all(&steps);
        let events = model.events.get("tagged").map(Vec::as_slice).unwrap_or_default();
        let expected = [
            "created tagged/a {} -> {guti=g}",
            "created tagged/b {} -> {guti=g}",
            "expired tagged/a {guti=g} -> {}",
        ];
        assert_eq!(events, expected);
        assert_eq!(model.seen().into_keys().collect::<Vec<_>>(), ["tagged/b"]);
    }
}
