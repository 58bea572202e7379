//! The smallest keyed store that is possible, as a limit of the machine: what is left of a read or
//! a write without crash safety, concurrency of writers, checks of lengths read from memory that
//! others write, epochs, tags, versions, expiry and growth. A report prints the time of the other
//! targets as a multiple of its time.
//!
//! Each client process has its own store, in one mapping for the index and one for the records, of
//! 2 MiB pages if the system allows it.

mod table;
mod bucket;
mod hash;

use self::table::PrototypeTable;
use super::joined::{PlainStore, WholeRecords};
use super::{Capabilities, Database, DatabaseSpec, InClients, Support, Target};
use crate::access::{OPERATIONS, StoreConnection, StoreSchema, TableId};
use crate::operations::{self, BlockOutcome, KeyBlock, Operation, Store};
use nearstate_model::Result;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The target's name.
pub const NAME: &str = "prototype";

#[derive(Clone, Copy, Debug)]
pub struct PrototypeTarget;

impl Target for PrototypeTarget {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> Result<String> {
        Ok("the smallest keyed store, without any safety, one per client process".to_owned())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            delta: Support::Emulated("the whole record is written again"),
            unique_tag: Support::Declined("a prototype has no tags"),
            transaction: Support::Declined("a prototype has no transactions"),
            scan: Support::Declined("a hash table has no order"),
            shared: Support::Declined("each process has its own store"),
            ..Capabilities::DEFAULT
        }
    }

    /// The size is a part of the address, because clients create the tables.
    fn start(&self, spec: &DatabaseSpec) -> Result<Box<dyn Database>> {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let DatabaseSpec { records, record_bytes, .. } = spec;
        Ok(Box::new(InClients { address: format!("{NAME}-{number}/{records}/{record_bytes}") }))
    }

    fn connect(&self, address: &str, schema: &StoreSchema) -> Result<Box<dyn StoreConnection>> {
        let mut all = STORES.lock().unwrap_or_else(PoisonError::into_inner);
        let tables = if let Some(tables) = all.get(address) {
            Arc::clone(tables)
        } else {
            let (records, record_bytes) = size_of(address)?;
            let new = schema.tables.iter().map(|_| PrototypeTable::new(records, record_bytes));
            let tables: Arc<Tables> = Arc::new(Mutex::new(new.collect::<Result<_>>()?));
            all.insert(address.to_owned(), Arc::clone(&tables));
            tables
        };
        Ok(Box::new(WholeRecords::new(SharedTables(tables), schema)))
    }
}

/// Records, and bytes of the largest, as the address says.
fn size_of(address: &str) -> Result<(usize, usize)> {
    let mut numbers = address.split('/').skip(1).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(records)), Some(Ok(record_bytes))) => Ok((records, record_bytes)),
        _ => Err(bad_argument!("{address:?} is no address of {NAME}")),
    }
}

type Tables = Mutex<Vec<PrototypeTable>>;

/// The stores of this process, by address.
static STORES: Mutex<BTreeMap<String, Arc<Tables>>> = Mutex::new(BTreeMap::new());

/// The tables of a connection's database.
#[derive(Debug)]
struct SharedTables(Arc<Tables>);

impl SharedTables {
    fn lock(&self) -> MutexGuard<'_, Vec<PrototypeTable>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn table_in(tables: &mut [PrototypeTable], table: TableId) -> Result<&mut PrototypeTable> {
    tables.get_mut(table.0).ok_or_else(|| table.unknown())
}

impl PlainStore for SharedTables {
    fn view(
        &mut self,
        (table, key): (TableId, &[u8]),
        look: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<bool> {
        let found = table_in(&mut self.lock(), table)?.view(key, look)?;
        found.transpose().map(|found| found.is_some())
    }

    fn put(&mut self, (table, key): (TableId, &[u8]), value: &[u8]) -> Result<()> {
        table_in(&mut self.lock(), table)?.put(key, value)
    }

    fn delete(&mut self, (table, key): (TableId, &[u8])) -> Result<bool> {
        table_in(&mut self.lock(), table)?.delete(key)
    }
}

impl StoreConnection for WholeRecords<SharedTables> {
    /// One lock for the block, not for the operation.
    fn run_block(&mut self, operation: Operation, block: KeyBlock<'_>) -> Result<BlockOutcome> {
        operations::run(table_in(&mut self.store.lock(), OPERATIONS)?, operation, block)
    }

    fn walk(&mut self, table: TableId) -> Result<u64> {
        Store::walk(table_in(&mut self.store.lock(), table)?)
    }
}
