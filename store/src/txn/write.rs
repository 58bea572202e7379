//! Putting and deleting records, with and without conditions.

use nearstate_memory::layout::namespace_flags;
use nearstate_memory::{Cell, CellHeader, FLAG_META, PendingCell, WriteDecision, WriteOutcome};
use nearstate_model::limits::VALUE_BYTES_MAX;
use nearstate_model::{Error, Result};

use crate::record::Form;
use crate::record::meta::{is_past_cell, split};
use crate::record::splice::Splice;
use crate::session::{Namespace, Session, Spot, check_key, wrong_kind};

/// What must hold of the present record for a change to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition<'a> {
    /// Nothing.
    Always,
    /// There is none.
    Absent,
    /// There is one.
    Present,
    /// It has this version.
    Version(u64),
    /// Its value is these bytes exactly, NULs included (SDL's setIf and removeIf).
    Value(&'a [u8]),
}

/// What became of a conditional change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was made: the record has this version now (or had it, if it was deleted).
    Done {
        /// The version.
        version: u64,
    },
    /// The condition did not hold, and nothing was changed.
    Refused {
        /// The present version, or `None` if there is no record.
        current: Option<u64>,
    },
}

impl Condition<'_> {
    /// Judges a record that a transaction has read: its version, if it is there, and its value, if
    /// it has that form.
    pub(crate) fn holds_of(&self, record: Option<(u64, Option<&[u8]>)>) -> bool {
        match (self, record) {
            (Condition::Always, _) | (Condition::Absent, None) | (Condition::Present, Some(_)) => {
                true
            }
            (Condition::Absent, Some(_))
            | (Condition::Present | Condition::Version(_) | Condition::Value(_), None) => false,
            (Condition::Version(version), Some((found, _))) => found == *version,
            (Condition::Value(bytes), Some((_, value))) => value == Some(*bytes),
        }
    }

    #[inline]
    pub(crate) fn holds(&self, record: Option<Cell<'_>>) -> Result<bool> {
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

impl Outcome {
    /// `current` is the version that was there if nothing was changed.
    pub(crate) fn of(changed: &WriteOutcome, current: Option<u64>) -> Self {
        match (changed.decision, changed.version_after.or(changed.version_before)) {
            (WriteDecision::Publish | WriteDecision::Remove, Some(version)) => {
                Self::Done { version }
            }
            _ => Self::Refused { current },
        }
    }
}

impl Session {
    /// Puts a record of a namespace whose writers have nothing to see to; `None` if they have.
    #[inline]
    pub(crate) fn put_plainly(
        &self,
        namespace: Namespace,
        key: &[u8],
        value: &[u8],
        condition: Condition<'_>,
    ) -> Result<Option<Outcome>> {
        check_key(key)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::ValueTooLarge { bytes: value.len() });
        }
        if !namespace.kind.has(Form::Value) {
            return Err(wrong_kind(namespace.kind, "put a value", "patch its blocks"));
        }
        if self.member.namespace_flags(namespace.index)? & NEEDS_TXN != 0 {
            return Ok(None);
        }
        let spot = self.spot(namespace, key)?;
        self.member.prefetch_bucket(spot.table, spot.hash);
        let draft = self.draft(spot, &[], value, &[])?;
        let (mut is_plain, mut current) = (true, None);
        let changed =
            self.member.write_record(spot.table, spot.hash, key, Some(draft), |record| {
                // Under the lock once more: whoever changes the traits passes it afterwards.
                is_plain = self.member.namespace_flags(namespace.index)? & NEEDS_TXN == 0;
                let is_wanted = is_plain && condition.holds(record)?;
                if !is_wanted {
                    current = present(record)?.map(|cell| cell.version());
                }
                Ok(if is_wanted { WriteDecision::Publish } else { WriteDecision::Keep })
            })?;
        Ok(is_plain.then(|| Outcome::of(&changed, current)))
    }

    /// A filled record cell: children, key, value, meta. The misses of the new cell, of the bucket
    /// and of the old record overlap with the checksum and the copy.
    #[inline]
    pub(crate) fn draft(
        &self,
        spot: Spot<'_>,
        children: &[u8],
        value: &[u8],
        meta: &[u8],
    ) -> Result<PendingCell> {
        let Spot { table, hash, key, is_seen, .. } = spot;
        let body = children.len() + key.len() + value.len() + meta.len();
        let at = self.member.allocate_cell(&head_of(
            spot,
            children.len() / 8,
            body,
            !meta.is_empty(),
        )?)?;
        let is_small = body <= BODY_SMALL;
        let mut crc = crc32fast::Hasher::new();
        if !is_small {
            for part in [children, key, value, meta] {
                crc.update(part);
            }
            if !is_seen {
                self.member.prefetch_record(table, hash, 1);
            }
        }
        let mut offset = 0;
        for part in [children, key, value, meta] {
            self.member.write_body(at, offset, part)?;
            offset += part.len() as u64;
        }
        if is_small {
            // Its few lines were asked for with the last cell of the class: one sum over all parts
            // costs less than one for each.
            crc.update(self.member.pending_body(at, offset)?);
        }
        Ok(PendingCell { at, body_crc: crc.finalize() })
    }

    /// As [`Session::draft`] of an old version with some bytes of its block table replaced: each is
    /// copied once, from cell to cell. `meta` is what follows the table; `None` keeps what there
    /// was.
    #[inline]
    pub(crate) fn draft_spliced(
        &self,
        spot: Spot<'_>,
        old: Cell<'_>,
        splice: &Splice<'_>,
        meta: Option<&[u8]>,
    ) -> Result<PendingCell> {
        let table_at = old.children_bytes()?.len() + spot.key.len();
        let (kept, new, has_meta) = match meta {
            None => (old.body()?, &[][..], old.has_meta()),
            Some(new) => {
                let table = split(old, old.value()?)?.0;
                let kept = old.body()?.get(..table_at + table.len()).unwrap_or_default();
                (kept, new, !new.is_empty())
            }
        };
        let body = splice.bytes_of(kept.len()) + new.len();
        let at = self.member.allocate_cell(&head_of(
            spot,
            old.children_bytes()?.len() / 8,
            body,
            has_meta,
        )?)?;
        let mut offset = 0;
        let mut write = |part: &[u8]| {
            if part.is_empty() {
                return Ok(());
            }
            let done = self.member.write_body(at, offset, part);
            offset += part.len() as u64;
            done
        };
        splice.pieces(kept, table_at, &mut write)?;
        write(new)?;
        for (size_at, size) in splice.sizes() {
            self.member.write_body(at, (table_at + size_at) as u64, &size)?;
        }
        // What was written is in the cache: one sum costs less than one for each piece. Most of it
        // came from the region anyway: whoever wrote there by mistake is in either sum.
        Ok(PendingCell {
            at,
            body_crc: crc32fast::hash(self.member.pending_body(at, body as u64)?),
        })
    }

    /// Deletes a record of a namespace whose writers have nothing to see to; `None` if they have.
    pub(crate) fn delete_plainly(
        &self,
        namespace: Namespace,
        key: &[u8],
        condition: Condition<'_>,
    ) -> Result<Option<Outcome>> {
        if !namespace.kind.has(Form::Value) && matches!(condition, Condition::Value(_)) {
            return Err(wrong_kind(namespace.kind, "compare a value", "compare its version"));
        }
        if self.member.namespace_flags(namespace.index)? & NEEDS_TXN != 0 {
            return Ok(None);
        }
        let table = self.table(namespace)?;
        let (mut is_plain, mut current) = (true, None);
        let changed = self.member.write_record(table, self.hash(key), key, None, |record| {
            is_plain = self.member.namespace_flags(namespace.index)? & NEEDS_TXN == 0;
            current = present(record)?.map(|cell| cell.version());
            let is_wanted = is_plain && current.is_some() && condition.holds(record)?;
            Ok(if is_wanted { WriteDecision::Remove } else { WriteDecision::Keep })
        })?;
        Ok(is_plain.then(|| Outcome::of(&changed, current)))
    }
}

