//! Our region through the calls of O-RAN's Shared Data Layer, in the client's process: what an xApp
//! links. A record is a namespace, a key and one value.

use super::joined::{hand_over, joined};
use super::{Abilities, Database, Need, Target, Way, region::RegionTarget};
use crate::access::{
    Body, PartReceiver, PartSet, PartsChange, RecordEntry, RecordTag, StoreAccess, StoreConnection,
    StoreSchema, TableId, TableSchema,
};
use nearstate_model::{Error, Result};
use nearstate_sdl::SyncStorage;

/// Why SDL cannot take part.
const NO_TAGS: &str = "SDL has no tags";
const NO_TRANSACTIONS: &str = "SDL has no transactions";

/// The region through SDL as a target.
#[derive(Clone, Copy, Debug)]
pub struct SdlTarget;

impl Target for SdlTarget {
    fn name(&self) -> &'static str {
        "sdl"
    }

    fn version(&self) -> Result<String> {
        let version = env!("CARGO_PKG_VERSION");
        Ok(format!("nearstate {version}, O-RAN SDL calls in the client's process"))
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            delta: Way::Emulated("the whole record is read and set"),
            unique_tag: Way::Declined(NO_TAGS),
            transaction: Way::Declined(NO_TRANSACTIONS),
            scan: Way::Declined("SDL has no order of keys"),
            pipeline: Way::Emulated("one after the other"),
            shared: Way::Native,
            walk: Way::Declined("the SDL has no walk"),
            counter: Way::Declined(super::NO_COUNTERS),
        }
    }

    fn folder_bytes(&self, need: &Need) -> u64 {
        RegionTarget.folder_bytes(need)
    }

    fn start(&self, need: &Need) -> Result<Box<dyn Database>> {
        // Its namespaces are made by the first client: SDL's records are plain values.
        let schema = StoreSchema { tables: &[] };
        RegionTarget.start(&Need { schema, ..need.clone() })
    }

    fn connect(&self, address: &str, schema: &StoreSchema) -> Result<Box<dyn StoreConnection>> {
        let storage = nearstate_sdl::open(&format!("region:{address}")).map_err(|e| said(&e))?;
        Ok(Box::new(SdlConnection { storage, tables: schema.tables, whole: Vec::new() }))
    }
}

fn said(e: &nearstate_sdl::Error) -> Error {
    Error::Backend { detail: e.to_string() }
}

fn declined(why: &str) -> Error {
    Error::BadArgument { detail: why.to_owned() }
}

#[derive(Debug)]
struct SdlConnection {
    storage: Box<dyn SyncStorage>,
    tables: &'static [TableSchema],
    /// The last record that was read or written, all parts of it.
    whole: Vec<u8>,
}

impl SdlConnection {
    fn table(&self, table: TableId) -> Result<&'static TableSchema> {
        self.tables.get(table.0).ok_or_else(|| declined("the workload's schema lacks this table"))
    }
}

impl StoreAccess for SdlConnection {
    fn read(
        &mut self,
        table: TableId,
        key: &[u8],
        wanted: PartSet,
        receive: &mut PartReceiver<'_>,
    ) -> Result<bool> {
        let schema = self.table(table)?;
        let mut outcome = None;
        self.storage
            .visit(schema.name, &[key], &mut |_, value| {
                outcome = Some(hand_over(schema, value, wanted, receive));
            })
            .map_err(|e| said(&e))?;
        outcome.transpose().map(|found| found.is_some())
    }

    fn put(&mut self, table: TableId, entry: &RecordEntry<'_>) -> Result<()> {
        let schema = self.table(table)?;
        if !schema.tags.is_empty() || schema.is_scanned {
            return Err(declined(NO_TAGS));
        }
        let Self { storage, whole, .. } = self;
        joined(schema, None, entry.parts, whole)?;
        storage.set(schema.name, &[(entry.key, whole)]).map_err(|e| said(&e))
    }

    /// SDL sets a record whether it is there or not, so it is looked at first.
    fn change(&mut self, table: TableId, change: &PartsChange<'_>) -> Result<bool> {
        let schema = self.table(table)?;
        if change.tags.is_some() {
            return Err(declined(NO_TAGS));
        }
        let Self { storage, whole, .. } = self;
        let mut outcome = None;
        storage
            .visit(schema.name, &[change.key], &mut |_, value| {
                outcome = Some(joined(schema, Some(value), change.parts, whole));
            })
            .map_err(|e| said(&e))?;
        if outcome.transpose()?.is_none() {
            return Ok(false);
        }
        storage.set(schema.name, &[(change.key, whole)]).map_err(|e| said(&e))?;
        Ok(true)
    }

    fn delete(&mut self, table: TableId, key: &[u8], _: &[RecordTag<'_>]) -> Result<bool> {
        let schema = self.table(table)?;
        let mut is_there = false;
        self.storage
            .visit(schema.name, &[key], &mut |_, _| is_there = true)
            .map_err(|e| said(&e))?;
        self.storage.remove(schema.name, &[key]).map_err(|e| said(&e))?;
        Ok(is_there)
    }

    fn find(
        &mut self,
        _: TableId,
        _: RecordTag<'_>,
        _: PartSet,
        _: &mut Vec<u8>,
        _: &mut PartReceiver<'_>,
    ) -> Result<bool> {
        Err(declined(NO_TAGS))
    }

    fn scan(
        &mut self,
        _: TableId,
        _: &[u8],
        _: usize,
        _: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
        Err(declined("SDL has no order of keys"))
    }
}

impl StoreConnection for SdlConnection {
    fn transact(&mut self, _: &mut Body<'_>) -> Result<()> {
        Err(declined(NO_TRANSACTIONS))
    }
}
