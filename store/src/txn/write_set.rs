//! What a transaction has read and is about to write: buffered in the process until it commits
//! (`docs/decisions/005-transactions.md`, 5).
//!
//! Reads are consistent at every moment: each new one checks that all earlier ones still stand.

use nearstate_memory::{
    Cell, CellHeader, CommitOutcome, Expectation, PendingCell, Pin, ReadToken, RecordAccess,
    RecordChange, WriteDecision, WriteTarget,
};
use nearstate_model::limits::TRANSACTION_RECORDS_MAX;
use nearstate_model::{Error, Result};

use crate::record::{BlockChange, Form};
use crate::session::buffers::{Buffers, Entry, LINEAR_MAX, Metadata, Span, Write};
use crate::session::copies::Copies;
use crate::session::{Session, Spot};
use crate::txn::address::Address;

/// An open transaction's reads and writes.
#[derive(Debug)]
pub(crate) struct WriteSet<'s> {
    pub(crate) session: &'s Session,
    pub(crate) buffers: Box<Buffers>,
    /// Keeps every cell that was read from reuse, so that it is known again by its place.
    _pin: Pin<'s>,
}

impl<'s> WriteSet<'s> {
    /// Ends it: its memory serves the session's next one.
    #[inline]
    pub(crate) fn give_back(self) {
        self.session.spare.give(self.buffers);
    }

    #[inline]
    pub(crate) fn new(session: &'s Session) -> Result<Self> {
        let pin = session.member.pin()?;
        let buffers = session.spare.take();
        Ok(Self { session, buffers, _pin: pin })
    }

    /// The entry of a record, if the transaction has one.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its answer would travel through memory")]
    pub(crate) fn place_of(&self, table: u32, hash: u64, key: &[u8]) -> Option<usize> {
        let all = &self.buffers.entries;
        let is_it = |entry: &Entry| {
            entry.hash == hash && entry.table == table && self.buffers.bytes(entry.key) == key
        };
        if all.len() > LINEAR_MAX {
            let place = *self.buffers.places.get(&(table, hash))? as usize;
            if all.get(place).is_some_and(is_it) {
                return Some(place);
            }
        }
        all.iter().position(is_it)
    }

    #[inline]
    fn push(&mut self, table: u32, hash: u64, key: &[u8]) -> Result<usize> {
        let place = self.buffers.entries.len();
        if place >= TRANSACTION_RECORDS_MAX {
            return Err(Error::TransactionTooLarge {
                detail: format!("a transaction of more than {TRANSACTION_RECORDS_MAX} records"),
            });
        }
        let key = self.buffers.keep(key)?;
        self.buffers.entries.push(Entry {
            table,
            hash,
            key,
            seen: None,
            write: Write::None,
            form: Form::Value,
            meta: None,
            traits: 0,
            after: None,
            is_expiry: false,
        });
        if place >= LINEAR_MAX {
            self.enlist(place);
        }
        Ok(place)
    }

    /// Many entries: they are found through a tree.
    #[cold]
    fn enlist(&mut self, place: usize) {
        let Buffers { entries, places, .. } = &mut *self.buffers;
        let from = if place == LINEAR_MAX { 0 } else { place };
        for (index, entry) in (0_u32..).zip(entries).skip(from) {
            places.insert((entry.table, entry.hash), index);
        }
    }

    #[inline]
    pub(crate) fn key(&self, place: usize) -> &[u8] {
        self.buffers.entries.get(place).map_or(&[], |entry| self.buffers.bytes(entry.key))
    }

    /// The record of a key as the region has it: read once, and the same until the commit.
    #[inline]
    pub(crate) fn read(
        &mut self,
        table: u32,
        hash: u64,
        key: &[u8],
    ) -> Result<(usize, Stored<'s>)> {
        let place = self.place_of(table, hash, key);
        self.read_at(place, table, hash, key)
    }

