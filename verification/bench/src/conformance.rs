//! The conformance suite of targets, for the tests and for `bench peers check`: checks each promise
//! of [`crate::access`] against a separate database.

mod update;
mod records;
mod tags;
mod transactions;
mod order;
mod together;
mod life;

use crate::access::{
    PartSet, PartWrite, PartsChange, RecordEntry, RecordTag, StoreAccess, StoreConnection,
    StoreSchema, TableId, TableSchema, TagRule,
};
use crate::space;
use crate::targets::{self, Capabilities, Database, DatabaseSpec, Support, Target};
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

/// The largest number of records of a conformance run, and the bytes of the largest record.
const RECORDS: u64 = 20_000;
const RECORD_BYTES: u64 = 8192;

/// Why a check fails.
#[derive(Debug)]
pub(crate) struct CheckFailure(pub(crate) String);

impl From<Error> for CheckFailure {
    fn from(e: Error) -> Self {
        Self(format!("unexpected: {e}"))
    }
}

pub(crate) type CheckResult = Result<(), CheckFailure>;

/// The result of a check: an error with this text unless a condition holds.
macro_rules! ensure {
    ($holds:expr, $($text:tt)+) => {
        if $holds { Ok(()) } else { Err($crate::conformance::CheckFailure(format!($($text)+))) }
    };
}
pub(crate) use ensure;

/// The outcome of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    Holds,
    /// The target does not support it. Why.
    Declined(&'static str),
    /// The check failed. How.
    Broken(String),
}

/// The capability that a check needs.
#[derive(Clone, Copy)]
enum About {
    All,
    UniqueTag,
    Transaction,
    TagsInTransactions,
    Scan,
    Servers,
}

type Check = fn(&TargetUnderTest<'_>) -> CheckResult;

/// The checks: title, needed capability, function.
const CHECKS: &[(&str, About, Check)] = &[
    ("a put replaces the whole record", About::All, records::put_and_read),
    ("a read returns the requested parts", About::All, records::wanted_parts),
    ("a change modifies its parts only", About::All, records::change),
    ("a change of a missing record creates none", About::All, records::change_of_nothing),
    ("an update reads, modifies and writes", About::All, update::update),
    ("a second delete finds no record", About::All, records::delete),
    ("keys of any bytes, empty and large parts", About::All, records::hostile),
    ("tables are separate", About::All, records::tables_apart),
    ("a connection reads what another has written", About::All, records::shared),
    ("a record is found by each unique tag", About::UniqueTag, tags::find),
    ("a record is found and changed", About::UniqueTag, tags::find_and_change),
    ("a taken tag is refused, without an effect", About::UniqueTag, tags::taken),
    ("the tags of a record are replaced", About::UniqueTag, tags::retag),
    ("a change of parts keeps the tags", About::UniqueTag, tags::kept),
    ("a delete of a missing record removes no tag", About::UniqueTag, tags::delete_of_nothing),
    ("of concurrent puts with one tag, one succeeds", About::UniqueTag, tags::race),
    ("a transaction commits all of its writes", About::Transaction, transactions::whole),
    ("a failed transaction has no effect", About::Transaction, transactions::aborted),
    ("concurrent updates are not lost", About::Transaction, transactions::counted),
    ("two records are read from one snapshot", About::Transaction, transactions::instant),
    ("tags in transactions", About::TagsInTransactions, transactions::tagged),
    ("a scan returns keys in order", About::Scan, order::scan),
    ("a batch equals single requests", About::All, together::as_one_by_one),
    ("requests sent ahead equal single requests", About::All, together::ahead),
    ("more requests than fit in one message", About::All, together::many),
    ("a batch of requests with tags", About::UniqueTag, together::tagged),
    ("a batch of finds equals single finds", About::UniqueTag, together::finds),
    ("a batch of finds and changes", About::UniqueTag, together::finds_and_changes),
    ("processes and memory are reported", About::All, life::resources),
    ("two databases are independent", About::All, life::second),
    ("a killed server is an error at once", About::Servers, life::dead),
];

/// A target and its database.
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

    /// The requirements of another database.
    pub(crate) fn database_spec(&self) -> DatabaseSpec {
        database_spec(self.schema, self.folder)
    }
}

