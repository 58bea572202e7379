//! Acquires and releases the lock words of a region.
//!
//! A lock is named in the undo record before it is acquired, so that recovery releases the locks of
//! a dead member. A waiter checks whether the holder is alive, and recovers a dead one.

use std::time::{Duration, Instant};

use nearstate_model::{Error, Result, invariant};

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::crash::{crash_point, is_planted};
use crate::layout::{Corruption, MEMBER_STATE, member_at};
use crate::member::arena::{LockSlot, undo};
use crate::member::{LOCK_WAIT_MAX, LOCK_WAIT_TOTAL, Member, lock};
use crate::region::member_table::{member_slots_used, state};

/// How often a waiting writer checks whether the lock's holder is alive. A check costs less than a
/// microsecond. A death is detected within this time, well below the promised 10 ms.
const PROBE_EVERY: Duration = Duration::from_micros(200);

/// Spins before a waiting writer yields its processor: about a microsecond, ten times as long as a
/// lock is held.
const SPINS: u32 = 64;

/// A wait for a lock that changes hands ends after this many times the bound for one holder: the
/// caller must answer some time. A lock is held for some microseconds, so a fair share of it comes
/// much earlier unless several holders are stopped in turn.
const HOLDERS_MAX: u32 = 4;

const _: () = assert!(PROBE_EVERY.as_micros() * 5 <= LOCK_WAIT_MAX.as_micros());

/// How long a wait for a lock may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockBounds {
    /// For one holder that keeps it.
    pub(crate) one: Duration,
    /// For all holders in turn.
    pub(crate) all: Duration,
}

impl LockBounds {
    /// With the usual bound for several holders.
    const fn of(one: Duration) -> Self {
        Self { one, all: one.saturating_mul(HOLDERS_MAX) }
    }
}

/// A wait for several locks in turn, which ends [`LOCK_WAIT_TOTAL`] after the first of them was
/// found busy.
#[derive(Debug, Default)]
pub(crate) struct TotalWait {
    since: Option<Instant>,
}

impl TotalWait {
    /// The bounds for one more lock. `None`: the wait is over, however often its locks change
    /// hands.
    pub(crate) fn next(&mut self, now: Instant) -> Option<LockBounds> {
        let since = *self.since.get_or_insert(now);
        let left = LOCK_WAIT_TOTAL.checked_sub(now.duration_since(since))?;
        let bounds = LockBounds { one: LOCK_WAIT_MAX.min(left), all: left };
        (!left.is_zero()).then_some(bounds)
    }
}

impl Member {
    /// Records that the undo record names this lock.
    #[inline]
    fn set_lock_named(&self, slot: LockSlot) {
        let bit = 1 << slot as u8;
        let locks = self.locks.get();
        invariant!(locks & bit == 0, "lock slot {slot:?} is in use: locks {locks:#b}");
        invariant!(locks < bit, "lock slot {slot:?} is taken after a later one: locks {locks:#b}");
        self.locks.set(locks | bit);
    }

    #[inline]
    fn set_lock_unnamed(&self, slot: LockSlot) {
        let bit = 1 << slot as u8;
        let locks = self.locks.get();
        invariant!(locks & bit != 0, "lock slot {slot:?} is not in use: locks {locks:#b}");
        self.locks.set(locks & !bit);
    }

    /// True if the undo record names a lock in this slot. The lock is then held, unless this member
    /// still waits for it.
    #[inline]
    pub(crate) fn has_lock(&self, slot: LockSlot) -> bool {
        self.locks.get() & 1 << slot as u8 != 0
    }

    /// True if the undo record names no lock. The locks of a transaction do not count: its cell
    /// names them.
    #[inline]
    pub(crate) fn has_no_lock(&self) -> bool {
        self.locks.get() == 0
    }

    /// Names a lock in the undo record. It must be named before it is taken, so that recovery finds
    /// it.
    #[inline]
    pub(crate) fn name_lock(&self, at: u64, slot: LockSlot) {
        self.set_lock_named(slot);
        debug_assert!(at != 0, "0 stands for no lock in the undo record");
        if slot == LockSlot::Bucket && is_planted("lock-unrecorded") {
            return;
        }
        self.arena().set(undo::lock(slot), at);
    }

