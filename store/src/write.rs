//! Putting and deleting records, with and without conditions.

use nearstate_memory::{Cell, Changed, Draft, Head, Verdict};
use nearstate_model::limits::VALUE_BYTES_MAX;
use nearstate_model::{Error, Result};

use crate::record::Kind;
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
    #[inline]
    pub(crate) fn holds(&self, record: Option<Cell<'_>>) -> Result<bool> {
        Ok(match (self, record) {
            (Condition::Always, _) | (Condition::Absent, None) | (Condition::Present, Some(_)) => {
                true
            }
            (Condition::Absent, Some(_))
            | (Condition::Present | Condition::Version(_) | Condition::Value(_), None) => false,
            (Condition::Version(version), Some(cell)) => cell.version() == *version,
            (Condition::Value(bytes), Some(cell)) => cell.value()? == *bytes,
        })
    }
}

impl Outcome {
    pub(crate) fn of(changed: &Changed) -> Self {
        match (changed.verdict, changed.after.or(changed.before)) {
            (Verdict::Publish | Verdict::Remove, Some(version)) => Self::Done { version },
            _ => Self::Refused { current: changed.before },
        }
    }
}

impl Session {
    /// Puts a record: its version. Every process sees it from the one store that publishes it on.
    ///
    /// Cost: a copy of the value and its checksum outside any lock; then the lock of the key's
    /// bucket for about 50 ns.
    ///
    /// # Errors
    /// `KeyTooLarge`, `ValueTooLarge`, `WrongKind`, `Full`, `Stalled`, `Damaged`, `Forked`; nothing
    /// was changed then.
    #[inline]
    pub fn put(&self, namespace: Namespace, key: &[u8], value: &[u8]) -> Result<u64> {
        let changed = self.put_with(namespace, key, value, Condition::Always)?;
        Ok(changed.after.unwrap_or(0))
    }

    /// Puts a record if a condition holds of the present one; judged and done in one step.
    ///
    /// # Errors
    /// As [`Session::put`].
    #[inline]
    pub fn put_if(
        &self,
        namespace: Namespace,
        key: &[u8],
        value: &[u8],
        condition: Condition<'_>,
    ) -> Result<Outcome> {
        self.put_with(namespace, key, value, condition).map(|changed| Outcome::of(&changed))
    }

    #[inline]
    fn put_with(
        &self,
        namespace: Namespace,
        key: &[u8],
        value: &[u8],
        condition: Condition<'_>,
    ) -> Result<Changed> {
        check_key(key)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::ValueTooLarge { bytes: value.len() });
        }
        if namespace.kind != Kind::Value {
            return Err(wrong_kind(namespace.kind, "put a value", "patch its blocks"));
        }
        self.member.usable()?;
        let spot = self.spot(namespace, key)?;
        self.member.prefetch_bucket(spot.table, spot.hash);
        let draft = self.draft(spot, &[], value)?;
        self.member.change(spot.table, spot.hash, key, Some(draft), |record| {
            Ok(if condition.holds(record)? { Verdict::Publish } else { Verdict::Leave })
        })
    }

    /// A filled record cell: children, key, value. The misses of the new cell, of the bucket and of
    /// the old record overlap with the checksum and the copy.
    #[inline]
    pub(crate) fn draft(
        &self,
        Spot { table, hash, key }: Spot<'_>,
        children: &[u8],
        value: &[u8],
    ) -> Result<Draft> {
        let body = children.len() + key.len() + value.len();
        let head = Head {
            kind: nearstate_memory::Kind::Record,
            flags: 0,
            body: u32::try_from(body).map_err(|_| Error::ValueTooLarge { bytes: body })?,
            key: u16::try_from(key.len()).map_err(|_| Error::KeyTooLarge { bytes: key.len() })?,
            children: u16::try_from(children.len() / 8)
                .map_err(|_| Error::TooManyBlocks { blocks: children.len() / 8 })?,
            hash,
        };
        let at = self.member.draft(&head)?;
        let mut crc = crc32fast::Hasher::new();
        for part in [children, key, value] {
            crc.update(part);
        }
        self.member.prefetch_record(table, hash, 1);
        let mut offset = 0;
        for part in [children, key, value] {
            self.member.write(at, offset, part)?;
            offset += part.len() as u64;
        }
        Ok(Draft { at, body_crc: crc.finalize() })
    }

    /// Deletes a record. False if there was none.
    ///
    /// # Errors
    /// `Stalled`, `Damaged`, `Forked`.
    #[inline]
    pub fn delete(&self, namespace: Namespace, key: &[u8]) -> Result<bool> {
        Ok(matches!(self.delete_if(namespace, key, Condition::Present)?, Outcome::Done { .. }))
    }

    /// Deletes a record if a condition holds of it; judged and done in one step.
    ///
    /// # Errors
    /// `WrongKind` for a value condition on named blocks; else as [`Session::delete`].
    pub fn delete_if(
        &self,
        namespace: Namespace,
        key: &[u8],
        condition: Condition<'_>,
    ) -> Result<Outcome> {
        if namespace.kind != Kind::Value && matches!(condition, Condition::Value(_)) {
            return Err(wrong_kind(namespace.kind, "compare a value", "compare its version"));
        }
        let table = self.table(namespace)?;
        let changed = self.member.change(table, self.hash(key), key, None, |record| {
            let is_there = record.is_some();
            Ok(if is_there && condition.holds(record)? { Verdict::Remove } else { Verdict::Leave })
        })?;
        Ok(Outcome::of(&changed))
    }
}
