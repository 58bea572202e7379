//! How much of a context travels, and how its bytes come and go.

use super::{Flight, TAGGED};
use crate::access::{PartSet, PartWrite, RecordTag, TAGS_MAX};
use crate::workloads::wrong_answer;
use nearstate_model::{Error, Result};
use nearstate_ue::{BLOCKS, BlockSet, Context, Procedure, blocks_touched, tags};

/// How much of a context travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferMode {
    /// All of it, read and written.
    Full,
    /// The blocks that the procedure touches, read and written.
    Delta,
    /// The blocks that it touches are written; of those that it overwrites from end to end nothing
    /// is read.
    BlindDelta,
    /// As [`TransferMode::Delta`], but the whole context is read, for its old tags, and is found by
    /// the GUTI where the UE identifies itself. Tags are written where they change.
    Tagged,
}

/// The parts that hold these blocks.
#[inline]
pub(super) fn parts_of(blocks: BlockSet) -> PartSet {
    let mut parts = PartSet(0);
    for block in blocks.iter() {
        parts = parts.and(PartSet::one(block as usize));
    }
    parts
}

/// What is written of a context after a procedure.
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
    for (place, block) in parts.iter_mut().zip(blocks.iter()) {
        *place = (block as usize, context.view().block(block));
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
    for (place, block) in parts.iter_mut().zip(BLOCKS) {
        *place = (*block as usize, context.view().block(*block));
    }
    parts
}

/// What a store answered with, on its way into a context. It is not checked to be one: it is held
/// against the model's marks, which no other bytes meet.
#[derive(Clone, Copy)]
pub(super) struct Landing {
    mode: TransferMode,
    pub(super) bytes: u64,
    /// A part that was no part of a context, and its bytes.
    fault: Option<(usize, usize)>,
}

impl Landing {
    pub(super) const fn new(mode: TransferMode) -> Self {
        Self { mode, bytes: 0, fault: None }
    }

    #[inline]
    pub(super) fn take(&mut self, context: &mut Context, part: usize, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        let taken = if self.mode == TransferMode::Full {
            context.place(bytes)
        } else {
            match BLOCKS.get(part) {
                Some(block) => context.place_block(*block, bytes),
                None => Ok(()),
            }
        };
        if taken.is_err() {
            self.fault = self.fault.or(Some((part, bytes.len())));
        }
    }

    #[inline]
    pub(super) fn judge(self, is_there: bool, flight: Flight) -> Result<()> {
        match self.fault {
            Some((part, bytes)) => Err(no_context(flight, (part, bytes))),
            None if is_there => Ok(()),
            None => Err(gone(flight)),
        }
    }
}

#[cold]
fn no_context(flight: Flight, (part, bytes): (usize, usize)) -> Error {
    let procedure = flight.procedure;
    wrong_answer(format_args!("{procedure}: part {part}, of length {bytes}, is no context's"))
}

#[cold]
pub(super) fn gone(flight: Flight) -> Error {
    let (ue, procedure) = (flight.ue.place(), flight.procedure);
    wrong_answer(format_args!("{procedure}: it has no context of this client's UE {ue}"))
}

#[cold]
pub(super) fn stale(flight: Flight) -> Error {
    let (ue, procedure) = (flight.ue.place(), flight.procedure);
    wrong_answer(format_args!(
        "{procedure}: its context of this client's UE {ue} is not what the last procedure left: an \
         acknowledged write is lost, or another record was answered"
    ))
}

/// Tags of a context in the workload's words.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tagging<'c> {
    tags: [RecordTag<'c>; TAGS_MAX],
    count: usize,
}

impl<'c> Tagging<'c> {
    pub(super) fn fill(&mut self, context: &'c Context) {
        self.count = 0;
        let Some(table) = TAGGED.tables.first() else { return };
        for ((name, value), place) in tags(&context.view()).zip(&mut self.tags) {
            if let Some(tag) = table.tags.iter().position(|rule| rule.name == name) {
                *place = (tag, value);
                self.count += 1;
            }
        }
    }

    pub(super) fn tags(&self) -> &[RecordTag<'c>] {
        self.tags.get(..self.count).unwrap_or_default()
    }
}