    /// Stores a word early, if a test has planted that.
    #[inline]
    pub(crate) fn store_if_planted(&self, fault: &str, at: u64, new: u64) -> Result<()> {
        if at != 0 && is_planted(fault) {
            self.map().word(at)?.store(new, Ordering::Release);
        }
        Ok(())
    }

    /// Releases a lock early, if a test has planted that. Its holder releases it once more.
    #[inline]
    pub(crate) fn unlock_if_planted(&self, slot: LockSlot) -> Result<()> {
        if is_planted("unlock-early") {
            let word = self.map().word(self.arena().get(undo::lock(slot)))?;
            lock::release(word, word.load(Ordering::Relaxed));
        }
        Ok(())
    }

    /// Removes a lock that is not held from the undo record.
    #[inline]
    pub(crate) fn unname_lock(&self, slot: LockSlot) {
        self.set_lock_unnamed(slot);
        self.arena().set(undo::lock(slot), 0);
    }

    /// Acquires a lock word and names it in the undo record. Returns the payload.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every write has one use of it")]
    pub(crate) fn acquire(&self, at: u64, slot: LockSlot) -> Result<u64> {
        self.acquire_within(at, slot, LOCK_WAIT_MAX)
    }

    /// As [`Member::acquire`], but waits at most `bound` for a living holder: for work that can be
    /// skipped.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    pub(crate) fn acquire_within(&self, at: u64, slot: LockSlot, bound: Duration) -> Result<u64> {
        self.acquire_word((at, self.map().word(at)?), slot, bound)
    }

    /// As [`Member::acquire_within`], given the lock word.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    pub(crate) fn acquire_word(
        &self,
        (at, word): (u64, &AtomicU64),
        slot: LockSlot,
        bound: Duration,
    ) -> Result<u64> {
        self.name_lock(at, slot);
        crash_point!("lock.recorded");
        match lock::try_take(word, self.lock_owner()) {
            Ok(payload) => {
                crash_point!("lock.taken");
                Ok(payload)
            }
            Err(_) => match self.wait_for(word, bound) {
                Ok(payload) => Ok(payload),
                Err(error) => {
                    self.unname_lock(slot);
                    Err(error)
                }
            },
        }
    }

    /// As [`Member::acquire_within`], for a caller that has waited for other locks before.
    #[cold]
    pub(crate) fn acquire_bounded(
        &self,
        at: u64,
        slot: LockSlot,
        bounds: LockBounds,
    ) -> Result<u64> {
        let word = self.map().word(at)?;
        self.name_lock(at, slot);
        crash_point!("lock.recorded");
        self.wait_bounded(word, bounds).inspect_err(|_| self.unname_lock(slot))
    }

    /// Acquires a lock word unless a living member holds it: for work that other members do as
    /// well. Recovers a dead holder. Returns the payload.
    pub(crate) fn try_acquire(&self, at: u64, slot: LockSlot) -> Result<Option<u64>> {
        let word = self.map().word(at)?;
        self.name_lock(at, slot);
        for _ in 0..2 {
            match lock::try_take(word, self.lock_owner()) {
                Ok(payload) => return Ok(Some(payload)),
                // Released between the load and the swap: try once more.
                Err(0) => {}
                Err(owner) => match self.recover_if_dead(lock::member_of(owner)) {
                    Ok(true) => {}
                    // A living holder: the caller does without.
                    Ok(false) => break,
                    Err(error) => {
                        self.unname_lock(slot);
                        return Err(error);
                    }
                },
            }
        }
        self.unname_lock(slot);
        Ok(None)
    }

    /// Releases a lock that [`Member::acquire`] took.
    #[inline]
    pub(crate) fn release(&self, at: u64, slot: LockSlot, payload: u64) -> Result<(), Corruption> {
        self.release_word(self.map().word(at)?, slot, payload);
        Ok(())
    }

    /// As [`Member::release`], given the lock word.
    #[inline]
    pub(crate) fn release_word(&self, word: &AtomicU64, slot: LockSlot, payload: u64) {
        lock::release(word, payload);
        crash_point!("lock.released");
        self.unname_lock(slot);
    }

    /// Waits for a lock word that another member holds, and takes it. The caller has named it in
    /// the undo record.
    #[cold]
    pub(crate) fn wait_for(&self, word: &AtomicU64, bound: Duration) -> Result<u64> {
        self.wait_bounded(word, LockBounds::of(bound))
    }

    fn wait_bounded(&self, word: &AtomicU64, bounds: LockBounds) -> Result<u64> {
        let one = bounds.one;
        invariant!(one <= LOCK_WAIT_MAX, "a lock wait of {one:?} exceeds the bound");
        let since = Instant::now();
        let mut wait = LockWait::new(since, bounds);
        let mut probed = since;
        let mut spins = 0;
        loop {
            let owner = match lock::try_take(word, self.lock_owner()) {
                Ok(payload) => return Ok(payload),
                Err(owner) => owner,
            };
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
                continue;
            }
            std::thread::yield_now();
            let now = Instant::now();
            if owner == 0 || now.duration_since(probed) < PROBE_EVERY {
                continue;
            }
            if owner == self.lock_owner() {
                // The word lies in shared memory: another process may have written it.
                return Err(Error::from(Corruption(
                    "a lock is held by the member that waits for it",
                )));
            }
            probed = now;
            let index = lock::member_of(owner);
            if self.recover_if_dead(index)? {
                self.check_lock_owner(word, owner)?;
                continue;
            }
            let seen = word.load(Ordering::Relaxed);
            if wait.is_over(seen, now) {
                // A caller that can do without the lock asks for less, and does.
                let is_long = one >= LOCK_WAIT_MAX;
                if is_long && wait.is_kept(now) && self.waits_on(word, seen, index)? {
                    wait = LockWait::new(now, bounds);
                    continue;
                }
                return Err(Error::Stalled { holder: self.holder(index)? });
            }
        }
    }

    /// Checks that a member exists that a lock or a slot names. Behind the table are pages that the
    /// file need not have, and the catalog.
    #[cold]
    pub(crate) fn check_member(&self, index: u32) -> Result<(), Corruption> {
        // The slot was added before another word could name it.
        fence(Ordering::Acquire);
        if index < member_slots_used(self.map())? {
            return Ok(());
        }
        Err(Corruption("a lock or a member slot names a member that does not exist"))
    }

    /// Reports corruption if a lock's owner is a slot that was free before and after the lock was
    /// read: a slot becomes free only after its locks. Without this check a waiter would wait
    /// forever.
    pub(crate) fn check_lock_owner(&self, word: &AtomicU64, owner: u64) -> Result<(), Corruption> {
        let index = lock::member_of(owner);
        self.check_member(index)?;
        let slot = self.map().word(member_at(index) + MEMBER_STATE)?;
        let before = slot.load(Ordering::Acquire);
        let is_owned = lock::owner_of(word.load(Ordering::Acquire)) == owner;
        if state::of(before) == state::FREE && is_owned && slot.load(Ordering::Acquire) == before {
            return Err(Corruption("a lock is held by a member that does not exist"));
        }
        Ok(())
    }
}

