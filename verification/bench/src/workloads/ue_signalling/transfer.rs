//! Transfer of contexts, whole or in blocks.

use super::{PendingProcedure, TAGGED};
use crate::access::{PartSet, PartWrite, RecordTag, TAGS_MAX};
use crate::workloads::wrong_answer;
use nearstate_model::{Error, Result};
use nearstate_ue::{BLOCKS, BlockSet, Context, Procedure, blocks_touched, tags};

/// The parts of a context that are transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferMode {
    /// All, read and written.
    Full,
    /// The blocks that the procedure touches, read and written.
    Delta,
    /// As [`TransferMode::Delta`], but blocks that it overwrites completely are not read.
    BlindDelta,
    /// As [`TransferMode::Delta`], but the whole context is read, for its old tags, and is found by
    /// the GUTI if the message contains it. Tags are written if they change.
    Tagged,
}

/// The parts with these blocks.
#[inline]
pub(super) fn parts_of(blocks: BlockSet) -> PartSet {
    let mut parts = PartSet(0);
    for block in blocks.iter() {
        parts = parts.union(PartSet::one(block as usize));
    }
    parts
}

/// The parts that are written after a procedure.
#[inline]
pub(super) fn written<'p, 'c>(
    mode: TransferMode,
    context: &'c Context,
    procedure: Procedure,
    parts: &'p mut [PartWrite<'c>; BLOCKS.len()],
) -> &'p [PartWrite<'c>] {
    if mode == TransferMode::Full {
        if let Some(first) = parts.first_mut() {
            *first = (0, context.as_bytes().as_slice());
        }
        return parts.get(..1).unwrap_or_default();
    }
    let blocks = blocks_touched(procedure);
    let mut count = 0;
    for (part, block) in parts.iter_mut().zip(blocks.iter()) {
        *part = (block as usize, context.view().block(block));
        count += 1;
    }
    parts.get(..count).unwrap_or_default()
}

#[inline]
pub(super) fn bytes_of(parts: &[PartWrite<'_>]) -> u64 {
    parts.iter().map(|(_, bytes)| bytes.len() as u64).sum()
}

/// Every part of a context.
pub(super) fn whole<'p, 'c>(
    mode: TransferMode,
    context: &'c Context,
    parts: &'p mut [PartWrite<'c>; BLOCKS.len()],
) -> &'p [PartWrite<'c>] {
    if mode == TransferMode::Full {
        return written(mode, context, Procedure::InitialAttach, parts);
    }
    for (part, block) in parts.iter_mut().zip(BLOCKS) {
        *part = (*block as usize, context.view().block(*block));
    }
    parts
}

/// Receives a context. Its content is not validated here: it is compared with the hashes of the
/// model.
#[derive(Clone, Copy)]
pub(super) struct ReceivedContext {
    mode: TransferMode,
    pub(super) bytes: u64,
    /// The first invalid part, and its length.
    invalid: Option<(usize, usize)>,
}

impl ReceivedContext {
    pub(super) const fn new(mode: TransferMode) -> Self {
        Self { mode, bytes: 0, invalid: None }
    }

    #[inline]
    pub(super) fn add(&mut self, context: &mut Context, part: usize, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        let result = if self.mode == TransferMode::Full {
            context.load_trusted(bytes)
        } else {
            match BLOCKS.get(part) {
                Some(block) => context.load_trusted_block(*block, bytes),
                None => Ok(()),
            }
        };
        if result.is_err() {
            self.invalid = self.invalid.or(Some((part, bytes.len())));
        }
    }

    #[inline]
    pub(super) fn check(self, exists: bool, pending: PendingProcedure) -> Result<()> {
        match self.invalid {
            Some((part, bytes)) => Err(malformed_context(pending, (part, bytes))),
            None if exists => Ok(()),
            None => Err(missing_context(pending)),
        }
    }
}

#[cold]
fn malformed_context(pending: PendingProcedure, (part, bytes): (usize, usize)) -> Error {
    let procedure = pending.procedure;
    wrong_answer(format_args!("{procedure}: part {part} with {bytes} bytes is not of a context"))
}

#[cold]
pub(super) fn missing_context(pending: PendingProcedure) -> Error {
    let (ue, procedure) = (pending.ue.index(), pending.procedure);
    wrong_answer(format_args!("{procedure}: the context of this client's UE {ue} does not exist"))
}

#[cold]
pub(super) fn stale_context(pending: PendingProcedure) -> Error {
    let (ue, procedure) = (pending.ue.index(), pending.procedure);
    wrong_answer(format_args!(
        "{procedure}: the context of this client's UE {ue} is not that after the last procedure: \
         an acknowledged write is lost, or the reply is another record"
    ))
}

/// The tags of a context, numbered as in the schema.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ContextTags<'c> {
    tags: [RecordTag<'c>; TAGS_MAX],
    count: usize,
}

impl<'c> ContextTags<'c> {
    pub(super) fn fill(&mut self, context: &'c Context) {
        self.count = 0;
        let Some(table) = TAGGED.tables.first() else { return };
        for ((name, value), entry) in tags(&context.view()).zip(&mut self.tags) {
            if let Some(tag) = table.tags.iter().position(|rule| rule.name == name) {
                *entry = (tag, value);
                self.count += 1;
            }
        }
    }

    pub(super) fn tags(&self) -> &[RecordTag<'c>] {
        self.tags.get(..self.count).unwrap_or_default()
    }
}
