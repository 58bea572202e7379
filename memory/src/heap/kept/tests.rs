//! Where a member finds memory when the heap is nearly full: what it keeps, all chunks after the
//! near ones, closing chunks last, and the reserve.

use nearstate_model::{Error, Result};

use crate::atomic::Ordering;
use crate::fixture::TestRegionPath;
use crate::heap::bitmap::{Bitmap, UnitRun, mark};
use crate::heap::cell::bytes_at;
use crate::heap::chunk::{ChunkIndex, chunks_used, reserve, state_of};
use crate::heap::class;
use crate::layout::{CHUNK_UNITS, LINE, ordinary_chunks};
use crate::member::Member;
use crate::member::arena::{Bump, LockSlot};
use crate::region::file::{CreateOptions, Region};

/// The class of cells of this many units.
fn class_of_units(units: u64) -> u8 {
    class::class_of(units * LINE).unwrap()
}

/// Runs a test of a member in a region whose ordinary chunks are full. Only the first one has
/// pages: extents fill the others.
fn in_full_heap(name: &str, bytes_max: u64, test: impl FnOnce(&Member)) {
    let path = TestRegionPath::new(name);
    let options = CreateOptions { bytes_max, ..CreateOptions::default() };
    let region = Region::create(path.path(), &options).unwrap();
    let member = region.member().unwrap();
    let done = member.operation(|| {
        member.allocate(LINE)?;
        member.empty_bump(Bump::Small)?;
        for bytes in [64 << 20, 1 << 20, 256 << 10, 16 << 10, 1 << 10, 2 * LINE] {
            while member.allocate_extent(bytes, false).is_ok() {}
        }
        while member.allocate_fresh(0).is_ok() {}
        member.empty_bump(Bump::Small)?;
        let queue = member.arena().queue(0)?;
        invariant_empty(queue.head.load(Ordering::Relaxed));
        assert_eq!(chunks_used(member.map())?, ordinary_chunks(member.map().chunks()));
        forget_searches(&member);
        // Without an epoch that is safe, no cell of a queue is reused.
        member.advance()?;
        test(&member);
        Ok(())
    });
    done.unwrap();
}

fn invariant_empty(head: u64) {
    assert_eq!(head, 0, "no free cell is left");
}

fn forget_searches(member: &Member) {
    member.vain_search.set((0, 0));
    member.scarce_refills.set(0);
    member.chunk.set(0);
}

/// Frees some units of a chunk, as another member would.
fn free_units(member: &Member, chunk: u64, start: u32, units: u32) {
    let chunk = ChunkIndex(chunk);
    let freed = member.under_chunk(chunk, None, |state| {
        assert!(member.has_lock(LockSlot::Leaf));
        let words = chunk.bitmap(member.map())?;
        mark(words, UnitRun { start, units }, false);
        let bitmap = Bitmap::load(words);
        (state.used, state.longest) = (u64::from(bitmap.used()), bitmap.longest());
        Ok(())
    });
    assert_eq!(freed, Ok(Some(())), "the chunk is not locked");
}

fn set_closing(member: &Member, chunk: u64) {
    let closed = member.under_chunk(ChunkIndex(chunk), None, |state| {
        state.is_closing = true;
        Ok(())
    });
    assert_eq!(closed, Ok(Some(())), "the chunk is not locked");
}

/// The chunk and the unit of a fresh cell of so many units.
fn take(member: &Member, units: u64) -> Result<(u64, u64)> {
    let cell = member.allocate_fresh(class_of_units(units))?;
    let chunk = ChunkIndex::of(member.map(), cell)?;
    Ok((chunk.0, (cell - chunk.start()) / LINE))
}

fn is_full<T>(taken: &Result<T>) -> bool {
    matches!(taken, Err(Error::Full { .. }))
}

#[test]
fn a_chunk_far_behind_the_last_one_is_found_in_a_heap_of_many() {
    in_full_heap("far", 260 << 20, |member| {
        let used = chunks_used(member.map()).unwrap();
        assert!(used > 1000, "{used} chunks: more than a search near the last one looks at");
        assert!(is_full(&take(member, 4)));
        forget_searches(member);
        free_units(member, 900, 100, 4);
        assert_eq!(take(member, 4), Ok((900, 100)));
        assert!(is_full(&take(member, 4)));
    });
}

#[test]
fn a_search_of_all_chunks_in_vain_is_not_repeated_for_some_refills() {
    in_full_heap("vain", 260 << 20, |member| {
        let search = |units| {
            member.tries_again.set(true);
            let taken = take(member, units);
            member.tries_again.set(false);
            taken
        };
        assert!(is_full(&search(4)));
        // Another member frees a run behind the near chunks.
        free_units(member, 900, 100, 4);
        let mut refills = 0;
        let taken = loop {
            match search(4) {
                Err(Error::Full { .. }) => refills += 1,
                other => break other,
            }
            assert!(refills < 1000, "the search is never repeated");
        };
        assert_eq!(taken, Ok((900, 100)));
        assert!(refills >= 16, "it is repeated after {refills} refills");
        // Shorter runs were not searched for, and an operation without another attempt searches.
        free_units(member, 901, 7, 2);
        assert!(is_full(&search(4)));
        assert_eq!(search(2), Ok((901, 7)));
        free_units(member, 902, 9, 4);
        assert!(is_full(&search(4)));
        assert_eq!(take(member, 4), Ok((902, 9)));
    });
}

