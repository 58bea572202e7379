//! Models of a member slot: claimed, recovered and claimed from the dead without a lock, and never
//! by two; and of the numbers that tell the dead from the living.

use loom::cell::UnsafeCell;
use loom::sync::Arc;

use super::{check, read, start, wait_for, write};
use crate::atomic::{AtomicU64, Ordering, mutant};
use crate::region::drop_mark::{close, look};
use crate::region::member_state as state;

/// What can be planted, and the model that must fail then.
pub(super) const MUTANTS: &[(&str, &str)] = &[
    ("win-without-swap", RECOVERY),
    ("free-relaxed", RECOVERY),
    ("claim-relaxed", RECOVERY),
    ("claim-same-incarnation", RECOVERY),
    ("win-without-swap", ADOPTION),
    ("claim-without-swap", ADOPTION),
    ("alive-relaxed", ADOPTION),
    ("claim-without-swap", CLAIM),
    ("scan-before-lock", NUMBER),
    ("give-up-with-number", GIVE_UP),
    ("drop-no-fence", DROP),
    ("open-no-fence", DROP),
    ("give-back-without-swap", REPAIR),
    ("reset-without-swap", REPAIR),
    ("claim-unverified", REPAIR),
    ("drop-no-fence", REPAIR),
];

const RECOVERY: &str = "member_slot::the_winner_recovers_alone_and_never_the_next_owner";
const ADOPTION: &str = "member_slot::the_slot_of_a_dead_member_has_one_next_owner";
const CLAIM: &str = "member_slot::a_free_slot_has_one_next_owner";
const NUMBER: &str = "member_slot::a_number_that_a_slot_names_belongs_to_no_later_process";
const GIVE_UP: &str = "member_slot::a_recovery_that_fails_does_not_revive_the_dead";
const DROP: &str = "member_slot::no_session_opens_in_a_region_that_is_dropped";
const REPAIR: &str = "member_slot::a_slot_that_a_repair_makes_free_has_one_next_owner";

/// The number of the process that died, and of two that live.
const DEAD: u64 = 5;
const LIVING: [u64; 2] = [7, 8];

/// A slot of the member table, with what only its owner or its recoverer may touch.
struct Slot {
    word: AtomicU64,
    arena: UnsafeCell<u64>,
    identity: UnsafeCell<u64>,
    owners: AtomicU64,
}

fn slot(word: u64) -> Arc<Slot> {
    Arc::new(Slot {
        word: AtomicU64::new(word),
        arena: UnsafeCell::new(0),
        identity: UnsafeCell::new(DEAD),
        owners: AtomicU64::new(0),
    })
}

const DEAD_WORD: u64 = state::make(state::ALIVE, DEAD, 3);

impl Slot {
    /// A recoverer has found the dead member in state `seen`.
    fn recover(&self, seen: u64, me: u64) {
        if !state::win(&self.word, seen, me) {
            return;
        }
        let word = self.word.load(Ordering::Relaxed);
        assert_eq!((state::of(word), state::recoverer(word)), (state::RECOVERING, me));
        self.owners.fetch_add(1, Ordering::Relaxed);
        write(&self.arena, me);
        state::free(&self.word, seen);
    }

    /// A process claims the slot that it found in state `seen`.
    fn claim(&self, seen: u64, process: u64) -> bool {
        let Some(claimed) = state::claim(&self.word, seen, process) else { return false };
        self.owners.fetch_add(1, Ordering::Relaxed);
        write(&self.identity, process);
        write(&self.arena, process);
        assert!(state::set_alive(&self.word, claimed), "a living process lost its slot");
        true
    }

    /// A process claims the slot if it is free.
    fn claim_if_free(&self, process: u64) -> bool {
        let seen = self.word.load(Ordering::Relaxed);
        state::of(seen) == state::FREE && self.claim(seen, process)
    }

    /// Any process reads the identity.
    fn look(&self) {
        let seen = self.word.load(Ordering::Acquire);
        if state::of(seen) == state::ALIVE && seen != DEAD_WORD {
            assert_eq!(read(&self.identity), state::process(seen), "another process's identity");
        }
    }
}

#[test]
fn the_winner_recovers_alone_and_never_the_next_owner() {
    check(|| {
        let shared = slot(DEAD_WORD);
        let recovering = [1, 2].map(|me| start(&shared, move |slot| slot.recover(DEAD_WORD, me)));
        // No slot names the number any more, so the next owner may have the same.
        let claiming = start(&shared, |slot| {
            slot.claim_if_free(DEAD);
        });
        wait_for(recovering);
        wait_for([claiming]);
        let word = shared.word.load(Ordering::Relaxed);
        let owners = if state::of(word) == state::FREE { 1 } else { 2 };
        assert_eq!(shared.owners.load(Ordering::Relaxed), owners);
        let alive = state::make(state::ALIVE, DEAD, 4);
        assert!(word == state::make(state::FREE, 0, 3) || word == alive, "{word:#x}");
    });
}

#[test]
fn the_slot_of_a_dead_member_has_one_next_owner() {
    check(|| {
        let shared = slot(DEAD_WORD);
        let claiming = LIVING.map(|process| {
            start(&shared, move |slot| {
                let _ = slot.claim(DEAD_WORD, process) || slot.claim_if_free(process);
            })
        });
        let recovering = start(&shared, |slot| {
            slot.look();
            slot.recover(DEAD_WORD, 1);
        });
        wait_for(claiming);
        wait_for([recovering]);
        let word = shared.word.load(Ordering::Relaxed);
        let owners = shared.owners.load(Ordering::Relaxed);
        match state::of(word) {
            state::FREE => assert_eq!((owners, state::incarnation(word)), (1, 3)),
            _ => assert_eq!((owners <= 2, state::incarnation(word)), (true, 4)),
        }
    });
}

