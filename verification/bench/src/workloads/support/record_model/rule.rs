//! The expected key, tags and contents of a record, derived from its number and its state, and the
//! comparison of replies with them.

use super::{Mutation, PendingWrite, RecordForm, RecordState};
use crate::access::{Connection, PARTS_MAX, PartSet, StoreReply, TableId, TableSchema};
use crate::random::draw;
use crate::table::counted;
use crate::workloads::support::batch::{Batch, BatchOp};
use crate::workloads::support::contents::Contents;
use crate::workloads::wrong_answer;
use nearstate_model::Result;

/// Derives keys, tags and contents from a record and its state.
#[derive(Debug)]
pub(super) struct Rule<F> {
    pub(super) form: F,
    pub(super) schema: &'static TableSchema,
    pub(super) seed: u64,
    pub(super) first: u64,
    pub(super) contents: Contents,
}

impl<F: RecordForm> Rule<F> {
    #[inline]
    pub(super) fn number<const P: usize>(
        &self,
        slot: usize,
        state: &RecordState<P>,
        part: usize,
    ) -> u64 {
        let changes = state.changes.get(part).copied().unwrap_or(0);
        let count = u64::from(state.life) << 32 | u64::from(changes) << 8 | part as u64;
        draw(self.seed, self.record(slot), count)
    }

    #[inline]
    pub(super) const fn record(&self, slot: usize) -> u64 {
        self.first + slot as u64
    }

    #[inline]
    pub(super) fn begin<const P: usize>(
        &self,
        batch: &mut Batch,
        kind: BatchOp,
        at: (usize, &RecordState<P>),
    ) {
        let (record, generation) = (self.record(at.0), at.1.generation());
        batch.begin(kind, TableId(0), |out| self.form.key(record, generation, out));
    }

    #[inline]
    pub(super) fn parts<const P: usize>(
        &self,
        batch: &mut Batch,
        at: (usize, &RecordState<P>),
        parts: PartSet,
    ) {
        for part in (0..P).filter(|part| parts.contains(*part)) {
            let bytes = self.form.part_bytes(self.record(at.0), part);
            let number = self.number(at.0, at.1, part);
            batch.part(part, |out| self.contents.append(number, bytes, out));
        }
    }

    #[inline]
    pub(super) fn tags<const P: usize>(&self, batch: &mut Batch, at: (usize, &RecordState<P>)) {
        let (record, generation) = (self.record(at.0), at.1.generation());
        for tag in 0..self.schema.tags.len() {
            batch.tag(tag, |out| self.form.tag(tag, record, generation, out));
        }
    }

    #[inline]
    pub(super) fn prepare<const P: usize>(
        &self,
        batch: &mut Batch,
        pending: &PendingWrite<P>,
        mutation: Mutation,
    ) {
        let after = (pending.slot, &pending.after);
        match mutation {
            Mutation::Create | Mutation::Write => {
                self.begin(batch, BatchOp::Put, after);
                self.parts(batch, after, PartSet::ALL);
                self.tags(batch, after);
            }
            Mutation::Remove => {
                self.begin(batch, BatchOp::Delete, after);
                self.tags(batch, after);
            }
            Mutation::Update(parts) => {
                self.begin(batch, BatchOp::Change, after);
                self.parts(batch, after, parts);
            }
        }
    }

    /// True if a part has the expected bytes.
    #[inline]
    pub(super) fn is_right<const P: usize>(
        &self,
        at: (usize, &RecordState<P>),
        part: usize,
        bytes: &[u8],
    ) -> bool {
        let expected = self.form.part_bytes(self.record(at.0), part);
        part < P && self.contents.are(self.number(at.0, at.1, part), expected, bytes)
    }

    /// Collects the replies to a read. After the last one, returns whether all of them were right.
    #[inline]
    pub(super) fn check<const P: usize>(
        &self,
        reply: StoreReply<'_>,
        at: (usize, &RecordState<P>),
        wanted: PartSet,
        received: &mut ReceivedRecord,
    ) -> Option<bool> {
        match reply {
            StoreReply::Part(part, bytes) => {
                received.add(part, self.is_right(at, part, bytes));
                None
            }
            StoreReply::Key(_) => None,
            StoreReply::Done(is_found) => {
                let is_whole = std::mem::take(received).is_whole(wanted, P);
                Some(is_found == at.1.exists() && (!is_found || is_whole))
            }
        }
    }

