//! A local ring: two pipes in memory that two processes map, one for each direction
//! (`spec/local-transport.md`).

pub(crate) mod words;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

use nearstate_model::{Error, Result, invariant};

use crate::atomic::{AtomicU64, Ordering};
use crate::layout::Corruption;
use crate::pipe::words::{
    FOR_BYTES, FOR_ROOM, PipeReader, PipeWords, PipeWriter, fall_asleep, must_ring_doorbell,
};
use crate::system;

/// The format of a ring.
pub const RING_FORMAT: u64 = 1;

/// Bytes of a pipe: as many as a core of the node reads at once, and as the responses that it
/// collects before it sends them. Larger requests and responses are transferred in pieces.
pub const PIPE_BYTES: usize = 64 << 10;

const MAGIC: u64 = u64::from_le_bytes(*b"NEARRING");
const HEAD_BYTES: usize = 4096;
const BYTES: usize = HEAD_BYTES + 2 * PIPE_BYTES;

// Words by their index.
const PIPE_WORDS: usize = PIPE_BYTES / 8;
const FIRST_WORDS: usize = HEAD_BYTES / 8;
const REQUEST_TAIL: usize = 0x100 / 8;
const REQUEST_HEAD: usize = 0x180 / 8;
const RESPONSE_TAIL: usize = 0x200 / 8;
const RESPONSE_HEAD: usize = 0x280 / 8;
const CLIENT_SLEEPS: usize = 0x300 / 8;
const NODE_SLEEPS: usize = 0x380 / 8;

const _: () = assert!(PIPE_WORDS.is_power_of_two(), "an index is masked");
const _: () = assert!(REQUEST_TAIL + 16 == REQUEST_HEAD && REQUEST_HEAD + 16 == RESPONSE_TAIL);
const _: () = assert!(RESPONSE_TAIL + 16 == RESPONSE_HEAD && RESPONSE_HEAD + 16 == CLIENT_SLEEPS);
const _: () = assert!(CLIENT_SLEEPS + 16 == NODE_SLEEPS, "each word has 128 bytes of its own");
const _: () = assert!(NODE_SLEEPS + 16 <= FIRST_WORDS, "the words of the pipes follow the head");
const _: () = assert!(BYTES.is_multiple_of(4096), "the ring fills its pages");

/// The result of a read or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipeTransfer {
    /// Bytes transferred.
    pub bytes: usize,
    /// The other side sleeps until this happened: the caller must ring the doorbell.
    pub must_ring_doorbell: bool,
}

/// What a side waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PipeInterest {
    /// Bytes to read.
    pub readable: bool,
    /// Room to write.
    pub writable: bool,
}

/// One side of a ring. The other side is another process and is not trusted.
#[derive(Debug)]
pub struct PipeEnd {
    shared: RingMemory,
    is_node: bool,
    writer: PipeWriter,
    reader: PipeReader,
}

/// The memory. It contains only words that are accessed atomically.
#[derive(Debug)]
struct RingMemory {
    base: NonNull<u8>,
}

// SAFETY: the memory is only accessed as atomic words.
unsafe impl Send for RingMemory {}

impl RingMemory {
    fn new(memory: &OwnedFd) -> Result<Self> {
        let base = system::map_shared(memory.as_fd(), BYTES as u64)?;
        system::keep_out_of_dumps(base, BYTES as u64);
        system::prefault(base, 0, BYTES as u64);
        Ok(Self { base })
    }

    #[inline]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has this many words, is aligned to a page and lasts until `drop`; the
        // file is sealed against shrinking. Another process may change each word at any time,
        // which atomics allow.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), BYTES / 8) }
    }

    #[inline]
    fn word(&self, index: usize) -> Result<&AtomicU64, Corruption> {
        self.words().get(index).ok_or(Corruption("a ring has no such word"))
    }

    #[inline]
    fn pipe(&self, is_requests: bool) -> Result<PipeWords<'_, [AtomicU64]>, Corruption> {
        let (tail, head, from) = if is_requests {
            (REQUEST_TAIL, REQUEST_HEAD, FIRST_WORDS)
        } else {
            (RESPONSE_TAIL, RESPONSE_HEAD, FIRST_WORDS + PIPE_WORDS)
        };
        Ok(PipeWords {
            tail: self.word(tail)?,
            head: self.word(head)?,
            words: match self.words().get(from..from + PIPE_WORDS) {
                Some(words) => words,
                None => invariant!("a pipe begins at word {from}"),
            },
        })
    }
}

impl Drop for RingMemory {
    fn drop(&mut self) {
        // SAFETY: only `self` lends references to the words, so no reference is left.
        unsafe { system::unmap(self.base, BYTES as u64) };
    }
}

