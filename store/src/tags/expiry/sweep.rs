//! Removes entries of the order of expiry before their time, if their records expire no longer.

use std::ops::Bound;

use nearstate_model::{Error, Result, invariant};

use super::{BATCH, ExpiryEntry, Handled};
use crate::index::internal::EXPIRY_TREES;
use crate::index::ordered::Cursor;
use crate::record::meta::split;
use crate::session::Session;
use crate::tags::maintain::{expires_ms, expiry_key};
use crate::txn::write_set::WriteSet;

/// Entries at which a collection looks. A writer collects after sixteen entries of its own: twice
/// as many, so that the number of stale ones falls.
const SWEPT: usize = 32;

/// A share of stale entries below which the next sweep of a session waits longer.
const STALE_SHARE: usize = 8;

/// The most collections of a session between two sweeps: then they cost each write of a record with
/// an expiry time some 20 ns.
const PAUSE_MAX: u32 = 64;

impl Session {
    /// After a collection. A failure is none of the write or the collection.
    pub(super) fn sweep_if_due(&self) {
        let (left, pause) = self.internal.sweep_pause.get();
        if left != 0 {
            self.internal.sweep_pause.set((left - 1, pause));
            return;
        }
        let removed = self.sweep_entries(SWEPT).unwrap_or_default();
        let is_clean = removed * STALE_SHARE < SWEPT;
        let pause = if is_clean { (2 * pause).clamp(1, PAUSE_MAX) } else { 0 };
        self.internal.sweep_pause.set((pause, pause));
    }

    /// Looks at the next entries whose time has not come, of all trees in turn, and removes those
    /// that no record needs. Returns how many.
    ///
    /// Cost: that of reading as many records.
    ///
    /// # Errors
    /// `Damaged`, `Full`, `Stalled`, `System`, `Forked`.
    pub(super) fn sweep_entries(&self, looks: usize) -> Result<usize> {
        // No receipt is of the removal of an entry.
        let (last, owed) = (self.last_position.get(), self.owed_position.get());
        let removed = self.sweep_entries_now(looks);
        self.last_position.set(last);
        self.owed_position.set(owed);
        removed
    }

    fn sweep_entries_now(&self, looks: usize) -> Result<usize> {
        let (mut left, mut removed, mut trees) = (looks, 0, 0);
        let mut cursor = Cursor::default();
        let (mut tree, mut after) = self.internal.expiry_sweep.take();
        while left != 0 && trees < EXPIRY_TREES {
            let now = nearstate_memory::now_ms_coarse().saturating_add(1).to_be_bytes();
            let from = after.as_slice().max(&now);
            let range = (Bound::Excluded(from), Bound::Unbounded);
            let entries = self.entries_in((tree, &mut cursor), range, BATCH.min(left))?;
            let Some(last) = entries.last() else {
                (tree, trees) = ((tree + 1) % EXPIRY_TREES, trees + 1);
                after.clear();
                continue;
            };
            after.clone_from(&last.entry);
            left -= entries.len();
            for entry in &entries {
                if !self.is_stale((tree, &mut cursor), entry)? {
                    continue;
                }
                match self.handle_due(tree, entry, true) {
                    Ok(Handled::Outdated) => removed += 1,
                    // Another session has changed the record or the tree. The next sweep sees it.
                    Ok(Handled::Expired | Handled::Left) | Err(Error::Conflict { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        self.internal.expiry_sweep.replace((tree, after));
        Ok(removed)
    }

    /// True for an entry whose record does not exist, or expires never or earlier: the entry for
    /// that time is another one. If the record expires later, and the tree has an entry for that
    /// time too: the record was deleted and written again in between.
    fn is_stale(&self, (tree, cursor): (u64, &mut Cursor), entry: &ExpiryEntry) -> Result<bool> {
        if self.member.check_namespace(entry.namespace).is_err() {
            return Ok(true);
        }
        let hash = self.hash(&entry.key);
        let at_ms = entry.entry.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        invariant!(at_ms != 0, "an entry of the order of expiry has a time");
        let mut set = WriteSet::new(self)?;
        let expires = set.read(entry.namespace, hash, &entry.key).and_then(|(_, stored)| {
            let Some((cell, bytes)) = stored else { return Ok(0) };
            Ok(expires_ms(split(cell, bytes)?.1))
        });
        set.release_buffers();
        let expires = expires?;
        if expires <= at_ms {
            return Ok(expires != at_ms);
        }
        let mut key = Vec::with_capacity(entry.entry.len());
        expiry_key(expires, entry.namespace, &entry.key, &mut key);
        let only = (Bound::Included(&key[..]), Bound::Included(&key[..]));
        Ok(!self.entries_in((tree, cursor), only, 1)?.is_empty())
    }
}
