//! What the rest of a region says about a word with a flipped bit, if several values have the right
//! check bits. Exactly one of them is true; the others contradict cells, depths or tables.

use nearstate_model::invariant;

use crate::atomic::Ordering;
use crate::heap::cell::{self, Cell, CellKind, WORD_HEAD, WORD_RETIRED, WORD_VERSION};
use crate::heap::chunk::ChunkIndex;
use crate::index::bucket::{at_of, depth_of, is_link};
use crate::index::lookup::{CHAIN_MAX, link_slot, walk_chain};
use crate::layout::{
    CATALOG_CHECK, CATALOG_KIND, CATALOG_RING, CATALOG_STATE, CHUNK_BYTES, CLASS_EXTENT,
    Corruption, HEAP, LINE, NAMESPACE_LIVE, SEGMENTS, catalog_at, ordinary_chunks,
};
use crate::member::pin;
use crate::namespace;
use crate::region::catalog::entries_used;
use crate::region::catalog_use::parse_use;
use crate::region::index_table::{
    IndexTable, NamespaceIdentity, buckets_of, first_of, segment_of, segment_of_word, segment_slot,
};
use crate::region::map::Map;

fn load(map: &Map, at: u64) -> Result<u64, Corruption> {
    Ok(map.word(at)?.load(Ordering::Acquire))
}

/// The largest value: of a count that may only be too high.
pub(super) fn largest(values: &[u64]) -> Option<u64> {
    invariant!(values.is_sorted(), "candidates are in ascending order");
    values.last().copied()
}

/// The least frontier behind which no chunk was used. Chunks that it adds or leaves out are free.
pub(super) fn frontier_among(map: &Map, values: &[u64]) -> Option<u64> {
    let mut used = 0;
    for chunk in (0..ordinary_chunks(map.chunks())).map(ChunkIndex) {
        let at = chunk.word_at(map);
        // A table without pages was never written.
        if map.is_allocated(at) && load(map, at).is_ok_and(|word| word != 0) {
            used = chunk.0 + 1;
        }
    }
    let units = (HEAP + CHUNK_BYTES * used) / LINE;
    let is_chunk = |value: &u64| (value * LINE - HEAP).is_multiple_of(CHUNK_BYTES);
    values.iter().copied().find(|value| *value >= units && is_chunk(value))
}

/// The least count of catalog entries with which each namespace has its place.
pub(super) fn entries_among(map: &Map, values: &[u64]) -> Option<u64> {
    let last = values.last().copied()?;
    let is_live = |entry: &u64| {
        let at = catalog_at(*entry as u32) + CATALOG_STATE;
        map.is_allocated(at) && load(map, at).is_ok_and(|word| word == NAMESPACE_LIVE)
    };
    let used = (0..last).rev().find(is_live).map_or(0, |entry| entry + 1);
    values.iter().copied().find(|value| *value >= used)
}

/// True if the check value of a namespace is that of this generation.
pub(super) fn is_generation(map: &Map, index: u32, word: u64) -> bool {
    let at = catalog_at(index);
    let is = || -> Result<bool, Corruption> {
        let name = NamespaceIdentity::name_in(map, index)?;
        let (generation, kind) = (u64::from(parse_use(word)?.0), load(map, at + CATALOG_KIND)?);
        let check = NamespaceIdentity { name, kind, generation }.check(index);
        Ok(check == load(map, at + CATALOG_CHECK)?)
    };
    is().unwrap_or(false)
}

/// The segment whose cell has the header of this one, and which is no other segment.
pub(super) fn segment_among(map: &Map, segment: usize, values: &[u64]) -> Option<u64> {
    let head = u64::from(CLASS_EXTENT) | cell::kind_in_head(CellKind::Extent);
    let is_segment = |units: &u64| {
        let at = units * LINE;
        let words = (load(map, at + WORD_HEAD), load(map, at + WORD_VERSION));
        words == (Ok(head), Ok(buckets_of(segment) + 1)) && !is_named(map, at).unwrap_or(true)
    };
    let mut found = values.iter().copied().filter(is_segment);
    found.next().filter(|_| found.next().is_none())
}

/// True if a namespace has a segment at an offset.
fn is_named(map: &Map, at: u64) -> Result<bool, Corruption> {
    for index in 0..entries_used(map)? {
        for segment in 0..SEGMENTS {
            let word = load(map, segment_slot(index, segment))?;
            if word != 0 && segment_of_word(word) == Ok(at) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The number of buckets that agrees with the depth of each bucket.
pub(super) fn buckets_among(map: &Map, index: u32, values: &[u64]) -> Option<u64> {
    let agrees = |count: &u64| {
        let level = count.ilog2();
        (0..*count).all(|bucket| {
            let is_split = bucket < count - (1 << level) || bucket >= 1 << level;
            bucket_depth(map, index, bucket) == Ok(level + u32::from(is_split))
        })
    };
    let mut found = values.iter().copied().filter(agrees);
    found.next().filter(|_| found.next().is_none())
}

fn bucket_depth(map: &Map, index: u32, bucket: u64) -> Result<u32, Corruption> {
    let segment = segment_of(bucket);
    if segment >= SEGMENTS {
        return Err(Corruption("an index with too many buckets"));
    }
    let at = segment_of_word(load(map, segment_slot(index, segment))?)?;
    let at = at.saturating_add(LINE * (1 + bucket - first_of(segment)));
    Ok(depth_of(load(map, at)?))
}

/// The latest birth epoch of the cells that the index and the rings reach.
pub(super) fn newest_birth(map: &Map) -> Result<u64, Corruption> {
    let mut newest = 2;
    let mut see = |at: u64| {
        let birth = load(map, at + WORD_RETIRED).unwrap_or(0);
        if at >= HEAP && !pin::is_retired(birth) {
            newest = birth.max(newest);
        }
    };
    for entry in namespace::list(map)? {
        see(load(map, catalog_at(entry.index) + CATALOG_RING)?);
        let table = IndexTable::new(map, entry.index)?;
        for bucket in 0..table.buckets() {
            let at = table.bucket_at(map, bucket)?;
            let mut next = load(map, link_slot(at))?;
            for _ in 0..CHAIN_MAX {
                if !is_link(next) {
                    break;
                }
                see(at_of(next));
                let last = at_of(next) + cell::LINE_FIRST + 8 * (cell::LINE_WORDS - 1);
                next = load(map, last).unwrap_or(0);
            }
            // What cannot be read is corrected later, or lost.
            let _ = walk_chain(map, at, |_, word| {
                if word != 0
                    && let Ok(record) = Cell::new(map, at_of(word))
                    && record.is_whole() == Ok(true)
                {
                    see(record.at());
                    (0..record.children())
                        .filter_map(|child| record.child(child).ok())
                        .for_each(&mut see);
                }
                Ok(true)
            });
        }
    }
    Ok(newest)
}
