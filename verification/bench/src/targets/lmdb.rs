//! LMDB with its fastest settings, in a memory-backed folder: no flush to disk, a writable map. It
//! runs inside its clients, as our region does.
//!
//! Each table is a database of records; a record of several parts is one value with their lengths
//! before them. Each unique tag is a database from values to keys, any other tag one with several
//! keys to a value. There is one writer at a time, and a write transaction is visible to every
//! client when it is committed.

mod loops;
mod reading;
mod writing;

use self::reading::Reading;
use self::writing::Writing;
use super::joined::pass_parts;
use super::{Capabilities, Database as Running, DatabaseSpec, FileDatabase, Support, Target};
use crate::access::{
    BatchSink, Body, PartSet, RecordRead, ReplySink, Request, ScanRange, ScanSink, StoreAccess,
    StoreConnection, StoreReply, StoreSchema, TableId, TableSchema, Work, declined, parts,
    perform_each,
};
use crate::operations::{self, BlockOutcome, KeyBlock, Operation, Store};
use crate::reaper::Reaper;
use lmdb::{
    Cursor as _, Database, DatabaseFlags, Environment, EnvironmentFlags, InactiveTransaction,
    RoTransaction, Transaction,
};
use nearstate_model::{Error, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Databases of a file: each table has one, and one for each tag.
const DATABASES_MAX: u32 = 128;

/// Reader slots in addition to those of the clients: slots of a killed run stay occupied.
const READERS_MORE: usize = 126;

/// Overhead in bytes of a record, and of each of its tags, at most.
const RECORD_ROOM: u64 = 256;

/// Measured size of its file: pages are half full and copied on write. For each record this
/// percentage of its bytes, plus an overhead for it and for each of its tags.
const FILE_PERCENT: u64 = 275;
const FILE_BESIDE: u64 = 32;
const FILE_BYTES_MIN: u64 = 256 << 10;

#[derive(Clone, Copy, Debug)]
pub struct LmdbTarget;

impl Target for LmdbTarget {
    fn name(&self) -> &'static str {
        "lmdb"
    }

    fn version(&self) -> Result<String> {
        Ok("LMDB 0.9 of crate lmdb-rkv 0.14, MDB_NOSYNC in memory, in the client's process".into())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            delta: Support::Emulated("the whole record is read and written in a write transaction"),
            unique_tag: Support::Emulated("a second database, written in the same transaction"),
            ..Capabilities::DEFAULT
        }
    }

    fn folder_bytes(&self, spec: &DatabaseSpec) -> u64 {
        spec.all_bytes(FILE_PERCENT, FILE_BESIDE).saturating_add(FILE_BYTES_MIN)
    }

    fn start(&self, spec: &DatabaseSpec) -> Result<Box<dyn Running>> {
        let reaper = Reaper::start(&spec.folder, None, |_| Vec::new())?;
        let path = reaper.folder().join("lmdb");
        let tags = spec.schema.tables.iter().map(|table| table.tags.len()).max().unwrap_or(0);
        let heads = RECORD_ROOM.saturating_mul(1 + tags as u64);
        let records = spec.records.saturating_mul(spec.record_bytes.saturating_add(heads));
        // Pages that a reader still uses are not reused.
        let room = records.saturating_mul(4).saturating_add(1 << 30);
        let environment = open(&path, room, spec.clients)?;
        Tables::open(&environment, &spec.schema)?;
        Ok(Box::new(FileDatabase { reaper, file: "lmdb", is_collapsed: false, fill: None }))
    }

    fn connect(&self, address: &str, schema: &StoreSchema) -> Result<Box<dyn StoreConnection>> {
        let environment = attached(Path::new(address))?;
        let tables = Tables::open(environment, schema)?;
        let idle = environment.begin_ro_txn().map_err(backend)?.reset();
        let (idle, scratch, before) = (Some(idle), Vec::new(), Vec::new());
        let is_writer = false;
        Ok(Box::new(LmdbConnection { environment, tables, idle, scratch, before, is_writer }))
    }
}

fn backend(e: lmdb::Error) -> Error {
    backend_error!("lmdb: {e}")
}

