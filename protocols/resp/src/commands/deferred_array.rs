//! An array reply whose length is known only at its end.

use crate::records::KeyedRecords;
use crate::reply::error_reply::ErrorReply;
use crate::reply::{ReplyWriter, RespVersion};
use crate::server::RespServer;
use crate::sliced_task::{SlicedTask, TaskProgress};
use nearstate_model::invariant::guaranteed;
use std::collections::VecDeque;
use std::fmt::Debug;

/// Minimum bytes of a part except the last one: what a connection sends at once.
const PART_BYTES: usize = 64 << 10;

/// Encoded elements in parts, so that memory is released as the reply is sent.
#[derive(Debug, Default)]
pub(super) struct DeferredArray {
    parts: VecDeque<Vec<u8>>,
    count: usize,
    /// Of all parts.
    bytes: usize,
}

impl DeferredArray {
    /// Number of elements.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Bytes that are not written yet.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds an element.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let part = self.part();
        let before = part.len();
        // Bulk strings are equal in both protocol versions.
        ReplyWriter::new(part, RespVersion::Resp2).bulk(bytes);
        let added = part.len() - before;
        self.bytes += added;
        self.count += 1;
    }

    /// Adds bytes of a reply that is no array.
    pub(super) fn push_raw(&mut self, bytes: &[u8]) {
        self.part().extend_from_slice(bytes);
        self.bytes += bytes.len();
    }

    /// The part that gets the next bytes.
    fn part(&mut self) -> &mut Vec<u8> {
        if self.parts.back().is_none_or(|part| part.len() >= PART_BYTES) {
            // A long reply needs no spare capacity.
            self.parts.back_mut().into_iter().for_each(Vec::shrink_to_fit);
            self.parts.push_back(Vec::new());
        }
        guaranteed(self.parts.back_mut(), "a part was added")
    }

    /// Writes a part. `Done` after the last one.
    pub(super) fn write_part(&mut self, reply: &mut ReplyWriter<'_>) -> TaskProgress {
        if let Some(part) = self.parts.pop_front() {
            self.bytes -= part.len();
            reply.raw(&part);
        }
        if self.parts.is_empty() { TaskProgress::Done } else { TaskProgress::More }
    }
}

/// Reads the elements of an array in slices.
pub(super) trait ElementSource: Debug {
    /// Adds the elements of one slice to `found`. True after the last one.
    fn read(
        &mut self,
        records: &KeyedRecords,
        server: &RespServer,
        found: &mut DeferredArray,
    ) -> Result<bool, ErrorReply>;

    /// Writes what precedes the elements.
    fn write_head(&self, found: &DeferredArray, reply: &mut ReplyWriter<'_>) {
        reply.array(found.count());
    }

    /// As [`SlicedTask::memory_bytes`], without the elements.
    fn memory_bytes(&self) -> usize;
}

/// A command that reads all elements of its reply in slices, and then sends them in parts.
#[derive(Debug)]
pub(super) struct ArrayTask<S> {
    source: S,
    found: DeferredArray,
    is_read: bool,
}

impl<S> ArrayTask<S> {
    pub(super) fn new(source: S) -> Self {
        Self { source, found: DeferredArray::default(), is_read: false }
    }
}

impl<S: ElementSource> SlicedTask for ArrayTask<S> {
    fn step(
        &mut self,
        records: &KeyedRecords,
        server: &RespServer,
        reply: &mut ReplyWriter<'_>,
    ) -> Result<TaskProgress, ErrorReply> {
        if !self.is_read {
            if !self.source.read(records, server, &mut self.found)? {
                return Ok(TaskProgress::More);
            }
            self.is_read = true;
            self.source.write_head(&self.found, reply);
        }
        Ok(self.found.write_part(reply))
    }

    fn memory_bytes(&self) -> usize {
        self.source.memory_bytes() + self.found.bytes()
    }

    fn collected(&self) -> usize {
        self.found.bytes()
    }
}
