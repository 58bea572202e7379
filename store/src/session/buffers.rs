//! The buffers of a transaction: its entries, and the bytes that it writes. A session keeps them
//! from one transaction to the next.

use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::collections::BTreeMap;

use nearstate_memory::layout::namespace_flags;
use nearstate_memory::{CellChange, CommitPlan, ReadToken};
use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::{
    APPLIED_RECORDS_MAX, TRANSACTION_BYTES_MAX, TRANSACTION_RECORDS_MAX,
};
use nearstate_model::{Error, Result, invariant};

use crate::index::scratch::IndexScratch;
use crate::record::edit::CollectionEdit;
use crate::record::fields::each_inline;
use crate::record::meta;
use crate::record::{ENTRY, Form, size_of_block};
use crate::session::copies::Copies;

use self::composed_writes::{ComposedWrites, WriteIndex};

pub(crate) mod composed_writes;

/// The buffers of a session's transactions. There are as many as transactions were open at once.
#[derive(Default)]
pub(crate) struct BufferCache {
    /// Borrowed by an open transaction.
    buffers: RefCell<Buffers>,
    /// Those of a transaction that is open at the same time.
    next: OnceCell<Box<Self>>,
}

impl BufferCache {
    /// Buffers that no open transaction has. They are empty, and stay empty if the transaction
    /// clears them when it ends.
    ///
    /// Cost: one look for each open transaction of the session.
    #[inline]
    pub(crate) fn borrow(&self) -> RefMut<'_, Buffers> {
        let mut cache = self;
        let buffers = loop {
            match cache.buffers.try_borrow_mut() {
                Ok(buffers) => break buffers,
                Err(_) => cache = cache.next.get_or_init(Box::default),
            }
        };
        invariant!(
            buffers.entries.is_empty() && buffers.bytes.is_empty(),
            "a transaction begins with {} entries",
            buffers.entries.len()
        );
        buffers
    }
}

impl std::fmt::Debug for BufferCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BufferCache")
    }
}

/// The metadata of a record (TS 29.598, `RecordMeta`: `tags` and `ttl`).
#[derive(Clone, Copy, Debug, Default)]
pub struct Metadata<'a> {
    /// Tags: (name, value) pairs in any order; a name may have several values, and duplicates
    /// count once. A name has 1 to [`TAG_NAME_BYTES_MAX`] bytes, a value at most
    /// [`TAG_VALUE_BYTES_MAX`]; a record has at most [`TAGS_MAX`] pairs. A tag that the namespace
    /// has not declared is stored and reported to watches, but has no index.
    ///
    /// [`TAG_NAME_BYTES_MAX`]: nearstate_model::limits::TAG_NAME_BYTES_MAX
    /// [`TAG_VALUE_BYTES_MAX`]: nearstate_model::limits::TAG_VALUE_BYTES_MAX
    /// [`TAGS_MAX`]: nearstate_model::limits::TAGS_MAX
    pub tags: &'a [(&'a str, &'a [u8])],
    /// When the record expires, in milliseconds since 1970 by the machine's clock; 0: never. It has
    /// expired as soon as [`now_ms`](crate::now_ms) reaches this time, so a time that is not in the
    /// future expires at once.
    pub expires_ms: u64,
}

/// A range of bytes in the buffer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BufferSpan {
    from: u32,
    to: u32,
}

const _: () = assert!(TRANSACTION_BYTES_MAX <= u32::MAX as usize, "spans count in 32 bits");
const _: () = assert!(APPLIED_RECORDS_MAX <= u32::MAX as usize, "entry indices have 32 bits");