fn open(path: &Path, map_bytes: u64, clients: usize) -> Result<Environment> {
    let flags = EnvironmentFlags::NO_SYNC
        | EnvironmentFlags::WRITE_MAP
        | EnvironmentFlags::NO_META_SYNC
        | EnvironmentFlags::NO_TLS
        | EnvironmentFlags::NO_READAHEAD
        | EnvironmentFlags::NO_MEM_INIT
        | EnvironmentFlags::NO_SUB_DIR;
    let readers = clients.saturating_mul(2).saturating_add(READERS_MORE);
    Environment::new()
        .set_flags(flags)
        .set_max_readers(u32::try_from(readers).unwrap_or(u32::MAX))
        .set_max_dbs(DATABASES_MAX)
        // 0: the size in the file.
        .set_map_size(usize::try_from(map_bytes).unwrap_or(usize::MAX))
        .open(path)
        .map_err(backend)
}

/// The environments of this process: LMDB allows one for a file, and it stays until the end.
static ATTACHED: Mutex<BTreeMap<PathBuf, &'static Environment>> = Mutex::new(BTreeMap::new());

fn attached(path: &Path) -> Result<&'static Environment> {
    let mut all = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(there) = all.get(path) {
        return Ok(there);
    }
    let environment: &'static Environment = Box::leak(Box::new(open(path, 0, 0)?));
    all.insert(path.to_owned(), environment);
    Ok(environment)
}

#[derive(Debug)]
struct TableDatabases {
    schema: &'static TableSchema,
    records: Database,
    tags: Vec<Database>,
}

#[derive(Debug)]
struct Tables(Vec<TableDatabases>);

impl Tables {
    fn open(environment: &Environment, schema: &StoreSchema) -> Result<Self> {
        let open = |name: String, flags| environment.create_db(Some(&name), flags).map_err(backend);
        let databases = |table: &'static TableSchema| {
            let tag = |rule: &crate::access::TagRule| {
                let flags =
                    if rule.is_unique { DatabaseFlags::empty() } else { DatabaseFlags::DUP_SORT };
                open(format!("{}:{}", table.name, rule.name), flags)
            };
            Ok(TableDatabases {
                schema: table,
                records: open(table.name.to_owned(), DatabaseFlags::empty())?,
                tags: table.tags.iter().map(tag).collect::<Result<_>>()?,
            })
        };
        schema.tables.iter().map(databases).collect::<Result<_>>().map(Self)
    }

    fn at(&self, table: TableId) -> Result<&TableDatabases> {
        self.0.get(table.0).ok_or_else(|| table.unknown())
    }
}

impl TableDatabases {
    fn tag(&self, tag: usize) -> Result<(Database, &'static str, bool)> {
        let rule = self.schema.tags.get(tag).zip(self.tags.get(tag));
        rule.map(|(rule, database)| (*database, rule.name, rule.is_unique))
            .ok_or_else(|| bad_argument!("table {} has no tag {tag}", self.schema.name))
    }
}

#[inline]
fn found<'t>(
    txn: &'t impl Transaction,
    database: Database,
    key: &[u8],
) -> Result<Option<&'t [u8]>> {
    match txn.get(database, &key) {
        Ok(value) => Ok(Some(value)),
        Err(lmdb::Error::NotFound) => Ok(None),
        Err(e) => Err(backend(e)),
    }
}

/// Performs a read or a search by a unique tag.
#[inline]
fn read_in(
    txn: &impl Transaction,
    tables: &Tables,
    request: &Request<'_>,
    receive: &mut ReplySink<'_>,
) -> Result<bool> {
    let databases = tables.at(request.table())?;
    let (key, wanted) = match request {
        Request::Read { key, wanted, .. } => (*key, *wanted),
        Request::Find { tag, wanted, .. } => {
            let (database, name, is_unique) = databases.tag(tag.0)?;
            if !is_unique {
                let table = databases.schema.name;
                return Err(declined(&format!("tag {name} of table {table} is not unique")));
            }
            match found(txn, database, tag.1)? {
                Some(key) => (key, *wanted),
                None => return Ok(false),
            }
        }
        Request::Put { .. } | Request::Change { .. } | Request::Delete { .. } => return Ok(false),
    };
    let Some(value) = found(txn, databases.records, key)? else { return Ok(false) };
    pass_parts(databases.schema, value, wanted, &mut parts(receive))?;
    if matches!(request, Request::Find { .. }) {
        receive(StoreReply::Key(key));
    }
    Ok(true)
}

const fn is_write(request: &Request<'_>) -> bool {
    matches!(request, Request::Put { .. } | Request::Change { .. } | Request::Delete { .. })
}

