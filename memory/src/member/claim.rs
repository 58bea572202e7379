//! Opens a session: claims a slot of the member table (`spec/region.md`, section 4).
//!
//! No step holds a lock that another process could need. A process that is stopped or killed
//! between any two steps blocks at most the slot that it claimed.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use nearstate_model::limits::MEMBERS_MAX;
use nearstate_model::{Error, Result, invariant};

use crate::atomic::{AtomicU64, Ordering};
use crate::crash::{crash_point, is_planted};
use crate::layout::{
    ARENA_BYTES, Corruption, MEMBER_BYTES, MEMBER_NAME, MEMBER_PID, MEMBER_PIN,
    MEMBER_PROCESS_CHECK, MEMBER_SINCE, QUEUES, SUPER_EPOCH, SUPER_MEMBERS, arena_at, member_at,
    seal,
};
use crate::member::arena::{Arena, Bump, undo};
use crate::member::held_since::clear_stalled;
use crate::member::pin_slot::clear_pin;
use crate::member::refusals::Refusals;
use crate::member::stalled::StallHooks;
use crate::member::{
    ALL_ASIDE, AfterFull, EvacuatedParts, Health, KnownLog, Member, Private, TABLES_KNOWN,
    is_process_dead, lock,
};
use crate::region::file::{Region, Shared};
use crate::region::liveness::process_check;
use crate::region::member_table::{
    clear_copy, has_no_copy, member_slots_used, names_its_process, set_copy, state, state_of,
};

impl Region {
    /// Opens a session, and recovers dead members.
    ///
    /// # Errors
    /// `Full` above [`MEMBERS_MAX`] sessions of living processes, and if the file system has no
    /// page for another session; `Stalled` while a process that drops the region is stopped;
    /// `NotARegion` after it was dropped; `Damaged`, `System`.
    pub fn member(&self) -> Result<Member> {
        if self.shared.map.is_forked() {
            return Err(Error::Forked);
        }
        let since = Instant::now();
        let member = loop {
            match claim(&self.shared) {
                Ok(member) => break member,
                // It has no slot while it waits.
                Err(ClaimFailure::Closed) => self.shared.wait_until_kept(since)?,
                Err(ClaimFailure::Failed(error)) => return Err(error),
            }
        };
        member.operation(|| member.recover_the_dead())?;
        Ok(member)
    }
}

/// Why no slot was claimed.
#[derive(Debug)]
pub(crate) enum ClaimFailure {
    /// A process drops or repairs the region, or has dropped it.
    Closed,
    Failed(Error),
}

impl From<Error> for ClaimFailure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Corruption> for ClaimFailure {
    fn from(error: Corruption) -> Self {
        Self::Failed(error.into())
    }
}

/// Claims a slot: a free one, a new one, or that of a dead member.
fn claim(shared: &Arc<Shared>) -> Result<Member, ClaimFailure> {
    if shared.is_closed()? {
        return Err(ClaimFailure::Closed);
    }
    // Each round that fails found the table grown, by this process or by another.
    loop {
        if let Some(member) = claim_any_free(shared)? {
            return Ok(member);
        }
        let full = match add_slot(shared) {
            Ok(true) => continue,
            Ok(false) => Error::Full {
                detail: format!("{MEMBERS_MAX} sessions are attached: detach some"),
                heap: None,
            },
            Err(error) => error,
        };
        return match claim_any_dead(shared)? {
            Some(member) => Ok(member),
            // Sessions may have ended meanwhile.
            None => claim_any_free(shared)?.ok_or(ClaimFailure::Failed(full)),
        };
    }
}

/// Claims the lowest free slot.
fn claim_any_free(shared: &Arc<Shared>) -> Result<Option<Member>, ClaimFailure> {
    let high = member_slots_used(&shared.map)?;
    let hint = shared.hint.load(Ordering::Relaxed);
    invariant!(hint <= MEMBERS_MAX as u64, "slot {hint} lies outside the member table");
    let hint = hint as u32;
    for index in (hint..high).chain(0..hint.min(high)) {
        if let Some(member) = claim_if_free(shared, index)? {
            shared.hint.store(u64::from(index) + 1, Ordering::Relaxed);
            return Ok(Some(member));
        }
    }
    Ok(None)
}

