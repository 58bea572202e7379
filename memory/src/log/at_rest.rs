//! For the check of a region that is not attached: tail, floor and sum of the log agree with its
//! words and its entries. Each of them is changed by one atomic operation, so none has a check
//! value.

use nearstate_model::invariant;

use crate::atomic::Ordering;
use crate::layout::{CHUNK_UNITS, Corruption, LOG_DECLARATIONS, LOG_FLOOR, LOG_TAIL, LOG_UNITS};
use crate::log::begins::POSITION_MAX;
use crate::log::entry::LogEntry;
use crate::log::words::LogSlot;
use crate::log::{WORDS_RESERVED, log_words};
use crate::region::map::Map;

/// Positions at the end of the log that may have been drawn and never claimed, because their
/// writers were killed, besides those that declarations draw. No kill leaves more than one.
const UNCLAIMED_MAX: u64 = 256;

/// Compares the words. [`log_words`] succeeds, and no position lies behind the end.
pub(crate) fn check_entries(map: &Map) -> Result<(), Corruption> {
    let Some(log) = log_words(map)? else { return Ok(()) };
    let load = |at| Ok::<_, Corruption>(map.word(at)?.load(Ordering::Acquire));
    let (tail, floor, units) = (load(LOG_TAIL)?, load(LOG_FLOOR)?, load(LOG_UNITS)?);
    if tail > POSITION_MAX || tail.saturating_sub(floor) > log.ring.len() as u64 + WORDS_RESERVED {
        return Err(Corruption("it keeps more positions than it has words"));
    }
    if log.has_later_word() {
        return Err(Corruption("a word belongs to a position behind its end"));
    }
    debug_assert!(log.ring.len().is_power_of_two(), "a ring that `log_words` refuses");
    let (mut unclaimed, mut sum) = (0_u64, None);
    for position in floor.max(1)..=tail {
        match log.read(position, || true) {
            LogSlot::Claimed(at) => {
                let entry = LogEntry::at(map, position, at)?;
                if !entry.is_held()? {
                    return Err(Corruption("it keeps an entry that was retired"));
                }
                (unclaimed, sum) = (0, sum.max(Some(entry.sum()?)));
            }
            LogSlot::Hole => unclaimed = 0,
            LogSlot::Drawn(_) => unclaimed += 1,
            LogSlot::Lost | LogSlot::Unused => {
                return Err(Corruption("it keeps a position of another round"));
            }
        }
    }
    invariant!(unclaimed <= tail, "{unclaimed} of {tail} positions have no entry");
    let unclaimed_max = load(LOG_DECLARATIONS)?.saturating_add(UNCLAIMED_MAX);
    if unclaimed > unclaimed_max {
        return Err(Corruption("its last positions have no entries"));
    }
    // A writer that was killed may have added the units of an entry and not placed it: those of the
    // whole heap at most.
    let more_max = (unclaimed + UNCLAIMED_MAX) * map.chunks() * CHUNK_UNITS;
    if sum.is_some_and(|sum| !(sum..=sum.saturating_add(more_max)).contains(&units)) {
        return Err(Corruption("the units that it has held are not those of its last entry"));
    }
    Ok(())
}
