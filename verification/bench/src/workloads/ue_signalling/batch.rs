//! A batch of procedures of different UEs.

use super::gutis::{GUTI, Guti};
use super::transfer::{ContextTags, TransferMode, written};
use super::{CONTEXTS, KEY_BYTES, PendingProcedure};
use crate::access::{PartSet, PartsChange, Request};
use crate::workloads::Tally;
use nearstate_ue::{BLOCKS, Context, Procedure, apply};
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(super) struct Batches {
    /// Batches in flight, the oldest first.
    pub(super) in_flight: VecDeque<UeBatch>,
    /// The UEs in flight, which are not drawn again.
    pub(super) busy: Vec<u64>,
    /// A completed batch, whose memory is reused.
    pub(super) spare: UeBatch,
}

/// Procedures of different UEs.
#[derive(Debug, Default)]
pub(super) struct UeBatch {
    pub(super) procedures: Vec<PendingProcedure>,
    pub(super) keys: Vec<[u8; KEY_BYTES]>,
    /// The GUTI of each UE that is found by its GUTI; empty if none is.
    pub(super) gutis: Vec<Option<Guti>>,
    pub(super) contexts: Vec<Context>,
    /// The contexts before the procedures, if they have tags.
    before: Vec<Context>,
    /// True once the procedures have been applied.
    pub(super) is_changed: bool,
    /// Counts bytes only.
    pub(super) tally: Tally,
}

impl UeBatch {
    /// Moves all procedures into this batch.
    pub(super) fn fill(
        &mut self,
        procedures: &mut Vec<PendingProcedure>,
        key: impl Fn(&PendingProcedure) -> [u8; KEY_BYTES],
    ) {
        self.procedures.clear();
        self.procedures.append(procedures);
        self.keys.clear();
        self.keys.extend(self.procedures.iter().map(key));
        self.gutis.clear();
        self.contexts.clear();
        self.contexts.resize(self.procedures.len(), Context::EMPTY);
        (self.is_changed, self.tally) = (false, Tally::default());
    }

    /// The reads of the procedures, by GUTI or by key, and the index of the procedure of each.
    pub(super) fn reads(
        &self,
        wanted: impl Fn(Procedure) -> PartSet,
    ) -> (Vec<Request<'_>>, Vec<usize>) {
        let mut requests = Vec::with_capacity(self.procedures.len());
        let mut indices = Vec::with_capacity(self.procedures.len());
        for (i, (pending, key)) in self.procedures.iter().zip(&self.keys).enumerate() {
            let wanted = wanted(pending.procedure);
            if let Some(Some(guti)) = self.gutis.get(i) {
                let (tag, wanted) = ((GUTI, guti.as_slice()), PartSet::ALL);
                requests.push(Request::Find { table: CONTEXTS, tag, wanted });
                indices.push(i);
            } else if !wanted.is_empty() {
                requests.push(Request::Read { table: CONTEXTS, key, wanted });
                indices.push(i);
            }
        }
        (requests, indices)
    }

    /// Applies the procedures.
    pub(super) fn change(&mut self, mode: TransferMode) {
        if mode == TransferMode::Tagged {
            self.before.clone_from(&self.contexts);
        }
        for (pending, context) in self.procedures.iter().zip(&mut self.contexts) {
            apply(pending.procedure, context, pending.draw);
        }
        self.is_changed = true;
    }

    /// Calls `take` with the writes of all changed contexts.
    pub(super) fn with_changes<T>(
        &self,
        mode: TransferMode,
        take: impl FnOnce(&[Request<'_>]) -> T,
    ) -> T {
        let count = self.procedures.len();
        let mut parts = vec![[(0, &[][..]); BLOCKS.len()]; count];
        let has_tags = mode == TransferMode::Tagged;
        let mut tags = vec![
            (ContextTags::default(), ContextTags::default());
            if has_tags { count } else { 0 }
        ];
        for ((before, after), (old, new)) in self.before.iter().zip(&self.contexts).zip(&mut tags) {
            old.fill(before);
            new.fill(after);
        }
        let mut requests = Vec::with_capacity(count);
        let each = self.procedures.iter().zip(&self.keys).zip(self.contexts.iter().zip(&mut parts));
        for (i, ((pending, key), (after, parts))) in each.enumerate() {
            if pending.procedure != Procedure::CellReselection {
                let parts = written(mode, after, pending.procedure, parts);
                let tags = tags.get(i).map(|(old, new)| (old.tags(), new.tags()));
                let tags = tags.filter(|(old, new)| old != new);
                requests.push(Request::Change {
                    table: CONTEXTS,
                    change: PartsChange { key, parts, tags },
                });
            }
        }
        take(&requests)
    }
}
