//! Namespaces: the catalog of the region.

use std::sync::OnceLock;

use nearstate_model::limits::{NAMESPACE_NAME_BYTES_MAX, NAMESPACES_MAX};
use nearstate_model::{Error, Result, invariant};

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::crash::crash_point;
use crate::index::bucket::{WORDS, control};
use crate::index::lookup::walk_chain;
use crate::layout::{
    CATALOG_BUCKETS, CATALOG_BYTES, CATALOG_CHECK, CATALOG_COMMITTED, CATALOG_FLAGS,
    CATALOG_GENERATION, CATALOG_KIND, CATALOG_NAME, CATALOG_NAME_BYTES, CATALOG_SEGMENTS,
    CATALOG_STATE, Corruption, LINE, NAMESPACE_LIVE, NAMESPACE_NUMBER_BITS, SUPER_NAMESPACES,
    SUPER_NAMESPACES_LOCK, catalog_at, entry_of, namespace_flags, seal, unseal,
};
use crate::member::Member;
use crate::member::arena::LockSlot;
use crate::region::catalog_use::{
    self, EntryUse, GENERATION_MAX, namespace_removed, parse_use, use_word,
};
use crate::region::file::TABLE_PAGE;
use crate::region::index_table::{
    BUCKETS_FIRST, IndexTable, NamespaceIdentity, number_in, segment_of_word, segment_slot,
};
use crate::region::linear_hash::DEPTH_FIRST;
use crate::region::map::Map;

/// A namespace, as listed in the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceEntry {
    /// Its number: no other namespace of the region ever has it.
    pub index: u32,
    /// Name.
    pub name: Vec<u8>,
    /// The kind of its records, defined by `store`.
    pub kind: u64,
    /// Number of buckets of its index.
    pub buckets: u64,
}

/// All namespaces of a region.
///
/// # Errors
/// `Corruption`: a flipped bit in a count or a name that is too long.
pub(crate) fn list(map: &Map) -> Result<Vec<NamespaceEntry>, Corruption> {
    let mut all = Vec::new();
    each(map, |index, identity| {
        let buckets = map.word(catalog_at(index) + CATALOG_BUCKETS)?.load(Ordering::Acquire);
        all.push(NamespaceEntry {
            index,
            name: identity.name.to_vec(),
            kind: identity.kind,
            buckets: unseal(buckets, "a namespace's bucket count has a flipped bit")?,
        });
        Ok(())
    })?;
    Ok(all)
}

/// Calls `each` with the number and the identity of every namespace.
fn each(
    map: &Map,
    mut each: impl FnMut(u32, &NamespaceIdentity) -> Result<(), Corruption>,
) -> Result<(), Corruption> {
    for index in 0..used(map)? {
        let Some(number) = number_in(map, index)? else { continue };
        let identity = NamespaceIdentity::load(map, number);
        // If the namespace was removed meanwhile, the name of the next one may be half written.
        fence(Ordering::Acquire);
        if number_in(map, index)? == Some(number) {
            each(number, &identity?)?;
        }
    }
    Ok(())
}

/// The number and the kind of the namespace with a name.
fn find(map: &Map, name: &[u8]) -> Result<Option<(u32, u64)>, Corruption> {
    let mut found = None;
    each(map, |number, identity| {
        if identity.name == name {
            found = Some((number, identity.kind));
        }
        Ok(())
    })?;
    Ok(found)
}

/// The entries whose namespaces were removed. They keep their indexes and their rings for the next
/// namespaces.
pub(crate) fn removed(map: &Map) -> Result<Vec<u32>, Corruption> {
    let mut removed = Vec::new();
    for index in 0..used(map)? {
        if map.word(catalog_at(index) + CATALOG_STATE)?.load(Ordering::Acquire) == NAMESPACE_LIVE
            && number_in(map, index)?.is_none()
        {
            removed.push(index);
        }
    }
    Ok(removed)
}