/// How long a member waits for a lock: a word that changes is a lock in
/// use, one that does not change may belong to a process that was stopped.
#[derive(Debug)]
struct LockWait {
    since: Instant,
    bounds: LockBounds,
    /// The word at the last look, and since when it has been that.
    word: u64,
    unchanged_since: Instant,
}

impl LockWait {
    const fn new(since: Instant, bounds: LockBounds) -> Self {
        Self { since, bounds, word: 0, unchanged_since: since }
    }

    /// True if one holder has kept the lock for its bound.
    fn is_kept(&self, now: Instant) -> bool {
        now.duration_since(self.unchanged_since) > self.bounds.one
    }

    /// True if the wait is over: one holder has kept the lock for its bound, or several for theirs.
    /// `word` is the lock's word at `now`.
    fn is_over(&mut self, word: u64, now: Instant) -> bool {
        if word != self.word {
            (self.word, self.unchanged_since) = (word, now);
        }
        self.is_kept(now) || now.duration_since(self.since) > self.bounds.all
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::fixture::{TestRegionPath, put_key};
    use crate::region::file::{CreateOptions, Region};
    use crate::region::member_table::state_of;

    const BOUND: Duration = Duration::from_millis(100);

    /// Milliseconds after the begin at which a wait is over. `word_at` is the lock's word at a
    /// time.
    fn over_after(word_at: impl Fn(u64) -> u64) -> u64 {
        let since = Instant::now();
        let mut wait = LockWait::new(since, LockBounds::of(BOUND));
        let mut times = 0..;
        times
            .find(|&ms| wait.is_over(word_at(ms), since + Duration::from_millis(ms)))
            .unwrap_or_default()
    }

    #[test]
    fn a_wait_for_one_holder_ends_at_the_bound() {
        assert_eq!(over_after(|_| 7), 101);
    }

    #[test]
    fn a_holder_is_named_only_if_it_kept_the_lock_for_the_bound() {
        // Until 250 ms the lock changes hands, then one holder is stopped.
        assert_eq!(over_after(|ms| (ms / 50).min(5)), 351);
    }

    #[test]
    fn a_wait_for_many_holders_ends() {
        assert_eq!(over_after(|ms| ms), 100 * u64::from(HOLDERS_MAX) + 1);
    }

    #[test]
    fn a_wait_for_several_locks_ends_although_each_of_them_changes_hands() {
        const EVERY: Duration = Duration::from_millis(3);
        let (mut wait, since) = (TotalWait::default(), Instant::now());
        let mut rounds = 0;
        while let Some(bounds) = wait.next(since + EVERY * rounds) {
            let left = LOCK_WAIT_TOTAL.saturating_sub(EVERY * rounds);
            assert_eq!((bounds.one, bounds.all), (LOCK_WAIT_MAX.min(left), left));
            rounds += 1;
        }
        assert_eq!(rounds, LOCK_WAIT_TOTAL.as_millis().div_ceil(EVERY.as_millis()) as u32);
        assert!(wait.next(since + 2 * LOCK_WAIT_TOTAL).is_none());
    }

    /// A flipped bit in the owner of a lock: the owner has no slot, and its place no page.
    #[test]
    fn a_lock_of_a_member_that_does_not_exist_is_damage_at_once() {
        const FLIPPED: u64 = 0x8000;
        let path = TestRegionPath::new("no-such-owner");
        let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
        let member = region.member().unwrap();
        let table = member.namespace(b"ue", 1).unwrap();
        let bucket = table.bucket_of(member.hash(b"key"));
        let at = table.bucket_at(member.map(), bucket).unwrap();
        let word = member.map().word(at).unwrap();
        let before = word.fetch_or(FLIPPED << 48, Ordering::Relaxed);
        let slot = member_at(lock::member_of(FLIPPED));
        for _ in 0..2 {
            let refused = put_key(&member, table, b"key");
            assert!(matches!(refused, Err(Error::Damaged { .. })), "{refused:?}");
            assert!(!member.map().is_allocated(slot), "a page outside of the table is read");
        }
        word.store(before, Ordering::Relaxed);
        // The same in the slot of a member that is being recovered.
        let other = region.member().unwrap().index();
        let state_word = state_of(member.map(), other).unwrap();
        let recovering = state::make(state::RECOVERING, FLIPPED, 1);
        state_word.store(recovering, Ordering::Relaxed);
        let refused = member.operation(|| member.recover_if_dead(other));
        assert!(matches!(refused, Err(Error::Damaged { .. })), "{refused:?}");
        assert!(!member.map().is_allocated(slot), "a page outside of the table is read");
    }
}
