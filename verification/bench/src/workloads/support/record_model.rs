//! The model of one client's records, with which most workloads compare every reply and, at the
//! end, every record.
//!
//! The model of a record is its generation, whether it exists, and for each part a count of its
//! changes. Key, tags and contents follow from the seed and these counts. Limits: the counts wrap
//! at 2^16, and a lost write is not detected if the same part is written again before it is read.

mod rule;

use self::rule::{ReceivedRecord, Rule};
use super::batch::{Batch, BatchOp};
use super::contents::Contents;
use super::share::Share;
use crate::access::{Connection, PARTS_MAX, PartSet, StoreReply, TableSchema};
use crate::result::RecordVerification;
use crate::workloads::{Parameters, Tally, wrong_answer};
use nearstate_model::Result;
use std::fmt::Debug;

/// Keys, sizes and tags of a workload's records. Records are numbered across all clients.
pub trait RecordForm: Debug {
    /// Writes the key of a record that is created for the `generation`th time.
    fn key(&self, record: u64, generation: u32, out: &mut Vec<u8>);

    /// The size of a part in bytes: at most [`super::contents::BYTES_MAX`].
    fn part_bytes(&self, record: u64, part: usize) -> usize;

    /// Writes a tag's value.
    fn tag(&self, _tag: usize, _record: u64, _generation: u32, _out: &mut Vec<u8>) {}
}

/// The expected state of a record with `P` parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordState<const P: usize> {
    /// Twice the generation, plus 1 if the record exists.
    life: u32,
    changes: [u16; P],
}

impl<const P: usize> RecordState<P> {
    const NEVER: Self = Self { life: 0, changes: [0; P] };

    #[inline]
    pub const fn exists(&self) -> bool {
        self.life & 1 == 1
    }

    /// The number of times that the record was created.
    #[inline]
    pub const fn generation(&self) -> u32 {
        self.life >> 1
    }

    #[inline]
    fn after(&self, mutation: Mutation) -> Self {
        match mutation {
            Mutation::Create => {
                let generation = (self.generation() + 1) & (u32::MAX >> 1);
                Self { life: generation << 1 | 1, changes: [0; P] }
            }
            Mutation::Remove => Self { life: self.life & !1, ..*self },
            Mutation::Write => self.after(Mutation::Update(PartSet::ALL)),
            Mutation::Update(parts) => {
                let mut next = *self;
                for (part, changes) in next.changes.iter_mut().enumerate() {
                    *changes = changes.wrapping_add(u16::from(parts.contains(part)));
                }
                next
            }
        }
    }
}

/// A write to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Creates a record that does not exist.
    Create,
    /// Removes a record and its tags.
    Remove,
    /// Changes some parts.
    Update(PartSet),
    /// Replaces all parts of a record without tags.
    Write,
}

/// A write without a reply.
#[derive(Clone, Copy, Debug)]
struct PendingWrite<const P: usize> {
    slot: usize,
    before: RecordState<P>,
    after: RecordState<P>,
}

/// Records that are compared with a model.
pub trait ComparedRecords {
    /// After a lost connection: applies those pending writes to the model that were executed.
    fn resolve_unanswered(&mut self, store: &mut Connection<'_>) -> Result<()>;

    /// Compares every record with the model, by key and by each unique tag.
    fn verify(
        &mut self,
        store: &mut Connection<'_>,
        done: &mut dyn FnMut(u64),
    ) -> Result<RecordVerification>;
}

/// The largest number of requests of a batch while loading and verifying.
const BATCH_MAX: usize = 64;

/// The records of one client.
#[derive(Debug)]
pub struct RecordModel<F, const P: usize> {
    rule: Rule<F>,
    states: Vec<RecordState<P>>,
    pending_writes: Vec<PendingWrite<P>>,
    /// True if the pending writes are one transaction.
    is_transaction: bool,
    batch: Batch,
    read_slots: Vec<usize>,
    /// Replies that contradict the model, reported with the verdict: the null target returns
    /// arbitrary ones.
    mismatches: RecordVerification,
}

impl<F: RecordForm, const P: usize> RecordModel<F, P> {
    /// A model of a share of the records, none of which exists. `schema` is the workload's only
    /// table, with `P` parts.
    pub fn new(
        form: F,
        schema: &'static TableSchema,
        parameters: &Parameters,
        share: Share,
    ) -> Result<Self> {
        const { assert!(P <= PARTS_MAX, "more parts than a set of parts can contain") };
        let count = usize::try_from(share.count)
            .map_err(|_| bad_argument!("{} records for one client are too many", share.count))?;
        let (seed, first) = (parameters.seed, share.first);
        let rule = Rule { form, schema, seed, first, contents: Contents::new(seed) };
        Ok(Self {
            rule,
            states: vec![RecordState::NEVER; count],
            pending_writes: Vec::new(),
            is_transaction: false,
            batch: Batch::default(),
            read_slots: Vec::new(),
            mismatches: RecordVerification::default(),
        })
    }

