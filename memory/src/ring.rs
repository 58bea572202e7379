//! Event rings in the heap, which watchers read
//! (`spec/region.md`, section 10). Writers append under the ring's lock. Readers take no lock. A
//! slow reader learns how many entries it missed.
//!
//! A ring is never freed after its offset was published, so readers need no pin.

mod any;
pub(crate) mod words;

use std::sync::Arc;
use std::time::{Duration, Instant};

use nearstate_model::limits::{
    RING_BYTES_MAX, RING_BYTES_MIN, WATCH_RING_BYTES_MAX, WATCH_RING_SHARE,
};
use nearstate_model::{Error, Result, invariant};

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::heap::cell::{self, Cell, CellHeader, CellKind};
use crate::layout::{CATALOG_RING, CHUNK_BYTES, Corruption, LINE, catalog_at};
use crate::member::Member;
use crate::member::arena::{LockSlot, close_undo_record, op, undo, write_undo};
use crate::region::catalog::check_namespace;
use crate::region::file::Shared;
use crate::region::index_table::IndexTable;
use crate::region::map::Map;
use crate::ring::words::{EntryRead, RingWords, entry_words, must_wake_waiters, register_waiter};
use crate::system::{futex_wait, futex_wake};

/// The ring's lock word: owner, and a payload of 0.
const RING_LOCK: u64 = LINE;
/// Three words: reserved, tail, oldest.
const RING_POSITIONS: u64 = 2 * LINE;
/// The futex word of the waiters.
const RING_WAITERS: u64 = 3 * LINE;
/// A line that is not used.
const RING_UNUSED: u64 = 4 * LINE;
/// Where the words begin.
const RING_WORDS: u64 = 5 * LINE;

const _: () = assert!(RING_LOCK + LINE == RING_POSITIONS && RING_POSITIONS + LINE == RING_WAITERS);
const _: () = assert!(RING_WAITERS + 2 * LINE == RING_WORDS);
const _: () = assert!(RING_BYTES_MIN <= RING_BYTES_MAX && RING_BYTES_MIN.is_multiple_of(8));

/// Words that a new ring has reserved: those of the first entry's number.
const RESERVED_FIRST: u64 = 2;

/// The longest single sleep of a waiter. A writer that was killed between its append and its
/// wake-up does not wake waiters, although the entry exists.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// The position at which a reader of a ring begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingStart {
    /// At the next entry that is appended.
    Tail,
    /// At the oldest entry that exists.
    Oldest,
}

/// The result of reading one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingRead {
    /// An entry. Its payload is in the caller's buffer.
    Entry {
        /// Its number: one more than that of the entry before.
        number: u64,
    },
    /// No new entry.
    Empty,
    /// Entries were overwritten before they were read. The reader continues with entries that are
    /// appended from now on, because a caller that missed events has to start over anyway.
    Lost {
        /// The number of missed entries.
        entries: u64,
    },
}

/// Allocates and fills a ring of at least `capacity_bytes`: a pending cell that no other member can
/// reach yet.
pub(crate) fn create(member: &Member, capacity_bytes: u64) -> Result<u64> {
    if !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&capacity_bytes) {
        return Err(Error::BadArgument {
            detail: format!(
                "a ring of {capacity_bytes} bytes: give it {RING_BYTES_MIN} to {RING_BYTES_MAX}"
            ),
        });
    }
    let at = member.allocate_fixed(RING_WORDS + capacity_bytes)?;
    fill(member.map(), at)?;
    crash_point!("ring.sealed");
    Ok(at)
}

fn fill(map: &Map, at: u64) -> Result<(), Corruption> {
    // The whole cell is used.
    let bytes = cell::bytes_at(map, at)?;
    let body = (bytes - cell::CELL_HEADER_BYTES) as u32;
    cell::begin(
        map,
        at,
        &CellHeader {
            kind: CellKind::Ring,
            flags: 0,
            namespace: 0,
            body,
            key: 0,
            children: 0,
            hash: 0,
        },
    )?;
    for which in (LINE..RING_WORDS + 2 * 8).step_by(8) {
        map.word(at + which)?.store(0, Ordering::Relaxed);
    }
    map.word(at + RING_POSITIONS)?.store(RESERVED_FIRST, Ordering::Relaxed);
    cell::seal(map, at, (bytes - RING_WORDS) / 8, 0)
}

