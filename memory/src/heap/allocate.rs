//! Allocates cells: from the member's own queue, from its bump range, from a chunk of the heap,
//! and as a last resort after what others have retired was freed (`spec/region.md`, sections 3
//! and 6).
//!
//! An allocated cell is *pending* until a record that contains it is published, or until it is
//! freed.

use std::cell::Cell as Private;
use std::time::Duration;

use nearstate_model::{Error, Result, invariant};

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::heap::cell::{self, WORD_HEAD, WORD_VERSION};
use crate::heap::class::{self, CLASSES};
use crate::heap::kept::CLASS_SMALL_MAX;
use crate::heap::refill::no_room;
use crate::layout::{CHUNK_BYTES, CLASS_EXTENT, Corruption, LINE, MEMBER_STATE, QUEUES, member_at};
use crate::member::arena::{Arena, BUMP_SMALL_CELL_MAX, Bump, SET_ASIDE, op, undo};
use crate::member::{AfterFull, Member};
use crate::region::member_table::{member_slots_used, state};

/// The most and the fewest cells of one class that a member collects before it advances the epoch.
/// A cell is reused after about three times as many others: the fewer, the more of them are still
/// in the second-level cache. But each time costs a barrier.
const PRESSURE_CELLS_MAX: u64 = 256;
const PRESSURE_CELLS_MIN: u64 = 64;

/// Nanoseconds of the barrier that each cell may cost: 1 % of a write. The barrier takes 0.2 us if
/// no other process runs, and up to 20 us if it must interrupt one.
const BARRIER_NANOS_PER_CELL: u64 = 4;

/// Barriers of which the average is taken: one that was interrupted counts little.
const BARRIERS_AVERAGED: u64 = 16;

/// A queue that exceeds the pressure by this factor is shortened. Another process can then use what
/// this one deletes. A session that replaces records needs about three times the pressure.
const QUEUE_EXCESS: u64 = 6;

/// Cells that one write frees from a queue that is too long: its share of a microsecond.
const TRIM_CELLS: u64 = 32;

/// Writes of which one looks at a queue for all of them.
const WRITES_PER_LOOK: u64 = 8;

/// A member that retires this many cells in a row and allocates none probably only deletes: it
/// needs no cells for its next writes.
const ONLY_RETIRES_AFTER: u64 = 64;

/// The share of a queue's usual limit that a member keeps while it only deletes: it may be idle
/// soon, and no other member can take what is in its queues.
const ONLY_RETIRES_SHARE: u64 = 64;

/// The most cells of one class that such a member collects before it advances the epoch: what was
/// retired since cannot be freed yet.
const ONLY_RETIRES_PRESSURE: u64 = 16;

/// How often an operation runs again after records were moved away from behind a free cell. It may
/// need several cells.
pub(crate) const JOINS_MAX: u32 = 8;

const _: () = assert!(CHUNK_BYTES >= BUMP_SMALL_CELL_MAX, "a small cell lies in one chunk");
const _: () = assert!(QUEUE_EXCESS > 1, "a queue keeps what its member needs");
const _: () = assert!(TRIM_CELLS > 1, "a queue that is too long gets shorter");

impl Member {
    /// Allocates a pending cell of at least `bytes` (header included).
    ///
    /// Cost: some stores to lines of this member; a barrier every few hundred calls; a system call
    /// that extends the file every 256 KiB.
    ///
    /// # Errors
    /// `Full`, `ValueTooLarge`, `Stalled`, `Damaged`, `System`.
    #[inline]
    pub fn allocate(&self, bytes: u64) -> Result<u64> {
        match self.allocate_reusable(bytes) {
            0 => self.allocate_with_class(bytes),
            cell => Ok(cell),
        }
    }

    /// The head of the queue for so many bytes; 0 if there is none. One number, so that it is
    /// returned in a register.
    #[inline(never)]
    fn allocate_reusable(&self, bytes: u64) -> u64 {
        let cell = class::class_of(bytes).and_then(|class| self.pop_of(class, bytes));
        if cell.is_some() {
            crash_point!("alloc.done");
        }
        cell.unwrap_or(0)
    }

