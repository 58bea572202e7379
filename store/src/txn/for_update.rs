//! Read-modify-write of one record, as a procedure does with the context of a UE.

use nearstate_memory::layout::namespace_flags;
use nearstate_memory::{Cell, IndexTable, KnownSlot, PendingCell, ReadToken, WriteTarget};
use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::VALUE_BYTES_MAX;
use nearstate_model::{Error, Result, invariant};

use crate::record::layout::{BlockLayout, RecordBlocks};
use crate::record::meta::is_past_cell;
use crate::record::splice::Splice;
use crate::record::view::View;
use crate::record::{BlockChange, Form, Kind};
use crate::session::{KeyLookup, Namespace, Session, wrong_kind};
use crate::txn::patch::other_form;
use crate::txn::write::{
    CHANGES_NEED_TXN, Condition, FlagCheck, NEEDS_TXN, Outcome, SingleWrite, present,
};

/// A record that was read in order to change it. The change is made only if the record has not
/// changed since, as with [`Condition::Version`], and needs no second search. The record is not
/// locked: if another session changes it, this change is refused. So is a second change through the
/// same object. It holds a pin, as a [`View`] does, so keep it short.
///
/// ```
/// use nearstate_store::{BlockLayout, Kind, Outcome, Region, Schema};
/// # use nearstate_store::{BlockChange, Condition, CreateOptions};
/// # fn main() -> nearstate_store::Result<()> {
/// # let dir = tempfile::tempdir().expect("a folder");
/// # let region = Region::create(&dir.path().join("amf"), &CreateOptions::default())?;
/// # let session = region.session()?;
/// # let ue = session.namespace("ue", &Schema { kind: Kind::Blocks, ..Schema::default() })?;
/// # let blocks = [BlockChange { name: "handovers", bytes: Some(&[0]) }];
/// # session.patch(ue, b"imsi-262011234567890", &blocks, Condition::Always)?;
/// const HANDOVERS: usize = 1;
/// let names = BlockLayout::new(&["profile", "handovers"])?; // once for each session
///
/// let outcome = loop {
///     let Some(context) = session.get_for_update(ue, b"imsi-262011234567890")? else {
///         break None;
///     };
///     let mut count = 0;
///     context.blocks_of(&names, |index| index == HANDOVERS, |_, bytes| {
///         count = bytes.first().copied().unwrap_or(0);
///     });
///     match context.patch(&names, &[(HANDOVERS, &[count + 1])])? {
///         Outcome::Done { version } => break Some(version),
///         Outcome::Refused { .. } => {} // another session has changed the record: read again
///     }
/// };
/// assert_eq!(outcome, Some(2));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RecordForUpdate<'s> {
    session: &'s Session,
    namespace: Namespace,
    table: &'s IndexTable,
    view: View<'s>,
    cell: Cell<'s>,
    key: &'s [u8],
    hash: u64,
    seen: ReadToken,
    /// The number of the layout of its blocks; 0: not known yet.
    layout: std::cell::Cell<u64>,
}

impl Session {
    /// Reads a record in order to change it; `None` if it does not exist.
    ///
    /// Cost and ordering: as [`Session::get`]. After an update that a full region has refused it
    /// first makes room, so that an update that is repeated succeeds if records can be moved, or
    /// have expired: some ten milliseconds, and at most 100 ms more for readers.
    ///
    /// # Errors
    /// As [`Session::get`].
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "the path of every procedure: its result would be returned through memory"
    )]
    pub fn get_for_update(
        &self,
        namespace: Namespace,
        key: &[u8],
    ) -> Result<Option<RecordForUpdate<'_>>> {
        self.prepare_update(namespace)?;
        self.read_for_update(namespace, key)
    }

    /// Before a record is read for an update.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    pub(crate) fn prepare_update(&self, namespace: Namespace) -> Result<()> {
        if namespace.kind == Kind::Counters {
            return Err(wrong_kind(Kind::Counters, "get the value", ""));
        }
        // The last update had a pin while it used the reserve of a full heap, or was refused it.
        self.member.return_lent_if_due();
        if self.internal.is_room_due.get() {
            self.make_room_for_update()?;
        }
        Ok(())
    }

    /// As [`Session::get_for_update`], after [`Session::prepare_update`].
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    pub(crate) fn read_for_update(
        &self,
        namespace: Namespace,
        key: &[u8],
    ) -> Result<Option<RecordForUpdate<'_>>> {
        let (table, hash) = (self.table(namespace)?, self.hash(key));
        let pin = self.member.pin()?;
        let found = self.member.lookup(table, hash, key)?;
        table.check_current(namespace.index)?;
        let Some((cell, value)) = found.record else { return Ok(None) };
        let value = if cell.has_meta() { View::current_value(cell, value)? } else { Some(value) };
        let Some(value) = value else { return Ok(None) };
        let view = View::new(pin, cell, value, namespace.kind);
        let (key, seen, layout) = (cell.key()?, found.token, std::cell::Cell::new(0));
        let session = self;
        Ok(Some(RecordForUpdate { session, namespace, table, view, cell, key, hash, seen, layout }))
    }
}