/// The size of the watch ring of the namespace with this number, in a heap of this size.
const fn watch_ring_bytes(heap_bytes: u64, entry: u32) -> u64 {
    let share = heap_bytes / WATCH_RING_SHARE / (entry as u64 + 1);
    match share {
        ..RING_BYTES_MIN => RING_BYTES_MIN,
        RING_BYTES_MIN..WATCH_RING_BYTES_MAX => share,
        WATCH_RING_BYTES_MAX.. => WATCH_RING_BYTES_MAX,
    }
}

/// The offset of a ring's lock word. Every append takes it.
pub(crate) const fn lock_at(ring_at: u64) -> u64 {
    ring_at.saturating_add(RING_LOCK)
}

/// The words of the ring at an offset. Reports corruption if there is none.
fn words_at(map: &Map, ring_at: u64) -> Result<RingWords<'_>, Corruption> {
    let cell = Cell::new(map, ring_at)?;
    if cell.kind()? != CellKind::Ring {
        return Err(Corruption("an offset of a ring leads to something else"));
    }
    let capacity = cell.version();
    if capacity < RING_BYTES_MIN / 8 {
        return Err(Corruption("a ring is smaller than the smallest one"));
    }
    if capacity.saturating_mul(8).saturating_add(RING_WORDS) > cell::bytes_at(map, ring_at)? {
        return Err(Corruption("a ring is larger than its cell"));
    }
    let [reserved, tail, oldest] = map.words(ring_at + RING_POSITIONS)?;
    let words = map.slice(ring_at + RING_WORDS, capacity)?;
    debug_assert_eq!(words.len() as u64, capacity, "the slice is the ring");
    Ok(RingWords { reserved, tail, oldest, words })
}

/// The current tail: the `tail_before` of an append. The caller holds the ring's lock.
pub(crate) fn tail(map: &Map, ring_at: u64) -> Result<u64, Corruption> {
    Ok(words_at(map, ring_at)?.tail.load(Ordering::Acquire))
}

/// False if an entry of this size can never be appended: an entry may fill a quarter of its ring.
pub(crate) fn fits(map: &Map, ring_at: u64, bytes: u64) -> Result<bool, Corruption> {
    Ok(entry_words(bytes) <= words_at(map, ring_at)?.entry_words_max())
}

/// Appends `bytes` bytes from `source_at` in the region, unless they were appended before: then the
/// tail is no longer `tail_before`. Called under the ring's lock, or by the recoverer of its owner.
/// A kill can interrupt it anywhere, and another process can repeat it.
pub(crate) fn append(
    map: &Map,
    ring_at: u64,
    tail_before: u64,
    source_at: u64,
    bytes: u64,
) -> Result<(), Corruption> {
    words_at(map, ring_at)?.append(tail_before, map.bytes(source_at, bytes)?)
}

/// Wakes the waiters of the ring. A system call if there are any, else a fence and a load. Called
/// after the append, with or without the lock.
pub(crate) fn wake(map: &Map, ring_at: u64) -> Result<(), Corruption> {
    let word = map.word(ring_at.saturating_add(RING_WAITERS))?;
    if must_wake_waiters(word) {
        futex_wake(word);
    }
    Ok(())
}

