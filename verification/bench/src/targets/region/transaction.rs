//! Reads and writes of the region's records within one transaction.

use super::{NO_BLOCKS, ORDER, Tables, Tagged, blocks_of};
use crate::access::{
    PartSet, PartsChange, RecordEntry, ReplySink, Request, ScanRange, ScanSink, StoreAccess,
    StoreReply, TableId, first_part, parts,
};
use nearstate_model::Result;
use nearstate_store::{Metadata, Txn, Values};
use std::ops::Bound;

/// Access to the records within a transaction.
pub(super) struct RegionTransaction<'t, 's> {
    pub(super) txn: &'t Txn<'s>,
    pub(super) tables: &'t Tables,
}

impl RegionTransaction<'_, '_> {
    #[inline]
    fn put_record(&self, table: TableId, entry: &RecordEntry<'_>) -> Result<()> {
        let (namespace, schema) = self.tables.at(table)?;
        let tagged = Tagged::of(schema, entry.tags, entry.key);
        if schema.parts.len() == 1 {
            let value = first_part(entry.parts);
            return self.txn.put_with_metadata(namespace, entry.key, value, tagged.metadata());
        }
        let mut blocks = NO_BLOCKS;
        let blocks = blocks_of(schema, entry.parts, &mut blocks);
        self.txn.patch(namespace, entry.key, blocks)?;
        if tagged.count > 0 {
            self.txn.set_metadata(namespace, entry.key, tagged.metadata())?;
        }
        Ok(())
    }

    #[inline]
    fn change_record(&self, table: TableId, change: &PartsChange<'_>) -> Result<bool> {
        let (namespace, schema) = self.tables.at(table)?;
        let Some(record) = self.txn.get(namespace, change.key)? else { return Ok(false) };
        if schema.parts.len() == 1 {
            let value = first_part(change.parts);
            let Some((_, after)) = change.tags else {
                let kept: Vec<_> = record.tags().collect();
                let metadata = Metadata { tags: &kept, expires_ms: record.expires_ms() };
                self.txn.put_with_metadata(namespace, change.key, value, metadata)?;
                return Ok(true);
            };
            drop(record);
            let tagged = Tagged::of(schema, after, change.key);
            self.txn.put_with_metadata(namespace, change.key, value, tagged.metadata())?;
            return Ok(true);
        }
        drop(record);
        let mut blocks = NO_BLOCKS;
        let blocks = blocks_of(schema, change.parts, &mut blocks);
        self.txn.patch(namespace, change.key, blocks)?;
        if let Some((_, after)) = change.tags {
            let tagged = Tagged::of(schema, after, change.key);
            self.txn.set_metadata(namespace, change.key, tagged.metadata())?;
        }
        Ok(true)
    }
}

impl StoreAccess for RegionTransaction<'_, '_> {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        let (namespace, schema) = self.tables.at(request.table())?;
        match request {
            Request::Read { table, key, wanted } => {
                let Some(record) = self.txn.get(namespace, key)? else { return Ok(false) };
                self.tables.pass(*table, &record, *wanted, &mut parts(receive));
                Ok(true)
            }
            Request::Find { table, tag, wanted } => {
                let name = schema.tags.get(tag.0).map_or("", |rule| rule.name);
                let Some((key, record)) = self.txn.find(namespace, name, tag.1)? else {
                    return Ok(false);
                };
                self.tables.pass(*table, &record, *wanted, &mut parts(receive));
                receive(StoreReply::Key(&key));
                Ok(true)
            }
            Request::Put { table, entry } => self.put_record(*table, entry).map(|()| true),
            Request::Change { table, change } => self.change_record(*table, change),
            Request::Delete { key, .. } => self.txn.delete(namespace, key),
        }
    }

    fn scan(&mut self, range: &ScanRange<'_>, receive: &mut ScanSink<'_>) -> Result<usize> {
        let ScanRange { table, from, count } = *range;
        let (namespace, schema) = self.tables.at(table)?;
        if !schema.is_scanned || count == 0 {
            return Ok(0);
        }
        let mut keys = Vec::new();
        let range = Values::Range(Bound::Included(from), Bound::Unbounded);
        self.txn.find_all(namespace, ORDER, range, |key| {
            keys.push(key.to_vec());
            keys.len() < count
        })?;
        for key in &keys {
            if let Some(record) = self.txn.get(namespace, key)? {
                let mut pass = |_: usize, bytes: &[u8]| receive(key, bytes);
                self.tables.pass(table, &record, PartSet::one(0), &mut pass);
            }
        }
        Ok(keys.len())
    }
}
