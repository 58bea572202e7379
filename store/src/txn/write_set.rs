//! The read set and write set of a transaction, buffered in the process until the commit
//! (`docs/decisions/005-transactions.md`, 5).
//!
//! Reads are consistent at every moment: each new read validates all earlier ones.

use std::cell::RefMut;

use nearstate_memory::layout::namespace_flags;
use nearstate_memory::{Cell, Pin, ReadToken};
use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::{APPLIED_RECORDS_MAX, TRANSACTION_RECORDS_MAX, VALUE_BYTES_MAX};
use nearstate_model::{Error, Result, invariant};

use crate::record::{BlockChange, Form};
use crate::session::Session;
use crate::session::buffers::{BufferSpan, Buffers, LINEAR_MAX, Metadata, TxnEntry, Write};

/// An open transaction's reads and writes.
#[derive(Debug)]
pub(crate) struct WriteSet<'s> {
    pub(crate) session: &'s Session,
    pub(crate) buffers: RefMut<'s, Buffers>,
    /// Keeps every cell that was read from reuse: as long as it holds, the offset of a cell
    /// identifies the version.
    _pin: Pin<'s>,
}

/// However it ends, the session's next transaction uses the memory of its buffers.
impl Drop for WriteSet<'_> {
    #[inline]
    fn drop(&mut self) {
        self.buffers.clear();
        debug_assert!(self.buffers.plan.accesses.is_empty(), "a session keeps a plan");
    }
}

impl<'s> WriteSet<'s> {
    #[inline]
    pub(crate) fn new(session: &'s Session) -> Result<Self> {
        let pin = session.member.pin()?;
        let buffers = session.buffer_cache.borrow();
        Ok(Self { session, buffers, _pin: pin })
    }

    /// The entry of a record, if the transaction has one.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its answer would travel through memory")]
    pub(crate) fn find_entry(&self, table: u32, hash: u64, key: &[u8]) -> Option<usize> {
        let all = &self.buffers.entries;
        let is_same = |entry: &TxnEntry| {
            entry.hash == hash && entry.table == table && self.buffers.bytes(entry.key) == key
        };
        if all.len() > LINEAR_MAX {
            let index = *self.buffers.entry_indices.get(&(table, hash))? as usize;
            debug_assert!(index < all.len(), "the tree names entry {index}");
            if all.get(index).is_some_and(is_same) {
                return Some(index);
            }
        }
        all.iter().position(is_same)
    }

    /// Adds an entry of a record that was read, or `None` if it was not.
    #[inline]
    fn push(
        &mut self,
        (table, hash, key): (u32, u64, &[u8]),
        seen: Option<ReadToken>,
    ) -> Result<usize> {
        debug_assert!(hash == self.session.hash(key), "an entry has another key's hash");
        self.check_count()?;
        let key = self.buffers.keep(key)?;
        Ok(self.push_entry(TxnEntry { seen, ..TxnEntry::new(table, hash, key) }))
    }

    /// Checks that the transaction may have one more entry.
    #[inline]
    fn check_count(&self) -> Result<()> {
        let entries = self.buffers.entries.len();
        if entries >= TRANSACTION_RECORDS_MAX { self.check_more(entries) } else { Ok(()) }
    }

    #[inline]
    fn push_entry(&mut self, entry: TxnEntry) -> usize {
        let index = self.buffers.entries.len();
        self.buffers.entries.push(entry);
        if index >= LINEAR_MAX {
            self.add_to_tree(index);
        }
        index
    }

    /// Checks that a transaction may have more than [`TRANSACTION_RECORDS_MAX`] entries. The source
    /// has decided what a follower applies: a limit of its own would end the replication.
    #[cold]
    fn check_more(&self, entries: usize) -> Result<()> {
        let most = if self.session.member.is_follower() {
            APPLIED_RECORDS_MAX
        } else {
            TRANSACTION_RECORDS_MAX
        };
        if entries < most {
            return Ok(());
        }
        let detail = format!("a transaction of more than {most} records");
        Err(Error::TransactionTooLarge { detail })
    }

    /// Adds the last entry to the tree, through which many entries are found; the first time all.
    #[cold]
    fn add_to_tree(&mut self, last: usize) {
        let Buffers { entries, entry_indices, .. } = &mut *self.buffers;
        let from = if last == LINEAR_MAX { 0 } else { last };
        for (index, entry) in (0_u32..).zip(entries).skip(from) {
            entry_indices.insert((entry.table, entry.hash), index);
        }
        invariant!(
            !entry_indices.is_empty() && entry_indices.len() <= last + 1,
            "the tree has the entries"
        );
    }

