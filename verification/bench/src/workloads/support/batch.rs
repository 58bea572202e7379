//! A batch of requests. Its memory is reused, so that requests need no allocation.

use crate::access::{
    BatchSink, Connection, PartSet, PartWrite, PartsChange, RecordEntry, Request, StoreReply,
    TableId,
};
use nearstate_model::Result;
use std::ops::Range;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchOp {
    /// Reads some parts.
    Read(PartSet),
    /// Puts a whole record, which does not exist.
    Put,
    /// Changes some parts.
    Change,
    Delete,
    /// Finds a record by the table's first tag: the key is the tag's value. For
    /// [`Batch::prefetch`].
    Find,
}

/// A request as ranges of the buffers.
#[derive(Clone, Debug)]
struct PreparedRequest {
    kind: BatchOp,
    table: TableId,
    key: Range<usize>,
    parts: Range<usize>,
    tags: Range<usize>,
}

/// A batch of requests.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    spans: Vec<(usize, Range<usize>)>,
    prepared: Vec<PreparedRequest>,
    /// Empty, kept for their capacity: parts and tags, requests.
    fields: Vec<PartWrite<'static>>,
    requests: Vec<Request<'static>>,
    sent: u64,
}

impl Batch {
    /// Removes all requests.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.spans.clear();
        self.prepared.clear();
    }

    /// Begins a request: `key` writes the record's key.
    #[inline]
    pub fn begin(&mut self, kind: BatchOp, table: TableId, key: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        key(&mut self.bytes);
        let (end, spans) = (self.bytes.len(), self.spans.len());
        self.sent += (end - start) as u64;
        let (parts, tags) = (spans..spans, spans..spans);
        self.prepared.push(PreparedRequest { kind, table, key: start..end, parts, tags });
    }

    /// Adds a part to the last request. All parts precede the tags.
    #[inline]
    pub fn part(&mut self, part: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        write(&mut self.bytes);
        self.sent += (self.bytes.len() - start) as u64;
        self.spans.push((part, start..self.bytes.len()));
        if let Some(prepared) = self.prepared.last_mut() {
            prepared.parts.end = self.spans.len();
            prepared.tags = self.spans.len()..self.spans.len();
        }
    }

    /// Adds a tag to the last request.
    #[inline]
    pub fn tag(&mut self, tag: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        write(&mut self.bytes);
        self.spans.push((tag, start..self.bytes.len()));
        if let Some(prepared) = self.prepared.last_mut() {
            prepared.tags.end = self.spans.len();
        }
    }

    /// The number of requests.
    pub fn count(&self) -> usize {
        self.prepared.len()
    }

    /// Returns the bytes of keys and parts since the last call.
    #[inline]
    pub const fn take_sent(&mut self) -> u64 {
        std::mem::replace(&mut self.sent, 0)
    }

    /// Calls `send` with the requests.
    #[inline]
    fn with<T>(&mut self, send: impl FnOnce(&[Request<'_>]) -> Result<T>) -> Result<T> {
        let bytes = &self.bytes;
        let at = |range: &Range<usize>| bytes.get(range.clone()).unwrap_or_default();
        let mut fields = emptied_parts(std::mem::take(&mut self.fields));
        fields.extend(self.spans.iter().map(|(number, range)| (*number, at(range))));
        let fields_at = |range: &Range<usize>| fields.get(range.clone()).unwrap_or_default();
        let mut requests = emptied_requests(std::mem::take(&mut self.requests));
        requests.extend(self.prepared.iter().map(|prepared| {
            let (table, key) = (prepared.table, at(&prepared.key));
            let (parts, tags) = (fields_at(&prepared.parts), fields_at(&prepared.tags));
            match prepared.kind {
                BatchOp::Read(wanted) => Request::Read { table, key, wanted },
                BatchOp::Put => {
                    Request::Put { table, entry: RecordEntry::tagged(key, parts, tags) }
                }
                BatchOp::Change => {
                    Request::Change { table, change: PartsChange { key, parts, tags: None } }
                }
                BatchOp::Delete => Request::Delete { table, key, tags },
                BatchOp::Find => Request::Find { table, tag: (0, key), wanted: PartSet::ALL },
            }
        }));
        let result = send(&requests);
        self.requests = emptied_requests(requests);
        self.fields = emptied_parts(fields);
        result
    }

    /// Tells the store that these requests follow.
    #[inline]
    pub fn prefetch(&mut self, store: &mut Connection<'_>) -> Result<()> {
        self.with(|requests| {
            store.prefetch(requests);
            Ok(())
        })
    }

    /// Sends the batch; a single request is sent alone.
    #[inline]
    pub fn send(&mut self, store: &mut Connection<'_>, receive: &mut BatchSink<'_>) -> Result<()> {
        self.with(|requests| match requests {
            [] => Ok(()),
            [request] => {
                let is_done = store.perform(request, &mut |reply| receive(0, reply))?;
                receive(0, StoreReply::Done(is_done));
                Ok(())
            }
            requests => store.pipeline(requests, receive),
        })
    }

    /// Sends the batch as one transaction; true if each request found its record.
    #[inline]
    pub fn transact(&mut self, store: &mut Connection<'_>) -> Result<bool> {
        self.with(|requests| {
            let mut all_exist = true;
            store.transact(&mut |access| {
                all_exist = true;
                for request in requests {
                    all_exist &= access.perform(request, &mut |_| {})?;
                }
                Ok(())
            })?;
            Ok(all_exist)
        })
    }
}

/// Empties a vector for items of another lifetime: collecting in place keeps the allocation.
#[inline]
fn emptied_parts<'b>(mut used: Vec<PartWrite<'_>>) -> Vec<PartWrite<'b>> {
    used.clear();
    used.into_iter().map_while(|_| None).collect()
}

#[inline]
fn emptied_requests<'b>(mut used: Vec<Request<'_>>) -> Vec<Request<'b>> {
    used.clear();
    used.into_iter().map_while(|_| None).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emptied_vectors_keep_their_allocation() {
        let bytes = [1_u8; 4];
        let mut parts: Vec<PartWrite<'_>> = Vec::with_capacity(40);
        parts.push((1, &bytes));
        let address = parts.as_ptr() as usize;
        let again: Vec<PartWrite<'static>> = emptied_parts(parts);
        assert!(again.is_empty() && again.capacity() >= 40);
        assert_eq!(again.as_ptr() as usize, address);
    }

    #[test]
    fn requests_have_the_keys_parts_and_tags_that_were_written() {
        let mut batch = Batch::default();
        for round in 0..2 {
            batch.clear();
            batch.begin(BatchOp::Put, TableId(1), |out| out.extend_from_slice(b"key"));
            batch.part(0, |out| out.extend_from_slice(b"first"));
            batch.part(2, |out| out.push(round));
            batch.tag(1, |out| out.extend_from_slice(b"tag"));
            batch.begin(BatchOp::Delete, TableId(0), |out| out.extend_from_slice(b"gone"));
            batch.tag(0, |out| out.extend_from_slice(b"old"));
            let seen = batch.with(|requests| Ok(format!("{requests:?}"))).unwrap();
            let parts: [PartWrite<'_>; 2] = [(0, b"first"), (2, &[round])];
            let entry = RecordEntry::tagged(b"key", &parts, &[(1, b"tag")]);
            let expected = [
                Request::Put { table: TableId(1), entry },
                Request::Delete { table: TableId(0), key: b"gone", tags: &[(0, b"old")] },
            ];
            assert_eq!(seen, format!("{expected:?}"));
            assert_eq!((batch.count(), batch.take_sent()), (2, 3 + 5 + 1 + 4));
        }
    }
}