    /// The expected state of a record.
    #[inline]
    pub fn state(&self, slot: u64) -> RecordState<P> {
        let slot = usize::try_from(slot).ok();
        slot.and_then(|slot| self.states.get(slot)).copied().unwrap_or(RecordState::NEVER)
    }

    pub const fn form(&self) -> &F {
        &self.rule.form
    }

    /// True if a part of a record must have these bytes now.
    pub fn is_part(&self, slot: u64, part: usize, bytes: &[u8]) -> bool {
        let state = self.state(slot);
        let slot = usize::try_from(slot).unwrap_or(usize::MAX);
        state.exists() && self.rule.is_right((slot, &state), part, bytes)
    }

    /// Counts a reply that contradicts the model.
    #[cold]
    pub fn mismatch(&mut self, example: impl FnOnce() -> String) {
        self.mismatches.wrong(example);
    }

    /// Puts the records for which `is_wanted` returns true.
    pub fn load(
        &mut self,
        store: &mut Connection<'_>,
        is_wanted: impl Fn(u64) -> bool,
        done: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let mut mutations = Vec::with_capacity(BATCH_MAX);
        for slot in 0..self.states.len() as u64 {
            if is_wanted(slot) {
                mutations.push((slot, Mutation::Create));
            }
            if mutations.len() == BATCH_MAX {
                self.write(store, &mutations, &mut Tally::default())?;
                done(mutations.len() as u64);
                mutations.clear();
            }
        }
        self.write(store, &mutations, &mut Tally::default())?;
        done(mutations.len() as u64);
        Ok(())
    }

    /// Reads parts of different records and compares them with the model.
    #[inline]
    pub fn read(
        &mut self,
        store: &mut Connection<'_>,
        slots: &[u64],
        wanted: PartSet,
        tally: &mut Tally,
    ) -> Result<()> {
        let Self { rule, states, batch, read_slots, mismatches, .. } = self;
        batch.clear();
        read_slots.clear();
        for slot in slots {
            let slot = usize::try_from(*slot).unwrap_or(usize::MAX);
            if let Some(state) = states.get(slot) {
                read_slots.push(slot);
                rule.begin(batch, BatchOp::Read(wanted), (slot, state));
            }
        }
        let (mut received, mut bytes_in) = (ReceivedRecord::default(), 0);
        batch.send(store, &mut |number, reply| {
            let Some(slot) = read_slots.get(number) else { return };
            let Some(state) = states.get(*slot) else { return };
            if let StoreReply::Part(_, bytes) = reply {
                bytes_in += bytes.len() as u64;
            }
            if rule.check(reply, (*slot, state), wanted, &mut received) == Some(false) {
                let is_found = reply == StoreReply::Done(true);
                mismatches.wrong(|| rule.describe("read", (*slot, state), is_found));
            }
        })?;
        tally.bytes_in += bytes_in;
        tally.bytes_out += batch.take_sent();
        Ok(())
    }

    /// Finds a record by a unique tag, and compares key and parts with the model.
    pub fn find(
        &mut self,
        store: &mut Connection<'_>,
        slot: u64,
        tag: usize,
        tally: &mut Tally,
    ) -> Result<()> {
        let state = self.state(slot);
        let at = (usize::try_from(slot).unwrap_or(usize::MAX), &state);
        let (is_found, bytes) = self.rule.find(store, at, tag, PartSet::ALL)?;
        if is_found != state.exists() {
            self.mismatches.wrong(|| self.rule.describe("find", at, is_found));
        }
        tally.bytes_out += bytes.0;
        tally.bytes_in += bytes.1;
        Ok(())
    }

    /// Writes to different records.
    #[inline]
    pub fn write(
        &mut self,
        store: &mut Connection<'_>,
        mutations: &[(u64, Mutation)],
        tally: &mut Tally,
    ) -> Result<()> {
        if mutations.is_empty() {
            return Ok(());
        }
        self.prepare(mutations);
        self.is_transaction = false;
        let Self { rule, batch, pending_writes, mismatches, .. } = self;
        batch.send(store, &mut |number, reply| {
            if reply == StoreReply::Done(false)
                && let Some(pending) = pending_writes.get(number)
            {
                mismatches.wrong(|| rule.describe("write", (pending.slot, &pending.before), false));
            }
        })?;
        tally.bytes_out += batch.take_sent();
        self.complete();
        Ok(())
    }

