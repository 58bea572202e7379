//! `DashMap`: a hash map within one process, with a lock per shard. Each client process has its own
//! map. It shows the cost of a map that no other process shares.

use super::joined::{joined, pass_parts};
use super::{Capabilities, Database, InClients, Need, Support, Target};
use crate::access::{
    OPERATIONS, ReplySink, Request, StoreAccess, StoreConnection, StoreSchema, TableId,
    TableSchema, declined, parts,
};
use crate::operations::{self, KeyBlock, Operation, Store};
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

    fn start(&self, _: &Need) -> Result<Box<dyn Database>> {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(InClients { address: format!("dashmap-{number}") }))
    }

    fn connect(&self, address: &str, schema: &StoreSchema) -> Result<Box<dyn StoreConnection>> {
        let mut all = MAPS.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || schema.tables.iter().map(|_| MapRecords::default()).collect();
        let maps = Arc::clone(all.entry(address.to_owned()).or_insert_with(new));
        Ok(Box::new(DashMapConnection { maps, schema: *schema, scratch: Vec::new() }))
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

#[derive(Debug)]
struct DashMapConnection {
    maps: Arc<[MapRecords]>,
    schema: StoreSchema,
    scratch: Vec<u8>,
}

impl DashMapConnection {
    #[inline]
    fn at(&self, table: TableId) -> Result<(&MapRecords, &'static TableSchema)> {
        let records = self.maps.get(table.0).ok_or_else(|| table.unknown())?;
        Ok((records, self.schema.table(table)?))
    }
}

impl StoreAccess for DashMapConnection {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let (records, schema) = self.at(request.table())?;
        let exists = match request {
            Request::Read { key, wanted, .. } => match records.get(*key) {
                Some(value) => {
                    pass_parts(schema, &value, *wanted, &mut parts(receive))?;
                    true
                }
                None => false,
            },
            Request::Put { entry, .. } => {
                joined(schema, None, entry.parts, &mut scratch)?;
                records.insert(InlineKey::new(entry.key), scratch.as_slice().into());
                true
            }
            Request::Change { change, .. } => match records.get_mut(change.key) {
                Some(mut value) => {
                    joined(schema, Some(&value), change.parts, &mut scratch)?;
                    *value = scratch.as_slice().into();
                    true
                }
                None => false,
            },
            Request::Delete { key, .. } => records.remove(*key).is_some(),
            Request::Find { .. } => return Err(declined("dashmap: no tags")),
        };
        self.scratch = scratch;
        Ok(exists)
    }
}

impl StoreConnection for DashMapConnection {
    fn run_block(&mut self, operation: Operation, block: KeyBlock<'_>) -> Result<u64> {
        operations::run(&mut Loops(self.at(OPERATIONS)?.0), operation, block)
    }

    fn walk(&mut self, table: TableId) -> Result<u64> {
        Loops(self.at(table)?.0).walk()
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