fn database_spec(schema: StoreSchema, folder: &Path) -> DatabaseSpec {
    DatabaseSpec {
        schema,
        records: RECORDS,
        record_bytes: RECORD_BYTES,
        clients: 16,
        folder: folder.to_owned(),
        ..DatabaseSpec::default()
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
        About::Servers => (!has_servers).then_some("no server: it runs in its clients"),
    }
}

/// Runs every check against a target, started with `layout` below `folder`, and reports each.
pub fn check(
    name: &str,
    layout: Option<&str>,
    folder: &Path,
    report: &mut dyn FnMut(&'static str, &CheckOutcome),
) -> Result<Vec<(&'static str, CheckOutcome)>> {
    targets::can_be_laid_out(layout, &[name])?;
    let target = targets::named(name)?;
    target.version()?;
    let folder = &space::folder(folder)?;
    let capabilities = target.capabilities_in(layout);
    let schema = StoreSchema { tables: tables_for(&capabilities) };
    let mut needed = database_spec(schema, folder);
    needed.layout = layout.map(str::to_owned);
    let database = target.start(&needed)?;
    let tested = TargetUnderTest { target, database: database.as_ref(), schema, folder };
    let has_servers = !database.processes().is_empty();
    let mut all = Vec::new();
    for (what, about, test) in CHECKS {
        let outcome = match declined(*about, &capabilities, has_servers) {
            Some(why) => CheckOutcome::Declined(why),
            None => match test(&tested) {
                Ok(()) => CheckOutcome::Holds,
                Err(CheckFailure(how)) => CheckOutcome::Broken(how),
            },
        };
        report(what, &outcome);
        all.push((*what, outcome));
    }
    Ok(all)
}

/// A record as it was received.
pub(crate) type ReceivedParts = BTreeMap<usize, Vec<u8>>;

/// Reads a record whole.
pub(crate) fn read(
    access: &mut dyn StoreAccess,
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
pub(crate) fn value(access: &mut dyn StoreAccess, key: &[u8]) -> Result<Option<Vec<u8>>> {
    Ok(read(access, PLAIN, key)?.and_then(|mut received| received.remove(&0)))
}

/// Parts that are numbered from 0.
pub(crate) fn received(parts: &[&[u8]]) -> ReceivedParts {
    parts.iter().map(|bytes| bytes.to_vec()).enumerate().collect()
}

pub(crate) const fn entry<'a>(key: &'a [u8], parts: &'a [PartWrite<'a>]) -> RecordEntry<'a> {
    RecordEntry::new(key, parts)
}

pub(crate) const fn change<'a>(key: &'a [u8], parts: &'a [PartWrite<'a>]) -> PartsChange<'a> {
    PartsChange { key, parts, tags: None }
}

/// Puts a record of [`PLAIN`].
pub(crate) fn put_value(access: &mut dyn StoreAccess, key: &[u8], bytes: &[u8]) -> Result<()> {
    access.put(PLAIN, &entry(key, &[(0, bytes)]))
}

/// The key of the record with this unique tag.
pub(crate) fn found(
    access: &mut dyn StoreAccess,
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

    /// If a store that stores nothing passed, any store would pass.
    #[test]
    fn a_store_that_keeps_nothing_breaks_nearly_every_promise() {
        let folder = tempfile::tempdir().unwrap();
        let all = check("null", None, folder.path(), &mut |_, _| {}).unwrap();
        // Requests sent together get the same replies as single ones.
        let is_same =
            ["a batch equals single requests", "requests sent ahead equal single requests"];
        let holding: Vec<_> = all
            .iter()
            .filter(|(what, outcome)| *outcome == CheckOutcome::Holds && !is_same.contains(what))
            .collect();
        assert!(holding.is_empty(), "{holding:?}");
        assert_eq!(all.len(), CHECKS.len());
    }
}
