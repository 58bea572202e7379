//! Conditions of a write, and the additional writes for a record's tags and order.

use super::RespTable;
use super::commands::{self, RespCommands, parts_command};
use crate::access::{PartsChange, RecordEntry, RecordTag, Request, TAGS_MAX, TableId};
use nearstate_model::{Error, Result};

/// The conditions of a write.
#[derive(Debug)]
pub(super) struct WriteGuard<'a> {
    pub(super) table: TableId,
    /// The record.
    pub(super) key: &'a [u8],
    pub(super) must_exist: bool,
    /// Unique tags that must not belong to another record.
    pub(super) unique_tags: UniqueTags<'a>,
    /// True if more than the record is written.
    pub(super) has_more: bool,
}

/// A list of tags.
#[derive(Debug)]
pub(super) struct UniqueTags<'a> {
    tags: [RecordTag<'a>; TAGS_MAX],
    count: usize,
}

impl<'a> UniqueTags<'a> {
    const NONE: Self = Self { tags: [(0, &[]); TAGS_MAX], count: 0 };

    /// The unique ones among `after` that are not in `before`.
    fn new(resp_table: &RespTable, after: &[RecordTag<'a>], before: &[RecordTag<'a>]) -> Self {
        let mut unique_tags = Self::NONE;
        let new = after.iter().filter(|tag| resp_table.is_unique(tag.0) && !before.contains(tag));
        for (slot, tag) in unique_tags.tags.iter_mut().zip(new) {
            *slot = *tag;
            unique_tags.count += 1;
        }
        unique_tags
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, RecordTag<'a>> {
        self.tags.get(..self.count).unwrap_or_default().iter()
    }
}

impl<'a> WriteGuard<'a> {
    pub(super) fn of_put(resp_table: &RespTable, table: TableId, entry: &RecordEntry<'a>) -> Self {
        let is_same = entry.tags.len() == entry.tags_before.len()
            && entry.tags.iter().all(|tag| entry.tags_before.contains(tag));
        Self {
            table,
            key: entry.key,
            must_exist: false,
            unique_tags: UniqueTags::new(resp_table, entry.tags, entry.tags_before),
            has_more: !is_same || resp_table.schema.is_scanned,
        }
    }

    pub(super) fn of_change(
        resp_table: &RespTable,
        table: TableId,
        change: &PartsChange<'a>,
    ) -> Self {
        let (before, after) = change.tags.unwrap_or_default();
        let unique_tags = UniqueTags::new(resp_table, after, before);
        Self { table, key: change.key, must_exist: true, unique_tags, has_more: true }
    }

    pub(super) fn of_delete(table: TableId, key: &'a [u8]) -> Self {
        Self { table, key, must_exist: true, unique_tags: UniqueTags::NONE, has_more: true }
    }

    /// True if there are no conditions.
    pub(super) const fn is_unconditional(&self) -> bool {
        !self.must_exist && self.unique_tags.count == 0
    }

    /// WATCH of all keys that the conditions read, and the reads.
    pub(super) fn watch_request(&self, resp_table: &RespTable, out: &mut Vec<u8>) {
        commands::head(out, 1 + usize::from(self.must_exist) + self.unique_tags.count);
        commands::word(out, b"WATCH");
        if self.must_exist {
            commands::two(out, &resp_table.prefix, self.key);
        }
        for (tag, value) in self.unique_tags.iter() {
            commands::two(out, resp_table.tag(*tag), value);
        }
        if self.must_exist {
            commands::key_request(out, b"EXISTS", &resp_table.prefix, self.key);
        }
        for (tag, value) in self.unique_tags.iter() {
            commands::key_request(out, b"GET", resp_table.tag(*tag), value);
        }
    }

    /// Calls the script that checks the conditions and writes.
    pub(super) fn script_request(
        &self,
        resp_table: &RespTable,
        script: &[u8],
        writes: &RespCommands,
        out: &mut Vec<u8>,
    ) {
        let keys = 1 + self.unique_tags.count;
        commands::head(out, 3 + keys + 3 + writes.words());
        commands::word(out, b"EVALSHA");
        commands::word(out, script);
        commands::word_of_number(out, keys);
        commands::two(out, &resp_table.prefix, self.key);
        for (tag, value) in self.unique_tags.iter() {
            commands::two(out, resp_table.tag(*tag), value);
        }
        commands::word_of_number(out, self.unique_tags.count);
        commands::word(out, if self.must_exist { b"1" } else { b"0" });
        commands::word(out, self.key);
        out.extend_from_slice(writes.bytes());
    }

