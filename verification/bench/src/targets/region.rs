//! Our region, in the client's process: a file in memory that every client attaches.

pub mod on_node;
mod loops;
mod transaction;

use self::transaction::RegionTransaction;
use super::{Capabilities, Database, DatabaseSpec, FileDatabase, Support, Target};
use crate::access::{
    BatchSink, Body, OPERATIONS, PARTS_MAX, PartReceiver, PartSet, PartWrite, PartsChange,
    RecordEntry, RecordRead, RecordTag, ReplySink, Request, ScanRange, ScanSink, StoreAccess,
    StoreConnection, StoreReply, StoreSchema, TAGS_MAX, TableId, TableSchema, Work, first_part,
    parts,
};
use crate::operations::{self, BlockOutcome, KeyBlock, Operation, Store};
use crate::reaper::Reaper;
use nearstate_model::Result;
use nearstate_model::limits::REGION_BYTES_MIN;
use nearstate_store::{
    BlockChange, BlockLayout, Condition, CreateOptions, Kind, Metadata, Namespace, NumaPolicy,
    Outcome, Prefetch, RecordForUpdate, Region, Session, TagSchema, Values, View,
};
use std::ops::Bound;
use std::path::Path;

/// Maximum overhead of a record: key, header, index, and a share of memory that is not in use yet.
/// Regions are created twice as large, for replaced records.
const RECORD_ROOM: u64 = 512;

/// Measured size of a region's file: this percentage of the bytes of the records (cell sizes are
/// rounded up, and some cells are free), this overhead for each record and each of its tags, and
/// its tables, in pages of 2 MiB.
const FILE_PERCENT: u64 = 125;
const FILE_OVERHEAD: u64 = 96;
const FILE_BYTES_MIN: u64 = 2 << 20;

/// The value of a record that fills a heap, and the bytes that it takes at most.
const FILLER: [u8; 1024] = [7; 1024];
const FILLER_BYTES: u64 = 1152;

/// The ordered tag of the keys of a table that is scanned.
const ORDER: &str = "key";

#[derive(Clone, Copy, Debug)]
pub struct RegionTarget;

impl Target for RegionTarget {
    fn name(&self) -> &'static str {
        "region"
    }

    fn version(&self) -> Result<String> {
        Ok(format!("nearstate {}, in the client's process", env!("CARGO_PKG_VERSION")))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            scan: Support::Emulated("an ordered tag holds the key of each record"),
            counter: Support::Native,
            ..Capabilities::DEFAULT
        }
    }

    fn folder_bytes(&self, spec: &DatabaseSpec) -> u64 {
        if fill_of(spec).is_some() { bytes_max(spec) } else { file_bytes(spec) }
    }

    /// `fill-P`: after loading, the heap is filled to P percent with other records.
    fn has_layout(&self, layout: &str) -> Result<bool> {
        Ok(percent_of(layout).is_some())
    }

    fn start(&self, spec: &DatabaseSpec) -> Result<Box<dyn Database>> {
        Ok(Box::new(create(spec, NumaPolicy::Default)?))
    }

    fn connect(&self, address: &str, schema: &StoreSchema) -> Result<Box<dyn StoreConnection>> {
        Ok(Box::new(RegionConnection::open(address, schema)?))
    }
}

/// An empty region with the workload's namespaces, and its memory on these nodes.
fn create(spec: &DatabaseSpec, numa: NumaPolicy) -> Result<FileDatabase> {
    let reaper = Reaper::start(&spec.folder, None, |_| Vec::new())?;
    let options = CreateOptions { bytes_max: bytes_max(spec), numa, ..CreateOptions::default() };
    let region = Region::create(&reaper.folder().join("region"), &options)?;
    let session = region.session()?;
    for table in spec.schema.tables {
        session.namespace(table.name, &schema_of(table))?;
    }
    drop(session);
    Ok(FileDatabase { reaper, file: "region", is_collapsed: true, fill: fill_of(spec) })
}

/// The used bytes of a region's file: much less than its maximum size.
pub(super) fn file_bytes(spec: &DatabaseSpec) -> u64 {
    spec.all_bytes(FILE_PERCENT, FILE_OVERHEAD).saturating_add(FILE_BYTES_MIN)
}

