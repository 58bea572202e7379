//! Finds namespaces by their names, and creates them.

use std::sync::{MutexGuard, PoisonError};

use nearstate_model::limits::{NAMESPACE_NAME_BYTES_MAX, NAMESPACES_MAX};
use nearstate_model::{Error, Result, invariant};

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::index::bucket::{WORDS, control, depth_of, stamp_of};
use crate::layout::{
    CATALOG_BORN_LOGGED, CATALOG_BUCKETS, CATALOG_BYTES, CATALOG_CHECK, CATALOG_COMMITTED,
    CATALOG_COUNTED, CATALOG_FLAGS, CATALOG_GENERATION, CATALOG_KIND, CATALOG_LOGGED_SINCE,
    CATALOG_NAME, CATALOG_NAME_BYTES, CATALOG_NEXT_SOURCE, CATALOG_POLICY, CATALOG_RING,
    CATALOG_SEGMENTS, CATALOG_SOURCE, CATALOG_STATE, Corruption, LINE, NAMESPACE_LIVE,
    NAMESPACE_NUMBER_BITS, SUPER_CATALOG_CHANGES, SUPER_NAMESPACES, SUPER_NAMESPACES_LOCK,
    catalog_at, seal,
};
use crate::member::Member;
use crate::member::arena::LockSlot;
use crate::namespace::rules::{InitialFlags, NewPolicy};
use crate::region::catalog::{self, EntryState, NameTable, entries_used, stamp_floor};
use crate::region::catalog_use::{EntryUse, end_of_namespace, parse_use, use_word};
use crate::region::index_table::{
    BUCKETS_FIRST, IndexTable, NamespaceIdentity, segment_of_word, segment_slot,
};
use crate::region::linear_hash::DEPTH_FIRST;

impl Member {
    /// The index of a namespace that is found or created as by [`Member::open_namespace`].
    ///
    /// # Errors
    /// As [`Member::open_namespace`].
    pub fn namespace(&self, name: &[u8], kind: u64) -> Result<&IndexTable> {
        self.table(self.open_namespace(name, kind)?.0)
    }

    /// Finds a namespace by name, or creates it with this kind. If two callers create it at once,
    /// both get the same one. Returns its number and its kind.
    ///
    /// Complexity: linear in the number of namespaces that were created or removed since the last
    /// call in this process, some nanoseconds for each of the others if any was. Callers keep the
    /// result.
    ///
    /// # Errors
    /// `BadName`, `Full` (catalog, heap), `Stalled` if another process is stopped while it creates
    /// or removes a namespace, `Damaged`, `System`.
    pub fn open_namespace(&self, name: &[u8], kind: u64) -> Result<(u32, u64)> {
        self.open_namespace_with(name, kind, NewPolicy::Internal)
    }

    /// As [`Member::open_namespace`]; a new one is replicated by this policy, from its first write
    /// on.
    ///
    /// # Errors
    /// As [`Member::open_namespace`].
    pub fn open_namespace_with(
        &self,
        name: &[u8],
        kind: u64,
        policy: NewPolicy<'_>,
    ) -> Result<(u32, u64)> {
        if name.is_empty() || name.len() > NAMESPACE_NAME_BYTES_MAX || name.contains(&0) {
            return Err(Error::BadName { bytes: name.len() });
        }
        if let Some(found) = self.find_namespace(name)? {
            return Ok(found);
        }
        self.operation(|| {
            self.prepare_free_entry()?;
            let payload = self.acquire(SUPER_NAMESPACES_LOCK, LockSlot::Split)?;
            let created = self.create_namespace(name, kind, policy);
            self.release(SUPER_NAMESPACES_LOCK, LockSlot::Split, payload)?;
            created
        })
    }

    /// The number and the kind of the namespace with a name. Complexity as
    /// [`Member::open_namespace`].
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn find_namespace(&self, name: &[u8]) -> Result<Option<(u32, u64)>> {
        self.check_usable()?;
        let found = {
            let mut names = self.names();
            names.refresh(self.map())?;
            names.find(self.map(), name)?
        };
        self.check_not_truncated()?;
        Ok(found)
    }

