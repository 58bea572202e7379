//! A member's arena: its undo record, its bump ranges and its queues of retired cells.
//!
//! Only one member writes an arena, or the process that recovers this member. A kill can interrupt
//! any step.

use nearstate_model::invariant;
use nearstate_model::limits::MEMBERS_MAX;

use crate::atomic::{AtomicU64, Ordering};
use crate::crash::crash_point;
use crate::layout::{ARENA_BYTES, ARENA_WORDS, Corruption, QUEUES, arena_at, unseal};
use crate::region::map::Map;

/// The index of a word of an arena. Every value is a constant of this file, so every index lies
/// inside the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArenaWord(usize);

impl ArenaWord {
    const fn new(index: usize) -> Self {
        assert!(index < ARENA_WORDS, "the word lies inside the arena");
        Self(index)
    }

    /// Offset of this word from the start of the arena, in bytes.
    pub(crate) const fn offset(self) -> u64 {
        8 * self.0 as u64
    }
}

/// Words of the undo record, and of what follows it in the arena.
pub(crate) mod undo {
    use super::{ArenaWord, LockSlot};

    pub(crate) const OP: ArenaWord = ArenaWord::new(0);
    pub(crate) const WORD_OFFSET: ArenaWord = ArenaWord::new(1);
    pub(crate) const OLD: ArenaWord = ArenaWord::new(2);
    pub(crate) const NEW: ArenaWord = ArenaWord::new(3);
    pub(crate) const POP: ArenaWord = ArenaWord::new(4);
    pub(crate) const PENDING: ArenaWord = ArenaWord::new(5);
    pub(crate) const CHUNK_AT: ArenaWord = ArenaWord::new(6);
    pub(crate) const CHUNK_TO: ArenaWord = ArenaWord::new(7);
    pub(crate) const BATCH_FIRST: ArenaWord = ArenaWord::new(8);
    pub(crate) const BATCH_LAST: ArenaWord = ArenaWord::new(9);
    pub(crate) const SPLIT_NAMESPACE: ArenaWord = ArenaWord::new(14);
    pub(crate) const SPLIT_BUCKET: ArenaWord = ArenaWord::new(15);
    /// 1 while the member carries out an operation (`member/idle.rs`). Not part of the undo record.
    pub(crate) const ACTIVE: ArenaWord = ArenaWord::new(18);
    /// The lock of a member that takes cells from the queues and the small bump range of this one.
    /// Not part of the undo record.
    pub(crate) const TAKER: ArenaWord = ArenaWord::new(19);
    /// Of a count: the payload of the usage word after it.
    pub(crate) const COUNTED: ArenaWord = SPLIT_BUCKET;
    /// The transaction cell whose lines name the locks that are held or about to be taken.
    pub(crate) const TXN: ArenaWord = ArenaWord::new(25);
    /// The range that is being freed: its first byte that is not free yet, its end, and what it is
    /// taken from. Valid if the first one is not 0.
    pub(crate) const FREE_AT: ArenaWord = ArenaWord::new(26);
    pub(crate) const FREE_TO: ArenaWord = ArenaWord::new(27);
    pub(crate) const FREE_SOURCE: ArenaWord = ArenaWord::new(28);
    /// The last unique id that was handed out, sealed.
    pub(crate) const UNIQUE_IDS: ArenaWord = ArenaWord::new(424);

    /// The word that names a lock which is held or about to be taken.
    #[inline]
    pub(crate) const fn lock(slot: LockSlot) -> ArenaWord {
        ArenaWord::new(10 + slot as usize)
    }
}

/// The operation that an undo record describes.
pub(crate) mod op {
    pub(crate) const NONE: u64 = 0;
    /// An entry is replaced, set or cleared. The old record is retired afterwards.
    pub(crate) const RECORD: u64 = 1;
    /// A word is replaced by a link or a segment offset. Nothing is retired.
    pub(crate) const WORD: u64 = 2;
    /// A bucket is split.
    pub(crate) const SPLIT: u64 = 3;
    /// The writes of a transaction are published. The word offset is that of the transaction cell.
    pub(crate) const TXN: u64 = 4;
    /// A line is added to a chain. Only that line leaves the pending list.
    pub(crate) const LINE: u64 = 5;
    /// The overflow lines of a bucket are removed. What is left of them stands in its line.
    pub(crate) const COMPACT: u64 = 6;
    /// The overflow lines of a bucket are replaced by others with the same entries.
    pub(crate) const LINES: u64 = 7;
    /// A word that is 0 is set once and for all by the first writer. If it holds another writer's
    /// value, this one was not published.
    pub(crate) const SET_ONCE: u64 = 8;
    /// The records of a bucket are counted. The leaf lock is the usage word to which they are
    /// added.
    pub(crate) const COUNT: u64 = 9;
}

/// The place of a lock in the undo record. Locks are taken in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockSlot {
    Split = 0,
    Bucket = 1,
    NewBucket = 2,
    Leaf = 3,
}

impl LockSlot {
    pub(crate) const ALL: [Self; 4] = [Self::Split, Self::Bucket, Self::NewBucket, Self::Leaf];
}

