//! Cells that the log of the host holds: the cells of its transactions, and what those have
//! replaced (`docs/decisions/021-log.md`).
//!
//! They stand in a queue of their writer, in the order of its positions: the cell of a transaction,
//! then what it has replaced. When the floor of the log has passed its position, they are retired.

use nearstate_model::Result;

use crate::atomic::{AtomicU64, Ordering};
use crate::crash::crash_point;
use crate::heap::cell::{self, Cell, CellKind, WORD_NEXT};
use crate::heap::queue::{TO_HELD, link_behind};
use crate::layout::{
    Corruption, HEAP, LINE, LOG_FLOOR, LOG_FLOOR_LIMIT, LOG_KEEPS, LOG_ORIGIN, LOG_REPLICATED,
    LOG_TAIL, unseal,
};
use crate::member::Member;
use crate::member::arena::{Arena, undo};
use crate::member::pin;
use crate::region::map::Map;

/// The word of a transaction's cell that has its position in the log.
pub(crate) const TXN_POSITION: u64 = 48;

/// Bit of the word `next` of a published record: the other bits are the position of its
/// transaction.
pub(crate) const HAS_POSITION: u64 = 1 << 63;

const _: () = assert!(TO_HELD < LINE, "the offset of a cell leaves the bit free");
const _: () = assert!(TXN_POSITION + 8 <= LINE, "the position is in the first line");

/// The lowest position that the log keeps.
#[inline]
pub(crate) fn floor(map: &Map) -> Result<u64, Corruption> {
    Ok(map.word(LOG_FLOOR)?.load(Ordering::Acquire))
}

/// The floor that a writer may give a log that keeps entries, when something is full: behind what
/// each follower that counts has. If that is not known, behind what was acknowledged, unless the
/// log is that of a partition: what one member has acknowledged says nothing about the others.
#[cold]
pub(crate) fn floor_limit(map: &Map) -> Result<u64, Corruption> {
    let load = |at| Ok::<_, Corruption>(map.word(at)?.load(Ordering::Acquire));
    let limit = match (load(LOG_FLOOR_LIMIT)?, load(LOG_ORIGIN)?) {
        (0, 0) => load(LOG_REPLICATED)? + 1,
        (0, origin) => match unseal(origin, "the origin of the log has a flipped bit")? {
            0 => load(LOG_REPLICATED)? + 1,
            _ => floor(map)?,
        },
        (known, _) => known,
    };
    Ok(limit.min(load(LOG_TAIL)? + 1))
}

/// Lets the floor of the log pass all entries, or those that no follower needs if the log must keep
/// the others: after an allocation has failed, so that what they hold can be retired. True if the
/// floor has moved.
#[cold]
pub(crate) fn give_up_log(map: &Map) -> Result<bool, Corruption> {
    // In this order: an entry that the log must keep and that lies before the tail loaded here was
    // drawn after its writer had seen that the log keeps entries.
    let tail = map.word(LOG_TAIL)?.load(Ordering::Acquire);
    let limit = if keeps(map)? { floor_limit(map)? } else { tail + 1 };
    if limit <= 1 {
        return Ok(false);
    }
    Ok(map.word(LOG_FLOOR)?.fetch_max(limit, Ordering::AcqRel) < limit)
}

/// True if the log loses no entry that was not acknowledged.
#[inline]
pub(crate) fn keeps(map: &Map) -> Result<bool, Corruption> {
    Ok(map.word(LOG_KEEPS)?.load(Ordering::Acquire) & 1 != 0)
}

/// True if the word `next` of a published record is the position of its transaction.
pub(crate) fn is_position(map: &Map, next: u64) -> Result<bool, Corruption> {
    let tail = map.word(LOG_TAIL)?.load(Ordering::Acquire);
    Ok(next & HAS_POSITION != 0 && (1..=tail).contains(&(next & !HAS_POSITION)))
}

impl Cell<'_> {
    /// The position in the log of the commit that has written this record, if its cell tells: not
    /// while the commit is being finished, nor for a record that was written without the log,
    /// applied from another host, or moved.
    ///
    /// # Errors
    /// `Corruption`: the region is truncated.
    pub fn log_position(&self) -> Result<Option<u64>, Corruption> {
        let next = cell::word(self.map(), self.at(), WORD_NEXT)?.load(Ordering::Acquire);
        Ok(if is_position(self.map(), next)? { Some(next & !HAS_POSITION) } else { None })
    }
}