impl BufferSpan {
    /// Its first byte, and the byte after its last.
    #[inline]
    pub(crate) const fn ends(self) -> (u32, u32) {
        (self.from, self.to)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the bound fits into 32 bits")]
    fn new(from: usize, to: usize) -> Self {
        debug_assert!(from <= to, "{from}..{to} is in the buffer");
        invariant!(to <= TRANSACTION_BYTES_MAX, "{to} bytes are in the buffer");
        Self { from: from as u32, to: to as u32 }
    }

    #[inline]
    pub(crate) const fn is_empty(self) -> bool {
        self.from == self.to
    }

    /// Both as one, if the next one begins where this one ends, or is empty.
    #[inline]
    pub(crate) const fn join(self, next: Self) -> Option<Self> {
        if next.is_empty() {
            return Some(self);
        }
        if self.to == next.from { Some(Self { from: self.from, to: next.to }) } else { None }
    }

    #[inline]
    pub(crate) fn of(self, bytes: &[u8]) -> &[u8] {
        let range = self.from as usize..self.to as usize;
        guaranteed(bytes.get(range), "a span lies in the buffer that it was made for")
    }
}

/// A change of one block, in the buffer: its name and its bytes; `None` removes it.
pub(crate) type BlockWrite = (BufferSpan, Option<BufferSpan>);

/// The write that a transaction makes to a record. What takes memory of its own is in the buffers,
/// so that entries are dropped at once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Write {
    /// None: the record was only read.
    #[default]
    None,
    /// This value replaces everything that the record had. Of a hash it is the table of its blocks,
    /// all of which are inline.
    Put { value: BufferSpan },
    /// Some blocks change ([`ComposedWrites::patch`]); all others are removed if `is_anew`.
    Patch { is_anew: bool, changes: WriteIndex },
    /// Some elements of a collection change, which is divided into parts
    /// ([`ComposedWrites::elements`]).
    Elements(WriteIndex),
    /// The record is deleted.
    Delete,
    /// The record is an object, and gets the bytes of its private copy.
    Object { copy: usize },
}

/// The changes of a divided collection.
#[derive(Clone, Debug)]
pub(crate) struct ElementsWrite {
    pub(crate) edit: CollectionEdit,
    /// True if all other elements are removed, and the record is not a change of a stored one.
    pub(crate) is_anew: bool,
    /// The changed elements, in the order of their changes, unless `is_anew`: for watches and the
    /// commit stream.
    pub(crate) changes: Vec<BlockWrite>,
    /// The fields that watches are told, if a flat hash became divided.
    pub(crate) announced: Option<Vec<BufferSpan>>,
}

/// One record of a transaction.
#[derive(Clone, Debug)]
pub(crate) struct TxnEntry {
    pub(crate) table: u32,
    pub(crate) hash: u64,
    pub(crate) key: BufferSpan,
    /// The version that was read; `None` if the record was only written.
    pub(crate) seen: Option<ReadToken>,
    pub(crate) write: Write,
    /// The form after a put or a patch.
    pub(crate) form: Form,
    /// Encoded metadata after the value. `None`: a patch keeps the old metadata.
    pub(crate) meta: Option<BufferSpan>,
    /// Flags of the namespace under which the indexes and announcements were prepared.
    pub(crate) flags: u64,
    /// Its version after the commit, if another host has given it; else 0.
    pub(crate) imposed: u64,
    /// It is deleted because it has expired.
    pub(crate) is_expiry: bool,
    /// What it deletes or replaces had expired at the host that has committed the change.
    pub(crate) had_expired: bool,
    /// It was not read, and must not exist at the commit: the posting of a unique value.
    pub(crate) is_claim: bool,
}

impl TxnEntry {
    /// That of a record of which nothing was read and nothing is written.
    #[inline]
    pub(crate) const fn new(table: u32, hash: u64, key: BufferSpan) -> Self {
        Self {
            table,
            hash,
            key,
            seen: None,
            write: Write::None,
            form: Form::Value,
            meta: None,
            flags: 0,
            imposed: 0,
            is_expiry: false,
            had_expired: false,
            is_claim: false,
        }
    }
}

