//! Asking the processor for what is about to be read or written, so that the cache misses of
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

/// A record that is asked for.
#[derive(Clone, Copy)]
struct Aim {
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
        let mut aims = [None; BATCH];
        for (aim, (namespace, key)) in aims.iter_mut().zip(wanted) {
            *aim = Some(self.aim(*namespace, key, BATCH_LINES));
        }
        self.ask(&aims);
    }

    /// As [`Session::prefetch`], with what will be done; `None` are passed over. What is found by a
    /// tag costs as much as the first half of finding it. Its tags are known once this session has
    /// asked for any of them.
    #[inline]
    pub fn look_ahead(&self, wanted: &[Option<Prefetch<'_>>]) {
        let Ok(_held) = self.member.pin() else { return };
        // As long as the last one.
        let whole = (self.member.last_line() + 1).min(READ_LINES_MAX);
        let mut aims = [None; BATCH];
        let (mut posting, mut is_finding) = (Vec::new(), false);
        for (aim, wanted) in aims.iter_mut().zip(wanted) {
            *aim = match wanted {
                None => None,
                Some(Prefetch::Touch(namespace, key)) => {
                    Some(self.aim(*namespace, key, BATCH_LINES))
                }
                Some(Prefetch::Read(namespace, key)) => Some(self.aim(*namespace, key, whole)),
                Some(Prefetch::Find(namespace, tag, value)) => {
                    is_finding = true;
                    self.aim_at_posting(*namespace, tag, value, &mut posting)
                }
            };
        }
        self.ask(&aims);
        if is_finding {
            self.follow(wanted, &mut aims, whole);
        }
    }

    #[inline]
    fn aim(&self, namespace: Namespace, key: &[u8], lines: u64) -> Aim {
        Aim { table: namespace.index, hash: self.hash(key), lines }
    }

    /// The posting of a value, whose key is left in `key`.
    fn aim_at_posting(
        &self,
        namespace: Namespace,
        tag: &str,
        value: &[u8],
        key: &mut Vec<u8>,
    ) -> Option<Aim> {
        let tags = self.internal.tags.borrow();
        let (_, tags) = tags.get(&namespace.index)?;
        posting_key(namespace.index, tags.tag(tag)?.id, value, key);
        Some(Aim { table: self.internal.table.get()?, hash: self.hash(key), lines: BATCH_LINES })
    }

    /// The second half for those that are found by a tag: asks for the records that their postings
    /// lead to.
    fn follow(&self, wanted: &[Option<Prefetch<'_>>], aims: &mut [Option<Aim>; BATCH], lines: u64) {
        let mut key = Vec::new();
        for (aim, wanted) in aims.iter_mut().zip(wanted) {
            let Some(Prefetch::Find(namespace, tag, value)) = wanted else {
                *aim = None;
                continue;
            };
            let posting = self.aim_at_posting(*namespace, tag, value, &mut key);
            *aim = posting.and_then(|posting| {
                let table = self.member.table(posting.table).ok()?;
                let found = self.member.lookup_small(table, posting.hash, &key).ok()?.record;
                found.map(|(_, record)| self.aim(*namespace, record, lines))
            });
        }
        self.ask(aims);
    }

    #[inline]
    fn ask(&self, aims: &[Option<Aim>; BATCH]) {
        for Aim { table, hash, .. } in aims.iter().flatten() {
            if let Ok(table) = self.member.table(*table) {
                self.member.prefetch_bucket(table, *hash);
            }
        }
        for Aim { table, hash, lines } in aims.iter().flatten() {
            if let Ok(table) = self.member.table(*table) {
                self.member.prefetch_record(table, *hash, *lines);
            }
        }
    }
}
