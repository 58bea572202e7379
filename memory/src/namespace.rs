//! Namespaces: the catalog of the region.

use std::sync::OnceLock;

use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::NAMESPACES_MAX;
use nearstate_model::{Result, invariant};

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::crash::crash_point;
use crate::layout::{
    CATALOG_BUCKETS, CATALOG_FLAGS, CATALOG_GENERATION, CATALOG_STATE, Corruption, NAMESPACE_LIVE,
    NAMESPACE_NUMBER_BITS, SUPER_CATALOG_CHANGES, catalog_at, entry_of, namespace_flags, seal,
    unseal,
};
use crate::member::Member;
use crate::member::arena::LockSlot;
use crate::namespace::rules::{ReplicationPolicy, policy_of};
use crate::region::catalog::{self, EntryState, entries_used, entry_state, flags_of};
use crate::region::catalog_use::{self, namespace_removed};
use crate::region::file::TABLE_PAGE;
use crate::region::index_table::{IndexTable, NamespaceIdentity, number_in};
use crate::region::map::Map;
use crate::usage::{self, NamespaceUsage};

mod creation;
mod limits;
pub(crate) mod removal;
pub(crate) mod rules;

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
    /// What its records take, if it has limits.
    pub usage: Option<NamespaceUsage>,
    /// How its commits are replicated.
    pub policy: ReplicationPolicy,
}

impl NamespaceEntry {
    /// The number of its catalog entry.
    pub(crate) const fn entry(&self) -> u32 {
        entry_of(self.index)
    }
}

/// All namespaces of a region.
///
/// # Errors
/// `Corruption`: a flipped bit in a count or a name that is too long.
pub(crate) fn list(map: &Map) -> Result<Vec<NamespaceEntry>, Corruption> {
    let mut all = Vec::new();
    for index in 0..entries_used(map)? {
        let Some(number) = number_in(map, index)? else { continue };
        let identity = NamespaceIdentity::load(map, number);
        // If the namespace was removed meanwhile, the name of the next one may be half written.
        fence(Ordering::Acquire);
        if number_in(map, index)? != Some(number) {
            continue;
        }
        let NamespaceIdentity { name, kind, .. } = identity?;
        let buckets = map.word(catalog_at(index) + CATALOG_BUCKETS)?.load(Ordering::Acquire);
        let buckets = unseal(buckets, "a namespace's bucket count has a flipped bit")?;
        let usage = usage::usage(map, number)?;
        let policy = policy_of(flags_of(map, index)?);
        all.push(NamespaceEntry { index: number, name, kind, buckets, usage, policy });
    }
    Ok(all)
}

/// The entries whose namespaces were removed. They keep their indexes and their rings for the next
/// namespaces.
pub(crate) fn removed(map: &Map) -> Result<Vec<u32>, Corruption> {
    let mut removed = Vec::new();
    for index in 0..entries_used(map)? {
        if matches!(entry_state(map, index)?, EntryState::Removed(_) | EntryState::Free(_)) {
            removed.push(index);
        }
    }
    Ok(removed)
}

/// Entries whose creation was interrupted. The next creator takes the first of them, and finds its
/// segment.
pub(crate) fn unfinished(map: &Map) -> Result<Vec<u32>, Corruption> {
    let used = entries_used(map)?;
    let mut unfinished = Vec::new();
    for index in 0..used {
        if entry_state(map, index)? == EntryState::Interrupted {
            unfinished.push(index);
        }
    }
    if (used as usize) < NAMESPACES_MAX && map.is_allocated(catalog_at(used)) {
        unfinished.push(used);
    }
    Ok(unfinished)
}

