//! The words of a ring and the protocol of its one writer and its readers (`spec/region.md`,
//! section 10). The writer holds the ring's lock. Readers hold nothing and cost the writer nothing.
//!
//! ```text
//! writer (holds the ring's lock)            reader
//! W1  reserved = end of what it writes      R1  t = tail            (acquire, pairs with W4)
//! W2  fence release                         R2  copy the words of an entry before t
//! W3  replace the words                     R3  fence acquire       (pairs with W2)
//! W4  tail = new tail         (release)     R4  keep the copy only if reserved has not come
//!                                               around to it
//! ```
//!
//! If R2 reads any word of W3, R3 synchronizes with W2, so R4 reads at least W1 and drops the copy.
//! A word cannot be torn, only a set of words, and R4 rejects exactly that.
//!
//! Positions count words since the ring was created and never wrap. The word after the tail's holds
//! the number of the next entry, so a tail and its number are consistent: a writer that was killed
//! between W1 and W4 is repeated with the same number.
//!
//! ```text
//! waiter                                    writer after an append
//! S1  word |= 1                             A1  tail = new tail      (W4)
//! S2  fence                                 A2  fence
//! S3  sleep only if the tail is the old one A3  word is odd: make it even and wake all
//!     and the word is still the one of S1
//! ```
//!
//! Either A3 sees S1 or S3 sees A1, so no waiter sleeps although there is an entry. One bit instead
//! of a count: a killed waiter costs one superfluous wake-up, and not one for each append.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use nearstate_model::invariant;

use crate::atomic::{AtomicU64, Ordering, fence, mutant};
use crate::crash::crash_point;
use crate::layout::Corruption;

/// Words before an entry's payload: its size and checksum, and its number.
pub(crate) const ENTRY_HEADER_WORDS: u64 = 2;

/// Words after the tail that an append writes as well: the size of the next entry, which stays as
/// it is, and its number.
const NEXT_HEADER_WORDS: u64 = 2;

/// An entry fills at most this fraction of its ring, so that a reader that is at most three entries
/// behind keeps up.
const ENTRY_FRACTION: u64 = 4;

/// Bytes of a word.
const WORD: usize = 8;

/// How often a reader looks for the tail before it reports a ring as corrupt. Each failure means
/// that the writer wrote the whole ring between two loads.
const READS_MAX: u32 = 16;

/// The highest tail. A writer of one GiB per second reaches it in three hundred years.
const POSITION_MAX: u64 = 1 << 60;

const _: () =
    assert!(ENTRY_HEADER_WORDS == 2 && NEXT_HEADER_WORDS == ENTRY_HEADER_WORDS, "size and number");
const _: () = assert!(ENTRY_FRACTION >= 2, "an entry leaves room for another");
const _: () = assert!(entry_words(0) == 2 && entry_words(1) == 3 && entry_words(8) == 3);

const POSITIONS_CORRUPT: Corruption = Corruption("a ring's positions contradict each other");

/// The result of reading at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryRead {
    /// An entry.
    Entry {
        /// Its number.
        number: u64,
        /// The position after it.
        end: u64,
    },
    /// No entry yet.
    Empty,
    /// The entry was overwritten.
    Overwritten,
}

/// The words of one ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingWords<'m> {
    /// End of the words that a writer may have changed.
    pub(crate) reserved: &'m AtomicU64,
    /// End of the entries.
    pub(crate) tail: &'m AtomicU64,
    /// Start of the oldest complete entry.
    pub(crate) oldest: &'m AtomicU64,
    /// The ring itself.
    pub(crate) words: &'m [AtomicU64],
}

/// Words of an entry with a payload of this size.
#[inline]
pub(crate) const fn entry_words(bytes: u64) -> u64 {
    ENTRY_HEADER_WORDS + bytes.div_ceil(WORD as u64)
}

/// The checksum of an entry: it covers the payload, the number and the position, so that an old
/// entry is not mistaken for a new one.
fn entry_checksum(payload: &[u8], number: u64, at: u64) -> u64 {
    let place = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at.rotate_left(32);
    xxh3_64_with_seed(payload, place) & 0xffff_ffff
}

#[inline]
fn store_word(place: Option<&AtomicU64>, value: u64) {
    let Some(place) = place else { invariant!("an entry is longer than its ring") };
    place.store(value, Ordering::Relaxed);
}

