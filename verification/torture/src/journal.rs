//! The journal of a writer: what it is about to do and what was acknowledged, in a file that
//! survives the process. The intent is written before the call, the acknowledgement after it. An
//! entry is 64 bytes with a checksum, written by one `write(2)`, which a kill does not tear. The
//! entries of a transaction are written by one call, which a kill may cut between two entries.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::content::{KeySpace, TortureKey, words_of};
use crate::error_context::ErrorContext as _;
use crate::rng::mix;

const WORDS: usize = 8;
const BYTES: usize = 8 * WORDS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryKind {
    /// The first entry of a file: sequence numbers start at `seq`.
    Base = 1,
    /// A process has attached the region.
    Attached = 2,
    /// The writer is about to call the store.
    Intent = 3,
    /// The call succeeded, or was refused as expected.
    Ack = 4,
}

/// A call of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WriteKind {
    /// `put`.
    Put = 1,
    /// `put_if` the key is absent.
    PutAbsent = 2,
    /// `put_if` the key is present.
    PutPresent = 3,
    /// `put_if` with the current version.
    PutVersion = 4,
    /// `put_if` with the current value.
    PutValue = 5,
    /// `put_if` with a version that does not exist: must be refused.
    PutStale = 6,
    /// `delete`.
    Delete = 7,
    /// `delete_if` with the current version.
    DeleteVersion = 8,
    /// `patch`.
    Patch = 9,
    /// Increment a counter by `put_if` with its version.
    Raise = 10,
}

const OPS: [WriteKind; 10] = [
    WriteKind::Put,
    WriteKind::PutAbsent,
    WriteKind::PutPresent,
    WriteKind::PutVersion,
    WriteKind::PutValue,
    WriteKind::PutStale,
    WriteKind::Delete,
    WriteKind::DeleteVersion,
    WriteKind::Patch,
    WriteKind::Raise,
];

/// The mask of an acknowledgement that means: the region was full.
pub const FULL: u32 = u32::MAX;

/// The mask of an acknowledgement that means: every attempt ended in a conflict.
pub const CONFLICT: u32 = u32::MAX - 1;

/// The mask of an acknowledgement that means: the region was full, and a view held back memory.
pub const HELD_BACK: u32 = u32::MAX - 2;

/// The mask of an acknowledgement that means: another process held a lock for too long.
pub const STALLED: u32 = u32::MAX - 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// The kind.
    pub tag: EntryKind,
    /// The call.
    pub op: WriteKind,
    /// The record.
    pub key: TortureKey,
    /// The number of further entries of the same transaction.
    pub left: u8,
    /// Sequence number of the intent, increasing for each writer.
    pub seq: u64,
    /// Bytes of the new content.
    pub len: u32,
    /// Patch: two bits for each block. 1 sets the block, 2 deletes it.
    pub mask: u32,
    /// Fingerprint of the content that the writer read before; 0 means none. In a refusal: the
    /// process that holds the lock, or the number of the call that found no room.
    pub old: u64,
    /// Acknowledgement: the version. 0 means that there was nothing to delete, or a refusal.
    pub version: u64,
    /// Time, in nanoseconds of the common clock.
    pub at_ns: u64,
}

impl JournalEntry {
    /// True for an acknowledgement that means: another process held a lock for too long.
    pub(crate) fn is_stalled(&self) -> bool {
        self.op == WriteKind::PutStale && self.mask == STALLED
    }

    fn words(&self) -> [u64; WORDS] {
        let kind = (self.tag as u64)
            | (self.op as u64) << 8
            | (self.key.space as u64) << 16
            | u64::from(self.left) << 24
            | u64::from(self.key.writer) << 32;
        let sizes = u64::from(self.len) | u64::from(self.mask) << 32;
        let number = u64::from(self.key.number);
        let mut words = [kind, number, self.seq, sizes, self.old, self.version, self.at_ns, 0];
        words[WORDS - 1] = words.iter().fold(1, |sum, word| mix(sum ^ word));
        words
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut words = words_of(bytes);
        let mut word = || words.next();
        let (kind, number, seq, sizes) = (word()?, word()?, word()?, word()?);
        let [tag, op, space, left, low, high, ..] = kind.to_le_bytes();
        let tags = [EntryKind::Base, EntryKind::Attached, EntryKind::Intent, EntryKind::Ack];
        let entry = Self {
            tag: tags.into_iter().find(|known| *known as u8 == tag)?,
            op: OPS.into_iter().find(|known| *known as u8 == op)?,
            key: TortureKey {
                space: KeySpace::of(space)?,
                writer: u16::from_le_bytes([low, high]),
                number: u32::try_from(number).ok()?,
            },
            left,
            seq,
            len: u32::try_from(sizes & 0xffff_ffff).ok()?,
            mask: u32::try_from(sizes >> 32).ok()?,
            old: word()?,
            version: word()?,
            at_ns: word()?,
        };
        let [.., sum] = entry.words();
        (word()? == sum).then_some(entry)
    }