/// Claims this slot if it is free.
pub(crate) fn claim_if_free(
    shared: &Arc<Shared>,
    index: u32,
) -> Result<Option<Member>, ClaimFailure> {
    let word = state_of(&shared.map, index)?;
    let seen = word.load(Ordering::Acquire);
    if state::of(seen) != state::FREE || !has_no_copy(&shared.map, index)? {
        return Ok(None);
    }
    // While a stopped process takes cells of the slot, its next member could not write.
    let taker = shared.map.word(arena_at(index) + undo::TAKER.offset())?;
    if lock::owner_of(taker.load(Ordering::Acquire)) != 0 {
        return Ok(None);
    }
    let Some(claimed) = claim_word(shared, word, seen)? else { return Ok(None) };
    crash_point!("attach.claimed");
    clear_pin(&shared.map, index)?;
    crash_point!("attach.unpinned");
    Ok(Some(own_slot(shared, index, word, claimed)?))
}

/// Claims a slot that was found in state `seen`, unless the region is closed. `None` if the slot
/// has changed.
///
/// The mark is read behind the claim, and before anything else of the slot changes: either the
/// process that drops or repairs the region sees the session, or the session sees the mark, or that
/// a repair has made its slot free.
fn claim_word(shared: &Shared, word: &AtomicU64, seen: u64) -> Result<Option<u64>, ClaimFailure> {
    let Some(claimed) = state::claim(word, seen, shared.liveness.number()) else {
        return Ok(None);
    };
    if shared.is_closed()? || !state::is_claimed(word, claimed) {
        state::give_back(word, seen, claimed);
        return Err(ClaimFailure::Closed);
    }
    Ok(Some(claimed))
}

/// Adds a slot to the table. True if the table has grown. False if it has all its slots.
fn add_slot(shared: &Shared) -> Result<bool> {
    let map = &shared.map;
    let high = member_slots_used(map)?;
    if high as usize >= MEMBERS_MAX || is_planted("no-new-slot") {
        return Ok(false);
    }
    let parts = [(member_at(high), MEMBER_BYTES), (arena_at(high), ARENA_BYTES)];
    let raise = || -> Result<bool> {
        let (from, to) = (seal(u64::from(high)), seal(u64::from(high) + 1));
        // If another process has raised the mark, the slot exists.
        let word = map.word(SUPER_MEMBERS)?;
        let _ = word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        crash_point!("attach.raised");
        Ok(true)
    };
    for (at, bytes) in parts {
        if !map.try_commit(at, bytes)? {
            // This file system only allocates what is written. Zeros must not be written into a
            // slot that another process has added and claimed.
            return shared.exclusively(|| {
                if member_slots_used(map)? == high {
                    for (at, bytes) in parts {
                        map.commit(at, bytes)?;
                    }
                }
                raise()
            });
        }
    }
    raise()
}

/// Claims the slot of a dead member and recovers it: when no slot is free, and none can be added.
fn claim_any_dead(shared: &Arc<Shared>) -> Result<Option<Member>, ClaimFailure> {
    let mut alive = None;
    for index in 0..member_slots_used(&shared.map)? {
        let word = state_of(&shared.map, index)?;
        let seen = word.load(Ordering::Acquire);
        let process = state::process(seen);
        // A member that is being recovered belongs to its recoverer. If that is dead, its own slot
        // is found here.
        if !state::is_owned(seen) || alive == Some(process) {
            continue;
        }
        if !is_process_dead(shared, process)? {
            alive = Some(process);
            continue;
        }
        if !names_its_process(&shared.map, index, seen)? {
            continue;
        }
        let Some(claimed) = claim_word(shared, word, seen)? else { continue };
        crash_point!("attach.adopted");
        let member = own_slot(shared, index, word, claimed)?;
        // From here on the slot is like that of a session that a panic interrupted.
        member.resume_operation();
        if let Err(error) = member.operation(|| member.recover_self()) {
            // Nothing of the slot may be reused: the next member or process tries again.
            member.health.set(Health::Unrecovered);
            clear_copy(&shared.map, index)?;
            state::give_up(word, word.load(Ordering::Acquire));
            if member.leaves_one_member(&error) {
                continue;
            }
            return Err(error.into());
        }
        member.note_recovered_bumps();
        member.end_operation();
        crash_point!("attach.recovered");
        member.pin_word().store(0, Ordering::Release);
        crash_point!("attach.released");
        return Ok(Some(member));
    }
    Ok(None)
}

