//! Locks the bucket of a key (`spec/region.md`, section 3).

use nearstate_model::Result;

use crate::atomic::AtomicU64;
use crate::index::batch::BucketPlace;
use crate::index::bucket::depth_of;
use crate::index::lookup::find_bucket;
use crate::member::arena::LockSlot;
use crate::member::{LOCK_WAIT_MAX, Member};
use crate::region::index_table::IndexTable;
use crate::region::linear_hash::step;

/// A bucket that this member has locked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockedBucket<'m> {
    /// Offset of its line.
    pub(crate) at: u64,
    /// The first word of its line, which is the lock.
    pub(crate) word: &'m AtomicU64,
    /// The payload of the lock when it was taken.
    pub(crate) payload: u64,
}

impl Member {
    /// Locks the bucket that holds a hash. `place` is what is known about it.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its answer would travel through memory")]
    pub(crate) fn lock_bucket(
        &self,
        table: &IndexTable,
        hash: u64,
        place: BucketPlace,
    ) -> Result<LockedBucket<'_>> {
        let (bucket, at) = self.locate_bucket(table, hash, place)?;
        let word = self.map().word(at)?;
        let payload = self.acquire_word((at, word), LockSlot::Bucket, LOCK_WAIT_MAX)?;
        if step(hash, bucket, depth_of(payload)).is_none() {
            return Ok(LockedBucket { at, word, payload });
        }
        self.release_word(word, LockSlot::Bucket, payload);
        self.lock_split_bucket(table, hash)
    }

    /// As [`Member::lock_bucket`], if the bucket was split, perhaps while this member waited.
    #[cold]
    fn lock_split_bucket(&self, table: &IndexTable, hash: u64) -> Result<LockedBucket<'_>> {
        loop {
            let (bucket, at, _) = find_bucket(self.map(), table, hash)?;
            let word = self.map().word(at)?;
            let payload = self.acquire_word((at, word), LockSlot::Bucket, LOCK_WAIT_MAX)?;
            if step(hash, bucket, depth_of(payload)).is_none() {
                return Ok(LockedBucket { at, word, payload });
            }
            self.release_word(word, LockSlot::Bucket, payload);
        }
    }
}