    /// As [`Member::allocate`], if the queue has no cell that every reader has left.
    #[inline(never)]
    fn allocate_with_class(&self, bytes: u64) -> Result<u64> {
        let Some(class) = class::class_of(bytes) else {
            return Err(Error::ValueTooLarge { bytes: bytes as usize });
        };
        let cell = self.allocate_slowly(class)?;
        crash_point!("alloc.done");
        Ok(cell)
    }

    /// How many cells of a class are retired before the epoch advances.
    #[inline]
    fn pressure_of(&self, class: u8) -> u64 {
        debug_assert!((class as usize) < QUEUES, "a class has a queue");
        if class >= CLASSES {
            return 1;
        }
        let cells = self.shared().claim_units() * LINE / class::bytes_of(class);
        let cells = cells.clamp(1, self.pressure_cells_max());
        if self.only_retires.get() { cells.min(ONLY_RETIRES_PRESSURE) } else { cells }
    }

    /// The most cells of one class that this member collects before it advances the epoch.
    #[inline]
    fn pressure_cells_max(&self) -> u64 {
        self.pressure_cells.get().max(PRESSURE_CELLS_MIN)
    }

    /// Adapts the pressure to the average cost of the last barriers. Crash points must be passed
    /// equally often in each run, so tests with them do not depend on the clock.
    pub(crate) fn set_pressure(&self, barrier: Duration) {
        let most =
            if cfg!(feature = "crash-points") { PRESSURE_CELLS_MIN } else { PRESSURE_CELLS_MAX };
        let nanos = u64::try_from(barrier.as_nanos()).unwrap_or(u64::MAX);
        let nanos = nanos.min(PRESSURE_CELLS_MAX * BARRIER_NANOS_PER_CELL);
        let average = self.barrier_nanos.get();
        self.barrier_nanos.set(average - average / BARRIERS_AVERAGED + nanos / BARRIERS_AVERAGED);
        let cells = self.barrier_nanos.get() / BARRIER_NANOS_PER_CELL;
        let cells = cells.clamp(PRESSURE_CELLS_MIN, most);
        // A long queue stays long, and its cells cold, until it exceeds its limit.
        let known = self.pressure_cells.get();
        if cells.abs_diff(known) > known / 4 {
            self.pressure_cells.set(cells);
            self.forget_queue_limits();
        }
    }

    /// As [`Member::allocate_of`], if the queue has no cell that every reader has left.
    #[inline(never)]
    pub(crate) fn allocate_slowly(&self, class: u8) -> Result<u64> {
        invariant!(class < CLASSES, "class {class} does not exist");
        let arena = self.arena();
        let queue = arena.queue(class)?;
        let head = queue.head.load(Ordering::Relaxed);
        if head != 0 && self.is_head_reusable(queue, class, head)? {
            arena.pop(queue, head)?;
            return Ok(head);
        }
        if head != 0 {
            self.pressure.set(self.pressure.get() + 1);
            // A new member knows no safe epoch. Without one query each short-lived session would
            // take fresh memory while its queues are full.
            if self.safe.get() == 0 || self.pressure.get() >= self.pressure_of(class) {
                self.advance()?;
            }
            if let Some(head) = self.reusable_head(&arena, queue, class)? {
                arena.pop(queue, head)?;
                return Ok(head);
            }
        }
        let is_brief = self.is_brief.get();
        match self.allocate_with_retry(class, !is_brief) {
            Err(full @ Error::Full { .. }) if !is_brief && !self.refusals.is_known.get() => {
                self.allocate_last_resort(&arena, class, full)
            }
            other => other,
        }
    }

    /// As [`Member::allocate_fresh`]. `tries_again`: the caller repeats it after a failure.
    fn allocate_with_retry(&self, class: u8, tries_again: bool) -> Result<u64> {
        debug_assert!(!self.tries_again.get(), "no attempt is inside of another one");
        self.tries_again.set(tries_again);
        let cell = self.allocate_fresh(class);
        self.tries_again.set(false);
        cell
    }

