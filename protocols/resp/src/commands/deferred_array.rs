//! Elements of an answer whose number is known only at its end.

use crate::reply::{Reply, RespVersion};
use crate::sliced_task::TaskProgress;
use std::collections::VecDeque;

/// What a part of an answer has at least, but for the last one: what a connection sends at once.
const PART_BYTES: usize = 64 << 10;

/// The elements, in parts, so that each is given back as it goes out.
#[derive(Debug, Default)]
pub(super) struct DeferredArray {
    name_and_subcommand: VecDeque<Vec<u8>>,
    count: usize,
    /// Of all parts.
    bytes: usize,
}

impl DeferredArray {
    /// How many there are.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Bytes that were not handed on yet.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        match self.name_and_subcommand.back_mut() {
            Some(part) if part.len() < PART_BYTES => {}
            full => {
                // A long answer takes its bytes and no more.
                full.into_iter().for_each(Vec::shrink_to_fit);
                self.name_and_subcommand.push_back(Vec::new());
            }
        }
        if let Some(part) = self.name_and_subcommand.back_mut() {
            let before = part.len();
            // A bulk is the same in both protocols.
            Reply::new(part, RespVersion::Resp2).bulk(bytes);
            self.bytes += part.len() - before;
        }
        self.count += 1;
    }

    /// Hands a part on. `Done` with the last one.
    pub(super) fn write_part(&mut self, reply: &mut Reply<'_>) -> TaskProgress {
        if let Some(part) = self.name_and_subcommand.pop_front() {
            self.bytes -= part.len();
            reply.raw(&part);
        }
        if self.name_and_subcommand.is_empty() { TaskProgress::Done } else { TaskProgress::More }
    }
}
