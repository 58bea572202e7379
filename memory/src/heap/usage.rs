//! What the heap is used for: for errors of a full region, and for inspection.

use nearstate_model::Holder;
use nearstate_model::heap_usage::{FREE_SIZES, HeapUsage, HeldBack, KeptInOperation};

use crate::atomic::Ordering;
use crate::heap::bitmap::{Bitmap, is_allocated};
use crate::heap::cell::{self, WORD_NEXT, WORD_RETIRED};
use crate::heap::chunk::{ChunkIndex, chunks_used, reserve, state_of};
use crate::heap::class::{self, CLASSES};
use crate::layout::{CHUNK_BYTES, Corruption, LINE, SUPER_EPOCH, ordinary_chunks, unseal};
use crate::member::arena::{Arena, Bump, HELD, SET_ASIDE, undo};
use crate::member::held_since::held_ms;
use crate::member::pin::{NEVER_READ, PinInterval, STALLED_EPOCHS, told_apart};
use crate::member::pin_slot::pin_words;
use crate::region::map::Map;
use crate::region::member_table::{self, identity_of, member_slots_used, state};

/// Retired cells that are looked at for an error: about a millisecond. The other cells of a queue
/// count as those that were looked at.
pub(crate) const CELLS_FOR_ERROR: u64 = 1 << 14;

/// Chunks whose bitmaps are read for an error: 16 GiB.
pub(crate) const CHUNKS_FOR_ERROR: u64 = 1 << 16;

/// Numbers that change when the usage of the heap does, except for what is retired: allocated
/// units, members with old pins, and the sum of the starts of their pins. Reads a word of each
/// chunk and of each member.
pub(crate) fn usage_state(map: &Map) -> Result<[u64; 3], Corruption> {
    let mut used = 0;
    for chunk in (0..chunks_used(map)?).map(ChunkIndex) {
        used += state_of(map, chunk)?.used;
    }
    let epoch = unseal(map.word(SUPER_EPOCH)?.load(Ordering::Acquire), "the epoch")?;
    let pinned = pinned_members(map, epoch)?;
    let starts = pinned.iter().fold(0, |sum: u64, member| sum.wrapping_add(member.pin.start));
    Ok([used, pinned.len() as u64, starts])
}

/// Cells of one queue that are looked at in any case, as long as cells may be looked at at all.
const CELLS_OF_QUEUE_MIN: u64 = 16;

/// A pin of a member.
#[derive(Debug)]
struct PinnedMember {
    index: u32,
    pin: PinInterval,
    /// What it holds, with others if many are stalled.
    holds: PinInterval,
    bytes: u64,
    /// Those of the queue that is read.
    bytes_of_queue: u64,
}

/// How many cells may be looked at.
#[derive(Clone, Copy, Debug)]
struct CellBudget {
    left: u64,
    of_queue: u64,
}

