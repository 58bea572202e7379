//! The memory of a transaction: its records, and the bytes that they are to get. A session keeps it
//! from one transaction to the next.

use std::cell::Cell;
use std::collections::BTreeMap;

use nearstate_memory::{CommitPlan, ReadToken};
use nearstate_model::limits::TRANSACTION_BYTES_MAX;
use nearstate_model::{Error, Result};

use crate::index::scratch::Workshop;
use crate::record::Form;
use crate::record::meta;
use crate::session::copies::Copies;

/// The memory of the last transaction, if it is not in use.
#[derive(Default)]
pub(crate) struct Spare(Cell<Option<Box<Buffers>>>);

impl Spare {
    #[inline]
    pub(crate) fn take(&self) -> Box<Buffers> {
        self.0.take().unwrap_or_default()
    }

    #[inline]
    pub(crate) fn give(&self, mut buffers: Box<Buffers>) {
        buffers.clear();
        self.0.set(Some(buffers));
    }
}

impl std::fmt::Debug for Spare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Spare")
    }
}

/// What a record carries beside its value (TS 29.598, `RecordMeta`: `tags` and `ttl`).
#[derive(Clone, Copy, Debug, Default)]
pub struct Metadata<'a> {
    /// Tags: (name, value) pairs in any order; a name may have several values, and what is given
    /// twice counts once. A name has 1 to [`TAG_NAME_BYTES_MAX`] bytes, a value at most
    /// [`TAG_VALUE_BYTES_MAX`]; a record has at most [`TAGS_MAX`] pairs. A name that the namespace
    /// has not declared is kept and watched for, but has no index.
    ///
    /// [`TAG_NAME_BYTES_MAX`]: nearstate_model::limits::TAG_NAME_BYTES_MAX
    /// [`TAG_VALUE_BYTES_MAX`]: nearstate_model::limits::TAG_VALUE_BYTES_MAX
    /// [`TAGS_MAX`]: nearstate_model::limits::TAGS_MAX
    pub tags: &'a [(&'a str, &'a [u8])],
    /// When the record ends by itself, in milliseconds since 1970 by the machine's clock; 0: never.
    /// It is over as soon as [`now_ms_coarse`](crate::now_ms_coarse) is this time, so one that is
    /// not in the future is over at once.
    pub expires_ms: u64,
}

/// A range of bytes in the buffer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    from: u32,
    to: u32,
}

const _: () = assert!(TRANSACTION_BYTES_MAX <= u32::MAX as usize, "spans count in 32 bits");

impl Span {
    /// Where it begins and ends.
    #[inline]
    pub(crate) const fn ends(self) -> (u32, u32) {
        (self.from, self.to)
    }

    #[inline]
    pub(crate) fn of(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.from as usize..self.to as usize).unwrap_or_default()
    }
}

/// A change of one block, in the buffer; `None` takes it away.
pub(crate) type SpanChange = (Span, Option<Span>);

/// What becomes of a record.
#[derive(Clone, Debug, Default)]
pub(crate) enum Write {
    /// It was read only.
    #[default]
    None,
    /// It gets this value and nothing of what it had.
    Put { value: Span },
    /// Some of its blocks change; all others go if `is_anew`.
    Patch { is_anew: bool, changes: Vec<SpanChange> },
    /// It goes.
    Delete,
    /// It is an object, and gets what its private copy has.
    Object { copy: usize },
}

/// One record of a transaction.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) table: u32,
    pub(crate) hash: u64,
    pub(crate) key: Span,
    /// What was read; `None` if it was only written.
    pub(crate) seen: Option<ReadToken>,
    pub(crate) write: Write,
    /// What it becomes by a put or a patch.
    pub(crate) form: Form,
    /// What follows the value: encoded meta. `None`: a patch keeps what there is.
    pub(crate) meta: Option<Span>,
    /// Traits of the namespace that have been seen to.
    pub(crate) traits: u64,
    /// Version after the commit.
    pub(crate) after: Option<u64>,
    /// It is deleted because its time has passed.
    pub(crate) is_expiry: bool,
}

/// Entries up to this many are found by looking at each: faster than a table.
pub(crate) const LINEAR_MAX: usize = 24;

/// The memory of a transaction, kept by the session from one to the next.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    pub(crate) entries: Vec<Entry>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) copies: Copies,
    pub(crate) plan: CommitPlan,
    pub(crate) places: BTreeMap<(u32, u64), u32>,
    /// How often something was buffered.
    pub(crate) changes: u64,
    /// True once a read did not fit the earlier ones.
    pub(crate) is_torn: bool,
    /// True while reads are not held against earlier ones: all are judged together afterwards.
    pub(crate) is_judged_later: bool,
    pub(crate) workshop: Workshop,
}

/// Bytes that a session keeps between transactions; more is given back.
const KEPT_MAX: usize = 1 << 20;

impl Buffers {
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
        if self.bytes.capacity() > KEPT_MAX {
            self.bytes.shrink_to(KEPT_MAX);
        }
        self.copies.clear();
        self.plan.clear();
        if !self.places.is_empty() {
            self.places.clear();
        }
        self.changes = 0;
        self.is_torn = false;
        self.is_judged_later = false;
    }

    #[inline]
    pub(crate) fn bytes(&self, span: Span) -> &[u8] {
        span.of(&self.bytes)
    }

    #[inline]
    pub(crate) fn keep(&mut self, bytes: &[u8]) -> Result<Span> {
        let from = self.bytes.len();
        let to = from + bytes.len();
        self.check_room(bytes.len())?;
        self.bytes.extend_from_slice(bytes);
        let at = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        Ok(Span { from: at(from), to: at(to) })
    }

    /// Appends what is to follow a value; nothing if there is nothing to say.
    #[inline]
    pub(crate) fn keep_meta(&mut self, labels: Metadata<'_>) -> Result<Span> {
        if labels.tags.is_empty() && labels.expires_ms == 0 {
            return Ok(Span::default());
        }
        let from = self.bytes.len();
        meta::encode(labels.expires_ms, labels.tags, &mut self.bytes)?;
        if let Err(error) = self.check_room(0) {
            self.bytes.truncate(from);
            return Err(error);
        }
        let at = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        Ok(Span { from: at(from), to: at(self.bytes.len()) })
    }

    /// Refuses what makes the transaction too large.
    pub(crate) fn check_room(&self, more: usize) -> Result<()> {
        let bytes = self.bytes.len() + self.copies.bytes + more;
        if bytes > TRANSACTION_BYTES_MAX {
            return Err(Error::TransactionTooLarge {
                detail: format!("a transaction of {bytes} bytes (at most {TRANSACTION_BYTES_MAX})"),
            });
        }
        Ok(())
    }
}

impl Write {
    pub(crate) const fn is_delete(&self) -> bool {
        matches!(self, Self::Delete)
    }

    pub(crate) const fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }
}