const _: () = assert!(LockSlot::ALL.len() == 4 && undo::lock(LockSlot::Split).0 == 10);
const _: () = assert!(undo::lock(LockSlot::Leaf).0 < undo::SPLIT_NAMESPACE.0);

/// A bump range: cells are cut from its front. Its units are marked as allocated, and it has pages
/// unless it becomes an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bump {
    /// For cells up to [`BUMP_SMALL_CELL_MAX`]. Refilled with a long run of units.
    Small = 16,
    /// For larger cells. Refilled with exactly the units that are needed.
    Large = 20,
}

impl Bump {
    /// The word that holds the front of the range.
    pub(crate) const fn front(self) -> ArenaWord {
        ArenaWord::new(self as usize)
    }

    const fn end(self) -> ArenaWord {
        ArenaWord::new(self as usize + 1)
    }

    /// Its place among both.
    pub(crate) const fn number(self) -> usize {
        match self {
            Self::Small => 0,
            Self::Large => 1,
        }
    }
}

/// The largest cell that is cut from the small bump range, which lies in one chunk: the end of a
/// chunk that is too short for such a cell is at most 3 % of it. Larger cells can lie in two
/// chunks.
pub(crate) const BUMP_SMALL_CELL_MAX: u64 = 8 << 10;

/// The number of the queue, of all classes, for cells that stalled readers hold
/// (`heap/set_aside.rs`).
pub(crate) const SET_ASIDE: u8 = QUEUES as u8;

/// The number of the queue, of all classes, for cells that the log holds (`heap/held.rs`).
pub(crate) const HELD: u8 = SET_ASIDE + 1;

const QUEUE_FIRST: usize = 32;
/// The words of the queue [`SET_ASIDE`] follow the last word of the arena that has a line.
const SET_ASIDE_FIRST: usize = 432;
/// The words of the queue [`HELD`].
const HELD_FIRST: usize = 440;
const QUEUE_WORDS: usize = 3;
const _: () = assert!(QUEUE_FIRST + QUEUE_WORDS * QUEUES <= undo::UNIQUE_IDS.0);
const _: () = assert!(undo::UNIQUE_IDS.0 < SET_ASIDE_FIRST && QUEUES < u8::MAX as usize);
const _: () = assert!(SET_ASIDE_FIRST + QUEUE_WORDS <= HELD_FIRST);
const _: () = assert!(HELD_FIRST + QUEUE_WORDS <= ARENA_WORDS);
const _: () = assert!(Bump::Large.end().0 < undo::TXN.0 && undo::FREE_SOURCE.0 < QUEUE_FIRST);

/// True if a member uses this word of its arena. The others are zero.
pub(crate) const fn is_arena_word(word: usize) -> bool {
    matches!(word, 0..22 | 25..29)
        || word >= QUEUE_FIRST && word < QUEUE_FIRST + QUEUE_WORDS * QUEUES
        || word >= SET_ASIDE_FIRST && word < SET_ASIDE_FIRST + QUEUE_WORDS
        || word >= HELD_FIRST && word < HELD_FIRST + QUEUE_WORDS
        || word == undo::UNIQUE_IDS.0
}

const _: () = assert!(Bump::Small.end().0 == 17 && Bump::Large.end().0 == 21);
const _: () = assert!(undo::ACTIVE.0 == 18 && undo::TAKER.0 == 19);
const _: () = assert!(undo::TXN.0 == 25 && undo::FREE_SOURCE.0 == 28 && undo::SPLIT_BUCKET.0 < 18);

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
    /// A hint. A kill can leave it off by one.
    pub(crate) count: &'m AtomicU64,
}

impl<'m> Arena<'m> {
    #[inline]
    pub(crate) fn new(map: &'m Map, index: u32, is_fenced: bool) -> Result<Self, Corruption> {
        Ok(Self::of_words(map, map.words(arena_at(index))?, is_fenced))
    }

    /// The arena that has these words.
    #[inline]
    pub(crate) const fn of_words(
        map: &'m Map,
        words: &'m [AtomicU64; ARENA_WORDS],
        is_fenced: bool,
    ) -> Self {
        Self { map, words, is_fenced }
    }

