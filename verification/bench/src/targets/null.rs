//! A target that stores nothing and replies as if it did. It measures the generator and the driver.
//!
//! A read returns bytes of an earlier write of any record, as many as were written last, so that
//! a read-modify-write of a workload gets a record of the right form. Its replies are not verified.

use super::{Capabilities, Database, DatabaseSpec, Support, Target};
use crate::access::{
    Body, ReplySink, Request, ScanRange, ScanSink, StoreAccess, StoreConnection, StoreReply,
    StoreSchema, TableId,
};
use nearstate_model::Result;

#[derive(Clone, Copy, Debug)]
pub struct NullTarget;

impl Target for NullTarget {
    fn name(&self) -> &'static str {
        "null"
    }

    fn version(&self) -> Result<String> {
        Ok("stores nothing".to_owned())
    }

    fn keeps(&self) -> bool {
        false
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { counter: Support::Native, set: Support::Native, ..Capabilities::DEFAULT }
    }

    fn start(&self, _: &DatabaseSpec) -> Result<Box<dyn Database>> {
        Ok(Box::new(Nothing))
    }

    fn connect(&self, _: &str, schema: &StoreSchema) -> Result<Box<dyn StoreConnection>> {
        let parts = schema.tables.iter().map(|table| table.parts.len());
        let tables = parts.map(|parts| vec![Vec::new(); parts]).collect();
        Ok(Box::new(NullConnection { tables }))
    }
}

#[derive(Debug)]
struct Nothing;

impl Database for Nothing {
    fn address(&self) -> String {
        "null".to_owned()
    }

    fn memory_bytes(&mut self) -> Option<u64> {
        None
    }
}

/// Bytes for each part of each table, as many as were written last.
#[derive(Debug)]
struct NullConnection {
    tables: Vec<Vec<Vec<u8>>>,
}

impl NullConnection {
    fn keep(&mut self, table: TableId, parts: &[(usize, &[u8])]) {
        let Some(kept) = self.tables.get_mut(table.0) else { return };
        for (part, bytes) in parts {
            // A copy of each write would count as the generator's work.
            if let Some(entry) = kept.get_mut(*part).filter(|kept| kept.len() != bytes.len()) {
                entry.clear();
                entry.extend_from_slice(bytes);
            }
        }
    }
}

impl StoreAccess for NullConnection {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        match request {
            Request::Read { table, wanted, .. } | Request::Find { table, wanted, .. } => {
                let kept = self.tables.get(table.0).into_iter().flatten();
                for (part, bytes) in kept.enumerate().filter(|(part, _)| wanted.contains(*part)) {
                    if !bytes.is_empty() {
                        receive(StoreReply::Part(part, bytes));
                    }
                }
                if matches!(request, Request::Find { .. }) {
                    receive(StoreReply::Key(&[]));
                }
            }
            Request::Put { table, entry } => self.keep(*table, entry.parts),
            Request::Change { table, change } => self.keep(*table, change.parts),
            Request::Delete { .. } => {}
        }
        Ok(true)
    }

    fn scan(&mut self, range: &ScanRange<'_>, _: &mut ScanSink<'_>) -> Result<usize> {
        Ok(range.count)
    }
}

impl StoreConnection for NullConnection {
    fn is_null(&self) -> bool {
        true
    }

    fn walk(&mut self, _: TableId) -> Result<u64> {
        Ok(0)
    }

    fn add(&mut self, _: &[u8], _: u64) -> Result<()> {
        Ok(())
    }

    fn counter(&mut self, _: &[u8]) -> Result<i64> {
        Ok(0)
    }

    fn add_member(&mut self, _: &[u8], _: &[u8]) -> Result<bool> {
        Ok(true)
    }

    fn transact(&mut self, body: &mut Body<'_>) -> Result<()> {
        body(self)
    }
}