/// For the offline check: reports what contradicts itself in a ring that is not in use.
pub(crate) fn validate(map: &Map, ring_at: u64) -> Result<(), Corruption> {
    let words = words_at(map, ring_at)?;
    if map.word(lock_at(ring_at))?.load(Ordering::Acquire) != 0 {
        return Err(Corruption("a ring is locked, and its owner is not alive"));
    }
    for at in (ring_at + RING_UNUSED..ring_at + RING_WORDS).step_by(8) {
        if map.word(at)?.load(Ordering::Acquire) != 0 {
            return Err(Corruption("the unused line of a ring is not zero"));
        }
    }
    let tail = words.tail.load(Ordering::Acquire);
    if words.reserved.load(Ordering::Acquire) < tail.saturating_add(RESERVED_FIRST) {
        return Err(Corruption("a ring has reserved less than it has"));
    }
    let (mut at, mut expected) = words.position_at(words.oldest)?;
    let (_, last) = words.position_at(words.tail)?;
    let mut payload = Vec::new();
    while let EntryRead::Entry { number, end } = words.read_at(at, &mut payload)? {
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
    /// The ring of a namespace's watchers, if it exists.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn watch_ring(&self, table: &IndexTable) -> Result<Option<u64>> {
        self.ring_in(catalog_at(table.index()) + CATALOG_RING)
    }

    /// The size of the ring that [`Member::open_watch_ring`] creates for a namespace. It falls with
    /// the number of the catalog entry, from [`WATCH_RING_BYTES_MAX`] to [`RING_BYTES_MIN`].
    pub fn watch_ring_bytes(&self, table: &IndexTable) -> u64 {
        watch_ring_bytes(self.map().chunks().saturating_mul(CHUNK_BYTES), table.index())
    }

    /// The largest entry of a ring, in bytes.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn ring_entry_bytes_max(&self, ring_at: u64) -> Result<usize> {
        Ok(words_at(self.map(), ring_at)?.entry_bytes_max())
    }

    /// The ring of a namespace's watchers. Creates it with this capacity if it does not exist. No
    /// cell may be pending.
    ///
    /// # Errors
    /// `BadArgument` for a size that no ring has, `Full`, `Stalled`, `Damaged`, `Forked`.
    pub fn open_watch_ring(&self, table: &IndexTable, capacity_bytes: u64) -> Result<u64> {
        self.open_ring(catalog_at(table.index()) + CATALOG_RING, capacity_bytes)
    }

    /// The ring whose offset is in a word, if there is one.
    #[inline]
    fn ring_in(&self, word_at: u64) -> Result<Option<u64>> {
        // Acquire, pairs with the store in `open_ring`: the ring is filled (O1).
        let at = self.map().word(word_at)?.load(Ordering::Acquire);
        Ok((at != 0).then_some(at))
    }

    /// Finds a ring, or creates it and publishes it in the word. Of several concurrent creators the
    /// first one wins; the others free their cells.
    fn open_ring(&self, word_at: u64, capacity_bytes: u64) -> Result<u64> {
        self.check_usable()?;
        if let Some(published) = self.ring_in(word_at)? {
            return Ok(published);
        }
        invariant!(self.has_no_lock(), "a ring is created while this member holds a lock");
        self.operation(|| {
            let arena = self.arena();
            let word = self.map().word(word_at)?;
            let at = match create(self, capacity_bytes) {
                Ok(at) => at,
                Err(error) => {
                    self.free_pending()?;
                    return Err(error);
                }
            };
            invariant!(at != 0, "a ring at offset 0 would look like none");
            write_undo(&arena, word_at, 0, at, op::SET_ONCE);
            crash_point!("ring.recorded");
            match word.compare_exchange(0, at, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    crash_point!("ring.published");
                    close_undo_record(&arena);
                    crash_point!("ring.finished");
                    Ok(at)
                }
                Err(published) => {
                    arena.set(undo::OP, op::NONE);
                    self.free_pending()?;
                    Ok(published)
                }
            }
        })
    }

    /// Appends an entry outside of a transaction, and wakes the waiters. False if the ring rejects
    /// it: it is larger than a quarter of the ring. After a kill the entry exists or not.
    ///
    /// # Errors
    /// `Stalled`, `Damaged`, `Forked`.
    pub fn append_to_ring(&self, ring_at: u64, payload: &[u8]) -> Result<bool> {
        self.check_usable()?;
        self.operation(|| {
            let map = self.map();
            let words = words_at(map, ring_at)?;
            let bytes = payload.len() as u64;
            if !fits(map, ring_at, bytes)? {
                return Ok(false);
            }
            self.acquire(lock_at(ring_at), LockSlot::Leaf)?;
            let done = tail(map, ring_at).and_then(|tail| words.append(tail, payload));
            self.release(lock_at(ring_at), LockSlot::Leaf, 0)?;
            wake(map, ring_at)?;
            self.check_not_truncated()?;
            done?;
            Ok(true)
        })
    }

    /// Creates a reader of a ring.
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
        };
        let (at, expected) = words.position_at(place)?;
        Ok(RingReader { shared: Arc::clone(self.shared()), ring_at, at, expected })
    }
}

