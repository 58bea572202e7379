//! Counts the records that a namespace has when it gets its first limit (`usage.rs`): one bucket
//! after the other, under its lock. A process that is killed in between leaves a part that is
//! counted, and any other continues behind it.

use nearstate_model::{Result, invariant};

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::index::batch::BucketPlace;
use crate::index::bucket::depth_of;
use crate::index::lookup::find_bucket;
use crate::layout::{
    CATALOG_COUNTED, Corruption, USAGE_STRIPES, catalog_at, namespace_flags, seal,
};
use crate::member::Member;
use crate::member::arena::{Arena, LockSlot, op, undo, write_undo};
use crate::member::lock;
use crate::region::index_table::IndexTable;
use crate::txn::bucket_lock::LockedBucket;
use crate::usage::{self, ALL_COUNTED};

/// The usage word that a bucket is added to.
#[derive(Clone, Copy, Debug)]
struct UsageLock {
    at: u64,
    payload: u64,
}

/// After the commit: the usage word, whose lock the member holds, gets its new payload. Idempotent:
/// recovery calls it as well.
pub(crate) fn finish(arena: &Arena<'_>, owner: u64) -> Result<(), Corruption> {
    let word = arena.map.word(arena.get(undo::lock(LockSlot::Leaf)))?;
    if lock::owner_of(word.load(Ordering::Relaxed)) != owner {
        return Err(Corruption("a count does not hold the usage word that it changes"));
    }
    lock::hold_with(word, owner, arena.get(undo::COUNTED));
    crash_point!("count.added");
    arena.set(undo::OP, op::NONE);
    Ok(())
}

/// What a count does at a bucket that another member has locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenLocked {
    /// It waits.
    Wait,
    /// It ends: another call continues.
    Skip,
}

impl Member {
    /// Counts records of some buckets of a namespace with limits, if they are not counted. True if
    /// all records are counted afterwards, or the namespace has no limits any more.
    ///
    /// Cost: a bucket's lock, and the header of each of its records.
    ///
    /// # Errors
    /// `BadArgument`: the namespace was removed; `Stalled`, `Damaged`.
    pub(crate) fn count_usage(&self, number: u32, buckets: u64, wait: WhenLocked) -> Result<bool> {
        self.check_usable()?;
        invariant!(self.has_no_lock(), "records are counted while a lock is held");
        let table = self.table(number)?;
        self.operation(|| {
            for _ in 0..buckets {
                if self.namespace_flags(number)? & namespace_flags::LIMITED == 0 {
                    return Ok(true);
                }
                match usage::counted(self.map(), number)? {
                    None | Some(ALL_COUNTED) => return Ok(true),
                    Some(position) => {
                        if wait == WhenLocked::Skip && self.is_busy(table, position)? {
                            return Ok(false);
                        }
                        self.count_bucket(table, number, position)?;
                    }
                }
            }
            Ok(false)
        })
    }

    /// True if a living member has locked the bucket at a position.
    fn is_busy(&self, table: &IndexTable, position: u64) -> Result<bool> {
        let (_, at, _) = find_bucket(self.map(), table, usage::hash_at(position))?;
        match lock::owner_of(self.map().word(at)?.load(Ordering::Relaxed)) {
            0 => Ok(false),
            owner => Ok(!self.recover_if_dead(lock::member_of(owner))?),
        }
    }

    /// Counts the bucket at a position, unless another member was faster.
    fn count_bucket(&self, table: &IndexTable, number: u32, position: u64) -> Result<()> {
        let LockedBucket { at, word, payload } =
            self.lock_bucket(table, usage::hash_at(position), BucketPlace::UNKNOWN)?;
        let done = self.count_locked(number, position, (at, depth_of(payload)));
        self.release_word(word, LockSlot::Bucket, payload);
        if !done? {
            // Every usage word is busy: waits without the bucket's lock.
            let at = usage::stripe_at(number, u64::from(self.index()));
            let payload = self.acquire(at, LockSlot::Leaf)?;
            self.release(at, LockSlot::Leaf, payload)?;
        }
        Ok(())
    }

    /// False if no usage word is free.
    fn count_locked(
        &self,
        number: u32,
        position: u64,
        (bucket_at, depth): (u64, u32),
    ) -> Result<bool> {
        invariant!(self.has_lock(LockSlot::Bucket), "records are counted without a lock");
        let map = self.map();
        self.keep_namespace(number)?;
        let is_due = self.namespace_flags(number)? & namespace_flags::LIMITED != 0
            && usage::counted(map, number)? == Some(position);
        if !is_due {
            return Ok(true);
        }
        let end = usage::range_end(position, depth)?;
        invariant!(position < end, "the count of bucket {bucket_at:#x} does not go on");
        let units = usage::units_of_bucket(map, bucket_at)?;
        let Some(UsageLock { at, payload }) = self.try_lock_usage(number)? else {
            return Ok(false);
        };
        let after = usage::changed(payload, units.cast_signed());
        let arena = self.arena();
        arena.set(undo::COUNTED, after);
        crash_point!("count.named");
        let counted_at = catalog_at(number) + CATALOG_COUNTED;
        write_undo(&arena, counted_at, seal(position), seal(end), op::COUNT);
        crash_point!("count.recorded");
        map.word(counted_at)?.store(seal(end), Ordering::Release);
        crash_point!("count.committed");
        finish(&arena, self.lock_owner())?;
        self.release(at, LockSlot::Leaf, after)?;
        Ok(true)
    }

    /// Takes the first usage word that no living member holds.
    fn try_lock_usage(&self, number: u32) -> Result<Option<UsageLock>> {
        invariant!(!self.has_lock(LockSlot::Leaf), "a second usage word is locked");
        let own = u64::from(self.index());
        for stripe in own..own + USAGE_STRIPES as u64 {
            let at = usage::stripe_at(number, stripe);
            if let Some(payload) = self.try_acquire(at, LockSlot::Leaf)? {
                return Ok(Some(UsageLock { at, payload }));
            }
        }
        Ok(None)
    }
}