    /// Allocates from a bump range, which is refilled from a chunk.
    pub(crate) fn allocate_fresh(&self, class: u8) -> Result<u64> {
        let bytes = class::bytes_of(class);
        let which = if bytes <= BUMP_SMALL_CELL_MAX { Bump::Small } else { Bump::Large };
        let arena = self.arena();
        self.check_bump(which)?;
        if which == Bump::Large || arena.room(which) < bytes {
            self.take_for_cell(which, class)?;
        }
        if arena.room(which) >= bytes {
            let cell = arena.cut(which, class, bytes)?;
            self.note_bump_front(which, cell + bytes);
            return Ok(cell);
        }
        // The queue got cells of a fragmented chunk. No reader has seen them.
        let queue = arena.queue(class)?;
        let head = queue.head.load(Ordering::Relaxed);
        if head == 0 {
            return Err(Corruption("a refill brought nothing: a flipped bit").into());
        }
        arena.pop(queue, head)?;
        Ok(head)
    }

    /// Refills a bump range, or the queue of the class.
    fn take_for_cell(&self, which: Bump, class: u8) -> Result<()> {
        debug_assert!(self.is_in_operation(), "another member may be taking cells");
        let bytes = class::bytes_of(class);
        if self.is_known_full(bytes / LINE)? {
            if !self.may_use_reserve.get() {
                return Err(self.refuse_known(bytes / LINE));
            }
            self.note_lent(class);
            if which == Bump::Small {
                return self.refill_lent(class);
            }
        }
        if which == Bump::Small {
            self.keep_rest()?;
            return self.refill(class);
        }
        // What is left there may have no pages.
        self.empty_bump(which)?;
        self.take_span(bytes, false)
    }

    /// Allocates a pending extent: `bytes` of address space of which only the first line is
    /// guaranteed to have pages.
    ///
    /// `is_needed` is false for an extent that can wait until others have freed memory.
    pub(crate) fn allocate_extent(&self, bytes: u64, is_needed: bool) -> Result<u64> {
        invariant!(bytes > LINE && bytes.is_multiple_of(LINE), "an extent of {bytes} bytes");
        let arena = self.arena();
        if self.may_use_reserve.get() {
            self.note_lent(CLASS_EXTENT);
        } else if self.is_known_full(bytes / LINE)? {
            if !is_needed {
                return Err(no_room());
            }
            return Err(self.describe_if_last(self.refuse_known(bytes / LINE))?);
        }
        let take = || {
            self.empty_bump(Bump::Large)?;
            if self.take_fixed_range(bytes)? { Ok(()) } else { self.take_span(bytes, true) }
        };
        match take() {
            Err(Error::Full { .. }) if is_needed => {
                self.wanted_units.set(bytes / LINE);
                self.reclaim()?;
                match self.retry_with_idle(take) {
                    Err(full @ Error::Full { .. }) => return Err(self.describe_if_last(full)?),
                    other => other?,
                }
            }
            other => other?,
        }
        let at = arena.get(Bump::Large.front());
        cell::word(self.map(), at, WORD_VERSION)?.store(bytes / LINE, Ordering::Relaxed);
        let cell = arena.cut(Bump::Large, CLASS_EXTENT, bytes)?;
        self.note_bump_front(Bump::Large, cell + bytes);
        let head = u64::from(CLASS_EXTENT) | cell::kind_in_head(cell::CellKind::Extent);
        cell::word(self.map(), cell, WORD_HEAD)?.store(head, Ordering::Relaxed);
        self.note_fixed(cell, bytes)?;
        Ok(cell)
    }

    /// Frees every pending cell. Nothing that contains them was published.
    ///
    /// # Errors
    /// `Forked`, `Damaged`.
    pub fn free_pending(&self) -> Result<()> {
        // The pending cells of a forked child belong to its parent, which may be publishing them.
        self.check_usable()?;
        self.operation(|| Ok(self.arena().roll_back()?))
    }

