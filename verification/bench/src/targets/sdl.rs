//! Our region through the API of O-RAN's Shared Data Layer, in the client's process, as in an xApp.
//! A record is a namespace, a key and one value.

use super::joined::{joined, pass_parts};
use super::{Capabilities, Database, Need, Support, Target, region::RegionTarget};
use crate::access::{
    ReplySink, Request, StoreAccess, StoreConnection, StoreSchema, TableSchema, declined, parts,
};
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

    fn folder_bytes(&self, need: &Need) -> u64 {
        RegionTarget.folder_bytes(need)
    }

    fn start(&self, need: &Need) -> Result<Box<dyn Database>> {
        // The first client creates the namespaces: SDL's records are plain values.
        let schema = StoreSchema { tables: &[] };
        RegionTarget.start(&Need { schema, ..need.clone() })
    }

    fn connect(&self, address: &str, schema: &StoreSchema) -> Result<Box<dyn StoreConnection>> {
        let storage = nearstate_sdl::open(&format!("region:{address}")).map_err(|e| backend(&e))?;
        Ok(Box::new(SdlConnection { storage, schema: *schema, whole: Vec::new() }))
    }
}

fn backend(e: &nearstate_sdl::Error) -> Error {
    Error::Backend { detail: e.to_string() }
}

#[derive(Debug)]
struct SdlConnection {
    storage: Box<dyn SyncStorage>,
    schema: StoreSchema,
    /// All parts of the last record that was read or written.
    whole: Vec<u8>,
}

impl SdlConnection {
    /// Delivers a record to `receive`; true if it exists.
    fn visit(
        &mut self,
        schema: &TableSchema,
        key: &[u8],
        mut receive: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<bool> {
        let mut outcome = None;
        self.storage
            .visit(schema.name, &[key], &mut |_, value| outcome = Some(receive(value)))
            .map_err(|e| backend(&e))?;
        outcome.transpose().map(|found| found.is_some())
    }

    fn set(&mut self, schema: &TableSchema, key: &[u8], value: &[u8]) -> Result<()> {
        self.storage.set(schema.name, &[(key, value)]).map_err(|e| backend(&e))
    }
}

impl StoreAccess for SdlConnection {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        let schema = self.schema.table(request.table())?;
        let mut whole = std::mem::take(&mut self.whole);
        let done = match request {
            Request::Read { key, wanted, .. } => self.visit(schema, key, |value| {
                pass_parts(schema, value, *wanted, &mut parts(receive))
            }),
            Request::Put { entry, .. } if schema.tags.is_empty() && !schema.is_scanned => {
                joined(schema, None, entry.parts, &mut whole)
                    .and_then(|()| self.set(schema, entry.key, &whole))
                    .map(|()| true)
            }
            // SDL sets a record whether it exists or not, so the record is read first.
            Request::Change { change, .. } if change.tags.is_none() => self
                .visit(schema, change.key, |value| {
                    joined(schema, Some(value), change.parts, &mut whole)
                })
                .and_then(|exists| {
                    if exists {
                        self.set(schema, change.key, &whole)?;
                    }
                    Ok(exists)
                }),
            Request::Delete { key, .. } => self.visit(schema, key, |_| Ok(())).and_then(|exists| {
                self.storage.remove(schema.name, &[key]).map_err(|e| backend(&e))?;
                Ok(exists)
            }),
            Request::Put { .. } | Request::Change { .. } | Request::Find { .. } => {
                Err(declined(NO_TAGS))
            }
        };
        self.whole = whole;
        done
    }
}

impl StoreConnection for SdlConnection {}
