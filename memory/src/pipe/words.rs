//! The words of a pipe: bytes from one writer to one reader, neither of which trusts the other
//! (`spec/local-transport.md`, section 2).
//!
//! ```text
//! writer                                    reader
//! W1  load head       (acquire, with R3)    R1  load tail       (acquire, with W3)
//! W2  store words                           R2  load words
//! W3  tail = new      (release)             R3  head = new      (release)
//! W4  fence; load the reader's word         R4  fence; load the writer's word
//! W5  it sleeps for bytes: call it          R5  it sleeps for room: call it
//!
//! a side without work
//! S1  word = what it sleeps for
//! S2  fence                                 (pairs with W4 and R4)
//! S3  look at tail and head once more; sleep only if there is nothing to do
//! ```
//!
//! R1 with W3: who sees the tail sees the words before it. W1 with R3: words are stored again only
//! after they were read. Either W4 sees S1 or S3 sees W3, so no side sleeps although there is a
//! byte or room for one.
//!
//! Words are stored whole, so the writer keeps out of the word that the head stands in: it may have
//! bytes that were not read. A writer therefore finds up to seven bytes less room than there is.
//!
//! Positions count bytes and wrap. Each side keeps its own and never loads it; the other's is
//! believed only within a capacity of it, and each index is masked.

use nearstate_model::invariant;

use crate::atomic::{AtomicU64, Ordering, fence, mutant};
use crate::layout::Corruption;

/// Bytes of a word.
const WORD: usize = 8;

/// Set in a side's word while it sleeps until there are bytes for it.
pub(crate) const FOR_BYTES: u64 = 1;

/// Set in a side's word while it sleeps until there is room for its bytes.
pub(crate) const FOR_ROOM: u64 = 2;

const BROKEN: Corruption = Corruption(
    "a pipe's positions contradict each other: its other side does not keep to the protocol",
);

/// Where the bytes of a pipe stand: a power of two of words. The models look at every access.
pub(crate) trait PipeMemory {
    /// How many there are.
    fn count(&self) -> u64;
    /// The word at this index.
    fn load(&self, index: usize) -> u64;
    /// Sets it.
    fn store(&self, index: usize, word: u64);
}

impl PipeMemory for [AtomicU64] {
    #[inline]
    fn count(&self) -> u64 {
        self.len() as u64
    }

    #[inline]
    fn load(&self, index: usize) -> u64 {
        match self.get(index) {
            Some(word) => word.load(Ordering::Relaxed),
            None => invariant!("word {index} of a pipe of {} words", self.len()),
        }
    }

    #[inline]
    fn store(&self, index: usize, word: u64) {
        match self.get(index) {
            Some(place) => place.store(word, Ordering::Relaxed),
            None => invariant!("word {index} of a pipe of {} words", self.len()),
        }
    }
}

/// A pipe.
#[derive(Debug)]
pub(crate) struct PipeWords<'m, W: ?Sized> {
    /// Behind the last byte written.
    pub(crate) tail: &'m AtomicU64,
    /// Behind the last byte read.
    pub(crate) head: &'m AtomicU64,
    /// The bytes.
    pub(crate) words: &'m W,
}

impl<W: PipeMemory + ?Sized> PipeWords<'_, W> {
    #[inline]
    fn capacity(&self) -> u64 {
        self.words.count() * WORD as u64
    }

    #[inline]
    fn index(&self, at: u64) -> usize {
        ((at / WORD as u64) & (self.words.count() - 1)) as usize
    }

    /// Room behind a tail: up to the word that the head stands in, one round later.
    #[inline]
    fn room(&self, head: u64, tail: u64) -> Result<u64, Corruption> {
        let used = self.used(head, tail)?;
        let kept = if mutant("head-word") { 0 } else { head % WORD as u64 };
        Ok(self.capacity().saturating_sub(used + kept))
    }

    /// Bytes between head and tail, one of which the other side says.
    #[inline]
    fn used(&self, head: u64, tail: u64) -> Result<u64, Corruption> {
        let used = tail.wrapping_sub(head);
        if used > self.capacity() { Err(BROKEN) } else { Ok(used) }
    }
}

/// The writer's own part.
#[derive(Debug, Default)]
pub(crate) struct PipeWriter {
    tail: u64,
    /// The head as it was seen last.
    head: u64,
    /// What the word at the tail has so far.
    last: u64,
}

impl PipeWriter {
    /// Bytes that fit now.
    #[inline]
    pub(crate) fn room<W: PipeMemory + ?Sized>(
        &self,
        pipe: &PipeWords<'_, W>,
    ) -> Result<u64, Corruption> {
        pipe.room(pipe.head.load(Ordering::Acquire), self.tail)
    }

