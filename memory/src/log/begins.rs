//! Where the last incarnations of the log began. So the incarnation that a receipt names tells
//! whether its position is one that this region has given in it, or one of a copy of the file that
//! went on by itself (`docs/decisions/036-receipts.md`).

use crate::atomic::Ordering;
use crate::layout::{Corruption, LOG_BEGINS, LOG_BEGINS_MAX, LOG_TAIL, seal, unseal};
use crate::region::map::Map;

/// The highest position that a sealed word has room for. A log does not reach it.
pub(crate) const POSITION_MAX: u64 = (1 << 48) - 1;
const _: () = assert!(LOG_BEGINS_MAX > 1, "an incarnation ends where the next one begins");

const fn place_of(incarnation: u64) -> u64 {
    LOG_BEGINS + 8 * (incarnation % LOG_BEGINS_MAX)
}

/// An incarnation begins behind the present end of the log. It is stored before the incarnation
/// itself: a kill in between leaves one that begins nowhere, and its repetition stores it again.
pub(crate) fn store_begin(map: &Map, incarnation: u64) -> Result<(), Corruption> {
    debug_assert!(incarnation != 0, "the first incarnation begins at 0");
    let tail = map.word(LOG_TAIL)?.load(Ordering::Acquire).min(POSITION_MAX);
    map.word(place_of(incarnation))?.store(seal(tail), Ordering::Release);
    Ok(())
}

/// The position behind which an incarnation began, given the present one. `None`: it is too old, or
/// it was never stored, or the word is damaged (the check says so).
pub(crate) fn begin_of(
    map: &Map,
    present: u64,
    incarnation: u64,
) -> Result<Option<u64>, Corruption> {
    if present.checked_sub(incarnation).is_none_or(|age| age >= LOG_BEGINS_MAX) {
        return Ok(None);
    }
    debug_assert!(incarnation <= present, "an incarnation that is to come has a begin");
    if incarnation == 0 {
        return Ok(Some(0));
    }
    let word = map.word(place_of(incarnation))?.load(Ordering::Acquire);
    Ok(unseal(word, "the begin of an incarnation has a flipped bit").ok().filter(|_| word != 0))
}

/// For the check.
pub(crate) fn check_begins(map: &Map) -> Result<(), Corruption> {
    for incarnation in 0..LOG_BEGINS_MAX {
        match map.word(place_of(incarnation))?.load(Ordering::Acquire) {
            0 => {}
            word => drop(unseal(word, "the begin of an incarnation has a flipped bit")?),
        }
    }
    Ok(())
}

/// For the repair: where an incarnation began is not known any more. True if a word was damaged.
pub(crate) fn repair_begins(map: &Map) -> Result<bool, Corruption> {
    if check_begins(map).is_ok() {
        return Ok(false);
    }
    for incarnation in 0..LOG_BEGINS_MAX {
        let word = map.word(place_of(incarnation))?;
        if unseal(word.load(Ordering::Acquire), "").is_err() {
            word.store(0, Ordering::Release);
        }
    }
    debug_assert!(check_begins(map).is_ok(), "a damaged begin is left");
    Ok(true)
}