/// Reads a ring. Independent of the session that created it, and can move to another thread. A
/// clone continues at the same position.
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
    /// Reads the next entry: its payload replaces the content of `out`. Never blocks, and never
    /// delays a writer. Cost: the lines of the entry and one line of the ring.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn next(&mut self, out: &mut Vec<u8>) -> Result<RingRead> {
        out.clear();
        self.check_usable()?;
        let words = words_at(&self.shared.map, self.ring_at)?;
        let read = words.read_at(self.at, out)?;
        // A missing page reads as zeros, which look like an empty ring.
        self.check_not_truncated()?;
        match read {
            EntryRead::Empty => Ok(RingRead::Empty),
            EntryRead::Entry { number, end } if number == self.expected => {
                invariant!(end > self.at, "an entry at {} ends at {end}", self.at);
                (self.at, self.expected) = (end, number.wrapping_add(1));
                Ok(RingRead::Entry { number })
            }
            EntryRead::Entry { .. } => {
                out.clear();
                Err(Error::from(Corruption("an entry of a ring has another number than its place")))
            }
            EntryRead::Overwritten => {
                let (at, number) = words.position_at(words.tail)?;
                let entries = number.wrapping_sub(self.expected);
                if number <= self.expected || at <= self.at {
                    return Err(Error::from(Corruption("a ring wrapped around without an entry")));
                }
                (self.at, self.expected) = (at, number);
                Ok(RingRead::Lost { entries })
            }
        }
    }

    /// Checks that the namespace whose ring this is was not removed: the ring serves the next
    /// namespace of its catalog entry.
    ///
    /// # Errors
    /// `BadArgument`: it was removed; `Damaged`.
    pub fn check_namespace(&self, namespace: u32) -> Result<()> {
        check_namespace(&self.shared.map, namespace)
    }

    /// Waits until there is an entry to read, for at most `timeout`. True if there is one. Any
    /// number of processes can wait. While one sleeps, each append costs its writer a system call.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn wait(&self, timeout: Duration) -> Result<bool> {
        wait_beyond(&self.shared, self.ring_at, self.at, timeout, || false)
    }

    /// A waiter for this reader, for another thread.
    pub fn waiter(&self) -> RingWaiter {
        RingWaiter { shared: Arc::clone(&self.shared), ring_at: self.ring_at }
    }

    /// The position of the next entry, for [`RingWaiter`].
    pub const fn position(&self) -> u64 {
        self.at
    }

    /// The number of entries that this reader has not read yet, overwritten ones included.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn backlog(&self) -> Result<u64> {
        self.check_usable()?;
        let words = words_at(&self.shared.map, self.ring_at)?;
        let (_, number) = words.position_at(words.tail)?;
        Ok(number.saturating_sub(self.expected))
    }

    fn check_usable(&self) -> Result<()> {
        if self.shared.map.is_forked() { Err(Error::Forked) } else { self.check_not_truncated() }
    }

    fn check_not_truncated(&self) -> Result<()> {
        self.shared.check_not_truncated()
    }
}

/// Waits at a ring for a reader of another thread. Several threads can use it at the same time.
#[derive(Clone, Debug)]
pub struct RingWaiter {
    shared: Arc<Shared>,
    ring_at: u64,
}

impl RingWaiter {
    /// Waits until the ring has an entry at or after a position, for at most `timeout`, or until
    /// `is_over` returns true. That is evaluated again after each [`RingWaiter::wake`]. True if
    /// there is such an entry.
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

    /// Wakes all waiters of the ring. Each evaluates its condition again.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn wake(&self) -> Result<()> {
        Ok(wake(&self.shared.map, self.ring_at)?)
    }

    /// True in a process that was forked from the one that attached.
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
    let started = Instant::now();
    let word = shared.map.word(ring_at.saturating_add(RING_WAITERS))?;
    loop {
        if shared.map.is_forked() {
            return Err(Error::Forked);
        }
        if is_beyond(shared, ring_at, position)? {
            return Ok(true);
        }
        let left = timeout.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Ok(false);
        }
        let ticket = register_waiter(word);
        // After the bit was set: a thread that ends the wait after this call finds the bit, and
        // wakes.
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
    // A missing page reads as zeros, which look like an empty ring.
    shared.check_not_truncated()?;
    Ok(is_beyond)
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;
