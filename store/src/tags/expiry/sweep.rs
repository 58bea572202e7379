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
        let removed = self.sweep_entries(SWEPT);
        let is_clean = removed * STALE_SHARE < SWEPT;
        let pause = if is_clean { (2 * pause).clamp(1, PAUSE_MAX) } else { 0 };
        self.internal.sweep_pause.set((pause, pause));
    }

    /// Looks at the next entries whose time has not come, of all trees in turn, and removes those
    /// that no record needs. Returns how many. A failure ends it behind the entry that has failed,
    /// and is found again by the check, or by the write that fails in the same way.
    ///
    /// Cost: that of reading as many records; a second if a stopped process has a lock.
    pub(super) fn sweep_entries(&self, looks: usize) -> usize {
        // No receipt is of the removal of an entry.
        let (last, owed) = (self.last_position.get(), self.owed_position.get());
        let (mut left, mut removed, mut trees) = (looks, 0, 0);
        let mut cursor = Cursor::default();
        let (mut tree, mut after) = self.internal.expiry_sweep.take();
        while left != 0 && trees < EXPIRY_TREES {
            let now = nearstate_memory::now_ms_coarse().saturating_add(1).to_be_bytes();
            let from = after.as_slice().max(&now);
            let range = (Bound::Excluded(from), Bound::Unbounded);
            // A tree that cannot be read is passed, as one that has no more entries.
            let entries = self.entries_in((tree, &mut cursor), range, BATCH.min(left));
            let entries = entries.unwrap_or_default();
            if entries.is_empty() {
                (tree, trees) = ((tree + 1) % EXPIRY_TREES, trees + 1);
                after.clear();
            }
            for entry in entries {
                left = left.saturating_sub(1);
                let handled = self.sweep_entry((tree, &mut cursor), &entry);
                after = entry.entry;
                let Ok(is_removed) = handled else {
                    left = 0;
                    break;
                };
                removed += usize::from(is_removed);
            }
        }
        self.internal.expiry_sweep.replace((tree, after));
        self.last_position.set(last);
        self.owed_position.set(owed);
        removed
    }

    /// Removes an entry if no record needs it. True if it was removed, and not moved.
    fn sweep_entry(&self, (tree, cursor): (u64, &mut Cursor), entry: &ExpiryEntry) -> Result<bool> {
        if !self.is_stale((tree, cursor), entry)? {
            return Ok(false);
        }
        match self.handle_due(tree, entry, true) {
            Ok(handled) => Ok(handled == Handled::Outdated),
            // Another session has changed the record or the tree. The next sweep sees it.
            Err(Error::Conflict { .. }) => Ok(false),
            Err(error) => Err(error),
        }
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
        // Before the next one begins, which then has its buffers.
        drop(set);
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