/// Reads what the heap is used for. Looks at no more retired cells and chunks than given; the rest
/// is estimated. Concurrent changes make numbers inexact, and nothing else.
pub(crate) fn heap_usage(map: &Map, cells: u64, chunks: u64) -> Result<HeapUsage, Corruption> {
    let mut usage = HeapUsage { total: map.chunks() * CHUNK_BYTES, ..HeapUsage::default() };
    add_free(map, chunks, &mut usage)?;
    let epoch = unseal(map.word(SUPER_EPOCH)?.load(Ordering::Acquire), "the epoch")?;
    let mut pinned = pinned_members(map, epoch)?;
    // Each queue is looked at: its cells are those of one class, or those that a view holds.
    let of_queue = (cells / queues_in_use(map)?.max(1)).max(CELLS_OF_QUEUE_MIN);
    let mut budget = CellBudget { left: cells, of_queue };
    for index in 0..member_slots_used(map)? {
        let arena = Arena::new(map, index, false)?;
        let before = usage.kept + usage.retired;
        usage.kept += arena.room(Bump::Small) + arena.room(Bump::Large);
        let word = member_table::state_of(map, index)?.load(Ordering::Acquire);
        let is_idle = state::of(word) == state::FREE;
        if is_idle && arena.get(undo::FREE_AT) != 0 {
            usage.kept += arena.get(undo::FREE_TO).saturating_sub(arena.get(undo::FREE_AT));
        }
        for queue in 0..=HELD {
            add_queue(&arena, (queue, is_idle), &mut budget, &mut pinned, &mut usage)?;
        }
        let bytes = usage.kept + usage.retired - before;
        if state::of(word) == state::ALIVE && arena.get(undo::ACTIVE) != 0 && bytes != 0 {
            let identity = identity_of(map, index)?;
            let process = Holder { pid: identity.pid, name: identity.text() };
            usage.in_operation.push(KeptInOperation { process, session: index, bytes });
        }
    }
    usage.in_operation.sort_by_key(|member| std::cmp::Reverse(member.bytes));
    // The owners of the queues go on meanwhile, so the parts may be more than the whole.
    usage.live = usage.total.saturating_sub(usage.free + usage.retired + usage.kept);
    pinned.retain(|member| member.bytes != 0);
    pinned.sort_by_key(|member| std::cmp::Reverse(member.bytes));
    for member in pinned {
        let identity = identity_of(map, member.index)?;
        usage.held_back.push(HeldBack {
            process: Holder { pid: identity.pid, name: identity.text() },
            session: member.index,
            bytes: member.bytes,
            epochs: epoch.saturating_sub(member.pin.start),
            ms: held_ms(map, member.index, member.pin.start)?,
        });
    }
    Ok(usage)
}

fn pinned_members(map: &Map, epoch: u64) -> Result<Vec<PinnedMember>, Corruption> {
    let mut pinned = Vec::new();
    for index in 0..member_slots_used(map)? {
        // A view that began now holds back only what is retired in this moment.
        let is_old = |pin: &PinInterval| pin.start.saturating_add(2) < epoch;
        let pin = PinInterval::load(pin_words(map, index)?).filter(is_old);
        pinned.extend(pin.map(|pin| PinnedMember {
            index,
            pin,
            holds: pin,
            bytes: 0,
            bytes_of_queue: 0,
        }));
    }
    // As a scan of the pins decides.
    let is_stalled = |pin: &PinInterval| pin.start.saturating_add(STALLED_EPOCHS) < epoch;
    let stalled = pinned.iter().map(|member| member.pin).filter(is_stalled).collect();
    let stalled = told_apart(stalled);
    for member in pinned.iter_mut().filter(|member| is_stalled(&member.pin)) {
        let holds = stalled.iter().find(|interval| interval.contains(member.pin));
        member.holds = holds.copied().unwrap_or(member.pin);
    }
    Ok(pinned)
}

/// The number of queues that are not empty.
fn queues_in_use(map: &Map) -> Result<u64, Corruption> {
    let mut count = 0;
    for index in 0..member_slots_used(map)? {
        let arena = Arena::new(map, index, false)?;
        for number in 0..=HELD {
            let head = arena.numbered_queue(number)?.head.load(Ordering::Relaxed);
            count += u64::from(head != 0);
        }
    }
    Ok(count)
}

