//! A transaction: reads watch what they read, writes wait for EXEC.

use super::commands::{self, RespCommands};
use super::guard::{self, ReplyGuard, must_be_unique};
use super::{Dialect, Resp, must_be_whole, place, tagged};
use crate::access::{
    PartReceiver, PartSet, PartsChange, RecordEntry, RecordTag, Request, StoreAccess, TableId,
};
use crate::targets::wire::Stream;
use nearstate_model::{Error, Result};

/// A connection between the first read and EXEC.
pub(super) struct InTransaction<'c, S> {
    resp: &'c mut Resp<S>,
    queue: RespCommands,
    /// Records and tags that were read.
    reads: usize,
}

impl<'c, S: Stream> InTransaction<'c, S> {
    pub(super) const fn new(resp: &'c mut Resp<S>, queue: RespCommands) -> Self {
        Self { resp, queue, reads: 0 }
    }

    /// What is to be executed, and how much was read.
    pub(super) fn into_parts(self) -> (RespCommands, usize) {
        // Whatever was watched is so until the next EXEC or UNWATCH.
        self.resp.is_watching |= self.reads > 0;
        (self.queue, self.reads)
    }

    /// Whether this transaction has read the record, and it is there.
    fn has_seen(&self, table: TableId, key: &[u8]) -> Result<bool> {
        let prefix = place(&self.resp.places, table)?.prefix.as_slice();
        let is_it = |seen: &Vec<u8>| seen.strip_prefix(prefix) == Some(key);
        Ok(self.resp.seen.iter().any(is_it))
    }

    /// Puts what the server does by itself into the queue; false if it takes more than that.
    fn queue_natively(&mut self, request: &Request<'_>) -> Result<bool> {
        let Some(native) = self.resp.native(request)? else { return Ok(false) };
        let place = place(&self.resp.places, request.table())?;
        native.write(place, request, &mut self.queue);
        Ok(true)
    }

    /// Watches a tag with its record, and reads it.
    fn find_natively(
        &mut self,
        table: TableId,
        tag: RecordTag<'_>,
        wanted: PartSet,
        (key, receive): (&mut Vec<u8>, &mut PartReceiver<'_>),
    ) -> Result<bool> {
        let place = place(&self.resp.places, table)?;
        tagged::find(&mut self.resp.wire.out, b"WATCH", place, tag, PartSet(0));
        tagged::find(&mut self.resp.wire.out, b"FIND", place, tag, wanted);
        self.reads += 1;
        self.resp.send()?;
        self.resp.wire.simple()?;
        let place = super::place(&self.resp.places, table)?;
        let is_there = tagged::receive_find(&mut self.resp.wire, place, wanted, key, receive)?;
        if is_there {
            self.remember(table, key)?;
        }
        Ok(is_there)
    }

    fn remember(&mut self, table: TableId, key: &[u8]) -> Result<()> {
        let place = place(&self.resp.places, table)?;
        self.resp.seen.push([place.prefix.as_slice(), key].concat());
        Ok(())
    }

    /// Watches what a guard needs and looks at it; false if the record is not there but must be.
    fn holds(&mut self, mut guard: ReplyGuard<'_>) -> Result<bool> {
        if guard.must_exist && self.has_seen(guard.table, guard.key)? {
            guard.must_exist = false;
        }
        if guard.is_open() {
            return Ok(true);
        }
        guard.watch_request(place(&self.resp.places, guard.table)?, &mut self.resp.wire.out);
        self.reads += 1;
        self.resp.send()?;
        self.resp.receive_guard(&guard)
    }
}

impl<S: Stream> StoreAccess for InTransaction<'_, S> {
    fn read(
        &mut self,
        table: TableId,
        key: &[u8],
        wanted: PartSet,
        receive: &mut PartReceiver<'_>,
    ) -> Result<bool> {
        let place = place(&self.resp.places, table)?;
        commands::key_request(&mut self.resp.wire.out, b"WATCH", &place.prefix, key);
        self.resp.ask_parts(table, key, wanted)?;
        self.reads += 1;
        self.resp.send()?;
        self.resp.wire.simple()?;
        let is_there = self.resp.receive_parts(table, wanted, receive)?;
        if is_there {
            self.remember(table, key)?;
        }
        Ok(is_there)
    }

    fn put(&mut self, table: TableId, entry: &RecordEntry<'_>) -> Result<()> {
        let place = place(&self.resp.places, table)?;
        must_be_whole(place, entry.parts)?;
        if self.queue_natively(&Request::Put { table, entry: *entry })? {
            return Ok(());
        }
        let place = super::place(&self.resp.places, table)?;
        guard::writes_of_put(place, entry, &mut self.queue);
        self.holds(ReplyGuard::of_put(place, table, entry)).map(drop)
    }

    fn change(&mut self, table: TableId, change: &PartsChange<'_>) -> Result<bool> {
        let request = Request::Change { table, change: *change };
        if self.resp.native(&request)?.is_some() {
            return Ok(self.holds(ReplyGuard::of_delete(table, change.key))?
                && self.queue_natively(&request)?);
        }
        let place = place(&self.resp.places, table)?;
        if !self.holds(ReplyGuard::of_change(place, table, change))? {
            return Ok(false);
        }
        let place = super::place(&self.resp.places, table)?;
        guard::writes_of_change(place, change, &mut self.queue);
        Ok(true)
    }

    fn delete(&mut self, table: TableId, key: &[u8], tags: &[RecordTag<'_>]) -> Result<bool> {
        if !self.holds(ReplyGuard::of_delete(table, key))? {
            return Ok(false);
        }
        if self.queue_natively(&Request::Delete { table, key, tags })? {
            return Ok(true);
        }
        let place = place(&self.resp.places, table)?;
        guard::writes_of_delete(place, key, tags, &mut self.queue);
        Ok(true)
    }

    fn find(
        &mut self,
        table: TableId,
        tag: RecordTag<'_>,
        wanted: PartSet,
        key: &mut Vec<u8>,
        receive: &mut PartReceiver<'_>,
    ) -> Result<bool> {
        let place = place(&self.resp.places, table)?;
        must_be_unique(place, tag)?;
        if self.resp.dialect == Dialect::Tags {
            return self.find_natively(table, tag, wanted, (key, receive));
        }
        commands::key_request(&mut self.resp.wire.out, b"WATCH", place.tag(tag.0), tag.1);
        commands::key_request(&mut self.resp.wire.out, b"GET", place.tag(tag.0), tag.1);
        self.reads += 1;
        self.resp.send()?;
        self.resp.wire.simple()?;
        let Some(found) = self.resp.wire.maybe_bulk()? else { return Ok(false) };
        key.clear();
        key.extend_from_slice(&found);
        self.read(table, &found, wanted, receive)
    }

    /// Which keys there are cannot be watched.
    fn scan(
        &mut self,
        _: TableId,
        _: &[u8],
        _: usize,
        _: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
        Err(Error::BadArgument {
            detail: "no scan within a transaction over RESP: WATCH knows keys, not ranges"
                .to_owned(),
        })
    }
}