    #[inline]
    pub(crate) fn entry_at(&self, index: usize) -> &TxnEntry {
        guaranteed(self.buffers.entries.get(index), NO_ENTRY)
    }

    #[inline]
    pub(crate) fn entry_mut(&mut self, index: usize) -> &mut TxnEntry {
        guaranteed(self.buffers.entries.get_mut(index), NO_ENTRY)
    }

    #[inline]
    pub(crate) fn key(&self, index: usize) -> &[u8] {
        self.buffers.bytes(self.entry_at(index).key)
    }

    /// The record of a key as the region has it. Later reads in the transaction return the same
    /// version.
    #[inline]
    pub(crate) fn read(
        &mut self,
        table: u32,
        hash: u64,
        key: &[u8],
    ) -> Result<(usize, Stored<'s>)> {
        let index = self.find_entry(table, hash, key);
        self.read_at(index, table, hash, key)
    }

    /// As [`WriteSet::read`]; `index` is the result of [`WriteSet::find_entry`].
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its answer would travel through memory")]
    pub(crate) fn read_at(
        &mut self,
        index: Option<usize>,
        table: u32,
        hash: u64,
        key: &[u8],
    ) -> Result<(usize, Stored<'s>)> {
        let session = self.session;
        if let Some(index) = index
            && let Some(seen) = self.entry_at(index).seen
        {
            return session.stored(seen).map(|stored| (index, stored));
        }
        let found = session.lookup_current(table, hash, key)?;
        if !self.buffers.is_validated_later && !self.buffers.entries.is_empty() {
            self.check()?;
        }
        debug_assert!(
            found.record.is_none_or(|(cell, _)| cell.at() == found.token.at),
            "the token of a read names its cell"
        );
        let index = match index {
            Some(index) => {
                self.entry_mut(index).seen = Some(found.token);
                index
            }
            None => self.push((table, hash, key), Some(found.token))?,
        };
        Ok((index, found.record))
    }

    /// As [`WriteSet::read_at`], for a caller that does not need the value of a large record.
    pub(crate) fn read_ends_at(
        &mut self,
        index: Option<usize>,
        table: u32,
        hash: u64,
        key: &[u8],
    ) -> Result<(usize, Stored<'s>)> {
        let session = self.session;
        if let Some(index) = index
            && self.entry_at(index).seen.is_some()
        {
            return self.read_again(index).map(|stored| (index, stored));
        }
        let found = session.lookup_ends_current(table, hash, key)?;
        let index = self.track(index, (table, hash, key), found.token)?;
        Ok((index, found.record))
    }

    /// True if the transaction has written it.
    #[inline]
    pub(crate) fn is_written(&self, index: usize) -> bool {
        !self.entry_at(index).write.is_none()
    }

    /// True if the transaction has deleted it.
    pub(crate) fn is_deleted(&self, index: usize) -> bool {
        self.entry_at(index).write.is_delete()
    }

    /// Of a commit without a place in the log: the namespace of a deletion that has found no
    /// record, if commits in it wait until they are replicated.
    #[inline]
    pub(crate) fn deletion_of_nothing(&self) -> Option<u32> {
        if self.buffers.flags & namespace_flags::REPLICATED == 0 {
            return None;
        }
        let finds_nothing = |entry: &&TxnEntry| {
            entry.write.is_delete() && entry.flags & namespace_flags::REPLICATED != 0
        };
        self.buffers.entries.iter().find(finds_nothing).map(|entry| entry.table)
    }

    /// Adds a record that was just read to the read set. Returns its entry.
    #[inline]
    pub(crate) fn track(
        &mut self,
        index: Option<usize>,
        (table, hash, key): (u32, u64, &[u8]),
        seen: ReadToken,
    ) -> Result<usize> {
        if !self.buffers.is_validated_later {
            self.check()?;
        }
        let Some(index) = index else {
            return self.push((table, hash, key), Some(seen));
        };
        let entry = self.entry_mut(index);
        // The caller may have used an earlier version that was not tracked.
        if entry.seen.is_some_and(|before| before.at != seen.at) {
            self.buffers.is_torn = true;
            return Err(torn());
        }
        entry.seen = Some(seen);
        Ok(index)
    }

