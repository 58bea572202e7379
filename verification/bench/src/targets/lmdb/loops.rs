//! Loops of single operations on LMDB.

use super::{LmdbConnection, backend, found};
use crate::access::OPERATIONS;
use crate::operations::Store;
use lmdb::{Cursor as _, Transaction as _};
use nearstate_model::Result;

/// A read renews one read transaction, which makes the latest writes visible; a put is a write
/// transaction of its own. LMDB has no batch: sixteen reads share one read transaction.
impl Store for LmdbConnection {
    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.writing(|access| {
            let database = access.tables.at(OPERATIONS)?.records;
            access.set(database, key, value)
        })
    }

    #[inline]
    fn view<T>(&mut self, key: &[u8], look: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        self.reading(|txn, tables| Ok(found(txn, tables.at(OPERATIONS)?.records, key)?.map(look)))
    }

    /// One write transaction.
    #[inline]
    fn update<T>(
        &mut self,
        key: &[u8],
        value: &[u8],
        mut look: impl FnMut(&[u8]) -> T,
    ) -> Result<Option<T>> {
        self.writing(|access| {
            let database = access.tables.at(OPERATIONS)?.records;
            let Some(seen) = found(&access.txn, database, key)?.map(&mut look) else {
                return Ok(None);
            };
            access.set(database, key, value)?;
            Ok(Some(seen))
        })
    }

    #[inline]
    fn batch(&mut self, keys: &[&[u8]], mut look: impl FnMut(usize, &[u8])) -> Result<()> {
        self.reading(|txn, tables| {
            let database = tables.at(OPERATIONS)?.records;
            for (at, key) in keys.iter().enumerate() {
                if let Some(value) = found(txn, database, key)? {
                    look(at, value);
                }
            }
            Ok(())
        })
    }

    fn walk(&mut self) -> Result<u64> {
        self.reading(|txn, tables| {
            let mut cursor = txn.open_ro_cursor(tables.at(OPERATIONS)?.records).map_err(backend)?;
            let mut count = 0;
            for record in cursor.iter_start() {
                record.map_err(backend)?;
                count += 1;
            }
            Ok(count)
        })
    }
}
