//! The words of the log: how writers draw and claim positions, and how consumers read them
//! (`docs/decisions/021-log.md`).
//!
//! ```text
//! writer, with all locks held               reader of the log, with a pin
//! L2  tail += 1: position p                 C1  w = word[p]              (acquire)
//! L3  T.position = p                        C2  floor > p: p is lost     (acquire)
//! L4  word[p]: CAS earlier round -> T       C3  w of an earlier round: CAS w -> void
//! L5  T.status: CAS 0 -> 1                  C4  T.status: CAS 0 -> 2
//!                                           C5  T.status 1: an entry; 2: a hole
//! F1  floor = max(floor, f)    then what entries below f hold is retired
//! ```
//!
//! F1 is what unlinks T: its owner retires it after it has seen the floor behind p. If C2 does not
//! see F1, the pin of C1 precedes the retirement, and T is protected.

use crate::atomic::{AtomicU64, Ordering, mutant};

/// Bits of a word of the log: `round:20 | state:2 | units:42`.
const UNITS_BITS: u32 = 42;
const UNITS: u64 = (1 << UNITS_BITS) - 1;
const ROUND_SHIFT: u32 = 44;
/// The number of rounds that are told apart.
const ROUNDS: u64 = 1 << (u64::BITS - ROUND_SHIFT);
const CLAIMED: u64 = 1 << UNITS_BITS;
const VOID: u64 = 2 << UNITS_BITS;
const STATE: u64 = 3 << UNITS_BITS;

/// Positions that are left when the ring is full: each session may draw one at the same time, and
/// 4,096 are for entries of the log itself.
pub(crate) const WORDS_RESERVED: u64 = 20_480;

const _: () = assert!(UNITS_BITS + 2 == ROUND_SHIFT, "a word has units, a state and a round");
const _: () = assert!(CLAIMED | VOID == STATE && CLAIMED & VOID == 0, "states are told apart");

/// The words that writers and readers of the log exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogWords<'m> {
    /// The highest position that was drawn.
    pub(crate) tail: &'m AtomicU64,
    /// The lowest position that is kept.
    pub(crate) floor: &'m AtomicU64,
    /// The ring: a power of two.
    pub(crate) ring: &'m [AtomicU64],
}

/// The result of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The word names the transaction.
    Made,
    /// The word was void before, or belongs to a later round: draw again.
    Missed,
    /// The log keeps the entry of the word's last round.
    Full,
}

/// What a position holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogSlot {
    /// Nothing was drawn there yet.
    Unused,
    /// It was drawn and is not claimed. The word is still this one.
    Drawn(u64),
    /// The transaction in these units.
    Claimed(u64),
    /// Nothing, for ever.
    Hole,
    /// The floor has passed it.
    Lost,
}