impl RecordForUpdate<'_> {
    /// The record that was read.
    #[inline]
    pub const fn view(&self) -> &View<'_> {
        &self.view
    }

    /// Calls `each` with the index of the name and the bytes of each block whose name is wanted, in
    /// any order.
    ///
    /// Complexity: one comparison of the head of the record's block table, if the record has the
    /// layout of the last record that was used with these names; otherwise as
    /// [`View::blocks_among`].
    #[inline]
    pub fn blocks_of(
        &self,
        names: &BlockLayout,
        wanted: impl Fn(usize) -> bool,
        each: impl FnMut(usize, &[u8]),
    ) {
        self.view.blocks_of_known(names, &self.layout, wanted, each);
    }

    #[inline]
    fn record_blocks(&self) -> RecordBlocks<'_, '_> {
        RecordBlocks { cell: self.cell, table: self.view.stored(), known: &self.layout }
    }

    /// Replaces the value if the record has not changed. Its tags and expiry are removed, as by
    /// [`Session::put`].
    ///
    /// # Errors
    /// As [`Session::put`].
    #[inline]
    pub fn put(&self, value: &[u8]) -> Result<Outcome> {
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::ValueTooLarge { bytes: value.len() });
        }
        if !self.namespace.kind.has(Form::Value) {
            return Err(wrong_kind(self.namespace.kind, "put a value", "patch its blocks"));
        }
        if let Some(flags) = FlagCheck::of_direct(self.place(), NEEDS_TXN, self.flags()?) {
            let before = self.session.last_position.get();
            let written = self.session.member.with_reserve(|| {
                let lookup = self.key_lookup(Form::Value);
                let draft = self.session.draft(lookup, &[], value, &[])?;
                if flags.log_mark == 0 {
                    self.publish::<false>(draft, flags)
                } else {
                    self.publish::<true>(draft, flags)
                }
            });
            let written = written.inspect_err(|error| self.session.note_refused_update(error))?;
            if let Some(outcome) = written {
                return self.session.when_replicated(before, outcome);
            }
        }
        self.put_in_txn(value)
    }

    /// Changes some blocks, given by the indices of their names, if the record has not changed. The
    /// other blocks, the tags and the expiry stay as they are.
    ///
    /// # Errors
    /// As [`Session::patch`]; `BadArgument`: an index without a name, or one index twice.
    #[inline]
    pub fn patch(&self, names: &BlockLayout, changes: &[(usize, &[u8])]) -> Result<Outcome> {
        check(names, changes)?;
        if self.view.form() != Form::Blocks {
            return Err(other_form(self.view.form()));
        }
        let flags = self.flags()?;
        if flags & (CHANGES_NEED_TXN | namespace_flags::LOGGED) == 0 {
            // Known here, so that nothing of the log is on the path of a plain update.
            let plain = FlagCheck::of_plain(self.place(), CHANGES_NEED_TXN);
            return match self.patch_checked::<false>(plain, names, changes)? {
                Some(outcome) => Ok(outcome),
                None => self.patch_in_txn(names, changes),
            };
        }
        self.patch_logged(flags, names, changes)
    }

    /// A patch in a namespace that is logged, or that needs a transaction.
    #[inline(never)]
    fn patch_logged(
        &self,
        flags: u64,
        names: &BlockLayout,
        changes: &[(usize, &[u8])],
    ) -> Result<Outcome> {
        invariant!(self.view.form() == Form::Blocks, "a value is patched");
        if let Some(flags) = FlagCheck::of_direct(self.place(), CHANGES_NEED_TXN, flags) {
            let before = self.session.last_position.get();
            if let Some(outcome) = self.patch_checked::<true>(flags, names, changes)? {
                return self.session.when_replicated(before, outcome);
            }
        }
        self.patch_in_txn(names, changes)
    }

    /// `None` if the write needs a transaction.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the two uses need different parts of it")]
    fn patch_checked<const IS_LOGGED: bool>(
        &self,
        flags: FlagCheck<'_>,
        names: &BlockLayout,
        changes: &[(usize, &[u8])],
    ) -> Result<Option<Outcome>> {
        if self.view.is_divided() {
            return Ok(None);
        }
        let written = self.session.member.with_reserve(|| {
            let lookup = self.key_lookup(Form::Blocks);
            let mut splice = Splice::default();
            let draft = if names.splice(self.record_blocks(), changes, &mut splice) {
                self.session.draft_spliced(lookup, self.cell, &splice, None)?
            } else {
                self.patched(lookup, names, changes)?
            };
            self.publish::<IS_LOGGED>(draft, flags)
        });
        written.inspect_err(|error| self.session.note_refused_update(error))
    }

    /// The draft of a patch that changes the layout of the record.
    #[cold]
    fn patched(
        &self,
        lookup: KeyLookup<'_>,
        names: &BlockLayout,
        changes: &[(usize, &[u8])],
    ) -> Result<PendingCell> {
        match self.session.patched(lookup, Some(self.cell), &by_names(names, changes), None) {
            Ok(draft) => Ok(draft),
            Err(error) => {
                self.session.member.free_pending()?;
                Err(error)
            }
        }
    }

    #[inline]
    fn flags(&self) -> Result<u64> {
        self.session.member.namespace_flags(self.namespace.index)
    }

    #[inline]
    const fn place(&self) -> (&IndexTable, u32) {
        (self.table, self.namespace.index)
    }

    #[inline]
    const fn key_lookup(&self, form: Form) -> KeyLookup<'_> {
        KeyLookup { table: self.table, hash: self.hash, key: self.key, form, is_seen: true }
    }

    /// Publishes a draft if the record has not changed; `None` if the write needs a transaction:
    /// the namespace needs them now, or an evacuation has moved the record.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "most uses know whether the write is logged")]
    fn publish<const IS_LOGGED: bool>(
        &self,
        draft: PendingCell,
        flags: FlagCheck<'_>,
    ) -> Result<Option<Outcome>> {
        invariant!(self.seen.at == self.cell.at(), "the token of a record names its cell");
        let target = WriteTarget::new(self.hash, self.key, KnownSlot::Read(self.seen));
        let mut current = None;
        let written =
            self.session.write_known::<IS_LOGGED>(flags, target, Some(draft), |record| {
                // The pin prevents reuse of the cell, so the same offset is the same version.
                let is_same = record.is_some_and(|cell| cell.at() == self.seen.at)
                    && !(self.cell.has_meta() && is_past_cell(self.cell)?);
                if !is_same {
                    current = present(record)?.map(|cell| cell.version());
                }
                Ok(is_same)
            })?;
        Ok(match written {
            SingleWrite::Made { version } => Some(Outcome::Done { version }),
            // An evacuation has moved the record to another cell: a transaction finds it.
            SingleWrite::Refused if current == Some(self.view.version()) => None,
            SingleWrite::Refused => Some(Outcome::Refused { current }),
            SingleWrite::Unsettled => None,
        })
    }

    #[cold]
    fn put_in_txn(&self, value: &[u8]) -> Result<Outcome> {
        let unchanged = Condition::Version(self.view.version());
        let done = self.session.put_if(self.namespace, self.key, value, unchanged);
        done.inspect_err(|error| self.session.note_refused_update(error))
    }

    #[cold]
    fn patch_in_txn(&self, names: &BlockLayout, changes: &[(usize, &[u8])]) -> Result<Outcome> {
        let unchanged = Condition::Version(self.view.version());
        let changes = by_names(names, changes);
        let done = self.session.patch(self.namespace, self.key, &changes, unchanged);
        done.inspect_err(|error| self.session.note_refused_update(error))
    }
}

/// The changes with names instead of indices.
fn by_names<'a>(names: &'a BlockLayout, changes: &[(usize, &'a [u8])]) -> Vec<BlockChange<'a>> {
    let by_name = |(index, bytes): &(usize, &'a [u8])| BlockChange {
        name: guaranteed(names.name(*index), "the change names a block of the layout"),
        bytes: Some(bytes),
    };
    changes.iter().map(by_name).collect()
}

#[inline]
fn check(names: &BlockLayout, changes: &[(usize, &[u8])]) -> Result<()> {
    for (number, (index, bytes)) in changes.iter().enumerate() {
        let is_twice = changes.iter().take(number).any(|(other, _)| other == index);
        if is_twice || names.name(*index).is_none() {
            return Err(bad_index(*index, is_twice));
        }
        if bytes.len() > VALUE_BYTES_MAX {
            return Err(Error::ValueTooLarge { bytes: bytes.len() });
        }
    }
    Ok(())
}

#[cold]
fn bad_index(index: usize, is_twice: bool) -> Error {
    let what = if is_twice { "is changed twice" } else { "has no name" };
    Error::BadArgument { detail: format!("the block with index {index} of the layout {what}") }
}
