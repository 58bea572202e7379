//! Recovers dead members: `spec/region.md`, section 4, row by row. Every step is idempotent, takes
//! no lock, and clears its part of the undo record. The recoverer can die as well.

use nearstate_model::{Error, Result, invariant};

use crate::atomic::{AtomicU64, Ordering};
use crate::crash::crash_point;
use crate::heap::allocate::undo_operation;
use crate::heap::free;
use crate::heap::queue::finish_line;
use crate::index::bucket::at_of;
use crate::index::intent::TxnOutcome;
use crate::index::split;
use crate::layout::Corruption;
use crate::member::arena::{Arena, LockSlot, close_undo_record, op, undo};
use crate::member::claim::{ClaimFailure, claim_if_free};
use crate::member::pin_slot::clear_pin;
use crate::member::{Member, is_process_dead};
use crate::member::{idle, lock};
use crate::region::member_table::{
    clear_copy, member_slots_used, names_its_process, state, state_of,
};
use crate::txn::publish::finish_record;
use crate::txn::{count, finish};

/// The state of the word that an undo record names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WordState {
    /// The word has the new value.
    New,
    /// The word has the old value.
    Old,
    /// The word has another value.
    Neither,
}

/// What recovery does with the operation of an undo record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecoveryDecision {
    /// The change did not happen: pending cells are freed.
    RollBack,
    /// The change happened: the replaced record is retired.
    RollForwardRecord,
    /// The change happened: nothing was replaced.
    RollForwardWord,
    /// The change happened: the split bucket is cleaned.
    RollForwardSplit,
    /// The transaction was decided: each intent becomes its new entry.
    RollForwardTransaction,
    /// The transaction was not decided: each intent becomes its old entry.
    RollBackTransaction,
    /// The change happened: the line belongs to its chain. Other pending cells are freed.
    RollForwardLine,
    /// The overflow lines are removed: each step of it can be repeated.
    RollForwardCompact,
    /// The change happened: the replaced overflow lines are retired.
    RollForwardLines,
    /// The records are counted: the usage word gets its new payload.
    RollForwardCount,
    /// The bytes contradict each other.
    ReportCorruption,
}

/// The recovery table: operation and word state give the decision. For a split the word is the
/// bucket's depth, for a transaction its status.
pub(crate) const fn decision_for(operation: u64, word_state: WordState) -> RecoveryDecision {
    match (operation, word_state) {
        (op::NONE, _)
        | (op::RECORD | op::WORD | op::SPLIT | op::LINE | op::LINES | op::COUNT, WordState::Old)
        | (op::SET_ONCE, WordState::Old | WordState::Neither) => RecoveryDecision::RollBack,
        (op::RECORD, WordState::New) => RecoveryDecision::RollForwardRecord,
        (op::WORD | op::SET_ONCE, WordState::New) => RecoveryDecision::RollForwardWord,
        (op::SPLIT, WordState::New) => RecoveryDecision::RollForwardSplit,
        (op::TXN, WordState::New) => RecoveryDecision::RollForwardTransaction,
        (op::TXN, WordState::Old) => RecoveryDecision::RollBackTransaction,
        (op::LINE, WordState::New) => RecoveryDecision::RollForwardLine,
        (op::COMPACT, _) => RecoveryDecision::RollForwardCompact,
        (op::LINES, WordState::New) => RecoveryDecision::RollForwardLines,
        // Others may have counted on since.
        (op::COUNT, WordState::New | WordState::Neither) => RecoveryDecision::RollForwardCount,
        _ => RecoveryDecision::ReportCorruption,
    }
}

