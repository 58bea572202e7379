//! The member table of the region.

use nearstate_model::limits::MEMBERS_MAX;

use crate::atomic::{AtomicU64, Ordering};
use crate::layout::{
    Corruption, MEMBER_NAME, MEMBER_PID, MEMBER_STATE, SUPER_DROP, SUPER_MEMBERS, member_at, unseal,
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

/// Reads the process of a member.
pub(crate) fn identity_of(map: &Map, index: u32) -> Result<ProcessIdentity, Corruption> {
    if state::of(state_of(map, index)?.load(Ordering::Acquire)) == state::CLAIMING {
        return Ok(ProcessIdentity { pid: 0, name: *b"opens a session\0" });
    }
    let at = member_at(index);
    let load = |which: u64| -> Result<u64, Corruption> {
        Ok(map.word(at + which)?.load(Ordering::Acquire))
    };
    let mut name = [0; 16];
    for (half, chunk) in (0_u64..).zip(name.chunks_exact_mut(8)) {
        chunk.copy_from_slice(&load(MEMBER_NAME + 8 * half)?.to_le_bytes());
    }
    Ok(ProcessIdentity { pid: load(MEMBER_PID)? as u32, name })
}
