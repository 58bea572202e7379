//! The chunks of the heap (`docs/decisions/013-heap.md`, `spec/region.md`, section 6): their words,
//! their bitmaps and their locks.
//!
//! A chunk is 256 KiB with a lock word and a bitmap of its units. Every change of a bitmap is made
//! under the lock. A member holds one such lock at a time.

use std::ops::Range;

use nearstate_model::{Result, invariant};

use crate::atomic::{AtomicU64, Ordering};
use crate::crash::crash_point;
use crate::heap::bitmap::{BITMAP_WORDS, Bitmap, UnitRun};
use crate::layout::{
    BITMAP_BYTES, CHUNK_BYTES, CHUNK_HAS_FIXED, CHUNK_HAS_PAGES, CHUNK_IS_CLOSING,
    CHUNK_IS_GIVEN_UP, CHUNK_NEW_WITH_PAGES, CHUNK_UNITS, Corruption, HEAP, LINE, SUPER_FRONTIER,
    bitmaps_at, chunk_words_at, ordinary_chunks, seal, unseal,
};
use crate::member::arena::LockSlot;
use crate::member::{Member, lock};
use crate::region::map::Map;

/// Bytes of the tables that get pages at once. Both tables begin at a multiple of it.
const TABLE_PAGE: u64 = 4096;

const NO_RANGE: Corruption = Corruption("a recorded range of the heap contradicts itself");
const LOST_BIT: Corruption = Corruption(
    "the bitmap of a chunk of the heap has a flipped bit: the chunk is not used any more",
);
const NO_CHUNK: Corruption = Corruption("a cell lies outside the heap's chunks");

/// The number of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChunkIndex(pub(crate) u64);

impl ChunkIndex {
    /// The chunk of an offset.
    pub(crate) fn of(map: &Map, at: u64) -> Result<Self, Corruption> {
        let index = at.checked_sub(HEAP).ok_or(NO_CHUNK)? / CHUNK_BYTES;
        if index < map.chunks() { Ok(Self(index)) } else { Err(NO_CHUNK) }
    }

    /// The offset of its first byte.
    pub(crate) const fn start(self) -> u64 {
        debug_assert!(self.0 < 1 << 32, "a region has fewer chunks than 2^32");
        HEAP + CHUNK_BYTES * self.0
    }

    /// The offset behind its last byte.
    pub(crate) const fn end(self) -> u64 {
        self.start() + CHUNK_BYTES
    }

    /// The offset of its word.
    pub(crate) const fn word_at(self, map: &Map) -> u64 {
        debug_assert!(self.0 < map.chunks(), "only a chunk of the heap has a word");
        chunk_words_at(map.chunks()) + 8 * self.0
    }

    /// Its bitmap.
    pub(crate) fn bitmap(self, map: &Map) -> Result<&[AtomicU64; BITMAP_WORDS], Corruption> {
        debug_assert!(self.0 < map.chunks(), "only a chunk of the heap has a bitmap");
        map.words(bitmaps_at(map.chunks()) + BITMAP_BYTES * self.0)
    }

    /// As [`ChunkIndex::run`], of a range that was read from shared memory.
    pub(crate) fn checked_run(self, at: u64, to: u64) -> Result<UnitRun, Corruption> {
        let is_run = self.start() <= at
            && at < self.end()
            && at < to
            && at.is_multiple_of(LINE)
            && to.is_multiple_of(LINE);
        if is_run { Ok(self.run(at, to)) } else { Err(NO_RANGE) }
    }

    /// The part of `[at, to)` that lies in it. `at` does.
    pub(crate) fn run(self, at: u64, to: u64) -> UnitRun {
        invariant!(self.start() <= at && at < self.end() && at < to, "{at:#x} is not in {self:?}");
        let end = to.min(self.end());
        debug_assert!((end - at).is_multiple_of(LINE), "a run has whole units");
        UnitRun { start: ((at - self.start()) / LINE) as u32, units: ((end - at) / LINE) as u32 }
    }
}

