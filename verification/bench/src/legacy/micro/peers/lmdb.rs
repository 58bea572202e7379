//! LMDB with its fastest settings: no flush to disk, a writable map, no thread-local readers. A
//! keyed read renews one read transaction, because that is what makes the latest writes visible; a
//! put is a write transaction of its own, visible to everybody when it returns, as ours is.

use super::{Need, Subject, load};
use crate::keeper::Keeper;
use crate::legacy::micro::loops::{self, Job, Store};
use crate::legacy::micro::work::{BATCH, Work};
use lmdb::{
    Cursor as _, Database, Environment, EnvironmentFlags, InactiveTransaction, RoTransaction,
    Transaction as _, WriteFlags,
};
use nearstate_model::{Error, Result};
use std::path::{Path, PathBuf};

/// What the crate brings along.
pub const VERSION: &str = "LMDB 0.9 of crate lmdb-rkv 0.14 (its own copy of the C sources)";

/// Records of one transaction while loading.
const LOAD_RECORDS: u64 = 1000;

fn said(e: lmdb::Error) -> Error {
    Error::Backend { detail: format!("lmdb: {e}") }
}

fn open(path: &Path, map_bytes: u64) -> Result<(Environment, Database)> {
    let flags = EnvironmentFlags::NO_SYNC
        | EnvironmentFlags::WRITE_MAP
        | EnvironmentFlags::NO_META_SYNC
        | EnvironmentFlags::NO_TLS
        | EnvironmentFlags::NO_READAHEAD
        | EnvironmentFlags::NO_MEM_INIT
        | EnvironmentFlags::NO_SUB_DIR;
    let environment = Environment::new()
        .set_flags(flags)
        .set_max_readers(64)
        .set_map_size(usize::try_from(map_bytes).unwrap_or(usize::MAX))
        .open(path)
        .map_err(said)?;
    let database = environment.open_db(None).map_err(said)?;
    Ok((environment, database))
}

/// The map: large enough that freed pages which a reader holds back never fill it.
fn room(need: &Need) -> u64 {
    (1_u64 << 30).saturating_add(need.records.saturating_mul(4 * (need.value_bytes as u64 + 256)))
}

/// An attached environment.
#[derive(Debug)]
pub struct LmdbFile {
    environment: Environment,
    database: Database,
}

impl LmdbFile {
    /// Attaches to a file that is there.
    ///
    /// # Errors
    /// What LMDB said.
    pub fn attach(path: &Path) -> Result<Self> {
        // A size of 0 takes the one in the file.
        let (environment, database) = open(path, 0)?;
        Ok(Self { environment, database })
    }

    /// A way in, with a read transaction that waits to be renewed.
    ///
    /// # Errors
    /// What LMDB said.
    pub fn store(&self) -> Result<LmdbStore<'_>> {
        let idle = self.environment.begin_ro_txn().map_err(said)?.reset();
        let (environment, database) = (&self.environment, self.database);
        Ok(LmdbStore { environment, database, idle: Some(idle) })
    }
}

/// A thread's way in.
pub struct LmdbStore<'e> {
    environment: &'e Environment,
    database: Database,
    idle: Option<InactiveTransaction<'e>>,
}

impl std::fmt::Debug for LmdbStore<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LmdbStore")
    }
}

impl<'e> LmdbStore<'e> {
    /// Does something in the renewed read transaction.
    #[inline]
    fn reading<T>(&mut self, work: impl FnOnce(&RoTransaction<'e>) -> Result<T>) -> Result<T> {
        let reader = match self.idle.take() {
            Some(idle) => idle.renew(),
            None => self.environment.begin_ro_txn(),
        }
        .map_err(said)?;
        let done = work(&reader);
        self.idle = Some(reader.reset());
        done
    }
}

#[inline]
fn found<T>(got: std::result::Result<T, lmdb::Error>) -> Result<Option<T>> {
    match got {
        Ok(value) => Ok(Some(value)),
        Err(lmdb::Error::NotFound) => Ok(None),
        Err(e) => Err(said(e)),
    }
}

impl Store for LmdbStore<'_> {
    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut writer = self.environment.begin_rw_txn().map_err(said)?;
        writer.put(self.database, &key, &value, WriteFlags::empty()).map_err(said)?;
        writer.commit().map_err(said)
    }

    #[inline]
    fn view<T>(&mut self, key: &[u8], look: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let database = self.database;
        self.reading(|reader| Ok(found(reader.get(database, &key))?.map(look)))
    }

    #[inline]
    fn copy(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let copied = self.view(key, |value| out.extend_from_slice(value))?;
        Ok(copied.is_some())
    }

    /// LMDB has no batch: sixteen gets in one read transaction.
    #[inline]
    fn batch(&mut self, keys: &[&[u8]], mut look: impl FnMut(usize, &[u8])) -> Result<()> {
        debug_assert!(keys.len() <= BATCH, "a batch has at most {BATCH} keys");
        let database = self.database;
        self.reading(|reader| {
            for (at, key) in keys.iter().enumerate() {
                if let Some(value) = found(reader.get(database, key))? {
                    look(at, value);
                }
            }
            Ok(())
        })
    }

    fn steps(&mut self) -> Result<u64> {
        let database = self.database;
        self.reading(|reader| {
            let mut cursor = reader.open_ro_cursor(database).map_err(said)?;
            let mut count = 0;
            for record in cursor.iter_start() {
                record.map_err(said)?;
                count += 1;
            }
            Ok(count)
        })
    }
}

/// A loaded environment.
#[derive(Debug)]
pub struct Loaded {
    file: LmdbFile,
    path: PathBuf,
    _keeper: Keeper,
}

impl Loaded {
    /// Makes and loads it, in ascending order of keys: its pages are as full as they can be.
    ///
    /// # Errors
    /// What LMDB said.
    pub fn open(need: &Need, loaded: &mut dyn FnMut(u64)) -> Result<Self> {
        let keeper = Keeper::start(&need.folder, None, |_| Vec::new())?;
        let path = keeper.folder().join("lmdb");
        let (environment, database) = open(&path, room(need))?;
        fill(&environment, database, need, loaded)?;
        Ok(Self { file: LmdbFile { environment, database }, path, _keeper: keeper })
    }
}

/// Loads the records, many in a transaction.
fn fill(
    environment: &Environment,
    database: Database,
    need: &Need,
    loaded: &mut dyn FnMut(u64),
) -> Result<()> {
    let mut writer = None;
    let mut pending = 0;
    load(need, loaded, |key, value| {
        let mut open = match writer.take() {
            Some(open) => open,
            None => environment.begin_rw_txn().map_err(said)?,
        };
        open.put(database, &key, &value, WriteFlags::APPEND).map_err(said)?;
        pending += 1;
        if pending % LOAD_RECORDS == 0 {
            return open.commit().map_err(said);
        }
        writer = Some(open);
        Ok(())
    })?;
    match writer {
        Some(open) => open.commit().map_err(said),
        None => Ok(()),
    }
}

impl Subject for Loaded {
    fn name(&self) -> &'static str {
        "lmdb"
    }

    fn can(&self, _job: Job) -> bool {
        true
    }

    fn run(&mut self, job: Job, work: &Work<'_>) -> Result<f64> {
        loops::run(&mut self.file.store()?, job, work)
    }

    /// Pages of the file that were ever used.
    fn bytes(&mut self) -> Result<Option<u64>> {
        let pages = self.file.environment.info().map_err(said)?.last_pgno() as u64 + 1;
        let page = u64::from(self.file.environment.stat().map_err(said)?.page_size());
        Ok(Some(pages * page))
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.path)
    }
}
