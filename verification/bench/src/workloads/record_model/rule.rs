//! What a record must be: key, tags and contents, derived from its number and its state; and the
//! comparison of answers with them.

use super::{Flight, Mutation, RecordForm, RecordState};
use crate::access::{Connection, PARTS_MAX, PartSet, TableId, TableSchema};
use crate::random::draw;
use crate::table::counted;
use crate::workloads::contents::Contents;
use crate::workloads::outbox::{Outbox, Verb};
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
        outbox: &mut Outbox,
        verb: Verb,
        at: (usize, &RecordState<P>),
    ) {
        let (record, generation) = (self.record(at.0), at.1.generation());
        outbox.begin(verb, TableId(0), |out| self.form.key(record, generation, out));
    }

    #[inline]
    pub(super) fn parts<const P: usize>(
        &self,
        outbox: &mut Outbox,
        at: (usize, &RecordState<P>),
        parts: PartSet,
    ) {
        for part in (0..P).filter(|part| parts.has(*part)) {
            let bytes = self.form.part_bytes(self.record(at.0), part);
            let number = self.number(at.0, at.1, part);
            outbox.part(part, |out| self.contents.append(number, bytes, out));
        }
    }

    #[inline]
    pub(super) fn tags<const P: usize>(&self, outbox: &mut Outbox, at: (usize, &RecordState<P>)) {
        let (record, generation) = (self.record(at.0), at.1.generation());
        for tag in 0..self.schema.tags.len() {
            outbox.tag(tag, |out| self.form.tag(tag, record, generation, out));
        }
    }

    #[inline]
    pub(super) fn note<const P: usize>(
        &self,
        outbox: &mut Outbox,
        flight: &Flight<P>,
        mutation: Mutation,
    ) {
        let after = (flight.slot, &flight.after);
        match mutation {
            Mutation::Create | Mutation::Write => {
                self.begin(outbox, Verb::Put, after);
                self.parts(outbox, after, PartSet::ALL);
                self.tags(outbox, after);
            }
            Mutation::Remove => {
                self.begin(outbox, Verb::Delete, after);
                self.tags(outbox, after);
            }
            Mutation::Update(parts) => {
                self.begin(outbox, Verb::Change, after);
                self.parts(outbox, after, parts);
            }
        }
    }

    /// Whether a part is what it must be.
    #[inline]
    pub(super) fn is<const P: usize>(
        &self,
        at: (usize, &RecordState<P>),
        part: usize,
        bytes: &[u8],
    ) -> bool {
        let expected = self.form.part_bytes(self.record(at.0), part);
        part < P && self.contents.are(self.number(at.0, at.1, part), expected, bytes)
    }

    pub(super) fn key_of<const P: usize>(&self, at: (usize, &RecordState<P>)) -> Vec<u8> {
        let mut key = Vec::new();
        self.form.key(self.record(at.0), at.1.generation(), &mut key);
        key
    }
}

#[derive(Clone, Copy, Default)]
pub(super) struct ReceivedRecord {
    pub(super) right: u32,
    pub(super) wrong: u32,
}

impl ReceivedRecord {
    /// Whether all wanted parts of so many were right, and none wrong.
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
    /// Whether a tag leads to a record, which then must be the right one: another is as if there
    /// were none. And the bytes that went and came.
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
                received.add(part, self.is(at, part, bytes));
            })?;
        bytes_in += key.len() as u64;
        let is_right = !at.1.is_there() || key == self.key_of(at) && received.is_whole(wanted, P);
        Ok((is_found && is_right, (value.len() as u64, bytes_in)))
    }

    pub(super) fn was_done<const P: usize>(
        &self,
        store: &mut Connection<'_>,
        flight: &Flight<P>,
    ) -> Result<bool> {
        let mut as_before = ReceivedRecord::default();
        let mut as_after = ReceivedRecord::default();
        let after = (flight.slot, &flight.after);
        let before = (flight.slot, &flight.before);
        let key = self.key_of(after);
        let is_found = store.read(TableId(0), &key, PartSet::ALL, &mut |part, bytes| {
            as_after.add(part, self.is(after, part, bytes));
            as_before.add(part, self.is(before, part, bytes));
        })?;
        let is = |state: &RecordState<P>, received: ReceivedRecord| {
            is_found == state.is_there() && (!is_found || received.is_whole(PartSet::ALL, P))
        };
        if is(&flight.after, as_after) {
            return Ok(true);
        }
        // Where keys are new ones, the key of a record to come is not there before.
        if is(&flight.before, as_before) {
            return Ok(false);
        }
        let words = self.in_words("lost connection", before, is_found);
        Err(wrong_answer(format_args!("{words}: neither as before nor as after")))
    }

    #[cold]
    pub(super) fn in_words<const P: usize>(
        &self,
        what: &str,
        at: (usize, &RecordState<P>),
        is_found: bool,
    ) -> String {
        let key = String::from_utf8_lossy(&self.key_of(at)).into_owned();
        let must = if at.1.is_there() { "there" } else { "gone" };
        let changes: u32 = at.1.changes.iter().map(|n| u32::from(*n)).sum();
        format!(
            "{what}: {} {key:?}, created {} and changed {}, must be {must}, and is {}",
            self.schema.name,
            counted(at.1.generation().into(), "time"),
            counted(changes.into(), "time"),
            if is_found { "another" } else { "not as it must be" }
        )
    }
}
