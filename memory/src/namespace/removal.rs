//! Removes namespaces: steps D1 to D3 of `region/catalog_use.rs`.

use nearstate_model::{Error, Result, invariant};

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::index::bucket::{STAMP_REMOVABLE_MAX, stamp_of};
use crate::index::lookup::walk_chain;
use crate::layout::{NAMESPACE_NUMBER_BITS, SUPER_NAMESPACES_LOCK, entry_of};
use crate::member::Member;
use crate::member::arena::LockSlot;
use crate::namespace::{NamespaceEntry, removed};
use crate::region::catalog::{EntryState, raise_stamp_floor};
use crate::region::catalog_use::{
    self, EntryUse, GENERATION_MAX, namespace_removed, parse_use, use_word,
};
use crate::region::index_table::IndexTable;

/// The error for a namespace after which no number or too few versions would be left.
#[cold]
fn used_too_often(number: u32) -> Error {
    Error::BadArgument {
        detail: format!("namespace {number}: its entry or its keys were used too often: keep it"),
    }
}

/// What becomes of a namespace that has no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalDecision {
    /// It stays.
    Keep,
    /// It is removed.
    Remove {
        /// Records of its indexes may be left: the entry serves no other namespace until
        /// [`Member::finish_removal`].
        has_index: bool,
    },
}

impl Member {
    /// Removes a namespace that has no record. Its number is never used again. False if it has a
    /// record, is to stay or was written to meanwhile; nothing has changed then.
    ///
    /// `decide` gets the flags of the namespace when every writer that precedes the removal has
    /// ended. A later change of them cancels the removal, as a later write does. It is called with
    /// the namespaces lock held.
    ///
    /// Complexity: linear in the number of buckets, about 30 ns each.
    ///
    /// # Errors
    /// `BadArgument`: it was removed before, or its entry or its keys were used too often;
    /// `Stalled`, `Damaged`; those of `decide`.
    pub fn remove_namespace(
        &self,
        number: u32,
        decide: impl FnOnce(u64) -> Result<RemovalDecision>,
    ) -> Result<bool> {
        self.check_usable()?;
        let generation = number >> NAMESPACE_NUMBER_BITS;
        if generation >= GENERATION_MAX {
            return Err(used_too_often(number));
        }
        let table = self.table(number)?;
        self.operation(|| {
            let payload = self.acquire(SUPER_NAMESPACES_LOCK, LockSlot::Split)?;
            let done = self.remove_locked(table, number, decide);
            self.release(SUPER_NAMESPACES_LOCK, LockSlot::Split, payload)?;
            done
        })
    }

