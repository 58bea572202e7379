//! Prefetches of the cache lines of records that are read or written next, so that their cache
//! misses overlap. A prefetch is a hint: it has no effect on the results of later operations.

use crate::index::internal::posting_key;
use crate::read::{BATCH, BATCH_LINES};
use crate::session::{Namespace, Session};

/// The next operation on a record.
#[derive(Clone, Copy, Debug)]
pub enum Prefetch<'a> {
    /// A write, or a test for existence: only the start of the record is needed.
    Touch(Namespace, &'a [u8]),
    /// A read of the whole record.
    Read(Namespace, &'a [u8]),
    /// A find by a value of a unique tag, and a read of the record.
    Find(Namespace, &'a str, &'a [u8]),
}

/// The largest number of lines of a record that are prefetched: a kilobyte. The hardware prefetches
/// the rest of a longer record.
const READ_LINES_MAX: u64 = 17;
const _: () = assert!(READ_LINES_MAX >= BATCH_LINES, "a whole record is no less than its start");

/// A record that is prefetched.
#[derive(Clone, Copy)]
struct PrefetchTarget {
    table: u32,
    hash: u64,
    lines: u64,
}

impl Session {
    /// Prefetches the start of each record, for reads or writes. Costs some tens of nanoseconds per
    /// key. Keys beyond the first 16 are ignored: their lines would be evicted before their use.
    #[inline]
    pub fn prefetch(&self, wanted: &[(Namespace, &[u8])]) {
        let Ok(_held) = self.member.pin() else { return };
        let mut targets = [None; BATCH];
        for (target, (namespace, key)) in targets.iter_mut().zip(wanted) {
            *target = Some(self.target(*namespace, key, BATCH_LINES));
        }
        self.prefetch_targets(&targets);
    }

    /// As [`Session::prefetch`], for these operations; `None` are ignored. A prefetch for a find
    /// costs as much as the first half of the find. It has an effect only after this session has
    /// loaded the tags of the namespace.
    pub fn prefetch_operations(&self, wanted: &[Option<Prefetch<'_>>]) {
        let Ok(_held) = self.member.pin() else { return };
        // The length of the last record that was read is the best guess.
        let whole = (self.member.last_line() + 1).min(READ_LINES_MAX);
        let mut targets = [None; BATCH];
        let (mut posting, mut is_finding) = (Vec::new(), false);
        for (target, wanted) in targets.iter_mut().zip(wanted) {
            *target = match wanted {
                None => None,
                Some(Prefetch::Touch(namespace, key)) => {
                    Some(self.target(*namespace, key, BATCH_LINES))
                }
                Some(Prefetch::Read(namespace, key)) => Some(self.target(*namespace, key, whole)),
                Some(Prefetch::Find(namespace, tag, value)) => {
                    is_finding = true;
                    self.target_of_posting(*namespace, tag, value, &mut posting)
                }
            };
        }
        self.prefetch_targets(&targets);
        if is_finding {
            self.prefetch_found(wanted, &mut targets, whole);
        }
    }

    #[inline]
    fn target(&self, namespace: Namespace, key: &[u8], lines: u64) -> PrefetchTarget {
        PrefetchTarget { table: namespace.index, hash: self.hash(key), lines }
    }

    /// The posting of a value. Writes its key to `key`.
    fn target_of_posting(
        &self,
        namespace: Namespace,
        tag: &str,
        value: &[u8],
        key: &mut Vec<u8>,
    ) -> Option<PrefetchTarget> {
        let tags = self.internal.tags.borrow();
        let (_, tags) = tags.get(&namespace.index)?;
        posting_key(namespace.index, tags.tag(tag)?.id, value, key);
        Some(PrefetchTarget {
            table: self.internal.table.get()?,
            hash: self.hash(key),
            lines: BATCH_LINES,
        })
    }

    /// Prefetches the records to which the postings of finds lead.
    fn prefetch_found(
        &self,
        wanted: &[Option<Prefetch<'_>>],
        targets: &mut [Option<PrefetchTarget>; BATCH],
        lines: u64,
    ) {
        let mut key = Vec::new();
        for (target, wanted) in targets.iter_mut().zip(wanted) {
            let Some(Prefetch::Find(namespace, tag, value)) = wanted else {
                *target = None;
                continue;
            };
            let posting = self.target_of_posting(*namespace, tag, value, &mut key);
            *target = posting.and_then(|posting| {
                let table = self.member.table(posting.table).ok()?;
                let found = self.member.lookup_small(table, posting.hash, &key).ok()?.record;
                found.map(|(_, record)| self.target(*namespace, record, lines))
            });
        }
        self.prefetch_targets(targets);
    }

    #[inline]
    fn prefetch_targets(&self, targets: &[Option<PrefetchTarget>; BATCH]) {
        for PrefetchTarget { table, hash, .. } in targets.iter().flatten() {
            if let Ok(table) = self.member.table(*table) {
                self.member.prefetch_bucket(table, *hash);
            }
        }
        for PrefetchTarget { table, hash, lines } in targets.iter().flatten() {
            if let Ok(table) = self.member.table(*table) {
                self.member.prefetch_record(table, *hash, *lines);
            }
        }
    }
}