#[test]
fn a_free_slot_has_one_next_owner() {
    check(|| {
        let shared = slot(state::make(state::FREE, 0, 3));
        let claiming = LIVING.map(|process| {
            start(&shared, move |slot| {
                slot.claim_if_free(process);
            })
        });
        wait_for(claiming);
        assert_eq!(shared.owners.load(Ordering::Relaxed), 1);
        assert_eq!(state::incarnation(shared.word.load(Ordering::Relaxed)), 4);
    });
}

/// A slot's word, the lock of the dead process's number, and whether a later process took it.
struct NumberModel {
    word: AtomicU64,
    lock: AtomicU64,
    is_taken: AtomicU64,
}

impl NumberModel {
    fn is_named(&self) -> bool {
        let word = self.word.load(Ordering::Acquire);
        state::is_owned(word) && state::process(word) == DEAD
    }

    /// A process that attaches: as `LivenessLock::acquire`.
    fn take(&self) {
        let early = mutant("scan-before-lock") && !self.is_named();
        let order = Ordering::Acquire;
        if self.lock.compare_exchange(0, 1, order, Ordering::Relaxed).is_ok() {
            let is_free = if mutant("scan-before-lock") { early } else { !self.is_named() };
            self.is_taken.store(u64::from(is_free), Ordering::Relaxed);
        }
    }

    fn check(&self) {
        let is_taken = self.is_taken.load(Ordering::Relaxed) == 1;
        assert!(!is_taken || !self.is_named(), "a dead member looks alive");
    }
}

#[test]
fn a_number_that_a_slot_names_belongs_to_no_later_process() {
    check(|| {
        let shared = Arc::new(NumberModel {
            word: AtomicU64::new(state::make(state::FREE, 0, 3)),
            lock: AtomicU64::new(1),
            is_taken: AtomicU64::new(0),
        });
        let dying = start(&shared, |number| {
            let seen = number.word.load(Ordering::Relaxed);
            state::claim(&number.word, seen, DEAD).unwrap();
            // The kernel releases the lock of a process that was killed.
            number.lock.store(0, Ordering::Release);
        });
        let attaching = start(&shared, NumberModel::take);
        wait_for([dying, attaching]);
        shared.check();
    });
}

#[test]
fn a_recovery_that_fails_does_not_revive_the_dead() {
    check(|| {
        let shared = Arc::new(NumberModel {
            word: AtomicU64::new(DEAD_WORD),
            lock: AtomicU64::new(0),
            is_taken: AtomicU64::new(0),
        });
        let recovering = start(&shared, |number| {
            assert!(state::win(&number.word, DEAD_WORD, 1));
            state::give_up(&number.word, DEAD_WORD);
        });
        let attaching = start(&shared, NumberModel::take);
        wait_for([recovering, attaching]);
        shared.check();
    });
}

#[test]
fn no_session_opens_in_a_region_that_is_dropped() {
    check(|| {
        // The drop mark, a slot's word; whether the file was removed and a session opened.
        let shared = Arc::new([0, 0, 0, 0].map(AtomicU64::new));
        let dropping = start(&shared, |[mark, slot, removed, _]| {
            assert!(close(mark, 1));
            if state::of(slot.load(Ordering::Acquire)) == state::FREE {
                removed.store(1, Ordering::Relaxed);
            }
        });
        let opening = start(&shared, |[mark, slot, _, opened]| {
            state::claim(slot, 0, LIVING[0]).unwrap();
            if look(mark) == 0 {
                opened.store(1, Ordering::Relaxed);
            }
        });
        wait_for([dropping, opening]);
        let [_, _, removed, opened] = &*shared;
        let both = removed.load(Ordering::Relaxed) + opened.load(Ordering::Relaxed);
        assert!(both < 2, "a session is open in a file that was removed");
    });
}

#[test]
fn a_slot_that_a_repair_makes_free_has_one_next_owner() {
    check(|| {
        // The drop mark, a slot's word, the sessions that opened.
        let shared = Arc::new([0, 0, 0].map(AtomicU64::new));
        let repairing = start(&shared, |[mark, slot, _]| {
            assert!(close(mark, 1));
            if state::of(slot.load(Ordering::Acquire)) == state::FREE {
                state::reset(slot);
            }
            mark.store(0, Ordering::Release);
        });
        let opening = [(), ()].map(|()| {
            start(&shared, |[mark, slot, opened]| {
                let seen = slot.load(Ordering::Acquire);
                if state::of(seen) != state::FREE {
                    return;
                }
                let Some(claimed) = state::claim(slot, seen, LIVING[0]) else { return };
                if look(mark) == 0 && state::is_claimed(slot, claimed) {
                    opened.fetch_add(1, Ordering::Relaxed);
                } else {
                    state::give_back(slot, seen, claimed);
                }
            })
        });
        wait_for([repairing]);
        wait_for(opening);
        let [_, slot, opened] = &*shared;
        let is_owned = state::is_owned(slot.load(Ordering::Relaxed));
        assert_eq!(opened.load(Ordering::Relaxed), u64::from(is_owned), "sessions of a slot");
    });
}
