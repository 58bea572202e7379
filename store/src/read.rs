//! Reading a record, alone and in batches: the hot path of every reader.

use nearstate_memory::IndexTable;
use nearstate_memory::Probe;
use nearstate_model::{Error, Result};

use crate::record::Kind;
use crate::record::view::View;
use crate::session::{Namespace, Session, removed, wrong_kind};

/// Keys of a batch that are prefetched together: about the number of cache misses that a core can
/// have in flight.
pub(crate) const BATCH: usize = 16;

/// Cache lines of a record that a batch prefetches: the header with a short key, and the start of
/// the value.
pub(crate) const BATCH_LINES: u64 = 2;
const _: () = assert!(BATCH > 0 && BATCH_LINES > 0, "a batch asks for the lines of its records");

impl Session {
    /// The record of a key as a zero-copy view, or `None`.
    ///
    /// No lock, no system call, no store to a cache line that another member reads or writes
    /// (except the pin of this one, which others only read when they reclaim). Linearizable. Cost:
    /// at most two dependent cache misses.
    ///
    /// # Errors
    /// `WrongKind` in a namespace of counters, `Damaged`, `Forked`. A key that is too long has no
    /// record.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "the path of every read: its answer would travel through memory"
    )]
    pub fn get(&self, namespace: Namespace, key: &[u8]) -> Result<Option<View<'_>>> {
        if namespace.kind == Kind::Counters {
            return Err(no_value());
        }
        let table = self.table(namespace)?;
        let pin = self.member.pin()?;
        // In each case: a check in front of them would take the result through memory.
        match self.member.find(table, self.hash(key), key)? {
            Some((cell, value)) if !cell.has_meta() => {
                check_current(table, namespace)?;
                Ok(Some(View::new(pin, cell, value, namespace.kind)))
            }
            Some((cell, value)) => {
                check_current(table, namespace)?;
                View::with_meta(pin, cell, value, namespace.kind)
            }
            None => check_current(table, namespace).map(|()| None),
        }
    }

    /// Copies the value of a key into `out` (cleared first) and returns its version, or `None`.
    ///
    /// # Errors
    /// As [`Session::get`].
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "the path of every read: its answer would travel through memory"
    )]
    pub fn get_copy(
        &self,
        namespace: Namespace,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<u64>> {
        out.clear();
        let Some(view) = self.get(namespace, key)? else { return Ok(None) };
        out.extend_from_slice(view.bytes());
        // A lost page reads as zeros, which are not the value.
        self.member.check_not_truncated()?;
        Ok(Some(view.version()))
    }

    /// Reads many keys: the cache misses of 16 keys at a time overlap. Calls `each` with the number
    /// of the key and its record.
    ///
    /// # Errors
    /// As [`Session::get`].
    #[inline]
    pub fn get_batch(
        &self,
        namespace: Namespace,
        keys: &[&[u8]],
        mut each: impl FnMut(usize, Option<View<'_>>),
    ) -> Result<()> {
        if namespace.kind == Kind::Counters {
            return Err(no_value());
        }
        let table = self.table(namespace)?;
        let _held = self.member.pin()?;
        for (round, keys) in keys.chunks(BATCH).enumerate() {
            let mut hashes = [0_u64; BATCH];
            for (hash, key) in hashes.iter_mut().zip(keys) {
                *hash = self.hash(key);
                self.member.prefetch_bucket(table, *hash);
            }
            let mut probes = [Probe::NOWHERE; BATCH];
            for (probe, hash) in probes.iter_mut().zip(hashes).take(keys.len()) {
                *probe = self.member.probe(table, hash, BATCH_LINES);
            }
            // Before `each`, which may read other records.
            if !self.member.protects_probes() {
                probes = [Probe::NOWHERE; BATCH];
            }
            for (index, (key, (hash, probe))) in
                keys.iter().zip(hashes.into_iter().zip(probes)).enumerate()
            {
                let found = match self.member.find_probed(probe, hash, key)? {
                    None => self.member.find(table, hash, key)?,
                    found => found,
                };
                let view = match found {
                    Some((cell, value)) if !cell.has_meta() => {
                        check_current(table, namespace)?;
                        Some(View::new(self.member.pin()?, cell, value, namespace.kind))
                    }
                    Some((cell, value)) => {
                        check_current(table, namespace)?;
                        View::with_meta(self.member.pin()?, cell, value, namespace.kind)?
                    }
                    None => {
                        check_current(table, namespace)?;
                        None
                    }
                };
                debug_assert!(index < BATCH, "key {index} of a batch of {BATCH}");
                each(round * BATCH + index, view);
            }
        }
        Ok(())
    }
}

/// Checks that the namespace was not removed before the caller has read from its index.
#[inline(always)]
#[expect(clippy::inline_always, reason = "the path of every read")]
fn check_current(table: &IndexTable, namespace: Namespace) -> Result<()> {
    if table.is_current(namespace.index) { Ok(()) } else { Err(removed(namespace)) }
}

#[cold]
fn no_value() -> Error {
    wrong_kind(Kind::Counters, "get the value", "")
}
