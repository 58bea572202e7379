//! Since when the views of a member are seen to hold back memory: for messages and for
//! inspection. A view stores no time, because reads are fast. The other members that advance the
//! epoch find views that do not end, and note the time once for each.

use crate::atomic::Ordering;
use crate::layout::{Corruption, MEMBER_HELD_SINCE, member_at};
use crate::region::map::Map;

/// Bits of the time: until the year 2527. The other bits of the word are the lowest ones of the
/// epoch in which the view began.
const TIME_BITS: u32 = 44;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;

/// Notes that a view that began in this epoch holds back memory, unless that is known.
#[cold]
pub(crate) fn note_stalled(map: &Map, index: u32, start: u64) -> Result<(), Corruption> {
    let word = map.word(member_at(index) + MEMBER_HELD_SINCE)?;
    let seen = word.load(Ordering::Relaxed);
    if seen == 0 || seen >> TIME_BITS != low_bits(start) {
        // Two members that find the same view note nearly the same time.
        word.store(low_bits(start) << TIME_BITS | now_ms(), Ordering::Relaxed);
    }
    Ok(())
}

/// For how many milliseconds it is known that the view that began in this epoch holds back memory.
/// 0: not yet.
pub(crate) fn held_ms(map: &Map, index: u32, start: u64) -> Result<u64, Corruption> {
    let seen = map.word(member_at(index) + MEMBER_HELD_SINCE)?.load(Ordering::Relaxed);
    let is_noted = seen != 0 && seen >> TIME_BITS == low_bits(start);
    Ok(if is_noted { now_ms().saturating_sub(seen & TIME_MASK) } else { 0 })
}

fn low_bits(epoch: u64) -> u64 {
    epoch & (u64::MAX >> TIME_BITS)
}

fn now_ms() -> u64 {
    crate::clock::now_ms() & TIME_MASK
}
