//! Reads and writes within one write transaction.

use super::{Tables, backend, found, read_in, scan_in};
use crate::access::{
    PartsChange, RecordEntry, RecordRead, RecordTag, ReplySink, Request, ScanRange, ScanSink,
    StoreAccess, TableId, Work,
};
use crate::targets::joined::{joined, pass_parts};
use lmdb::{Database, RwTransaction, WriteFlags};
use nearstate_model::{Error, Result};

/// A write transaction.
pub(super) struct Writing<'c> {
    pub(super) txn: RwTransaction<'static>,
    pub(super) tables: &'c Tables,
    pub(super) scratch: &'c mut Vec<u8>,
    pub(super) before: &'c mut Vec<u8>,
    pub(super) has_written: bool,
}

impl Writing<'_> {
    /// Writes a value into a database.
    #[inline]
    pub(super) fn set(&mut self, database: Database, key: &[u8], value: &[u8]) -> Result<()> {
        self.has_written = true;
        self.txn.put(database, &key, &value, WriteFlags::empty()).map_err(backend)
    }

    /// Writes the joined parts.
    fn set_joined(&mut self, database: Database, key: &[u8]) -> Result<()> {
        self.has_written = true;
        let value = self.scratch.as_slice();
        self.txn.put(database, &key, &value, WriteFlags::empty()).map_err(backend)
    }

    /// Removes one entry of a database. Other entries of the same key stay.
    fn unset(&mut self, database: Database, key: &[u8], value: Option<&[u8]>) -> Result<bool> {
        self.has_written = true;
        match self.txn.del(database, &key, value) {
            Ok(()) => Ok(true),
            Err(lmdb::Error::NotFound) => Ok(false),
            Err(e) => Err(backend(e)),
        }
    }

    /// Writes the joined parts of a changed record, and its tags.
    #[inline]
    fn set_changed(&mut self, table: TableId, change: &PartsChange<'_>) -> Result<()> {
        if !change.parts.is_empty() {
            self.set_joined(self.tables.at(table)?.records, change.key)?;
        }
        if let Some((before, after)) = change.tags {
            self.retag(table, change.key, before, after)?;
        }
        Ok(())
    }

    fn retag(
        &mut self,
        table: TableId,
        key: &[u8],
        before: &[RecordTag<'_>],
        after: &[RecordTag<'_>],
    ) -> Result<()> {
        let databases = self.tables.at(table)?;
        for (tag, value) in before.iter().filter(|tag| !after.contains(tag)) {
            let (database, _, is_unique) = databases.tag(*tag)?;
            self.unset(database, value, (!is_unique).then_some(key))?;
        }
        for (tag, value) in after.iter().filter(|tag| !before.contains(tag)) {
            let (database, name, is_unique) = databases.tag(*tag)?;
            if is_unique
                && let Some(holder) = found(&self.txn, database, value)?
                && holder != key
            {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let (tag, value, holder) = (name.to_owned(), text(value), text(holder));
                return Err(Error::TagTaken { tag, value, holder });
            }
            self.set(database, value, key)?;
        }
        Ok(())
    }
}

impl Writing<'_> {
    fn put_record(&mut self, table: TableId, entry: &RecordEntry<'_>) -> Result<()> {
        let databases = self.tables.at(table)?;
        match entry.parts {
            [(0, bytes)] if databases.schema.parts.len() == 1 => {
                self.set(databases.records, entry.key, bytes)?;
            }
            parts => {
                joined(databases.schema, None, parts, self.scratch)?;
                self.set_joined(databases.records, entry.key)?;
            }
        }
        self.retag(table, entry.key, entry.tags_before, entry.tags)
    }

    fn change_record(&mut self, table: TableId, change: &PartsChange<'_>) -> Result<bool> {
        let databases = self.tables.at(table)?;
        let Some(before) = found(&self.txn, databases.records, change.key)? else {
            return Ok(false);
        };
        if !change.parts.is_empty() {
            joined(databases.schema, Some(before), change.parts, self.scratch)?;
        }
        self.set_changed(table, change)?;
        Ok(true)
    }
}

impl StoreAccess for Writing<'_> {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        match request {
            Request::Read { .. } | Request::Find { .. } => {
                read_in(&self.txn, self.tables, request, receive)
            }
            Request::Put { table, entry } => self.put_record(*table, entry).map(|()| true),
            Request::Change { table, change } => self.change_record(*table, change),
            Request::Delete { table, key, tags } => {
                let exists = self.unset(self.tables.at(*table)?.records, key, None)?;
                if exists {
                    self.retag(*table, key, tags, &[])?;
                }
                Ok(exists)
            }
        }
    }

    /// Searches for the record once. A write invalidates the bytes that a search has found, so they
    /// are copied if some parts stay.
    fn update(&mut self, read: RecordRead<'_>, work: &mut dyn Work) -> Result<bool> {
        let RecordRead { table, key, wanted } = read;
        let schema = self.tables.at(table)?.schema;
        let Some(value) = found(&self.txn, self.tables.at(table)?.records, key)? else {
            return Ok(false);
        };
        pass_parts(schema, value, wanted, &mut |part, bytes| work.receive(part, bytes))?;
        let mut before = std::mem::take(self.before);
        before.clear();
        if schema.parts.len() > 1 {
            before.extend_from_slice(value);
        }
        let done = work.change(&mut |change| {
            if !change.parts.is_empty() {
                joined(schema, Some(&before), change.parts, self.scratch)?;
            }
            self.set_changed(table, change)
        });
        *self.before = before;
        done.map(|()| true)
    }

    fn scan(&mut self, range: &ScanRange<'_>, receive: &mut ScanSink<'_>) -> Result<usize> {
        scan_in(&self.txn, self.tables, range, receive)
    }
}