    /// Writes as much as fits; how much that was.
    #[inline]
    pub(crate) fn write<W: PipeMemory + ?Sized>(
        &mut self,
        pipe: &PipeWords<'_, W>,
        bytes: &[u8],
    ) -> Result<usize, Corruption> {
        let mut room = pipe.room(self.head, self.tail)?;
        if room < bytes.len() as u64 {
            let order =
                if mutant("head-load-relaxed") { Ordering::Relaxed } else { Ordering::Acquire };
            let head = pipe.head.load(order); // W1
            room = pipe.room(head, self.tail)?;
            self.head = head;
        }
        let count = if mutant("room-unchecked") {
            bytes.len()
        } else {
            bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX))
        };
        if count == 0 {
            return Ok(0);
        }
        self.store_bytes(pipe, bytes.get(..count).unwrap_or_default()); // W2
        let order = if mutant("pipe-tail-relaxed") { Ordering::Relaxed } else { Ordering::Release };
        pipe.tail.store(self.tail, order); // W3
        Ok(count)
    }

    /// Stores bytes from the tail on.
    #[inline]
    fn store_bytes<W: PipeMemory + ?Sized>(&mut self, pipe: &PipeWords<'_, W>, bytes: &[u8]) {
        let mut at = self.tail;
        let within = (at % WORD as u64) as usize;
        let mut rest = bytes;
        if within > 0 {
            let (first, more) = bytes.split_at(bytes.len().min(WORD - within));
            self.last |= word_of(first) << (8 * within);
            pipe.words.store(pipe.index(at), self.last);
            at = at.wrapping_add(first.len() as u64);
            rest = more;
        }
        let (whole, part) = rest.as_chunks::<WORD>();
        for word in whole {
            pipe.words.store(pipe.index(at), u64::from_le_bytes(*word));
            at = at.wrapping_add(WORD as u64);
        }
        if !part.is_empty() {
            self.last = word_of(part);
            pipe.words.store(pipe.index(at), self.last);
            at = at.wrapping_add(part.len() as u64);
        } else if at.is_multiple_of(WORD as u64) {
            self.last = 0;
        }
        self.tail = at;
    }
}

/// Up to eight bytes as a word, the first in its lowest byte.
#[inline]
fn word_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// The reader's own part.
#[derive(Debug, Default)]
pub(crate) struct PipeReader {
    head: u64,
}

impl PipeReader {
    /// Bytes that are there.
    #[inline]
    pub(crate) fn available<W: PipeMemory + ?Sized>(
        &self,
        pipe: &PipeWords<'_, W>,
    ) -> Result<u64, Corruption> {
        let order = if mutant("tail-load-relaxed") { Ordering::Relaxed } else { Ordering::Acquire };
        let tail = pipe.tail.load(order); // R1
        pipe.used(self.head, tail)
    }

    /// Reads as much as is there and fits; how much that was.
    #[inline]
    pub(crate) fn read<W: PipeMemory + ?Sized>(
        &mut self,
        pipe: &PipeWords<'_, W>,
        into: &mut [u8],
    ) -> Result<usize, Corruption> {
        let available = usize::try_from(self.available(pipe)?).unwrap_or(usize::MAX);
        let count = into.len().min(available);
        if count == 0 {
            return Ok(0);
        }
        if mutant("head-early") {
            pipe.head.store(self.head.wrapping_add(count as u64), Ordering::Release);
        }
        self.load_bytes(pipe, into.get_mut(..count).unwrap_or_default()); // R2
        let order = if mutant("head-relaxed") { Ordering::Relaxed } else { Ordering::Release };
        pipe.head.store(self.head, order); // R3
        Ok(count)
    }

    /// Loads bytes from the head on.
    #[inline]
    fn load_bytes<W: PipeMemory + ?Sized>(&mut self, pipe: &PipeWords<'_, W>, into: &mut [u8]) {
        let mut at = self.head;
        let within = (at % WORD as u64) as usize;
        let mut rest = into;
        if within > 0 {
            let (first, more) = rest.split_at_mut(rest.len().min(WORD - within));
            fill(first, pipe.words.load(pipe.index(at)) >> (8 * within));
            at = at.wrapping_add(first.len() as u64);
            rest = more;
        }
        let (whole, part) = rest.as_chunks_mut::<WORD>();
        for word in whole {
            *word = pipe.words.load(pipe.index(at)).to_le_bytes();
            at = at.wrapping_add(WORD as u64);
        }
        if !part.is_empty() {
            fill(part, pipe.words.load(pipe.index(at)));
            at = at.wrapping_add(part.len() as u64);
        }
        self.head = at;
    }
}