#[test]
fn what_this_member_frees_ends_the_memory_of_a_vain_search() {
    in_full_heap("freed", 260 << 20, |member| {
        free_units(member, 900, 100, 12);
        let (chunk, unit) = take(member, 12).unwrap();
        assert_eq!((chunk, unit), (900, 100));
        assert!(is_full(&take(member, 12)));
        assert_ne!(member.vain_search.get().1, 0);
        member.arena().roll_back().unwrap();
        // The cells of one unit are shorter than what was searched for.
        member.free_queue(0, 1).unwrap();
        assert_ne!(member.vain_search.get().1, 0);
        member.free_queue(class_of_units(12), 1).unwrap();
        assert_eq!(member.vain_search.get().1, 0, "there is room again");
    });
}

#[test]
fn a_closing_chunk_is_used_last_and_is_open_then() {
    in_full_heap("closing", 80 << 20, |member| {
        free_units(member, 20, 50, 2);
        free_units(member, 30, 60, 2);
        free_units(member, 31, 61, 2);
        set_closing(member, 20);
        assert_eq!(take(member, 2), Ok((30, 60)));
        assert_eq!(take(member, 2), Ok((31, 61)));
        assert!(state_of(member.map(), ChunkIndex(20)).unwrap().is_closing);
        assert_eq!(take(member, 2), Ok((20, 50)));
        assert!(!state_of(member.map(), ChunkIndex(20)).unwrap().is_closing);
    });
}

#[test]
fn a_free_cell_in_a_closing_chunk_is_not_split() {
    in_full_heap("closing-kept", 80 << 20, |member| {
        free_units(member, 20, 50, 16);
        assert_eq!(take(member, 16), Ok((20, 50)));
        member.arena().roll_back().unwrap();
        set_closing(member, 20);
        assert_eq!(member.split_kept(class_of_units(4)), Ok(false));
    });
}

#[test]
fn the_reserve_lends_one_cell_at_a_time_and_gets_it_back_first() {
    in_full_heap("lent", 80 << 20, |member| {
        let lent = || -> u64 {
            reserve(member.map()).map(|chunk| state_of(member.map(), chunk).unwrap().used).sum()
        };
        assert!(is_full(&take(member, 20)));
        assert_eq!(lent(), 0, "an ordinary operation takes nothing of it");
        member.may_use_reserve.set(true);
        let (chunk, _) = take(member, 20).unwrap();
        member.may_use_reserve.set(false);
        assert!(chunk >= ordinary_chunks(member.map().chunks()));
        assert_eq!(lent(), 20);
        // What was lent must be free elsewhere, besides what is taken.
        free_units(member, 40, 0, 23);
        assert!(is_full(&take(member, 4)));
        free_units(member, 41, 0, 1);
        assert_eq!(take(member, 4).map(|taken| taken.0), Ok(40));
    });
}

#[test]
fn a_free_cell_is_split_and_what_is_left_of_it_is_kept() {
    in_full_heap("split", 80 << 20, |member| {
        free_units(member, 20, 50, 16);
        assert_eq!(take(member, 16), Ok((20, 50)));
        member.arena().roll_back().unwrap();
        let used = state_of(member.map(), ChunkIndex(20)).unwrap().used;
        assert_eq!(used, CHUNK_UNITS);
        assert_eq!(take(member, 5), Ok((20, 50)));
        assert_eq!(take(member, 3), Ok((20, 55)), "from the same range");
        // Too large for the rest, which becomes a cell of a queue.
        assert!(is_full(&take(member, 9)));
        assert_eq!(member.arena().room(Bump::Small), 0);
        let queue = member.arena().queue(class_of_units(8)).unwrap();
        let rest = queue.head.load(Ordering::Relaxed);
        assert_eq!(rest, ChunkIndex(20).start() + 58 * LINE);
        assert_eq!(bytes_at(member.map(), rest), Ok(8 * LINE));
        assert_eq!(state_of(member.map(), ChunkIndex(20)).unwrap().used, used, "no bit changed");
        // Of the class with the most cells, not the next larger one.
        free_units(member, 21, 0, 20);
        // Two cells: one that is taken, and one in the queue.
        take(member, 10).unwrap();
        member.arena().roll_back().unwrap();
        assert_eq!(member.split_kept(class_of_units(6)), Ok(true));
        assert_eq!(member.arena().room(Bump::Small), 10 * LINE);
    });
}

/// A run that is made of a free cell and of what lies behind it is memory as any other.
#[test]
fn a_run_that_is_joined_leaves_what_the_reserve_has_lent() {
    in_full_heap("lent-joined", 80 << 20, |member| {
        let lent = || -> u64 {
            reserve(member.map()).map(|chunk| state_of(member.map(), chunk).unwrap().used).sum()
        };
        free_units(member, 40, 0, 4);
        assert_eq!(take(member, 4), Ok((40, 0)));
        member.arena().roll_back().unwrap();
        member.may_use_reserve.set(true);
        take(member, 20).unwrap();
        member.may_use_reserve.set(false);
        free_units(member, 40, 4, 20);
        assert_eq!(lent(), 20, "as much as is free behind the kept cell");
        member.wanted_units.set(6);
        assert_eq!(member.joins_run(), Ok(false));
        assert_eq!(member.arena().queue_count(class_of_units(4)), 1, "nothing was freed");
        assert!(is_full(&take(member, 6)));
        // Others free as much as is wanted: no more than that is taken.
        free_units(member, 41, 0, 6);
        let no_pages = member.under_chunk(ChunkIndex(40), None, |state| {
            state.has_pages = false;
            Ok(())
        });
        assert_eq!(no_pages, Ok(Some(())));
        assert_eq!(member.joins_run(), Ok(true));
        assert!(state_of(member.map(), ChunkIndex(40)).unwrap().has_pages);
        assert_eq!(member.arena().bump(Bump::Small).0, ChunkIndex(40).start());
        assert_eq!(member.arena().room(Bump::Small), 6 * LINE);
    });
}