impl Member {
    /// All namespaces, in the order of their numbers.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn namespaces(&self) -> Result<Vec<NamespaceEntry>> {
        self.check_usable()?;
        self.checked(list(self.map())?)
    }

    /// The number of namespaces.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn namespace_count(&self) -> Result<usize> {
        self.check_usable()?;
        let map = self.map();
        let mut count = 0;
        for index in 0..entries_used(map)? {
            count += usize::from(number_in(map, index)?.is_some());
        }
        self.check_not_truncated()?;
        Ok(count)
    }

    /// A number that grows whenever a namespace is created or removed; `None` while a process does
    /// that, and after it was killed there.
    ///
    /// Cost: one load.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn namespace_changes(&self) -> Result<Option<u64>> {
        self.check_usable()?;
        let changes = catalog::changes(self.map().word(SUPER_CATALOG_CHANGES)?)?;
        self.check_not_truncated()?;
        Ok(catalog::is_settled(changes).then_some(changes))
    }

    /// The number of catalog entries that were ever used. Some may have no namespace.
    pub(crate) fn catalog_entries(&self) -> Result<u32> {
        Ok(entries_used(self.map())?)
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
    /// As [`Member::update_namespace_flags`].
    pub fn set_namespace_flag(&self, number: u32, bit: u64) -> Result<()> {
        invariant!(bit < namespace_flags::GENERATION, "{bit:#x} is no flag of a namespace");
        self.update_namespace_flags(number, |flags| flags | bit)?;
        self.check_not_truncated()
    }

    /// The flags of a namespace, bits of [`crate::layout::namespace_flags`], which its writers
    /// handle.
    ///
    /// # Errors
    /// `Damaged`: a flipped bit of them. No write of the namespace could succeed, because its
    /// flags are never those that the writer handles.
    #[inline]
    pub fn namespace_flags(&self, table: u32) -> Result<u64> {
        Ok(flags_of(self.map(), table)?)
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
    /// Holds the lock of one bucket, so that the namespace is not removed meanwhile, and its next
    /// one does not get the flags. May be called with a pin, not with a lock.
    ///
    /// # Errors
    /// `BadArgument`: the namespace was removed; `Stalled`, `Damaged`.
    pub fn update_namespace_flags(&self, number: u32, change: impl Fn(u64) -> u64) -> Result<u64> {
        self.with_namespace_kept(number, || self.change_flags(number, change))
    }

    /// Changes a declaration of a namespace with the lock of its first bucket. A removal that has
    /// begun is cancelled; a later one sees the change.
    fn with_namespace_kept<T>(&self, number: u32, change: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check_usable()?;
        invariant!(self.has_no_lock(), "a member changes flags while it holds a lock");
        let at = self.table(number)?.bucket_at(self.map(), 0)?;
        self.operation(|| {
            let payload = self.acquire(at, LockSlot::Bucket)?;
            let changed = self.keep_namespace(number).and_then(|()| change());
            self.release(at, LockSlot::Bucket, payload)?;
            changed
        })
    }

    fn change_flags(&self, number: u32, change: impl Fn(u64) -> u64) -> Result<u64> {
        let is_kept = self.has_lock(LockSlot::Bucket) || self.has_lock(LockSlot::Split);
        invariant!(is_kept, "the namespace may be removed");
        let word = self.map().word(catalog_at(number) + CATALOG_FLAGS)?;
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

    /// True if a namespace was not removed.
    ///
    /// Cost: one load.
    #[inline]
    pub fn has_namespace(&self, number: u32) -> bool {
        let generation = number >> NAMESPACE_NUMBER_BITS;
        self.use_word(number).is_ok_and(|word| catalog_use::is_current(word, generation))
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
        if entry_of(number) >= entries_used(self.map())? {
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
        let page = self.shared().tables.get(index / TABLE_PAGE);
        let page = guaranteed(page, "a number has 16 bits for its entry");
        let slots = page.get_or_init(|| (0..TABLE_PAGE).map(|_| OnceLock::new()).collect());
        let slot = guaranteed(slots.get(index % TABLE_PAGE), "a page has all its tables");
        if let Some(table) = slot.get() {
            return Ok(table);
        }
        let table = Box::new(IndexTable::new(self.map(), number)?);
        Ok(slot.get_or_init(|| table))
    }

    #[inline]
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
        if self.has_namespace(number) { Ok(()) } else { Err(namespace_removed(number)) }
    }
}