/// The position of the transaction that has published a record, if its cell tells.
pub(crate) fn position_of(map: &Map, record_at: u64) -> Result<Option<u64>, Corruption> {
    let next = cell::word(map, record_at, WORD_NEXT)?.load(Ordering::Acquire);
    Ok((next & HAS_POSITION != 0).then_some(next & !HAS_POSITION))
}

/// True if an entry that the log keeps can name a published record: it must stay where it is. The
/// caller has the lock of its bucket.
pub(crate) fn is_named(map: &Map, record_at: u64) -> Result<bool, Corruption> {
    let floor = floor(map)?;
    Ok(position_of(map, record_at)?.is_some_and(|position| position >= floor))
}

/// True if the head of a queue of held cells may be retired.
///
/// # Errors
/// `Corruption`: it is no held cell.
pub(crate) fn is_released(map: &Map, head: u64, floor: u64) -> Result<bool, Corruption> {
    Ok(released_line(map, head, floor)?.is_some())
}

/// As [`is_released`]: the first line of the cell, if it may be retired.
#[inline(always)]
fn released_line(map: &Map, head: u64, floor: u64) -> Result<Option<HeldLine<'_>>, Corruption> {
    const HEAD: Corruption = Corruption("a queue of the log leads to a cell that it does not hold");
    if head < HEAP {
        return Err(HEAD);
    }
    let line @ [first, _, retired, _, _, _, position, _] = cell::first_line(map, head)?;
    let word = retired.load(Ordering::Relaxed);
    if !pin::is_held(word) {
        return Err(HEAD);
    }
    // What follows a transaction was replaced by it, and the transaction has left the queue.
    let first = first.load(Ordering::Relaxed);
    let kind = cell::kind_of(first)?;
    let is_released = kind != CellKind::Transaction || position.load(Ordering::Relaxed) < floor;
    Ok(is_released.then_some((line, first, word)))
}

/// The first line of a held cell, its first word, and its word `retired`.
type HeldLine<'m> = (&'m [AtomicU64; 8], u64, u64);