    fn remove_locked(
        &self,
        table: &IndexTable,
        number: u32,
        decide: impl FnOnce(u64) -> Result<RemovalDecision>,
    ) -> Result<bool> {
        invariant!(self.has_lock(LockSlot::Split), "a namespace is removed without a lock");
        let (word, generation) = (self.use_word(number)?, number >> NAMESPACE_NUMBER_BITS);
        self.names().complete(self.map())?;
        if !catalog_use::begin_removal(word, generation)? {
            return Err(namespace_removed(number));
        }
        crash_point!("removal.begun");
        let use_after = match self.stamp_if_empty(table) {
            Ok(Some(stamp)) if stamp > STAMP_REMOVABLE_MAX => Err(used_too_often(number)),
            // The flags under the mark: those of before D1 may have changed since.
            Ok(Some(stamp)) => match self.namespace_flags(number).and_then(decide) {
                Ok(RemovalDecision::Remove { has_index }) => {
                    let use_after = if has_index { EntryUse::Removed } else { EntryUse::Free };
                    let raised = raise_stamp_floor(self.map(), stamp).map_err(Error::from);
                    raised.map(|()| Some(use_after))
                }
                Ok(RemovalDecision::Keep) => Ok(None),
                Err(error) => Err(error),
            },
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        let Ok(Some(is)) = use_after else {
            catalog_use::cancel_removal(word, generation);
            return use_after.map(|_| false);
        };
        let commit = || Ok(catalog_use::commit_removal(word, generation, is));
        let (is_removed, change) = self.change_catalog(commit)?;
        if is_removed {
            crash_point!("removal.committed");
            self.record_removal(number, is, change);
        }
        Ok(is_removed)
    }

    /// Records in this process's table of names how the entry of a removed namespace is used.
    fn record_removal(&self, number: u32, is: EntryUse, change: (u64, u64)) {
        invariant!(matches!(is, EntryUse::Free | EntryUse::Removed), "a removed entry is {is:?}");
        let (index, next) = (entry_of(number), (number >> NAMESPACE_NUMBER_BITS) + 1);
        invariant!(next <= GENERATION_MAX, "entry {index} is used {next} times");
        let state = match is {
            EntryUse::Free => EntryState::Free(next),
            EntryUse::Live | EntryUse::Leaving | EntryUse::Removed => EntryState::Removed(next),
        };
        self.names().record(index, state, (&[], 0), change);
    }

    /// The highest stamp of an index that has no entry; `None` if it has one. Passes each bucket's
    /// lock. A split moves entries only to a bucket with a higher number, which is visited later.
    fn stamp_if_empty(&self, table: &IndexTable) -> Result<Option<u64>> {
        invariant!(self.has_lock(LockSlot::Split), "a namespace is walked for its removal");
        let (mut bucket, mut stamp) = (0, 0);
        while bucket < table.refresh(self.map())? {
            let at = table.bucket_at(self.map(), bucket)?;
            let payload = self.acquire(at, LockSlot::Bucket)?;
            let mut has_entry = false;
            let walked = walk_chain(self.map(), at, |_, entry| {
                has_entry = entry != 0;
                Ok(!has_entry)
            });
            self.release(at, LockSlot::Bucket, payload)?;
            crash_point!("removal.walked");
            walked?;
            if has_entry {
                return Ok(None);
            }
            stamp = stamp.max(stamp_of(payload));
            bucket += 1;
        }
        Ok(Some(stamp))
    }

    /// The numbers of removed namespaces that may have left records in indexes.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn unfinished_removals(&self) -> Result<Vec<u32>> {
        self.check_usable()?;
        let mut numbers = Vec::new();
        for index in removed(self.map())? {
            let (generation, is) = parse_use(self.use_word(index)?.load(Ordering::Acquire))?;
            if is == EntryUse::Removed && generation > 0 {
                numbers.push((generation - 1) << NAMESPACE_NUMBER_BITS | index);
            }
        }
        Ok(numbers)
    }

    /// After the records of a removed namespace's indexes were removed: the entry can serve the
    /// next namespace.
    ///
    /// # Errors
    /// `Stalled`, `Damaged`.
    pub fn finish_removal(&self, number: u32) -> Result<()> {
        self.check_usable()?;
        let next = (number >> NAMESPACE_NUMBER_BITS) + 1;
        let (seen, free) = (use_word(next, EntryUse::Removed), use_word(next, EntryUse::Free));
        let word = self.use_word(number)?;
        let finish = || {
            let swapped = word.compare_exchange(seen, free, Ordering::AcqRel, Ordering::Acquire);
            // False: another session was faster.
            Ok(swapped.is_ok())
        };
        self.operation(|| {
            let payload = self.acquire(SUPER_NAMESPACES_LOCK, LockSlot::Split)?;
            let done = self.names().complete(self.map());
            let done = done.map_err(Error::from).and_then(|()| self.change_catalog(finish));
            self.release(SUPER_NAMESPACES_LOCK, LockSlot::Split, payload)?;
            let (is_finished, change) = done?;
            crash_point!("removal.finished");
            if is_finished {
                self.record_removal(number, EntryUse::Free, change);
            }
            Ok(())
        })
    }

    /// All namespaces, for a search for empty ones. It begins behind the last one that a session of
    /// this process has removed so: a namespace that was created just now comes last.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn removal_candidates(&self) -> Result<Vec<NamespaceEntry>> {
        let cursor = self.shared().removal_cursor.load(Ordering::Relaxed);
        let mut all = self.namespaces()?;
        invariant!(
            all.is_sorted_by(|one, next| one.entry() < next.entry()),
            "namespaces are listed in the order of their entries"
        );
        let first = all.partition_point(|entry| u64::from(entry.entry()) < cursor);
        all.rotate_left(first);
        Ok(all)
    }

    /// The next search for empty namespaces begins behind this one.
    pub fn set_removal_cursor(&self, number: u32) {
        let next = u64::from(entry_of(number)) + 1;
        self.shared().removal_cursor.store(next, Ordering::Relaxed);
    }
}
