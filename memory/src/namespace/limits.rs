//! Limits of namespaces: sets and removes them. What the records take is counted as `usage.rs`
//! describes.
//!
//! The namespaces lock excludes other changes of limits, and the removal of the namespace. A
//! process that is killed in between leaves a namespace without the flag, whose words the next
//! change stores again.

use nearstate_model::{Error, Result, invariant};

use crate::atomic::{Ordering, fence};
use crate::crash::crash_point;
use crate::layout::{
    CATALOG_COUNTED, CATALOG_HARD_LIMIT, CATALOG_SOFT_LIMIT, Corruption, LINE,
    SUPER_NAMESPACES_LOCK, USAGE_STRIPES, catalog_at, namespace_flags, seal,
};
use crate::member::Member;
use crate::member::arena::LockSlot;
use crate::region::index_table::{IndexTable, NamespaceIdentity, number_in};
use crate::txn::count::WhenLocked;
use crate::usage::{self, NamespaceLimits, NamespaceUsage};

/// Buckets that one call of a count visits: some milliseconds.
const BUCKETS_AT_ONCE: u64 = 1 << 14;

/// The largest limit in bytes: a sealed word contains it in units.
const LIMIT_BYTES_MAX: u64 = (1 << 47) * LINE;
const _: () = assert!(LIMIT_BYTES_MAX / LINE < 1 << 48, "the units of a limit can be sealed");

impl Member {
    /// Sets the limits of a namespace, or removes them. With its first limit its records are
    /// counted, while others write. A limit below the usage refuses what grows the namespace.
    ///
    /// Complexity: linear in the records for the first limit, about 300 ns each, and in the buckets
    /// for the removal of the limits; constant for a change.
    ///
    /// # Errors
    /// `BadArgument`: the namespace was removed, or the soft limit is above the hard one;
    /// `Stalled`, `Damaged`. After `Stalled` the limits are set, and the next writers or the next
    /// call complete the count.
    pub fn set_namespace_limits(&self, number: u32, limits: NamespaceLimits) -> Result<()> {
        self.check_usable()?;
        invariant!(self.has_no_lock(), "limits are set while a lock is held");
        let NamespaceLimits { soft_bytes, hard_bytes } = limits;
        if hard_bytes != 0 && soft_bytes > hard_bytes
            || soft_bytes.max(hard_bytes) > LIMIT_BYTES_MAX
        {
            return Err(Error::BadArgument {
                detail: format!(
                    "a soft limit of {soft_bytes} and a hard limit of {hard_bytes} bytes: give a \
                     soft limit that is not above the hard one, and none above 8 PiB"
                ),
            });
        }
        let table = self.table(number)?;
        self.operation(|| {
            let payload = self.acquire(SUPER_NAMESPACES_LOCK, LockSlot::Split)?;
            let done = self.check_namespace(number).and_then(|()| {
                if limits.is_none() {
                    self.stop_counting(table, number)
                } else {
                    self.begin_counting(table, number, limits)
                }
            });
            self.release(SUPER_NAMESPACES_LOCK, LockSlot::Split, payload)?;
            done
        })?;
        while !self.count_usage(number, BUCKETS_AT_ONCE, WhenLocked::Wait)? {}
        self.check_not_truncated()
    }

    /// What the records of a namespace take, and its limits. `None`: it has no limits.
    ///
    /// # Errors
    /// `BadArgument`: the namespace was removed; `Damaged`.
    pub fn namespace_usage(&self, number: u32) -> Result<Option<NamespaceUsage>> {
        self.check_usable()?;
        let usage = usage::usage(self.map(), number)?;
        self.check_namespace(number)?;
        self.check_not_truncated()?;
        Ok(usage)
    }

    /// The names and numbers of the namespaces that have limits, with their usage.
    ///
    /// Complexity: some nanoseconds for each namespace of the region.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn limited_namespaces(&self) -> Result<Vec<(Vec<u8>, u32, NamespaceUsage)>> {
        self.check_usable()?;
        let map = self.map();
        let mut limited = Vec::new();
        for index in 0..self.catalog_entries()? {
            let Some(usage) = usage::usage(map, index)? else { continue };
            let Some(number) = number_in(map, index)? else { continue };
            let identity = NamespaceIdentity::load(map, number);
            // If it was removed meanwhile, the name of the next one may be half written.
            fence(Ordering::Acquire);
            if number_in(map, index)? == Some(number) {
                limited.push((identity?.name, number, usage));
            }
        }
        self.check_not_truncated()?;
        Ok(limited)
    }

    /// The caller holds the namespaces lock.
    fn begin_counting(
        &self,
        table: &IndexTable,
        number: u32,
        limits: NamespaceLimits,
    ) -> Result<()> {
        invariant!(self.has_lock(LockSlot::Split), "two sessions set limits at once");
        let is_counted = self.namespace_flags(number)? & namespace_flags::LIMITED != 0;
        if !is_counted {
            if usage::counted(self.map(), number)?.is_some() {
                // A change was interrupted.
                self.stop_counting(table, number)?;
            }
            // Not 0: the words may have values from here on.
            self.catalog_word(number, CATALOG_COUNTED, seal(0))?;
            crash_point!("limits.begun");
        }
        let word = |bytes: u64| if bytes == 0 { 0 } else { seal((bytes / LINE).max(1)) };
        self.catalog_word(number, CATALOG_SOFT_LIMIT, word(limits.soft_bytes))?;
        self.catalog_word(number, CATALOG_HARD_LIMIT, word(limits.hard_bytes))?;
        crash_point!("limits.stored");
        if !is_counted {
            // A writer that does not see the flag is not counted: it precedes the count of its
            // bucket, which takes its lock.
            self.change_flags(number, |flags| flags | namespace_flags::LIMITED)?;
            crash_point!("limits.flagged");
        }
        Ok(())
    }

    /// The caller holds the namespaces lock.
    fn stop_counting(&self, table: &IndexTable, number: u32) -> Result<()> {
        invariant!(self.has_lock(LockSlot::Split), "two sessions set limits at once");
        if usage::counted(self.map(), number)?.is_none() {
            return Ok(());
        }
        self.change_flags(number, |flags| flags & !namespace_flags::LIMITED)?;
        crash_point!("limits.cleared");
        let mut bucket = 0;
        while bucket < table.refresh(self.map())? {
            // Waits for the writers that count.
            let at = table.bucket_at(self.map(), bucket)?;
            let payload = self.acquire(at, LockSlot::Bucket)?;
            self.release(at, LockSlot::Bucket, payload)?;
            bucket += 1;
        }
        crash_point!("limits.drained");
        self.clear_usage(number)
    }

    /// Stores zeros in the words of a namespace's limits and usage. No writer counts.
    pub(super) fn clear_usage(&self, number: u32) -> Result<()> {
        invariant!(self.has_lock(LockSlot::Split), "the words may be in use");
        for stripe in 0..USAGE_STRIPES as u64 {
            let at = usage::stripe_at(number, stripe);
            // A commit that has released its bucket may still hold it.
            self.acquire(at, LockSlot::Leaf)?;
            self.release(at, LockSlot::Leaf, 0)?;
            crash_point!("limits.zeroed");
        }
        for which in [CATALOG_SOFT_LIMIT, CATALOG_HARD_LIMIT, CATALOG_COUNTED] {
            self.catalog_word(number, which, 0)?;
        }
        Ok(())
    }

    fn catalog_word(&self, number: u32, which: u64, value: u64) -> Result<(), Corruption> {
        self.map().word(catalog_at(number) + which)?.store(value, Ordering::Release);
        Ok(())
    }
}