/// Up to this many entries are searched linearly, which is faster than a tree.
pub(crate) const LINEAR_MAX: usize = 24;
const _: () = assert!(LINEAR_MAX < TRANSACTION_RECORDS_MAX, "the tree is used");

/// The buffers of a transaction, kept by the session from one to the next.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    pub(crate) entries: Vec<TxnEntry>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) copies: Copies,
    pub(crate) plan: CommitPlan,
    pub(crate) entry_indices: BTreeMap<(u32, u64), u32>,
    /// After the commit of a transaction of one record, which has no plan: its version; 0 if it was
    /// removed.
    pub(crate) only_version: u64,
    /// What the writes of its entries name.
    pub(crate) composed: ComposedWrites,
    /// All flags that the entries have.
    pub(crate) flags: u64,
    /// How many writes were buffered.
    pub(crate) changes: u64,
    /// Bytes that only views of the transaction's own writes keep, until it ends.
    kept_bytes: usize,
    /// Bytes of collections that were put.
    collection_bytes: usize,
    /// True once a value that the transaction claims was taken: then postings are read before they
    /// are written.
    pub(crate) is_claim_refused: bool,
    /// True once the reads were not of one moment.
    pub(crate) is_torn: bool,
    /// True once an index has changed faster than it could be read.
    has_conflict: Cell<bool>,
    /// True while a read does not validate the earlier ones: all are validated together afterwards.
    pub(crate) is_validated_later: bool,
    /// `None` before its first use, and while the indexes of this transaction are changed.
    scratch: Option<Box<IndexScratch>>,
}

/// Bytes that a session keeps between transactions; more is freed.
const KEPT_MAX: usize = 1 << 20;

impl Buffers {
    /// True if a transaction of one record can be committed as a write of one record: it has no
    /// events, and what the records of the namespace take is not counted.
    #[inline]
    pub(crate) fn is_direct(&self) -> bool {
        let is_direct = |entry: &TxnEntry| entry.flags & namespace_flags::LIMITED == 0;
        self.plan.events.all.is_empty() && self.entries.first().is_none_or(is_direct)
    }

    /// After the commit: the version of an entry that was written; `None` if it was removed.
    #[inline]
    pub(crate) fn version_after(&self, index: usize) -> Option<u64> {
        let Some(access) = self.plan.accesses.get(index) else {
            debug_assert!(index == 0 && self.entries.len() == 1, "entry {index} has a version");
            return (self.only_version != 0).then_some(self.only_version);
        };
        debug_assert!(
            access.version_after.is_some() == matches!(access.change, CellChange::Publish(_)),
            "a record has a version after the commit if and only if it was published"
        );
        access.version_after
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.composed.clear();
        self.bytes.clear();
        if self.bytes.capacity() > KEPT_MAX {
            self.bytes.shrink_to(KEPT_MAX);
        }
        self.copies.clear();
        self.plan.clear();
        invariant!(
            self.entry_indices.is_empty() || self.entry_indices.len() <= APPLIED_RECORDS_MAX,
            "{} entries are found through the tree",
            self.entry_indices.len()
        );
        if !self.entry_indices.is_empty() {
            self.entry_indices.clear();
        }
        self.flags = 0;
        self.changes = 0;
        self.kept_bytes = 0;
        self.collection_bytes = 0;
        self.is_claim_refused = false;
        self.is_torn = false;
        self.has_conflict.set(false);
        self.is_validated_later = false;
    }

    /// Buffers a change of a block in a patch. It replaces an earlier one of the block.
    pub(crate) fn change_block(
        &mut self,
        index: WriteIndex,
        (name, value): (&[u8], Option<&[u8]>),
    ) -> Result<()> {
        let value = value.map(|bytes| self.keep(bytes)).transpose()?;
        let is_it = |(known, _): &BlockWrite| self.bytes(*known) == name;
        let known = self.composed.patch(index).iter().position(is_it);
        let name = if known.is_none() { self.keep(name)? } else { BufferSpan::default() };
        let changes = self.composed.patch_mut(index);
        match known.and_then(|known| changes.get_mut(known)) {
            Some((_, known)) => *known = value,
            None => changes.push((name, value)),
        }
        Ok(())
    }

