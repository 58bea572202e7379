//! A member's arena: its note, its bump ranges and its queues of retired cells. All of it is
//! written by one member only, or by the one that recovers it; every step can be cut short by a
//! kill.

use crate::atomic::{AtomicU64, Ordering};
use crate::crash::crash_point;
use crate::layout::{ARENA_WORDS, Corruption, QUEUES, arena_at, unseal};
use crate::region::map::Map;

/// Words of the note, and of what follows it in the arena.
pub(crate) mod undo {
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
    pub(crate) const BATCH_DIRECTION: usize = 24;
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
pub(crate) mod direction {
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

const QUEUE_FIRST: usize = 32;
const QUEUE_WORDS: usize = 3;
const _: () = assert!(QUEUE_FIRST + QUEUE_WORDS * QUEUES <= undo::STREAM);
const _: () = assert!(undo::NUMBERS < ARENA_WORDS);

/// One arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arena<'m> {
    pub(crate) map: &'m Map,
    words: &'m [AtomicU64; ARENA_WORDS],
    pub(crate) is_fenced: bool,
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
    pub(crate) fn new(map: &'m Map, index: u32, is_fenced: bool) -> Result<Self, Corruption> {
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
    pub(crate) fn numbers(&self) -> Result<u64, Corruption> {
        match self.get(undo::NUMBERS) {
            0 => Ok(0),
            word => unseal(word, "an arena's count of numbers has a flipped bit"),
        }
    }

    /// The queue of a class.
    #[inline]
    pub(crate) fn queue(&self, class: u8) -> Result<Queue<'m>, Corruption> {
        let first = QUEUE_FIRST + QUEUE_WORDS * class as usize;
        match self.words.get(first..first + QUEUE_WORDS) {
            Some([head, tail, count]) => Ok(Queue { head, tail, count }),
            _ => Err(Corruption("a cell of a class that does not exist")),
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
}

/// Writes the note of a word that is about to change; the operation last, because it makes the rest
/// valid.
#[inline]
pub(crate) fn write_undo(arena: &Arena<'_>, at: u64, old: u64, new: u64, what: u64) {
    arena.set(undo::SLOT, at);
    arena.set(undo::OLD, old);
    arena.set(undo::NEW, new);
    crash_point!("publish.fields");
    arena.set(undo::OP, what);
}

/// After the commit of a word whose old value nothing is retired for.
#[inline]
pub(crate) fn finish_word(arena: &Arena<'_>) {
    // Pending first: with an operation noted, recovery sees the commit and frees nothing.
    arena.set(undo::PENDING, 0);
    crash_point!("publish.settled");
    arena.set(undo::OP, op::NONE);
    crash_point!("publish.cleared");
}
