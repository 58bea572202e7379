//! The member table of the region.

use nearstate_model::limits::MEMBERS_MAX;

use crate::atomic::Ordering;
use crate::layout::{Corruption, MEMBER_NAME, MEMBER_PID, SUPER_MEMBERS, member_at, unseal};
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

/// Reads the process of a member.
pub(crate) fn identity_of(map: &Map, index: u32) -> Result<ProcessIdentity, Corruption> {
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