impl Arena<'_> {
    /// Adds an unlinked cell to the queue of what the log holds, unless it is there, or has been.
    #[inline]
    pub(crate) fn hold(&self, cell: u64) -> Result<(), Corruption> {
        let line @ [_, _, retired, ..] = cell::first_line(self.map, cell)?;
        if pin::is_retired(retired.load(Ordering::Acquire)) || !cell::has_class_of_size(line) {
            return Ok(());
        }
        self.hold_line(cell, line, is_transaction(line));
        Ok(())
    }

    /// As [`Arena::hold`], of the cell of a transaction that this member has just committed, given
    /// its first line. Returns its link, for [`Arena::hold_behind`].
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "each logged commit of one record")]
    pub(crate) fn hold_txn<'l>(&self, txn: u64, line: &'l [AtomicU64; 8]) -> &'l AtomicU64 {
        let [_, next, retired, ..] = line;
        debug_assert!(is_transaction(line), "the cell of a transaction is one");
        debug_assert!(!pin::is_retired(retired.load(Ordering::Relaxed)), "it is in no queue");
        self.hold_line(txn, line, true);
        next
    }

    /// As [`Arena::hold`], given the first line of the cell, and the link of the cell that was held
    /// last: the tail of the queue.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    pub(crate) fn hold_behind(&self, last: &AtomicU64, (cell, line): (u64, &[AtomicU64; 8])) {
        let [_, next, retired, ..] = line;
        let word = retired.load(Ordering::Acquire);
        if pin::is_retired(word) || !cell::has_class_of_size(line) {
            return;
        }
        debug_assert!(last.load(Ordering::Relaxed) == 0, "the tail of a queue has no link");
        self.set(undo::POP, cell | TO_HELD);
        crash_point!("hold.recorded");
        next.store(0, Ordering::Release);
        crash_point!("hold.cleared");
        retired.store(pin::hold(word), Ordering::Release);
        crash_point!("hold.stamped");
        link_behind(self.held(), Some(last), cell);
        self.set(undo::POP, 0);
        crash_point!("hold.done");
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "two cells of each logged commit")]
    fn hold_line(&self, cell: u64, line: &[AtomicU64; 8], is_txn: bool) {
        self.set(undo::POP, cell | TO_HELD);
        crash_point!("hold.recorded");
        self.link_held(cell, line, is_txn);
        self.set(undo::POP, 0);
        crash_point!("hold.done");
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    fn link_held(&self, cell: u64, [_, next, retired, ..]: &[AtomicU64; 8], is_txn: bool) {
        debug_assert!(cell.is_multiple_of(LINE), "a cell begins at a line, {cell:#x} does not");
        next.store(0, Ordering::Release);
        crash_point!("hold.cleared");
        let word = retired.load(Ordering::Relaxed);
        if !pin::is_held(word) {
            retired.store(pin::hold(word), Ordering::Release);
        }
        crash_point!("hold.stamped");
        let queue = self.held();
        let tail = self.tail_link(queue, cell);
        // Without a tail a flipped bit has separated a cell from its transaction: it stays
        // allocated until the repair, because no position tells when it may be retired.
        if is_txn || tail.is_some() {
            link_behind(queue, tail, cell);
        }
    }

    /// Recovery: a cell in transit to the queue of held cells has arrived, or is linked now.
    pub(crate) fn finish_hold(&self, cell: u64) -> Result<(), Corruption> {
        let queue = self.held();
        let (head, tail) = (queue.head.load(Ordering::Acquire), queue.tail.load(Ordering::Acquire));
        if head != 0 && (head == cell || tail == cell) {
            return Ok(());
        }
        // A predecessor may lead to it already: then only the tail is left to store.
        if head != 0 && cell::word(self.map, tail, WORD_NEXT)?.load(Ordering::Acquire) == cell {
            self.link_last(queue, cell);
            return Ok(());
        }
        let line = cell::first_line(self.map, cell)?;
        self.link_held(cell, line, is_transaction(line));
        Ok(())
    }
}

#[inline]
fn is_transaction([head, ..]: &[AtomicU64; 8]) -> bool {
    cell::kind_of(head.load(Ordering::Relaxed)) == Ok(CellKind::Transaction)
}

impl Member {
    /// Before a commit that retires some: prefetches the second of the cells that the log holds.
    /// The first was prefetched by the last call of [`Member::release_held`].
    #[inline]
    pub(crate) fn prefetch_held(&self) {
        let map = self.map();
        let head = self.arena().held().head.load(Ordering::Relaxed);
        // A head with a flipped bit is found where the cell is retired.
        if let Ok(next) = cell::word(map, head, WORD_NEXT) {
            map.prefetch_to_write(next.load(Ordering::Relaxed), 1);
        }
    }

    /// Retires cells that the log holds no longer: until it has retired so many cells and so many
    /// units. True if some are left that it does not hold.
    pub(crate) fn release_held(&self, cells: u64, units: u64) -> Result<bool> {
        debug_assert!(self.is_in_operation(), "another member may be taking cells");
        let (arena, map) = (self.arena(), self.map());
        let (queue, floor) = (arena.held(), floor(map)?);
        let (mut cells, mut units) = (cells, units);
        while cells != 0 || units != 0 {
            let head = queue.head.load(Ordering::Relaxed);
            if head == 0 {
                return Ok(false);
            }
            let (line, first, word) = match released_line(map, head, floor) {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(false),
                Err(damage) => {
                    // A flipped bit: what follows stays allocated until the repair.
                    queue.head.store(0, Ordering::Release);
                    return Err(damage.into());
                }
            };
            let class = first as u8;
            let bytes = cell::bytes_of_class(map, class, line)?;
            (cells, units) = (cells.saturating_sub(1), units.saturating_sub(bytes / LINE));
            arena.requeue_line(queue, arena.queue(class)?, (head, line, word));
            crash_point!("hold.released");
            self.trim_queue(&arena, class)?;
        }
        // The next call begins with it, and it was last used when it was replaced.
        map.prefetch_to_write(queue.head.load(Ordering::Relaxed), 1);
        Ok(true)
    }
}
