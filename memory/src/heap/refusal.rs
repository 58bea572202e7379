//! Refusals without a search, while nothing can have come free since one that was in vain
//! (`docs/decisions/015-evacuation.md`; `heap/watched.rs`).

use std::time::{Duration, Instant};

use nearstate_model::{Error, Result, invariant};

use crate::atomic::Ordering;
use crate::heap::chunk::lent;
use crate::heap::refill::{REACHED_SIZE, no_room};
use crate::heap::usage::{CELLS_FOR_ERROR, CHUNKS_FOR_ERROR, heap_usage, usage_state};
use crate::heap::{held, watched};
use crate::layout::{Corruption, MEMBER_PIN, SUPER_EPOCH, SUPER_WATCHED, member_at, unseal};
use crate::member::arena::{Arena, op, undo};
use crate::member::pin::{STALLED_EPOCHS, start_of};
use crate::member::refusals::{FreeWatch, KnownRefusal, KnownUsage, WatchStart};
use crate::member::{AfterFull, Member, is_process_dead};
use crate::region::map::Map;
use crate::region::member_table::{self, member_slots_used, state};

/// Refusals until the next search, although nothing tells of free memory: a flipped bit of the
/// watched word could hide some. The search is a small part of so many refusals.
const KNOWN_REFUSALS: u32 = 4096;

/// For how long errors of a full heap tell the same numbers if no pin and no chunk has changed: 100
/// times what it takes to read them.
const USAGE_AGE_MAX: Duration = Duration::from_millis(100);

/// The same while refusals need no search. The numbers are read by people.
const USAGE_AGE_KNOWN: Duration = Duration::from_secs(1);

const _: () = assert!(KNOWN_REFUSALS > 1, "a refusal is known more than once");
const _: () = assert!(USAGE_AGE_MAX.as_nanos() <= USAGE_AGE_KNOWN.as_nanos());

/// Epochs after which a reader cannot hold what was retired before.
const DISTANCE: u64 = 2;

/// The members that have memory after a search.
#[derive(Debug, Default)]
struct MembersWithMemory {
    /// Those in an operation, with their state words.
    active: Vec<(u32, u64)>,
    /// Others have memory, which readers hold.
    holds_retired: bool,
}

impl Member {
    /// True if a search for memory of so many units would be in vain: one was, and nothing has
    /// changed since. If something has, the search that follows is watched.
    ///
    /// Cost: two lines for each member slot that was ever used, a line for each chunk of the
    /// reserve, and a system call for each process that is in an operation.
    pub(crate) fn is_known_full(&self, units: u64) -> Result<bool> {
        debug_assert!(units != 0, "a cell has a unit");
        let refusals = &self.refusals;
        let known_units = refusals.known_units.get();
        let is_of_kind = known_units != 0 && known_units <= units;
        if self.may_use_reserve.get() {
            // It was found out for the operation without the reserve.
            return Ok(is_of_kind && refusals.is_known.get());
        }
        refusals.is_known.set(false);
        if !is_of_kind || refusals.known.borrow().is_pinned && !self.has_pin() {
            return Ok(false);
        }
        let is_known = refusals.known.borrow().left != 0 && self.is_unchanged()?;
        if is_known {
            refusals.known.borrow_mut().left -= 1;
        } else {
            refusals.known_units.set(0);
            self.watch(units)?;
        }
        Ok(is_known)
    }

    /// An allocation of the caller fails, because the heap is known to be full for it.
    pub(crate) fn refuse_known(&self, units: u64) -> Error {
        debug_assert!(self.refusals.known_units.get() <= units, "a search was in vain for less");
        // Only what runs with the reserve after `Full` asks for it.
        if self.after_full.get() != AfterFull::Error {
            self.refusals.is_known.set(true);
            self.wanted_units.set(units);
        }
        no_room()
    }

    /// S1 and S2. `None` if the barrier failed.
    fn begin_watch(&self, units: u64) -> Result<Option<WatchStart>> {
        invariant!(units != 0, "memory of no unit is searched");
        let map = self.map();
        let count = watched::watch(map.word(SUPER_WATCHED)?, units);
        let has_begun = self.heavy_barrier();
        let watch = WatchStart { count, epoch: epoch(map)?, floor: held::floor(map)? };
        Ok(has_begun.then_some(watch))
    }