fn scan_in(
    txn: &impl Transaction,
    tables: &Tables,
    range: &ScanRange<'_>,
    receive: &mut ScanSink<'_>,
) -> Result<usize> {
    let databases = tables.at(range.table)?;
    let mut cursor = txn.open_ro_cursor(databases.records).map_err(backend)?;
    let mut met = 0;
    // LMDB has no empty keys.
    let records =
        if range.from.is_empty() { cursor.iter_start() } else { cursor.iter_from(range.from) };
    for record in records.take(range.count) {
        let (key, value) = record.map_err(backend)?;
        let mut first = |_: usize, bytes: &[u8]| receive(key, bytes);
        pass_parts(databases.schema, value, PartSet::one(0), &mut first)?;
        met += 1;
    }
    Ok(met)
}

/// A client's connection.
struct LmdbConnection {
    environment: &'static Environment,
    tables: Tables,
    /// A reset read transaction. Renewing it makes the latest writes visible.
    idle: Option<InactiveTransaction<'static>>,
    scratch: Vec<u8>,
    /// A record of several parts, while it is changed.
    before: Vec<u8>,
    /// True if the last transaction wrote.
    is_writer: bool,
}

impl std::fmt::Debug for LmdbConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LmdbConnection")
    }
}

impl LmdbConnection {
    /// Runs `body` in the renewed read transaction.
    #[inline]
    fn reading<T>(
        &mut self,
        work: impl FnOnce(&RoTransaction<'static>, &Tables) -> Result<T>,
    ) -> Result<T> {
        let reader = match self.idle.take() {
            Some(idle) => idle.renew(),
            None => self.environment.begin_ro_txn(),
        }
        .map_err(backend)?;
        let done = work(&reader, &self.tables);
        self.idle = Some(reader.reset());
        done
    }

    /// Runs `body` in a write transaction, which an error aborts.
    #[inline]
    fn writing<T>(&mut self, work: impl FnOnce(&mut Writing<'_>) -> Result<T>) -> Result<T> {
        let txn = self.environment.begin_rw_txn().map_err(backend)?;
        let Self { tables, scratch, before, .. } = self;
        let mut writing = Writing { txn, tables, scratch, before, has_written: false };
        let done = work(&mut writing)?;
        writing.txn.commit().map_err(backend)?;
        Ok(done)
    }
}

impl StoreAccess for LmdbConnection {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        if is_write(request) {
            return self.writing(|access| access.perform(request, receive));
        }
        self.reading(|txn, tables| read_in(txn, tables, request, receive))
    }

    /// One write transaction: a separate read would need a second transaction.
    fn update(&mut self, read: RecordRead<'_>, work: &mut dyn Work) -> Result<bool> {
        self.writing(|access| access.update(read, work))
    }

    fn scan(&mut self, range: &ScanRange<'_>, receive: &mut ScanSink<'_>) -> Result<usize> {
        self.reading(|txn, tables| scan_in(txn, tables, range, receive))
    }
}

impl StoreConnection for LmdbConnection {
    fn run_block(&mut self, operation: Operation, block: KeyBlock<'_>) -> Result<BlockOutcome> {
        operations::run(self, operation, block)
    }

    fn walk(&mut self, _: TableId) -> Result<u64> {
        Store::walk(self)
    }

    /// A read transaction cannot become a write transaction. The transaction begins in the mode of
    /// the last one. A read transaction whose body writes is run again as a write transaction.
    fn transact(&mut self, body: &mut Body<'_>) -> Result<()> {
        if !self.is_writer {
            let (mut outcome, mut wants_to_write) = (Ok(()), false);
            self.reading(|txn, tables| {
                let mut reading = Reading { txn, tables, wants_to_write: false };
                outcome = body(&mut reading);
                wants_to_write = reading.wants_to_write;
                Ok(())
            })?;
            if !wants_to_write {
                return outcome;
            }
        }
        let mut has_written = false;
        let outcome = self.writing(|access| {
            let outcome = body(access);
            has_written = access.has_written;
            outcome
        });
        self.is_writer = has_written;
        outcome
    }

    /// All requests run in one transaction, which is read-only if no request writes.
    fn pipeline(&mut self, requests: &[Request<'_>], receive: &mut BatchSink<'_>) -> Result<()> {
        if requests.iter().any(is_write) {
            return self.writing(|access| perform_each(access, requests, receive));
        }
        self.reading(|txn, tables| {
            perform_each(&mut Reading { txn, tables, wants_to_write: false }, requests, receive)
        })
    }
}
