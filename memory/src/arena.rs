//! A member's arena: its note, its bump ranges and its queues of retired cells. All of it is
//! written by one member only, or by the one that recovers it; every step can be cut short by a
//! kill.

use crate::atomic::{AtomicU64, Ordering};
use crate::cell::{self, WORD_HEAD, WORD_NEXT, WORD_RETIRED};
use crate::class;
use crate::crash::crash_point;
use crate::layout::{ARENA_WORDS, Damage, QUEUES, SUPER_EPOCH, arena_at, unseal};
use crate::map::Map;
use crate::pin;

/// Words of the note, and of what follows it in the arena.
pub(crate) mod note {
    pub(crate) const OP: usize = 0;
    pub(crate) const SLOT: usize = 1;
    pub(crate) const OLD: usize = 2;
    pub(crate) const NEW: usize = 3;
    pub(crate) const POP: usize = 4;
    pub(crate) const PENDING: usize = 5;
    pub(crate) const CHUNK_AT: usize = 6;
    pub(crate) const CHUNK_TO: usize = 7;
    pub(crate) const BATCH_FIRST: usize = 8;
    pub(crate) const BATCH_LAST: usize = 9;
    pub(crate) const LOCKS: usize = 10;
    pub(crate) const LOCKS_MAX: usize = 4;
    pub(crate) const SPLIT_NAMESPACE: usize = 14;
    pub(crate) const SPLIT_BUCKET: usize = 15;
    pub(crate) const BATCH_WAY: usize = 24;
    /// The transaction cell whose lines name the locks that are held or about to be taken.
    pub(crate) const TXN: usize = 25;
    /// Behind the queues, and not a part of the note: the ring of the member's commit stream.
    pub(crate) const STREAM: usize = 416;
    /// The last number that was given, sealed.
    pub(crate) const NUMBERS: usize = 424;
}

/// What a note says is being done.
pub(crate) mod op {
    pub(crate) const NONE: u64 = 0;
    /// An entry is replaced, set or cleared: the old record is retired afterwards.
    pub(crate) const RECORD: u64 = 1;
    /// A word is replaced by a link or a segment offset: nothing is retired.
    pub(crate) const WORD: u64 = 2;
    /// A bucket is split.
    pub(crate) const SPLIT: u64 = 3;
    /// The writes of a transaction are published; the slot is its cell.
    pub(crate) const TXN: u64 = 4;
    /// A chain gets a line, which alone leaves the pending list.
    pub(crate) const LINE: u64 = 5;
    /// A word that is 0 is set for good, by whoever is first: another's value means that ours was
    /// not published.
    pub(crate) const ONCE: u64 = 8;
}

/// Which way a batch of cells goes.
pub(crate) mod way {
    pub(crate) const NONE: u64 = 0;
    pub(crate) const TO_POOL: u64 = 1;
    pub(crate) const FROM_POOL: u64 = 2;
}

/// Which slot of the note's locks a lock has: their order is that of taking.
pub(crate) mod slot {
    pub(crate) const SPLIT: usize = 0;
    pub(crate) const BUCKET: usize = 1;
    pub(crate) const BUCKET_NEW: usize = 2;
    pub(crate) const LEAF: usize = 3;
}

/// A bump range: cells are cut from its front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bump {
    /// For cells up to [`BUMP_SMALL_CELL_MAX`], refilled in chunks.
    Small = 16,
    /// For larger ones, refilled with exactly what is needed.
    Large = 20,
}

/// The largest cell that is cut from a chunk.
pub(crate) const BUMP_SMALL_CELL_MAX: u64 = 32 << 10;

/// Cells that one operation has pending at the most: the records of a transaction with their
/// blocks. A longer list is a circle that damage made.
const PENDING_MAX: usize = 8 << 20;

const QUEUE_FIRST: usize = 32;
const QUEUE_WORDS: usize = 3;
const _: () = assert!(QUEUE_FIRST + QUEUE_WORDS * QUEUES <= note::STREAM);
const _: () = assert!(note::NUMBERS < ARENA_WORDS);

/// One arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arena<'m> {
    pub(crate) map: &'m Map,
    words: &'m [AtomicU64; ARENA_WORDS],
    is_fenced: bool,
}

/// A queue: cells in the order in which they were retired.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue<'m> {
    pub(crate) head: &'m AtomicU64,
    pub(crate) tail: &'m AtomicU64,
    /// A hint: a kill may leave it one off.
    pub(crate) count: &'m AtomicU64,
}

