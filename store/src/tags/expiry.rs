//! Collecting expired records. A collector deletes a record in a transaction that checks its expiry
//! time again, so a record expires once even if several processes collect.
//!
//! The order of expiry holds an entry for each record that ends, at or before its time. Putting a
//! record off leaves its entry where it is; the collector that meets it moves it on.

use std::ops::Bound;

use nearstate_memory::Corruption;
use nearstate_model::{Error, Result, invariant};

use crate::index::internal::{EXPIRY_TREES, expiry_root};
use crate::index::ordered::{Cursor, ReadMode};
use crate::record::meta::{is_past, split};
use crate::session::Session;
use crate::tags::maintain::{ends, expiry_key};
use crate::txn::write_set::WriteSet;

const CUT: Corruption = Corruption("an entry of the order of expiry is cut short");

/// Entries that one look into a tree takes out at the most.
const BATCH: usize = 64;

/// Commits that put a record with an end before their session collects. Some microseconds each time
/// are little beside what sixteen such commits cost.
const EXPIRING_MAX: u32 = 16;
const _: () = assert!(COLLECTED_MAX >= EXPIRING_MAX as usize, "more are collected than are put");
const _: () = assert!(BATCH > 0, "a look takes out entries");

/// Records that it collects then: twice as many as it has put, so that the due ones get fewer.
const COLLECTED_MAX: usize = 32;

/// What a collection came to ([`Session::collect_expired`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Records that were deleted because their time had passed.
    pub records: usize,
    /// True if there may be more.
    pub has_more: bool,
}

/// An entry of the order of expiry.
#[derive(Debug)]
struct ExpiryEntry {
    entry: Vec<u8>,
    namespace: u32,
    key: Vec<u8>,
}

impl Session {
    /// Deletes expired records with their tags, at most `limit`. Watches return one event for each,
    /// also if several processes collect. Reads do not return an expired record, so collecting only
    /// frees memory and sends events. Call it from time to time, in any process.
    ///
    /// Time is the machine's ([`now_ms_coarse`](crate::now_ms_coarse)). If it is set back, records
    /// that were not collected are there again; those that were stay gone.
    ///
    /// Complexity: a transaction for each record, and one for each that was put off since it was
    /// entered into the order: its entry is moved on, and counts towards `limit` as well. A
    /// failure of one record (a full stream) does not stop the others. It is returned at the end.
    ///
    /// # Errors
    /// `Full`, `Stalled`, `Damaged`, `Forked`.
    pub fn collect_expired(&self, limit: usize) -> Result<Collected> {
        let mut collected = Collected::default();
        let (mut left, mut failed) = (limit, None);
        let first = u64::from(self.member.index());
        for tree in first..first + EXPIRY_TREES {
            let mut after = Vec::new();
            loop {
                let due = self.due_entries(tree, &after, BATCH.min(left))?;
                let Some(last) = due.last() else { break };
                after.clone_from(&last.entry);
                invariant!(due.len() <= left, "{} entries of {left} are due", due.len());
                left -= due.len();
                for entry in &due {
                    match self.expire(tree, entry) {
                        Ok(is_ended) => collected.records += usize::from(is_ended),
                        // Another session deletes it, or this one fails: continue with the others.
                        Err(Error::Conflict { .. }) => collected.has_more = true,
                        // Its namespace was removed in this moment: the next collection finds that.
                        Err(Error::BadArgument { .. })
                            if self.member.check_namespace(entry.namespace).is_err() =>
                        {
                            collected.has_more = true;
                        }
                        Err(error) => failed = failed.or(Some(error)),
                    }
                }
            }
        }
        collected.has_more |= left == 0;
        failed.map_or(Ok(collected), Err)
    }

    /// The first entries of a tree after this one whose time has passed.
    fn due_entries(&self, tree: u64, after: &[u8], limit: usize) -> Result<Vec<ExpiryEntry>> {
        let now = nearstate_memory::now_ms_coarse().saturating_add(1).to_be_bytes();
        let mut set = WriteSet::new(self)?;
        let mut cursor = Cursor::default();
        let range = (Bound::Excluded(after), Bound::Excluded(&now[..]));
        cursor.begin(expiry_root(tree), range, ReadMode::Untracked);
        let mut due = Vec::new();
        while due.len() < limit {
            let entry = match cursor.next(&mut set) {
                Ok(Some(entry)) => entry,
                Ok(None) | Err(Error::Conflict { .. }) => break,
                Err(error) => return Err(error),
            };
            let (_, rest) = entry.split_first_chunk::<8>().ok_or(CUT)?;
            let (namespace, key) = rest.split_first_chunk::<4>().ok_or(CUT)?;
            due.push(ExpiryEntry {
                entry: entry.to_vec(),
                namespace: u32::from_be_bytes(*namespace),
                key: key.to_vec(),
            });
        }
        invariant!(due.len() <= limit, "{} entries, and {limit} at most", due.len());
        Ok(due)
    }

    /// One entry: its record is deleted if its time has passed, else the entry goes where it
    /// belongs. True if the record was deleted.
    fn expire(&self, tree: u64, due: &ExpiryEntry) -> Result<bool> {
        let mut set = WriteSet::new(self)?;
        let mut ordered = std::mem::take(&mut set.buffers.scratch.ordered);
        let root = expiry_root(tree);
        let is_there = ordered.remove(&mut set, root, &due.entry);
        let ended = is_there.and_then(|is_there| {
            if !is_there {
                return Ok(false); // Another session was faster.
            }
            if self.member.check_namespace(due.namespace).is_err() {
                return Ok(false); // Its namespace was removed, and the number is not used again.
            }
            let hash = self.hash(&due.key);
            let (place, stored) = set.read(due.namespace, hash, &due.key)?;
            let Some((cell, bytes)) = stored else { return Ok(false) };
            let (_, meta) = split(cell, bytes)?;
            if is_past(meta)? {
                set.delete(place);
                set.entry_mut(place).is_expiry = true;
                return Ok(true);
            }
            if ends(meta) != 0 {
                let mut key = Vec::with_capacity(due.entry.len());
                expiry_key(ends(meta), due.namespace, &due.key, &mut key);
                ordered.insert(&mut set, root, &key)?;
            }
            Ok(false)
        });
        set.buffers.scratch.ordered = ordered;
        let ended = ended?;
        set.index_all()?;
        set.notify_all()?;
        set.commit()?;
        Ok(ended)
    }

    /// Called after commits that put records with an expiry time: collects a few expired records.
    /// Writers thereby keep the region clean even if no other process collects.
    #[inline]
    pub(crate) fn collect_some(&self) {
        if self.internal.expiring.get() >= EXPIRING_MAX {
            self.collect_now();
        }
    }

    #[cold]
    fn collect_now(&self) {
        self.internal.expiring.set(0);
        // The caller's commit is done: what keeps the collection from its work is not its failure.
        let _ = self.collect_expired(COLLECTED_MAX);
    }
}
