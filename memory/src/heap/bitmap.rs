//! Runs of free units in the bitmap of a chunk: one bit for each unit, 1 = allocated.
//!
//! Only the holder of the chunk's lock changes a bitmap, or the member that recovers the holder.
//! Free neighbours are one run of zero bits, so free memory joins without work.

use nearstate_model::invariant;

use crate::atomic::{AtomicU64, Ordering};
use crate::layout::CHUNK_UNITS;

/// Words of a bitmap.
pub(crate) const BITMAP_WORDS: usize = (CHUNK_UNITS / 64) as usize;

const _: () = assert!(BITMAP_WORDS == 64 && CHUNK_UNITS.is_multiple_of(64));

/// A run of units of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnitRun {
    /// The first unit.
    pub(crate) start: u32,
    /// The number of units.
    pub(crate) units: u32,
}

impl UnitRun {
    /// The unit behind the run.
    pub(crate) const fn end(self) -> u32 {
        self.start + self.units
    }
}

/// A copy of a chunk's bitmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bitmap([u64; BITMAP_WORDS]);

impl Bitmap {
    /// Copies a bitmap. The caller holds the chunk's lock, or the region is not in use.
    pub(crate) fn load(words: &[AtomicU64; BITMAP_WORDS]) -> Self {
        Self(words.each_ref().map(|word| word.load(Ordering::Acquire)))
    }

    /// The number of allocated units.
    pub(crate) fn used(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The number of allocated units that are not in a set.
    pub(crate) fn outside(&self, set: &[u64; BITMAP_WORDS]) -> u64 {
        let words = self.0.iter().zip(set);
        let units: u32 = words.map(|(word, set)| (word & !set).count_ones()).sum();
        debug_assert!(units <= self.used(), "{units} of {} allocated units", self.used());
        u64::from(units)
    }

    /// True if the unit is allocated.
    pub(crate) fn is_set(&self, unit: u32) -> bool {
        self.0.get((unit / 64) as usize).is_some_and(|word| word >> (unit % 64) & 1 == 1)
    }

    /// True if every unit of the run is free.
    pub(crate) fn is_free(&self, run: UnitRun) -> bool {
        self.next(run.start, true).is_none_or(|unit| unit >= run.end())
    }

    /// The first run of free units at or after a unit.
    pub(crate) fn free_run(&self, from: u32) -> Option<UnitRun> {
        let start = self.next(from, false)?;
        let end = self.next(start, true).unwrap_or(CHUNK_UNITS as u32);
        invariant!(start < end, "a run of free units from {start} to {end}");
        Some(UnitRun { start, units: end - start })
    }

    /// All runs of free units, in ascending order.
    pub(crate) fn free_runs(&self) -> impl Iterator<Item = UnitRun> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let run = self.free_run(from)?;
            from = run.end();
            Some(run)
        })
    }

    /// Free units before the first allocated one.
    pub(crate) fn first_units(&self) -> u64 {
        u64::from(self.next(0, true).unwrap_or(CHUNK_UNITS as u32))
    }

    /// Free units behind the last allocated one.
    pub(crate) fn last_units(&self) -> u64 {
        let whole = self.0.iter().rev().take_while(|word| **word == 0).count() as u64;
        let part =
            self.0.iter().rev().find(|word| **word != 0).map_or(0, |word| word.leading_zeros());
        64 * whole + u64::from(part)
    }

    /// The longest run of free units.
    pub(crate) fn longest_run(&self) -> Option<UnitRun> {
        // The first of equals: chunks fill from their start.
        self.free_runs().reduce(|best, run| if run.units > best.units { run } else { best })
    }

    /// The units of the longest run of free ones.
    pub(crate) fn longest(&self) -> u64 {
        self.longest_run().map_or(0, |run| u64::from(run.units))
    }

    /// The first unit at or after `from` whose bit is as wanted.
    fn next(&self, from: u32, is_set: bool) -> Option<u32> {
        let mut index = (from / 64) as usize;
        let mut skip = from % 64;
        while let Some(word) = self.0.get(index) {
            let wanted = if is_set { *word } else { !*word } >> skip << skip;
            if wanted != 0 {
                return Some(64 * index as u32 + wanted.trailing_zeros());
            }
            (index, skip) = (index + 1, 0);
        }
        None
    }
}

/// True if every unit of a run is allocated.
pub(crate) fn is_allocated(words: &[AtomicU64; BITMAP_WORDS], run: UnitRun) -> bool {
    masks(run).all(|(index, mask)| {
        words.get(index).is_some_and(|word| word.load(Ordering::Relaxed) & mask == mask)
    })
}