/// The size of the region: twice that of the records.
fn bytes_max(spec: &DatabaseSpec) -> u64 {
    let room = spec.records.saturating_mul(spec.record_bytes.saturating_add(RECORD_ROOM));
    room.saturating_mul(2).max(REGION_BYTES_MIN)
}

/// The percentage in a layout `fill-P`: below 100, because deletes need some room.
fn percent_of(layout: &str) -> Option<u64> {
    let percent = layout.strip_prefix("fill-")?.parse().ok()?;
    (1..100).contains(&percent).then_some(percent)
}

fn fill_of(spec: &DatabaseSpec) -> Option<u64> {
    spec.layout.as_deref().and_then(percent_of)
}

/// Adds records of 1 KiB to a region until this share of its heap is in use. A record and its share
/// of the index take somewhat less than [`FILLER_BYTES`], so that each look adds nearly all that is
/// missing, and never more.
pub(super) fn fill(path: &Path, percent: u64) -> Result<()> {
    let region = Region::attach(path)?;
    let session = region.session()?;
    let filler = session.namespace("filler", &nearstate_store::Schema::default())?;
    let mut added = 0_u64;
    loop {
        let heap = region.inspect()?.heap;
        let wanted = heap.total / 100 * percent;
        let missing = wanted.saturating_sub(heap.total.saturating_sub(heap.free)) / FILLER_BYTES;
        if missing == 0 {
            return Ok(());
        }
        for number in added..added + missing {
            session.put(filler, &number.to_be_bytes(), &FILLER)?;
        }
        added += missing;
    }
}

fn schema_of(table: &TableSchema) -> nearstate_store::Schema {
    let mut tags: Vec<TagSchema> = table
        .tags
        .iter()
        .map(|tag| TagSchema {
            name: tag.name.to_owned(),
            is_unique: tag.is_unique,
            ..TagSchema::default()
        })
        .collect();
    if table.is_scanned {
        tags.push(TagSchema { name: ORDER.to_owned(), is_ordered: true, ..TagSchema::default() });
    }
    let kind = if table.parts.len() == 1 { Kind::Value } else { Kind::Blocks };
    nearstate_store::Schema { kind, tags }
}

/// Backs a loaded region with 2 MiB pages, which causes fewer TLB misses.
pub(super) fn back_with_large_pages(path: &Path) -> Result<Option<String>> {
    let has_large = Region::attach(path)?.collapse()? > 0;
    let pages = if has_large { "2 MiB pages" } else { "4 KiB pages: the kernel gave no larger" };
    Ok(Some(format!("{pages} after collapse()")))
}

/// A client's attachment.
#[derive(Debug)]
pub struct RegionConnection {
    session: Session,
    tables: Tables,
}

#[derive(Debug)]
struct Tables {
    known: Vec<(Namespace, &'static TableSchema)>,
    /// The parts of each table.
    names: Vec<BlockLayout>,
}

impl Tables {
    #[inline]
    fn at(&self, table: TableId) -> Result<(Namespace, &'static TableSchema)> {
        self.known.get(table.0).copied().ok_or_else(|| table.unknown())
    }

    /// The names of a table's parts, if its records have several.
    #[inline]
    fn parts(&self, table: TableId) -> Option<&BlockLayout> {
        self.names.get(table.0).filter(|names| names.len() > 1)
    }