/// The payload of a chunk's word. 0: every unit is free, and there may be no pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent bits of the word")]
pub(crate) struct ChunkState {
    /// All of it has pages.
    pub(crate) has_pages: bool,
    /// Its records are being moved elsewhere: nothing is allocated in it if there is room
    /// elsewhere.
    pub(crate) is_closing: bool,
    /// It keeps cells that cannot be moved, so that those that can are put elsewhere if there is
    /// room. A hint.
    pub(crate) has_fixed: bool,
    /// A unit that its word counts is free in its bitmap. Counts as full, and nothing is allocated
    /// in it until the repair.
    pub(crate) is_given_up: bool,
    /// Allocated units.
    pub(crate) used: u64,
    /// No run of free units is longer.
    pub(crate) longest: u64,
}

impl ChunkState {
    pub(crate) const fn decode(payload: u64) -> Self {
        let is_given_up = payload & CHUNK_IS_GIVEN_UP != 0;
        let (used, longest_taken) = (payload & 0xffff, payload >> 16 & 0xffff);
        Self {
            has_pages: payload & CHUNK_HAS_PAGES != 0,
            is_closing: payload & CHUNK_IS_CLOSING != 0,
            has_fixed: payload & CHUNK_HAS_FIXED != 0,
            is_given_up,
            // A flipped bit only misleads the search: it is found under the lock.
            used: if is_given_up || used > CHUNK_UNITS { CHUNK_UNITS } else { used },
            longest: if is_given_up { 0 } else { CHUNK_UNITS.saturating_sub(longest_taken) },
        }
    }

    /// As [`ChunkState::decode`], under the chunk's lock. A word with a flipped bit becomes what
    /// the bitmap says. Then it is unknown whether the chunk has pages, so it gets them again
    /// ([`Member::commit_chunk`]), which changes no cell.
    pub(crate) fn decode_locked(payload: u64, bitmap: &[AtomicU64; BITMAP_WORDS]) -> ChunkState {
        if with_check(payload & !(0xff << CHECK_SHIFT)) == payload {
            Self::decode(payload)
        } else {
            Self::of(&Bitmap::load(bitmap), false)
        }
    }

    pub(crate) const fn encode(self) -> u64 {
        // More would overflow into the other fields of the word.
        debug_assert!(self.used <= CHUNK_UNITS, "more units are allocated than a chunk has");
        debug_assert!(self.longest <= CHUNK_UNITS, "a run is longer than its chunk");
        let pages = if self.has_pages { CHUNK_HAS_PAGES } else { 0 };
        let closing = if self.is_closing { CHUNK_IS_CLOSING } else { 0 };
        let fixed = if self.has_fixed { CHUNK_HAS_FIXED } else { 0 };
        let (given_up, used, longest) = if self.is_given_up {
            (CHUNK_IS_GIVEN_UP, CHUNK_UNITS, 0)
        } else {
            (0, self.used, self.longest)
        };
        with_check(pages | closing | fixed | given_up | (CHUNK_UNITS - longest) << 16 | used)
    }

    /// Before units are taken: the number of allocated ones. A bit of the bitmap that became 0 by a
    /// flip would let its unit be taken a second time. The word counts it still, because each
    /// change of a bitmap ends with one of the word. A bit that became 1 only keeps its unit from
    /// use.
    ///
    /// # Errors
    /// `Corruption`: nothing may be taken. [`Member::under_chunk`] then gives the chunk up.
    pub(crate) fn verify(self, bitmap: &Bitmap) -> Result<u64, Corruption> {
        let used = u64::from(bitmap.used());
        if used < self.used { Err(LOST_BIT) } else { Ok(used) }
    }

    /// The state after units were taken, with the bitmap and the number of allocated units that it
    /// has now.
    pub(crate) fn after_taking(self, bitmap: &Bitmap, used: u64) -> Self {
        invariant!(!self.is_given_up, "units are taken from a chunk that was given up");
        invariant!(used <= CHUNK_UNITS, "{used} units of a chunk are allocated");
        Self { is_closing: false, used, longest: bitmap.longest(), ..self }
    }

