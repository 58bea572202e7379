//! What every target is held to by the tests and by `bench peers check`: the promises of
//! [`crate::access`], tried one after the other against a database of its own.

mod update;
mod records;
mod tags;
mod transactions;
mod order;
mod together;
mod life;

use crate::access::{
    PartSet, PartWrite, PartsChange, RecordEntry, RecordTag, StoreConnection, StoreSchema, TableId,
    TableSchema, TagRule,
};
use crate::space;
use crate::targets::{self, Capabilities, Database, Need, Support, Target};
use nearstate_model::{Error, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// A table of one part.
pub(crate) const PLAIN: TableId = TableId(0);
/// One of three.
pub(crate) const BLOCKS: TableId = TableId(1);
/// One of two parts, with two unique tags and one that is not.
pub(crate) const TAGGED: TableId = TableId(2);
/// One of one part and one unique tag.
pub(crate) const NUMBERED: TableId = TableId(3);
/// One that is scanned.
pub(crate) const ORDERED: TableId = TableId(4);

const ID: TagRule = TagRule { name: "id", is_unique: true };
const ALIAS: TagRule = TagRule { name: "alias", is_unique: true };
const GROUP: TagRule = TagRule { name: "group", is_unique: false };

const fn table(
    name: &'static str,
    parts: &'static [&'static str],
    tags: &'static [TagRule],
    is_scanned: bool,
) -> TableSchema {
    TableSchema { name, parts, tags, is_scanned }
}

/// Those without tags, then those with, then the one that is scanned.
static TABLES: [TableSchema; 5] = [
    table("plain", &["value"], &[], false),
    table("blocks", &["a", "b", "c"], &[], false),
    table("tagged", &["one", "two"], &[ID, ALIAS, GROUP], false),
    table("numbered", &["value"], &[ID], false),
    table("ordered", &["first", "second"], &[], true),
];

/// Records of a conformance run at the most, and bytes of the largest.
const RECORDS: u64 = 20_000;
const RECORD_BYTES: u64 = 8192;

/// Why something does not hold.
#[derive(Debug)]
pub(crate) struct Broken(String);

impl From<Error> for Broken {
    fn from(e: Error) -> Self {
        Self(format!("unexpected: {e}"))
    }
}

pub(crate) type HeldRecord = Result<(), Broken>;

/// Demands something.
pub(crate) fn must(holds: bool, what: impl FnOnce() -> String) -> HeldRecord {
    if holds { Ok(()) } else { Err(Broken(what())) }
}

/// What became of one promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    Holds,
    /// The target does not give it. Why.
    Declined(&'static str),
    /// It does not hold. How that showed.
    Broken(String),
}

/// Which ability a promise is about.
#[derive(Clone, Copy)]
enum About {
    All,
    UniqueTag,
    Transaction,
    TagsInTransactions,
    Scan,
    Servers,
}

