//! Since when the views of a member are seen to hold back memory: for messages and for
//! inspection. A view stores no time, because reads are fast. The other members that advance the
//! epoch find views that do not end, and note the time once for each.
//!
//! The time is that of `CLOCK_BOOTTIME`, so a step of the wall clock changes no message. It needs
//! no number of the boot: a new session clears the word of its slot, so a note for the view of a
//! living session is of this boot. For a session that died in an earlier boot the time can be too
//! short. A process in another time namespace has another clock, and reads wrong times.

use crate::atomic::Ordering;
use crate::layout::{Corruption, MEMBER_HELD_SINCE, member_at};
use crate::region::map::Map;

/// Bits of the time: 557 years. The other bits of the word are the lowest ones of the
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

/// Forgets the notes for the previous session of a slot.
pub(crate) fn clear_stalled(map: &Map, index: u32) -> Result<(), Corruption> {
    map.word(member_at(index) + MEMBER_HELD_SINCE)?.store(0, Ordering::Relaxed);
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

/// Milliseconds of `CLOCK_BOOTTIME`.
fn now_ms() -> u64 {
    u64::try_from(crate::clock::lease_clock().as_millis()).unwrap_or(0) & TIME_MASK
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::region::file::{CreateOptions, Region};

    #[test]
    fn a_note_has_the_time_since_boot_and_ends_with_its_session() {
        let path = std::env::temp_dir().join(format!("nearstate-held-{}", std::process::id()));
        let region = Region::create(&path, &CreateOptions::default()).unwrap();
        let member = region.member().unwrap();
        let index = member.index();
        assert_eq!(held_ms(member.map(), index, 7).unwrap(), 0);
        let before = now_ms();
        note_stalled(member.map(), index, 7).unwrap();
        let at = member_at(index) + MEMBER_HELD_SINCE;
        let noted =
            |member: &crate::member::Member| member.map().word(at).unwrap().load(Ordering::Relaxed);
        let since = noted(&member) & TIME_MASK;
        let clock = || crate::clock::lease_clock().as_millis();
        assert!((before..=now_ms()).contains(&since) && u128::from(since) <= clock(), "{since}");
        assert_eq!(held_ms(member.map(), index, 8).unwrap(), 0, "another view");
        // A second look keeps the time of the first one, which is made older here.
        let older = noted(&member) - 5000.min(since);
        member.map().word(at).unwrap().store(older, Ordering::Relaxed);
        note_stalled(member.map(), index, 7).unwrap();
        assert!(held_ms(member.map(), index, 7).unwrap() >= 5000.min(since));
        drop(member);
        let member = region.member().unwrap();
        assert_eq!(member.index(), index, "the slot is used again");
        assert_eq!(noted(&member), 0);
        drop((member, region));
        std::fs::remove_file(&path).unwrap();
    }
}
