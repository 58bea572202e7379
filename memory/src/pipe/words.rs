//! The words of a pipe: bytes from one writer to one reader, neither of which trusts the other
//! (`spec/local-transport.md`, section 2).
//!
//! ```text
//! writer                                    reader
//! W1  load head       (acquire, with R3)    R1  load tail       (acquire, with W3)
//! W2  store words                           R2  load words
//! W3  tail = new      (release)             R3  head = new      (release)
//! W4  fence; load the reader's word         R4  fence; load the writer's word
//! W5  it sleeps for bytes: ring              R5  it sleeps for room: ring
//!
//! a side without work
//! S1  word = what it sleeps for
//! S2  fence                                 (pairs with W4 and R4)
//! S3  load tail and head once more; sleep only if there is nothing to do
//! ```
//!
//! R1 with W3: a reader that sees the tail sees the words before it. W1 with R3: words are stored
//! again only after they were read. Either W4 sees S1 or S3 sees W3, so no side sleeps while there
//! is a byte for it or room for one.
//!
//! Words are stored whole. The word that contains the head can have unread bytes, so the writer
//! does not store to it, and finds up to seven bytes less room than there is.
//!
//! Positions count bytes and wrap. Each side keeps its own position and never loads it. The
//! position of the other side is valid only within one capacity of it, and each index is masked.

use nearstate_model::invariant;

use crate::atomic::{AtomicU64, Ordering, fence, mutant};
use crate::layout::Corruption;

/// Bytes of a word.
const WORD: usize = 8;

/// Set in the word of a side that sleeps until there are bytes to read.
pub(crate) const FOR_BYTES: u64 = 1;

/// Set in the word of a side that sleeps until there is room to write.
pub(crate) const FOR_ROOM: u64 = 2;

const BROKEN: Corruption = Corruption(
    "the positions of a pipe contradict each other: its other side violates the protocol",
);

/// The words of a pipe; their number is a power of two. The models replace them by cells whose
/// accesses they check.
pub(crate) trait PipeMemory {
    /// The number of words.
    fn count(&self) -> u64;
    /// Loads the word at an index.
    fn load(&self, index: usize) -> u64;
    /// Stores the word at an index.
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
    /// The position after the last byte that was written.
    pub(crate) tail: &'m AtomicU64,
    /// The position after the last byte that was read.
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
        debug_assert!(self.words.count().is_power_of_two(), "an index is masked");
        ((at / WORD as u64) & (self.words.count() - 1)) as usize
    }

    /// The room after a tail: up to the word that contains the head, one round later.
    #[inline]
    fn room(&self, head: u64, tail: u64) -> Result<u64, Corruption> {
        let used = self.used(head, tail)?;
        let kept = if mutant("head-word") { 0 } else { head % WORD as u64 };
        Ok(self.capacity().saturating_sub(used + kept))
    }

    /// The bytes between head and tail. One of the two comes from the other side.
    #[inline]
    fn used(&self, head: u64, tail: u64) -> Result<u64, Corruption> {
        let used = tail.wrapping_sub(head);
        if used > self.capacity() { Err(BROKEN) } else { Ok(used) }
    }
}

/// The private state of the writer.
#[derive(Debug, Default)]
pub(crate) struct PipeWriter {
    tail: u64,
    /// The head that was loaded last.
    head: u64,
    /// The bytes that the word at the tail contains so far.
    last: u64,
}

impl PipeWriter {
    /// The number of bytes that fit.
    #[inline]
    pub(crate) fn room<W: PipeMemory + ?Sized>(
        &self,
        pipe: &PipeWords<'_, W>,
    ) -> Result<u64, Corruption> {
        pipe.room(pipe.head.load(Ordering::Acquire), self.tail)
    }

    /// Writes as many bytes as fit. Returns their number.
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
        let count =
            if mutant("room-unchecked") { bytes.len() } else { bytes.len().min(room as usize) };
        if count == 0 {
            return Ok(0);
        }
        let Some(bytes) = bytes.get(..count) else {
            invariant!("{count} of {} bytes fit into a pipe", bytes.len())
        };
        self.store_bytes(pipe, bytes); // W2
        let order = if mutant("pipe-tail-relaxed") { Ordering::Relaxed } else { Ordering::Release };
        pipe.tail.store(self.tail, order); // W3
        Ok(count)
    }

    /// Stores bytes at the tail.
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
        debug_assert_eq!(at.wrapping_sub(self.tail), bytes.len() as u64, "each byte is stored");
        self.tail = at;
    }
}