impl PipeEnd {
    /// Creates a ring: the node's side of it, and the memory for its client.
    ///
    /// # Errors
    /// `System` if there is no memory or no descriptor, `Full` without memory.
    pub fn create() -> Result<(Self, OwnedFd)> {
        let memory = system::sealed_memory(BYTES as u64)?;
        let shared = RingMemory::new(&memory)?;
        for (index, word) in [MAGIC, RING_FORMAT, PIPE_BYTES as u64].into_iter().enumerate() {
            shared.word(index)?.store(word, Ordering::Relaxed);
        }
        Ok((Self::on(shared, true), memory))
    }

    /// The client's side of a ring that a node has created.
    ///
    /// # Errors
    /// `BadArgument` for memory that is not a ring of this format.
    pub fn attach(memory: OwnedFd) -> Result<Self> {
        let refused = |what: &str| Error::BadArgument {
            detail: format!(
                "the node sent memory that is no ring ({what}): use a client of the same release"
            ),
        };
        if !system::is_sealed(memory.as_fd()) {
            return Err(refused("it is not sealed"));
        }
        let file = File::from(memory);
        let mut head = [0; 24];
        let length = file.metadata().map(|found| found.len()).unwrap_or_default();
        if length != BYTES as u64 || file.read_exact_at(&mut head, 0).is_err() {
            return Err(refused("its length is wrong"));
        }
        let expected = [MAGIC, RING_FORMAT, PIPE_BYTES as u64];
        if head.as_chunks::<8>().0 != expected.map(u64::to_le_bytes) {
            return Err(refused("its first words are wrong"));
        }
        Ok(Self::on(RingMemory::new(&OwnedFd::from(file))?, false))
    }

    fn on(shared: RingMemory, is_node: bool) -> Self {
        Self { shared, is_node, writer: PipeWriter::default(), reader: PipeReader::default() }
    }

    #[inline]
    fn sleeps(&self, is_node: bool) -> Result<&AtomicU64, Corruption> {
        self.shared.word(if is_node { NODE_SLEEPS } else { CLIENT_SLEEPS })
    }