    pub(super) fn key_of<const P: usize>(&self, at: (usize, &RecordState<P>)) -> Vec<u8> {
        let mut key = Vec::new();
        self.form.key(self.record(at.0), at.1.generation(), &mut key);
        key
    }
}

/// The received parts of a record, as sets.
#[derive(Clone, Copy, Default)]
pub(super) struct ReceivedRecord {
    pub(super) right: u32,
    pub(super) wrong: u32,
}

impl ReceivedRecord {
    /// True if all wanted ones of `parts` parts are right, and none is wrong.
    pub(super) const fn is_whole(self, wanted: PartSet, parts: usize) -> bool {
        let all = wanted.0 as u32 & ((1 << parts) - 1);
        self.wrong == 0 && self.right & all == all
    }

    #[inline]
    pub(super) const fn add(&mut self, part: usize, is_right: bool) {
        let bit = if part < PARTS_MAX { 1_u32 << part } else { 0 };
        if is_right {
            self.right |= bit;
        } else {
            self.wrong |= bit;
        }
    }
}

impl<F: RecordForm> Rule<F> {
    /// True if a tag leads to the expected record; and the bytes sent and received.
    pub(super) fn find<const P: usize>(
        &self,
        store: &mut Connection<'_>,
        at: (usize, &RecordState<P>),
        tag: usize,
        wanted: PartSet,
    ) -> Result<(bool, (u64, u64))> {
        let mut value = Vec::new();
        self.form.tag(tag, self.record(at.0), at.1.generation(), &mut value);
        let (mut key, mut received, mut bytes_in) = (Vec::new(), ReceivedRecord::default(), 0);
        let is_found =
            store.find(TableId(0), (tag, &value), wanted, &mut key, &mut |part, bytes| {
                bytes_in += bytes.len() as u64;
                received.add(part, self.is_right(at, part, bytes));
            })?;
        bytes_in += key.len() as u64;
        let is_right = !at.1.exists() || key == self.key_of(at) && received.is_whole(wanted, P);
        Ok((is_found && is_right, (value.len() as u64, bytes_in)))
    }

    /// After a lost connection: true if a write was executed, false if not. Fails if the record is
    /// in neither state.
    pub(super) fn was_done<const P: usize>(
        &self,
        store: &mut Connection<'_>,
        pending: &PendingWrite<P>,
    ) -> Result<bool> {
        let mut as_before = ReceivedRecord::default();
        let mut as_after = ReceivedRecord::default();
        let after = (pending.slot, &pending.after);
        let before = (pending.slot, &pending.before);
        let key = self.key_of(after);
        let is_found = store.read(TableId(0), &key, PartSet::ALL, &mut |part, bytes| {
            as_after.add(part, self.is_right(after, part, bytes));
            as_before.add(part, self.is_right(before, part, bytes));
        })?;
        let has_state = |state: &RecordState<P>, received: ReceivedRecord| {
            is_found == state.exists() && (!is_found || received.is_whole(PartSet::ALL, P))
        };
        if has_state(&pending.after, as_after) {
            return Ok(true);
        }
        // A create may have a new key, which did not exist before.
        if has_state(&pending.before, as_before) {
            return Ok(false);
        }
        let words = self.describe("lost connection", before, is_found);
        Err(wrong_answer(format_args!("{words}: neither as before nor as after")))
    }

    #[cold]
    pub(super) fn describe<const P: usize>(
        &self,
        what: &str,
        at: (usize, &RecordState<P>),
        is_found: bool,
    ) -> String {
        let key = String::from_utf8_lossy(&self.key_of(at)).into_owned();
        let must = if at.1.exists() { "must exist" } else { "must not exist" };
        let changes: u32 = at.1.changes.iter().map(|n| u32::from(*n)).sum();
        format!(
            "{what}: {} {key:?}, created {} and changed {}, {must}, and {}",
            self.schema.name,
            counted(at.1.generation().into(), "time"),
            counted(changes.into(), "time"),
            if is_found { "has other contents" } else { "is wrong" }
        )
    }
}