    fn mark(tag: EntryKind, seq: u64, at_ns: u64) -> Self {
        Self {
            tag,
            op: WriteKind::Put,
            key: TortureKey { space: KeySpace::Own, writer: 0, number: 0 },
            left: 0,
            seq,
            len: 0,
            mask: 0,
            old: 0,
            version: 0,
            at_ns,
        }
    }
}

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    next: u64,
}

/// The journal of a writer in a folder.
pub fn path_of(folder: &Path, writer: u16) -> PathBuf {
    folder.join(format!("journal-{writer}"))
}

/// Starts a new journal, with sequence numbers from `base`.
pub fn begin(path: &Path, base: u64) -> io::Result<()> {
    let mut file = File::create(path)?;
    write(&mut file, &[JournalEntry::mark(EntryKind::Base, base, 0)])
}

fn write(file: &mut File, entries: &[JournalEntry]) -> io::Result<()> {
    let words = entries.iter().flat_map(JournalEntry::words);
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    file.write_all(&bytes)
}

/// The sequence number that follows a journal's entries.
pub(crate) fn next_base(entries: &[JournalEntry]) -> u64 {
    entries.first().map_or(0, |first| first.seq) + entries.len() as u64
}

/// All entries of a journal, without a torn last one.
pub fn read(path: &Path) -> io::Result<Vec<JournalEntry>> {
    let bytes = std::fs::read(path)?;
    let count = bytes.len() / BYTES;
    let mut entries = Vec::with_capacity(count);
    for chunk in bytes.chunks_exact(BYTES) {
        match JournalEntry::parse(chunk) {
            Some(entry) => entries.push(entry),
            None => return Err(io::Error::other(format!("{}: an invalid entry", path.display()))),
        }
    }
    Ok(entries)
}

impl Journal {
    /// Opens an existing journal. Also returns the intent that the last process left without an
    /// acknowledgement, if any.
    pub fn open(path: &Path) -> io::Result<(Self, Option<JournalEntry>)> {
        use std::io::{Read, Seek, SeekFrom};
        let mut file = OpenOptions::new().read(true).append(true).open(path)?;
        let mut bytes = [0; BYTES];
        file.read_exact(&mut bytes)?;
        let base = JournalEntry::parse(&bytes)
            .filter(|entry| entry.tag == EntryKind::Base)
            .ok_or_else(|| io::Error::other("a journal without a base entry"))?;
        let count = file.metadata()?.len() / BYTES as u64;
        file.seek(SeekFrom::Start((count - 1) * BYTES as u64))?;
        file.read_exact(&mut bytes)?;
        let last = JournalEntry::parse(&bytes).filter(|entry| entry.tag == EntryKind::Intent);
        Ok((Self { file, path: path.to_owned(), next: base.seq + count }, last))
    }

    fn append(&mut self, entries: &[JournalEntry]) -> Result<(), String> {
        write(&mut self.file, entries).context(self.path.display())?;
        self.next += entries.len() as u64;
        Ok(())
    }

    /// Records that this process has attached the region.
    pub fn attached(&mut self, at_ns: u64) -> Result<(), String> {
        self.append(&[JournalEntry::mark(EntryKind::Attached, self.next, at_ns)])
    }

    /// The sequence number of the next intent.
    pub const fn next_seq(&self) -> u64 {
        self.next
    }

    /// Writes an intent, or those of one transaction.
    pub fn intend(&mut self, entries: &[JournalEntry]) -> Result<(), String> {
        self.append(entries)
    }

    /// Writes the acknowledgements of a transaction's intents.
    pub fn acknowledge_all(&mut self, acks: &[JournalEntry]) -> Result<(), String> {
        self.append(acks)
    }

    /// Writes the acknowledgement of an intent.
    pub fn acknowledge(
        &mut self,
        intent: &JournalEntry,
        version: u64,
        at_ns: u64,
    ) -> Result<(), String> {
        self.append(&[JournalEntry { tag: EntryKind::Ack, version, at_ns, ..*intent }])
    }
}
