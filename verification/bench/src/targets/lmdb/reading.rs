//! What is tried as a reader, because most that comes from it is: LMDB has one writer at a time.

use super::{Tables, find_in, read_in, scan_in};
use crate::access::{Access, Change, Entry, Hear, Parts, Table, Tag};
use lmdb::RoTransaction;
use nearstate_model::{Error, Result};

/// A read transaction that somebody may want to write in.
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

impl Access for Reading<'_> {
    #[inline]
    fn read(
        &mut self,
        table: Table,
        key: &[u8],
        wanted: Parts,
        hear: &mut Hear<'_>,
    ) -> Result<bool> {
        read_in(self.txn, self.tables.at(table)?, key, wanted, hear)
    }

    fn put(&mut self, _: Table, _: &Entry<'_>) -> Result<()> {
        self.refuse()
    }

    fn change(&mut self, _: Table, _: &Change<'_>) -> Result<bool> {
        self.refuse()
    }

    fn delete(&mut self, _: Table, _: &[u8], _: &[Tag<'_>]) -> Result<bool> {
        self.refuse()
    }

    fn find(
        &mut self,
        table: Table,
        tag: Tag<'_>,
        wanted: Parts,
        key: &mut Vec<u8>,
        hear: &mut Hear<'_>,
    ) -> Result<bool> {
        find_in(self.txn, self.tables.at(table)?, tag, wanted, (key, hear))
    }

    fn scan(
        &mut self,
        table: Table,
        from: &[u8],
        count: usize,
        hear: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
        scan_in(self.txn, self.tables.at(table)?, from, count, hear)
    }
}
