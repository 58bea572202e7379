//! Writing one record: conditions, outcomes, drafts of record cells, and the one path by which a
//! single record is published or removed.

use nearstate_memory::layout::namespace_flags;
use nearstate_memory::{
    BucketPlace, Cell, CellHeader, FLAG_META, IndexTable, KnownSlot, LogRequest, LoggedOutcome,
    PendingCell, WriteDecision, WriteTarget, log_mark,
};
use nearstate_model::limits::{BLOCKS_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX};
use nearstate_model::{Error, Result, invariant};

use crate::record::collection::PARTS_MAX;
use crate::record::meta::{is_past_cell, split};
use crate::record::splice::Splice;
use crate::record::{CUT, Form};
use crate::session::{KeyLookup, Namespace, Session, check_key, wrong_kind};

/// What must hold of the current record for a change to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition<'a> {
    /// Nothing.
    Always,
    /// The record does not exist.
    Absent,
    /// The record exists.
    Present,
    /// The record has this version.
    Version(u64),
    /// The value is exactly these bytes, NULs included (SDL's setIf and removeIf).
    Value(&'a [u8]),
}

/// The result of a conditional change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The change was made.
    Done {
        /// The version of the record now, or its last version if it was deleted.
        version: u64,
    },
    /// The condition did not hold, and nothing was changed.
    Refused {
        /// The current version, or `None` if the record does not exist.
        current: Option<u64>,
    },
}

impl Condition<'_> {
    /// Checks a record that a transaction has read: its version, if it exists, and its value, if it
    /// has that form.
    pub(crate) fn holds_of(&self, record: Option<(u64, Option<&[u8]>)>) -> bool {
        match (self, record) {
            (Condition::Always, _) | (Condition::Absent, None) | (Condition::Present, Some(_)) => {
                true
            }
            (Condition::Absent, Some(_))
            | (Condition::Present | Condition::Version(_) | Condition::Value(_), None) => false,
            (Condition::Version(version), Some((current, _))) => current == *version,
            (Condition::Value(bytes), Some((_, value))) => value == Some(*bytes),
        }
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "most writes have no condition")]
    pub(crate) fn holds(&self, record: Option<Cell<'_>>) -> Result<bool> {
        if *self == Self::Always && !record.is_some_and(|cell| cell.has_meta()) {
            return Ok(true);
        }
        self.holds_now(record)
    }

    /// As [`Condition::holds`], if it has to look at the record.
    fn holds_now(&self, record: Option<Cell<'_>>) -> Result<bool> {
        Ok(match (self, present(record)?) {
            (Condition::Always, _) | (Condition::Absent, None) | (Condition::Present, Some(_)) => {
                true
            }
            (Condition::Absent, Some(_))
            | (Condition::Present | Condition::Version(_) | Condition::Value(_), None) => false,
            (Condition::Version(version), Some(cell)) => cell.version() == *version,
            (Condition::Value(bytes), Some(cell)) => {
                cell.form() == 0 && split(cell, cell.value()?)?.0 == *bytes
            }
        })
    }
}

/// The namespace of a single-record write, and what its flags must still be. A process that changes
/// the flags takes every lock afterwards: a writer that finds them unchanged under the lock of its
/// bucket ends before the change takes effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlagCheck<'t> {
    /// The index of the namespace.
    pub(crate) table: &'t IndexTable,
    /// The number of the namespace.
    pub(crate) namespace: u32,
    /// The flags that matter.
    pub(crate) mask: u64,
    /// Their values.
    pub(crate) expected: u64,
    /// What the log says about the write; 0 if the namespace is not logged.
    pub(crate) log_mark: u64,
}