    /// The table of names of this process.
    pub(super) fn names(&self) -> MutexGuard<'_, NameTable> {
        let names = &self.shared().names;
        names.lock().unwrap_or_else(|poisoned: PoisonError<MutexGuard<'_, NameTable>>| {
            // A panic in another thread left it incomplete. It is read again.
            let mut table = poisoned.into_inner();
            *table = NameTable::default();
            names.clear_poison();
            table
        })
    }

    /// Changes what the catalog has: `region/catalog.rs`. The caller holds the namespaces lock.
    /// Returns the numbers of changes before and after.
    pub(super) fn change_catalog<T>(
        &self,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<(T, (u64, u64))> {
        invariant!(self.has_lock(LockSlot::Split), "the catalog is changed without a lock");
        let word = self.map().word(SUPER_CATALOG_CHANGES)?;
        let before = catalog::begin_change(word)?;
        crash_point!("namespace.changing");
        let changed = change();
        let after = catalog::end_change(word, before);
        crash_point!("namespace.changed");
        Ok((changed?, (before, after)))
    }

    /// The caller holds the namespaces lock.
    fn create_namespace(
        &self,
        name: &[u8],
        kind: u64,
        policy: NewPolicy<'_>,
    ) -> Result<(u32, u64)> {
        let map = self.map();
        let index = {
            let mut names = self.names();
            names.complete(map)?;
            if let Some(found) = names.find(map, name)? {
                return Ok(found);
            }
            names.free_entry().map_or_else(|| entries_used(map), Ok)?
        };
        if index as usize >= NAMESPACES_MAX {
            return Err(Error::Full {
                detail: format!(
                    "the region has {NAMESPACES_MAX} namespaces: remove one, or all of its records"
                ),
                heap: None,
            });
        }
        let initial = self.initial_flags(policy)?;
        let fill = || self.fill_entry(index, (name, kind), initial);
        let (generation, change) = self.change_catalog(fill)?;
        self.names().record(map, index, EntryState::Live(generation), (name, kind), change);
        Ok((generation << NAMESPACE_NUMBER_BITS | index, kind))
    }

    /// Gives an entry to a new namespace. Returns its generation.
    fn fill_entry(
        &self,
        index: u32,
        (name, kind): (&[u8], u64),
        initial: InitialFlags,
    ) -> Result<u32> {
        let map = self.map();
        let used = entries_used(map)?;
        invariant!(index <= used, "namespace {index} is created before {used}");
        let at = catalog_at(index);
        if index == used {
            // Behind the count no other process uses it. A killed creator may have left a segment.
            map.commit_keeping(at, CATALOG_BYTES)?;
        }
        let state = map.word(at + CATALOG_STATE)?.load(Ordering::Acquire);
        let (generation, is) = parse_use(self.use_word(index)?.load(Ordering::Acquire))?;
        // A creator that was killed before it counted its entry has left it live.
        let is_complete = index < used && state == NAMESPACE_LIVE;
        invariant!(!is_complete || is == EntryUse::Free, "entry {index} has two namespaces");
        if is_complete {
            self.reuse_entry(index, generation)?;
        } else {
            self.clear_entry(index)?;
        }
        let (name, generation_word) = (name.to_vec(), u64::from(generation));
        self.name_entry(index, &NamespaceIdentity { name, kind, generation: generation_word })?;
        crash_point!("namespace.named");
        self.begin_namespace(index, initial)?;
        if !is_complete {
            self.make_index(index)?;
        }
        // Whichever of the two is stored last makes the entry the namespace's.
        self.use_word(index)?.store(use_word(generation, EntryUse::Live), Ordering::Release);
        crash_point!("namespace.reused");
        map.word(at + CATALOG_STATE)?.store(NAMESPACE_LIVE, Ordering::Release);
        crash_point!("namespace.live");
        if index == used {
            map.word(SUPER_NAMESPACES)?.store(seal(u64::from(index) + 1), Ordering::Release);
            crash_point!("namespace.counted");
        }
        Ok(generation)
    }

    /// Clears what an interrupted creation has left in an entry without a state. The first segment
    /// is used, and the generation goes on. [`Member::name_entry`] replaces the other two: until
    /// then a process that reads the entry must not take it for zeros, nor for one that was never
    /// begun.
    fn clear_entry(&self, index: u32) -> Result<(), Corruption> {
        invariant!(self.has_lock(LockSlot::Split), "an entry is cleared without a lock");
        let kept = [CATALOG_SEGMENTS, CATALOG_GENERATION, CATALOG_KIND, CATALOG_CHECK];
        for which in (8..CATALOG_BYTES).step_by(8).filter(|which| !kept.contains(which)) {
            self.map().word(catalog_at(index) + which)?.store(0, Ordering::Release);
        }
        crash_point!("namespace.cleared");
        Ok(())
    }

    /// Prepares what a removed namespace has left in its entry for the next one, of this
    /// generation.
    fn reuse_entry(&self, index: u32, generation: u32) -> Result<()> {
        let (map, at) = (self.map(), catalog_at(index));
        self.raise_stamps(index, stamp_floor(map)?)?;
        if map.word(at + CATALOG_COUNTED)?.load(Ordering::Acquire) != 0 {
            self.clear_usage(index)?; // It had limits.
        }
        let ring_at = map.word(at + CATALOG_RING)?.load(Ordering::Acquire);
        // Its watches read up to here. After a kill the next creation appends another one.
        if ring_at != 0 && !self.append_to_ring(ring_at, &end_of_namespace(generation))? {
            return Err(Corruption("a watch ring has no room for the end of a namespace").into());
        }
        Ok(())
    }

    /// Raises the stamps of the entry that a creation would take, without the namespaces lock: with
    /// it they are only read, unless the floor has risen since. If the entry has another namespace
    /// by then, its stamps began with that floor.
    pub(super) fn prepare_free_entry(&self) -> Result<()> {
        let free = self.names().free_index();
        match free {
            Some(index) => self.raise_stamps(index, stamp_floor(self.map())?),
            None => Ok(()),
        }
    }

    /// Raises the stamps of an index that a removed namespace has used.
    fn raise_stamps(&self, index: u32, floor: u64) -> Result<()> {
        let (map, table) = (self.map(), self.shared_table(index)?);
        let mut bucket = 0;
        while bucket < table.refresh(map)? {
            let at = table.bucket_at(map, bucket)?;
            if stamp_of(map.word(at)?.load(Ordering::Acquire)) < floor {
                let payload = self.acquire(at, LockSlot::Bucket)?;
                let stamp = stamp_of(payload).max(floor);
                self.release(at, LockSlot::Bucket, control(depth_of(payload), stamp))?;
            }
            bucket += 1;
        }
        Ok(())
    }

    /// Stores the name and the kind of an entry that has no namespace, and clears its flags.
    fn name_entry(&self, index: u32, identity: &NamespaceIdentity) -> Result<(), Corruption> {
        let (map, at) = (self.map(), catalog_at(index));
        let set = |which: u64, value: u64| -> Result<(), Corruption> {
            map.word(at + which)?.store(value, Ordering::Release);
            Ok(())
        };
        let NamespaceIdentity { name, kind, .. } = identity;
        invariant!(name.len() <= NAMESPACE_NAME_BYTES_MAX, "a name of {} bytes", name.len());
        invariant!(self.has_lock(LockSlot::Split), "an entry gets a name without a lock");
        set(CATALOG_KIND, *kind)?;
        set(CATALOG_FLAGS, seal(0))?;
        set(CATALOG_LOGGED_SINCE, 0)?;
        set(CATALOG_SOURCE, 0)?;
        set(CATALOG_NEXT_SOURCE, 0)?;
        set(CATALOG_POLICY, 0)?;
        set(CATALOG_BORN_LOGGED, 0)?;
        set(CATALOG_NAME_BYTES, name.len() as u64)?;
        let mut bytes = name.chunks(8);
        for which in (CATALOG_NAME..CATALOG_CHECK).step_by(8) {
            let mut word = [0; 8];
            // Behind the name its words are zero.
            for (to, from) in word.iter_mut().zip(bytes.next().unwrap_or_default()) {
                *to = *from;
            }
            set(which, u64::from_le_bytes(word))?;
        }
        invariant!(bytes.next().is_none(), "a name is longer than its words");
        set(CATALOG_CHECK, identity.check(index))
    }

    /// Gives an entry its first segment of buckets.
    fn make_index(&self, index: u32) -> Result<()> {
        invariant!(self.has_lock(LockSlot::Split), "an entry gets an index without a lock");
        let (map, at) = (self.map(), catalog_at(index));
        if map.word(segment_slot(index, 0))?.load(Ordering::Relaxed) == 0 {
            self.add_segment(index, 0)?;
        }
        let first = segment_of_word(map.word(segment_slot(index, 0))?.load(Ordering::Relaxed))?;
        let first = first + LINE;
        map.commit(first, BUCKETS_FIRST * LINE)?;
        let control = control(DEPTH_FIRST, stamp_floor(map)?);
        for bucket in 0..BUCKETS_FIRST {
            let line = map.words::<WORDS>(first + bucket * LINE)?;
            for (word, value) in line.iter().zip([control, 0, 0, 0, 0, 0, 0, 0]) {
                word.store(value, Ordering::Relaxed);
            }
        }
        map.word(at + CATALOG_COMMITTED)?.store(seal(BUCKETS_FIRST), Ordering::Release);
        map.word(at + CATALOG_BUCKETS)?.store(seal(BUCKETS_FIRST), Ordering::Release);
        crash_point!("namespace.filled");
        Ok(())
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;
    use crate::fixture::TestRegionPath;
    use crate::region::catalog::is_zero_entry;
    use crate::region::file::{CreateOptions, Region};

    /// The entry of a creator that was killed before it stored the state, in an entry that a repair
    /// had freed: it is counted, and its words of state and use are 0. So they are while the next
    /// creator clears the entry, and other processes read it.
    #[test]
    fn an_entry_that_is_cleared_is_not_taken_for_zeros() {
        let path = TestRegionPath::new("cleared-entry");
        let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
        let member = region.member().unwrap();
        for name in [&b"first"[..], b"second"] {
            member.open_namespace(name, 1).unwrap();
        }
        let at = catalog_at(1);
        assert_eq!(member.use_word(1).unwrap().load(Ordering::Acquire), 0);
        member.map().word(at + CATALOG_STATE).unwrap().store(0, Ordering::Release);
        member
            .operation(|| {
                let payload = member.acquire(SUPER_NAMESPACES_LOCK, LockSlot::Split)?;
                member.clear_entry(1)?;
                member.release(SUPER_NAMESPACES_LOCK, LockSlot::Split, payload)?;
                Ok(())
            })
            .unwrap();
        assert_eq!(is_zero_entry(member.map(), 1), Ok(false));
        let mut names = NameTable::default();
        names.refresh(member.map()).unwrap();
        assert!(names.find(member.map(), b"first").unwrap().is_some());
        drop(member);
        drop(region);
        // The next creator takes it.
        let region = Region::attach(path.path()).unwrap();
        let (number, _) = region.member().unwrap().open_namespace(b"third", 1).unwrap();
        assert_eq!(number, 1);
        drop(region);
        let report = check(path.path(), &mut |_, _| Ok(())).unwrap();
        assert!(report.faults.is_empty(), "{:?}", report.faults);
    }
}