type Check = fn(&TargetUnderTest<'_>) -> HeldRecord;

/// The promises: what, which ability it takes, and how it is tried.
const PROMISES: &[(&str, About, Check)] = &[
    ("what was put is read, and is replaced whole", About::All, records::put_and_read),
    ("wanted parts are handed over", About::All, records::wanted_parts),
    ("a change touches its parts and nothing else", About::All, records::change),
    ("a change of no record leaves none", About::All, records::change_of_nothing),
    ("an update writes what it makes of what it reads", About::All, update::update),
    ("a record is deleted once", About::All, records::delete),
    ("any bytes are a key, and parts are empty or large", About::All, records::hostile),
    ("tables do not meet", About::All, records::tables_apart),
    ("what one connection has written another reads", About::All, records::shared),
    ("a record is found by each unique tag", About::UniqueTag, tags::find),
    ("a tag that is taken is refused and nothing has changed", About::UniqueTag, tags::taken),
    ("a record is tagged anew", About::UniqueTag, tags::retag),
    ("a change of parts keeps the tags", About::UniqueTag, tags::kept),
    ("who deletes nothing takes no tag away", About::UniqueTag, tags::delete_of_nothing),
    ("one of many wins a tag", About::UniqueTag, tags::race),
    ("a transaction is done whole", About::Transaction, transactions::whole),
    ("a transaction that fails leaves nothing", About::Transaction, transactions::aborted),
    ("no update of two connections is lost", About::Transaction, transactions::counted),
    ("two records are read at one instant", About::Transaction, transactions::instant),
    ("tags in transactions", About::TagsInTransactions, transactions::tagged),
    ("a scan goes in the order of keys", About::Scan, order::scan),
    ("requests together are as one by one", About::All, together::as_one_by_one),
    ("requests that are sent ahead are as one by one", About::All, together::ahead),
    ("more requests than fit in one message", About::All, together::many),
    ("tagged requests together", About::UniqueTag, together::tagged),
    ("finds together are as one by one", About::UniqueTag, together::finds),
    ("finds travel with changes", About::UniqueTag, together::finds_and_changes),
    ("processes and memory are told", About::All, life::told),
    ("a second database is another one", About::All, life::second),
    ("a server that is dead is an error and no wait", About::Servers, life::dead),
];

/// A target, its database, and a way to connections.
pub(crate) struct TargetUnderTest<'d> {
    pub(crate) target: Box<dyn Target>,
    pub(crate) database: &'d dyn Database,
    pub(crate) schema: StoreSchema,
    pub(crate) folder: &'d Path,
}

impl TargetUnderTest<'_> {
    /// A new connection.
    pub(crate) fn connect(&self) -> Result<Box<dyn StoreConnection>> {
        self.target.connect(&self.database.address(), &self.schema)
    }

    /// What another database would need.
    pub(crate) fn need(&self) -> Need {
        need(self.schema, self.folder)
    }
}

fn need(schema: StoreSchema, folder: &Path) -> Need {
    Need {
        schema,
        records: RECORDS,
        record_bytes: RECORD_BYTES,
        clients: 16,
        folder: folder.to_owned(),
        server_cpus: Vec::new(),
        is_busy_polling: false,
        stop: None,
        layout: None,
    }
}

const fn refusal(way: &Support) -> Option<&'static str> {
    match way {
        Support::Native | Support::Emulated(_) => None,
        Support::Declined(why) => Some(why),
    }
}

/// The tables that a target can be given.
fn tables_for(capabilities: &Capabilities) -> &'static [TableSchema] {
    if refusal(&capabilities.unique_tag).is_some() {
        return TABLES.get(..2).unwrap_or_default();
    }
    if refusal(&capabilities.scan).is_some() {
        TABLES.get(..4).unwrap_or_default()
    } else {
        &TABLES
    }
}

fn declined(about: About, capabilities: &Capabilities, has_servers: bool) -> Option<&'static str> {
    match about {
        About::All => None,
        About::UniqueTag => refusal(&capabilities.unique_tag),
        About::Transaction => refusal(&capabilities.transaction),
        About::TagsInTransactions => {
            refusal(&capabilities.transaction).or_else(|| refusal(&capabilities.unique_tag))
        }
        About::Scan => refusal(&capabilities.scan).or_else(|| refusal(&capabilities.unique_tag)),
        About::Servers => (!has_servers).then_some("no server: it lives in its clients"),
    }
}