impl Member {
    /// Recovers every member whose process has ended. Cost: a probe (less than a microsecond) for
    /// each attached process.
    pub(crate) fn recover_the_dead(&self) -> Result<()> {
        let mut seen = None;
        for index in 0..member_slots_used(self.map())? {
            let word = state_of(self.map(), index)?.load(Ordering::Acquire);
            if state::of(word) == state::FREE {
                continue;
            }
            // Sessions of one process have adjacent slots: one probe for a run of them.
            let process = state::is_owned(word).then(|| state::process(word));
            if process.is_some() && process == seen {
                continue;
            }
            match self.recover_if_dead(index) {
                Ok(false) => seen = process,
                Ok(true) => {}
                Err(error) if self.leaves_one_member(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The dead members that cannot be recovered, for the check.
    pub(crate) fn failing_recoveries(&self) -> Result<Vec<(u32, Error)>> {
        let mut failing = Vec::new();
        for index in 0..member_slots_used(self.map())? {
            let recovered = self.operation(|| self.recover_if_dead(index));
            failing.extend(recovered.err().map(|error| (index, error)));
        }
        Ok(failing)
    }

    /// True if a recovery failed because of the member alone: a stopped process takes cells of it,
    /// or what it has left is damaged. Work for which its recovery is not needed goes on: one dead
    /// session must not close the region for others. Its locks answer with the same error, and the
    /// check names the damage.
    pub(crate) fn leaves_one_member(&self, error: &Error) -> bool {
        matches!(error, Error::Stalled { .. } | Error::Damaged { .. }) && !self.map().is_damaged()
    }

    /// Recovers a member if its process has ended. Returns true if its locks are free now.
    pub(crate) fn recover_if_dead(&self, index: u32) -> Result<bool> {
        let first = index;
        let mut index = index;
        // If its recoverer is dead too, recovering the recoverer recovers this member as well. Each
        // step leads to another member: more steps than members are a cycle.
        for step in 0..=member_slots_used(self.map())? {
            if index == self.index() {
                return Ok(false);
            }
            self.check_member(index)?;
            let word = state_of(self.map(), index)?;
            let seen = word.load(Ordering::Acquire);
            match state::of(seen) {
                state::FREE if step == 0 => return Ok(true),
                // A recoverer's slot becomes free only after its recoveries.
                state::FREE => return self.is_free(first),
                state::RECOVERING if state::recoverer(seen) != self.lock_owner() => {
                    index =
                        u32::try_from(state::recoverer(seen).wrapping_sub(1)).map_err(|_| {
                            Corruption("a member waits for a recoverer that does not exist")
                        })?;
                }
                state::ALIVE | state::CLAIMING
                    if !is_process_dead(self.shared(), state::process(seen))?
                        || !names_its_process(self.map(), index, seen)? =>
                {
                    return Ok(false);
                }
                state::ALIVE | state::CLAIMING | state::RECOVERING => {
                    return self.recover(index, word, seen);
                }
                // A flipped bit: its process may be alive.
                _ => return Ok(false),
            }
        }
        Err(Error::from(Corruption("members recover each other in a circle")))
    }

    /// The member for which a member is waited for: itself, or the one that recovers it, and so on.
    pub(crate) fn responsible_for(&self, index: u32) -> Result<u32, Corruption> {
        let mut index = index;
        for _ in 0..=member_slots_used(self.map())? {
            self.check_member(index)?;
            let seen = state_of(self.map(), index)?.load(Ordering::Acquire);
            let recoverer = state::recoverer(seen).checked_sub(1);
            match recoverer.filter(|_| state::of(seen) == state::RECOVERING) {
                Some(recoverer) => index = recoverer as u32,
                None => return Ok(index),
            }
        }
        Err(Corruption("members recover each other in a circle"))
    }

    /// True if a slot is free. Reports corruption if its recoverer does not exist.
    fn is_free(&self, index: u32) -> Result<bool> {
        let word = state_of(self.map(), index)?.load(Ordering::Acquire);
        let recoverer = state::recoverer(word).checked_sub(1);
        match (state::of(word), recoverer) {
            (state::RECOVERING, Some(recoverer)) => {
                self.check_member(recoverer as u32)?;
                let other = state_of(self.map(), recoverer as u32)?.load(Ordering::Acquire);
                let again = state_of(self.map(), index)?;
                if state::of(other) == state::FREE && again.load(Ordering::Acquire) == word {
                    return Err(Error::from(Corruption(
                        "a member waits for a recoverer that does not exist",
                    )));
                }
                Ok(false)
            }
            (now, _) => Ok(now == state::FREE),
        }
    }

    /// Recovers a member that was found dead in state `seen`. False if another member does it.
    fn recover(&self, index: u32, word: &AtomicU64, seen: u64) -> Result<bool> {
        invariant!(index != self.index(), "member {index} recovers itself as a dead one");
        if !state::win(word, seen, self.lock_owner()) {
            return Ok(false);
        }
        invariant!(state::of(seen) != state::FREE, "a free slot is recovered");
        crash_point!("recover.won");
        if let Err(error) = self.finish_work_of(index) {
            // Another member may retry. The slot must not name a recoverer that has failed.
            clear_copy(self.map(), index)?;
            state::give_up(word, seen);
            return Err(error);
        }
        clear_copy(self.map(), index)?;
        crash_point!("recover.unpinned");
        state::free(word, seen);
        Ok(true)
    }

    fn finish_work_of(&self, index: u32) -> Result<()> {
        let arena = Arena::new(self.map(), index, self.shared().is_fenced)?;
        let owner = u64::from(index) + 1;
        invariant!(
            owner != self.lock_owner(),
            "member {index} finishes its own work as a dead one"
        );
        self.begin_for_dead(&arena)?;
        finish_undo_record(&arena, owner)?;
        idle::end(arena.word(undo::ACTIVE));
        crash_point!("recover.idle");
        self.inherit_recoveries(owner)?;
        Ok(clear_pin(self.map(), index)?)
    }

    /// Recovers this member itself, after a panic interrupted one of its operations, or after it
    /// claimed the slot of a dead one. Its pins are kept: views of the caller are still in use.
    pub(crate) fn recover_self(&self) -> Result<()> {
        let owner = self.lock_owner();
        for index in 0..member_slots_used(self.map())? {
            let word = state_of(self.map(), index)?;
            let seen = word.load(Ordering::Acquire);
            if state::of(seen) == state::RECOVERING && state::recoverer(seen) == owner {
                // Any other member may recover it.
                clear_copy(self.map(), index)?;
                let dead = state::make(state::ALIVE, state::NO_PROCESS, state::incarnation(seen));
                word.store(dead, Ordering::Release);
            }
        }
        Ok(finish_undo_record(&self.arena(), owner)?)
    }

    /// Takes over the recoveries of a dead member. Its slot must not become free before.
    fn inherit_recoveries(&self, owner: u64) -> Result<()> {
        invariant!(owner != self.lock_owner(), "a member inherits its own recoveries");
        for index in 0..member_slots_used(self.map())? {
            let word = state_of(self.map(), index)?;
            let seen = word.load(Ordering::Acquire);
            let is_left = state::of(seen) == state::RECOVERING && state::recoverer(seen) == owner;
            if !is_left || index == self.index() || !state::win(word, seen, self.lock_owner()) {
                continue;
            }
            let finished = self.finish_work_of(index);
            clear_copy(self.map(), index)?;
            if let Err(error) = finished {
                state::give_up(word, seen);
                return Err(error);
            }
            state::free(word, seen);
        }
        Ok(())
    }

    /// Claims a free slot for a moment, and frees its memory.
    pub(crate) fn drain_slot(&self, index: u32) -> Result<()> {
        match claim_if_free(self.shared(), index) {
            // Detaching frees the memory of the slot.
            Ok(member) => drop(member),
            // A process that wants to drop the region will find this session.
            Err(ClaimFailure::Closed) => {}
            Err(ClaimFailure::Failed(error)) => return Err(error),
        }
        Ok(())
    }
}

/// Completes or undoes everything that the undo record of a member describes, and releases its
/// locks.
fn finish_undo_record(arena: &Arena<'_>, owner: u64) -> Result<(), Corruption> {
    invariant!(owner != 0, "member slots are numbered from owner 1");
    free::recover(arena, owner)?;
    arena.finish_transit()?;
    crash_point!("recover.transit");
    finish_operation(arena, owner)?;
    crash_point!("recover.record");
    unlock_all(arena, owner)?;
    crash_point!("recover.unlocked");
    Ok(())
}

fn finish_operation(arena: &Arena<'_>, owner: u64) -> Result<(), Corruption> {
    let operation = undo_operation(arena)?;
    let (old, new) = (arena.get(undo::OLD), arena.get(undo::NEW));
    let word_state = match operation {
        op::SPLIT if split::is_committed(arena)? => WordState::New,
        op::TXN => match finish::abort_unless_committed(arena)? {
            TxnOutcome::Committed => WordState::New,
            TxnOutcome::Aborted => WordState::Old,
        },
        op::NONE | op::SPLIT | op::COMPACT => WordState::Old,
        _ => match arena.map.word(arena.get(undo::WORD_OFFSET))?.load(Ordering::Acquire) {
            value if value == new => WordState::New,
            value if value == old => WordState::Old,
            _ => WordState::Neither,
        },
    };
    match decision_for(operation, word_state) {
        RecoveryDecision::RollBack => {
            arena.set(undo::OP, op::NONE);
            arena.roll_back()
        }
        RecoveryDecision::RollForwardRecord => finish_record(arena, old, new).map(drop),
        RecoveryDecision::RollForwardWord => {
            close_undo_record(arena);
            Ok(())
        }
        RecoveryDecision::RollForwardSplit => {
            arena.set(undo::PENDING, 0);
            crash_point!("recover.split");
            split::finish(arena, owner)
        }
        RecoveryDecision::RollForwardTransaction => {
            finish::roll_forward(arena)?;
            finish::wake(arena)
        }
        RecoveryDecision::RollBackTransaction => {
            finish::roll_back(arena)?;
            crash_point!("recover.undone");
            arena.roll_back()
        }
        RecoveryDecision::RollForwardCompact => {
            split::finish_compaction(arena, owner)?;
            crash_point!("recover.compacted");
            arena.roll_back()
        }
        RecoveryDecision::RollForwardLine => {
            finish_line(arena, at_of(new))?;
            crash_point!("recover.line");
            arena.roll_back()
        }
        RecoveryDecision::RollForwardLines => split::finish_lines(arena, old),
        RecoveryDecision::RollForwardCount => {
            count::finish(arena, owner)?;
            arena.roll_back()
        }
        RecoveryDecision::ReportCorruption => {
            Err(Corruption("a recorded word has neither its old nor its new value"))
        }
    }
}

/// Releases the locks that the undo record of a dead member names.
fn unlock_all(arena: &Arena<'_>, owner: u64) -> Result<(), Corruption> {
    for slot in LockSlot::ALL {
        let at = arena.get(undo::lock(slot));
        if at != 0 {
            let word = arena.map.word(at)?;
            let seen = word.load(Ordering::Acquire);
            if lock::owner_of(seen) == owner {
                lock::release(word, seen);
            }
            arena.set(undo::lock(slot), 0);
        }
    }
    finish::unlock(arena, owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table as text, so that a changed rule shows as a changed line.
    #[test]
    fn every_operation_and_fact_has_exactly_one_decision() {
        let mut text = String::new();
        for (name, operation) in [
            ("none", op::NONE),
            ("record", op::RECORD),
            ("word", op::WORD),
            ("split", op::SPLIT),
            ("txn", op::TXN),
            ("line", op::LINE),
            ("compact", op::COMPACT),
            ("lines", op::LINES),
            ("set_once", op::SET_ONCE),
            ("count", op::COUNT),
            ("unknown", 10),
        ] {
            for word_state in [WordState::Old, WordState::New, WordState::Neither] {
                text.extend([
                    name,
                    " ",
                    &format!("{word_state:?} {:?}\n", decision_for(operation, word_state)),
                ]);
            }
        }
        assert_eq!(
            text,
            "none Old RollBack\nnone New RollBack\nnone Neither RollBack\n\
             record Old RollBack\nrecord New RollForwardRecord\nrecord Neither ReportCorruption\n\
             word Old RollBack\nword New RollForwardWord\nword Neither ReportCorruption\n\
             split Old RollBack\nsplit New RollForwardSplit\nsplit Neither ReportCorruption\n\
             txn Old RollBackTransaction\ntxn New RollForwardTransaction\n\
             txn Neither ReportCorruption\n\
             line Old RollBack\nline New RollForwardLine\nline Neither ReportCorruption\n\
             compact Old RollForwardCompact\ncompact New RollForwardCompact\n\
             compact Neither RollForwardCompact\n\
             lines Old RollBack\nlines New RollForwardLines\nlines Neither ReportCorruption\n\
             set_once Old RollBack\nset_once New RollForwardWord\nset_once Neither RollBack\n\
             count Old RollBack\ncount New RollForwardCount\ncount Neither RollForwardCount\n\
             unknown Old ReportCorruption\nunknown New ReportCorruption\n\
             unknown Neither ReportCorruption\n"
        );
    }
}