impl<'m> Arena<'m> {
    #[inline]
    pub(crate) fn new(map: &'m Map, index: u32, is_fenced: bool) -> Result<Self, Damage> {
        Ok(Self { map, words: map.words(arena_at(index))?, is_fenced })
    }

    /// A word of the note or of a bump range.
    #[inline]
    pub(crate) fn get(&self, which: usize) -> u64 {
        self.words.get(which).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Stores a word of the note or of a bump range. Release, so that a recoverer that sees it sees
    /// all that went before.
    #[inline]
    pub(crate) fn set(&self, which: usize, value: u64) {
        if let Some(word) = self.words.get(which) {
            word.store(value, Ordering::Release);
        }
        crash_point!("arena.stored");
    }

    /// How many numbers the members of this arena have given.
    pub(crate) fn numbers(&self) -> Result<u64, Damage> {
        match self.get(note::NUMBERS) {
            0 => Ok(0),
            word => unseal(word, "an arena's count of numbers has a flipped bit"),
        }
    }

    /// The queue of a class.
    #[inline]
    pub(crate) fn queue(&self, class: u8) -> Result<Queue<'m>, Damage> {
        let first = QUEUE_FIRST + QUEUE_WORDS * class as usize;
        match self.words.get(first..first + QUEUE_WORDS) {
            Some([head, tail, count]) => Ok(Queue { head, tail, count }),
            _ => Err(Damage("a cell of a class that does not exist")),
        }
    }

    /// `[cur, end)` of a bump range, and how far it has pages.
    #[inline]
    pub(crate) fn bump(&self, which: Bump) -> (u64, u64, u64) {
        let at = which as usize;
        (self.get(at), self.get(at + 1), self.get(at + 2))
    }

    #[inline]
    pub(crate) fn set_bump(&self, which: Bump, cur: u64, end: u64, committed: u64) {
        let at = which as usize;
        self.set(at, cur);
        self.set(at + 1, end);
        self.set(at + 2, committed);
    }

    /// Takes the head of a queue: it becomes pending.
    #[inline]
    pub(crate) fn pop(&self, queue: Queue<'_>, cell: u64) -> Result<(), Damage> {
        self.set(note::POP, cell);
        crash_point!("pop.noted");
        let next = cell::word(self.map, cell, WORD_NEXT)?;
        queue.head.store(next.load(Ordering::Relaxed), Ordering::Release);
        crash_point!("pop.unlinked");
        let count = queue.count.load(Ordering::Relaxed);
        queue.count.store(count.saturating_sub(1), Ordering::Relaxed);
        crash_point!("pop.counted");
        self.pend(cell)
    }

    /// Cuts a cell from the front of a bump range that has pages for it: it becomes pending.
    #[inline]
    pub(crate) fn cut(&self, which: Bump, class: u8, bytes: u64) -> Result<u64, Damage> {
        let cell = self.get(which as usize);
        cell::word(self.map, cell, WORD_HEAD)?.store(u64::from(class), Ordering::Relaxed);
        crash_point!("cut.classed");
        self.set(note::POP, cell);
        crash_point!("pop.noted");
        self.set(which as usize, cell + bytes);
        crash_point!("pop.unlinked");
        self.pend(cell)?;
        Ok(cell)
    }

    /// Puts a cell in transit on the pending list.
    #[inline]
    fn pend(&self, cell: u64) -> Result<(), Damage> {
        let pending = self.get(note::PENDING);
        cell::word(self.map, cell, WORD_NEXT)?.store(pending, Ordering::Release);
        crash_point!("pop.chained");
        cell::word(self.map, cell, WORD_RETIRED)?.store(0, Ordering::Release);
        crash_point!("pop.linked");
        self.set(note::PENDING, cell);
        crash_point!("pop.pending");
        self.set(note::POP, 0);
        Ok(())
    }

    /// Links a cell at the tail of the queue of its class, with the present epoch.
    #[inline]
    pub(crate) fn append(&self, cell: u64) -> Result<(), Damage> {
        self.set(note::POP, cell);
        crash_point!("append.noted");
        self.link(cell)?;
        self.set(note::POP, 0);
        crash_point!("append.done");
        Ok(())
    }