    /// The state after work under the lock failed. `self` counts each unit that the work has freed,
    /// and only some of those that it has taken.
    pub(crate) fn after_failure(self, bitmap: &Bitmap) -> Self {
        let found = Self::of(bitmap, self.has_pages);
        let is_given_up = self.is_given_up || found.used < self.used;
        Self { is_given_up, has_fixed: self.has_fixed, ..found }
    }

    /// The payload that the bitmap says, of a chunk without hints.
    pub(crate) fn of(bitmap: &Bitmap, has_pages: bool) -> Self {
        let longest = bitmap.longest();
        let used = u64::from(bitmap.used());
        let (is_closing, has_fixed, is_given_up) = (false, false, false);
        Self { has_pages, is_closing, has_fixed, is_given_up, used, longest }
    }

    /// True if what can be moved is put elsewhere, as long as there is room.
    pub(crate) const fn is_avoided(self) -> bool {
        self.is_closing || self.has_fixed
    }

    pub(crate) const fn free(self) -> u64 {
        debug_assert!(self.used <= CHUNK_UNITS, "a decoded word counts no more than a chunk has");
        CHUNK_UNITS - self.used
    }
}

/// Adds the check bits to the payload of a chunk's word: the XOR of its other bytes. Any single
/// flipped bit is found. The payload 0 has check bits 0.
const fn with_check(payload: u64) -> u64 {
    // The bits 46 and 47, 32, 33 and the spare bits (34 to 37) make the fifth byte.
    let low = payload & 0xffff_ffff;
    let fifth = payload >> 32 & 0x3f | (payload >> 46 & 3) << 6;
    let check = low ^ low >> 8 ^ low >> 16 ^ low >> 24 ^ fifth;
    payload | (check & 0xff) << CHECK_SHIFT
}

/// The check bits are bits 38 to 45 of a chunk's word.
const CHECK_SHIFT: u32 = 38;
const _: () = assert!(CHUNK_UNITS < 1 << 16, "a count of units has 16 bits of the word");
const _: () = assert!(CHECK_SHIFT + 8 == 46 && CHUNK_IS_CLOSING == 1 << 46, "fields are disjoint");
const _: () = assert!(CHUNK_IS_GIVEN_UP == 1 << 32, "the counts are the low 32 bits");
const _: () = assert!(CHUNK_HAS_FIXED == 1 << 33, "hints and check bits are disjoint");
const _: () = assert!(TABLE_PAGE.is_multiple_of(BITMAP_BYTES), "a bitmap lies in one page");
const _: () =
    assert!(CHUNK_HAS_PAGES == 1 << 47 && with_check(CHUNK_HAS_PAGES) == CHUNK_NEW_WITH_PAGES);

/// The number of ordinary chunks that were ever used. Those behind them have no tables yet.
pub(crate) fn chunks_used(map: &Map) -> Result<u64, Corruption> {
    let at = unseal(
        map.word(SUPER_FRONTIER)?.load(Ordering::Acquire),
        "the heap's frontier has a flipped bit",
    )? * LINE;
    if at < HEAP
        || !(at - HEAP).is_multiple_of(CHUNK_BYTES)
        || at > HEAP + CHUNK_BYTES * ordinary_chunks(map.chunks())
    {
        return Err(Corruption("the heap's frontier lies outside the heap"));
    }
    Ok((at - HEAP) / CHUNK_BYTES)
}

/// The bytes behind the used part of the two tables, of words and of bitmaps, up to the end of the
/// page, if that page is allocated. They are zero: chunks from `used` on were never used.
pub(crate) fn unused_table_bytes(map: &Map, used: u64) -> impl Iterator<Item = Range<u64>> {
    let (chunks, ordinary) = (map.chunks(), ordinary_chunks(map.chunks()));
    let words = |chunk| chunk_words_at(chunks) + 8 * chunk;
    let bitmaps = |chunk| bitmaps_at(chunks) + BITMAP_BYTES * chunk;
    [words(used)..words(ordinary), bitmaps(used)..bitmaps(ordinary)]
        .map(|table| table.start..table.start.next_multiple_of(TABLE_PAGE).min(table.end))
        .into_iter()
        .filter(|page| !page.is_empty() && map.is_allocated(page.start))
}

