//! `DashMap`: a hash map within one process, with a lock per shard. Each client process has its own
//! map. It shows the cost of a map that no other process shares.

use super::joined::{PlainStore, WholeRecords};
use super::{Capabilities, Database, DatabaseSpec, InClients, Support, Target};
use crate::access::{OPERATIONS, StoreConnection, StoreSchema, TableId};
use crate::operations::{self, BlockOutcome, KeyBlock, Operation, Store};
use dashmap::DashMap;
use foldhash::fast::RandomState;
use nearstate_model::Result;
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The longest key that is stored without an allocation.
const INLINE_BYTES: usize = 30;

#[derive(Clone, Copy, Debug)]
pub struct DashMapTarget;

impl Target for DashMapTarget {
    fn name(&self) -> &'static str {
        "dashmap"
    }

    fn version(&self) -> Result<String> {
        Ok("DashMap 6 with foldhash, one map per client process".to_owned())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            delta: Support::Emulated("the whole record is replaced under its shard's lock"),
            unique_tag: Support::Declined("a map has no tags"),
            transaction: Support::Declined("a map has no transactions"),
            scan: Support::Declined("a hash map has no order"),
            shared: Support::Declined("each process has its own map"),
            ..Capabilities::DEFAULT
        }
    }

    fn start(&self, _: &DatabaseSpec) -> Result<Box<dyn Database>> {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(InClients { address: format!("dashmap-{number}") }))
    }

    fn connect(&self, address: &str, schema: &StoreSchema) -> Result<Box<dyn StoreConnection>> {
        let mut all = MAPS.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || schema.tables.iter().map(|_| MapRecords::default()).collect();
        let maps = Arc::clone(all.entry(address.to_owned()).or_insert_with(new));
        Ok(Box::new(WholeRecords::new(Maps(maps), schema)))
    }
}

type MapRecords = DashMap<InlineKey, Box<[u8]>, RandomState>;

/// The maps of this process, by address; one map per table.
static MAPS: Mutex<BTreeMap<String, Arc<[MapRecords]>>> = Mutex::new(BTreeMap::new());

/// A key. It is compared and hashed as its bytes.
#[derive(Debug)]
enum InlineKey {
    Short(u8, [u8; INLINE_BYTES]),
    Long(Box<[u8]>),
}

impl InlineKey {
    fn new(key: &[u8]) -> Self {
        let mut bytes = [0; INLINE_BYTES];
        match (bytes.get_mut(..key.len()), u8::try_from(key.len())) {
            (Some(prefix), Ok(length)) => {
                prefix.copy_from_slice(key);
                Self::Short(length, bytes)
            }
            _ => Self::Long(key.into()),
        }
    }
}

impl Borrow<[u8]> for InlineKey {
    #[inline]
    fn borrow(&self) -> &[u8] {
        match self {
            Self::Short(length, bytes) => bytes.get(..usize::from(*length)).unwrap_or_default(),
            Self::Long(bytes) => bytes,
        }
    }
}

impl Hash for InlineKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Borrow::<[u8]>::borrow(self).hash(state);
    }
}

impl PartialEq for InlineKey {
    fn eq(&self, other: &Self) -> bool {
        Borrow::<[u8]>::borrow(self) == Borrow::<[u8]>::borrow(other)
    }
}

impl Eq for InlineKey {}

/// The maps of a connection's database.
#[derive(Debug)]
struct Maps(Arc<[MapRecords]>);

impl Maps {
    #[inline]
    fn at(&self, table: TableId) -> Result<&MapRecords> {
        self.0.get(table.0).ok_or_else(|| table.unknown())
    }
}

impl PlainStore for Maps {
    fn view(
        &mut self,
        (table, key): (TableId, &[u8]),
        mut look: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<bool> {
        let value = self.at(table)?.get(key);
        value.as_ref().map(|value| look(value)).transpose().map(|found| found.is_some())
    }

    fn put(&mut self, (table, key): (TableId, &[u8]), value: &[u8]) -> Result<()> {
        self.at(table)?.insert(InlineKey::new(key), value.into());
        Ok(())
    }

    fn change(
        &mut self,
        (table, key): (TableId, &[u8]),
        (mut change, value): (impl FnMut(&[u8], &mut Vec<u8>) -> Result<()>, &mut Vec<u8>),
    ) -> Result<bool> {
        let Some(mut record) = self.at(table)?.get_mut(key) else { return Ok(false) };
        change(&record, value)?;
        *record = value.as_slice().into();
        Ok(true)
    }

    fn delete(&mut self, (table, key): (TableId, &[u8])) -> Result<bool> {
        Ok(self.at(table)?.remove(key).is_some())
    }
}

impl StoreConnection for WholeRecords<Maps> {
    fn run_block(&mut self, operation: Operation, block: KeyBlock<'_>) -> Result<BlockOutcome> {
        operations::run(&mut Loops(self.store.at(OPERATIONS)?), operation, block)
    }

    fn walk(&mut self, table: TableId) -> Result<u64> {
        Loops(self.store.at(table)?).walk()
    }
}

/// The records of one table, for loops of single operations.
struct Loops<'m>(&'m MapRecords);

impl Store for Loops<'_> {
    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.insert(InlineKey::new(key), value.into());
        Ok(())
    }

    #[inline]
    fn view<T>(&mut self, key: &[u8], look: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        Ok(self.0.get(key).map(|value| look(&value)))
    }

    fn walk(&mut self) -> Result<u64> {
        Ok(self.0.iter().fold(0, |count, record| {
            std::hint::black_box(record.key());
            count + 1
        }))
    }
}
