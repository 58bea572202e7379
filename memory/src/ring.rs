//! A ring in the heap: what watchers and the commit stream read (`spec/region.md`, section 10).
//! Writers append under its lock; readers follow at their own pace, take no lock, and a slow one is
//! told what it missed, unless it asked the writers to be refused instead.
//!
//! A ring is never freed once its offset is published, so that readers need no pin.

mod any;
pub(crate) mod words;

#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use nearstate_model::limits::{RING_BYTES_MAX, RING_BYTES_MIN};
use nearstate_model::{Error, Result};

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::heap::cell::{self, Cell, CellHeader, CellKind};
use crate::layout::{ARENA_BYTES, CATALOG_RING, Corruption, LINE, arena_at, catalog_at};
use crate::member::Member;
use crate::member::arena::{finish_word, op, slot, undo, write_undo};
use crate::region::file::Shared;
use crate::region::index_table::IndexTable;
use crate::region::map::Map;
use crate::ring::words::{EntryRead, RingWords, call_waiters, enlist, words_of};
use crate::system::{futex_wait, futex_wake};

/// The ring's lock word: owner, and a payload of 0.
const RING_LOCK: u64 = LINE;
/// Three words: reserved, tail, oldest.
const RING_POSITIONS: u64 = 2 * LINE;
/// What waiters sleep on.
const RING_WAITERS: u64 = 3 * LINE;
/// The consumer's line: up to where it has read, and what it asked for.
const RING_ACKED: u64 = 4 * LINE;
const RING_ACKED_NUMBER: u64 = 4 * LINE + 8;
const RING_FLAGS: u64 = 4 * LINE + 16;
/// Where the words begin.
const RING_WORDS: u64 = 5 * LINE;

/// Flag: an append that has no room beyond what is acknowledged is refused.
const LOSSLESS: u64 = 1;

/// Words that a fresh ring has reserved: those of the first entry's number.
const RESERVED_FIRST: u64 = 2;

/// How long one sleep of a waiter lasts at the most. A writer that was killed between its append
/// and its wake wakes nobody, and the entry is there all the same.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Where a reader of a ring begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingStart {
    /// With the next entry that is appended.
    Tail,
    /// With the oldest entry that is still there.
    Oldest,
    /// Where the consumer has acknowledged to be, with [`RingReader::ack`].
    Acked,
}

/// What a reader meets next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingRead {
    /// An entry: its payload is in the caller's buffer.
    Entry {
        /// Its number: one more than that of the entry before.
        number: u64,
    },
    /// Nothing yet.
    Empty,
    /// The writers have come round: what the reader had not read is gone. It goes on with what is
    /// appended from now on, because a caller that missed something begins anew anyway.
    Lost {
        /// How many entries it missed.
        entries: u64,
    },
}

/// Allocates a ring that holds at least so many bytes: a pending cell, filled, not yet known to
/// anybody.
pub(crate) fn create(member: &Member, capacity_bytes: u64) -> Result<u64> {
    if !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&capacity_bytes) {
        return Err(Error::BadArgument {
            detail: format!(
                "a ring of {capacity_bytes} bytes: give it {RING_BYTES_MIN} to {RING_BYTES_MAX}"
            ),
        });
    }
    let at = member.allocate(RING_WORDS + capacity_bytes)?;
    fill(member.map(), at)?;
    crash_point!("ring.made");
    Ok(at)
}

fn fill(map: &Map, at: u64) -> Result<(), Corruption> {
    // All of the cell serves.
    let bytes = cell::bytes_at(map, at)?;
    let body = (bytes - cell::CELL_HEADER_BYTES) as u32;
    cell::begin(
        map,
        at,
        &CellHeader { kind: CellKind::Ring, flags: 0, body, key: 0, children: 0, hash: 0 },
    )?;
    for which in (LINE..RING_WORDS + 2 * 8).step_by(8) {
        map.word(at + which)?.store(0, Ordering::Relaxed);
    }
    map.word(at + RING_POSITIONS)?.store(RESERVED_FIRST, Ordering::Relaxed);
    cell::seal(map, at, (bytes - RING_WORDS) / 8, 0)
}