    /// The stored version of an entry; read now if it was not read before.
    pub(crate) fn read_again(&mut self, index: usize) -> Result<Stored<'s>> {
        let session = self.session;
        let entry = self.entry_at(index);
        if let Some(seen) = entry.seen {
            return session.stored(seen);
        }
        let table = session.member.table(entry.table)?;
        let key = self.buffers.bytes(entry.key);
        let found = session.member.lookup(table, entry.hash, key)?;
        self.entry_mut(index).seen = Some(found.token);
        Ok(found.record)
    }

    /// True if every version that was read is still current, so that all reads are of one moment.
    pub(crate) fn is_consistent(&self) -> Result<bool> {
        let session = self.session;
        for entry in &self.buffers.entries {
            let Some(seen) = entry.seen else { continue };
            if session.member.is_current(seen) {
                continue;
            }
            let table = session.member.table(entry.table)?;
            let key = self.buffers.bytes(entry.key);
            if !session.member.validate_read(table, entry.hash, key, seen)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The error, or a conflict if inconsistent reads may have caused it.
    #[cold]
    pub(crate) fn torn_or(&self, error: Error) -> Result<Error> {
        Ok(if self.is_consistent()? { error } else { torn() })
    }

    /// Validates that all reads are of one moment.
    ///
    /// # Errors
    /// `Conflict`; then every later call returns it too.
    #[inline]
    pub(crate) fn check(&mut self) -> Result<()> {
        let member = &self.session.member;
        let is_current = |entry: &TxnEntry| entry.seen.is_none_or(|seen| member.is_current(seen));
        if !self.buffers.is_torn && self.buffers.entries.iter().all(is_current) {
            return Ok(());
        }
        self.check_each()
    }

    /// As [`WriteSet::check`], if a word that has led to a record has changed, or there was none.
    #[inline(never)]
    fn check_each(&mut self) -> Result<()> {
        if self.buffers.is_torn || !self.is_consistent()? {
            self.buffers.is_torn = true;
            return Err(torn());
        }
        Ok(())
    }

    /// Buffers a new record of which the caller has read nothing, and that must not exist at the
    /// commit.
    #[inline]
    pub(crate) fn claim(
        &mut self,
        (table, hash, key): (u32, u64, &[u8]),
        value: &[u8],
    ) -> Result<()> {
        debug_assert!(self.find_entry(table, hash, key).is_none(), "a known record is claimed");
        debug_assert!(hash == self.session.hash(key), "an entry has another key's hash");
        self.check_count()?;
        let (key, value) = self.buffers.keep_pair((key, value))?;
        self.push_entry(TxnEntry {
            write: Write::Put { value },
            meta: Some(BufferSpan::default()),
            is_claim: true,
            ..TxnEntry::new(table, hash, key)
        });
        self.buffers.changes += 1;
        Ok(())
    }

    /// The last entry, if it is of this record: a caller often writes what it has just read. The
    /// key is compared, so that it needs no hash.
    #[inline]
    pub(crate) fn last_entry_of(&self, table: u32, key: &[u8]) -> Option<usize> {
        let index = self.buffers.entries.len().checked_sub(1)?;
        let entry = self.entry_at(index);
        (entry.table == table && self.buffers.bytes(entry.key) == key).then_some(index)
    }

    /// The entry of a record that will be written.
    #[inline]
    pub(crate) fn entry(&mut self, table: u32, hash: u64, key: &[u8]) -> Result<usize> {
        match self.find_entry(table, hash, key) {
            Some(index) => Ok(index),
            None => self.push_unread(table, hash, key),
        }
    }

    /// Adds the entry of a record that was not read.
    fn push_unread(&mut self, table: u32, hash: u64, key: &[u8]) -> Result<usize> {
        // The commit needs the bucket, which no read has brought into the cache.
        let member = &self.session.member;
        member.prefetch_bucket(member.table(table)?, hash);
        self.push((table, hash, key), None)
    }

    /// As [`WriteSet::put`], with metadata after the value.
    #[inline]
    pub(crate) fn put_with_metadata(
        &mut self,
        index: usize,
        value: &[u8],
        metadata: Metadata<'_>,
    ) -> Result<()> {
        invariant!(value.len() <= VALUE_BYTES_MAX, "a value of {} bytes is put", value.len());
        // The metadata follows the value, as in the cell.
        let value = self.buffers.keep(value)?;
        let meta = match self.buffers.keep_meta(metadata) {
            Ok(meta) => meta,
            Err(error) => {
                // Invalid metadata must leave the transaction unchanged.
                self.buffers.forget(value);
                return Err(error);
            }
        };
        let entry = self.entry_mut(index);
        entry.write = Write::Put { value };
        entry.form = Form::Value;
        entry.meta = Some(meta);
        self.buffers.changes += 1;
        Ok(())
    }

    /// True if the transaction writes nothing.
    #[inline]
    pub(crate) fn is_read_only(&self) -> bool {
        self.buffers.entries.iter().all(|entry| entry.write.is_none())
    }

    /// Buffers a whole new value.
    pub(crate) fn put(&mut self, index: usize, value: &[u8], meta: &[u8]) -> Result<()> {
        let value = self.buffers.keep(value)?;
        let meta = self.buffers.keep(meta)?;
        let entry = self.entry_mut(index);
        entry.write = Write::Put { value };
        entry.form = Form::Value;
        entry.meta = Some(meta);
        self.buffers.changes += 1;
        Ok(())
    }

    /// Sets the form of a record that was put.
    pub(crate) fn set_form(&mut self, index: usize, form: Form) {
        let entry = self.entry_mut(index);
        invariant!(matches!(entry.write, Write::Put { .. }), "the form of a put is set");
        entry.form = form;
    }

    /// Buffers changes of blocks, in addition to earlier ones.
    pub(crate) fn patch(&mut self, index: usize, blocks: &[BlockChange<'_>]) -> Result<()> {
        // First: a refusal must leave an earlier write of the record as it is.
        self.buffers.check_room(bytes_of(blocks))?;
        self.buffers.changes += 1;
        let entry = self.entry_mut(index);
        invariant!(
            entry.form == Form::Blocks || !matches!(entry.write, Write::Put { .. }),
            "only a record of named blocks is patched"
        );
        let (is_anew, changes) = match std::mem::take(&mut entry.write) {
            Write::Patch { is_anew, changes } => (is_anew, changes),
            Write::Delete => {
                entry.meta = Some(BufferSpan::default());
                (true, self.buffers.composed.add_patch())
            }
            Write::Put { value } => {
                let blocks = self.buffers.blocks_of_table(value);
                (true, self.buffers.composed.add_patch_of(blocks))
            }
            Write::None | Write::Object { .. } => (false, self.buffers.composed.add_patch()),
            Write::Elements(_) => invariant!("a divided collection changes by elements"),
        };
        for change in blocks {
            let done = self.buffers.change_block(changes, (change.name.as_bytes(), change.bytes));
            guaranteed(done.ok(), "the room for the changes was checked");
        }
        let entry = self.entry_mut(index);
        entry.write = Write::Patch { is_anew, changes };
        entry.form = Form::Blocks;
        Ok(())
    }

    /// Buffers a record of these blocks, with encoded metadata, instead of all that it had.
    pub(crate) fn put_blocks(
        &mut self,
        index: usize,
        blocks: &[BlockChange<'_>],
        meta: &[u8],
    ) -> Result<()> {
        // First, as in `patch`.
        self.buffers.check_room(bytes_of(blocks) + meta.len())?;
        self.delete(index);
        self.patch(index, blocks)?;
        self.set_meta(index, meta)
    }

    pub(crate) fn set_meta(&mut self, index: usize, meta: &[u8]) -> Result<()> {
        let meta = self.buffers.keep(meta)?;
        let entry = self.entry_mut(index);
        invariant!(!entry.write.is_none(), "metadata is set with a write");
        entry.meta = Some(meta);
        Ok(())
    }

    pub(crate) fn delete(&mut self, index: usize) {
        self.buffers.changes += 1;
        let entry = self.entry_mut(index);
        entry.write = Write::Delete;
        entry.meta = Some(BufferSpan::default());
    }
}

/// What changes of blocks take in the buffer at most.
fn bytes_of(blocks: &[BlockChange<'_>]) -> usize {
    blocks.iter().map(|change| change.name.len() + change.bytes.map_or(0, <[u8]>::len)).sum()
}

const NO_ENTRY: &str = "an entry of the transaction is named by its index";

#[cold]
pub(crate) fn torn() -> Error {
    Error::Conflict { detail: "a record that the transaction had read".to_owned() }
}

/// A record as the region has it: its cell, and what follows its key.
pub(crate) type Stored<'s> = Option<(Cell<'s>, &'s [u8])>;

impl Session {
    /// The cell that was read earlier under a pin that still holds.
    pub(crate) fn stored(&self, seen: ReadToken) -> Result<Stored<'_>> {
        if seen.at == 0 {
            return Ok(None);
        }
        let cell = self.member.cell_at(seen.at)?;
        Ok(Some((cell, cell.value()?)))
    }
}
