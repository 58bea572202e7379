//! The member table of the region.

use nearstate_model::limits::MEMBERS_MAX;

use crate::atomic::{AtomicU64, Ordering};
use crate::layout::{
    Corruption, MEMBER_COPY, MEMBER_NAME, MEMBER_PID, MEMBER_STATE, SUPER_DROP, SUPER_MEMBERS,
    member_at, unseal,
};
use crate::region::liveness::ProcessIdentity;
use crate::region::map::Map;

pub(crate) use crate::region::member_state as state;

/// The number of member slots that were ever used.
pub(crate) fn member_slots_used(map: &Map) -> Result<u32, Corruption> {
    let word = map.word(SUPER_MEMBERS)?.load(Ordering::Acquire);
    let high = unseal(word, "the count of members has a flipped bit")?;
    match u32::try_from(high) {
        Ok(high) if high as usize <= MEMBERS_MAX => Ok(high),
        _ => Err(Corruption("more members than a region can have")),
    }
}

/// True if a slot or the drop mark names a liveness number: then the lock of this number must stay
/// free, or a dead process would look alive.
pub(crate) fn is_number_named(map: &Map, number: u64) -> Result<bool, Corruption> {
    if map.word(SUPER_DROP)?.load(Ordering::Acquire) >> 16 & 0xffff == number {
        return Ok(true);
    }
    for index in 0..member_slots_used(map)? {
        let word = state_of(map, index)?.load(Ordering::Acquire);
        if state::is_owned(word) && state::process(word) == number {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The state word of a member.
pub(crate) fn state_of(map: &Map, index: u32) -> Result<&AtomicU64, Corruption> {
    map.word(member_at(index) + MEMBER_STATE)
}

/// The copy of a slot's holder and incarnation: never 0.
const fn copy_of(word: u64) -> u64 {
    1 << 63 | word & ((1 << 56) - 1)
}

/// Stores the copy of a slot that is being claimed as in `claimed`, before its state becomes alive.
pub(crate) fn set_copy(map: &Map, index: u32, claimed: u64) -> Result<(), Corruption> {
    map.word(member_at(index) + MEMBER_COPY)?.store(copy_of(claimed), Ordering::Release);
    Ok(())
}

/// Removes the copy, before the slot becomes free, or names another holder.
pub(crate) fn clear_copy(map: &Map, index: u32) -> Result<(), Corruption> {
    map.word(member_at(index) + MEMBER_COPY)?.store(0, Ordering::Release);
    Ok(())
}

/// True if no session has a copy in the slot: a flipped bit does not make a slot free.
pub(crate) fn has_no_copy(map: &Map, index: u32) -> Result<bool, Corruption> {
    Ok(map.word(member_at(index) + MEMBER_COPY)?.load(Ordering::Acquire) == 0)
}

/// True if a slot that was found in state `seen` names the process that owns it: a flipped bit does
/// not make its process a dead one. A slot that is being claimed has no copy yet, or that of the
/// dead member before.
pub(crate) fn names_its_process(map: &Map, index: u32, seen: u64) -> Result<bool, Corruption> {
    let copy = map.word(member_at(index) + MEMBER_COPY)?.load(Ordering::Acquire);
    Ok(copy == 0 || copy == copy_of(seen) || state::of(seen) == state::CLAIMING)
}

/// Reads the process of a member.
pub(crate) fn identity_of(map: &Map, index: u32) -> Result<ProcessIdentity, Corruption> {
    if state::of(state_of(map, index)?.load(Ordering::Acquire)) == state::CLAIMING {
        return Ok(ProcessIdentity { pid: 0, name: *b"opens a session\0", namespace: 0 });
    }
    let at = member_at(index);
    let load = |which: u64| -> Result<u64, Corruption> {
        Ok(map.word(at + which)?.load(Ordering::Acquire))
    };
    let mut name = [0; 16];
    for (half, chunk) in (0_u64..).zip(name.chunks_exact_mut(8)) {
        chunk.copy_from_slice(&load(MEMBER_NAME + 8 * half)?.to_le_bytes());
    }
    Ok(ProcessIdentity { pid: load(MEMBER_PID)? as u32, name, namespace: 0 })
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::TestRegionPath;
    use crate::region::file::{CreateOptions, Region};

    /// A flipped bit does not make a slot free, or its process a dead one: another session would
    /// use its arena.
    #[test]
    fn a_flip_in_the_state_of_a_slot_makes_no_other_session_use_it() {
        let path = TestRegionPath::new("flip-slot");
        let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
        let owner = region.member().unwrap();
        let map = owner.map();
        for which in [MEMBER_STATE, MEMBER_COPY] {
            let word = map.word(member_at(owner.index()) + which).unwrap();
            let before = word.load(Ordering::Relaxed);
            for bit in 0..u64::BITS {
                word.store(before ^ 1 << bit, Ordering::Relaxed);
                let other = region.member().unwrap();
                assert_ne!(other.index(), owner.index(), "bit {bit}: its slot is claimed");
                let recovered = other.operation(|| other.recover_the_dead());
                recovered.unwrap_or_else(|error| panic!("bit {bit}: {error}"));
                assert_eq!(
                    word.load(Ordering::Relaxed),
                    before ^ 1 << bit,
                    "bit {bit}: it is recovered"
                );
            }
            word.store(before, Ordering::Relaxed);
        }
    }
}