    /// Begins a watch, to find out later whether memory has come free since
    /// ([`Member::has_freed`]).
    ///
    /// Cost: a line for each member slot that was ever used, and a barrier.
    ///
    /// # Errors
    /// `Forked`, `SessionStopped`, `Damaged`.
    pub fn watch_free(&self) -> Result<FreeWatch> {
        self.check_usable()?;
        Ok(FreeWatch { watch: self.begin_watch(1)?, members: self.members_state()? })
    }

    /// False if no process has freed memory since then, and no reader or process that held some has
    /// ended.
    ///
    /// Cost: a line for each member slot that was ever used.
    ///
    /// # Errors
    /// `Forked`, `SessionStopped`, `Damaged`.
    pub fn has_freed(&self, since: &FreeWatch) -> Result<bool> {
        self.check_usable()?;
        let Some(watch) = since.watch else { return Ok(true) };
        Ok(self.has_changed_since(watch, 1)? || self.members_state()? != since.members)
    }

    /// A check value of the states of the members and of the starts of their pins.
    fn members_state(&self) -> Result<u64> {
        let map = self.map();
        let mut sum = 0_u64;
        for index in 0..member_slots_used(map)? {
            let pin = map.word(member_at(index) + MEMBER_PIN)?.load(Ordering::Acquire);
            let start = start_of(pin).unwrap_or(0);
            let state = member_table::state_of(map, index)?.load(Ordering::Acquire);
            for word in [state, start] {
                sum = (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
            }
        }
        Ok(sum)
    }

    /// What the member finds from now on is a part of a search.
    fn watch(&self, units: u64) -> Result<()> {
        let refusals = &self.refusals;
        refusals.watch.set(self.begin_watch(units)?);
        refusals.is_incomplete.set(false);
        refusals.skipped.borrow_mut().clear();
        Ok(())
    }

    /// An operation was refused after a search for so many units. If the search was watched, and
    /// nothing has come free meanwhile, the next ones are refused without it.
    pub(crate) fn note_refusal(&self, units: u64) -> Result<()> {
        invariant!(units != 0, "an operation was refused that wanted no memory");
        debug_assert!(!self.may_use_reserve.get(), "the use of the reserve has ended");
        let refusals = &self.refusals;
        if let Some(watch) = refusals.watch.get()
            && !self.has_changed_since(watch, units)?
        {
            if let Some(known) = self.known_refusal(watch)? {
                refusals.known.replace(known);
                refusals.known_units.set(units);
                return Ok(());
            }
            if !refusals.is_incomplete.get() {
                return Ok(()); // A reader or a writer is in the way. The watch goes on.
            }
        }
        self.watch(units)
    }

    /// S4.
    fn has_changed_since(&self, watch: WatchStart, units: u64) -> Result<bool> {
        let word = self.map().word(SUPER_WATCHED)?.load(Ordering::Acquire);
        Ok(watched::count_of(word) != watch.count
            || !watched::is_watched_for(word, units)
            || held::floor(self.map())? != watch.floor)
    }

    /// What the refusal depends on. `None` if the search may have missed memory that others can
    /// release without a word: then the next one is needed.
    fn known_refusal(&self, watch: WatchStart) -> Result<Option<KnownRefusal>> {
        let (map, refusals) = (self.map(), &self.refusals);
        if refusals.is_incomplete.get() || self.is_evacuation_due.get() {
            return Ok(None);
        }
        let Some(members) = self.members_with_memory()? else { return Ok(None) };
        let now = epoch(map)?;
        let mut readers = Vec::new();
        if self.has_stalled_reader() {
            // Without them, memory that is free already may be used.
            let is_stalled = |start: u64| start.saturating_add(STALLED_EPOCHS) < now;
            readers.extend(pins(map)?.filter(|(_, start)| is_stalled(*start)));
            if readers.iter().any(|(index, _)| *index == self.index()) {
                return Ok(None);
            }
        }
        if members.holds_retired {
            if now < watch.epoch + DISTANCE {
                return Ok(None);
            }
            for (index, start) in pins(map)?.filter(|(_, start)| *start < watch.epoch + DISTANCE) {
                // The pins of views that end soon would end what is known soon.
                if index == self.index() || start.saturating_add(STALLED_EPOCHS) >= now {
                    return Ok(None);
                }
                readers.push((index, start));
            }
        }
        debug_assert!(readers.iter().all(|(_, start)| *start < now), "a reader is stalled");
        Ok(Some(KnownRefusal {
            count: watch.count,
            floor: watch.floor,
            is_pinned: self.has_pin(),
            lent: lent(map)?,
            readers,
            active: members.active,
            left: KNOWN_REFUSALS,
        }))
    }

    /// The members that have memory. `None` if a search has passed over one that is in no operation
    /// now.
    fn members_with_memory(&self) -> Result<Option<MembersWithMemory>> {
        let (map, skipped) = (self.map(), self.refusals.skipped.borrow());
        let mut found = MembersWithMemory::default();
        for index in 0..member_slots_used(map)? {
            let arena = Arena::new(map, index, self.shared().is_fenced)?;
            let word = member_table::state_of(map, index)?.load(Ordering::Acquire);
            let is_alive = state::of(word) == state::ALIVE;
            if index == self.index() || state::of(word) == state::FREE {
                found.holds_retired |= !arena.is_empty()?;
            } else if !is_alive || arena.get(undo::ACTIVE) != 0 {
                if state::of(word) == state::RECOVERING {
                    return Ok(None);
                }
                if !is_bare(&arena)? {
                    found.active.push((index, word));
                }
            } else if skipped.contains(&index) {
                return Ok(None);
            } else {
                found.holds_retired |= !arena.is_empty()?;
            }
        }
        debug_assert!(
            found.active.iter().all(|(index, _)| *index != self.index()),
            "this member is in the operation that is refused"
        );
        Ok(Some(found))
    }

    /// True if nothing has changed that a refusal depends on.
    fn is_unchanged(&self) -> Result<bool> {
        let (map, known) = (self.map(), self.refusals.known.borrow());
        debug_assert!(self.refusals.known_units.get() != 0, "a refusal is known");
        let watch = WatchStart { count: known.count, epoch: 0, floor: known.floor };
        // What the log can let go of is released, as after each refusal.
        if held::give_up_log(map)?
            || self.has_changed_since(watch, self.refusals.known_units.get())?
            || lent(map)? < known.lent
        {
            return Ok(false);
        }
        for (index, start) in &known.readers {
            let word = map.word(member_at(*index) + MEMBER_PIN)?.load(Ordering::Acquire);
            if start_of(word) != Some(*start) {
                return Ok(false);
            }
        }
        for (index, word) in &known.active {
            let is_same = member_table::state_of(map, *index)?.load(Ordering::Acquire) == *word;
            if !is_same || state::of(*word) == state::ALIVE && !self.is_active(*index)? {
                return Ok(false);
            }
        }
        self.has_no_dead_operation()
    }

    fn is_active(&self, index: u32) -> Result<bool> {
        let arena = Arena::new(self.map(), index, self.shared().is_fenced)?;
        Ok(arena.get(undo::ACTIVE) != 0)
    }

    /// False if a process has died in an operation: its recovery may free memory.
    fn has_no_dead_operation(&self) -> Result<bool> {
        let mut living = None;
        for index in 0..member_slots_used(self.map())? {
            let word = member_table::state_of(self.map(), index)?.load(Ordering::Acquire);
            let state = state::of(word);
            if index == self.index() || state == state::FREE {
                continue;
            }
            if state == state::RECOVERING {
                return Ok(false);
            }
            if state == state::ALIVE && !self.is_active(index)? {
                continue;
            }
            let process = state::process(word);
            if !state::is_owned(word)
                || living != Some(process) && is_process_dead(self.shared(), process)?
            {
                return Ok(false);
            }
            living = Some(process);
        }
        Ok(true)
    }

    /// The reserve lends a cell of a class to the current operation, without a search of the other
    /// chunks.
    pub(crate) fn note_lent(&self, class: u8) {
        debug_assert!(self.may_use_reserve.get(), "the reserve lends to what may use it");
        self.refusals.lent_classes.borrow_mut().push(class);
    }

    /// After a refusal without a search: frees what the reserve has lent.
    pub(crate) fn free_lent(&self) -> Result<()> {
        debug_assert!(self.is_in_operation(), "another member may be taking cells");
        debug_assert!(!self.may_use_reserve.get(), "the use of the reserve has ended");
        let arena = self.arena();
        for class in self.refusals.lent_classes.take() {
            self.free_queue(class, u64::MAX)?;
            if arena.queue(class)?.head.load(Ordering::Relaxed) != 0 {
                // A cell before it has readers. The next refusal waits for them.
                self.refusals.known_units.set(0);
            }
        }
        Ok(())
    }

    /// As [`Member::describe_full`], unless the operation runs again.
    pub(crate) fn describe_if_last(&self, full: Error) -> Result<Error> {
        if self.after_full.get() == AfterFull::Error {
            self.describe_full(full, false)
        } else {
            Ok(full)
        }
    }

    /// Adds to the error of a full heap what the memory is used for.
    pub(crate) fn describe_full(&self, full: Error, is_known: bool) -> Result<Error> {
        let Error::Full { detail, .. } = full else { return Ok(full) };
        let last = self.refusals.usage.take();
        let known = match last {
            Some(last) if is_known && last.at.elapsed() < USAGE_AGE_KNOWN => last,
            last => self.read_usage(last)?,
        };
        let is_of_caller = |session| self.is_of_this_process(session);
        let otherwise = if detail == REACHED_SIZE {
            "delete records, or create a larger region"
        } else {
            // It has the size: what it lacks is named already.
            "a larger region has no more room there"
        };
        let text = known.usage.describe(self.index(), is_of_caller, otherwise);
        let (usage, detail) = (known.usage.clone(), format!("{detail}: {text}"));
        self.refusals.usage.replace(Some(known));
        Ok(Error::Full { detail, heap: Some(usage) })
    }

    /// True if a session is one of this process.
    fn is_of_this_process(&self, session: u32) -> bool {
        let word = member_table::state_of(self.map(), session);
        word.is_ok_and(|word| {
            let word = word.load(Ordering::Acquire);
            state::is_owned(word) && state::process(word) == self.shared().liveness.number()
        })
    }

    fn read_usage(&self, last: Option<KnownUsage>) -> Result<KnownUsage> {
        let state = usage_state(self.map())?;
        match last {
            // A client that tries again and again must not make each refusal expensive.
            Some(last) if last.state == state && last.at.elapsed() < USAGE_AGE_MAX => Ok(last),
            _ => {
                let usage = heap_usage(self.map(), CELLS_FOR_ERROR, CHUNKS_FOR_ERROR)?;
                Ok(KnownUsage { at: Instant::now(), state, usage: Box::new(usage) })
            }
        }
    }
}

fn epoch(map: &Map) -> Result<u64, Corruption> {
    unseal(map.word(SUPER_EPOCH)?.load(Ordering::Acquire), "the epoch has a flipped bit")
}

/// The members with a pin, and the starts of their pins.
pub(crate) fn pins(map: &Map) -> Result<impl Iterator<Item = (u32, u64)>, Corruption> {
    let mut pins = Vec::new();
    for index in 0..member_slots_used(map)? {
        let word = map.word(member_at(index) + MEMBER_PIN)?.load(Ordering::Acquire);
        pins.extend(start_of(word).map(|start| (index, start)));
    }
    Ok(pins.into_iter())
}

/// True if no memory belongs to an arena, and nothing is on its way to it or from it.
fn is_bare(arena: &Arena<'_>) -> Result<bool, Corruption> {
    let in_transit = [undo::PENDING, undo::POP, undo::CHUNK_TO, undo::BATCH_FIRST];
    Ok(arena.get(undo::OP) == op::NONE
        && in_transit.iter().all(|word| arena.get(*word) == 0)
        && arena.is_empty()?)
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;