    /// Takes the buffers for changes of indexes, for the time of such a change.
    #[inline]
    pub(crate) fn take_scratch(&mut self) -> Box<IndexScratch> {
        self.scratch.take().unwrap_or_default()
    }

    /// Returns them.
    #[inline]
    pub(crate) fn give_scratch(&mut self, scratch: Box<IndexScratch>) {
        self.scratch = Some(scratch);
    }

    /// The bytes of three spans, if each begins where the previous one ends. The last two do not
    /// count if they are empty.
    #[inline]
    pub(crate) fn joined(&self, [one, two, three]: [BufferSpan; 3]) -> Option<&[u8]> {
        Some(self.bytes(one.join(two)?.join(three)?))
    }

    #[inline]
    pub(crate) fn bytes(&self, span: BufferSpan) -> &[u8] {
        span.of(&self.bytes)
    }

    /// The text that was kept: the name of a block.
    #[inline]
    pub(crate) fn text(&self, span: BufferSpan) -> &str {
        guaranteed(str::from_utf8(self.bytes(span)).ok(), "a name was kept from a `str`")
    }

    #[inline]
    pub(crate) fn keep(&mut self, bytes: &[u8]) -> Result<BufferSpan> {
        let from = self.bytes.len();
        self.check_room(bytes.len())?;
        self.bytes.extend_from_slice(bytes);
        Ok(BufferSpan::new(from, self.bytes.len()))
    }

    /// As two calls of [`Buffers::keep`].
    #[inline]
    pub(crate) fn keep_pair(
        &mut self,
        (one, other): (&[u8], &[u8]),
    ) -> Result<(BufferSpan, BufferSpan)> {
        let (from, bytes) = (self.bytes.len(), one.len() + other.len());
        self.check_room(bytes)?;
        self.bytes.reserve(bytes);
        self.bytes.extend_from_slice(one);
        let middle = self.bytes.len();
        self.bytes.extend_from_slice(other);
        Ok((BufferSpan::new(from, middle), BufferSpan::new(middle, self.bytes.len())))
    }

    /// Appends the table of a hash with these fields, all inline, which has so many bytes.
    pub(crate) fn keep_table(
        &mut self,
        fields: &[(&[u8], &[u8])],
        bytes: usize,
    ) -> Result<BufferSpan> {
        self.check_room(bytes)?;
        let (from, out) = (self.bytes.len(), &mut self.bytes);
        out.reserve(bytes);
        let count = guaranteed(u32::try_from(fields.len()).ok(), "a flat hash has few fields");
        out.extend_from_slice(&count.to_le_bytes());
        for (name, value) in fields {
            let name = guaranteed(u8::try_from(name.len()).ok(), "the name of a block was checked");
            let [b0, b1, b2, b3] = size_of_block(value).to_le_bytes();
            // Location 0: the block is inline, and no child.
            out.extend_from_slice(&[name, 0, 0, 0, b0, b1, b2, b3]);
        }
        for (name, _) in fields {
            out.extend_from_slice(name);
        }
        for (_, value) in fields {
            out.extend_from_slice(value);
        }
        invariant!(out.len() == from + bytes, "a table of {bytes} bytes was measured");
        Ok(BufferSpan::new(from, out.len()))
    }

    /// The blocks of a table that [`Buffers::keep_table`] has appended, as changes of a patch.
    #[cold]
    pub(crate) fn blocks_of_table(&self, table: BufferSpan) -> Vec<BlockWrite> {
        let blocks: Vec<(&str, &[u8])> = each_inline(self.bytes(table)).collect();
        let names: usize = blocks.iter().map(|(name, _)| name.len()).sum();
        let mut name_at = table.from as usize + size_of::<u32>() + blocks.len() * ENTRY;
        let mut value_at = name_at + names;
        let spans = blocks.into_iter().map(|(name, value)| {
            let (name_end, value_end) = (name_at + name.len(), value_at + value.len());
            let name = BufferSpan::new(std::mem::replace(&mut name_at, name_end), name_end);
            let value = BufferSpan::new(std::mem::replace(&mut value_at, value_end), value_end);
            (name, Some(value))
        });
        spans.collect()
    }