    /// Frees some cells of a queue that is too long. Never while the undo record names an
    /// operation: recovery must find the retired cells where they were put.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every write")]
    pub(crate) fn trim_queue(&self, arena: &Arena<'_>, class: u8) -> Result<()> {
        debug_assert!(self.is_in_operation(), "another member may be taking cells");
        self.pressure.set(self.pressure.get() + 1);
        let in_a_row = self.retired_in_a_row.get() + 1;
        self.retired_in_a_row.set(in_a_row);
        if in_a_row == ONLY_RETIRES_AFTER {
            self.shorten_queues()?;
        }
        if self.may_be_too_long(arena, class) {
            self.trim_long_queue(class, TRIM_CELLS)?;
        }
        Ok(())
    }

    /// As [`Member::trim_queue`], for what a record owns and the lines of the index, which are
    /// retired with it: each class in turn, at every eighth call.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    pub(crate) fn trim_next_queue(&self, arena: &Arena<'_>) -> Result<()> {
        let looks = self.trim_looks.get().wrapping_add(1);
        self.trim_looks.set(looks);
        if looks.is_multiple_of(WRITES_PER_LOOK) {
            self.trim_class_in_turn(arena, (looks / WRITES_PER_LOOK % QUEUES as u64) as u8)?;
        }
        Ok(())
    }

    #[inline(never)]
    fn trim_class_in_turn(&self, arena: &Arena<'_>, class: u8) -> Result<()> {
        const CELLS: u64 = WRITES_PER_LOOK * TRIM_CELLS;
        if self.aside_to_revisit.get() != 0 {
            self.revisit_set_aside(CELLS)?;
        }
        if self.may_be_too_long(arena, class) {
            self.trim_long_queue(class, CELLS * QUEUES as u64)?;
        }
        Ok(())
    }

    /// Lowers the limits of the queues of a member that only deletes, and frees the rest of its
    /// bump range.
    #[cold]
    fn shorten_queues(&self) -> Result<()> {
        self.set_only_retires(true);
        match self.empty_bump(Bump::Small) {
            // Its chunk is busy: the range stays for the next write.
            Ok(()) | Err(Error::Stalled { .. } | Error::Full { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn set_only_retires(&self, only_retires: bool) {
        self.only_retires.set(only_retires);
        self.forget_queue_limits();
    }

    /// The limits of the queues are recomputed when the queues are next looked at.
    fn forget_queue_limits(&self) {
        for limit in &*self.queue_limits {
            limit.set(0);
        }
    }

    /// False if a queue is not longer than its limit. True if it is, and while its limit is not
    /// known.
    #[inline]
    fn may_be_too_long(&self, arena: &Arena<'_>, class: u8) -> bool {
        let limit = self.queue_limits.get(class as usize).map_or(0, Private::get);
        arena.queue_count(class) > limit
    }

    /// The cells that a queue may keep: some times what its member collects before it advances the
    /// epoch, and no more bytes of large cells than of small ones.
    fn queue_limit(&self, class: u8) -> u64 {
        if class >= CLASSES {
            return 0;
        }
        let share = if self.only_retires.get() { ONLY_RETIRES_SHARE } else { 1 };
        let bytes = QUEUE_EXCESS * self.shared().claim_units() * LINE / share;
        (bytes / class::bytes_of(class)).min(QUEUE_EXCESS * self.pressure_cells_max())
    }

    #[cold]
    fn trim_long_queue(&self, class: u8, most: u64) -> Result<()> {
        if self.only_retires.get() && self.retired_in_a_row.get() < ONLY_RETIRES_AFTER {
            self.set_only_retires(false);
        }
        let limit = self.queue_limit(class);
        if let Some(known) = self.queue_limits.get(class as usize) {
            known.set(limit);
        }
        let queue = self.arena().queue(class)?;
        let head = queue.head.load(Ordering::Relaxed);
        if head == 0 || queue.count.load(Ordering::Relaxed) <= limit {
            return Ok(());
        }
        let is_reusable = self.is_head_reusable(queue, class, head)?;
        if !is_reusable && self.pressure.get() >= self.pressure_of(class) {
            self.advance()?;
        }
        self.free_queue(class, most)
    }

    /// Frees everything that this member has and that no reader can hold: the last step of
    /// detaching.
    pub(crate) fn free_all(&self) -> Result<()> {
        let arena = self.arena();
        self.release_held(u64::MAX, 0)?;
        for which in [Bump::Small, Bump::Large] {
            match self.empty_bump(which) {
                // Its chunk is busy: it stays for the next time.
                Ok(()) | Err(Error::Stalled { .. } | Error::Full { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let has_cells = |number: &u8| {
            arena.numbered_queue(*number).is_ok_and(|queue| queue.head.load(Ordering::Relaxed) != 0)
        };
        let queues: Vec<u8> = (0..=SET_ASIDE).filter(has_cells).collect();
        if !queues.is_empty() {
            // What was retired just now can be reused after two epochs.
            self.advance()?;
            self.advance()?;
        }
        self.revisit_set_aside(u64::MAX)?;
        queues.into_iter().try_for_each(|number| self.free_queue(number, u64::MAX))
    }

    /// The heap has no run that is long enough: frees what others and this member have retired, and
    /// tries once more.
    #[cold]
    fn allocate_last_resort(&self, arena: &Arena<'_>, class: u8, full: Error) -> Result<u64> {
        self.wanted_units.set(class::bytes_of(class) / LINE);
        let joins = match self.after_full.get() {
            AfterFull::Join(left) | AfterFull::JoinDue(left)
                if class <= CLASS_SMALL_MAX && !self.has_pin() =>
            {
                Some(left)
            }
            AfterFull::Join(_) | AfterFull::JoinDue(_) | AfterFull::Retry | AfterFull::Error => {
                self.recover_the_dead()?;
                None
            }
        };
        self.advance()?;
        self.advance()?;
        let queue = arena.queue(class)?;
        if let Some(head) = self.reusable_head(arena, queue, class)? {
            arena.pop(queue, head)?;
            return Ok(head);
        }
        if let Some(left) = joins {
            self.after_full.set(AfterFull::JoinDue(left));
            return Err(full);
        }
        if class::bytes_of(class) <= BUMP_SMALL_CELL_MAX {
            // Larger cells that this member has retired can be split now.
            match self.allocate_with_retry(class, true) {
                Err(Error::Full { .. }) => {}
                other => return other,
            }
        }
        self.reclaim()?;
        match self.retry_with_idle(|| self.allocate_fresh(class)) {
            Err(Error::Full { .. }) => Err(self.describe_if_last(full)?),
            other => other,
        }
    }

    /// Frees the memory of dead members, of free slots and of this member.
    pub(crate) fn reclaim(&self) -> Result<()> {
        self.recover_the_dead()?;
        self.drain_free_arenas()?;
        self.free_all()
    }

    /// Repeats an attempt with what idle members have, some of them at a time.
    fn retry_with_idle<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let mut next = 0;
        loop {
            match attempt() {
                Err(Error::Full { .. }) if self.take_from_idle(&mut next)? => self.free_all()?,
                other => return other,
            }
        }
    }

    /// Frees the memory of free slots.
    fn drain_free_arenas(&self) -> Result<()> {
        for index in 0..member_slots_used(self.map())? {
            let word = self.map().word(member_at(index) + MEMBER_STATE)?;
            if state::of(word.load(Ordering::Acquire)) != state::FREE {
                continue;
            }
            let arena = Arena::new(self.map(), index, self.shared().is_fenced)?;
            if !arena.is_empty()? {
                self.drain_slot(index)?;
            }
        }
        Ok(())
    }
}

/// The operation of an undo record, if it is a known one.
pub(crate) fn undo_operation(arena: &Arena<'_>) -> Result<u64, Corruption> {
    match arena.get(undo::OP) {
        known @ (op::NONE
        | op::RECORD
        | op::WORD
        | op::SPLIT
        | op::TXN
        | op::LINE
        | op::COMPACT
        | op::LINES
        | op::SET_ONCE
        | op::COUNT) => Ok(known),
        _ => Err(Corruption("an undo record names an operation that does not exist")),
    }
}