    /// The error for the claimed tag with this index.
    #[cold]
    pub(super) fn taken(
        &self,
        resp_table: &RespTable,
        claim: Option<usize>,
        holder: &[u8],
    ) -> Error {
        let tag = claim.and_then(|claim| self.unique_tags.iter().nth(claim)).copied();
        taken(resp_table, tag.unwrap_or_default(), holder)
    }
}

#[cold]
fn taken(resp_table: &RespTable, (tag, value): RecordTag<'_>, holder: &[u8]) -> Error {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let tag = resp_table.schema.tags.get(tag).map_or("?", |rule| rule.name).to_owned();
    Error::TagTaken { tag, value: text(value), holder: text(holder) }
}

/// The reply to a change of parts alone shows whether the record existed, so it needs no guard.
pub(super) const fn needs_guard(change: &PartsChange<'_>) -> bool {
    change.tags.is_some() || change.parts.is_empty()
}

/// Only unique tags can be searched.
pub(super) fn must_be_unique(resp_table: &RespTable, tag: RecordTag<'_>) -> Result<()> {
    if resp_table.is_unique(tag.0) {
        return Ok(());
    }
    Err(bad_argument!("tag {} of table {} is not unique", tag.0, resp_table.schema.name))
}

/// The commands of a writing request.
pub(super) fn writes_of(resp_table: &RespTable, request: &Request<'_>, out: &mut RespCommands) {
    match request {
        Request::Read { .. } | Request::Find { .. } => {}
        Request::Put { entry, .. } => writes_of_put(resp_table, entry, out),
        Request::Change { change, .. } => writes_of_change(resp_table, change, out),
        Request::Delete { key, tags, .. } => writes_of_delete(resp_table, key, tags, out),
    }
}

/// The record, its tags and its order.
fn writes_of_put(resp_table: &RespTable, entry: &RecordEntry<'_>, out: &mut RespCommands) {
    parts_command(out, resp_table, entry.key, entry.parts);
    retag(resp_table, entry.key, entry.tags_before, entry.tags, out);
    if resp_table.schema.is_scanned {
        out.command(4);
        out.word(b"ZADD");
        out.word(&resp_table.order);
        out.word(b"0");
        out.word(entry.key);
    }
}

fn writes_of_change(resp_table: &RespTable, change: &PartsChange<'_>, out: &mut RespCommands) {
    if !change.parts.is_empty() {
        parts_command(out, resp_table, change.key, change.parts);
    }
    if let Some((before, after)) = change.tags {
        retag(resp_table, change.key, before, after, out);
    }
}

fn writes_of_delete(
    resp_table: &RespTable,
    key: &[u8],
    tags: &[RecordTag<'_>],
    out: &mut RespCommands,
) {
    out.command(2);
    out.word(b"DEL");
    out.key(&resp_table.prefix, key);
    retag(resp_table, key, tags, &[], out);
    if resp_table.schema.is_scanned {
        out.command(3);
        out.word(b"ZREM");
        out.word(&resp_table.order);
        out.word(key);
    }
}

/// Removes the old tags and adds the new ones, where they differ.
fn retag(
    resp_table: &RespTable,
    key: &[u8],
    before: &[RecordTag<'_>],
    after: &[RecordTag<'_>],
    out: &mut RespCommands,
) {
    for (tag, value) in before.iter().filter(|tag| !after.contains(tag)) {
        if resp_table.is_unique(*tag) {
            out.command(2);
            out.word(b"DEL");
            out.key(resp_table.tag(*tag), value);
        } else {
            out.command(3);
            out.word(b"SREM");
            out.key(resp_table.tag(*tag), value);
            out.word(key);
        }
    }
    for (tag, value) in after.iter().filter(|tag| !before.contains(tag)) {
        let is_unique = resp_table.is_unique(*tag);
        out.command(3);
        out.word(if is_unique { b"SET" } else { b"SADD" });
        out.key(resp_table.tag(*tag), value);
        out.word(key);
    }
}