/// Tries every promise against the target of this name, started with `layout` below `folder`;
/// `tell` hears each outcome as it is known.
pub fn check(
    name: &str,
    layout: Option<&str>,
    folder: &Path,
    tell: &mut dyn FnMut(&'static str, &CheckOutcome),
) -> Result<Vec<(&'static str, CheckOutcome)>> {
    targets::can_be_laid_out(layout, &[name])?;
    let target = targets::named(name)?;
    target.version()?;
    let folder = &space::folder(folder)?;
    let capabilities = target.capabilities_in(layout);
    let schema = StoreSchema { tables: tables_for(&capabilities) };
    let mut needed = need(schema, folder);
    needed.layout = layout.map(str::to_owned);
    let database = target.start(&needed)?;
    let tested = TargetUnderTest { target, database: database.as_ref(), schema, folder };
    let has_servers = !database.processes().is_empty();
    let mut all = Vec::new();
    for (what, about, hold) in PROMISES {
        let outcome = match declined(*about, &capabilities, has_servers) {
            Some(why) => CheckOutcome::Declined(why),
            None => match hold(&tested) {
                Ok(()) => CheckOutcome::Holds,
                Err(Broken(how)) => CheckOutcome::Broken(how),
            },
        };
        tell(what, &outcome);
        all.push((*what, outcome));
    }
    Ok(all)
}

/// A record as it was received.
pub(crate) type ReceivedParts = BTreeMap<usize, Vec<u8>>;

/// Reads a record whole.
pub(crate) fn read(
    access: &mut (impl crate::access::StoreAccess + ?Sized),
    table: TableId,
    key: &[u8],
) -> Result<Option<ReceivedParts>> {
    let mut received = ReceivedParts::new();
    let is_there = access.read(table, key, PartSet::ALL, &mut |part, bytes| {
        received.insert(part, bytes.to_vec());
    })?;
    Ok(is_there.then_some(received))
}

/// The one part of a record of [`PLAIN`].
pub(crate) fn value(
    access: &mut (impl crate::access::StoreAccess + ?Sized),
    key: &[u8],
) -> Result<Option<Vec<u8>>> {
    Ok(read(access, PLAIN, key)?.and_then(|mut received| received.remove(&0)))
}

/// Parts that are numbered from 0.
pub(crate) fn received(parts: &[&[u8]]) -> ReceivedParts {
    parts.iter().map(|bytes| bytes.to_vec()).enumerate().collect()
}

pub(crate) const fn entry<'a>(key: &'a [u8], parts: &'a [PartWrite<'a>]) -> RecordEntry<'a> {
    RecordEntry { key, parts, tags: &[], tags_before: &[] }
}

pub(crate) const fn change<'a>(key: &'a [u8], parts: &'a [PartWrite<'a>]) -> PartsChange<'a> {
    PartsChange { key, parts, tags: None }
}

/// Puts a record of [`PLAIN`].
pub(crate) fn put_value(
    access: &mut (impl crate::access::StoreAccess + ?Sized),
    key: &[u8],
    bytes: &[u8],
) -> Result<()> {
    access.put(PLAIN, &entry(key, &[(0, bytes)]))
}

/// The key of the record with this unique tag.
pub(crate) fn found(
    access: &mut (impl crate::access::StoreAccess + ?Sized),
    table: TableId,
    tag: RecordTag<'_>,
) -> Result<Option<(Vec<u8>, ReceivedParts)>> {
    let (mut key, mut received) = (b"left over".to_vec(), ReceivedParts::new());
    let is_there = access.find(table, tag, PartSet::ALL, &mut key, &mut |part, bytes| {
        received.insert(part, bytes.to_vec());
    })?;
    Ok(is_there.then_some((key, received)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If a store that keeps nothing passed, so would any.
    #[test]
    fn a_store_that_keeps_nothing_breaks_nearly_every_promise() {
        let folder = tempfile::tempdir().unwrap();
        let all = check("null", None, folder.path(), &mut |_, _| {}).unwrap();
        // It answers together what it answers one by one.
        let is_same = [
            "requests together are as one by one",
            "requests that are sent ahead are as one by one",
        ];
        let holding: Vec<_> = all
            .iter()
            .filter(|(what, outcome)| *outcome == CheckOutcome::Holds && !is_same.contains(what))
            .collect();
        assert!(holding.is_empty(), "{holding:?}");
        assert_eq!(all.len(), PROMISES.len());
    }
}
