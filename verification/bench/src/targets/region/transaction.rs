//! Reads and writes of the region's records within one transaction.

use super::{NO_BLOCKS, ORDER, Tables, Tagged, blocks_of, first, hand_view};
use crate::access::{
    PartReceiver, PartSet, PartsChange, RecordEntry, RecordTag, StoreAccess, TableId,
};
use nearstate_model::Result;
use nearstate_store::{Metadata, Txn, Values};
use std::ops::Bound;

/// Access to the records within a transaction.
pub(super) struct InTransaction<'t, 's> {
    pub(super) txn: &'t Txn<'s>,
    pub(super) tables: &'t Tables,
}

impl StoreAccess for InTransaction<'_, '_> {
    #[inline]
    fn read(
        &mut self,
        table: TableId,
        key: &[u8],
        wanted: PartSet,
        receive: &mut PartReceiver<'_>,
    ) -> Result<bool> {
        let (namespace, schema) = self.tables.at(table)?;
        let Some(record) = self.txn.get(namespace, key)? else { return Ok(false) };
        hand_view(schema, &record, wanted, receive);
        Ok(true)
    }

    #[inline]
    fn put(&mut self, table: TableId, entry: &RecordEntry<'_>) -> Result<()> {
        let (namespace, schema) = self.tables.at(table)?;
        let tagged = Tagged::of(schema, entry.tags, entry.key);
        if schema.parts.len() == 1 {
            let value = first(entry.parts);
            return self.txn.put_with_metadata(namespace, entry.key, value, tagged.labels());
        }
        let mut blocks = NO_BLOCKS;
        let blocks = blocks_of(schema, entry.parts, &mut blocks);
        self.txn.patch(namespace, entry.key, blocks)?;
        if tagged.count > 0 {
            self.txn.set_metadata(namespace, entry.key, tagged.labels())?;
        }
        Ok(())
    }

    #[inline]
    fn change(&mut self, table: TableId, change: &PartsChange<'_>) -> Result<bool> {
        let (namespace, schema) = self.tables.at(table)?;
        let Some(record) = self.txn.get(namespace, change.key)? else { return Ok(false) };
        if schema.parts.len() == 1 {
            let value = first(change.parts);
            let Some((_, after)) = change.tags else {
                let kept: Vec<_> = record.tags().collect();
                let labels = Metadata { tags: &kept, expires_ms: record.expires_ms() };
                self.txn.put_with_metadata(namespace, change.key, value, labels)?;
                return Ok(true);
            };
            drop(record);
            let tagged = Tagged::of(schema, after, change.key);
            self.txn.put_with_metadata(namespace, change.key, value, tagged.labels())?;
            return Ok(true);
        }
        drop(record);
        let mut blocks = NO_BLOCKS;
        let blocks = blocks_of(schema, change.parts, &mut blocks);
        self.txn.patch(namespace, change.key, blocks)?;
        if let Some((_, after)) = change.tags {
            let tagged = Tagged::of(schema, after, change.key);
            self.txn.set_metadata(namespace, change.key, tagged.labels())?;
        }
        Ok(true)
    }

    #[inline]
    fn delete(&mut self, table: TableId, key: &[u8], _: &[RecordTag<'_>]) -> Result<bool> {
        let (namespace, _) = self.tables.at(table)?;
        self.txn.delete(namespace, key)
    }

    #[inline]
    fn find(
        &mut self,
        table: TableId,
        tag: RecordTag<'_>,
        wanted: PartSet,
        key: &mut Vec<u8>,
        receive: &mut PartReceiver<'_>,
    ) -> Result<bool> {
        let (namespace, schema) = self.tables.at(table)?;
        let name = schema.tags.get(tag.0).map_or("", |rule| rule.name);
        let Some((found, record)) = self.txn.find(namespace, name, tag.1)? else {
            return Ok(false);
        };
        key.clear();
        key.extend_from_slice(&found);
        hand_view(schema, &record, wanted, receive);
        Ok(true)
    }

    fn scan(
        &mut self,
        table: TableId,
        from: &[u8],
        count: usize,
        receive: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
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
                hand_view(schema, &record, PartSet::one(0), &mut |_, bytes| receive(key, bytes));
            }
        }
        Ok(keys.len())
    }
}