    /// Passes the wanted parts of a record of a table.
    #[inline]
    fn pass(
        &self,
        table: TableId,
        view: &View<'_>,
        wanted: PartSet,
        receive: &mut PartReceiver<'_>,
    ) {
        match self.parts(table) {
            None => receive(0, view.bytes()),
            Some(names) => view.blocks_of(names, |part| wanted.contains(part), receive),
        }
    }
}

impl RegionConnection {
    /// Attaches the region at this path.
    pub fn open(path: &str, schema: &StoreSchema) -> Result<Self> {
        let region = Region::attach(Path::new(path))?;
        region.populate()?;
        let session = region.session()?;
        let namespaces = schema.tables.iter();
        let tables = namespaces
            .map(|table| Ok((session.namespace(table.name, &schema_of(table))?, table)))
            .collect::<Result<_>>()?;
        let names = schema.tables.iter().map(|table| BlockLayout::new(table.parts));
        let tables = Tables { known: tables, names: names.collect::<Result<_>>()? };
        Ok(Self { session, tables })
    }
}

impl RegionConnection {
    /// The namespace of counters, created on first use.
    fn counters(&self) -> Result<Namespace> {
        let schema = nearstate_store::Schema { kind: Kind::Counters, ..Default::default() };
        self.session.namespace("counters", &schema)
    }

    /// Passes the parts of a record that is to be changed to `update`.
    #[inline]
    fn pass_record(
        &self,
        table: TableId,
        record: &RecordForUpdate<'_>,
        wanted: PartSet,
        work: &mut dyn Work,
    ) {
        match self.tables.parts(table) {
            None => work.receive(0, record.view().bytes()),
            Some(names) => record.blocks_of(
                names,
                |part| wanted.contains(part),
                |part, bytes| work.receive(part, bytes),
            ),
        }
    }

    /// Writes the changed parts of a record that was read; false if another client has changed it
    /// since.
    #[inline]
    fn write(
        &self,
        table: TableId,
        record: &RecordForUpdate<'_>,
        change: &PartsChange<'_>,
    ) -> Result<bool> {
        let (_, schema) = self.tables.at(table)?;
        if needs_transaction(schema, change) {
            return self.in_transaction(&Request::Change { table, change: *change });
        }
        let outcome = match self.tables.parts(table) {
            None => record.put(first_part(change.parts))?,
            Some(names) => record.patch(names, change.parts)?,
        };
        Ok(matches!(outcome, Outcome::Done { .. }))
    }

    /// What is loaded before a request is executed.
    fn prefetch_of<'a>(&self, request: &Request<'a>) -> Option<Prefetch<'a>> {
        let (namespace, schema) = self.tables.at(request.table()).ok()?;
        Some(match request {
            Request::Read { key, .. } => Prefetch::Read(namespace, key),
            Request::Find { tag: (tag, value), .. } => {
                Prefetch::Find(namespace, schema.tags.get(*tag)?.name, value)
            }
            Request::Put { entry, .. } => Prefetch::Touch(namespace, entry.key),
            Request::Change { change, .. } => Prefetch::Touch(namespace, change.key),
            Request::Delete { key, .. } => Prefetch::Touch(namespace, key),
        })
    }

    #[cold]
    fn in_transaction(&self, request: &Request<'_>) -> Result<bool> {
        let Self { session, tables, .. } = self;
        session.transact(|txn| RegionTransaction { txn, tables }.perform(request, &mut |_| {}))
    }
}

/// Tags in the form of the store, with space for the ordered tag of the keys.
struct Tagged<'a> {
    tags: [(&'a str, &'a [u8]); TAGS_MAX + 1],
    count: usize,
}

impl<'a> Tagged<'a> {
    #[inline]
    fn of(schema: &TableSchema, tags: &[RecordTag<'a>], key: &'a [u8]) -> Self {
        let mut tagged = Self { tags: [("", &[]); TAGS_MAX + 1], count: 0 };
        for (tag, value) in tags.iter().take(TAGS_MAX) {
            if let Some(rule) = schema.tags.get(*tag) {
                tagged.add(rule.name, value);
            }
        }
        if schema.is_scanned {
            tagged.add(ORDER, key);
        }
        tagged
    }

    #[inline]
    fn add(&mut self, name: &'static str, value: &'a [u8]) {
        if let Some(entry) = self.tags.get_mut(self.count) {
            *entry = (name, value);
            self.count += 1;
        }
    }

    #[inline]
    fn metadata(&self) -> Metadata<'_> {
        let tags = self.tags.get(..self.count).unwrap_or_default();
        Metadata { tags, ..Metadata::default() }
    }
}