/// Up to eight bytes as a word, the first in its lowest byte.
#[inline]
fn word_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// The private state of the reader.
#[derive(Debug, Default)]
pub(crate) struct PipeReader {
    head: u64,
}

impl PipeReader {
    /// The number of bytes to read.
    #[inline]
    pub(crate) fn available<W: PipeMemory + ?Sized>(
        &self,
        pipe: &PipeWords<'_, W>,
    ) -> Result<u64, Corruption> {
        let order = if mutant("tail-load-relaxed") { Ordering::Relaxed } else { Ordering::Acquire };
        let tail = pipe.tail.load(order); // R1
        pipe.used(self.head, tail)
    }

    /// Reads as many bytes as are available and fit. Returns their number.
    #[inline]
    pub(crate) fn read<W: PipeMemory + ?Sized>(
        &mut self,
        pipe: &PipeWords<'_, W>,
        into: &mut [u8],
    ) -> Result<usize, Corruption> {
        let count = into.len().min(self.available(pipe)? as usize);
        if count == 0 {
            return Ok(0);
        }
        if mutant("head-early") {
            pipe.head.store(self.head.wrapping_add(count as u64), Ordering::Release);
        }
        let bytes = into.len();
        let Some(into) = into.get_mut(..count) else {
            invariant!("{count} bytes of a pipe fit into {bytes}")
        };
        self.load_bytes(pipe, into); // R2
        let order = if mutant("head-relaxed") { Ordering::Relaxed } else { Ordering::Release };
        pipe.head.store(self.head, order); // R3
        Ok(count)
    }

    /// Loads bytes at the head.
    #[inline]
    fn load_bytes<W: PipeMemory + ?Sized>(&mut self, pipe: &PipeWords<'_, W>, into: &mut [u8]) {
        let mut at = self.head;
        let end = at.wrapping_add(into.len() as u64);
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
        debug_assert_eq!(at, end, "each byte is loaded");
        self.head = at;
    }
}

/// Copies the first bytes of a word.
#[inline]
fn fill(bytes: &mut [u8], word: u64) {
    for (byte, value) in bytes.iter_mut().zip(word.to_le_bytes()) {
        *byte = value;
    }
}

/// S1 and S2. The caller checks its pipes once more before it sleeps.
#[inline]
pub(crate) fn fall_asleep(own: &AtomicU64, bits: u64) {
    debug_assert!(bits & !(FOR_BYTES | FOR_ROOM) == 0, "a side sleeps for bytes or for room");
    own.store(bits, Ordering::Relaxed);
    if !mutant("sleep-no-fence") {
        fence(Ordering::SeqCst);
    }
}

/// W4 and R4. True if the other side sleeps for this event. The bit was cleared, so this caller and
/// no other must ring the doorbell.
#[inline]
pub(crate) fn must_ring_doorbell(other: &AtomicU64, bit: u64) -> bool {
    debug_assert!(bit == FOR_BYTES || bit == FOR_ROOM, "one bit is cleared at a time");
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
    fn bytes_are_read_in_the_order_of_their_writes_in_pieces_of_any_size() {
        // From one of the starts the positions wrap.
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
    fn any_position_of_the_other_side_is_valid_or_breaks_the_pipe() {
        let mut roll = rng(7);
        let own = TestPipe::new(8, 0);
        let (mut writer, mut reader) = (PipeWriter::default(), PipeReader::default());
        let mut broken = 0;
        for round in 0..20_000_u64 {
            let position = [0, u64::MAX, roll() as u64, roll() as u64 % 200, 1 << 63];
            let position = position[roll() % 5].wrapping_add(round % 3);
            let place = if round % 2 == 0 { &own.tail } else { &own.head };
            place.store(position, Ordering::Relaxed);
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
    fn one_of_several_callers_rings_and_only_for_the_awaited_event() {
        let word = AtomicU64::new(0);
        assert!(!must_ring_doorbell(&word, FOR_BYTES));
        fall_asleep(&word, FOR_BYTES | FOR_ROOM);
        assert!(must_ring_doorbell(&word, FOR_ROOM) && !must_ring_doorbell(&word, FOR_ROOM));
        assert!(must_ring_doorbell(&word, FOR_BYTES) && !must_ring_doorbell(&word, FOR_BYTES));
    }
}
