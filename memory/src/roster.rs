//! The table of members in the region: who is there, in which state.

use nearstate_model::limits::MEMBERS_MAX;

use crate::atomic::Ordering;
use crate::layout::{Damage, MEMBER_NAME, MEMBER_PID, SUPER_MEMBERS, member_at, unseal};
use crate::life::Identity;
use crate::map::Map;

/// States of a member: `state:8 | recoverer:16 | incarnation:40`.
pub(crate) mod state {
    /// Nobody has it. An arena with free cells may wait in it.
    pub(crate) const FREE: u64 = 0;
    /// A session has it.
    pub(crate) const ALIVE: u64 = 1;
    /// Its process is dead and another member is putting its work in order.
    pub(crate) const RECOVERING: u64 = 2;

    pub(crate) const fn of(word: u64) -> u64 {
        word >> 56
    }

    pub(crate) const fn recoverer(word: u64) -> u64 {
        word >> 40 & 0xffff
    }

    pub(crate) const fn make(state: u64, recoverer: u64, incarnation: u64) -> u64 {
        state << 56 | recoverer << 40 | incarnation & 0xff_ffff_ffff
    }

    pub(crate) const fn incarnation(word: u64) -> u64 {
        word & 0xff_ffff_ffff
    }
}

/// How many member slots were ever used.
pub(crate) fn members_high(map: &Map) -> Result<u32, Damage> {
    let word = map.word(SUPER_MEMBERS)?.load(Ordering::Acquire);
    let high = unseal(word, "the count of members has a flipped bit")?;
    match u32::try_from(high) {
        Ok(high) if high as usize <= MEMBERS_MAX => Ok(high),
        _ => Err(Damage("more members than a region can have")),
    }
}

/// Reads a member's identity.
pub(crate) fn identity_of(map: &Map, index: u32) -> Result<Identity, Damage> {
    let at = member_at(index);
    let load =
        |which: u64| -> Result<u64, Damage> { Ok(map.word(at + which)?.load(Ordering::Acquire)) };
    let mut name = [0; 16];
    for (half, chunk) in (0_u64..).zip(name.chunks_exact_mut(8)) {
        chunk.copy_from_slice(&load(MEMBER_NAME + 8 * half)?.to_le_bytes());
    }
    Ok(Identity { pid: load(MEMBER_PID)? as u32, name })
}
