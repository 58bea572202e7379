//! Transactions: reads watch their keys, writes are buffered until EXEC.

use super::commands::{self, RespCommands};
use super::guard::{WriteGuard, must_be_unique, writes_of};
use super::{Dialect, Resp, must_be_whole, resp_table, tagged};
use crate::access::{
    PartReceiver, PartSet, RecordTag, ReplySink, Request, StoreAccess, StoreReply, TableId, parts,
};
use crate::targets::wire::Stream;
use nearstate_model::Result;

/// A connection between the first read and EXEC.
pub(super) struct RespTransaction<'c, S> {
    resp: &'c mut Resp<S>,
    queue: RespCommands,
    /// Records and tags that were read.
    reads: usize,
}

impl<'c, S: Stream> RespTransaction<'c, S> {
    pub(super) const fn new(resp: &'c mut Resp<S>, queue: RespCommands) -> Self {
        Self { resp, queue, reads: 0 }
    }

    /// The commands to execute, and the number of reads.
    pub(super) fn into_parts(self) -> (RespCommands, usize) {
        // Keys stay watched until the next EXEC or UNWATCH.
        self.resp.is_watching |= self.reads > 0;
        (self.queue, self.reads)
    }

    /// True if this transaction has read the record and it exists.
    fn has_seen(&self, table: TableId, key: &[u8]) -> Result<bool> {
        let prefix = resp_table(&self.resp.tables, table)?.prefix.as_slice();
        let is_it = |seen: &Vec<u8>| seen.strip_prefix(prefix) == Some(key);
        Ok(self.resp.seen.iter().any(is_it))
    }

    /// Queues a write; false if the record must exist and does not.
    fn write(&mut self, request: &Request<'_>) -> Result<bool> {
        let resp_table = resp_table(&self.resp.tables, request.table())?;
        let native = self.resp.native(request)?;
        let guard = match request {
            Request::Put { table, entry } => {
                must_be_whole(resp_table, entry.parts)?;
                native.is_none().then(|| WriteGuard::of_put(resp_table, *table, entry))
            }
            Request::Change { table, change } if native.is_none() => {
                Some(WriteGuard::of_change(resp_table, *table, change))
            }
            Request::Change { table, change } => Some(WriteGuard::of_delete(*table, change.key)),
            Request::Delete { table, key, .. } => Some(WriteGuard::of_delete(*table, key)),
            Request::Read { .. } | Request::Find { .. } => None,
        };
        if let Some(guard) = guard
            && !self.holds(guard)?
        {
            return Ok(false);
        }
        let resp_table = super::resp_table(&self.resp.tables, request.table())?;
        match native {
            Some(native) => native.write(resp_table, request, &mut self.queue),
            None => writes_of(resp_table, request, &mut self.queue),
        }
        Ok(true)
    }

    fn read_watched(
        &mut self,
        table: TableId,
        key: &[u8],
        wanted: PartSet,
        receive: &mut PartReceiver<'_>,
    ) -> Result<bool> {
        let resp_table = resp_table(&self.resp.tables, table)?;
        commands::key_request(&mut self.resp.wire.out, b"WATCH", &resp_table.prefix, key);
        self.resp.request_parts(table, key, wanted)?;
        self.reads += 1;
        self.resp.send()?;
        self.resp.wire.simple()?;
        let is_there = self.resp.receive_parts(table, wanted, receive)?;
        if is_there {
            self.remember(table, key)?;
        }
        Ok(is_there)
    }

    /// Watches a tag and reads its record; writes the record's key to `key`.
    fn find_watched(
        &mut self,
        table: TableId,
        tag: RecordTag<'_>,
        wanted: PartSet,
        (key, receive): (&mut Vec<u8>, &mut PartReceiver<'_>),
    ) -> Result<bool> {
        let resp_table = resp_table(&self.resp.tables, table)?;
        must_be_unique(resp_table, tag)?;
        if self.resp.dialect == Dialect::Tags {
            return self.find_by_command(table, tag, wanted, (key, receive));
        }
        commands::key_request(&mut self.resp.wire.out, b"WATCH", resp_table.tag(tag.0), tag.1);
        commands::key_request(&mut self.resp.wire.out, b"GET", resp_table.tag(tag.0), tag.1);
        self.reads += 1;
        self.resp.send()?;
        self.resp.wire.simple()?;
        let Some(found) = self.resp.wire.maybe_bulk()? else { return Ok(false) };
        *key = found;
        self.read_watched(table, key, wanted, receive)
    }

    /// Watches a tag with its record, and reads it.
    fn find_by_command(
        &mut self,
        table: TableId,
        tag: RecordTag<'_>,
        wanted: PartSet,
        (key, receive): (&mut Vec<u8>, &mut PartReceiver<'_>),
    ) -> Result<bool> {
        let resp_table = resp_table(&self.resp.tables, table)?;
        tagged::find(&mut self.resp.wire.out, b"WATCH", resp_table, tag, PartSet(0));
        tagged::find(&mut self.resp.wire.out, b"FIND", resp_table, tag, wanted);
        self.reads += 1;
        self.resp.send()?;
        self.resp.wire.simple()?;
        let resp_table = super::resp_table(&self.resp.tables, table)?;
        let is_there = tagged::receive_find(&mut self.resp.wire, resp_table, wanted, key, receive)?;
        if is_there {
            self.remember(table, key)?;
        }
        Ok(is_there)
    }

    fn remember(&mut self, table: TableId, key: &[u8]) -> Result<()> {
        let resp_table = resp_table(&self.resp.tables, table)?;
        self.resp.seen.push([resp_table.prefix.as_slice(), key].concat());
        Ok(())
    }

    /// Watches and reads the keys that a guard needs; false if the record must exist and does not.
    fn holds(&mut self, mut guard: WriteGuard<'_>) -> Result<bool> {
        if guard.must_exist && self.has_seen(guard.table, guard.key)? {
            guard.must_exist = false;
        }
        if guard.is_unconditional() {
            return Ok(true);
        }
        guard.watch_request(resp_table(&self.resp.tables, guard.table)?, &mut self.resp.wire.out);
        self.reads += 1;
        self.resp.send()?;
        self.resp.receive_guard(&guard)
    }
}

/// Scans are not possible: WATCH covers keys, not ranges.
impl<S: Stream> StoreAccess for RespTransaction<'_, S> {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        match request {
            Request::Read { table, key, wanted } => {
                self.read_watched(*table, key, *wanted, &mut parts(receive))
            }
            Request::Find { table, tag, wanted } => {
                let mut key = Vec::new();
                let mut wanted_parts = parts(receive);
                let found = (&mut key, &mut wanted_parts as &mut PartReceiver<'_>);
                let exists = self.find_watched(*table, *tag, *wanted, found)?;
                drop(wanted_parts);
                if exists {
                    receive(StoreReply::Key(&key));
                }
                Ok(exists)
            }
            Request::Put { .. } | Request::Change { .. } | Request::Delete { .. } => {
                self.write(request)
            }
        }
    }
}
