//! Loops of single operations on a region.

use super::RegionConnection;
use crate::access::TableId;
use crate::operations::{RecordKey, Store};
use nearstate_model::Result;
use nearstate_store::{Namespace, Session};

/// The records of one table, for loops of single operations.
pub(super) struct Loops<'s> {
    session: &'s Session,
    namespace: Namespace,
}

impl Store for Loops<'_> {
    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.session.put(self.namespace, key, value).map(drop)
    }

    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a network function calls get itself, not through this"
    )]
    fn view<T>(&mut self, key: &[u8], look: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        Ok(self.session.get(self.namespace, key)?.map(|view| look(view.bytes())))
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    fn scope(&mut self, keys: &[RecordKey], mut look: impl FnMut(&[u8])) -> Result<()> {
        let scope = self.session.read_scope(self.namespace)?;
        for key in keys {
            if let Some(view) = scope.get(key)? {
                look(view.bytes());
            }
        }
        Ok(())
    }

    #[inline]
    fn update<T>(
        &mut self,
        key: &[u8],
        value: &[u8],
        mut look: impl FnMut(&[u8]) -> T,
    ) -> Result<Option<T>> {
        let namespace = self.namespace;
        self.session.transact(|txn| {
            let Some(view) = txn.get(namespace, key)? else { return Ok(None) };
            let seen = look(view.bytes());
            drop(view);
            txn.put(namespace, key, value)?;
            Ok(Some(seen))
        })
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    fn copy(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        self.session.get_copy(self.namespace, key, out).map(|version| version.is_some())
    }

    #[inline]
    fn batch(&mut self, keys: &[&[u8]], mut look: impl FnMut(usize, &[u8])) -> Result<()> {
        self.session.get_batch(self.namespace, keys, |at, view| {
            if let Some(view) = view {
                look(at, view.bytes());
            }
        })
    }

    #[inline]
    fn batch_whole(&mut self, keys: &[&[u8]], mut look: impl FnMut(usize, &[u8])) -> Result<()> {
        self.session.get_batch_whole(self.namespace, keys, |at, view| {
            if let Some(view) = view {
                look(at, view.bytes());
            }
        })
    }

    fn walk(&mut self) -> Result<u64> {
        let mut scan = self.session.scan(self.namespace)?;
        let mut count = 0;
        while scan.step()? {
            count += 1;
        }
        Ok(count)
    }
}

impl RegionConnection {
    pub(super) fn loops(&self, table: TableId) -> Result<Loops<'_>> {
        let (namespace, _) = self.tables.at(table)?;
        Ok(Loops { session: &self.session, namespace })
    }
}
