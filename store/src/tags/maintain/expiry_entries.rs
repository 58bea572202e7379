//! The entries of the order of expiry that a write adds and removes.

use std::ops::Bound;

use nearstate_model::limits::{INDEX_KEY_BYTES_MAX, TRANSACTION_RECORDS_MAX};
use nearstate_model::{Result, invariant};

use crate::index::internal::expiry_root;
use crate::index::ordered::{Cursor, ReadMode};
use crate::index::scratch::IndexScratch;
use crate::txn::write_set::WriteSet;

impl WriteSet<'_> {
    /// Adds a record to the order of expiry.
    pub(crate) fn enter_expiry(&mut self, table: u32, key: &[u8], expires_ms: u64) -> Result<()> {
        let mut scratch = IndexScratch { record: key.to_vec(), ..IndexScratch::default() };
        self.order_expiry(table, expires_ms, &mut scratch)
    }

    /// Removes the entry of a record that expires no longer from the tree of this member. One of
    /// another member, of an earlier time, or of a transaction with many records stays there until
    /// a sweep comes to it.
    pub(super) fn leave_expiry(
        &mut self,
        table: u32,
        was_ms: u64,
        scratch: &mut IndexScratch,
    ) -> Result<()> {
        if self.buffers.entries.len() > TRANSACTION_RECORDS_MAX / 2 {
            return Ok(());
        }
        let root = expiry_root(u64::from(self.session.member.index()));
        scratch.key.clear();
        expiry_key(was_ms, table, &scratch.record, &mut scratch.key);
        let mut cursor = Cursor::default();
        let only = (Bound::Included(&scratch.key[..]), Bound::Included(&scratch.key[..]));
        cursor.begin(root, only, ReadMode::Untracked);
        // A tree that cannot be read does not hold up the write.
        if matches!(cursor.next(self), Ok(Some(_))) {
            scratch.ordered.remove(self, root, &scratch.key)?;
        }
        Ok(())
    }

    pub(super) fn order_expiry(
        &mut self,
        table: u32,
        expires_ms: u64,
        scratch: &mut IndexScratch,
    ) -> Result<()> {
        let root = expiry_root(u64::from(self.session.member.index()));
        invariant!(expires_ms != 0, "a record that never expires is not in the order of expiry");
        scratch.key.clear();
        expiry_key(expires_ms, table, &scratch.record, &mut scratch.key);
        let bytes = scratch.key.len();
        invariant!(bytes <= INDEX_KEY_BYTES_MAX, "a key of {bytes} bytes is ordered");
        scratch.ordered.insert(self, root, &scratch.key)?;
        let expiring = &self.session.internal.expiring;
        expiring.set(expiring.get().saturating_add(1));
        if expires_ms <= self.session.member.expiry_now_ms_coarse()? {
            self.session.internal.none_due_ms.set(0); // It is due already.
        }
        Ok(())
    }
}

/// The key of a record in the order of expiry.
pub(crate) fn expiry_key(expires_ms: u64, table: u32, record: &[u8], out: &mut Vec<u8>) {
    invariant!(out.is_empty(), "a key of the order of expiry starts with the time");
    out.extend_from_slice(&expires_ms.to_be_bytes());
    out.extend_from_slice(&table.to_be_bytes());
    out.extend_from_slice(record);
}