    /// Writes to different records in one transaction.
    #[inline]
    pub fn transact(
        &mut self,
        store: &mut Connection<'_>,
        mutations: &[(u64, Mutation)],
        tally: &mut Tally,
    ) -> Result<()> {
        self.prepare(mutations);
        self.is_transaction = true;
        if !self.batch.transact(store)? {
            self.mismatches.wrong(|| "a transaction did not find an existing record".to_owned());
        }
        tally.bytes_out += self.batch.take_sent();
        self.complete();
        Ok(())
    }

    #[inline]
    fn prepare(&mut self, mutations: &[(u64, Mutation)]) {
        self.batch.clear();
        self.pending_writes.clear();
        for (slot, mutation) in mutations {
            let slot = usize::try_from(*slot).unwrap_or(usize::MAX);
            let Some(before) = self.states.get(slot) else { continue };
            let pending = PendingWrite { slot, before: *before, after: before.after(*mutation) };
            self.rule.prepare(&mut self.batch, &pending, *mutation);
            self.pending_writes.push(pending);
        }
    }

    /// Applies the pending writes to the model.
    #[inline]
    fn complete(&mut self) {
        for pending in self.pending_writes.drain(..) {
            if let Some(state) = self.states.get_mut(pending.slot) {
                *state = pending.after;
            }
        }
    }

    fn compare(
        &mut self,
        store: &mut Connection<'_>,
        slots: &[usize],
        verdict: &mut RecordVerification,
    ) -> Result<()> {
        let Self { rule, states, batch, .. } = self;
        batch.clear();
        for slot in slots {
            if let Some(state) = states.get(*slot) {
                rule.begin(batch, BatchOp::Read(PartSet::ALL), (*slot, state));
            }
        }
        let mut received = ReceivedRecord::default();
        let mut is_right = vec![false; slots.len()];
        batch.send(store, &mut |number, reply| {
            let Some(slot) = slots.get(number) else { return };
            let (Some(state), Some(is_right)) = (states.get(*slot), is_right.get_mut(number))
            else {
                return;
            };
            if let Some(right) = rule.check(reply, (*slot, state), PartSet::ALL, &mut received) {
                *is_right = right;
            }
        })?;
        batch.take_sent();
        for (slot, mut is_right) in slots.iter().zip(is_right) {
            let Some(state) = states.get(*slot) else { continue };
            for (tag, tag_rule) in rule.schema.tags.iter().enumerate() {
                if is_right && tag_rule.is_unique && state.generation() > 0 {
                    let (is_found, _) = rule.find(store, (*slot, state), tag, PartSet::one(0))?;
                    is_right = is_found == state.exists();
                }
            }
            let difference = || rule.describe("comparison", (*slot, state), false);
            verdict.count(is_right, state.exists(), difference);
        }
        Ok(())
    }
}

impl<F: RecordForm, const P: usize> ComparedRecords for RecordModel<F, P> {
    fn resolve_unanswered(&mut self, store: &mut Connection<'_>) -> Result<()> {
        let pending = self.pending_writes.iter();
        let done: Vec<bool> =
            pending.map(|pending| self.rule.was_done(store, pending)).collect::<Result<_>>()?;
        let count = done.iter().filter(|is_done| **is_done).count();
        if self.is_transaction && count != 0 && count != done.len() {
            let all = done.len();
            let what = format_args!("{count} of {all} writes of one transaction were executed");
            return Err(wrong_answer(what));
        }
        for (pending, is_done) in self.pending_writes.drain(..).zip(done) {
            if is_done && let Some(state) = self.states.get_mut(pending.slot) {
                *state = pending.after;
            }
        }
        Ok(())
    }

    fn verify(
        &mut self,
        store: &mut Connection<'_>,
        done: &mut dyn FnMut(u64),
    ) -> Result<RecordVerification> {
        let mut verdict = self.mismatches.clone();
        for first in (0..self.states.len()).step_by(BATCH_MAX) {
            let slots: Vec<usize> = (first..self.states.len().min(first + BATCH_MAX)).collect();
            self.compare(store, &slots, &mut verdict)?;
            done(slots.len() as u64);
        }
        Ok(verdict)
    }
}