/// The header of a record's cell with this body.
#[inline]
fn head_of(
    Spot { hash, key, form, .. }: Spot<'_>,
    children: usize,
    body: usize,
    has_meta: bool,
) -> Result<CellHeader> {
    Ok(CellHeader {
        kind: nearstate_memory::CellKind::Record,
        flags: form.flags() | if has_meta { FLAG_META } else { 0 },
        body: u32::try_from(body).map_err(|_| Error::ValueTooLarge { bytes: body })?,
        key: u16::try_from(key.len()).map_err(|_| Error::KeyTooLarge { bytes: key.len() })?,
        children: u16::try_from(children).map_err(|_| Error::TooManyBlocks { blocks: children })?,
        hash,
    })
}

/// Bodies up to this size are summed up after they were written: a record of an index, which has
/// two to five lines.
const BODY_SMALL: usize = 320;

/// What a plain write does not do: then it goes through a transaction.
pub(crate) const NEEDS_TXN: u64 = namespace_flags::TAGGED | TOLD;

/// Somebody is told of every change.
pub(crate) const TOLD: u64 = namespace_flags::WATCHED | namespace_flags::STREAMED;

/// The record, unless its time has passed.
#[inline]
pub(crate) fn present(record: Option<Cell<'_>>) -> Result<Option<Cell<'_>>> {
    match record {
        Some(cell) if cell.has_meta() && is_past_cell(cell)? => Ok(None),
        other => Ok(other),
    }
}
