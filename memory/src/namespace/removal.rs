//! Removes namespaces: steps D1 to D3 of `region/catalog_use.rs`.

use nearstate_model::{Error, Result, invariant};

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::index::bucket::{
    GENERATION_SHIFT, STAMP_REMOVABLE_MAX, is_intent, is_link, load, stamp_of,
};
use crate::index::lookup::walk_chain;
use crate::layout::{Corruption, NAMESPACE_NUMBER_BITS, SUPER_NAMESPACES_LOCK, entry_of};
use crate::member::Member;
use crate::member::arena::LockSlot;
use crate::namespace::{NamespaceEntry, removed};
use crate::region::catalog::{EntryState, raise_stamp_floor, stamp_floor};
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
        if self.has_entry(table)? {
            table.check_current(number)?;
            return Ok(false);
        }
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
            Ok(Some(stamp)) if !self.is_removable(stamp)? => Err(used_too_often(number)),
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

    /// True if the versions of new namespaces may begin behind this stamp. Those of the generation
    /// of the last promotion do so anyway.
    fn is_removable(&self, stamp: u64) -> Result<bool, Corruption> {
        let floor = stamp_floor(self.map())?;
        Ok(stamp <= STAMP_REMOVABLE_MAX || stamp >> GENERATION_SHIFT <= floor >> GENERATION_SHIFT)
    }

    /// True if a namespace can never be removed: no number, or too few versions, would be left.
    ///
    /// Complexity: linear in the number of buckets.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn is_used_too_often(&self, number: u32) -> Result<bool> {
        let is_last = number >> NAMESPACE_NUMBER_BITS >= GENERATION_MAX;
        Ok(is_last || !self.is_removable(self.highest_stamp(self.table(number)?)?)?)
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
        self.names().record(self.map(), index, state, (&[], 0), change);
    }

    /// True if a bucket's own line has an entry, found without a lock: then no process has to wait
    /// for a walk. An intent does not count, because its member may be dead.
    fn has_entry(&self, table: &IndexTable) -> Result<bool> {
        let mut bucket = 0;
        while bucket < table.refresh(self.map())? {
            let line = self.map().line_at(table.bucket_at(self.map(), bucket)?)?;
            let mut words = line.iter().skip(1).map(load);
            if words.any(|word| word != 0 && !is_link(word) && !is_intent(word)) {
                return Ok(true);
            }
            bucket += 1;
        }
        Ok(false)
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

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{TestRegionPath, put_key, remove_key};
    use crate::region::file::{CreateOptions, Region};

    /// Records that make an index grow.
    const RECORDS: u64 = 1000;

    /// A namespace whose index has grown, with one record or with none.
    fn grown(member: &Member, name: &[u8], is_empty: bool) -> u32 {
        let (number, _) = member.open_namespace(name, 1).unwrap();
        let table = member.table(number).unwrap();
        for key in 0..RECORDS {
            put_key(member, table, &key.to_le_bytes()).unwrap();
        }
        for key in u64::from(!is_empty)..RECORDS {
            remove_key(member, table, &key.to_le_bytes()).unwrap();
        }
        number
    }

    fn remove(member: &Member, number: u32) -> bool {
        let removed = RemovalDecision::Remove { has_index: false };
        member.remove_namespace(number, |_| Ok(removed)).unwrap()
    }

    #[test]
    fn a_creation_takes_the_free_entry_with_the_fewest_buckets() {
        let path = TestRegionPath::new("fewest-buckets");
        let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
        let other = Region::attach(path.path()).unwrap();
        let [one, two] = [&region, &other].map(|region| region.member().unwrap());
        let large = grown(&one, b"large", true);
        let (small, _) = one.open_namespace(b"small", 1).unwrap();
        assert!(remove(&one, large) && remove(&one, small));
        // As the process that has removed them knows it, and as another one reads it.
        let (third, _) = one.open_namespace(b"third", 1).unwrap();
        assert_eq!(entry_of(third), small);
        assert!(remove(&one, third));
        assert_eq!(entry_of(two.open_namespace(b"fourth", 1).unwrap().0), small);
        assert_eq!(entry_of(two.open_namespace(b"fifth", 1).unwrap().0), large);
    }

    #[test]
    fn stamps_are_raised_and_records_are_found_without_the_namespaces_lock() {
        let path = TestRegionPath::new("unlocked-walks");
        let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
        let [member, holder] = [(), ()].map(|()| region.member().unwrap());
        let used = grown(&member, b"used", false);
        let (free, _) = member.open_namespace(b"free", 1).unwrap();
        let stamped = grown(&member, b"stamped", true);
        assert!(remove(&member, free) && remove(&member, stamped));
        let table = member.shared_table(free).unwrap();
        let is_low = || {
            let floor = stamp_floor(member.map()).unwrap();
            (0..table.buckets()).any(|bucket| {
                let at = table.bucket_at(member.map(), bucket).unwrap();
                stamp_of(member.map().word(at).unwrap().load(Ordering::Relaxed)) < floor
            })
        };
        assert!(is_low());
        holder
            .operation(|| {
                let payload = holder.acquire(SUPER_NAMESPACES_LOCK, LockSlot::Split)?;
                assert!(!remove(&member, used), "it has a record");
                member.operation(|| member.prepare_free_entry())?;
                holder.release(SUPER_NAMESPACES_LOCK, LockSlot::Split, payload)?;
                Ok(())
            })
            .unwrap();
        assert!(!is_low());
    }
}