    #[inline]
    pub(crate) fn word(&self, which: ArenaWord) -> &'m AtomicU64 {
        match self.words.get(which.0) {
            Some(word) => word,
            None => invariant!("arena word {} lies outside the arena", which.0),
        }
    }

    /// Loads a word of the undo record or of a bump range.
    #[inline]
    pub(crate) fn get(&self, which: ArenaWord) -> u64 {
        self.word(which).load(Ordering::Acquire)
    }

    /// Stores a word of the undo record or of a bump range. Release: a recoverer that reads this
    /// value also reads everything stored before it.
    #[inline]
    pub(crate) fn set(&self, which: ArenaWord, value: u64) {
        self.word(which).store(value, Ordering::Release);
        crash_point!("arena.stored");
    }

    /// How many unique ids the members of this arena have handed out.
    pub(crate) fn unique_ids(&self) -> Result<u64, Corruption> {
        match self.get(undo::UNIQUE_IDS) {
            0 => Ok(0),
            word => unseal(word, "an arena's count of unique ids has a flipped bit"),
        }
    }

    /// The queue of a class.
    #[inline]
    pub(crate) fn queue(&self, class: u8) -> Result<Queue<'m>, Corruption> {
        let first = QUEUE_FIRST + QUEUE_WORDS * class as usize;
        match self.words.get(first..first + QUEUE_WORDS) {
            Some([head, tail, count]) if (class as usize) < QUEUES => {
                Ok(Queue { head, tail, count })
            }
            // The class comes from a cell's header in shared memory.
            _ => Err(Corruption("a cell has a class that does not exist")),
        }
    }

    /// The number of cells in the queue of a class that exists, as [`Queue::count`].
    #[inline]
    pub(crate) fn queue_count(&self, class: u8) -> u64 {
        let at = QUEUE_FIRST + QUEUE_WORDS * (class as usize % QUEUES) + 2;
        self.words.get(at).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// The queue of a class, or the one with the number [`SET_ASIDE`] or [`HELD`].
    pub(crate) fn numbered_queue(&self, number: u8) -> Result<Queue<'m>, Corruption> {
        match number {
            SET_ASIDE => Ok(self.set_aside()),
            HELD => Ok(self.held()),
            class => self.queue(class),
        }
    }

    /// The queue of the cells that stalled readers hold.
    pub(crate) fn set_aside(&self) -> Queue<'m> {
        self.queue_at(SET_ASIDE_FIRST)
    }

    /// The queue of the cells that the log holds.
    pub(crate) fn held(&self) -> Queue<'m> {
        self.queue_at(HELD_FIRST)
    }

    fn queue_at(&self, first: usize) -> Queue<'m> {
        match self.words.get(first..first + QUEUE_WORDS) {
            Some([head, tail, count]) => Queue { head, tail, count },
            _ => invariant!("arena word {first} lies outside the arena"),
        }
    }

    /// `[front, end)` of a bump range.
    #[inline]
    pub(crate) fn bump(&self, which: Bump) -> (u64, u64) {
        (self.get(which.front()), self.get(which.end()))
    }

    /// Bytes of a bump range.
    #[inline]
    pub(crate) fn room(&self, which: Bump) -> u64 {
        let (front, end) = self.bump(which);
        end.saturating_sub(front)
    }

    /// The arena whose queues the member of this one takes cells from, or may be about to.
    pub(crate) fn taken_from(&self) -> Result<Option<Self>, Corruption> {
        let at = self.get(undo::lock(LockSlot::Leaf));
        let offset = undo::TAKER.offset();
        let is_taker = at >= arena_at(0) + offset
            && at < arena_at(MEMBERS_MAX as u32)
            && (at - arena_at(0)) % ARENA_BYTES == offset;
        if !is_taker {
            return Ok(None);
        }
        let index = (at - arena_at(0)) / ARENA_BYTES;
        Self::new(self.map, index as u32, self.is_fenced).map(Some)
    }

    /// True if an operation has begun that recovery completes or undoes in the queues or the small
    /// bump range.
    pub(crate) fn has_open_record(&self) -> bool {
        [undo::OP, undo::POP, undo::PENDING, undo::CHUNK_TO, undo::BATCH_FIRST]
            .into_iter()
            .any(|which| self.get(which) != 0)
    }

    /// True if no memory belongs to the arena.
    pub(crate) fn is_empty(&self) -> Result<bool, Corruption> {
        for class in 0..=HELD {
            if self.numbered_queue(class)?.head.load(Ordering::Acquire) != 0 {
                return Ok(false);
            }
        }
        Ok(self.room(Bump::Small) == 0
            && self.room(Bump::Large) == 0
            && self.get(undo::FREE_AT) == 0)
    }

    /// Sets an empty bump range. The end is stored while the range is still empty.
    #[inline]
    pub(crate) fn set_bump(&self, which: Bump, front: u64, end: u64) {
        self.set(which.end(), 0);
        self.set(which.front(), front);
        self.set(which.end(), end);
    }
}

/// Writes the undo record of a word that is about to change. The operation is stored last, because
/// it makes the other words valid.
#[inline]
pub(crate) fn write_undo(arena: &Arena<'_>, at: u64, old: u64, new: u64, what: u64) {
    invariant!(what != op::NONE, "an undo record names an operation");
    arena.set(undo::WORD_OFFSET, at);
    arena.set(undo::OLD, old);
    arena.set(undo::NEW, new);
    crash_point!("publish.fields");
    arena.set(undo::OP, what);
}

/// Closes the undo record after the commit of a word whose old value needs no retirement.
#[inline]
pub(crate) fn close_undo_record(arena: &Arena<'_>) {
    // The pending list first: while an operation is recorded, recovery sees the commit and frees
    // nothing.
    arena.set(undo::PENDING, 0);
    crash_point!("publish.unpended");
    arena.set(undo::OP, op::NONE);
    crash_point!("publish.cleared");
}