/// The offset of a ring's lock word: taken before everything that appends.
pub(crate) const fn lock_at(ring_at: u64) -> u64 {
    ring_at.saturating_add(RING_LOCK)
}

/// The words of the ring at an offset; damage if there is none.
fn words_at(map: &Map, ring_at: u64) -> Result<RingWords<'_>, Corruption> {
    let cell = Cell::new(map, ring_at)?;
    if cell.kind()? != CellKind::Ring {
        return Err(Corruption("an offset of a ring leads to something else"));
    }
    let capacity = cell.version();
    if capacity.saturating_mul(8).saturating_add(RING_WORDS) > cell::bytes_at(map, ring_at)? {
        return Err(Corruption("a ring is larger than its cell"));
    }
    let [reserved, tail, oldest] = map.words(ring_at + RING_POSITIONS)?;
    let words = map.slice(ring_at + RING_WORDS, capacity)?;
    Ok(RingWords { reserved, tail, oldest, words })
}

/// The present tail: what an append is told as `tail_before`. Under the ring's lock.
pub(crate) fn tail(map: &Map, ring_at: u64) -> Result<u64, Corruption> {
    Ok(words_at(map, ring_at)?.tail.load(Ordering::Acquire))
}

/// False if an entry of so many bytes is larger than what the ring may hold of one entry, a quarter
/// of it: then it can never be appended.
pub(crate) fn fits(map: &Map, ring_at: u64, bytes: u64) -> Result<bool, Corruption> {
    Ok(words_of(bytes) <= words_at(map, ring_at)?.entry_words_max())
}

/// False if the ring's consumer asked that nothing be overwritten which it has not acknowledged,
/// and there is too little room beside that. Under the ring's lock.
pub(crate) fn has_room(map: &Map, ring_at: u64, payload_bytes: u64) -> Result<bool, Corruption> {
    let words = words_at(map, ring_at)?;
    if map.word(ring_at + RING_FLAGS)?.load(Ordering::Acquire) & LOSSLESS == 0 {
        return Ok(true);
    }
    // Acquire, pairs with `ack`: what was acknowledged has been read.
    words.has_room(map.word(ring_at + RING_ACKED)?.load(Ordering::Acquire), payload_bytes)
}

/// From now on an append that would overwrite what is not acknowledged is refused. Under the ring's
/// lock.
pub(crate) fn keep(map: &Map, ring_at: u64) -> Result<(), Corruption> {
    let word = map.word(ring_at + RING_FLAGS)?;
    if word.load(Ordering::Acquire) & LOSSLESS == 0 {
        word.store(LOSSLESS, Ordering::Release);
        crash_point!("ring.keeping");
    }
    Ok(())
}

/// Appends `bytes` bytes that stand at `source_at` in the region, unless they were appended: then
/// the tail is not `tail_before` any more. Under the ring's lock, or as the recoverer of its owner;
/// may be cut short by a kill anywhere and repeated, also by another process.
pub(crate) fn append(
    map: &Map,
    ring_at: u64,
    tail_before: u64,
    source_at: u64,
    bytes: u64,
) -> Result<(), Corruption> {
    words_at(map, ring_at)?.append(tail_before, map.bytes(source_at, bytes)?)
}

/// Wakes whoever waits for an entry of the ring. A system call if somebody does, a fence and a load
/// if not. After the append; with or without the lock.
pub(crate) fn wake(map: &Map, ring_at: u64) -> Result<(), Corruption> {
    let word = map.word(ring_at.saturating_add(RING_WAITERS))?;
    if call_waiters(word) {
        futex_wake(word);
    }
    Ok(())
}