impl<'t> FlagCheck<'t> {
    /// That of a write in a namespace that has none of the flags in `mask` and is not logged.
    #[inline]
    pub(crate) const fn of_plain((table, namespace): (&'t IndexTable, u32), mask: u64) -> Self {
        Self { table, namespace, mask: mask | namespace_flags::LOGGED, expected: 0, log_mark: 0 }
    }

    /// That of a write that needs a transaction if one of the flags in `mask` is set, given the
    /// flags of the namespace; `None` if it needs one.
    #[inline]
    pub(crate) fn of_direct(
        (table, namespace): (&'t IndexTable, u32),
        mask: u64,
        flags: u64,
    ) -> Option<Self> {
        if flags & mask != 0 {
            return None;
        }
        Some(if flags & namespace_flags::LOGGED == 0 {
            Self::of_plain((table, namespace), mask)
        } else {
            // The log depends on other flags too.
            let log_mark = log_mark(namespace, 0, false);
            Self { table, namespace, mask: u64::MAX, expected: flags, log_mark }
        })
    }
}

/// The result of [`Session::write_known`].
#[derive(Debug)]
pub(crate) enum SingleWrite {
    /// The change was made. The version of the new record, or of the removed one; 0 if there was
    /// none to remove.
    Made { version: u64 },
    /// The current record is not as expected. Nothing was changed.
    Refused,
    /// Nothing was changed, and nothing is known about the record: the flags of the namespace have
    /// changed, or the log has passed this writer over.
    Unsettled,
}

impl Session {
    /// Publishes a draft as the next version of a record, or removes the record if there is no
    /// draft. Every write of a single record ends here.
    ///
    /// Under the lock of the bucket the flags are checked once more, then `is_expected` sees the
    /// current record. A draft that is not published is released.
    ///
    /// # Errors
    /// `Stalled`, `Full`, `Damaged`; nothing was changed then.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call would cost 3 % of a put")]
    pub(crate) fn write_known<const IS_LOGGED: bool>(
        &self,
        flags: FlagCheck<'_>,
        target: WriteTarget<'_>,
        draft: Option<PendingCell>,
        is_expected: impl FnOnce(Option<Cell<'_>>) -> Result<bool>,
    ) -> Result<SingleWrite> {
        invariant!(flags.expected & !flags.mask == 0, "expected flags lie in their mask");
        debug_assert!(target.hash == self.hash(target.key), "a write goes to its key's bucket");
        let wanted = if draft.is_some() { WriteDecision::Publish } else { WriteDecision::Remove };
        let (mut refusal, mut is_fenced) = (None, false);
        debug_assert!(IS_LOGGED == (flags.log_mark != 0), "the caller knows whether it is logged");
        let changed = if IS_LOGGED {
            let log = LogRequest { mark: flags.log_mark, flags: flags.expected };
            let done = self.member.write_logged(flags.table, target, draft, log, |record| {
                is_fenced = self.member.is_fenced_off()?;
                let kept = Some(SingleWrite::Unsettled);
                refusal =
                    if is_fenced { kept } else { Self::refusal(&flags, record, is_expected)? };
                Ok(if refusal.is_none() { wanted } else { WriteDecision::Keep })
            })?;
            match done {
                LoggedOutcome::PassedOver => return Ok(SingleWrite::Unsettled),
                LoggedOutcome::Done { outcome, position } => {
                    if position != 0 {
                        self.last_position.set(position);
                        if flags.expected & namespace_flags::REPLICATED != 0 {
                            self.owed_position.set(position);
                        }
                    }
                    outcome
                }
            }
        } else {
            self.member.write_target(flags.table, target, draft, |record| {
                refusal = Self::refusal(&flags, record, is_expected)?;
                Ok(if refusal.is_none() { wanted } else { WriteDecision::Keep })
            })?
        };
        if is_fenced {
            return Err(self.fenced(flags.namespace)?);
        }
        if let Some(refusal) = refusal {
            return Ok(refusal);
        }
        // Removing a record that does not exist changes nothing, and has no version.
        invariant!(
            changed.version_after.is_some() == (wanted == WriteDecision::Publish),
            "a record has a version after the write if and only if it was published"
        );
        let before = changed.version_before.unwrap_or(0);
        let version = changed.version_after.unwrap_or(before);
        invariant!(
            version > before || wanted == WriteDecision::Remove || target.version_imposed == before,
            "a version rises with every change: {version} after {before}"
        );
        Ok(SingleWrite::Made { version })
    }

    /// As [`Session::write_known`], for a caller that does not know whether the write is logged.
    ///
    /// # Errors
    /// As [`Session::write_known`].
    pub(crate) fn write_single(
        &self,
        flags: FlagCheck<'_>,
        target: WriteTarget<'_>,
        draft: Option<PendingCell>,
        is_expected: impl FnOnce(Option<Cell<'_>>) -> Result<bool>,
    ) -> Result<SingleWrite> {
        if flags.log_mark == 0 {
            self.write_known::<false>(flags, target, draft, is_expected)
        } else {
            self.write_known::<true>(flags, target, draft, is_expected)
        }
    }

    /// Under the lock of the bucket: why a record is not written.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call would cost 3 % of a put")]
    fn refusal(
        flags: &FlagCheck<'_>,
        record: Option<Cell<'_>>,
        is_expected: impl FnOnce(Option<Cell<'_>>) -> Result<bool>,
    ) -> Result<Option<SingleWrite>> {
        flags.table.keep_namespace(flags.namespace)?;
        if flags.table.flags()? & flags.mask != flags.expected {
            return Ok(Some(SingleWrite::Unsettled));
        }
        Ok(if is_expected(record)? { None } else { Some(SingleWrite::Refused) })
    }

    /// Puts a record without a transaction; `None` if the namespace needs one. If the record was
    /// seen, `probed` is what is known about its slot.
    #[inline]
    pub(crate) fn put_direct(
        &self,
        namespace: Namespace,
        (lookup, probed): (KeyLookup<'_>, KnownSlot),
        value: &[u8],
        condition: Condition<'_>,
    ) -> Result<Option<Outcome>> {
        let key = lookup.key;
        check_key(key)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::ValueTooLarge { bytes: value.len() });
        }
        if !namespace.kind.has(Form::Value) {
            return Err(wrong_kind(namespace.kind, "put a value", "patch its blocks"));
        }
        let flags = lookup.table.flags()?;
        let place = (lookup.table, namespace.index);
        if flags & (NEEDS_TXN | namespace_flags::LOGGED) == 0 {
            // Known here, so that nothing of the log is on the path of a plain put.
            let plain = FlagCheck::of_plain(place, NEEDS_TXN);
            return self.put_checked::<false>(plain, (lookup, probed), value, condition);
        }
        self.put_logged((namespace, flags), (lookup, probed), value, condition)
    }

    /// A put in a namespace that is logged, or that needs a transaction.
    #[inline(never)]
    fn put_logged(
        &self,
        (namespace, flags): (Namespace, u64),
        known: (KeyLookup<'_>, KnownSlot),
        value: &[u8],
        condition: Condition<'_>,
    ) -> Result<Option<Outcome>> {
        match FlagCheck::of_direct((known.0.table, namespace.index), NEEDS_TXN, flags) {
            Some(flags) => self.put_checked::<true>(flags, known, value, condition),
            None => Ok(None),
        }
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the two uses need different parts of it")]
    fn put_checked<const IS_LOGGED: bool>(
        &self,
        flags: FlagCheck<'_>,
        (lookup, probed): (KeyLookup<'_>, KnownSlot),
        value: &[u8],
        condition: Condition<'_>,
    ) -> Result<Option<Outcome>> {
        let key = lookup.key;
        let (draft, known, place) = self.draft_pair(lookup, value)?;
        let known = if lookup.is_seen { probed } else { known };
        let target = WriteTarget { place, ..WriteTarget::new(lookup.hash, key, known) };
        let mut current = None;
        let written = self.write_known::<IS_LOGGED>(flags, target, Some(draft), |record| {
            let is_expected = condition.holds(record)?;
            if !is_expected {
                current = present(record)?.map(|cell| cell.version());
            }
            Ok(is_expected)
        })?;
        Ok(match written {
            SingleWrite::Made { version } => Some(Outcome::Done { version }),
            SingleWrite::Refused => {
                invariant!(condition != Condition::Always, "a put without a condition is refused");
                Some(Outcome::Refused { current })
            }
            SingleWrite::Unsettled => None,
        })
    }

    /// Allocates and fills a record cell: children, key, value, metadata. The misses of the new
    /// cell and of the bucket overlap with the copy, that of the old record with the checksum.
    #[inline]
    pub(crate) fn draft(
        &self,
        lookup: KeyLookup<'_>,
        children: &[u8],
        value: &[u8],
        meta: &[u8],
    ) -> Result<PendingCell> {
        let KeyLookup { table, hash, key, is_seen, .. } = lookup;
        invariant!(children.len().is_multiple_of(8), "children of {} bytes", children.len());
        invariant!(
            children.len() / 8 <= PARTS_MAX,
            "a record with {} children",
            children.len() / 8
        );
        debug_assert!(hash == self.hash(key), "a draft has the hash of its key");
        let body = children.len() + key.len() + value.len() + meta.len();
        let head = head_of(lookup, children.len() / 8, body, !meta.is_empty())?;
        // A small record belongs to an index, and its bucket was read already.
        let is_unseen = body > BODY_SMALL && !is_seen;
        self.member.fill_cell(&head, &[children, key, value, meta], is_unseen.then_some(table))
    }

    /// As [`Session::draft`] of a record without children and metadata. Of a record that was not
    /// read it first prefetches the bucket. Returns what is known about the slot of the key, and
    /// where its bucket is.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs 70 instructions, most of them moves")]
    pub(crate) fn draft_pair(
        &self,
        lookup: KeyLookup<'_>,
        value: &[u8],
    ) -> Result<(PendingCell, KnownSlot, BucketPlace)> {
        let KeyLookup { table, hash, key, is_seen, .. } = lookup;
        let place =
            if is_seen { BucketPlace::UNKNOWN } else { self.member.prefetch_place(table, hash) };
        let body = key.len() + value.len();
        let head = head_of(lookup, 0, body, false)?;
        let bucket = (!is_seen && body > BODY_SMALL).then(|| place.of(hash));
        let (draft, known) = self.member.fill_cell_pair(&head, (key, value), bucket)?;
        Ok((draft, known, place))
    }

    /// As [`Session::draft`] of a body that is in one piece: key, value and metadata.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs a sixth of it, for each record")]
    pub(crate) fn draft_whole(
        &self,
        lookup: KeyLookup<'_>,
        body: &[u8],
        has_meta: bool,
    ) -> Result<PendingCell> {
        let KeyLookup { table, key, is_seen, .. } = lookup;
        debug_assert!(body.starts_with(key), "a body without children begins with the key");
        let head = head_of(lookup, 0, body.len(), has_meta)?;
        let is_unseen = body.len() > BODY_SMALL && !is_seen;
        self.member.fill_cell_whole(&head, body, is_unseen.then_some(table))
    }

    /// As [`Session::draft`] of an old version with some bytes of its block table replaced: each
    /// byte is copied once, from cell to cell. `meta` follows the table; `None` keeps that of the
    /// old version.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs 40 instructions, most of them moves")]
    pub(crate) fn draft_spliced(
        &self,
        lookup: KeyLookup<'_>,
        old: Cell<'_>,
        splice: &Splice<'_>,
        meta: Option<&[u8]>,
    ) -> Result<PendingCell> {
        let table_at = old.children_bytes()?.len() + lookup.key.len();
        let (kept, new, has_meta) = match meta {
            None => (old.body()?, &[][..], old.has_meta()),
            Some(new) => {
                let table = split(old, old.value()?)?.0;
                let kept = old.body()?.get(..table_at + table.len());
                (kept.ok_or(CUT)?, new, !new.is_empty())
            }
        };
        let body = splice.bytes_of(kept.len()) + new.len();
        let head = head_of(lookup, old.children_bytes()?.len() / 8, body, has_meta)?;
        // The old version is read from shared memory: its sizes are checked, not asserted.
        self.member.fill_cell_with(&head, None, |writer| {
            splice.pieces(kept, table_at, |piece| writer.write(piece))?;
            writer.write(new)
        })
    }

    /// Deletes a record without a transaction; `None` if the namespace needs one.
    pub(crate) fn delete_direct(
        &self,
        namespace: Namespace,
        key: &[u8],
        condition: Condition<'_>,
    ) -> Result<Option<Outcome>> {
        if !namespace.kind.has(Form::Value) && matches!(condition, Condition::Value(_)) {
            return Err(wrong_kind(namespace.kind, "compare a value", "compare its version"));
        }
        let table = self.table(namespace)?;
        let flags = table.flags()?;
        let place = (table, namespace.index);
        let Some(flags) = FlagCheck::of_direct(place, NEEDS_TXN, flags) else { return Ok(None) };
        let target = WriteTarget::new(self.hash(key), key, KnownSlot::Unknown);
        let mut current = None;
        let written = self.write_single(flags, target, None, |record| {
            current = present(record)?.map(|cell| cell.version());
            Ok(current.is_some() && condition.holds(record)?)
        })?;
        Ok(match written {
            SingleWrite::Made { version } => Some(Outcome::Done { version }),
            SingleWrite::Refused => Some(Outcome::Refused { current }),
            SingleWrite::Unsettled => None,
        })
    }
}

/// The header of a record's cell with this body.
#[inline]
pub(crate) fn head_of(
    KeyLookup { table, hash, key, form, .. }: KeyLookup<'_>,
    children: usize,
    body: usize,
    has_meta: bool,
) -> Result<CellHeader> {
    Ok(CellHeader {
        kind: nearstate_memory::CellKind::Record,
        flags: form.flags() | if has_meta { FLAG_META } else { 0 },
        namespace: table.index(),
        body: u32::try_from(body).map_err(|_| Error::ValueTooLarge { bytes: body })?,
        key: u16::try_from(key.len()).map_err(|_| Error::KeyTooLarge { bytes: key.len() })?,
        children: u16::try_from(children).map_err(|_| Error::TooManyBlocks { blocks: children })?,
        hash,
    })
}

/// Bytes of the body of a record of an index, which has two to five lines.
const BODY_SMALL: usize = 320;

const _: () = assert!(KEY_BYTES_MAX <= u16::MAX as usize, "a cell counts its key in 16 bits");
const _: () = assert!(BLOCKS_MAX <= PARTS_MAX, "a cell counts its children in 13 bits");
const _: () = assert!(VALUE_BYTES_MAX <= u32::MAX as usize, "a cell counts its body in 32 bits");

/// Flags of a namespace in which every put and delete is a transaction.
pub(crate) const NEEDS_TXN: u64 = namespace_flags::TAGGED | CHANGES_NEED_TXN;

/// Flags of a namespace in which every change of a record is a transaction, also one that keeps its
/// tags: it is announced to watches, what the records take is counted, or it is refused because
/// another host owns them.
pub(crate) const CHANGES_NEED_TXN: u64 =
    namespace_flags::WATCHED | namespace_flags::LIMITED | namespace_flags::FOLLOWED;

/// The record, unless it has expired.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a call would cost 2 % of a put")]
pub(crate) fn present(record: Option<Cell<'_>>) -> Result<Option<Cell<'_>>> {
    match record {
        Some(cell) if cell.has_meta() && is_past_cell(cell)? => Ok(None),
        other => Ok(other),
    }
}
