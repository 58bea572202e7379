//! Replies with the elements of large sets and hashes, in slices between which other clients are
//! served.

use super::collection_read::{CollectionKey, CollectionRead, ElementSink, ReadProgress, Selection};
use super::deferred_array::DeferredArray;
use crate::dump_payload::PayloadWriter;
use crate::records::{KeyedRecords, RecordRef};
use crate::reply::ReplyWriter;
use crate::reply::error_reply::ErrorReply;
use crate::server::RespServer;
use crate::sliced_task::{SlicedTask, TaskProgress};
use nearstate_model::Error;
use nearstate_store::Form;

/// What the reply contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyForm {
    /// The members of a set.
    Members,
    /// The number of elements, up to a limit.
    Count(usize),
    /// The names of a hash.
    Names,
    /// The values of a hash.
    Values,
    /// The names and values of a hash.
    Fields,
    /// The same as an array, with an array for each field if they are nested.
    Pairs { is_nested: bool },
    /// A payload for `RESTORE`.
    Dump,
}

/// The rest of a command.
#[derive(Debug)]
pub(super) struct CollectionTask {
    read: CollectionRead,
    out: CollectedReply,
    is_read: bool,
}

/// The elements that were read, as they are sent.
#[derive(Debug)]
struct CollectedReply {
    form: ReplyForm,
    found: DeferredArray,
    /// Limit of the bytes of `found`.
    bytes_max: usize,
    count: usize,
    /// The payload of `DUMP`, whose bytes move to `found`.
    payload: Option<PayloadWriter>,
    record_form: Option<Form>,
    exists: bool,
}

impl ElementSink for CollectedReply {
    fn begin(
        &mut self,
        _: &KeyedRecords,
        found: &[Option<RecordRef<'_>>],
    ) -> Result<(), ErrorReply> {
        (self.found, self.count) = (DeferredArray::default(), 0);
        let first = found.first().and_then(Option::as_ref);
        self.exists = first.is_some();
        if let (ReplyForm::Dump, Some(record)) = (self.form, first) {
            let tags = record.tags();
            let tags = tags.iter().map(|(name, value)| (name.as_bytes(), value.as_slice()));
            let form = record.record_type();
            if self.record_form.is_some_and(|before| before != form) {
                let detail = "the key became another record and".to_owned();
                return Err(Error::Conflict { detail }.into());
            }
            self.record_form = Some(form);
            let elements = record.elements()?;
            let mut payload = PayloadWriter::new(form, &tags.collect::<Vec<_>>());
            payload.count(elements);
            self.payload = Some(payload);
        }
        Ok(())
    }

    fn push(&mut self, name: &[u8], value: &[u8]) -> Result<bool, ErrorReply> {
        let added = match self.form {
            ReplyForm::Members | ReplyForm::Names => name.len(),
            ReplyForm::Values => value.len(),
            ReplyForm::Fields | ReplyForm::Pairs { .. } | ReplyForm::Dump => {
                name.len() + value.len()
            }
            ReplyForm::Count(_) => 0,
        };
        // Checked before the copy: a read in one piece would copy everything.
        if self.found.bytes() + added > self.bytes_max {
            return Err(ErrorReply::too_long(self.bytes_max));
        }
        match self.form {
            ReplyForm::Members | ReplyForm::Names => self.found.push(name),
            ReplyForm::Values => self.found.push(value),
            ReplyForm::Fields | ReplyForm::Pairs { .. } => {
                if self.form == (ReplyForm::Pairs { is_nested: true }) {
                    self.found.push_raw(b"*2\r\n");
                }
                self.found.push(name);
                self.found.push(value);
            }
            ReplyForm::Count(limit) => {
                self.count += 1;
                return Ok(self.count < limit);
            }
            ReplyForm::Dump => {
                if let Some(payload) = &mut self.payload {
                    payload.element(name, value);
                    self.found.push_raw(&payload.take());
                }
            }
        }
        Ok(true)
    }

    fn bytes(&self) -> usize {
        self.found.bytes()
    }
}

impl CollectedReply {
    /// Writes what precedes the elements.
    fn write_head(&mut self, reply: &mut ReplyWriter<'_>) {
        let count = self.found.count();
        match self.form {
            ReplyForm::Members => reply.set(count),
            ReplyForm::Count(_) => reply.count(self.count),
            ReplyForm::Names | ReplyForm::Values | ReplyForm::Pairs { is_nested: false } => {
                reply.array(count);
            }
            ReplyForm::Pairs { is_nested: true } => reply.array(count / 2),
            ReplyForm::Fields => reply.map(count / 2),
            // The key was deleted meanwhile.
            ReplyForm::Dump if !self.exists => reply.nil(),
            ReplyForm::Dump => {
                if let Some(payload) = self.payload.take() {
                    self.found.push_raw(&payload.end());
                }
                reply.bulk_head(self.found.bytes());
                self.found.push_raw(b"\r\n");
            }
        }
    }
}

impl CollectionTask {
    /// The reply has at most `bytes_max` bytes.
    pub(super) fn new(
        selection: Selection,
        form: ReplyForm,
        keys: Vec<CollectionKey>,
        bytes_max: usize,
    ) -> Self {
        let (found, payload) = (DeferredArray::default(), None);
        Self {
            read: CollectionRead::new(selection, keys),
            out: CollectedReply {
                form,
                found,
                bytes_max,
                count: 0,
                payload,
                record_form: None,
                exists: false,
            },
            is_read: false,
        }
    }
}

impl SlicedTask for CollectionTask {
    fn step(
        &mut self,
        records: &KeyedRecords,
        _: &RespServer,
        reply: &mut ReplyWriter<'_>,
    ) -> Result<TaskProgress, ErrorReply> {
        if self.is_read {
            return Ok(self.out.found.write_part(reply));
        }
        if self.read.step(records, &mut self.out)? == ReadProgress::More {
            return Ok(TaskProgress::More);
        }
        records.session().check_not_truncated()?;
        self.is_read = true;
        self.out.write_head(reply);
        Ok(self.out.found.write_part(reply))
    }

