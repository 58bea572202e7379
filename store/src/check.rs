//! The offline verifier: `nearstate-memory`'s walk over every byte, the format of each record, and
//! that the indexes of tags agree with the records.

use std::collections::BTreeMap;
use std::path::Path;

use nearstate_memory::AttachOptions;
use nearstate_memory::layout::namespace_flags;
use nearstate_model::{Error, Result, invariant};

pub use nearstate_memory::check::CheckReport;

use crate::index::internal::{
    EXPIRY_TREES, NAME, REPAIRING, VALUE_AT, count_key, expiry_root, list_prefix, posting_key,
    tag_root,
};
use crate::index::ordered::{self, composite, split_composite};
use crate::index::schema::{Tag, TagState};
use crate::index::scratch::List;
use crate::record::collection::{Collection, is_divided};
use crate::record::members::FlatMembers;
use crate::record::meta::{Meta, split};
use crate::record::parts::Shape;
use crate::record::{BlockContent, BlockTable, Form, Kind};
use crate::session::{Namespace, Region, Session};
use crate::tags::lists::check_list;
use crate::tags::maintain::{read_count, values};
use crate::txn::write_set::WriteSet;

/// Verifies a region that no process is attached to. Dead members are recovered first; nothing else
/// is changed. Complexity: linear in the taken bytes (about 1 GiB/s), and a lookup for each tag.
///
/// # Errors
/// `NotARegion`, `InUse` while a living process has a session, `System`. What is wrong inside is in
/// the report.
pub fn check(path: &Path) -> Result<CheckReport> {
    check_with(path, &AttachOptions::default())
}

/// As [`check`], with options.
///
/// # Errors
/// As [`check`].
pub fn check_with(path: &Path, options: &AttachOptions) -> Result<CheckReport> {
    let mut report = nearstate_memory::check::check_with(path, options, &mut |kind, record| {
        check_record(kind, record).map_err(|error| {
            if let Error::Damaged { detail } = error { detail } else { error.to_string() }
        })
    })?;
    if report.is_clean() {
        check_indexes(path, options, &mut report)?;
    }
    Ok(report)
}

fn damaged(detail: impl Into<String>) -> Error {
    Error::Damaged { detail: detail.into() }
}

/// The format of a record.
pub(crate) fn check_record(kind: u64, record: &nearstate_memory::Cell<'_>) -> Result<()> {
    let (value, meta) = split(*record, record.value()?)?;
    if !meta.is_empty() {
        Meta::split(meta)?.1.check()?;
    }
    match Kind::of(kind) {
        Some(kind @ (Kind::Value | Kind::Blocks | Kind::Mixed)) => match Form::of(kind, record) {
            Form::Value if record.form() != 0 => Err(damaged("a record of a form that is unknown")),
            Form::Value => Ok(()),
            Form::Blocks if is_divided(value) && kind == Kind::Mixed => {
                Ok(Collection::stored(Shape::Hash, *record, value)?.check()?)
            }
            Form::Blocks => check_blocks(record, value),
            Form::Set if is_divided(value) => {
                Ok(Collection::stored(Shape::Set, *record, value)?.check()?)
            }
            Form::Set => Ok(FlatMembers::new(value)?.check()?),
        },
        Some(Kind::Counters) => {
            if record.children() != 1 || !value.is_empty() {
                return Err(damaged("a counter that is not one cell"));
            }
            record.counter(0)?;
            Ok(())
        }
        None => Err(damaged("its namespace has a kind that does not exist")),
    }
}

fn check_blocks(record: &nearstate_memory::Cell<'_>, value: &[u8]) -> Result<()> {
    let mut table = BlockTable::new(value)?;
    while let Some(block) = table.next()? {
        let bytes = match block.content {
            BlockContent::Inline(bytes) => bytes,
            BlockContent::Child(child) if child < record.children() => record.block(child)?,
            BlockContent::Child(_) => return Err(damaged("a block has no cell")),
        };
        if bytes.len() != block.bytes as usize {
            return Err(damaged(format!("block {:?} has another size", block.name)));
        }
    }
    Ok(())
}

/// Checks that the indexes of tags agree with the records.
pub(crate) fn check_indexes(
    path: &Path,
    options: &AttachOptions,
    report: &mut CheckReport,
) -> Result<()> {
    let region = Region::attach_with(path, options)?;
    let session = region.session()?;
    if !region.has_internal(NAME)? {
        return Ok(());
    }
    let internal = session.member.table(session.internal_table()?)?;
    if session.member.find(internal, session.hash(REPAIRING), REPAIRING)?.is_some() {
        report.add_fault("a repair was interrupted: run `nearstate region check --repair` again");
    }
    let namespaces = region.inspect()?.namespaces;
    if let Some(number) = session.orphaned_numbers(&namespaces)?.first() {
        report.add_fault(format!("the indexes of namespace {number}, which does not exist"));
    }
    for entry in &namespaces {
        if session.member.namespace_flags(entry.index)? & namespace_flags::TAGGED == 0 {
            continue;
        }
        let Some(kind) = Kind::of(entry.kind) else { continue };
        let namespace = Namespace { index: entry.index, kind };
        for tag in session.tag_set(entry.index)?.tags() {
            if let Err(error) = check_tag(&session, namespace, tag) {
                let name = String::from_utf8_lossy(&entry.name);
                report.add_fault(format!("namespace {name:?}, tag {:?}: {error}", tag.name));
            }
        }
    }
    for tree in 0..EXPIRY_TREES {
        let mut set = WriteSet::new(&session)?;
        if let Err(error) = ordered::check(&mut set, expiry_root(tree), &mut |_| Ok(())) {
            report.add_fault(format!("the order of expiry: {error}"));
        }
    }
    Ok(())
}

