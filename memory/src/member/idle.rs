//! Excludes the operations of a member and members that take cells from its queues
//! (`docs/decisions/017-idle-memory.md`; `heap/idle.rs`).
//!
//! The queues and the bump ranges of an arena belong to its member, which changes them with plain
//! stores. A member that finds the heap full may take cells out of the arena of another one between
//! two operations of that one.
//!
//! ```text
//! owner                                    taker
//! B1  active = 1                           T1  lock: 0 -> taker   (CAS, acquire)
//! B2  light barrier    pairs with T2       T2  heavy barrier      pairs with B2
//! B3  lock has no owner (acquire), else    T3  active = 0 (acquire), else T5
//!     active = 0, wait, from B1            T4  take cells
//! B4  the operation                        T5  lock: 0            (release)
//! B5  active = 0       (release)           pairs with T3
//! ```
//!
//! Either B3 sees T1, or T3 sees B1. An operation costs its member two stores and a load in a line
//! of its own arena, and no locked instruction.

use std::time::{Duration, Instant};

use nearstate_model::{Error, Result, invariant};

use crate::atomic::{AtomicU64, Ordering, compiler_fence, fence, mutant};
use crate::layout::Corruption;
use crate::member::arena::{Arena, undo};
use crate::member::{LOCK_WAIT_MAX, Member, lock};
use crate::system::barrier_everywhere;

/// How often a member that waits for a taker checks whether the taker is alive.
const PROBE_EVERY: Duration = Duration::from_micros(200);

/// B1 to B3. False if another member takes cells: then the operation must not begin.
#[inline]
pub(crate) fn begin(active: &AtomicU64, taker: &AtomicU64, is_fenced: bool) -> bool {
    active.store(1, Ordering::Relaxed);
    if is_fenced && !mutant("active-no-fence") {
        fence(Ordering::SeqCst);
    } else {
        compiler_fence(Ordering::SeqCst);
    }
    let order = if mutant("taker-relaxed") { Ordering::Relaxed } else { Ordering::Acquire };
    lock::owner_of(taker.load(order)) == 0 || mutant("taker-unchecked")
}

/// B5.
#[inline]
pub(crate) fn end(active: &AtomicU64) {
    let order = if mutant("idle-relaxed") { Ordering::Relaxed } else { Ordering::Release };
    active.store(0, order);
}

/// T2 and T3. True if the member is between two operations, and waits before the next one.
pub(crate) fn is_idle(active: &AtomicU64, heavy: impl Fn() -> bool) -> bool {
    (mutant("taker-no-barrier") || heavy())
        && (active.load(Ordering::Acquire) == 0 || mutant("active-unchecked"))
}

impl Member {
    /// Begins an operation. False if another member takes cells of this one: then it has not begun.
    #[inline]
    pub(crate) fn begin_operation(&self) -> bool {
        debug_assert!(!self.is_active.get(), "an operation begins within another one");
        let arena = self.arena();
        self.is_active.set(true);
        begin(arena.word(undo::ACTIVE), arena.word(undo::TAKER), self.shared().is_fenced)
    }

    /// True while this member carries out an operation: only then it may change its queues.
    #[inline]
    pub(crate) fn is_in_operation(&self) -> bool {
        self.is_active.get()
    }

    /// Ends the operation that [`Member::begin_operation`] began.
    #[inline]
    pub(crate) fn end_operation(&self) {
        self.is_active.set(false);
        end(self.arena().word(undo::ACTIVE));
    }

    /// Continues the operation in which the last member of this slot died, if there was one: no
    /// other member has taken cells since it began.
    pub(crate) fn resume_operation(&self) {
        self.is_active.set(self.arena().get(undo::ACTIVE) != 0);
    }

    /// Waits until no other member takes cells of this one, and begins the operation.
    ///
    /// # Errors
    /// `Stalled`: a process that is stopped takes cells of this member.
    #[cold]
    #[inline(never)]
    pub(crate) fn wait_for_taker(&self) -> Result<()> {
        invariant!(self.has_no_lock(), "a member waits for a taker while it holds a lock");
        let since = Instant::now();
        loop {
            self.end_operation();
            self.wait_until_not_taken(self.arena().word(undo::TAKER), since)?;
            if self.begin_operation() {
                return Ok(());
            }
        }
    }

