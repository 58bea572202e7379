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
        match self.form {
            ReplyForm::Members | ReplyForm::Names => self.found.push(name),
            ReplyForm::Values => self.found.push(value),
            ReplyForm::Fields => {
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
}

impl CollectedReply {
    /// Writes what precedes the elements.
    fn write_head(&mut self, reply: &mut ReplyWriter<'_>) {
        let count = self.found.count();
        match self.form {
            ReplyForm::Members => reply.set(count),
            ReplyForm::Count(_) => reply.count(self.count),
            ReplyForm::Names | ReplyForm::Values => reply.array(count),
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
    pub(super) fn new(selection: Selection, form: ReplyForm, keys: Vec<CollectionKey>) -> Self {
        let (found, payload) = (DeferredArray::default(), None);
        Self {
            read: CollectionRead::new(selection, keys),
            out: CollectedReply {
                form,
                found,
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