    fn link(&self, cell: u64) -> Result<(), Damage> {
        let queue = self.queue(cell::class_at(self.map, cell)?)?;
        cell::word(self.map, cell, WORD_NEXT)?.store(0, Ordering::Release);
        crash_point!("append.cleared");
        let epoch = pin::retire_epoch(self.map.word(SUPER_EPOCH)?, self.is_fenced);
        cell::word(self.map, cell, WORD_RETIRED)?.store(epoch, Ordering::Release);
        crash_point!("append.stamped");
        if queue.head.load(Ordering::Relaxed) == 0 {
            queue.tail.store(cell, Ordering::Release);
            crash_point!("append.tail");
            queue.head.store(cell, Ordering::Release);
        } else {
            let tail = queue.tail.load(Ordering::Relaxed);
            cell::word(self.map, tail, WORD_NEXT)?.store(cell, Ordering::Release);
            crash_point!("append.tail");
            queue.tail.store(cell, Ordering::Release);
        }
        crash_point!("append.linked");
        let count = queue.count.load(Ordering::Relaxed);
        queue.count.store(count.wrapping_add(1), Ordering::Relaxed);
        Ok(())
    }

    /// Recovery: a cell in transit is where it came from, or arrived, or goes to its queue.
    pub(crate) fn settle_transit(&self) -> Result<(), Damage> {
        let cell = self.get(note::POP);
        if cell != 0 {
            let queue = self.queue(cell::class_at(self.map, cell)?)?;
            let head = queue.head.load(Ordering::Acquire);
            // The end of a used-up range may be where somebody else's cell begins.
            let is_front = |which| {
                let (cur, end, _) = self.bump(which);
                cur == cell && cur < end
            };
            let is_still_there = head == cell || is_front(Bump::Small) || is_front(Bump::Large);
            let is_tail = head != 0 && queue.tail.load(Ordering::Acquire) == cell;
            if !is_still_there && !is_tail && self.get(note::PENDING) != cell {
                self.link(cell)?;
            }
            self.set(note::POP, 0);
        }
        Ok(())
    }

    /// Every pending cell goes to the queue of its class.
    pub(crate) fn roll_back(&self) -> Result<(), Damage> {
        for _ in 0..PENDING_MAX {
            let cell = self.get(note::PENDING);
            if cell == 0 {
                return Ok(());
            }
            let next = cell::word(self.map, cell, WORD_NEXT)?.load(Ordering::Acquire);
            // In transit first, so that it is not lost between the two.
            self.set(note::POP, cell);
            self.set(note::PENDING, next);
            self.link(cell)?;
            self.set(note::POP, 0);
        }
        Err(Damage("a member's list of pending cells has no end"))
    }

    /// Retires a cell that was unlinked, unless it is retired already.
    #[inline]
    pub(crate) fn retire(&self, cell: u64) -> Result<(), Damage> {
        if cell::word(self.map, cell, WORD_RETIRED)?.load(Ordering::Acquire) == 0 {
            self.append(cell)?;
        }
        Ok(())
    }

    /// Takes the front of a bump range as free cells, so that it is empty. All of it has pages.
    pub(crate) fn carve(&self, which: Bump) -> Result<(), Damage> {
        loop {
            let (cur, end, _) = self.bump(which);
            let Some(class) = class::class_within(end.saturating_sub(cur)) else {
                return Ok(());
            };
            let pending = self.get(note::PENDING);
            let cell = self.cut(which, class, class::bytes_of(class))?;
            // Only this cell goes back; what was pending stays.
            self.set(note::POP, cell);
            self.set(note::PENDING, pending);
            self.link(cell)?;
            self.set(note::POP, 0);
        }
    }
}

/// Writes the note of a word that is about to change; the operation last, because it makes the rest
/// valid.
#[inline]
pub(crate) fn note_word(arena: &Arena<'_>, at: u64, old: u64, new: u64, what: u64) {
    arena.set(note::SLOT, at);
    arena.set(note::OLD, old);
    arena.set(note::NEW, new);
    crash_point!("publish.fields");
    arena.set(note::OP, what);
}

/// After a line was linked: it alone leaves the pending list, whose head it is.
pub(crate) fn settle_line(arena: &Arena<'_>, line: u64) -> Result<(), Damage> {
    if arena.get(note::PENDING) == line {
        let next = cell::word(arena.map, line, WORD_NEXT)?.load(Ordering::Acquire);
        arena.set(note::PENDING, next);
    }
    arena.set(note::OP, op::NONE);
    Ok(())
}

/// After the commit of a word whose old value nothing is retired for.
#[inline]
pub(crate) fn settle_word(arena: &Arena<'_>) {
    // Pending first: with an operation noted, recovery sees the commit and frees nothing.
    arena.set(note::PENDING, 0);
    crash_point!("publish.settled");
    arena.set(note::OP, op::NONE);
    crash_point!("publish.cleared");
}
