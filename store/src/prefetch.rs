//! Prefetches cache lines that are read or written next, so that the cache misses of
//! records that come one after the other overlap. Changes nothing and promises nothing: each look
//! is a guess, which does not bind the read that follows.

use crate::index::internal::posting_key;
use crate::read::{BATCH, BATCH_LINES};
use crate::session::{Namespace, Session};

/// What is about to be done with a record.
#[derive(Clone, Copy, Debug)]
pub enum Prefetch<'a> {
    /// It is written, or asked about: no more than its beginning is touched.
    Touch(Namespace, &'a [u8]),
    /// It is read, the whole of it.
    Read(Namespace, &'a [u8]),
    /// It is looked for by a value of a unique tag, and read.
    Find(Namespace, &'a str, &'a [u8]),
}

/// The most lines of a record that are asked for: a kilobyte. What is longer comes by the
/// processor's own prefetch of a sequence.
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
    /// Asks for what reading or writing these records will touch: the beginning of each. Costs some
    /// tens of nanoseconds for each key. Keys beyond the first 16 are passed over: their lines
    /// would be gone again before they are needed.
    #[inline]
    pub fn prefetch(&self, wanted: &[(Namespace, &[u8])]) {
        let Ok(_held) = self.member.pin() else { return };
        let mut targets = [None; BATCH];
        for (target, (namespace, key)) in targets.iter_mut().zip(wanted) {
            *target = Some(self.target(*namespace, key, BATCH_LINES));
        }
        self.prefetch_targets(&targets);
    }

    /// As [`Session::prefetch`], with what will be done; `None` are passed over. What is found by a
    /// tag costs as much as the first half of finding it. Its tags are known once this session has
    /// asked for any of them.
    #[inline]
    pub fn prefetch_operations(&self, wanted: &[Option<Prefetch<'_>>]) {
        let Ok(_held) = self.member.pin() else { return };
        // As long as the last one.
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
            self.follow(wanted, &mut targets, whole);
        }
    }

    #[inline]
    fn target(&self, namespace: Namespace, key: &[u8], lines: u64) -> PrefetchTarget {
        PrefetchTarget { table: namespace.index, hash: self.hash(key), lines }
    }

    /// The posting of a value, whose key is left in `key`.
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

    /// The second half for those that are found by a tag: asks for the records that their postings
    /// lead to.
    fn follow(
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