    /// As [`WriteSet::read`] of a record whose entry is known to be there or not.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its answer would travel through memory")]
    pub(crate) fn read_at(
        &mut self,
        place: Option<usize>,
        table: u32,
        hash: u64,
        key: &[u8],
    ) -> Result<(usize, Stored<'s>)> {
        let place = match place {
            Some(place) => place,
            None => self.push(table, hash, key)?,
        };
        let session = self.session;
        if let Some(Entry { seen: Some(seen), .. }) = self.buffers.entries.get(place) {
            return session.stored(*seen).map(|stored| (place, stored));
        }
        let placed = session.member.lookup(session.member.table(table)?, hash, key)?;
        if !self.buffers.is_judged_later {
            self.check()?;
        }
        if let Some(entry) = self.buffers.entries.get_mut(place) {
            entry.seen = Some(placed.token);
        }
        Ok((place, placed.record))
    }

    /// As [`WriteSet::read_at`], for whom the value of a large record does not matter.
    pub(crate) fn read_ends_at(
        &mut self,
        place: Option<usize>,
        table: u32,
        hash: u64,
        key: &[u8],
    ) -> Result<(usize, Stored<'s>)> {
        let session = self.session;
        if let Some(place) = place
            && self.buffers.entries.get(place).is_some_and(|entry| entry.seen.is_some())
        {
            return self.read_again(place).map(|stored| (place, stored));
        }
        let placed = session.member.lookup_ends(session.member.table(table)?, hash, key)?;
        let place = self.track(place, (table, hash, key), placed.token)?;
        Ok((place, placed.record))
    }

    /// True if the transaction has written it.
    #[inline]
    pub(crate) fn is_written(&self, place: usize) -> bool {
        self.buffers.entries.get(place).is_some_and(|entry| !entry.write.is_none())
    }

    /// True if the transaction has deleted it.
    pub(crate) fn is_deleted(&self, place: usize) -> bool {
        self.buffers.entries.get(place).is_some_and(|entry| entry.write.is_delete())
    }

    /// The entry of a record that was found just now: the transaction rests on it.
    #[inline]
    pub(crate) fn track(
        &mut self,
        place: Option<usize>,
        (table, hash, key): (u32, u64, &[u8]),
        seen: ReadToken,
    ) -> Result<usize> {
        let place = match place {
            Some(place) => place,
            None => self.push(table, hash, key)?,
        };
        if !self.buffers.is_judged_later {
            self.check()?;
        }
        if let Some(entry) = self.buffers.entries.get_mut(place) {
            // Nothing remembers what was told of the version before.
            if entry.seen.is_some_and(|before| before.at != seen.at) {
                self.buffers.is_torn = true;
                return Err(torn());
            }
            entry.seen = Some(seen);
        }
        Ok(place)
    }