    /// Waits until the lock of a taker is free, for [`LOCK_WAIT_MAX`] at most. Recovers a dead
    /// taker.
    fn wait_until_not_taken(&self, taker: &AtomicU64, mut since: Instant) -> Result<()> {
        let mut probed = Instant::now();
        loop {
            let seen = taker.load(Ordering::Acquire);
            let owner = lock::owner_of(seen);
            if owner == 0 {
                return Ok(());
            }
            std::thread::yield_now();
            let now = Instant::now();
            if now.duration_since(probed) < PROBE_EVERY {
                continue;
            }
            probed = now;
            if owner == self.lock_owner() {
                return Err(Corruption("a member takes cells of itself").into());
            }
            let index = lock::member_of(owner);
            if self.recover_if_dead(index)? {
                self.check_lock_owner(taker, owner)?;
            } else if now.duration_since(since) > LOCK_WAIT_MAX {
                if self.waits_on(taker, seen, index)? {
                    since = now;
                    continue;
                }
                return Err(Error::Stalled { holder: self.holder(index)? });
            }
        }
    }

    /// T2: true if the barrier was executed.
    pub(crate) fn heavy_barrier(&self) -> bool {
        if self.shared().is_fenced {
            fence(Ordering::SeqCst);
            return true;
        }
        barrier_everywhere()
    }

    /// Begins an operation in the name of a dead member, if its undo record says that its queues
    /// are to be changed: a living member may be taking cells out of them.
    pub(crate) fn begin_for_dead(&self, arena: &Arena<'_>) -> Result<()> {
        let (active, taker) = (arena.word(undo::ACTIVE), arena.word(undo::TAKER));
        if active.load(Ordering::Acquire) != 0 || !arena.has_open_record() {
            return Ok(());
        }
        active.store(1, Ordering::Relaxed);
        if !self.heavy_barrier() {
            end(active);
            return Err(
                Corruption("the kernel refuses membarrier(2) to an attached process").into()
            );
        }
        if let Err(error) = self.wait_until_not_taken(taker, Instant::now()) {
            end(active);
            return Err(error);
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::fixture::{TestRegionPath, damage_undo_record, kill};
    use crate::member::pin::STALLED_EPOCHS;
    use crate::region::file::{CreateOptions, Region};
    use crate::region::member_table::{state, state_of};

    /// A reader was killed in a view. A process that takes cells of it is stopped. Others advance
    /// the epoch without waiting, and recover the reader when they can.
    #[test]
    fn a_stopped_taker_of_a_dead_reader_holds_up_no_advance() {
        let path = TestRegionPath::new("dead-reader");
        let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
        let [writer, reader, taker] = [(), (), ()].map(|()| region.member().unwrap());
        std::mem::forget(reader.pin().unwrap());
        // Its undo record is open: recovery excludes takers.
        reader.operation(|| reader.allocate(100)).unwrap();
        let index = kill(reader);
        let slot = state_of(writer.map(), index).unwrap();
        let arena = Arena::new(writer.map(), index, false).unwrap();
        arena.word(undo::TAKER).store(taker.lock_owner() << 48, Ordering::Relaxed);
        for advance in 0..3 * STALLED_EPOCHS {
            let advanced = writer.operation(|| writer.advance());
            advanced.unwrap_or_else(|error| panic!("advance {advance}: {error}"));
        }
        assert_eq!(state::of(slot.load(Ordering::Relaxed)), state::ALIVE);
        arena.word(undo::TAKER).store(0, Ordering::Relaxed);
        writer.operation(|| writer.advance()).unwrap();
        assert_eq!(state::of(slot.load(Ordering::Relaxed)), state::FREE);
    }

    /// A reader was killed in a view, and its undo record is damaged: sessions open and the epoch
    /// advances without its recovery.
    #[test]
    fn a_damaged_dead_reader_holds_up_no_session_and_no_advance() {
        let path = TestRegionPath::new("damaged-reader");
        let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
        let [writer, reader] = [(), ()].map(|()| region.member().unwrap());
        std::mem::forget(reader.pin().unwrap());
        damage_undo_record(&reader);
        let index = kill(reader);
        for advance in 0..3 * STALLED_EPOCHS {
            let advanced = writer.operation(|| writer.advance());
            advanced.unwrap_or_else(|error| panic!("advance {advance}: {error}"));
        }
        region.member().unwrap();
        writer.operation(|| writer.reclaim()).unwrap();
        // What needs its recovery names the damage.
        let recovered = writer.operation(|| writer.recover_if_dead(index));
        assert!(matches!(recovered, Err(Error::Damaged { .. })), "{recovered:?}");
        let slot = state_of(writer.map(), index).unwrap().load(Ordering::Relaxed);
        assert_eq!(state::of(slot), state::ALIVE);
        drop((writer, region));
        let report = crate::check::check(path.path(), &mut |_, _| Ok(())).unwrap();
        let is_named = report.faults.iter().any(|fault| fault.contains("neither its old nor"));
        assert!(is_named, "{:?}", report.faults);
    }
}