impl RingWords<'_> {
    const fn capacity(&self) -> u64 {
        self.words.len() as u64
    }

    /// Words of the largest entry.
    pub(crate) const fn entry_words_max(&self) -> u64 {
        self.capacity() / ENTRY_FRACTION
    }

    /// Payload bytes of the largest entry.
    pub(crate) const fn entry_bytes_max(&self) -> usize {
        self.entry_words_max().saturating_sub(ENTRY_HEADER_WORDS) as usize * WORD
    }

    /// The words from a position on, for one round. Empty if the ring has no words. It costs one
    /// division, the largest cost of an access, so each function iterates once.
    fn words_from(&self, at: u64) -> impl Iterator<Item = &AtomicU64> {
        let index = at.checked_rem(self.capacity()).unwrap_or(0) as usize;
        let (before, after) = self.words.split_at_checked(index).unwrap_or_default();
        after.iter().chain(before)
    }

    fn load(&self, at: u64) -> u64 {
        self.words_from(at).next().map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Appends an entry, unless it was appended before: then the tail is no longer `tail_before`.
    /// The caller holds the ring's lock. Can be interrupted anywhere and repeated by another
    /// process.
    pub(crate) fn append(&self, tail_before: u64, payload: &[u8]) -> Result<(), Corruption> {
        if self.tail.load(Ordering::Acquire) != tail_before {
            return Ok(());
        }
        let words = entry_words(payload.len() as u64);
        if words > self.entry_words_max() {
            return Err(Corruption("an entry is larger than a quarter of its ring"));
        }
        if tail_before > POSITION_MAX {
            return Err(POSITIONS_CORRUPT);
        }
        let tail = tail_before + words;
        self.reserve(tail_before, tail + NEXT_HEADER_WORDS);
        // W3.
        let mut places = self.words_from(tail_before);
        let (Some(head), Some(place)) = (places.next(), places.next()) else {
            return Err(POSITIONS_CORRUPT);
        };
        let number = place.load(Ordering::Relaxed);
        let check = entry_checksum(payload, number, tail_before);
        head.store((payload.len() as u64) << 32 | check, Ordering::Relaxed);
        crash_point!("entry.headed");
        let (whole, rest) = payload.as_chunks::<WORD>();
        for chunk in whole {
            store_word(places.next(), u64::from_le_bytes(*chunk));
        }
        if !rest.is_empty() {
            store_word(
                places.next(),
                rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
            );
        }
        crash_point!("entry.written");
        store_word(places.nth(1), number.wrapping_add(1));
        crash_point!("entry.numbered");
        // W4.
        let order = if mutant("tail-relaxed") { Ordering::Relaxed } else { Ordering::Release };
        self.tail.store(tail, order);
        crash_point!("entry.appended");
        Ok(())
    }

    /// W1 and W2, and the oldest remaining entry. A ring whose old words are corrupt drops them:
    /// its writer is past its commit and must not fail.
    fn reserve(&self, tail: u64, end: u64) {
        invariant!(tail < end, "an append from {tail} to {end} reserves nothing");
        let oldest_kept = end.saturating_sub(self.capacity());
        let mut oldest = self.oldest.load(Ordering::Acquire);
        if oldest > tail || tail - oldest > self.capacity() {
            oldest = tail;
        }
        while oldest < oldest_kept {
            let words = entry_words(self.load(oldest) >> 32);
            if words > self.entry_words_max() || oldest + words > tail {
                oldest = tail;
            } else {
                oldest += words;
            }
        }
        invariant!(
            oldest_kept <= oldest && oldest <= tail,
            "entry {oldest} is kept, and words from {oldest_kept} to {tail} are valid"
        );
        self.oldest.store(oldest, Ordering::Release);
        crash_point!("entry.oldest");
        // An interrupted append that was not repeated may have changed more words than this one
        // will.
        let before = self.reserved.load(Ordering::Relaxed);
        let is_sound = before <= tail.saturating_add(self.entry_words_max() + NEXT_HEADER_WORDS);
        let reserved = if is_sound { before.max(end) } else { end };
        if !mutant("reserve-late") {
            self.reserved.store(reserved, Ordering::Relaxed);
        }
        if !mutant("reserve-no-fence") {
            fence(Ordering::Release);
        }
        if mutant("reserve-late") {
            self.reserved.store(reserved, Ordering::Relaxed);
        }
        crash_point!("entry.reserved");
    }

    /// R3 and R4: true if the words read from `at` on, before a tail that was read before them,
    /// were not overwritten.
    fn is_intact(&self, at: u64, tail: u64) -> Result<bool, Corruption> {
        if !mutant("intact-no-fence") {
            fence(Ordering::Acquire);
        }
        let reserved = self.reserved.load(Ordering::Relaxed);
        if reserved < tail || at > tail {
            return Err(POSITIONS_CORRUPT);
        }
        Ok(mutant("intact-unchecked") || reserved - at <= self.capacity())
    }

    /// Copies the payload of the entry at `at` into `out`, which is cleared first.
    pub(crate) fn read_at(&self, at: u64, out: &mut Vec<u8>) -> Result<EntryRead, Corruption> {
        out.clear();
        // R1.
        let order = if mutant("read-relaxed") { Ordering::Relaxed } else { Ordering::Acquire };
        let tail = self.tail.load(order);
        if at == tail {
            return Ok(EntryRead::Empty);
        }
        // R2, the head. Its size is used only after the check that it is one.
        let mut places = self.words_from(at);
        let [head, number] =
            [places.next(), places.next()].map(|p| p.map_or(0, |p| p.load(Ordering::Relaxed)));
        if !self.is_intact(at, tail)? {
            return Ok(EntryRead::Overwritten);
        }
        let bytes = head >> 32;
        let end = at.saturating_add(entry_words(bytes));
        if end - at > self.entry_words_max() || end > tail {
            return Err(Corruption("an entry of a ring has a size that none has"));
        }
        // R2, the payload.
        out.reserve(bytes as usize + WORD);
        for place in places.take((end - at - ENTRY_HEADER_WORDS) as usize) {
            out.extend_from_slice(&place.load(Ordering::Relaxed).to_le_bytes());
        }
        out.truncate(bytes as usize);
        if !self.is_intact(at, tail)? {
            out.clear();
            return Ok(EntryRead::Overwritten);
        }
        if entry_checksum(out, number, at) != head & 0xffff_ffff {
            out.clear();
            return Err(Corruption("an entry of a ring is not as it was written (checksum)"));
        }
        Ok(EntryRead::Entry { number, end })
    }

    /// The position in `place`, where an entry begins or will begin, and its number.
    pub(crate) fn position_at(&self, place: &AtomicU64) -> Result<(u64, u64), Corruption> {
        for _ in 0..READS_MAX {
            let at = place.load(Ordering::Acquire);
            let tail = self.tail.load(Ordering::Acquire);
            let number = self.load(at.wrapping_add(1));
            if self.is_intact(at, tail)? {
                return Ok((at, number));
            }
        }
        Err(POSITIONS_CORRUPT)
    }
}