/// Entries whose creation was interrupted. The next creator takes the first of them, and finds its
/// segment.
pub(crate) fn unfinished(map: &Map) -> Result<Vec<u32>, Corruption> {
    let used = used(map)?;
    let mut unfinished = Vec::new();
    for index in 0..used {
        if map.word(catalog_at(index) + CATALOG_STATE)?.load(Ordering::Acquire) == 0 {
            unfinished.push(index);
        }
    }
    if (used as usize) < NAMESPACES_MAX && map.is_allocated(catalog_at(used)) {
        unfinished.push(used);
    }
    Ok(unfinished)
}

pub(crate) fn used(map: &Map) -> Result<u32, Corruption> {
    let word = map.word(SUPER_NAMESPACES)?.load(Ordering::Acquire);
    let used = unseal(word, "the count of namespaces has a flipped bit")?;
    match u32::try_from(used) {
        Ok(used) if used as usize <= NAMESPACES_MAX => Ok(used),
        _ => Err(Corruption("more namespaces than a region can have")),
    }
}

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
    /// Complexity: linear in the number of namespaces. Meant to be called once, at start.
    ///
    /// # Errors
    /// `BadName`, `Full` (catalog, heap), `Stalled` if another process is stopped while it creates
    /// a namespace, `Damaged`, `System`.
    pub fn open_namespace(&self, name: &[u8], kind: u64) -> Result<(u32, u64)> {
        if name.is_empty() || name.len() > NAMESPACE_NAME_BYTES_MAX || name.contains(&0) {
            return Err(Error::BadName { bytes: name.len() });
        }
        self.check_usable()?;
        let map = self.map();
        if let Some(found) = find(map, name)? {
            return Ok(found);
        }
        self.operation(|| {
            let payload = self.acquire(SUPER_NAMESPACES_LOCK, LockSlot::Split)?;
            let created = self.create_namespace(name, kind);
            self.release(SUPER_NAMESPACES_LOCK, LockSlot::Split, payload)?;
            created
        })
    }

    /// All namespaces, in the order of their numbers.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn namespaces(&self) -> Result<Vec<NamespaceEntry>> {
        self.check_usable()?;
        Ok(list(self.map())?)
    }

    /// The number of namespaces.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn namespace_count(&self) -> Result<usize> {
        self.check_usable()?;
        let map = self.map();
        let mut count = 0;
        for index in 0..used(map)? {
            count += usize::from(number_in(map, index)?.is_some());
        }
        self.check_not_truncated()?;
        Ok(count)
    }

    /// A number that grows whenever a namespace is created or removed. Reads one line of each entry
    /// and no name, so that it can be called often to detect new namespaces.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn namespace_changes(&self) -> Result<u64> {
        self.check_usable()?;
        let map = self.map();
        let mut changes = 0;
        for index in 0..used(map)? {
            let word = map.word(catalog_at(index) + CATALOG_GENERATION)?.load(Ordering::Acquire);
            let (generation, _) = parse_use(word)?;
            // A removal raises the generation, and a creation afterwards adds one.
            changes += 2 * u64::from(generation) + u64::from(number_in(map, index)?.is_some());
        }
        self.check_not_truncated()?;
        Ok(changes)
    }

    /// The number of catalog entries that were ever used. Some may have no namespace.
    pub(crate) fn catalog_entries(&self) -> Result<u32> {
        Ok(used(self.map())?)
    }

    /// The index of a catalog entry, also of one whose namespace was removed. `None`: its creation
    /// was not completed.
    pub(crate) fn entry_table(&self, index: u32) -> Result<Option<&IndexTable>> {
        let state = self.map().word(catalog_at(index) + CATALOG_STATE)?.load(Ordering::Acquire);
        if state != NAMESPACE_LIVE {
            return Ok(None);
        }
        Ok(Some(self.shared_table(index)?))
    }

    /// Sets a flag of a namespace (watched, indexed ...). It stays set. A write that began before
    /// may not see it.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn set_namespace_flag(&self, table: &IndexTable, bit: u64) -> Result<()> {
        invariant!(bit < namespace_flags::GENERATION, "{bit:#x} is no flag of a namespace");
        self.update_namespace_flags(table.index(), |flags| flags | bit)?;
        self.check_not_truncated()
    }

    /// The flags of a namespace, bits of [`crate::layout::namespace_flags`], which its writers
    /// handle.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn namespace_flags(&self, table: u32) -> Result<u64> {
        Ok(self.map().word(catalog_at(table) + CATALOG_FLAGS)?.load(Ordering::Acquire) >> 16)
    }

    /// Waits for every writer that locked a bucket of the namespace before this call. Later writers
    /// see flags that were changed before.
    ///
    /// Complexity: linear in the number of buckets, about 30 ns each.
    ///
    /// # Errors
    /// `Stalled`, `Damaged`.
    pub fn drain_writers(&self, table: &IndexTable) -> Result<()> {
        self.drain_buckets(table, 0..self.buckets_to_drain(table)?)
    }

    /// The number of buckets to drain, for a drain in parts ([`Member::drain_buckets`]). Buckets
    /// that are split off later need no drain: their writers take the lock afterwards and see the
    /// changed flags.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn buckets_to_drain(&self, table: &IndexTable) -> Result<u64> {
        // The flags are changed before the count is read. Neither may be reordered.
        fence(Ordering::SeqCst);
        Ok(table.refresh(self.map())?)
    }

    /// A part of [`Member::drain_writers`]: some of [`Member::buckets_to_drain`].
    ///
    /// # Errors
    /// As [`Member::drain_writers`].
    pub fn drain_buckets(&self, table: &IndexTable, part: std::ops::Range<u64>) -> Result<()> {
        self.check_usable()?;
        invariant!(self.has_no_lock(), "a member drains writers while it holds a lock");
        self.operation(|| {
            for bucket in part {
                let at = table.bucket_at(self.map(), bucket)?;
                let payload = self.acquire(at, LockSlot::Bucket)?;
                self.release(at, LockSlot::Bucket, payload)?;
                crash_point!("flags.drained");
            }
            Ok(())
        })
    }

    /// Changes the flags of a namespace. Writers validate them under their locks.
    /// [`Member::drain_writers`] waits for those that validated them before.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn update_namespace_flags(&self, table: u32, change: impl Fn(u64) -> u64) -> Result<u64> {
        let word = self.map().word(catalog_at(table) + CATALOG_FLAGS)?;
        let mut seen = word.load(Ordering::Acquire);
        loop {
            let flags = unseal(seen, "the flags of a namespace have a flipped bit")?;
            let wanted = change(flags);
            invariant!(
                wanted / namespace_flags::GENERATION >= flags / namespace_flags::GENERATION,
                "the count of schema changes falls from {flags:#x} to {wanted:#x}"
            );
            match word.compare_exchange(seen, seal(wanted), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    crash_point!("flags.changed");
                    return Ok(wanted);
                }
                Err(now) => seen = now,
            }
        }
    }

    /// This process's handle of the namespace with this number.
    ///
    /// # Errors
    /// `Damaged`; `BadArgument` for a number that is not in use.
    #[inline]
    pub fn table(&self, index: u32) -> Result<&IndexTable> {
        match self.known_table(index) {
            Some(table) => Ok(table),
            None => self.load_table(index),
        }
    }

    #[cold]
    fn load_table(&self, number: u32) -> Result<&IndexTable> {
        if entry_of(number) >= used(self.map())? {
            return Err(namespace_removed(number));
        }
        let table = self.shared_table(number)?;
        if table.number() != number && table.renew(self.map())? != number {
            return Err(namespace_removed(number));
        }
        self.remember_table(table);
        Ok(table)
    }

    /// The handle of an entry that all sessions of this process share.
    fn shared_table(&self, number: u32) -> Result<&IndexTable> {
        let index = entry_of(number) as usize;
        let page = self.shared().tables.get(index / TABLE_PAGE).ok_or_else(|| namespace_removed(number))?;
        let slots = page.get_or_init(|| (0..TABLE_PAGE).map(|_| OnceLock::new()).collect());
        let slot = slots.get(index % TABLE_PAGE).ok_or_else(|| namespace_removed(number))?;
        if let Some(table) = slot.get() {
            return Ok(table);
        }
        let table = Box::new(IndexTable::new(self.map(), number)?);
        Ok(slot.get_or_init(|| table))
    }

    /// The kind of a namespace's records.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn namespace_kind(&self, number: u32) -> Result<u64> {
        Ok(self.map().word(catalog_at(number) + CATALOG_KIND)?.load(Ordering::Relaxed))
    }

    fn use_word(&self, number: u32) -> Result<&AtomicU64, Corruption> {
        self.map().word(catalog_at(number) + CATALOG_GENERATION)
    }

    /// Keeps a namespace from being removed before a record of the caller is published. The caller
    /// holds the lock of the record's bucket.
    ///
    /// # Errors
    /// `BadArgument`: the namespace was removed; `Damaged`.
    #[inline]
    pub fn keep_namespace(&self, number: u32) -> Result<()> {
        if catalog_use::keep(self.use_word(number)?, number >> NAMESPACE_NUMBER_BITS)? {
            return Ok(());
        }
        Err(namespace_removed(number))
    }

    /// Checks that a namespace was not removed. After that, what the caller has read before is of
    /// this namespace.
    ///
    /// # Errors
    /// `BadArgument`: it was removed; `Damaged`.
    #[inline]
    pub fn check_namespace(&self, number: u32) -> Result<()> {
        if catalog_use::is_current(self.use_word(number)?, number >> NAMESPACE_NUMBER_BITS) {
            return Ok(());
        }
        Err(namespace_removed(number))
    }

    /// Removes a namespace that has no record. Its number is never used again. False if it has a
    /// record or was written to meanwhile; nothing has changed then.
    ///
    /// `has_index`: records of its indexes may be left. The entry serves no other namespace until
    /// [`Member::finish_removal`].
    ///
    /// Complexity: linear in the number of buckets, about 30 ns each.
    ///
    /// # Errors
    /// `BadArgument`: it was removed before, or its entry was used too often; `Stalled`, `Damaged`.
    pub fn remove_namespace(&self, number: u32, has_index: bool) -> Result<bool> {
        self.check_usable()?;
        let generation = number >> NAMESPACE_NUMBER_BITS;
        if generation >= GENERATION_MAX {
            return Err(Error::BadArgument {
                detail: format!("namespace {number}: its catalog entry was used too often: keep it"),
            });
        }
        let table = self.table(number)?;
        let is = if has_index { EntryUse::Removed } else { EntryUse::Free };
        self.operation(|| {
            let payload = self.acquire(SUPER_NAMESPACES_LOCK, LockSlot::Split)?;
            let done = self.remove_locked(table, number, is);
            self.release(SUPER_NAMESPACES_LOCK, LockSlot::Split, payload)?;
            done
        })
    }

    fn remove_locked(&self, table: &IndexTable, number: u32, is: EntryUse) -> Result<bool> {
        invariant!(self.has_lock(LockSlot::Split), "a namespace is removed without a lock");
        let (word, generation) = (self.use_word(number)?, number >> NAMESPACE_NUMBER_BITS);
        if !catalog_use::begin_removal(word, generation)? {
            return Err(namespace_removed(number));
        }
        crash_point!("removal.begun");
        match self.has_entries(table) {
            Ok(false) => {}
            other => {
                catalog_use::cancel_removal(word, generation);
                return other.map(|_| false);
            }
        }
        let is_removed = catalog_use::commit_removal(word, generation, is);
        crash_point!("removal.committed");
        Ok(is_removed)
    }

    /// True if a bucket of the index has an entry. Passes each bucket's lock. A split moves entries
    /// only to a bucket with a higher number, which is visited later.
    fn has_entries(&self, table: &IndexTable) -> Result<bool> {
        let mut bucket = 0;
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
                return Ok(true);
            }
            bucket += 1;
        }
        Ok(false)
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
    /// `Damaged`.
    pub fn finish_removal(&self, number: u32) -> Result<()> {
        let next = (number >> NAMESPACE_NUMBER_BITS) + 1;
        let (seen, free) = (use_word(next, EntryUse::Removed), use_word(next, EntryUse::Free));
        // Another session may have been faster.
        let word = self.use_word(number)?;
        let _ = word.compare_exchange(seen, free, Ordering::AcqRel, Ordering::Acquire);
        crash_point!("removal.finished");
        Ok(())
    }

    /// The entry for a new namespace with this name: one that is free and had the name, so that the
    /// versions of its keys go on; else one whose creation was interrupted; else another free one;
    /// else the next one.
    fn entry_for(&self, name: &[u8]) -> Result<u32> {
        let map = self.map();
        let used = used(map)?;
        let (mut free, mut interrupted) = (None, None);
        for index in 0..used {
            if map.word(catalog_at(index) + CATALOG_STATE)?.load(Ordering::Acquire) == 0 {
                interrupted = interrupted.or(Some(index));
                continue;
            }
            let (_, is) = parse_use(self.use_word(index)?.load(Ordering::Acquire))?;
            if is == EntryUse::Free {
                if NamespaceIdentity::name_in(map, index).is_ok_and(|known| known == name) {
                    return Ok(index);
                }
                free = free.or(Some(index));
            }
        }
        let index = interrupted.or(free).unwrap_or(used);
        if index as usize >= NAMESPACES_MAX {
            return Err(Error::Full {
                detail: format!("the region has {NAMESPACES_MAX} namespaces: delete one's records"),
                heap: None,
            });
        }
        Ok(index)
    }

    /// The caller holds the namespaces lock.
    fn create_namespace(&self, name: &[u8], kind: u64) -> Result<(u32, u64)> {
        let map = self.map();
        if let Some(found) = find(map, name)? {
            return Ok(found);
        }
        let index = self.entry_for(name)?;
        let used = used(map)?;
        invariant!(index <= used, "namespace {index} is created before {used}");
        let at = catalog_at(index);
        map.commit(at, CATALOG_BYTES)?;
        let state = map.word(at + CATALOG_STATE)?.load(Ordering::Acquire);
        let (generation, is) = parse_use(self.use_word(index)?.load(Ordering::Acquire))?;
        // A creator that was killed before it counted its entry has left it live.
        let is_complete = index < used && state == NAMESPACE_LIVE;
        invariant!(!is_complete || is == EntryUse::Free, "entry {index} has two namespaces");
        if !is_complete {
            // The first segment of an interrupted creation is used, and the generation goes on.
            let kept = [CATALOG_SEGMENTS, CATALOG_GENERATION];
            for which in (8..CATALOG_BYTES).step_by(8).filter(|which| !kept.contains(which)) {
                map.word(at + which)?.store(0, Ordering::Release);
            }
        }
        let (name, generation_word) = (name.to_vec(), u64::from(generation));
        self.name_entry(index, &NamespaceIdentity { name, kind, generation: generation_word })?;
        crash_point!("namespace.named");
        if !is_complete {
            self.fill_entry(index)?;
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
        Ok((generation << NAMESPACE_NUMBER_BITS | index, kind))
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
        set(CATALOG_KIND, *kind)?;
        set(CATALOG_FLAGS, seal(0))?;
        set(CATALOG_NAME_BYTES, name.len() as u64)?;
        let mut bytes = name.chunks(8);
        for which in (CATALOG_NAME..CATALOG_CHECK).step_by(8) {
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(bytes.next().unwrap_or_default()) {
                *to = *from;
            }
            set(which, u64::from_le_bytes(word))?;
        }
        set(CATALOG_CHECK, identity.check(index))
    }

    /// Gives an entry its first segment of buckets.
    fn fill_entry(&self, index: u32) -> Result<()> {
        let (map, at) = (self.map(), catalog_at(index));
        if map.word(segment_slot(index, 0))?.load(Ordering::Relaxed) == 0 {
            self.add_segment(index, 0)?;
        }
        let first = segment_of_word(map.word(segment_slot(index, 0))?.load(Ordering::Relaxed))?;
        let first = first + LINE;
        map.commit(first, BUCKETS_FIRST * LINE)?;
        for bucket in 0..BUCKETS_FIRST {
            let line = map.words::<WORDS>(first + bucket * LINE)?;
            for (word, value) in line.iter().zip([control(DEPTH_FIRST, 0), 0, 0, 0, 0, 0, 0, 0]) {
                word.store(value, Ordering::Relaxed);
            }
        }
        map.word(at + CATALOG_COMMITTED)?.store(seal(BUCKETS_FIRST), Ordering::Release);
        map.word(at + CATALOG_BUCKETS)?.store(seal(BUCKETS_FIRST), Ordering::Release);
        crash_point!("namespace.filled");
        Ok(())
    }
}
