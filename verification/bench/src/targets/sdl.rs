//! Our region through the API of O-RAN's Shared Data Layer, in the client's process, as in an xApp.
//! A record is a namespace, a key and one value.

use super::joined::{PlainStore, WholeRecords};
use super::{Capabilities, Database, DatabaseSpec, Support, Target, region::RegionTarget};
use crate::access::{StoreConnection, StoreSchema, TableId};
use nearstate_model::{Error, Result};
use nearstate_sdl::SyncStorage;

/// Why SDL declines.
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

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            delta: Support::Emulated("the whole record is read and set"),
            unique_tag: Support::Declined(NO_TAGS),
            transaction: Support::Declined(NO_TRANSACTIONS),
            scan: Support::Declined("SDL has no order of keys"),
            walk: Support::Declined("the SDL has no walk"),
            ..Capabilities::DEFAULT
        }
    }

    fn folder_bytes(&self, spec: &DatabaseSpec) -> u64 {
        RegionTarget.folder_bytes(spec)
    }

    fn start(&self, spec: &DatabaseSpec) -> Result<Box<dyn Database>> {
        // The first client creates the namespaces: SDL's records are plain values.
        let schema = StoreSchema { tables: &[] };
        RegionTarget.start(&DatabaseSpec { schema, ..spec.clone() })
    }

    fn connect(&self, address: &str, schema: &StoreSchema) -> Result<Box<dyn StoreConnection>> {
        let storage = nearstate_sdl::open(&format!("region:{address}")).map_err(|e| backend(&e))?;
        Ok(Box::new(WholeRecords::new(SdlNamespaces { storage, schema: *schema }, schema)))
    }
}

fn backend(e: &nearstate_sdl::Error) -> Error {
    backend_error!("{e}")
}

#[derive(Debug)]
struct SdlNamespaces {
    storage: Box<dyn SyncStorage>,
    schema: StoreSchema,
}

impl PlainStore for SdlNamespaces {
    fn view(
        &mut self,
        (table, key): (TableId, &[u8]),
        mut look: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<bool> {
        let (name, mut outcome) = (self.schema.table(table)?.name, None);
        self.storage
            .visit(name, &[key], &mut |_, value| outcome = Some(look(value)))
            .map_err(|e| backend(&e))?;
        outcome.transpose().map(|found| found.is_some())
    }

    /// SDL sets a record whether it exists or not.
    fn put(&mut self, (table, key): (TableId, &[u8]), value: &[u8]) -> Result<()> {
        let name = self.schema.table(table)?.name;
        self.storage.set(name, &[(key, value)]).map_err(|e| backend(&e))
    }

    fn delete(&mut self, (table, key): (TableId, &[u8])) -> Result<bool> {
        let exists = self.view((table, key), |_| Ok(()))?;
        let name = self.schema.table(table)?.name;
        self.storage.remove(name, &[key]).map_err(|e| backend(&e))?;
        Ok(exists)
    }
}

impl StoreConnection for WholeRecords<SdlNamespaces> {}