/// The units of the run of free units that a free run is a part of.
pub(crate) fn joined_units(words: &[AtomicU64; BITMAP_WORDS], run: UnitRun) -> u64 {
    invariant!(u64::from(run.end()) <= CHUNK_UNITS, "{run:?} lies outside its chunk");
    let load = |index: u32| words.get(index as usize).map(|word| word.load(Ordering::Relaxed));
    let mut start = run.start;
    while let Some(before) = start.checked_sub(1) {
        // The bits up to the one before, at the top.
        let seen = load(before / 64).unwrap_or(u64::MAX) << (63 - before % 64);
        start -= seen.leading_zeros().min(before % 64 + 1);
        if seen != 0 {
            break;
        }
    }
    let mut end = run.end();
    while let Some(word) = load(end / 64) {
        let seen = word >> (end % 64);
        end += seen.trailing_zeros().min(64 - end % 64);
        if seen != 0 {
            break;
        }
    }
    debug_assert!(start <= run.start && run.end() <= end, "a run is a part of what it has joined");
    u64::from(end - start)
}

/// The words of a run, and the bits that it has in each.
fn masks(run: UnitRun) -> impl Iterator<Item = (usize, u64)> {
    let mut unit = run.start;
    std::iter::from_fn(move || {
        if unit >= run.end() {
            return None;
        }
        let in_word = (64 - unit % 64).min(run.end() - unit);
        let mask = (u64::MAX >> (64 - in_word)) << (unit % 64);
        let index = (unit / 64) as usize;
        unit += in_word;
        Some((index, mask))
    })
}

/// Marks a run as allocated or free. Idempotent.
pub(crate) fn mark(words: &[AtomicU64; BITMAP_WORDS], run: UnitRun, is_allocated: bool) {
    invariant!(u64::from(run.end()) <= CHUNK_UNITS, "{run:?} lies outside its chunk");
    for (index, mask) in masks(run) {
        let Some(word) = words.get(index) else { invariant!("{run:?} lies outside its chunk") };
        let seen = word.load(Ordering::Relaxed);
        word.store(if is_allocated { seen | mask } else { seen & !mask }, Ordering::Release);
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> [AtomicU64; BITMAP_WORDS] {
        std::array::from_fn(|_| AtomicU64::new(0))
    }

    /// As `mark`, `used` and `longest_run`, unit by unit.
    fn naive(bits: &[bool]) -> (u32, u32) {
        let used = bits.iter().filter(|bit| **bit).count() as u32;
        let longest = bits.split(|bit| *bit).map(<[bool]>::len).max().unwrap_or(0) as u32;
        (used, longest)
    }

    #[test]
    fn marks_and_runs_agree_with_a_list_of_bits() {
        let words = words();
        let mut bits = vec![false; CHUNK_UNITS as usize];
        let mut state = 7_u64;
        for round in 0..3000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let start = (state >> 33) as u32 % CHUNK_UNITS as u32;
            let most = if round % 50 == 0 { CHUNK_UNITS as u32 } else { 200 };
            let units = ((state >> 20) as u32 % most + 1).min(CHUNK_UNITS as u32 - start);
            let is_allocated = state >> 63 == 1;
            mark(&words, UnitRun { start, units }, is_allocated);
            bits[start as usize..(start + units) as usize].fill(is_allocated);
            let map = Bitmap::load(&words);
            let longest = map.longest_run().map_or(0, |run| run.units);
            assert_eq!((map.used(), longest), naive(&bits), "round {round}");
            assert_eq!(map.is_set(start), is_allocated);
            let run = UnitRun { start, units };
            assert_eq!(super::is_allocated(&words, run), is_allocated);
            if !is_allocated {
                let joined = map.free_runs().find(|free| free.end() > start).unwrap();
                assert_eq!(joined_units(&words, run), u64::from(joined.units), "round {round}");
            }
            let first = bits.iter().take_while(|bit| !**bit).count() as u64;
            let last = bits.iter().rev().take_while(|bit| !**bit).count() as u64;
            assert_eq!((map.first_units(), map.last_units()), (first, last));
            let free: u32 = map.free_runs().map(|run| run.units).sum();
            assert_eq!(free + map.used(), CHUNK_UNITS as u32);
        }
    }

    #[test]
    fn a_whole_chunk_is_one_run() {
        let words = words();
        let all = UnitRun { start: 0, units: CHUNK_UNITS as u32 };
        assert_eq!(Bitmap::load(&words).longest_run(), Some(all));
        mark(&words, all, true);
        assert_eq!(Bitmap::load(&words).longest_run(), None);
        assert_eq!(u64::from(Bitmap::load(&words).used()), CHUNK_UNITS);
        mark(&words, all, false);
        assert_eq!(Bitmap::load(&words).used(), 0);
    }
}
