//! The holder of a lock for which a session has waited in vain, and what its caller may do about it
//! (`docs/decisions/035-stopped-holders.md`).

use std::cell::RefCell;
use std::fmt;

use nearstate_model::{Holder, Result};

use crate::atomic::{AtomicU64, Ordering};
use crate::layout::{MEMBER_PROCESS_CHECK, member_at};
use crate::member::{Member, is_process_dead, lock};
use crate::region::liveness::process_check;
use crate::region::member_table::{names_its_process, state, state_of};

/// A process that has kept a lock for a wait's bound, or that has not completed the recovery of a
/// dead session with the lock in this time.
#[derive(Debug)]
pub struct StalledHolder<'m> {
    member: &'m Member,
    lock: &'m AtomicU64,
    word: u64,
    /// The slot of the lock's owner, or of the member that recovers it.
    slot: u32,
    /// The state word of its slot, read before its process id.
    state: u64,
    process: Holder,
}

/// Which session holds which lock since when: equal as long as it was not given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLock {
    lock: usize,
    word: u64,
    state: u64,
}

/// What a session does that has waited for a lock for the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StallDecision {
    /// It answers `Stalled`.
    GiveUp,
    /// It waits for the bound once more.
    WaitOn,
}

/// Decides about a wait.
pub type StallHook = Box<dyn Fn(&StalledHolder<'_>) -> StallDecision + Send>;

/// The hook of a session, if it has one.
#[derive(Default)]
pub(crate) struct StallHooks(RefCell<Option<StallHook>>);

impl fmt::Debug for StallHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StallHooks").finish_non_exhaustive()
    }
}

impl StalledHolder<'_> {
    /// The process, as its slot names it. The id may be that of another PID namespace.
    pub const fn process(&self) -> &Holder {
        &self.process
    }

    /// Which lock it holds or has to release.
    pub fn held_lock(&self) -> HeldLock {
        HeldLock { lock: std::ptr::from_ref(self.lock).addr(), word: self.word, state: self.state }
    }

    /// True if the holder is a session of this process.
    pub fn is_own_process(&self) -> bool {
        state::process(self.state) == self.member.shared().liveness.number()
    }

    /// True if the process id is the holder's in the PID namespace of this process, as long as the
    /// holder lives.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn is_of_this_namespace(&self) -> Result<bool> {
        let namespace = self.member.shared().identity.namespace;
        let at = member_at(self.slot) + MEMBER_PROCESS_CHECK;
        let stored = self.member.map().word(at)?.load(Ordering::Acquire);
        let is_same = stored == process_check(self.state, self.process.pid, namespace);
        Ok(namespace != 0 && state::of(self.state) == state::ALIVE && is_same)
    }

    /// True if the same session still holds the lock, or still recovers the one that does, and its
    /// process has lived since it was found.
    ///
    /// # Errors
    /// `Damaged`, `System`.
    pub fn still_holds(&self) -> Result<bool> {
        let map = self.member.map();
        Ok(self.lock.load(Ordering::Acquire) == self.word
            && self.member.responsible_for(lock::member_of(lock::owner_of(self.word)))?
                == self.slot
            && state_of(map, self.slot)?.load(Ordering::Acquire) == self.state
            && names_its_process(map, self.slot, self.state)?
            && !is_process_dead(self.member.shared(), state::process(self.state))?)
    }
}

impl Member {
    /// Waits of this session for a lock that one process keeps are decided by the hook from now on.
    /// It is called each time that the bound is over, and must not use the session.
    pub fn set_stall_hook(&self, hook: Option<StallHook>) {
        self.stall_hook.0.replace(hook);
    }