/// Completes the claim of a slot.
fn own_slot(shared: &Arc<Shared>, index: u32, word: &AtomicU64, claimed: u64) -> Result<Member> {
    invariant!((index as usize) < MEMBERS_MAX, "slot {index} lies outside the member table");
    let (map, me) = (&shared.map, &shared.identity);
    let set = |which: u64, value: u64| -> Result<(), Corruption> {
        map.word(member_at(index) + which)?.store(value, Ordering::Relaxed);
        Ok(())
    };
    set(MEMBER_PID, u64::from(me.pid))?;
    for (half, chunk) in (0_u64..).zip(me.name.chunks_exact(8)) {
        let name = chunk.iter().rev().fold(0, |name, byte| name << 8 | u64::from(*byte));
        set(MEMBER_NAME + 8 * half, name)?;
    }
    set(MEMBER_SINCE, crate::clock::now_ms())?;
    clear_stalled(map, index)?;
    // Without a known namespace the id is for messages only.
    let check = if me.namespace == 0 { 0 } else { process_check(claimed, me.pid, me.namespace) };
    set(MEMBER_PROCESS_CHECK, check)?;
    set_copy(map, index, claimed)?;
    crash_point!("attach.identity");
    if !state::set_alive(word, claimed) {
        return Err(Error::from(Corruption("a slot was taken from a living process")));
    }
    crash_point!("attach.alive");
    let arena = Arena::new(map, index, shared.is_fenced)?;
    Ok(Member {
        bumps: [Bump::Small, Bump::Large].map(|which| Private::new(arena.bump(which))),
        shared: Arc::clone(shared),
        index,
        pins: Private::new(0),
        lines: Private::new(1),
        meta_line: Private::new(0),
        pin: map.address(member_at(index) + MEMBER_PIN)?,
        epoch: map.address(SUPER_EPOCH)?,
        arena: NonNull::from(map.words(arena_at(index))?),
        known_tables: [const { Private::new(None) }; TABLES_KNOWN],
        usable: Private::new(map.usable_address()),
        health: Private::new(Health::Running),
        is_active: Private::new(false),
        locks: Private::new(0),
        safe: Private::new(0),
        safe_epochs: RefCell::default(),
        aside_to_revisit: Private::new(ALL_ASIDE),
        seen_epoch: Private::new(0),
        pressure: Private::new(0),
        pressure_cells: Private::new(0),
        barrier_nanos: Private::new(0),
        queue_limits: Box::new([const { Private::new(0) }; QUEUES]),
        retired_in_a_row: Private::new(0),
        only_retires: Private::new(false),
        trim_looks: Private::new(0),
        stale_class: Private::new(0),
        queue_heads: Box::new([const { Private::new((0, 0)) }; QUEUES]),
        may_use_reserve: Private::new(false),
        is_follower: Private::new(false),
        is_brief: Private::new(false),
        scarce_refills: Private::new(0),
        after_full: Private::new(AfterFull::Error),
        growth_pause: Private::new(0),
        vain_search: Private::new((0, 0)),
        tries_again: Private::new(false),
        wanted_units: Private::new(0),
        settled_heap: Private::new((0, 0)),
        evacuated: EvacuatedParts::default(),
        is_evacuation_due: Private::new(false),
        chunk: Private::new(0),
        refusals: Refusals::default(),
        fixed_chunk: Private::new((0, 0)),
        span_chunk: Private::new(0),
        log: KnownLog::default(),
        stall_hook: StallHooks::default(),
    })
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{TestRegionPath, damage_undo_record, kill};
    use crate::region::file::CreateOptions;

    #[test]
    fn a_damaged_dead_member_does_not_keep_others_from_being_claimed() {
        let path = TestRegionPath::new("claim-damaged");
        let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
        let [damaged, other] = [(), ()].map(|()| region.member().unwrap());
        damage_undo_record(&damaged);
        let indexes = [damaged, other].map(kill);
        let claimed = claim_any_dead(&region.shared).unwrap().unwrap();
        assert_eq!(claimed.index(), indexes[1]);
        let slot = state_of(claimed.map(), indexes[0]).unwrap().load(Ordering::Relaxed);
        assert_eq!(state::process(slot), state::NO_PROCESS, "it stays a dead one");
        assert!(claim_any_dead(&region.shared).unwrap().is_none());
    }
}
