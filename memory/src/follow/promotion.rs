//! A copy becomes an owner's region: the generation of its versions, which nothing has had
//! (`docs/decisions/025-follow.md`).

use nearstate_model::{Error, Result, invariant};

use super::{FollowState, load, store, stored_stamp};
use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::index::bucket::{
    CHANGES_UNKNOWN_MAX, GENERATION_SHIFT, PROMOTION_STAMP_MAX, VERSION_MAX, control, depth_of,
    stamp_of, version_count,
};
use crate::layout::{FOLLOW_STATE, PROMOTION_STAMP, seal};
use crate::member::Member;
use crate::member::arena::LockSlot;
use crate::member::lock;
use crate::region::catalog::stamp_floor;
use crate::region::index_table::IndexTable;

/// Buckets whose generation is raised in one step of a promotion: less than a millisecond.
const BUCKETS_PER_STEP: u64 = 4096;

/// The first stamp of a generation that no record has, if this is the highest one that is known.
const fn generation_behind(highest: u64) -> u64 {
    let unknown = highest.saturating_add(CHANGES_UNKNOWN_MAX);
    (unknown >> GENERATION_SHIFT).saturating_add(1) << GENERATION_SHIFT
}

impl Member {
    /// A promotion begins: the copy may have applied something since an earlier one, so no stamp is
    /// chosen. One that is repeated keeps its stamp. The caller has the follower's lock.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn begin_promotion(&self) -> Result<()> {
        if load(self.map(), FOLLOW_STATE)? != seal(FollowState::Promoting.code()) {
            // Before the state: the stamp of an earlier promotion never counts in this one.
            store(self.map(), PROMOTION_STAMP, 0)?;
            crash_point!("promote.cleared");
        }
        self.set_follow_state(Some(FollowState::Promoting))
    }

    /// The stamp that the present promotion has chosen ([`Member::choose_promotion_stamp`]); `None`
    /// if it has chosen none, or if the word is damaged: then another one is chosen.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn promotion_stamp(&self) -> Result<Option<u64>> {
        let chosen = stored_stamp(self.map()).unwrap_or(0);
        Ok(Some(chosen).filter(|stamp| (1..VERSION_MAX).contains(stamp)))
    }

    /// Chooses the first stamp of a generation that nothing has had: `stamp` and `version` are the
    /// highest ones of the followed namespaces. It is stored before a bucket gets it, so that a
    /// promotion that fails takes one generation, however often it is repeated. The caller has the
    /// follower's lock.
    ///
    /// # Errors
    /// `Full`: the generations are used up; `Damaged`, `Forked`.
    pub fn choose_promotion_stamp(&self, stamp: u64, version: u64) -> Result<u64> {
        self.check_usable()?;
        let highest = stamp.max(version_count(version)).max(stamp_floor(self.map())?);
        let stamp = generation_behind(highest);
        invariant!(stamp > highest, "generation {stamp:#x} repeats version {highest:#x}");
        if stamp > PROMOTION_STAMP_MAX {
            let detail = "its records have no versions left for another promotion: copy them to \
                          another region";
            return Err(Error::Full { detail: detail.to_owned(), heap: None });
        }
        store(self.map(), PROMOTION_STAMP, seal(stamp))?;
        crash_point!("promote.chosen");
        self.check_not_truncated()?;
        Ok(stamp)
    }

    /// How many promotions are left to the hosts that have the same records, of
    /// [`PROMOTIONS_MAX`](crate::PROMOTIONS_MAX), as far as this region knows. Fewer, if records
    /// have changed more often than a generation has versions.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn promotions_left(&self) -> Result<u64> {
        let next = generation_behind(stamp_floor(self.map())?);
        let rest = PROMOTION_STAMP_MAX.checked_sub(next);
        Ok(rest.map_or(0, |rest| (rest >> GENERATION_SHIFT) + 1))
    }

    /// Raises the stamps of all buckets of a namespace to the one that a promotion has chosen, so
    /// that each later version is higher than any that the followed log has given. Can be repeated.
    /// `step` is called again and again meanwhile.
    ///
    /// Complexity: linear in the number of buckets, about 30 ns each.
    ///
    /// # Errors
    /// `Stalled`, `Damaged`.
    pub fn raise_generation(&self, table: &IndexTable, raised: u64, step: &dyn Fn()) -> Result<()> {
        self.check_usable()?;
        invariant!(self.has_no_lock(), "generations are raised while this member holds a lock");
        let mut bucket = 0;
        while bucket < table.refresh(self.map())? {
            let at = table.bucket_at(self.map(), bucket)?;
            self.operation(|| {
                let payload = self.acquire(at, LockSlot::Bucket)?;
                let stamp = stamp_of(payload).max(raised);
                let word = self.map().word(at)?;
                lock::hold_with(word, self.lock_owner(), control(depth_of(payload), stamp));
                crash_point!("follow.raised");
                let payload = word.load(Ordering::Relaxed) & lock::PAYLOAD;
                Ok(self.release(at, LockSlot::Bucket, payload)?)
            })?;
            bucket += 1;
            if bucket.is_multiple_of(BUCKETS_PER_STEP) {
                step();
            }
        }
        Ok(())
    }

    /// The highest stamp of a bucket of a namespace: no record that it has had had a higher
    /// version, unless it has one now.
    ///
    /// Complexity: linear in the number of buckets.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn highest_stamp(&self, table: &IndexTable) -> Result<u64> {
        let (mut bucket, mut highest) = (0, 0);
        while bucket < table.refresh(self.map())? {
            let at = table.bucket_at(self.map(), bucket)?;
            highest = highest.max(stamp_of(self.map().word(at)?.load(Ordering::Acquire)));
            bucket += 1;
        }
        Ok(highest)
    }
}