/// For the verifier: what contradicts itself in a ring that nobody uses.
pub(crate) fn validate(map: &Map, ring_at: u64) -> Result<(), Corruption> {
    let words = words_at(map, ring_at)?;
    if map.word(lock_at(ring_at))?.load(Ordering::Acquire) != 0 {
        return Err(Corruption("a ring is locked by nobody who lives"));
    }
    if map.word(ring_at + RING_FLAGS)?.load(Ordering::Acquire) & !LOSSLESS != 0 {
        return Err(Corruption("a ring has a flag that does not exist"));
    }
    let tail = words.tail.load(Ordering::Acquire);
    if words.reserved.load(Ordering::Acquire) < tail.saturating_add(RESERVED_FIRST) {
        return Err(Corruption("a ring has reserved less than it has"));
    }
    if map.word(ring_at + RING_ACKED)?.load(Ordering::Acquire) > tail {
        return Err(Corruption("a ring is acknowledged beyond its end"));
    }
    let (mut at, mut expected) = words.begin(words.oldest)?;
    let (_, last) = words.begin(words.tail)?;
    let mut payload = Vec::new();
    while let EntryRead::Entry { number, end } = words.look(at, &mut payload)? {
        if number != expected {
            return Err(Corruption("an entry of a ring has another number than its place"));
        }
        (at, expected) = (end, expected.wrapping_add(1));
    }
    if at != tail || expected != last {
        return Err(Corruption("the entries of a ring do not lead to its end"));
    }
    Ok(())
}

impl Member {
    /// The ring of a namespace's watchers, if it has one.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn watch_ring(&self, table: &IndexTable) -> Result<Option<u64>> {
        self.ring_in(catalog_at(table.index()) + CATALOG_RING)
    }

    /// The ring of a namespace's watchers, created with room for so many bytes if there is none.
    /// Nothing may be pending.
    ///
    /// # Errors
    /// `BadArgument` for a size that no ring has, `Full`, `Stalled`, `Damaged`, `Forked`.
    pub fn open_watch_ring(&self, table: &IndexTable, capacity_bytes: u64) -> Result<u64> {
        self.open_ring(catalog_at(table.index()) + CATALOG_RING, capacity_bytes)
    }

    /// The stream ring of this member, created with room for so many bytes if there is none. It
    /// stays with the arena: the next member in this slot has it. Nothing may be pending.
    ///
    /// # Errors
    /// As [`Member::open_watch_ring`].
    pub fn open_stream_ring(&self, capacity_bytes: u64) -> Result<u64> {
        self.open_ring(stream_at(self.index()), capacity_bytes)
    }

    /// The stream ring of the member with this index, if it has one.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn stream_ring(&self, index: u32) -> Result<Option<u64>> {
        self.ring_in(stream_at(index))
    }

    /// The ring whose offset stands in a word, if there is one.
    #[inline]
    fn ring_in(&self, word_at: u64) -> Result<Option<u64>> {
        // Acquire, pairs with the store in `open_ring`: the ring is filled (O1).
        let at = self.map().word(word_at)?.load(Ordering::Acquire);
        Ok((at != 0).then_some(at))
    }

    /// Finds a ring, or creates it and publishes it in the word. Of several at once the first one
    /// does; the others give theirs up.
    fn open_ring(&self, word_at: u64, capacity_bytes: u64) -> Result<u64> {
        self.check_usable()?;
        if let Some(there) = self.ring_in(word_at)? {
            return Ok(there);
        }
        let arena = self.arena()?;
        let word = self.map().word(word_at)?;
        let at = match create(self, capacity_bytes) {
            Ok(at) => at,
            Err(error) => {
                self.free_pending()?;
                return Err(error);
            }
        };
        write_undo(&arena, word_at, 0, at, op::ONCE);
        crash_point!("ring.noted");
        match word.compare_exchange(0, at, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                crash_point!("ring.named");
                finish_word(&arena);
                crash_point!("ring.settled");
                Ok(at)
            }
            Err(there) => {
                arena.set(undo::OP, op::NONE);
                self.free_pending()?;
                Ok(there)
            }
        }
    }

    /// Appends an entry that belongs to no transaction, and wakes who waits for it. False if the
    /// ring refuses it: it is larger than a quarter of the ring, or the ring's consumer asked to
    /// keep what it has not acknowledged. After a kill the entry is there or not.
    ///
    /// # Errors
    /// `Stalled`, `Damaged`, `Forked`.
    pub fn append_to_ring(&self, ring_at: u64, payload: &[u8]) -> Result<bool> {
        self.check_usable()?;
        let map = self.map();
        let words = words_at(map, ring_at)?;
        let bytes = payload.len() as u64;
        if !fits(map, ring_at, bytes)? {
            return Ok(false);
        }
        self.acquire(lock_at(ring_at), slot::LEAF)?;
        let done = has_room(map, ring_at, bytes).and_then(|has_room| {
            if has_room {
                words.append(tail(map, ring_at)?, payload)?;
            }
            Ok(has_room)
        });
        self.release(lock_at(ring_at), slot::LEAF, 0)?;
        wake(map, ring_at)?;
        self.check_not_truncated()?;
        Ok(done?)
    }

    /// Whether a ring refuses an append that would overwrite what its consumer has not
    /// acknowledged.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn set_ring_lossless(&self, ring_at: u64, is_refusing: bool) -> Result<()> {
        let word = self.map().word(ring_at.saturating_add(RING_FLAGS))?;
        let wanted = if is_refusing { LOSSLESS } else { 0 };
        if word.load(Ordering::Acquire) != wanted {
            word.store(wanted, Ordering::Release);
        }
        self.check_not_truncated()
    }

    /// A reader of a ring.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn ring_reader(&self, ring_at: u64, start: RingStart) -> Result<RingReader> {
        self.check_usable()?;
        let map = self.map();
        let words = words_at(map, ring_at)?;
        let place = match start {
            RingStart::Tail => words.tail,
            RingStart::Oldest => words.oldest,
            RingStart::Acked => map.word(ring_at + RING_ACKED)?,
        };
        let (at, expected) = match words.begin(place) {
            // Overwritten since: the first step of this reader says how many entries it missed.
            Err(_) if start == RingStart::Acked => {
                let number = map.word(ring_at + RING_ACKED_NUMBER)?;
                (place.load(Ordering::Acquire), number.load(Ordering::Relaxed))
            }
            begun => begun?,
        };
        Ok(RingReader { shared: Arc::clone(self.shared()), ring_at, at, expected })
    }
}