/// The first bytes of a word.
#[inline]
fn fill(bytes: &mut [u8], word: u64) {
    for (byte, value) in bytes.iter_mut().zip(word.to_le_bytes()) {
        *byte = value;
    }
}

/// S1 and S2. The caller looks at its pipes once more before it sleeps.
#[inline]
pub(crate) fn fall_asleep(own: &AtomicU64, bits: u64) {
    own.store(bits, Ordering::Relaxed);
    if !mutant("sleep-no-fence") {
        fence(Ordering::SeqCst);
    }
}

/// W4 and R4. True if the other side sleeps for this, and the caller is the one who calls it: it
/// must do so, for the bit is gone.
#[inline]
pub(crate) fn must_ring_doorbell(other: &AtomicU64, bit: u64) -> bool {
    if !mutant("doorbell-no-fence") {
        fence(Ordering::SeqCst);
    }
    other.load(Ordering::Relaxed) & bit != 0 && other.fetch_and(!bit, Ordering::Relaxed) & bit != 0
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    struct TestPipe {
        tail: AtomicU64,
        head: AtomicU64,
        words: Vec<AtomicU64>,
    }

    impl TestPipe {
        fn new(words: usize, at: u64) -> Self {
            Self {
                tail: AtomicU64::new(at),
                head: AtomicU64::new(at),
                words: (0..words).map(|_| AtomicU64::new(u64::MAX)).collect(),
            }
        }

        fn pipe(&self) -> PipeWords<'_, [AtomicU64]> {
            PipeWords { tail: &self.tail, head: &self.head, words: &self.words }
        }
    }

    fn rng(seed: u64) -> impl FnMut() -> usize {
        let mut rng = seed | 1;
        move || {
            rng ^= rng << 13;
            rng ^= rng >> 7;
            rng ^= rng << 17;
            (rng >> 20) as usize
        }
    }

    #[test]
    fn bytes_come_out_as_they_went_in_whatever_the_pieces() {
        // Positions wrap in the middle of it.
        for at in [0, u64::MAX - 40, 3] {
            let own = TestPipe::new(8, at);
            let mut writer = PipeWriter { tail: at, head: at, last: 0 };
            let mut reader = PipeReader { head: at };
            let mut roll = rng(at);
            let (mut sent, mut got) = (0_u64, 0_u64);
            for _ in 0..20_000 {
                let bytes: Vec<u8> = (0..roll() % 90).map(|n| (sent + n as u64) as u8).collect();
                let room = writer.room(&own.pipe()).unwrap();
                let free = 64 - (sent - got);
                assert!(room <= free && room + 8 > free, "{room} of {free}");
                let count = writer.write(&own.pipe(), &bytes).unwrap();
                assert!(count <= bytes.len() && count + 8 > bytes.len().min(free as usize));
                sent += count as u64;
                let mut into = vec![0; roll() % 90];
                let count = reader.read(&own.pipe(), &mut into).unwrap();
                assert_eq!(count, into.len().min((sent - got) as usize));
                for byte in into.iter().take(count) {
                    assert_eq!(*byte, got as u8);
                    got += 1;
                }
            }
        }
    }

    #[test]
    fn any_position_of_the_other_side_is_one_of_ours_or_breaks_the_pipe() {
        let mut roll = rng(7);
        let own = TestPipe::new(8, 0);
        let (mut writer, mut reader) = (PipeWriter::default(), PipeReader::default());
        let mut broken = 0;
        for round in 0..20_000_u64 {
            let strange = [0, u64::MAX, roll() as u64, roll() as u64 % 200, 1 << 63];
            let strange = strange[roll() % 5].wrapping_add(round % 3);
            let place = if round % 2 == 0 { &own.tail } else { &own.head };
            place.store(strange, Ordering::Relaxed);
            let mut into = [0; 100];
            let read = reader.read(&own.pipe(), &mut into);
            let wrote = writer.write(&own.pipe(), &into[..roll() % 100]);
            for moved in [read, wrote] {
                match moved {
                    Ok(bytes) => assert!(bytes <= 64),
                    Err(_) => broken += 1,
                }
            }
        }
        assert!(broken > 1000);
    }

    #[test]
    fn one_of_many_callers_calls_and_only_for_what_is_slept_for() {
        let word = AtomicU64::new(0);
        assert!(!must_ring_doorbell(&word, FOR_BYTES));
        fall_asleep(&word, FOR_BYTES | FOR_ROOM);
        assert!(must_ring_doorbell(&word, FOR_ROOM) && !must_ring_doorbell(&word, FOR_ROOM));
        assert!(must_ring_doorbell(&word, FOR_BYTES) && !must_ring_doorbell(&word, FOR_BYTES));
    }
}