/// Empty block changes, to be filled.
const NO_BLOCKS: [BlockChange<'_>; PARTS_MAX] = [BlockChange { name: "", bytes: None }; PARTS_MAX];

/// Converts parts to block changes.
#[inline]
fn blocks_of<'a, 'b>(
    schema: &'static TableSchema,
    parts: &[(usize, &'a [u8])],
    blocks: &'b mut [BlockChange<'a>; PARTS_MAX],
) -> &'b [BlockChange<'a>] {
    let mut count = 0;
    for ((part, bytes), change) in parts.iter().zip(blocks.iter_mut()) {
        let name = schema.parts.get(*part).copied().unwrap_or_default();
        *change = BlockChange { name, bytes: Some(bytes) };
        count += 1;
    }
    blocks.get(..count).unwrap_or_default()
}

/// True if a change involves tags: it changes them, or is a put, which removes the tags that it
/// does not name.
#[inline]
const fn needs_transaction(schema: &TableSchema, change: &PartsChange<'_>) -> bool {
    let has_tags = !schema.tags.is_empty() || schema.is_scanned;
    change.tags.is_some() || (schema.parts.len() == 1 && has_tags)
}

impl RegionConnection {
    #[inline]
    fn put_record(&self, table: TableId, entry: &RecordEntry<'_>) -> Result<()> {
        let (namespace, schema) = self.tables.at(table)?;
        if schema.parts.len() == 1 {
            return self.session.put(namespace, entry.key, first_part(entry.parts)).map(drop);
        }
        let mut blocks = NO_BLOCKS;
        let blocks = blocks_of(schema, entry.parts, &mut blocks);
        self.session.patch(namespace, entry.key, blocks, Condition::Always).map(drop)
    }

    #[inline]
    fn change_record(&self, table: TableId, change: &PartsChange<'_>) -> Result<bool> {
        let (namespace, schema) = self.tables.at(table)?;
        if schema.parts.len() == 1 {
            let bytes = first_part(change.parts);
            let outcome = self.session.put_if(namespace, change.key, bytes, Condition::Present)?;
            return Ok(matches!(outcome, Outcome::Done { .. }));
        }
        loop {
            let Some(record) = self.session.get_for_update(namespace, change.key)? else {
                return Ok(false);
            };
            if self.write(table, &record, change)? {
                return Ok(true);
            }
        }
    }
}

impl StoreAccess for RegionConnection {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        let (namespace, schema) = self.tables.at(request.table())?;
        match request {
            Request::Read { table, key, wanted } => {
                let Some(view) = self.session.get(namespace, key)? else { return Ok(false) };
                self.tables.pass(*table, &view, *wanted, &mut parts(receive));
                Ok(true)
            }
            Request::Find { table, tag, wanted } => {
                let name = schema.tags.get(tag.0).map_or("", |rule| rule.name);
                let Some(view) = self.session.find(namespace, name, tag.1)? else {
                    return Ok(false);
                };
                self.tables.pass(*table, &view, *wanted, &mut parts(receive));
                receive(StoreReply::Key(view.key()));
                Ok(true)
            }
            Request::Put { table, entry } if schema.tags.is_empty() && !schema.is_scanned => {
                self.put_record(*table, entry).map(|()| true)
            }
            Request::Change { table, change } if !needs_transaction(schema, change) => {
                self.change_record(*table, change)
            }
            Request::Put { .. } | Request::Change { .. } => self.in_transaction(request),
            Request::Delete { key, .. } => self.session.delete(namespace, key),
        }
    }

    fn find_and_change(
        &mut self,
        table: TableId,
        tag: RecordTag<'_>,
        parts: &[PartWrite<'_>],
        key: &mut Vec<u8>,
    ) -> Result<bool> {
        let (namespace, schema) = self.tables.at(table)?;
        let name = schema.tags.get(tag.0).map_or("", |rule| rule.name);
        loop {
            let Some(record) = self.session.find_for_update(namespace, name, tag.1)? else {
                return Ok(false);
            };
            record.view().key().clone_into(key);
            if self.write(table, &record, &PartsChange { key, parts, tags: None })? {
                return Ok(true);
            }
        }
    }

    fn update(&mut self, read: RecordRead<'_>, work: &mut dyn Work) -> Result<bool> {
        let RecordRead { table, key, wanted } = read;
        let (namespace, _) = self.tables.at(table)?;
        loop {
            let Some(record) = self.session.get_for_update(namespace, key)? else {
                return Ok(false);
            };
            let mut is_done = true;
            self.pass_record(table, &record, wanted, work);
            work.change(&mut |change| {
                is_done = self.write(table, &record, change)?;
                Ok(())
            })?;
            if is_done {
                return Ok(true);
            }
        }
    }

    fn scan(&mut self, range: &ScanRange<'_>, receive: &mut ScanSink<'_>) -> Result<usize> {
        let ScanRange { table, from, count } = *range;
        let (namespace, schema) = self.tables.at(table)?;
        if !schema.is_scanned || count == 0 {
            return Ok(0);
        }
        let mut met = 0;
        let range = Values::Range(Bound::Included(from), Bound::Unbounded);
        self.session.find_all(namespace, ORDER, range, |view| {
            let mut pass = |_: usize, bytes: &[u8]| receive(view.key(), bytes);
            self.tables.pass(table, view, PartSet::one(0), &mut pass);
            met += 1;
            met < count
        })?;
        Ok(met)
    }
}

impl StoreConnection for RegionConnection {
    fn run_block(&mut self, operation: Operation, block: KeyBlock<'_>) -> Result<BlockOutcome> {
        operations::run(&mut self.loops(OPERATIONS)?, operation, block)
    }

    fn walk(&mut self, table: TableId) -> Result<u64> {
        self.loops(table)?.walk()
    }

    fn add(&mut self, counter: &[u8], times: u64) -> Result<()> {
        let namespace = self.counters()?;
        (0..times).try_for_each(|_| self.session.add(namespace, counter, 1))
    }

    fn counter(&mut self, counter: &[u8]) -> Result<i64> {
        let namespace = self.counters()?;
        Ok(self.session.read_counter(namespace, counter)?.unwrap_or(0))
    }

    fn transact(&mut self, body: &mut Body<'_>) -> Result<()> {
        let Self { session, tables, .. } = self;
        session.transact(|txn| body(&mut RegionTransaction { txn, tables }))
    }

    fn prefetch(&mut self, requests: &[Request<'_>]) {
        for some in requests.chunks(AHEAD) {
            let mut wanted = [None; AHEAD];
            for (entry, request) in wanted.iter_mut().zip(some) {
                *entry = self.prefetch_of(request);
            }
            self.session.prefetch_operations(wanted.get(..some.len()).unwrap_or_default());
        }
    }

    /// Executes reads and writes in order, after prefetching their records.
    fn pipeline(&mut self, requests: &[Request<'_>], receive: &mut BatchSink<'_>) -> Result<()> {
        for (round, some) in requests.chunks(AHEAD).enumerate() {
            let mut keys = [(self.tables.at(TableId(0))?.0, &[][..]); AHEAD];
            let mut known = 0;
            for (entry, (table, key)) in keys.iter_mut().zip(some.iter().filter_map(where_of)) {
                *entry = (self.tables.at(table)?.0, key);
                known += 1;
            }
            self.session.prefetch(keys.get(..known).unwrap_or_default());
            for (at, request) in some.iter().enumerate() {
                let number = round * AHEAD + at;
                let done = self.perform(request, &mut |reply| receive(number, reply))?;
                receive(number, StoreReply::Done(done));
            }
        }
        Ok(())
    }
}

/// Records that are prefetched before the first of them is needed: the limit of
/// `Session::prefetch`.
const AHEAD: usize = 16;

/// The table and key of a request; `None` for a search by tag, whose key is unknown.
fn where_of<'a>(request: &Request<'a>) -> Option<(TableId, &'a [u8])> {
    match request {
        Request::Read { table, key, .. } | Request::Delete { table, key, .. } => {
            Some((*table, key))
        }
        Request::Put { table, entry } => Some((*table, entry.key)),
        Request::Change { table, change } => Some((*table, change.key)),
        Request::Find { .. } => None,
    }
}
