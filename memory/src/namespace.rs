//! Namespaces: the catalog of the region.

use std::sync::OnceLock;

use nearstate_model::limits::{NAMESPACE_NAME_BYTES_MAX, NAMESPACES_MAX};
use nearstate_model::{Error, Result, invariant};

use crate::atomic::{Ordering, fence};
use crate::crash::crash_point;
use crate::index::bucket::{WORDS, control};
use crate::layout::{
    CATALOG_BUCKETS, CATALOG_BYTES, CATALOG_CHECK, CATALOG_COMMITTED, CATALOG_FLAGS, CATALOG_KIND,
    CATALOG_NAME, CATALOG_NAME_BYTES, CATALOG_SEGMENTS, CATALOG_SPLIT, CATALOG_STATE, Corruption,
    LINE, NAMESPACE_LIVE, SUPER_NAMESPACES, SUPER_NAMESPACES_LOCK, catalog_at, namespace_flags,
    seal, unseal,
};
use crate::member::Member;
use crate::member::arena::LockSlot;
use crate::region::file::TABLE_PAGE;
use crate::region::index_table::{
    BUCKETS_FIRST, IndexTable, NamespaceIdentity, segment_of_word, segment_slot,
};
use crate::region::linear_hash::DEPTH_FIRST;
use crate::region::map::Map;

/// A namespace, as listed in the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceEntry {
    /// Number in the catalog.
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
    let used = used(map)?;
    let mut all = Vec::new();
    for index in 0..used {
        let at = catalog_at(index);
        match map.word(at + CATALOG_STATE)?.load(Ordering::Acquire) {
            NAMESPACE_LIVE => {}
            0 => continue,
            _ => return Err(Corruption("the state of a namespace has a flipped bit")),
        }
        let NamespaceIdentity { name, kind, .. } = NamespaceIdentity::load(map, index)?;
        let buckets = map.word(at + CATALOG_BUCKETS)?.load(Ordering::Acquire);
        all.push(NamespaceEntry {
            index,
            name,
            kind,
            buckets: unseal(buckets, "a namespace's bucket count has a flipped bit")?,
        });
    }
    Ok(all)
}

/// Entries whose creation was interrupted. The next creator takes the first of them, and finds its
/// segment.
pub(crate) fn unfinished(map: &Map) -> Result<Vec<u32>, Corruption> {
    let used = used(map)?;
    let live: Vec<u32> = list(map)?.into_iter().map(|entry| entry.index).collect();
    let mut unfinished: Vec<u32> = (0..used).filter(|index| !live.contains(index)).collect();
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
    /// Finds a namespace by name, or creates it with this kind. If two callers create it at once,
    /// both get the same one.
    ///
    /// Complexity: linear in the number of namespaces. Meant to be called once, at start.
    ///
    /// # Errors
    /// `BadName`, `Full` (catalog, heap), `Stalled` if another process is stopped while it creates
    /// a namespace, `Damaged`, `System`.
    pub fn namespace(&self, name: &[u8], kind: u64) -> Result<&IndexTable> {
        if name.is_empty() || name.len() > NAMESPACE_NAME_BYTES_MAX || name.contains(&0) {
            return Err(Error::BadName { bytes: name.len() });
        }
        self.check_usable()?;
        let map = self.map();
        if let Some(found) = list(map)?.into_iter().find(|entry| entry.name == name) {
            return self.table(found.index);
        }
        self.operation(|| {
            let payload = self.acquire(SUPER_NAMESPACES_LOCK, LockSlot::Split)?;
            let created = self.create_namespace(name, kind);
            self.release(SUPER_NAMESPACES_LOCK, LockSlot::Split, payload)?;
            self.table(created?)
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

    /// The number of namespaces. Reads one word of each and no name, so that it can be called often
    /// to detect new namespaces.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn namespace_count(&self) -> Result<usize> {
        self.check_usable()?;
        let map = self.map();
        let mut count = 0;
        for index in 0..used(map)? {
            let state = map.word(catalog_at(index) + CATALOG_STATE)?.load(Ordering::Acquire);
            count += usize::from(state == NAMESPACE_LIVE);
        }
        self.check_not_truncated()?;
        Ok(count)
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
    fn load_table(&self, index: u32) -> Result<&IndexTable> {
        let page = self.shared().tables.get(index as usize / TABLE_PAGE);
        let slots = page.and_then(OnceLock::get);
        let table = match slots.and_then(|slots| slots.get(index as usize % TABLE_PAGE)?.get()) {
            Some(table) => table,
            None => self.create_table(index)?,
        };
        self.remember_table(table);
        Ok(table)
    }

    fn create_table(&self, index: u32) -> Result<&IndexTable> {
        let unknown = || Error::BadArgument { detail: format!("no namespace {index}: open it") };
        if index >= used(self.map())? {
            return Err(unknown());
        }
        let page = self.shared().tables.get(index as usize / TABLE_PAGE).ok_or_else(unknown)?;
        let slots = page.get_or_init(|| (0..TABLE_PAGE).map(|_| OnceLock::new()).collect());
        let slot = slots.get(index as usize % TABLE_PAGE).ok_or_else(unknown)?;
        let table = Box::new(IndexTable::new(self.map(), index)?);
        Ok(slot.get_or_init(|| table))
    }

    /// The caller holds the namespaces lock.
    fn create_namespace(&self, name: &[u8], kind: u64) -> Result<u32> {
        let map = self.map();
        let all = list(map)?;
        if let Some(found) = all.iter().find(|entry| entry.name == name) {
            return Ok(found.index);
        }
        // An entry that is not live was left by a killed creator. The first of them is used.
        let used = used(map)?;
        let free = (0..used).find(|index| all.iter().all(|entry| entry.index != *index));
        let index = free.unwrap_or(used);
        if index as usize >= NAMESPACES_MAX {
            return Err(Error::Full {
                detail: format!("the region has {NAMESPACES_MAX} namespaces already: reuse one"),
                heap: None,
            });
        }
        invariant!(index <= used, "namespace {index} is created before {used}");
        let at = catalog_at(index);
        map.commit(at, CATALOG_BYTES)?;
        let set = |which: u64, value: u64| -> Result<(), Corruption> {
            map.word(at + which)?.store(value, Ordering::Release);
            Ok(())
        };
        // The first segment of an interrupted creation is used.
        for which in (8..CATALOG_BYTES).step_by(8).filter(|which| *which != CATALOG_SEGMENTS) {
            set(which, 0)?;
        }
        set(CATALOG_KIND, kind)?;
        set(CATALOG_FLAGS, seal(0))?;
        set(CATALOG_SPLIT, 0)?;
        invariant!(name.len() <= NAMESPACE_NAME_BYTES_MAX, "a name of {} bytes", name.len());
        set(CATALOG_NAME_BYTES, name.len() as u64)?;
        map.write(at + CATALOG_NAME, name)?;
        let identity = NamespaceIdentity { name: name.to_vec(), kind, generation: 0 };
        set(CATALOG_CHECK, identity.check(index))?;
        crash_point!("namespace.named");
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
        set(CATALOG_COMMITTED, seal(BUCKETS_FIRST))?;
        set(CATALOG_BUCKETS, seal(BUCKETS_FIRST))?;
        crash_point!("namespace.filled");
        set(CATALOG_STATE, NAMESPACE_LIVE)?;
        crash_point!("namespace.live");
        if index == used {
            map.word(SUPER_NAMESPACES)?.store(seal(u64::from(index) + 1), Ordering::Release);
            crash_point!("namespace.counted");
        }
        Ok(index)
    }
}