    /// What the region has of a record that is in the transaction; read now if it was not before.
    pub(crate) fn read_again(&mut self, place: usize) -> Result<Stored<'s>> {
        let session = self.session;
        let Some(entry) = self.buffers.entries.get(place) else { return Ok(None) };
        if let Some(seen) = entry.seen {
            return session.stored(seen);
        }
        let table = session.member.table(entry.table)?;
        let key = self.buffers.bytes(entry.key);
        let placed = session.member.lookup(table, entry.hash, key)?;
        if let Some(entry) = self.buffers.entries.get_mut(place) {
            entry.seen = Some(placed.token);
        }
        Ok(placed.record)
    }

    /// True if everything that was read is still so: then all of it was so at one moment.
    #[inline]
    pub(crate) fn is_whole(&self) -> Result<bool> {
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

    /// The failure, or a conflict if it may come of reads that do not fit together.
    #[cold]
    pub(crate) fn torn_or(&self, error: Error) -> Result<Error> {
        Ok(if self.is_whole()? { error } else { torn() })
    }

    /// Whether all reads fit together.
    ///
    /// # Errors
    /// `Conflict`, and from then on always.
    #[inline]
    pub(crate) fn check(&mut self) -> Result<()> {
        if self.buffers.is_torn || !self.is_whole()? {
            self.buffers.is_torn = true;
            return Err(torn());
        }
        Ok(())
    }

    /// The entry of a record that is about to be written.
    pub(crate) fn entry(&mut self, table: u32, hash: u64, key: &[u8]) -> Result<usize> {
        if let Some(place) = self.place_of(table, hash, key) {
            return Ok(place);
        }
        // It is written without being read: its bucket is needed at the commit.
        let member = &self.session.member;
        member.prefetch_bucket(member.table(table)?, hash);
        self.push(table, hash, key)
    }

    /// As [`WriteSet::put`], with what is to follow the value.
    #[inline]
    pub(crate) fn put_with_metadata(
        &mut self,
        place: usize,
        value: &[u8],
        labels: Metadata<'_>,
    ) -> Result<()> {
        // Refused labels leave nothing behind.
        let meta = self.buffers.keep_meta(labels)?;
        let value = self.buffers.keep(value)?;
        if let Some(entry) = self.buffers.entries.get_mut(place) {
            entry.write = Write::Put { value };
            entry.form = Form::Value;
            entry.meta = Some(meta);
        }
        self.buffers.changes += 1;
        Ok(())
    }

    /// True if nothing is to be written.
    #[inline]
    pub(crate) fn is_read_only(&self) -> bool {
        self.buffers.entries.iter().all(|entry| entry.write.is_none())
    }

    /// Buffers a whole new value.
    pub(crate) fn put(&mut self, place: usize, value: &[u8], meta: &[u8]) -> Result<()> {
        let value = self.buffers.keep(value)?;
        let meta = self.buffers.keep(meta)?;
        if let Some(entry) = self.buffers.entries.get_mut(place) {
            entry.write = Write::Put { value };
            entry.form = Form::Value;
            entry.meta = Some(meta);
        }
        self.buffers.changes += 1;
        Ok(())
    }

    /// Says what a record that was put becomes.
    pub(crate) fn set_form(&mut self, place: usize, form: Form) {
        if let Some(entry) = self.buffers.entries.get_mut(place) {
            entry.form = form;
        }
    }

    /// Buffers changes of blocks, over those that are buffered.
    pub(crate) fn patch(&mut self, place: usize, blocks: &[BlockChange<'_>]) -> Result<()> {
        // Also if it fails half way.
        self.buffers.changes += 1;
        let (is_anew, mut changes) = match self.buffers.entries.get_mut(place) {
            Some(entry) => match std::mem::take(&mut entry.write) {
                Write::Patch { is_anew, changes } => (is_anew, changes),
                Write::Delete => {
                    entry.meta = Some(Span::default());
                    (true, Vec::new())
                }
                Write::None | Write::Put { .. } | Write::Object { .. } => {
                    (false, Vec::with_capacity(blocks.len()))
                }
            },
            None => return Ok(()),
        };
        for change in blocks {
            let bytes = change.bytes.map(|bytes| self.buffers.keep(bytes)).transpose()?;
            let name = change.name.as_bytes();
            match changes.iter_mut().find(|(known, _)| self.buffers.bytes(*known) == name) {
                Some((_, known)) => *known = bytes,
                None => changes.push((self.buffers.keep(name)?, bytes)),
            }
        }
        if let Some(entry) = self.buffers.entries.get_mut(place) {
            entry.write = Write::Patch { is_anew, changes };
            entry.form = Form::Blocks;
        }
        Ok(())
    }

    pub(crate) fn set_meta(&mut self, place: usize, meta: &[u8]) -> Result<()> {
        let meta = self.buffers.keep(meta)?;
        if let Some(entry) = self.buffers.entries.get_mut(place) {
            entry.meta = Some(meta);
        }
        Ok(())
    }

    pub(crate) fn delete(&mut self, place: usize) {
        self.buffers.changes += 1;
        if let Some(entry) = self.buffers.entries.get_mut(place) {
            entry.write = Write::Delete;
            entry.meta = Some(Span::default());
        }
    }

    /// Commits what is buffered.
    ///
    /// # Errors
    /// `Conflict`, `Full`, `Stalled`, `Damaged`; nothing was changed then.
    pub(crate) fn commit(&mut self) -> Result<()> {
        if self.buffers.is_torn {
            return Err(torn());
        }
        if self.is_read_only() {
            return Ok(()); // All reads were so at the moment of the last.
        }
        // Before the first draft: a forked child has no arena of its own.
        self.session.member.check_usable()?;
        let done = match self.buffers.entries.len() {
            1 if self.buffers.plan.events.all.is_empty() => self.commit_one(),
            _ => self.commit_many(),
        };
        if done.is_err() {
            self.session.member.free_pending()?;
        }
        done
    }

    /// The path of a put: one record needs no intent.
    fn commit_one(&mut self) -> Result<()> {
        let draft = match self.change_of(0)? {
            RecordChange::Publish(draft) => Some(draft),
            RecordChange::Keep | RecordChange::Remove => None,
        };
        let Some(entry) = self.buffers.entries.first() else { return Ok(()) };
        let session = self.session;
        let table = session.member.table(entry.table)?;
        let (mut is_conflict, mut is_stale) = (false, false);
        let key = self.buffers.bytes(entry.key);
        let target = WriteTarget { hash: entry.hash, key, token: entry.seen };
        let changed = session.member.write_target(table, target, draft, |record| {
            let at = record.map_or(0, |cell| cell.at());
            is_conflict = entry.seen.is_some_and(|seen| seen.at != at);
            is_stale = session.member.namespace_flags(entry.table)? != entry.traits;
            Ok(match (is_conflict || is_stale, draft) {
                (true, _) => WriteDecision::Keep,
                (false, Some(_)) => WriteDecision::Publish,
                (false, None) => WriteDecision::Remove,
            })
        })?;
        if is_conflict || is_stale {
            return Err(self.conflict(0));
        }
        if let Some(entry) = self.buffers.entries.first_mut() {
            entry.after = changed.version_after;
        }
        Ok(())
    }

    fn commit_many(&mut self) -> Result<()> {
        let session = self.session;
        let forgotten = self.forgotten();
        for place in 0..self.buffers.entries.len() {
            let change =
                if forgotten == Some(place) { RecordChange::Keep } else { self.change_of(place)? };
            let Buffers { entries, plan, .. } = &mut *self.buffers;
            let Some(entry) = entries.get(place) else { break };
            let mut access = RecordAccess::new(entry.table, entry.hash, entry.key.ends());
            access.change = change;
            access.flags = entry.traits;
            access.expect = entry.seen.map_or(Expectation::Any, Expectation::Read);
            plan.accesses.push(access);
        }
        let Buffers { bytes, plan, .. } = &mut *self.buffers;
        match session.member.commit(plan, bytes)? {
            CommitOutcome::Committed => {
                let Buffers { entries, plan, .. } = &mut *self.buffers;
                for (entry, access) in entries.iter_mut().zip(&plan.accesses) {
                    entry.after = access.version_after;
                }
                Ok(())
            }
            CommitOutcome::Conflict(place) | CommitOutcome::FlagsChanged(place) => {
                Err(self.conflict(place))
            }
        }
    }

    /// The write that a planted fault leaves out: the last of several. `None` outside tests.
    #[inline]
    fn forgotten(&self) -> Option<usize> {
        if !nearstate_memory::crash::is_planted("forget-index") {
            return None;
        }
        let is_write = |entry: &Entry| !entry.write.is_none();
        let writes = self.buffers.entries.iter().filter(|entry| is_write(entry)).count();
        let last = self.buffers.entries.iter().rposition(is_write);
        last.filter(|_| writes > 1)
    }

    /// What memory is to do with a record; a new version is a draft already.
    fn change_of(&self, place: usize) -> Result<RecordChange> {
        let Some(entry) = self.buffers.entries.get(place) else { return Ok(RecordChange::Keep) };
        let session = self.session;
        let table = session.member.table(entry.table)?;
        let key = self.buffers.bytes(entry.key);
        let (hash, form, is_seen) = (entry.hash, entry.form, entry.seen.is_some());
        let spot = Spot { table, hash, key, form, is_seen };
        let meta = entry.meta.map(|meta| self.buffers.bytes(meta));
        match &entry.write {
            Write::None => Ok(RecordChange::Keep),
            Write::Delete => Ok(RecordChange::Remove),
            Write::Put { value } => {
                let value = self.buffers.bytes(*value);
                Ok(RecordChange::Publish(session.draft(
                    spot,
                    &[],
                    value,
                    meta.unwrap_or_default(),
                )?))
            }
            Write::Object { copy } => {
                let parts = session.object_parts(entry, *copy, &self.buffers.copies)?;
                Ok(RecordChange::Publish(session.draft_of_parts(spot, &parts)?))
            }
            Write::Patch { is_anew, changes } => {
                let seen = entry.seen.filter(|_| !is_anew);
                let old = seen.map(|seen| session.stored(seen)).transpose()?.flatten();
                let changes: Vec<BlockChange<'_>> = changes
                    .iter()
                    .map(|(name, bytes)| BlockChange {
                        name: str::from_utf8(self.buffers.bytes(*name)).unwrap_or_default(),
                        bytes: bytes.map(|bytes| self.buffers.bytes(bytes)),
                    })
                    .collect();
                let draft = session.patched(spot, old.map(|(cell, _)| cell), &changes, meta)?;
                Ok(RecordChange::Publish(draft))
            }
        }
    }

    #[cold]
    fn conflict(&self, place: usize) -> Error {
        let key = self.key(place);
        let table = self.buffers.entries.get(place).map(|entry| entry.table);
        let objects = self.session.hidden.objects.get();
        if let (true, Some(address)) = (table == objects, Address::of_key(key)) {
            return Error::Conflict { detail: format!("object {address}") };
        }
        let key = String::from_utf8_lossy(key).into_owned();
        Error::Conflict { detail: format!("record {key:?}") }
    }
}

#[cold]
fn torn() -> Error {
    Error::Conflict { detail: "what the transaction had read".to_owned() }
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

    /// What an object is after the commit, in parts: its private copy, and its bytes in the region.
    pub(crate) fn object_parts<'a>(
        &'a self,
        entry: &Entry,
        copy: usize,
        copies: &'a Copies,
    ) -> Result<Vec<&'a [u8]>> {
        let old = entry.seen.map(|seen| self.stored(seen)).transpose()?.flatten();
        copies.parts(copy, old.map_or(&[], |(_, value)| value))
    }

    /// A filled record cell whose value comes in parts: no copy of the whole is made first.
    fn draft_of_parts(
        &self,
        Spot { hash, key, .. }: Spot<'_>,
        value: &[&[u8]],
    ) -> Result<PendingCell> {
        let body = key.len() + value.iter().map(|part| part.len()).sum::<usize>();
        let head = CellHeader {
            kind: nearstate_memory::CellKind::Record,
            flags: 0,
            body: u32::try_from(body).map_err(|_| Error::ValueTooLarge { bytes: body })?,
            key: u16::try_from(key.len()).map_err(|_| Error::KeyTooLarge { bytes: key.len() })?,
            children: 0,
            hash,
        };
        let at = self.member.allocate_cell(&head)?;
        let mut crc = crc32fast::Hasher::new();
        let mut offset = 0;
        for part in [key].iter().chain(value) {
            crc.update(part);
            self.member.write_body(at, offset, part)?;
            offset += part.len() as u64;
        }
        Ok(PendingCell { at, body_crc: crc.finalize() })
    }
}
