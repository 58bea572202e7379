//! What a region of which a part was overwritten with zeros may have lost: zeros do not tell which
//! records there were, but the memory of these records is still allocated, and nothing leads to it.

use std::collections::HashSet;

use nearstate_model::invariant;

use crate::atomic::Ordering;
use crate::heap::bitmap::{BITMAP_WORDS, Bitmap};
use crate::heap::cell::{self, WORD_NEXT, WORD_RETIRED};
use crate::heap::chunk::ChunkState;
use crate::layout::{
    CATALOG_RING, CHUNK_BYTES, CHUNK_UNITS, Corruption, HEAP, LINE, LOG_WORDS, SEGMENTS, catalog_at,
};
use crate::member::arena::{Arena, Bump, HELD, undo};
use crate::member::lock::PAYLOAD;
use crate::member::pin;
use crate::region::catalog::entries_used;
use crate::region::index_table::{buckets_of, number_in, segment_of_word, segment_slot};
use crate::region::map::Map;
use crate::region::member_table::member_slots_used;

/// The memory that belongs to no record before the repair, and becomes free in it: queues and bump
/// ranges of sessions, the log, and the indexes of removed namespaces. What cannot be read is left
/// out.
pub(super) fn kept_ranges(map: &Map) -> Vec<(u64, u64)> {
    let mut ranges = Vec::new();
    for index in 0..member_slots_used(map).unwrap_or(0) {
        // What was found until then is enough: the rest counts as not accounted for.
        let _ = arena(map, index, &mut ranges);
    }
    for index in 0..entries_used(map).unwrap_or(0) {
        if number_in(map, index) == Ok(None) {
            let _ = removed_namespace(map, index, &mut ranges);
        }
    }
    let _ = cell_at(map, LOG_WORDS, &mut ranges);
    let heap = HEAP..=HEAP + CHUNK_BYTES * map.chunks();
    ranges.retain(|(from, to)| from < to && heap.contains(from) && heap.contains(to));
    invariant!(ranges.iter().all(|(from, _)| *from >= HEAP), "kept memory is in the heap");
    ranges
}

fn load(map: &Map, at: u64) -> Result<u64, Corruption> {
    Ok(map.word(at)?.load(Ordering::Acquire))
}

/// Queues, bump ranges and the open ranges of an undo record.
fn arena(map: &Map, index: u32, ranges: &mut Vec<(u64, u64)>) -> Result<(), Corruption> {
    let arena = Arena::new(map, index, false)?;
    ranges.extend([Bump::Small, Bump::Large].map(|which| arena.bump(which)));
    ranges.push((arena.get(undo::FREE_AT), arena.get(undo::FREE_TO)));
    ranges.push((arena.get(undo::CHUNK_AT) & !1, arena.get(undo::CHUNK_TO)));
    // A damaged queue can be a cycle.
    let mut seen = HashSet::new();
    for class in 0..=HELD {
        let mut next = arena.numbered_queue(class)?.head.load(Ordering::Acquire);
        while next >= HEAP && seen.insert(next) {
            let Ok(retired) = cell::word(map, next, WORD_RETIRED) else { break };
            let Ok(bytes) = cell::bytes_at(map, next) else { break };
            if !pin::is_retired(retired.load(Ordering::Acquire)) {
                break;
            }
            ranges.push((next, next + bytes));
            next = load(map, next + WORD_NEXT)?;
        }
    }
    Ok(())
}

/// The segments and the ring that a removed namespace leaves to the next one in its entry.
fn removed_namespace(
    map: &Map,
    index: u32,
    ranges: &mut Vec<(u64, u64)>,
) -> Result<(), Corruption> {
    debug_assert!(index < entries_used(map)?, "only used entries have had a namespace");
    for segment in 0..SEGMENTS {
        let word = load(map, segment_slot(index, segment))?;
        if word != 0 {
            let at = segment_of_word(word)?;
            debug_assert!(at.is_multiple_of(LINE), "a segment begins at a line");
            ranges.push((at, at.saturating_add(LINE * (buckets_of(segment) + 1))));
        }
    }
    cell_at(map, catalog_at(index) + CATALOG_RING, ranges)
}

/// The cell whose offset a word has.
fn cell_at(map: &Map, word: u64, ranges: &mut Vec<(u64, u64)>) -> Result<(), Corruption> {
    let at = load(map, word)?;
    if at != 0 {
        ranges.push((at, at.saturating_add(cell::bytes_at(map, at)?)));
    }
    Ok(())
}

/// The units of a chunk that are allocated, and of which it is not known what they were used for.
/// The chunk's word counts units that a zeroed bitmap does not have. If both are zeros, all units
/// may have been allocated.
pub(super) fn unaccounted_units(word: u64, bitmap: &Bitmap, known: &[u64; BITMAP_WORDS]) -> u64 {
    let known_units: u64 = known.iter().map(|word| u64::from(word.count_ones())).sum();
    invariant!(known_units <= CHUNK_UNITS, "{known_units} units of a chunk are known");
    let state = ChunkState::decode(word & PAYLOAD);
    let used = if word == 0 && bitmap.used() == 0 && known_units != 0 {
        CHUNK_UNITS
    } else if state.encode() == word && !state.is_given_up {
        state.used.min(CHUNK_UNITS)
    } else {
        0 // A damaged word counts nothing.
    };
    let units = bitmap.outside(known).max(used.saturating_sub(known_units));
    debug_assert!(units <= CHUNK_UNITS, "{units} units of a chunk are not accounted for");
    units
}
