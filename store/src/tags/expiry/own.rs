//! Collection for a write to a namespace that has reached its limit: only its own records count.
//! The order of expiry has those of all namespaces, so the records of others that expired before
//! would all come first.

use nearstate_memory::layout::namespace_flags;
use nearstate_model::{Error, Result, invariant};

use super::{COLLECTED_FOR_ROOM, DueNamespace};
use crate::record::meta::{is_past, is_past_cell, split};
use crate::session::{Namespace, Session};
use crate::txn::write_set::WriteSet;

/// Buckets at which one collection looks: some five hundred records, 100 us. The next one continues
/// behind them.
const BUCKETS: u64 = 128;
const _: () = assert!(BUCKETS > 0, "a walk goes on");

impl Session {
    /// Deletes some expired records of a namespace. Returns how many. A failure ends it, and is
    /// none of the write.
    pub(super) fn collect_own(&self, name: &str) -> usize {
        let Ok(Some(namespace)) = self.known_namespace(name) else { return 0 };
        let is_expiring = self
            .member
            .namespace_flags(namespace.index)
            .is_ok_and(|flags| flags & namespace_flags::EXPIRING != 0);
        let pass = self.internal.expiry_pass.take();
        let due = self.due_namespace(namespace.index, &pass);
        self.internal.expiry_pass.replace(pass);
        if !is_expiring || due != DueNamespace::Writable {
            return 0;
        }
        let keys = self.past_keys(namespace).unwrap_or_default();
        let mut collected = 0;
        for key in keys {
            match self.delete_past(namespace, &key) {
                Ok(is_deleted) => collected += usize::from(is_deleted),
                // Another session changes it.
                Err(Error::Conflict { .. }) => {}
                Err(_) => break,
            }
        }
        collected
    }

    /// The keys of expired records in the next buckets of a namespace.
    fn past_keys(&self, namespace: Namespace) -> Result<Vec<Vec<u8>>> {
        let table = self.table(namespace)?;
        let all = self.member.bucket_count(table)?;
        let (walked, next) = self.internal.own_walk.get();
        let from = if walked == namespace.index && next < all { next } else { 0 };
        let (mut bucket, to) = (from, all.min(from + BUCKETS));
        let (mut keys, mut cells) = (Vec::new(), Vec::new());
        while bucket < to && keys.len() < COLLECTED_FOR_ROOM {
            let pin = self.member.pin()?;
            self.member.collect_bucket(table, bucket, all, &mut cells)?;
            for at in cells.drain(..) {
                let cell = self.member.cell_at(at)?;
                // A damaged record is found by the check.
                if is_past_cell(cell).unwrap_or(false) {
                    keys.push(cell.key()?.to_vec());
                }
            }
            drop(pin);
            bucket += 1;
        }
        invariant!(bucket <= to, "bucket {bucket} of {from} to {to}");
        self.internal.own_walk.set((namespace.index, bucket));
        Ok(keys)
    }

    /// Deletes a record if it has expired. Its entry in the order of expiry is removed if this
    /// session has put it, and otherwise when its time comes.
    fn delete_past(&self, namespace: Namespace, key: &[u8]) -> Result<bool> {
        let set = &mut WriteSet::new(self)?;
        let (index, stored) = set.read(namespace.index, self.hash(key), key)?;
        let Some((cell, bytes)) = stored else { return Ok(false) };
        let (_, meta) = split(cell, bytes)?;
        if !is_past(cell, meta)? {
            return Ok(false);
        }
        set.delete(index);
        set.entry_mut(index).is_expiry = true;
        set.index_all()?;
        set.notify_all()?;
        set.commit()?;
        Ok(true)
    }
}