#[cfg(test)]
thread_local! {
    /// How many words of chunks this thread has read without their locks.
    pub(crate) static WORDS_READ: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Reads the payload of a chunk without its lock.
pub(crate) fn state_of(map: &Map, chunk: ChunkIndex) -> Result<ChunkState, Corruption> {
    #[cfg(test)]
    WORDS_READ.set(WORDS_READ.get() + 1);
    let word = map.word(chunk.word_at(map))?.load(Ordering::Relaxed);
    Ok(ChunkState::decode(word & lock::PAYLOAD))
}

/// The chunks of the reserve.
pub(crate) fn reserve(map: &Map) -> impl Iterator<Item = ChunkIndex> + use<> {
    (ordinary_chunks(map.chunks())..map.chunks()).map(ChunkIndex)
}

/// The units that the reserve has lent.
pub(crate) fn lent(map: &Map) -> Result<u64, Corruption> {
    let mut lent = 0;
    for chunk in reserve(map) {
        lent += state_of(map, chunk)?.used;
    }
    Ok(lent)
}

/// Every chunk that has tables: those that were ever used, and the reserve.
pub(crate) fn chunks_with_tables(
    map: &Map,
) -> Result<impl Iterator<Item = ChunkIndex> + use<>, Corruption> {
    Ok((0..chunks_used(map)?).map(ChunkIndex).chain(reserve(map)))
}

/// True if this owner holds the lock of a chunk.
pub(crate) fn is_held_by(map: &Map, chunk: ChunkIndex, owner: u64) -> Result<bool, Corruption> {
    let word = map.word(chunk.word_at(map))?.load(Ordering::Acquire);
    Ok(lock::owner_of(word) == owner)
}

impl Member {
    /// Makes one more chunk available. `None` if the heap has no more.
    pub(crate) fn add_chunk(&self) -> Result<Option<ChunkIndex>> {
        let map = self.map();
        let word = map.word(SUPER_FRONTIER)?;
        loop {
            let used = chunks_used(map)?;
            if used == ordinary_chunks(map.chunks()) {
                return Ok(None);
            }
            let chunk = ChunkIndex(used);
            // The tables have pages before any process can read them. Chunks are added one by one,
            // so each page of a table begins with a chunk that is added.
            let bitmap_at = bitmaps_at(map.chunks()) + BITMAP_BYTES * used;
            for at in [chunk.word_at(map), bitmap_at] {
                if at.is_multiple_of(TABLE_PAGE) {
                    // Without `fallocate` the tables got their pages at creation.
                    map.try_commit(at, TABLE_PAGE)?;
                }
            }
            crash_point!("frontier.tables");
            let (old, new) = (seal(chunk.start() / LINE), seal(chunk.end() / LINE));
            if word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                crash_point!("frontier.raised");
                return Ok(Some(chunk));
            }
        }
    }

    /// Gives a chunk its pages. The caller holds its lock.
    pub(crate) fn commit_chunk(&self, chunk: ChunkIndex, state: &mut ChunkState) -> Result<()> {
        invariant!(self.has_lock(LockSlot::Leaf), "a chunk gets pages without its lock");
        if !state.has_pages {
            if state.used == 0 {
                self.map().commit(chunk.start(), CHUNK_BYTES)?;
            } else {
                // Cells are in use, so it has pages, and its word had a flipped bit. Zeros must not
                // be written over them where there is no `fallocate`.
                self.map().try_commit(chunk.start(), CHUNK_BYTES)?;
            }
            state.has_pages = true;
            let word = self.map().word(chunk.word_at(self.map()))?;
            lock::hold_with(word, self.lock_owner(), state.encode());
            crash_point!("chunk.paged");
        }
        Ok(())
    }
}