/// Adds the free ranges. A range can reach over chunks.
fn add_free(map: &Map, most: u64, usage: &mut HeapUsage) -> Result<(), Corruption> {
    let mut range = 0_u64;
    let mut end_range = |range: &mut u64| {
        usage.free += *range;
        usage.free_largest = usage.free_largest.max(*range);
        for (least, bytes) in FREE_SIZES.iter().zip(&mut usage.free_by_size) {
            if *range >= *least {
                *bytes += *range;
            }
        }
        *range = 0;
    };
    let (used, ordinary) = (chunks_used(map)?, ordinary_chunks(map.chunks()));
    for chunk in (0..used).take(most as usize).map(ChunkIndex).chain(reserve(map)) {
        if chunk.0 == ordinary {
            // Chunks that were never used precede the reserve, which ordinary records cannot use.
            range += CHUNK_BYTES * (ordinary - used);
            end_range(&mut range);
        }
        if state_of(map, chunk)?.is_given_up {
            end_range(&mut range);
            continue;
        }
        let bitmap = Bitmap::load(chunk.bitmap(map)?);
        let mut from = 0;
        for run in bitmap.free_runs() {
            if run.start != 0 {
                end_range(&mut range);
            }
            range += LINE * u64::from(run.units);
            from = run.end();
        }
        if u64::from(from) * LINE != CHUNK_BYTES {
            end_range(&mut range);
        }
    }
    end_range(&mut range);
    // The words of the other chunks tell how much is free, and not how long its ranges are.
    for chunk in (most.min(used)..used).map(ChunkIndex) {
        usage.free += LINE * state_of(map, chunk)?.free();
    }
    Ok(())
}

/// True if the unit at an offset is allocated and has a page. To read a page that the file does not
/// have allocates it, which fails on a full file system.
fn is_in_use(map: &Map, at: u64) -> Result<bool, Corruption> {
    let chunk = ChunkIndex::of(map, at)?;
    let has_pages = state_of(map, chunk)?.has_pages;
    Ok(has_pages && is_allocated(chunk.bitmap(map)?, chunk.checked_run(at, at + LINE)?))
}