impl LogWords<'_> {
    /// The round of a position. That of a ring whose words are 0 precedes the first one.
    #[inline]
    const fn round(&self, position: u64) -> u64 {
        // A division by a number that the compiler does not know as a power of two is slow.
        debug_assert!(self.ring.len().is_power_of_two(), "a round is a power of two of positions");
        ((position >> self.ring.len().trailing_zeros()) + 1) % ROUNDS
    }

    #[inline]
    fn word(&self, position: u64) -> &AtomicU64 {
        debug_assert!(self.ring.len().is_power_of_two(), "positions have their words in turn");
        let index = position as usize & (self.ring.len() - 1);
        nearstate_model::invariant::guaranteed(
            self.ring.get(index),
            "the ring has a power of two of words",
        )
    }

    fn tagged(&self, position: u64, state: u64) -> u64 {
        self.round(position) << ROUND_SHIFT | state
    }

    /// True if the word was stored for a position of an earlier round.
    const fn is_earlier(&self, word: u64, position: u64) -> bool {
        let distance = self.round(position).wrapping_sub(word >> ROUND_SHIFT) % ROUNDS;
        distance != 0 && distance < ROUNDS / 2
    }

    /// L2. All locks of the transaction are held: its position is behind those of all
    /// transactions on which it depends.
    #[inline]
    pub(crate) fn draw(&self) -> u64 {
        self.tail.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// True if the ring has words left for entries, given a tail: without those in reserve.
    #[inline]
    pub(crate) fn has_words(&self, tail: u64) -> bool {
        let words = self.ring.len() as u64;
        debug_assert!(words > WORDS_RESERVED, "the smallest log exceeds the reserve");
        tail.saturating_sub(self.floor.load(Ordering::Acquire)) < words - WORDS_RESERVED
    }

    /// L4: names a transaction at its position. A word whose position the floor has not passed is
    /// not replaced, and not one of a later round.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of each logged write")]
    pub(crate) fn claim(&self, position: u64, units: u64) -> Claim {
        debug_assert!(units != 0 && units <= UNITS, "a transaction lies in the heap");
        let (word, words) = (self.word(position), self.ring.len() as u64);
        let mut seen = word.load(Ordering::Acquire);
        loop {
            // Rounds are told apart only as long as the writer has not slept for many of them.
            let is_asleep = self.tail.load(Ordering::Acquire) - position >= words;
            if is_asleep || !self.is_earlier(seen, position) && !mutant("claim-void") {
                return Claim::Missed;
            }
            if position >= self.floor.load(Ordering::Acquire).max(1) + words
                && !mutant("claim-kept")
            {
                return Claim::Full;
            }
            let claimed = self.tagged(position, CLAIMED | units);
            if mutant("claim-store") {
                word.store(claimed, Ordering::Release);
                return Claim::Made;
            }
            let order = if mutant("claim-relaxed") { Ordering::Relaxed } else { Ordering::AcqRel };
            match word.compare_exchange(seen, claimed, order, Ordering::Acquire) {
                Ok(_) => return Claim::Made,
                Err(other) => seen = other,
            }
        }
    }

    /// After an abort, before the transaction's cell is retired: its position becomes a hole.
    /// Idempotent.
    pub(crate) fn give_back(&self, position: u64, units: u64) {
        let (from, to) = (self.tagged(position, CLAIMED | units), self.tagged(position, VOID));
        // Otherwise the position was never claimed, or belongs to another round.
        let _ = self.word(position).compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    }

    /// C1 and C2. The caller has a pin; `is_protected` tells whether it covers what was loaded, and
    /// extends it if not.
    pub(crate) fn read(&self, position: u64, mut is_protected: impl FnMut() -> bool) -> LogSlot {
        let word = loop {
            let word = self.word(position).load(Ordering::Acquire);
            if is_protected() {
                break word;
            }
        };
        if self.floor.load(Ordering::Acquire) > position && !mutant("floor-unchecked") {
            return LogSlot::Lost;
        }
        if self.is_earlier(word, position) {
            // Only now, because each writer stores the tail: a reader that finds entries leaves its
            // line to them.
            let is_drawn = position <= self.tail.load(Ordering::Acquire);
            return if is_drawn { LogSlot::Drawn(word) } else { LogSlot::Unused };
        }
        if word >> ROUND_SHIFT != self.round(position) {
            return LogSlot::Lost; // A lap ahead: the floor is behind it too.
        }
        match word & STATE {
            CLAIMED => LogSlot::Claimed(word & UNITS),
            _ => LogSlot::Hole,
        }
    }

    /// C3: makes a position that was drawn and not claimed a hole. False if it was claimed
    /// meanwhile.
    pub(crate) fn void(&self, position: u64, seen: u64) -> bool {
        let void = self.tagged(position, VOID);
        self.word(position)
            .compare_exchange(seen, void, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// F1.
    pub(crate) fn raise_floor(&self, to: u64) {
        self.floor.fetch_max(to, Ordering::AcqRel);
    }

    /// For the check, without writers: true if a word was stored for a position behind the tail.
    pub(crate) fn has_later_word(&self) -> bool {
        let (tail, words) = (self.tail.load(Ordering::Acquire), self.ring.len() as u64);
        (0..).zip(self.ring).any(|(index, word)| {
            // The first position behind the tail that has this word: of the next round.
            let next = tail + words - (tail + words - index) % words;
            !self.is_earlier(word.load(Ordering::Acquire), next)
        })
    }

    /// The word with which a new ring begins: of the round before that of the next position.
    pub(crate) fn first_word(&self) -> u64 {
        let next = self.tail.load(Ordering::Acquire) + 1;
        ((self.round(next) + ROUNDS - 1) % ROUNDS) << ROUND_SHIFT | VOID
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn words(ring: &[AtomicU64], at: u64) -> (AtomicU64, AtomicU64, &[AtomicU64]) {
        (AtomicU64::new(at), AtomicU64::new(0), ring)
    }

    #[test]
    fn a_word_serves_each_round_once() {
        let ring: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
        for start in [0, 4 * (ROUNDS - 2), 4 * (ROUNDS / 2 - 2)] {
            let (tail, floor, ring) = words(&ring, start);
            let log = LogWords { tail: &tail, floor: &floor, ring };
            for word in ring {
                word.store(log.first_word(), Ordering::Relaxed);
            }
            for lap in 0..4 {
                for _ in 0..4 {
                    let position = log.draw();
                    log.raise_floor(position.saturating_sub(2));
                    let LogSlot::Drawn(seen) = log.read(position, || true) else {
                        panic!("position {position} of lap {lap} is not free")
                    };
                    if position.is_multiple_of(3) {
                        assert!(log.void(position, seen));
                        assert_eq!(log.claim(position, 7), Claim::Missed);
                        assert_eq!(log.read(position, || true), LogSlot::Hole);
                    } else {
                        assert_eq!(log.claim(position, 7), Claim::Made);
                        assert!(!log.void(position, seen));
                        assert_eq!(log.claim(position, 8), Claim::Missed);
                        assert_eq!(log.read(position, || true), LogSlot::Claimed(7));
                        if position.is_multiple_of(5) {
                            log.give_back(position, 7);
                            assert_eq!(log.read(position, || true), LogSlot::Hole);
                        }
                    }
                    assert_eq!(log.read(position + 1, || true), LogSlot::Unused);
                }
            }
            assert_eq!(log.read(start + 2, || true), LogSlot::Lost);
            // The floor is behind one word, and a writer needs the next one.
            for position in start + 17..start + 21 {
                assert_eq!(log.draw(), position);
                let expected = if position < start + 18 { Claim::Made } else { Claim::Full };
                assert_eq!(log.claim(position, 7), expected, "{}", position - start);
            }
        }
    }
}
