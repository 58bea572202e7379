//! What is tried as a reader, because most that comes from it is: LMDB has one writer at a time.

use super::{Tables, find_in, read_in, scan_in};
use crate::access::{
    PartReceiver, PartSet, PartsChange, RecordEntry, RecordTag, StoreAccess, TableId,
};
use lmdb::RoTransaction;
use nearstate_model::{Error, Result};

/// A read transaction whose body may turn out to need a write.
pub(super) struct Reading<'c> {
    pub(super) txn: &'c RoTransaction<'static>,
    pub(super) tables: &'c Tables,
    pub(super) wants_to_write: bool,
}

impl Reading<'_> {
    fn refuse<T>(&mut self) -> Result<T> {
        self.wants_to_write = true;
        Err(Error::Conflict { detail: "nothing: a reader wants to write, and it".to_owned() })
    }
}

impl StoreAccess for Reading<'_> {
    #[inline]
    fn read(
        &mut self,
        table: TableId,
        key: &[u8],
        wanted: PartSet,
        receive: &mut PartReceiver<'_>,
    ) -> Result<bool> {
        read_in(self.txn, self.tables.at(table)?, key, wanted, receive)
    }

    fn put(&mut self, _: TableId, _: &RecordEntry<'_>) -> Result<()> {
        self.refuse()
    }

    fn change(&mut self, _: TableId, _: &PartsChange<'_>) -> Result<bool> {
        self.refuse()
    }

    fn delete(&mut self, _: TableId, _: &[u8], _: &[RecordTag<'_>]) -> Result<bool> {
        self.refuse()
    }

    fn find(
        &mut self,
        table: TableId,
        tag: RecordTag<'_>,
        wanted: PartSet,
        key: &mut Vec<u8>,
        receive: &mut PartReceiver<'_>,
    ) -> Result<bool> {
        find_in(self.txn, self.tables.at(table)?, tag, wanted, (key, receive))
    }

    fn scan(
        &mut self,
        table: TableId,
        from: &[u8],
        count: usize,
        receive: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
        scan_in(self.txn, self.tables.at(table)?, from, count, receive)
    }
}