/// Set in the futex word while there may be waiters.
const WAITING: u64 = 1;

/// S1 and S2. Returns the value that the word must still have when the caller falls asleep: its low
/// half, which the kernel compares. The caller reads the tail between the two.
pub(crate) fn register_waiter(word: &AtomicU64) -> u32 {
    let seen = word.fetch_or(WAITING, Ordering::AcqRel) | WAITING;
    if !mutant("register_waiter-no-fence") {
        fence(Ordering::SeqCst);
    }
    seen as u32
}

/// A2 and A3. True if a waiter may sleep and the caller has to wake it.
pub(crate) fn must_wake_waiters(word: &AtomicU64) -> bool {
    if !mutant("wake-no-fence") {
        fence(Ordering::SeqCst);
    }
    let seen = word.load(Ordering::Relaxed);
    // If the swap fails, another thread wakes the same waiters, and they look again.
    seen & WAITING != 0
        && word
            .compare_exchange(seen, seen.wrapping_add(1), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: usize = 64;

    struct TestRing {
        places: [AtomicU64; 3],
        words: Vec<AtomicU64>,
    }

    impl TestRing {
        fn new() -> Self {
            Self {
                places: [AtomicU64::new(2), AtomicU64::new(0), AtomicU64::new(0)],
                words: (0..CAPACITY).map(|_| AtomicU64::new(0)).collect(),
            }
        }

        fn ring(&self) -> RingWords<'_> {
            let [reserved, tail, oldest] = &self.places;
            RingWords { reserved, tail, oldest, words: &self.words }
        }

        fn tail(&self) -> u64 {
            self.places[1].load(Ordering::Relaxed)
        }

        fn copy(&self) -> Self {
            let twin = |word: &AtomicU64| AtomicU64::new(word.load(Ordering::Relaxed));
            Self {
                places: self.places.each_ref().map(twin),
                words: self.words.iter().map(twin).collect(),
            }
        }

        fn all(&self) -> Vec<u64> {
            self.places.iter().chain(&self.words).map(|word| word.load(Ordering::Relaxed)).collect()
        }
    }

    /// A payload of 0 to 111 bytes that depends on its number.
    fn payload(number: u64) -> Vec<u8> {
        (0..number * 37 % 112).map(|byte| (byte ^ number) as u8).collect()
    }

    #[test]
    fn entries_are_read_in_order_from_the_oldest_one() {
        let own = TestRing::new();
        let ring = own.ring();
        let (mut at, mut out) = (0, Vec::new());
        for number in 0..5000 {
            ring.append(own.tail(), &payload(number)).unwrap();
            let Ok(EntryRead::Entry { number: seen, end }) = ring.read_at(at, &mut out) else {
                panic!("entry {number} is not at {at}");
            };
            assert_eq!((seen, &out), (number, &payload(number)));
            at = end;
            assert_eq!(ring.read_at(at, &mut out), Ok(EntryRead::Empty));
            // Every entry from the oldest one up to the tail exists.
            let (mut from, first) = ring.position_at(ring.oldest).unwrap();
            for expected in first..=number {
                let look = ring.read_at(from, &mut out);
                let Ok(EntryRead::Entry { number: seen, end }) = look else { panic!("{look:?}") };
                assert_eq!((seen, &out), (expected, &payload(expected)));
                from = end;
            }
            assert_eq!(from, own.tail());
            assert!(number < 30 || number - first > 2, "almost no entry is kept");
        }
        assert_eq!(ring.read_at(0, &mut out), Ok(EntryRead::Overwritten));
    }

    #[test]
    fn an_append_that_is_interrupted_at_any_store_and_repeated_is_the_same_append() {
        let own = TestRing::new();
        for number in 0..200 {
            let before = own.copy();
            let (tail, bytes) = (own.tail(), payload(number));
            own.ring().append(tail, &bytes).unwrap();
            // A kill leaves some of the stores. The set of stored words is random. The positions
            // are stored in their order (oldest, reserved, words, tail).
            for cut in 0..40_u64 {
                let torn = before.copy();
                let adopt = |to: &AtomicU64, from: &AtomicU64| {
                    to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
                };
                if cut > 0 {
                    adopt(&torn.places[2], &own.places[2]);
                }
                if cut > 1 {
                    adopt(&torn.places[0], &own.places[0]);
                    for (index, (to, from)) in torn.words.iter().zip(&own.words).enumerate() {
                        if (index as u64 ^ cut).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 1 {
                            adopt(to, from);
                        }
                    }
                }
                torn.ring().append(tail, &bytes).unwrap();
                assert_eq!(torn.all(), own.all(), "entry {number}, cut {cut}");
                torn.ring().append(tail, &bytes).unwrap();
                assert_eq!(torn.all(), own.all(), "a second repetition changes nothing");
            }
        }
    }

    #[test]
    fn an_append_after_a_longer_abandoned_one_hides_the_words_that_that_one_destroyed() {
        let own = TestRing::new();
        let ring = own.ring();
        for number in 0..20 {
            ring.append(own.tail(), &[number; 40]).unwrap();
        }
        let (at, first) = ring.position_at(ring.oldest).unwrap();
        // A large append reserves and destroys the oldest words, and is never completed.
        let tail = own.tail();
        ring.reserve(tail, tail + ring.entry_words_max() + NEXT_HEADER_WORDS);
        store_word(ring.words_from(tail + ring.entry_words_max()).next(), 0xdead);
        ring.append(tail, b"x").unwrap();
        let mut out = Vec::new();
        assert_eq!(ring.read_at(at, &mut out), Ok(EntryRead::Overwritten));
        let (mut at, mut number) = ring.position_at(ring.oldest).unwrap();
        assert!(number > first);
        while let Ok(EntryRead::Entry { number: seen, end }) = ring.read_at(at, &mut out) {
            assert_eq!(seen, number);
            (at, number) = (end, number + 1);
        }
        assert_eq!((at, number), (own.tail(), 21));
    }

    #[test]
    fn too_large_an_entry_is_rejected() {
        let own = TestRing::new();
        let ring = own.ring();
        let largest = (ring.entry_words_max() - ENTRY_HEADER_WORDS) * 8;
        assert!(ring.append(0, &vec![0; largest as usize + 1]).is_err());
        ring.append(0, &vec![1; largest as usize]).unwrap();
        let mut out = Vec::new();
        let end = ring.entry_words_max();
        assert_eq!(ring.read_at(0, &mut out), Ok(EntryRead::Entry { number: 0, end }));
    }

    #[test]
    fn any_words_are_entries_or_corruption_and_appends_continue() {
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut roll = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        for round in 0..3000_u64 {
            let own = TestRing::new();
            for number in 0..round % 40 {
                own.ring().append(own.tail(), &payload(number)).unwrap();
            }
            for _ in 0..=round % 3 {
                let place = roll() as usize % (CAPACITY + 3);
                let word = own.places.iter().chain(&own.words).nth(place).unwrap();
                let value = if round % 2 == 0 {
                    word.load(Ordering::Relaxed) ^ 1 << (roll() % 64)
                } else {
                    [0, u64::MAX, roll(), roll() % 100][roll() as usize % 4]
                };
                word.store(value, Ordering::Relaxed);
            }
            let ring = own.ring();
            let mut out = Vec::new();
            for place in [ring.tail, ring.oldest] {
                let Ok((mut at, _)) = ring.position_at(place) else { continue };
                let mut steps = 0;
                while let Ok(EntryRead::Entry { end, .. }) = ring.read_at(at, &mut out) {
                    assert!(end > at);
                    at = end;
                    steps += 1;
                    assert!(steps <= CAPACITY, "a walk does not end");
                }
            }
            for number in 0..60 {
                let _ = ring.append(own.tail(), &payload(number));
            }
        }
    }
}