    fn memory_bytes(&self) -> usize {
        self.read.memory_bytes() + self.out.found.bytes()
    }

    fn collected(&self) -> usize {
        self.out.found.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::collection_read::SLICE_BYTES;
    use crate::core_context::test_core::TestCore;
    use crate::reply::RespVersion;
    use nearstate_node::clock::Clock;

    const KEY: &[u8] = b"{n},hash";

    /// A core with a hash of so many fields with values of so many bytes.
    fn core_with_hash(fields: u32, bytes: usize) -> TestCore {
        let test = TestCore::new(&Clock::new_virtual());
        let value = vec![b'v'; bytes];
        let names: Vec<_> = (0..fields).map(u32::to_le_bytes).collect();
        for some in names.chunks(1000) {
            let some: Vec<_> = some.iter().map(|name| (&name[..], &value[..])).collect();
            set(&test, &some);
        }
        test
    }

    fn set(test: &TestCore, fields: &[(&[u8], &[u8])]) {
        let records = &test.core.records;
        let resolved = records.resolve_or_create(KEY, 1).unwrap();
        let session = records.session();
        session.transact(|txn| txn.set_fields(resolved.namespace, resolved.key, fields)).unwrap();
    }

    fn task(test: &TestCore, form: ReplyForm, bytes_max: usize) -> CollectionTask {
        let keys = vec![CollectionKey::of(&test.core.records, KEY).unwrap()];
        CollectionTask::new(Selection::Fields, form, keys, bytes_max)
    }

    fn step(test: &TestCore, task: &mut CollectionTask) -> Result<TaskProgress, ErrorReply> {
        let mut out = Vec::new();
        let mut reply = ReplyWriter::new(&mut out, RespVersion::Resp2);
        task.step(&test.core.records, &test.server, &mut reply)
    }

    #[test]
    fn a_read_in_one_piece_collects_no_more_than_a_reply_may_have() {
        const BYTES_MAX: usize = 100_000;
        let test = core_with_hash(6000, 100);
        for form in [ReplyForm::Fields, ReplyForm::Values, ReplyForm::Dump] {
            let mut task = task(&test, form, BYTES_MAX);
            let mut number = 0_u32;
            let error = loop {
                match step(&test, &mut task) {
                    Ok(TaskProgress::More) => set(&test, &[(b"changed", &number.to_le_bytes())]),
                    Ok(TaskProgress::Done) => panic!("{form:?}: a reply of 600 kB"),
                    Err(error) => break error,
                }
                number += 1;
            };
            assert!(task.read.is_whole(), "{form:?}: the hash changed before each slice");
            assert!(error.text().starts_with("ERR reply exceeds 100000 bytes"), "{error}");
            // The last element has a head.
            assert!(task.collected() < BYTES_MAX + 100, "{form:?}: {}", task.collected());
        }
    }

    /// It delays the other clients of its core.
    #[test]
    fn a_read_in_one_piece_ends_at_its_time_limit() {
        let test = core_with_hash(6000, 10);
        let mut task = task(&test, ReplyForm::Fields, usize::MAX);
        task.read.whole_max = std::time::Duration::ZERO;
        let mut number = 0_u32;
        let error = loop {
            match step(&test, &mut task) {
                Ok(TaskProgress::More) => set(&test, &[(b"changed", &number.to_le_bytes())]),
                Ok(TaskProgress::Done) => panic!("6000 fields were read in no time"),
                Err(error) => break error,
            }
            number += 1;
        };
        assert!(task.read.is_whole(), "the hash changed before each slice");
        assert!(error.text().starts_with("BUSY the collection changes"), "{error}");
    }

    #[test]
    fn a_slice_ends_by_the_bytes_of_its_elements() {
        let test = core_with_hash(6000, 8 << 10);
        let mut values = task(&test, ReplyForm::Values, usize::MAX);
        assert_eq!(step(&test, &mut values), Ok(TaskProgress::More));
        let collected = values.collected();
        assert!((SLICE_BYTES..3 * SLICE_BYTES).contains(&collected), "{collected}");
        // What is not collected does not count.
        let mut names = task(&test, ReplyForm::Names, usize::MAX);
        assert_eq!(step(&test, &mut names), Ok(TaskProgress::More));
        assert!(names.out.found.count() >= 256, "{}", names.out.found.count());
    }
}