/// Where a member's stream ring stands in its arena.
const fn stream_at(index: u32) -> u64 {
    arena_at(index) + 8 * undo::STREAM as u64
}

const _: () = assert!(8 * (undo::STREAM as u64) < ARENA_BYTES);

/// Follows a ring. Owes nothing to the session that made it, and may go to another thread. A copy
/// goes on from the same place.
#[derive(Clone, Debug)]
pub struct RingReader {
    shared: Arc<Shared>,
    ring_at: u64,
    /// Position of the next entry.
    at: u64,
    /// Its number.
    expected: u64,
}

impl RingReader {
    /// What comes next: an entry's payload is copied into `out`, which is cleared first. Never
    /// waits and never makes a writer wait. Cost: the lines of the entry and one of the ring.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn next(&mut self, out: &mut Vec<u8>) -> Result<RingRead> {
        out.clear();
        self.check_usable()?;
        let words = words_at(&self.shared.map, self.ring_at)?;
        let looked = words.look(self.at, out)?;
        // A page that is gone reads as zeros: an empty ring is not what is there.
        self.check_not_truncated()?;
        match looked {
            EntryRead::Empty => Ok(RingRead::Empty),
            EntryRead::Entry { number, end } if number == self.expected => {
                (self.at, self.expected) = (end, number.wrapping_add(1));
                Ok(RingRead::Entry { number })
            }
            EntryRead::Entry { .. } => {
                out.clear();
                Err(Error::from(Corruption("an entry of a ring has another number than its place")))
            }
            EntryRead::Overwritten => {
                let (at, number) = words.begin(words.tail)?;
                let entries = number.wrapping_sub(self.expected);
                if number <= self.expected || at <= self.at {
                    return Err(Error::from(Corruption("a ring has come round without an entry")));
                }
                (self.at, self.expected) = (at, number);
                Ok(RingRead::Lost { entries })
            }
        }
    }

    /// Waits until there is something to read, for so long at the most. True if there is. May be
    /// called from any number of processes at once; costs a writer one system call for each entry
    /// while somebody sleeps, and nothing otherwise.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn wait(&self, timeout: Duration) -> Result<bool> {
        wait_beyond(&self.shared, self.ring_at, self.at, timeout, || false)
    }

    /// What waits for this reader in another thread.
    pub fn waiter(&self) -> RingWaiter {
        RingWaiter { shared: Arc::clone(&self.shared), ring_at: self.ring_at }
    }

    /// The position of the next entry: up to where a [`RingWaiter`] has nothing to tell.
    pub const fn position(&self) -> u64 {
        self.at
    }

    /// How many entries there are that this reader has not read yet, as far as they are still
    /// there or not.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn backlog(&self) -> Result<u64> {
        self.check_usable()?;
        let words = words_at(&self.shared.map, self.ring_at)?;
        let (_, number) = words.begin(words.tail)?;
        Ok(number.saturating_sub(self.expected))
    }

    /// Acknowledges everything that was read: a ring that refuses when it is full may overwrite it.
    /// A ring has one consumer that does this.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn ack(&self) -> Result<()> {
        self.check_usable()?;
        let [at, number] = self.shared.map.words(self.ring_at.saturating_add(RING_ACKED))?;
        // The number first: cut short between the two, it says what was read, and the position is
        // too low, which only keeps more.
        number.store(self.expected, Ordering::Relaxed);
        crash_point!("ring.numbered");
        // Release, pairs with `has_room`: what was read was read before it is overwritten.
        at.store(self.at, Ordering::Release);
        self.check_not_truncated()
    }

    fn check_usable(&self) -> Result<()> {
        if self.shared.map.is_forked() { Err(Error::Forked) } else { self.check_not_truncated() }
    }

    fn check_not_truncated(&self) -> Result<()> {
        check_not_truncated(&self.shared)
    }
}