    /// Writes as much as fits, possibly 0 bytes.
    ///
    /// # Errors
    /// `Damaged` if the other side violates the protocol. The ring cannot be used any more.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> Result<PipeTransfer> {
        let pipe = self.shared.pipe(!self.is_node)?;
        let bytes = self.writer.write(&pipe, bytes)?;
        let must_ring_doorbell =
            bytes > 0 && must_ring_doorbell(self.sleeps(!self.is_node)?, FOR_BYTES);
        Ok(PipeTransfer { bytes, must_ring_doorbell })
    }

    /// Reads what is available, possibly 0 bytes.
    ///
    /// # Errors
    /// As [`PipeEnd::write`].
    #[inline]
    pub fn read(&mut self, into: &mut [u8]) -> Result<PipeTransfer> {
        let pipe = self.shared.pipe(self.is_node)?;
        let bytes = self.reader.read(&pipe, into)?;
        let must_ring_doorbell =
            bytes > 0 && must_ring_doorbell(self.sleeps(!self.is_node)?, FOR_ROOM);
        Ok(PipeTransfer { bytes, must_ring_doorbell })
    }

    /// True if the pipe is ready for `interest`, or if the ring is broken.
    #[inline]
    pub fn is_ready(&self, interest: PipeInterest) -> bool {
        let has_bytes = || {
            let pipe = self.shared.pipe(self.is_node)?;
            Ok::<_, Corruption>(self.reader.available(&pipe)? > 0)
        };
        let has_room = || {
            let pipe = self.shared.pipe(!self.is_node)?;
            Ok::<_, Corruption>(self.writer.room(&pipe)? > 0)
        };
        interest.readable && has_bytes().unwrap_or(true)
            || interest.writable && has_room().unwrap_or(true)
    }

    /// Announces that this side sleeps. Returns false if it must not, because there is work.
    #[inline]
    pub fn fall_asleep(&self, interest: PipeInterest) -> bool {
        let bits = if interest.readable { FOR_BYTES } else { 0 }
            | if interest.writable { FOR_ROOM } else { 0 };
        let Ok(own) = self.sleeps(self.is_node) else { return false };
        fall_asleep(own, bits);
        if self.is_ready(interest) {
            self.wake();
            return false;
        }
        true
    }

    /// Announces that this side is awake.
    #[inline]
    pub fn wake(&self) {
        if let Ok(own) = self.sleeps(self.is_node)
            && own.load(Ordering::Relaxed) != 0
        {
            own.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> (PipeEnd, PipeEnd, File) {
        let (node, memory) = PipeEnd::create().unwrap();
        let file = File::from(memory.try_clone().unwrap());
        (node, PipeEnd::attach(memory).unwrap(), file)
    }

    #[test]
    fn each_side_reads_what_the_other_side_has_written() {
        let (mut node, mut client, _) = ring();
        let large: Vec<u8> = (0..3 * PIPE_BYTES).map(|n| (n % 251) as u8).collect();
        for is_request in [true, false] {
            let ends = (&mut node, &mut client);
            let (to, from) = if is_request { ends } else { (ends.1, ends.0) };
            let (mut sent, mut got) = (0, Vec::new());
            while got.len() < large.len() {
                sent += from.write(&large[sent..]).unwrap().bytes;
                let mut into = [0; 1000];
                let bytes = to.read(&mut into).unwrap().bytes;
                got.extend_from_slice(&into[..bytes]);
            }
            assert_eq!(got, large);
            assert_eq!(
                to.read(&mut [0; 8]).unwrap(),
                PipeTransfer { bytes: 0, must_ring_doorbell: false }
            );
        }
    }

    #[test]
    fn the_doorbell_rings_once_and_only_for_the_awaited_event() {
        let (mut node, mut client, _) = ring();
        let (bytes, room) = (
            PipeInterest { readable: true, writable: false },
            PipeInterest { readable: false, writable: true },
        );
        assert!(node.fall_asleep(bytes));
        assert!(
            client.write(b"a").unwrap().must_ring_doorbell
                && !client.write(b"b").unwrap().must_ring_doorbell
        );
        assert!(!node.fall_asleep(bytes), "there are bytes");
        while client.write(&[7; 999]).unwrap().bytes > 0 {}
        assert!(client.fall_asleep(room));
        assert!(node.read(&mut [0; 100]).unwrap().must_ring_doorbell);
        client.wake();
        assert!(!client.fall_asleep(room) && !node.read(&mut [0; 100]).unwrap().must_ring_doorbell);
    }

    #[test]
    fn any_words_in_the_ring_are_bytes_or_an_error() {
        let (mut node, _client, file) = ring();
        let mut rng = 0x9e37_79b9_7f4a_7c15_u64;
        let mut damaged = 0;
        for _ in 0..20_000 {
            rng ^= rng << 13;
            rng ^= rng >> 7;
            rng ^= rng << 17;
            let at = [0x100, 0x180, 0x200, 0x280, 0x300, 0x380, 0, 4096][rng as usize % 8];
            let word = [rng, 0, u64::MAX, rng % 100_000][(rng >> 8) as usize % 4];
            file.write_all_at(&word.to_le_bytes(), at).unwrap();
            let mut into = [0; 300];
            let read = node.read(&mut into);
            let wrote = node.write(&into);
            damaged += usize::from(read.is_err()) + usize::from(wrote.is_err());
            for moved in read.into_iter().chain(wrote) {
                assert!(moved.bytes <= 300);
            }
            let _ = node.fall_asleep(PipeInterest { readable: true, writable: true });
        }
        assert!(damaged > 1000);
    }

    #[test]
    fn the_memory_cannot_shrink_and_a_hole_in_it_reads_as_zeros() {
        let (mut node, mut client, file) = ring();
        assert!(file.set_len(0).is_err() && file.set_len(1 << 20).is_err());
        client.write(&[9; 5000]).unwrap();
        punch(&file, BYTES as u64);
        assert_eq!(node.read(&mut [0; 100]).unwrap().bytes, 0, "the tail is 0 again");
    }

    #[test]
    fn memory_that_is_no_ring_is_rejected() {
        assert!(PipeEnd::attach(unsealed()).unwrap_err().to_string().contains("sealed"));
        let short = system::sealed_memory(4096).unwrap();
        assert!(PipeEnd::attach(short).unwrap_err().to_string().contains("length"));
        let empty = system::sealed_memory(BYTES as u64).unwrap();
        assert!(PipeEnd::attach(empty).unwrap_err().to_string().contains("first words"));
    }

    fn punch(file: &File, bytes: u64) {
        let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: the call changes only the memory of the ring, which consists of atomic words.
        let done = unsafe {
            libc::fallocate(std::os::fd::AsRawFd::as_raw_fd(file), how, 0, bytes.cast_signed())
        };
        assert_eq!(done, 0);
    }

    /// A file that is not sealed.
    fn unsealed() -> OwnedFd {
        File::open("/proc/self/exe").unwrap().into()
    }
}