/// Adds the cells of a queue: retired, or kept for the next allocations.
fn add_queue(
    arena: &Arena<'_>,
    (number, is_idle): (u8, bool),
    budget: &mut CellBudget,
    pinned: &mut [PinnedMember],
    usage: &mut HeapUsage,
) -> Result<(), Corruption> {
    let queue = arena.numbered_queue(number)?;
    let count = queue.count.load(Ordering::Relaxed);
    let mut cell = queue.head.load(Ordering::Acquire);
    let (mut seen, mut bytes) = (0, 0);
    // The owner changes the queue meanwhile: a link can lead to a cell that is in use again, and
    // from there to anything, because the word of the link belongs to a record now. The queue of a
    // free slot does not change. A killed session can have left its count too low.
    let most = if is_idle { usage.total / LINE } else { count.saturating_add(1) };
    for member in pinned.iter_mut() {
        member.bytes_of_queue = 0;
    }
    while cell != 0 && seen < most && seen < budget.of_queue && budget.left > 0 {
        if !is_in_use(arena.map, cell).unwrap_or(false) {
            break;
        }
        let Ok(class) = cell::class_at(arena.map, cell) else { break };
        let Ok(size) = cell::bytes_at(arena.map, cell) else { break };
        if number < SET_ASIDE && class != number {
            break;
        }
        let word = cell::word(arena.map, cell, WORD_RETIRED)?.load(Ordering::Relaxed);
        if word == NEVER_READ {
            usage.kept += size;
        } else {
            for member in pinned.iter_mut().filter(|member| member.holds.holds_word(word)) {
                member.bytes_of_queue += size;
            }
            usage.retired += size;
        }
        (seen, bytes, budget.left) = (seen + 1, bytes + size, budget.left - 1);
        cell = cell::word(arena.map, cell, WORD_NEXT)?.load(Ordering::Relaxed);
    }
    // The cells that were not looked at are like those that were.
    let rest = if cell != 0 { count.saturating_sub(seen) } else { 0 };
    let size = if number < CLASSES { class::bytes_of(number) } else { bytes / seen.max(1) };
    usage.retired += rest.saturating_mul(size).min(usage.total);
    for member in pinned {
        let rest = member.bytes_of_queue.saturating_mul(rest) / seen.max(1);
        member.bytes += member.bytes_of_queue + rest.min(usage.total);
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::fixture::{TestRegionPath, put_key};
    use crate::heap::cell::{CellHeader, CellKind};
    use crate::region::file::{CreateOptions, Region};

    /// Pins of so many members, each some epochs after the one before, between which cells are
    /// retired.
    #[test]
    fn what_views_hold_is_told_also_of_cells_that_are_not_looked_at_and_of_many_views() {
        for views in [1, 40] {
            let path = TestRegionPath::new("held");
            let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
            let member = region.member().unwrap();
            let table = member.namespace(b"records", 1).unwrap();
            let key = |number: u32| number.to_be_bytes();
            for number in 0..1000 {
                put_key(&member, table, &key(number)).unwrap();
            }
            let advance = || member.operation(|| member.advance()).unwrap();
            let mut readers = Vec::new();
            for view in 0..views {
                let reader = region.member().unwrap();
                std::mem::forget(reader.pin().unwrap());
                readers.push(reader);
                // Born and retired after this view and before the next one, or held by it.
                (0..4).for_each(|_| advance());
                for number in 0..1000 / views {
                    put_key(&member, table, &key(view * (1000 / views) + number)).unwrap();
                }
                (0..4).for_each(|_| advance());
            }
            (0..2 * STALLED_EPOCHS).for_each(|_| advance());
            let [all, few] = [u64::MAX, 320].map(|cells| {
                let usage = heap_usage(member.map(), cells, u64::MAX).unwrap();
                assert_eq!(usage.held_back.len(), views as usize, "{usage:?}");
                usage
            });
            assert!(all.retired >= 1000 * LINE, "{all:?}");
            let bytes = |usage: &HeapUsage| usage.held_back.iter().map(|held| held.bytes).sum();
            let (of_all, of_few): (u64, u64) = (bytes(&all), bytes(&few));
            assert!(of_all >= 1000 * LINE, "{of_all} bytes are held by {views} views: {all:?}");
            // Those that are looked at are the oldest ones.
            let is_close = of_few > of_all / 2 && of_few < of_all * 2;
            assert!(is_close, "{of_all} bytes, {of_few} with few looks");
            drop(readers);
        }
    }

    #[test]
    fn a_link_that_its_owner_overwrites_is_not_corruption() {
        let path = std::env::temp_dir().join(format!("nearstate-usage-{}", std::process::id()));
        let region = Region::create(&path, &CreateOptions::default()).unwrap();
        let member = region.member().unwrap();
        let head = CellHeader {
            kind: CellKind::Block,
            flags: 0,
            namespace: 0,
            body: 1000,
            key: 0,
            children: 0,
            hash: 0,
        };
        let cells: Vec<u64> =
            (0..3).map(|_| member.operation(|| member.allocate_cell(&head)).unwrap()).collect();
        member.free_pending().unwrap();
        let (map, arena) = (member.map(), member.arena());
        let queue = arena.queue(cell::class_at(map, cells[0]).unwrap()).unwrap();
        let first = queue.head.load(Ordering::Relaxed);
        assert!(cells.contains(&first), "the cells wait in a queue");
        let link = cell::word(map, first, WORD_NEXT).unwrap();
        let next = link.load(Ordering::Relaxed);
        let sound = heap_usage(map, u64::MAX, u64::MAX).unwrap();
        let end = crate::layout::HEAP + sound.total;
        // Before the heap, behind it, in it and misaligned.
        for other in [1, crate::layout::HEAP - LINE, end, u64::MAX, first + 1] {
            link.store(other, Ordering::Relaxed);
            let usage = heap_usage(map, u64::MAX, u64::MAX).unwrap();
            assert!(
                usage.live <= usage.total && usage.total == sound.total,
                "{other:#x}: {usage:?}"
            );
        }
        link.store(next, Ordering::Relaxed);
        drop((member, region));
        std::fs::remove_file(&path).unwrap();
    }
}
