//! The commit of a transaction: the changes of indexes and the events are added, each new version
//! becomes a draft, and all of them are published (`docs/decisions/005-transactions.md`).

use nearstate_memory::layout::namespace_flags;
use nearstate_memory::{
    Cell, CellChange, CommitOutcome, Expectation, KnownSlot, PendingCell, ReadToken, RecordAccess,
    WriteTarget, log_mark,
};
use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::KEY_BYTES_MAX;
use nearstate_model::{Error, Result, invariant};

use crate::record::meta::is_past_cell;

use crate::record::{BlockChange, Form};
use crate::session::buffers::{BlockWrite, BufferSpan, Buffers, LINEAR_MAX, TxnEntry, Write};
use crate::session::copies::Copies;
use crate::session::{KeyLookup, Session};
use crate::txn::address::Address;
use crate::txn::write::{FlagCheck, SingleWrite, head_of};
use crate::txn::write_set::{WriteSet, torn};

/// The one write of a transaction, for which nothing is prepared.
#[derive(Clone, Copy, Debug)]
struct PlainPut {
    /// Its key and its value.
    body: BufferSpan,
    flags: u64,
}

/// The changes of a patch that need no allocation.
const CHANGES_FEW: usize = 16;

impl WriteSet<'_> {
    /// Adds the changes of indexes, and the events for watches and the commit stream. Returns the
    /// number of entries before that.
    #[inline(never)]
    fn prepare(&mut self) -> Result<usize> {
        let written = self.index_all()?;
        let count = self.buffers.entries.len();
        invariant!(written <= count, "indexes add entries: {written} became {count}");
        self.notify_all()?;
        invariant!(self.buffers.entries.len() == count, "notifications add no entries");
        Ok(written)
    }

    /// Commits the buffered changes, with those of indexes and with events. Returns the number of
    /// entries without them.
    ///
    /// # Errors
    /// Those of [`WriteSet::index_all`] and [`WriteSet::commit`].
    #[inline]
    pub(crate) fn commit_all(&mut self) -> Result<usize> {
        match self.plain_put()? {
            Some(put) => self.commit_plain_put(put).map(|()| 1),
            None => self.commit_prepared(),
        }
    }

    /// What a transaction puts, if it is one put without metadata for which nothing is prepared:
    /// the flags of the namespace ask for no index, no watch, no log and no limit.
    #[inline]
    fn plain_put(&self) -> Result<Option<PlainPut>> {
        let [entry] = self.buffers.entries.as_slice() else { return Ok(None) };
        let Write::Put { value } = entry.write else { return Ok(None) };
        let is_plain = entry.meta.is_none_or(BufferSpan::is_empty)
            && !entry.is_claim
            && !self.buffers.is_torn
            && Some(entry.table) != self.session.internal.table.get()
            // A key from an index may be damaged.
            && self.buffers.bytes(entry.key).len() <= KEY_BYTES_MAX;
        let Some(body) = entry.key.join(value).filter(|_| is_plain) else { return Ok(None) };
        let flags = self.session.member.table(entry.table)?.flags()?;
        Ok((flags % namespace_flags::GENERATION == 0).then_some(PlainPut { body, flags }))
    }

    /// Commits a transaction that is a plain put.
    fn commit_plain_put(&mut self, PlainPut { body, flags }: PlainPut) -> Result<()> {
        let member = &self.session.member;
        // Before the draft: a forked child has no arena of its own.
        member.check_usable()?;
        self.entry_mut(0).flags = flags;
        let done = member.with_reserve(|| {
            // What an earlier operation has noted would lend it the last chunk of the reserve.
            member.note_deletion(|| false);
            let (lookup, body) = (self.lookup_of(self.entry_at(0))?, self.buffers.bytes(body));
            let draft = self.session.draft_whole(lookup, body, false)?;
            self.write_one::<true>(Some(draft), 0)
        });
        if done.is_err() {
            self.session.member.free_pending()?;
        }
        done
    }

    /// As [`WriteSet::commit_all`], of any transaction.
    fn commit_prepared(&mut self) -> Result<usize> {
        // The preparation changes the entries of index records that the transaction has read, so it
        // could not be repeated: nothing is claimed then.
        let internal = self.session.internal.table.get();
        let is_index = |entry: &TxnEntry| Some(entry.table) == internal;
        if self.buffers.entries.iter().any(is_index) {
            self.buffers.is_claim_refused = true;
            let written = self.prepare()?;
            return self.commit_writes().map(|()| written);
        }
        let (bytes, changes) = (self.buffers.bytes.len(), self.buffers.changes);
        let written = self.prepare()?;
        match self.commit_writes() {
            Ok(()) => Ok(written),
            Err(Error::Conflict { .. }) if self.buffers.is_claim_refused => {
                self.buffers.changes = changes;
                self.commit_after_refusal(written, bytes)
            }
            Err(error) => Err(error),
        }
    }

    /// A unique value has a posting already. Prepares the commit anew, with reads of the postings:
    /// their holders decide.
    #[cold]
    fn commit_after_refusal(&mut self, written: usize, kept_bytes: usize) -> Result<usize> {
        let internal = self.session.internal.table.get();
        let Buffers { entries, entry_indices, bytes, plan, .. } = &mut *self.buffers;
        invariant!(written <= entries.len(), "{written} entries were written");
        invariant!(kept_bytes <= bytes.len(), "{kept_bytes} bytes were kept");
        entries.truncate(written);
        invariant!(
            entries.iter().all(|entry| Some(entry.table) != internal),
            "a commit that claims values has read no index record"
        );
        bytes.truncate(kept_bytes);
        plan.clear();
        entry_indices.clear();
        if written > LINEAR_MAX {
            let all = (0_u32..).zip(&*entries);
            entry_indices.extend(all.map(|(index, entry)| ((entry.table, entry.hash), index)));
        }
        let written = self.prepare()?;
        self.commit_writes()?;
        Ok(written)
    }

    /// Commits the buffered changes.
    ///
    /// # Errors
    /// `Conflict`, `Full`, `Stalled`, `Damaged`; nothing was changed then.
    pub(crate) fn commit(&mut self) -> Result<()> {
        if self.is_read_only() && !self.buffers.is_torn {
            return Ok(()); // All reads were consistent at the moment of the last one.
        }
        self.commit_writes()
    }

    /// As [`WriteSet::commit`], of a transaction that writes.
    fn commit_writes(&mut self) -> Result<()> {
        if self.buffers.is_torn {
            return Err(torn());
        }
        debug_assert!(!self.is_read_only(), "a transaction that only reads is not committed");
        // Before the first draft: a forked child has no arena of its own.
        self.session.member.check_usable()?;
        let member = &self.session.member;
        let done = member.with_reserve(|| {
            self.buffers.plan.accesses.clear();
            member.note_deletion(|| self.deletes_only());
            match self.buffers.entries.len() {
                1 if self.buffers.is_direct() => self.commit_one(),
                _ => self.commit_many(),
            }
        });
        if done.is_err() {
            self.session.member.free_pending()?;
        }
        done
    }

    /// True if each record that it writes is deleted, except those of indexes.
    #[cold]
    fn deletes_only(&self) -> bool {
        let internal = self.session.internal.table.get();
        let is_written =
            |entry: &&TxnEntry| !entry.write.is_none() && Some(entry.table) != internal;
        self.buffers.entries.iter().filter(is_written).all(|entry| entry.write.is_delete())
    }

    /// Commits one record on the path of a put, without an intent.
    fn commit_one(&mut self) -> Result<()> {
        invariant!(self.buffers.entries.len() == 1, "a commit of one entry has one");
        let draft = match self.change_of(0)? {
            CellChange::Publish(draft) => Some(draft),
            CellChange::Keep | CellChange::Remove => None,
        };
        let log_mark = self.log_mark(0)?;
        self.write_one::<false>(draft, log_mark)
    }

    /// Publishes the draft of the one record, or removes the record if there is none.
    ///
    /// Each of the two uses has its own copy, of which everything is a part.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "one use knows that the log has nothing of it")]
    fn write_one<const IS_PLAIN: bool>(
        &mut self,
        draft: Option<PendingCell>,
        log_mark: u64,
    ) -> Result<()> {
        debug_assert!(!IS_PLAIN || log_mark == 0, "the log has nothing of a plain put");
        let session = self.session;
        let entry = self.entry_at(0);
        invariant!(!entry.write.is_none(), "a commit of one entry writes it");
        let table = session.member.table(entry.table)?;
        let key = self.buffers.bytes(entry.key);
        let known = entry.seen.map_or(KnownSlot::Unknown, KnownSlot::Read);
        let target = WriteTarget {
            version_imposed: entry.imposed,
            ..WriteTarget::new(entry.hash, key, known)
        };
        let (namespace, expected) = (entry.table, entry.flags);
        let flags = FlagCheck { table, namespace, mask: u64::MAX, expected, log_mark };
        let is_expected = |record: Option<Cell<'_>>| {
            let at = record.map_or(0, |cell| cell.at());
            Ok(entry.seen.is_none_or(|seen| seen.at == at))
        };
        // A plain write is a part of this function, without anything of the log.
        let written = if IS_PLAIN || log_mark == 0 {
            session.write_known::<false>(flags, target, draft, is_expected)?
        } else {
            session.write_single(flags, target, draft, is_expected)?
        };
        match written {
            SingleWrite::Made { version } => {
                invariant!(version != 0 || draft.is_none(), "a published record has a version");
                self.buffers.only_version = if draft.is_some() { version } else { 0 };
                Ok(())
            }
            SingleWrite::Refused | SingleWrite::Unsettled => Err(self.conflict(0)),
        }
    }

    fn commit_many(&mut self) -> Result<()> {
        let session = self.session;
        let forgotten = self.forgotten();
        let count = self.buffers.entries.len();
        for index in 0..count {
            let change =
                if forgotten == Some(index) { CellChange::Keep } else { self.change_of(index)? };
            let entry = self.entry_at(index);
            let mut access = RecordAccess::new(entry.table, entry.hash, entry.key.ends());
            access.change = change;
            access.flags = entry.flags;
            access.log_mark = self.log_mark(index)?;
            access.version_imposed = entry.imposed;
            access.expect = if entry.is_claim {
                Expectation::Read(ReadToken::absent())
            } else {
                entry.seen.map_or(Expectation::Any, Expectation::Read)
            };
            debug_assert!(
                !matches!(access.change, CellChange::Keep)
                    || entry.write.is_none()
                    || forgotten == Some(index),
                "entry {index} is written by the commit"
            );
            self.buffers.plan.add(access);
        }
        let Buffers { bytes, plan, .. } = &mut *self.buffers;
        invariant!(plan.accesses.len() == count, "the plan has all {count} entries");
        match session.member.commit(plan, bytes)? {
            CommitOutcome::Committed => {
                let Buffers { entries, plan, .. } = &mut *self.buffers;
                invariant!(plan.accesses.len() == count, "the commit keeps its plan");
                if plan.position != 0 {
                    session.last_position.set(plan.position);
                    let waits = |entry: &TxnEntry| {
                        !entry.write.is_none() && entry.flags & namespace_flags::REPLICATED != 0
                    };
                    if entries.iter().any(waits) {
                        session.owed_position.set(plan.position);
                    }
                }
                Ok(())
            }
            CommitOutcome::Conflict(index) | CommitOutcome::FlagsChanged(index) => {
                invariant!(index < count, "conflict at entry {index} of {count}");
                self.buffers.is_claim_refused |= self.entry_at(index).is_claim;
                Err(self.conflict(index))
            }
            CommitOutcome::Fenced(index) => {
                invariant!(index < count, "entry {index} of {count} is refused");
                Err(session.fenced(self.entry_at(index).table)?)
            }
        }
    }

    /// What the log says about an entry; 0 if the log does not have it.
    #[inline]
    fn log_mark(&self, index: usize) -> Result<u64> {
        if self.buffers.flags & namespace_flags::LOGGED == 0 {
            return Ok(0);
        }
        let entry = self.entry_at(index);
        if entry.flags & namespace_flags::LOGGED == 0 || entry.write.is_none() {
            return Ok(0);
        }
        self.log_mark_of_write(index)
    }

    /// As [`WriteSet::log_mark`], of a write in a logged namespace.
    #[inline(never)]
    fn log_mark_of_write(&self, index: usize) -> Result<u64> {
        let entry = self.entry_at(index);
        let number = u16::try_from(index).ok();
        let number = guaranteed(number, "a transaction has at most 65,536 records");
        let is_expiry = match (&entry.write, entry.seen) {
            (Write::Delete, _) if entry.is_expiry => true,
            (Write::Delete, Some(seen)) => match self.session.stored(seen)? {
                Some((cell, _)) => is_past_cell(cell)?,
                None => false,
            },
            _ => false,
        };
        Ok(log_mark(entry.table, number, is_expiry))
    }

    /// The entry whose write a planted fault omits: the last of several. `None` outside tests.
    #[inline]
    fn forgotten(&self) -> Option<usize> {
        if !nearstate_memory::crash::is_planted("forget-index") {
            return None;
        }
        let is_write = |entry: &TxnEntry| !entry.write.is_none();
        let writes = self.buffers.entries.iter().filter(|entry| is_write(entry)).count();
        let last = self.buffers.entries.iter().rposition(is_write);
        last.filter(|_| writes > 1)
    }

    /// The change of an entry, with the draft of its new version.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its answer would travel through memory")]
    fn change_of(&self, index: usize) -> Result<CellChange> {
        let entry = self.entry_at(index);
        match entry.write {
            Write::None => Ok(CellChange::Keep),
            Write::Delete => Ok(CellChange::Remove),
            Write::Put { value } => {
                let lookup = self.lookup_of(entry)?;
                let meta = entry.meta.unwrap_or_default();
                let draft = match self.buffers.joined([entry.key, value, meta]) {
                    Some(body) => self.session.draft_whole(lookup, body, !meta.is_empty())?,
                    None => self.draft_of_pieces(lookup, value, meta)?,
                };
                Ok(CellChange::Publish(draft))
            }
            Write::Object { .. } | Write::Patch { .. } | Write::Elements(_) => {
                Ok(CellChange::Publish(self.composed_draft(entry)?))
            }
        }
    }

    #[inline]
    fn lookup_of(&self, entry: &TxnEntry) -> Result<KeyLookup<'_>> {
        let table = self.session.member.table(entry.table)?;
        let key = self.buffers.bytes(entry.key);
        let (hash, form, is_seen) = (entry.hash, entry.form, entry.seen.is_some());
        Ok(KeyLookup { table, hash, key, form, is_seen })
    }

    /// The draft of a put whose key, value and metadata are apart in the buffer.
    #[inline(never)]
    fn draft_of_pieces(
        &self,
        lookup: KeyLookup<'_>,
        value: BufferSpan,
        meta: BufferSpan,
    ) -> Result<PendingCell> {
        let (value, meta) = (self.buffers.bytes(value), self.buffers.bytes(meta));
        self.session.draft(lookup, &[], value, meta)
    }

    /// The draft of a new version that is composed of the old one and of changes.
    #[inline(never)]
    fn composed_draft(&self, entry: &TxnEntry) -> Result<PendingCell> {
        let (session, lookup) = (self.session, self.lookup_of(entry)?);
        match entry.write {
            Write::None | Write::Delete | Write::Put { .. } => {
                invariant!("a whole value or none is not composed")
            }
            Write::Object { copy } => {
                let parts = session.object_parts(entry, copy, &self.buffers.copies)?;
                session.draft_of_parts(lookup, &parts)
            }
            Write::Patch { is_anew, changes } => {
                let meta = entry.meta.map(|meta| self.buffers.bytes(meta));
                let seen = entry.seen.filter(|_| !is_anew);
                let old = seen.map(|seen| session.stored(seen)).transpose()?.flatten();
                invariant!(
                    old.is_some() || seen.is_none_or(|seen| seen.at == 0),
                    "a version that was read is patched"
                );
                let writes = self.buffers.composed.patch(changes);
                // The usual patch has few changes, which take no allocation.
                let (mut few, many);
                let changes = if writes.len() <= CHANGES_FEW {
                    few = [BlockChange { name: "", bytes: None }; CHANGES_FEW];
                    for (change, write) in few.iter_mut().zip(writes) {
                        *change = self.block_change(write);
                    }
                    guaranteed(few.get(..writes.len()), "a patch has few changes")
                } else {
                    many = writes.iter().map(|write| self.block_change(write)).collect::<Vec<_>>();
                    many.as_slice()
                };
                session.patched(lookup, old.map(|(cell, _)| cell), changes, meta)
            }
            Write::Elements(elements) => {
                let meta = entry.meta.map(|meta| self.buffers.bytes(meta));
                let elements = self.buffers.composed.elements(elements);
                session.draft_elements(lookup, (elements, entry.seen), meta)
            }
        }
    }

    /// A change of a patch, from the buffer.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its answer would travel through memory")]
    fn block_change(&self, (name, bytes): &BlockWrite) -> BlockChange<'_> {
        BlockChange {
            name: self.buffers.text(*name),
            bytes: bytes.map(|bytes| self.buffers.bytes(bytes)),
        }
    }

    #[cold]
    fn conflict(&self, index: usize) -> Error {
        let key = self.key(index);
        let table = Some(self.entry_at(index).table);
        let objects = self.session.internal.objects.get();
        if let (true, Some(address)) = (table == objects, Address::of_key(key)) {
            return Error::Conflict { detail: format!("object {address}") };
        }
        let key = String::from_utf8_lossy(key).into_owned();
        Error::Conflict { detail: format!("record {key:?}") }
    }
}

impl Session {
    /// The bytes of an object after the commit, in parts: from its private copy and from the
    /// region.
    pub(crate) fn object_parts<'a>(
        &'a self,
        entry: &TxnEntry,
        copy: usize,
        copies: &'a Copies,
    ) -> Result<Vec<&'a [u8]>> {
        let old = entry.seen.map(|seen| self.stored(seen)).transpose()?.flatten();
        copies.parts(copy, old.map_or(&[], |(_, value)| value))
    }

    /// A draft of a record whose value is given in parts, which are copied once, into the cell.
    fn draft_of_parts(&self, lookup: KeyLookup<'_>, value: &[&[u8]]) -> Result<PendingCell> {
        let key = lookup.key;
        invariant!(Address::of_key(key).is_some(), "an object's key is its address");
        invariant!(lookup.form == Form::Value, "an object is a value");
        let body = key.len() + value.iter().map(|part| part.len()).sum::<usize>();
        let head = head_of(lookup, 0, body, false)?;
        let parts: Vec<&[u8]> = [key].into_iter().chain(value.iter().copied()).collect();
        self.member.fill_cell(&head, &parts, None)
    }
}