    /// Whether a wait goes on whose bound is over. `word`: the lock's word, which names `slot`.
    #[cold]
    pub(crate) fn waits_on(&self, lock: &AtomicU64, word: u64, slot: u32) -> Result<bool> {
        let hook = self.stall_hook.0.borrow();
        let Some(hook) = &*hook else { return Ok(false) };
        if lock::owner_of(word) != u64::from(slot) + 1 {
            return Ok(false);
        }
        let slot = self.responsible_for(slot)?;
        let state = state_of(self.map(), slot)?.load(Ordering::Acquire);
        let process = self.holder(slot)?;
        let holder = StalledHolder { member: self, lock, word, slot, state, process };
        Ok(hook(&holder) == StallDecision::WaitOn)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use nearstate_model::Error;

    use super::*;
    use crate::fixture::{TestRegionPath, kill};
    use crate::layout::MEMBER_PID;
    use crate::member::LOCK_WAIT_SHORT;
    use crate::member::arena::LockSlot;
    use crate::region::file::{CreateOptions, Region};

    /// A session with a lock word that it holds, and what another one reads of it.
    fn look(read: impl Fn(&StalledHolder<'_>, &Member, &AtomicU64)) {
        let path = TestRegionPath::new("stalled");
        let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
        let [waiter, holder] = [(), ()].map(|()| region.member().unwrap());
        let lock = AtomicU64::new(holder.lock_owner() << 48 | 7);
        let (word, slot) = (lock.load(Ordering::Relaxed), holder.index());
        let state = state_of(waiter.map(), slot).unwrap().load(Ordering::Relaxed);
        let process = waiter.holder(slot).unwrap();
        let found = StalledHolder { member: &waiter, lock: &lock, word, slot, state, process };
        assert!(found.is_of_this_namespace().unwrap() && found.still_holds().unwrap());
        assert!(found.is_own_process());
        read(&found, &holder, &lock);
    }

    #[test]
    fn a_lock_that_was_given_up_or_changed_is_not_held_any_more() {
        look(|found, holder, lock| {
            lock.store(holder.lock_owner() << 48 | 8, Ordering::Relaxed);
            assert!(!found.still_holds().unwrap());
            lock.store(7, Ordering::Relaxed);
            assert!(!found.still_holds().unwrap());
        });
    }

    #[test]
    fn a_slot_that_has_changed_its_session_holds_nothing() {
        look(|found, holder, _| {
            let word = state_of(holder.map(), holder.index()).unwrap();
            let before = word.load(Ordering::Relaxed);
            let process = state::process(before);
            let next = state::make(state::ALIVE, process, state::incarnation(before) + 1);
            word.store(next, Ordering::Relaxed);
            assert!(!found.still_holds().unwrap());
            word.store(before, Ordering::Relaxed);
        });
    }

    /// The id of a process of another namespace, a flipped bit, and a slot of an earlier version.
    #[test]
    fn a_process_id_without_its_check_value_names_no_process() {
        look(|found, holder, _| {
            let at = member_at(holder.index());
            for which in [MEMBER_PROCESS_CHECK, MEMBER_PID] {
                let word = holder.map().word(at + which).unwrap();
                let before = word.load(Ordering::Relaxed);
                for bit in 0..32 {
                    word.store(before ^ 1 << bit, Ordering::Relaxed);
                    let process = found.member.holder(found.slot).unwrap();
                    let (member, lock) = (found.member, found.lock);
                    let (word, slot, state) = (found.word, found.slot, found.state);
                    let flipped = StalledHolder { member, lock, word, slot, state, process };
                    assert!(!flipped.is_of_this_namespace().unwrap(), "{which}: bit {bit}");
                }
                word.store(before, Ordering::Relaxed);
            }
            let other = process_check(found.state, found.process.pid, 1);
            let word = holder.map().word(at + MEMBER_PROCESS_CHECK).unwrap();
            for stored in [other, 0] {
                word.store(stored, Ordering::Relaxed);
                assert!(!found.is_of_this_namespace().unwrap());
            }
        });
    }

    /// A dead session holds a lock, and the process that recovers it is stopped.
    #[test]
    fn a_stopped_recoverer_is_named_and_not_the_dead_session() {
        const PID: u32 = 4242;
        let path = TestRegionPath::new("stopped-recoverer");
        let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
        let [waiter, dead, recoverer] = [(), (), ()].map(|()| region.member().unwrap());
        let table = waiter.namespace(b"ue", 1).unwrap();
        let at = table.bucket_at(waiter.map(), 0).unwrap();
        let lock = waiter.map().word(at).unwrap();
        let word = lock.fetch_or(dead.lock_owner() << 48, Ordering::Relaxed);
        let word = dead.lock_owner() << 48 | word;
        let slot = kill(dead);
        let killed = state_of(waiter.map(), slot).unwrap();
        assert!(state::win(killed, killed.load(Ordering::Relaxed), recoverer.lock_owner()));
        let pid = member_at(recoverer.index()) + MEMBER_PID;
        waiter.map().word(pid).unwrap().store(u64::from(PID), Ordering::Relaxed);

        let refused = waiter
            .operation(|| waiter.acquire_within(at, LockSlot::Bucket, LOCK_WAIT_SHORT).map(drop));
        let is_named = matches!(&refused, Err(Error::Stalled { holder }) if holder.pid == PID);
        assert!(is_named, "{refused:?}");
        waiter.set_stall_hook(Some(Box::new(|holder| {
            assert!(holder.process().pid == PID && holder.still_holds().unwrap());
            StallDecision::WaitOn
        })));
        assert!(waiter.waits_on(lock, word, slot).unwrap());
        // Another member recovers it now.
        waiter.set_stall_hook(Some(Box::new(move |holder| {
            let map = holder.member.map();
            let next = state::make(state::RECOVERING, holder.member.lock_owner(), 1);
            state_of(map, slot).unwrap().store(next, Ordering::Relaxed);
            assert!(!holder.still_holds().unwrap());
            StallDecision::GiveUp
        })));
        assert!(!waiter.waits_on(lock, word, slot).unwrap());
    }
}