    /// Removes the bytes that were kept last.
    #[cold]
    pub(crate) fn forget(&mut self, last: BufferSpan) {
        invariant!(last.to as usize == self.bytes.len(), "only the last bytes are removed");
        self.bytes.truncate(last.from as usize);
    }

    /// Appends encoded metadata; nothing if there is none.
    #[inline]
    pub(crate) fn keep_meta(&mut self, metadata: Metadata<'_>) -> Result<BufferSpan> {
        if metadata.tags.is_empty() && metadata.expires_ms == 0 {
            return Ok(BufferSpan::default());
        }
        let from = self.bytes.len();
        meta::encode(metadata.expires_ms, metadata.tags, &mut self.bytes)?;
        invariant!(from < self.bytes.len(), "encoded metadata is not empty");
        if let Err(error) = self.check_room(0) {
            self.bytes.truncate(from);
            return Err(error);
        }
        Ok(BufferSpan::new(from, self.bytes.len()))
    }

    /// True once a read has returned `Conflict`.
    pub(crate) fn has_conflict(&self) -> bool {
        self.is_torn || self.has_conflict.get()
    }

    /// Remembers a conflict that leaves the transaction usable.
    pub(crate) fn conflict(&self, detail: String) -> Error {
        self.has_conflict.set(true);
        Error::Conflict { detail }
    }

    /// Counts the bytes of a collection that is put.
    pub(crate) fn count_collection(&mut self, bytes: usize) -> Result<()> {
        self.check_room(bytes)?;
        self.collection_bytes += bytes;
        Ok(())
    }

    /// Counts bytes that are kept for views of the transaction's own writes.
    pub(crate) fn count_kept(&mut self, more: usize) -> Result<()> {
        self.kept_bytes = self.kept_bytes.saturating_add(more);
        let bytes = self.kept_bytes;
        if bytes > TRANSACTION_BYTES_MAX { Err(too_many_kept(bytes)) } else { Ok(()) }
    }

    /// Refuses bytes that make the transaction too large.
    #[inline]
    pub(crate) fn check_room(&self, more: usize) -> Result<()> {
        let bytes = self.bytes.len() + self.copies.bytes + self.collection_bytes + more;
        if bytes > TRANSACTION_BYTES_MAX { Err(too_many(bytes)) } else { Ok(()) }
    }
}

#[cold]
fn too_many_kept(bytes: usize) -> Error {
    Error::TransactionTooLarge {
        detail: format!(
            "a transaction that has read {bytes} bytes of what it writes (at most \
             {TRANSACTION_BYTES_MAX}): read before the first write, or commit in between"
        ),
    }
}

#[cold]
fn too_many(bytes: usize) -> Error {
    Error::TransactionTooLarge {
        detail: format!("a transaction of {bytes} bytes (at most {TRANSACTION_BYTES_MAX})"),
    }
}

impl ElementsWrite {
    /// The changed elements; all if the collection is anew.
    pub(crate) fn changed<'b>(&'b self, bytes: &'b [u8]) -> Vec<(&'b [u8], Option<&'b [u8]>)> {
        if self.is_anew {
            invariant!(self.changes.is_empty(), "a collection that is anew has no changes");
            return self.edit.own_elements();
        }
        let value = |span: Option<BufferSpan>| span.map(|span| span.of(bytes));
        self.changes.iter().map(|(name, new)| (name.of(bytes), value(*new))).collect()
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

#[cfg(test)]
mod tests;