/// Every value of every record is in the index, and nothing else is.
fn check_tag(session: &Session, namespace: Namespace, tag: &Tag) -> Result<()> {
    if tag.state != TagState::Ready {
        return Ok(()); // It answers no search; the next declaration of it finishes it.
    }
    let internal = session.member.table(session.internal_table()?)?;
    let mut set = WriteSet::new(session)?;
    let mut entries = Vec::new();
    if tag.is_ordered {
        ordered::check(&mut set, tag_root(namespace.index, tag.id), &mut |key| {
            entries.push(key.to_vec());
            Ok(())
        })?;
    }
    if tag.has_lists() {
        check_lists(&mut set, namespace, tag, &mut entries)?;
        entries.sort_unstable();
        if entries.windows(2).any(|pair| matches!(pair, [one, other] if one == other)) {
            return Err(damaged("a record occurs twice among the postings of one value"));
        }
    }
    let has_entries = tag.is_ordered || tag.has_lists();
    let (mut found, mut key) = (0, Vec::new());
    let mut counts = BTreeMap::new();
    session.each_stored(namespace, &mut |cell| {
        let (_, meta) = split(cell, cell.value()?)?;
        for value in values(meta, &tag.name) {
            found += 1;
            *counts.entry(value.to_vec()).or_insert(0) += i64::from(tag.is_counted);
            if tag.is_unique {
                posting_key(namespace.index, tag.id, value, &mut key);
                let posting = session.member.find(internal, session.hash(&key), &key)?;
                if posting.map(|(_, holder)| holder) != Some(cell.key()?) {
                    return Err(damaged(format!("record {:?} is not in it", text(cell.key()?))));
                }
            }
            if has_entries {
                key.clear();
                composite(value, cell.key()?, &mut key);
                if entries.binary_search(&key).is_err() {
                    return Err(damaged(format!("record {:?} is not in it", text(cell.key()?))));
                }
            }
        }
        Ok(())
    })?;
    if has_entries && entries.len() != found {
        let stray = entries.iter().map(|entry| split_composite(entry, &mut Vec::new()).map(text));
        let first = stray.flatten().next().unwrap_or_default();
        return Err(damaged(format!(
            "{} entries of {found} values; the first is of record {first:?}",
            entries.len()
        )));
    }
    if tag.is_unique {
        let postings = count_postings(session, namespace, tag)?;
        if postings != found {
            return Err(damaged(format!("{postings} postings of {found} values")));
        }
    }
    check_counts(session, namespace, tag, counts)
}

/// The postings of all values, each as an ordered index would have it. The parts of each value fill
/// their places, and there are no others.
fn check_lists(
    set: &mut WriteSet<'_>,
    namespace: Namespace,
    tag: &Tag,
    entries: &mut Vec<Vec<u8>>,
) -> Result<()> {
    let session = set.session;
    let internal = Namespace { index: session.internal_table()?, kind: Kind::Value };
    let mut prefix = Vec::new();
    list_prefix(namespace.index, tag.id, &mut prefix);
    let mut values = BTreeMap::<Vec<u8>, usize>::new();
    session.each_stored(internal, &mut |cell| {
        let key = cell.key()?;
        if key.starts_with(&prefix) {
            let value = key.get(VALUE_AT..).unwrap_or_default();
            *values.entry(value.to_vec()).or_default() += 1;
        }
        Ok(())
    })?;
    for (value, stored) in &values {
        let mut list = List::default();
        list.begin(namespace.index, tag.id, value);
        let reached = check_list(set, &mut list, &mut |key| {
            let mut entry = Vec::new();
            composite(value, key, &mut entry);
            entries.push(entry);
            Ok(())
        })?;
        if reached != *stored {
            let value = text(value);
            return Err(damaged(format!("{stored} parts of {value:?}, and {reached} of use")));
        }
    }
    Ok(())
}

/// The stripes of each value's count come to the number of records that have it.
fn check_counts(
    session: &Session,
    namespace: Namespace,
    tag: &Tag,
    mut found: BTreeMap<Vec<u8>, i64>,
) -> Result<()> {
    let internal = Namespace { index: session.internal_table()?, kind: Kind::Value };
    let mut prefix = Vec::new();
    count_key(namespace.index, tag.id, 0, &[], &mut prefix);
    // What follows the tag is the stripe.
    let stripe = prefix.pop();
    invariant!(stripe == Some(0), "the stripe ends the prefix of a count");
    session.each_stored(internal, &mut |cell| {
        if let Some([_, value @ ..]) = cell.key()?.strip_prefix(prefix.as_slice()) {
            *found.entry(value.to_vec()).or_default() -= read_count(cell.value()?);
        }
        Ok(())
    })?;
    match found.into_iter().find(|(_, left)| *left != 0) {
        Some((value, left)) => Err(damaged(format!(
            "the count of {:?} is {} too {}",
            text(&value),
            left.unsigned_abs(),
            if left > 0 { "low" } else { "high" }
        ))),
        None => Ok(()),
    }
}

fn count_postings(session: &Session, namespace: Namespace, tag: &Tag) -> Result<usize> {
    let internal = Namespace { index: session.internal_table()?, kind: Kind::Value };
    let mut prefix = Vec::new();
    posting_key(namespace.index, tag.id, &[], &mut prefix);
    let mut count = 0;
    session.each_stored(internal, &mut |cell| {
        count += usize::from(cell.key()?.starts_with(&prefix));
        Ok(())
    })?;
    Ok(count)
}

fn text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}