/// Waits at a ring for a reader that is elsewhere. Any thread may use it, and several at once.
#[derive(Clone, Debug)]
pub struct RingWaiter {
    shared: Arc<Shared>,
    ring_at: u64,
}

impl RingWaiter {
    /// Waits until the ring has an entry at or after a position of its reader, for so long at the
    /// most, or until `is_over` says so: that is asked once more after each [`RingWaiter::wake`].
    /// True if there is such an entry.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn wait(
        &self,
        position: u64,
        timeout: Duration,
        is_over: impl Fn() -> bool,
    ) -> Result<bool> {
        wait_beyond(&self.shared, self.ring_at, position, timeout, is_over)
    }

    /// True if the ring has an entry at or after a position of its reader.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn is_beyond(&self, position: u64) -> Result<bool> {
        is_beyond(&self.shared, self.ring_at, position)
    }

    /// Wakes all who wait at the ring: each looks again whether its wait is over.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn wake(&self) -> Result<()> {
        Ok(wake(&self.shared.map, self.ring_at)?)
    }

    /// True in a process that is a fork of the one that attached.
    pub fn is_forked(&self) -> bool {
        self.shared.map.is_forked()
    }
}

pub use any::wait_any;

fn wait_beyond(
    shared: &Shared,
    ring_at: u64,
    position: u64,
    timeout: Duration,
    is_over: impl Fn() -> bool,
) -> Result<bool> {
    let begun = Instant::now();
    let word = shared.map.word(ring_at.saturating_add(RING_WAITERS))?;
    loop {
        if shared.map.is_forked() {
            return Err(Error::Forked);
        }
        if is_beyond(shared, ring_at, position)? {
            return Ok(true);
        }
        let left = timeout.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Ok(false);
        }
        let ticket = enlist(word);
        // Behind the bit: whoever ends the wait after this look finds it, and wakes.
        if is_over() {
            return Ok(false);
        }
        if !is_beyond(shared, ring_at, position)? {
            futex_wait(word, ticket, left.min(SLEEP_MAX))?;
        }
    }
}

fn is_beyond(shared: &Shared, ring_at: u64, position: u64) -> Result<bool> {
    let words = words_at(&shared.map, ring_at)?;
    let is_beyond = words.tail.load(Ordering::Acquire) != position;
    // A page that is gone reads as zeros: an empty ring is not what is there.
    check_not_truncated(shared)?;
    Ok(is_beyond)
}

fn check_not_truncated(shared: &Shared) -> Result<()> {
    if !shared.map.is_damaged() {
        return Ok(());
    }
    Err(Error::Damaged { detail: "its file was truncated while it was attached".to_owned() })
}
