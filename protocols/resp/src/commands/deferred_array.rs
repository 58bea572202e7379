//! An array reply whose length is known only at its end.

use crate::reply::{ReplyWriter, RespVersion};
use crate::sliced_task::TaskProgress;
use std::collections::VecDeque;

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

    pub(super) fn push(&mut self, bytes: &[u8]) {
        match self.parts.back_mut() {
            Some(part) if part.len() < PART_BYTES => {}
            full => {
                // A long reply needs no spare capacity.
                full.into_iter().for_each(Vec::shrink_to_fit);
                self.parts.push_back(Vec::new());
            }
        }
        if let Some(part) = self.parts.back_mut() {
            let before = part.len();
            // Bulk strings are equal in both protocol versions.
            ReplyWriter::new(part, RespVersion::Resp2).bulk(bytes);
            self.bytes += part.len() - before;
        }
        self.count += 1;
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
