//! The bytes of a region whose processes are stopped, read as `spec/region.md` defines them: where
//! its metadata lies, and which records a word concerns.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::error_context::ErrorContext as _;

pub(crate) const MEMBERS: u64 = 0x2000;
pub(crate) const CATALOG: u64 = 0x40_0000;
pub(crate) const ARENAS: u64 = 0x440_0000;
pub(crate) const HEAP: u64 = 0x840_0000;
pub(crate) const CHUNK_BYTES: u64 = 256 << 10;
const UNITS: u64 = (1 << 42) - 1;
const LINK: u64 = 1 << 47;
const INTENT: u64 = 1 << 46;

/// Cells of a member that are looked at.
const CELLS_MAX: usize = 400;

/// The part of a hash that a header contains.
pub(crate) const fn hash_low(word: u64) -> u64 {
    word & 0xffff_ffff
}

/// The bytes of a cell of a class, at least.
const fn cell_bytes(class: u64) -> u64 {
    match class {
        0..32 => 64 * (class + 1),
        32..72 => ((8 + (class - 32) % 8 + 1) << ((class - 32) / 8)) * 256,
        _ => ((4 + (class - 72) % 4 + 1) << ((class - 72) / 4)) * (16 << 10),
    }
}

/// A word of the region's file may be read at any offset: outside of the file it is 0.
pub(crate) struct FrozenRegion {
    file: File,
}

/// A bucket with its lines, and the cells to which its entries lead.
pub(crate) struct FrozenBucket {
    pub(crate) namespace: usize,
    pub(crate) number: u64,
    /// The offsets of its words.
    pub(crate) words: Vec<u64>,
    pub(crate) records: Vec<u64>,
}

/// A namespace as its catalog entry describes it.
pub(crate) struct FrozenNamespace {
    pub(crate) name: Vec<u8>,
    pub(crate) buckets: u64,
}

impl FrozenNamespace {
    /// The bucket of a hash.
    pub(crate) fn bucket_of(&self, hash: u64) -> u64 {
        let level = self.buckets.max(1).ilog2();
        let bucket = hash & ((1 << (level + 1)) - 1);
        if bucket < self.buckets { bucket } else { hash & ((1 << level) - 1) }
    }
}

impl FrozenRegion {
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        Ok(Self { file: file.context(path.display())? })
    }

    pub(crate) fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        let _ = self.file.read_exact_at(&mut bytes, at);
        u64::from_le_bytes(bytes)
    }

    fn bytes(&self, at: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        let _ = self.file.read_exact_at(&mut bytes, at);
        bytes
    }

    /// Flips one bit.
    pub(crate) fn flip(&self, at: u64, bit: u32) -> Result<(), String> {
        let flipped = self.word(at) ^ 1 << bit;
        self.file.write_all_at(&flipped.to_le_bytes(), at).context("flip")
    }

    pub(crate) fn seed(&self) -> u64 {
        self.word(32)
    }

    pub(crate) fn member_slots(&self) -> u64 {
        self.word(0x2c0) >> 16
    }

    pub(crate) fn chunks_used(&self) -> u64 {
        ((self.word(0x240) >> 16) * 64).saturating_sub(HEAP) / CHUNK_BYTES
    }

    pub(crate) fn chunk_words(&self) -> u64 {
        HEAP + CHUNK_BYTES * self.word(72)
    }

    pub(crate) fn bitmaps(&self) -> u64 {
        self.chunk_words() + (8 * self.word(72)).next_multiple_of(4096)
    }

    pub(crate) fn namespaces(&self) -> Vec<FrozenNamespace> {
        let used = self.word(0x300) >> 16;
        let entries = (0..used).map(|entry| {
            let at = CATALOG + 1024 * entry;
            let name = self.bytes(at + 200, self.word(at + 192).min(255) as usize);
            FrozenNamespace { name, buckets: self.word(at + 64) >> 16 }
        });
        entries.collect()
    }

    /// All buckets of all namespaces.
    pub(crate) fn buckets(&self, namespaces: &[FrozenNamespace]) -> Vec<FrozenBucket> {
        let mut all = Vec::new();
        for (namespace, entry) in namespaces.iter().enumerate() {
            let (mut first, mut size) = (0, 8);
            for segment in 0..40 {
                if first >= entry.buckets {
                    break;
                }
                let word = CATALOG + 1024 * namespace as u64 + 512 + 8 * segment;
                let at = (self.word(word) >> 16) * 64 + 64;
                for number in first..(first + size).min(entry.buckets) {
                    let at = at + 64 * (number - first);
                    all.push(self.bucket(namespace, number, at));
                }
                first += size;
                size = first;
            }
        }
        all
    }

    fn bucket(&self, namespace: usize, number: u64, at: u64) -> FrozenBucket {
        let mut words: Vec<u64> = (0..8).map(|word| at + 8 * word).collect();
        let (mut records, mut from) = (Vec::new(), 1);
        for _ in 0..64 {
            let mut next = 0;
            for word in words.iter().skip(from).map(|at| self.word(*at)) {
                if word >> 48 == 0 && word & LINK != 0 {
                    next = (word & UNITS) * 64;
                } else if word != 0 && word & INTENT == 0 {
                    records.push((word & UNITS) * 64);
                }
            }
            if next == 0 {
                break;
            }
            from = words.len();
            words.extend((3..8).map(|word| next + 8 * word));
        }
        FrozenBucket { namespace, number, words, records }
    }

    /// The key of a record.
    pub(crate) fn key(&self, record: u64) -> Vec<u8> {
        let sizes = self.word(record + 40);
        let children = sizes >> 16 & 0x1fff;
        self.bytes(record + 44 + 8 * children, (sizes & 0xffff).min(4096) as usize)
    }

    /// The cells of a record: itself, and its blocks or its counter.
    pub(crate) fn cells(&self, record: u64) -> Vec<u64> {
        let children = (self.word(record + 40) >> 16 & 0x1fff).min(64);
        let mut cells = vec![record];
        for child in 0..children {
            let bytes = self.bytes(record + 44 + 8 * child, 8);
            cells.extend(bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)));
        }
        cells
    }

    /// The end of what a cell contains.
    pub(crate) fn end_of(&self, cell: u64) -> u64 {
        let is_counter = self.word(cell) >> 8 & 0xf == 5;
        let bytes = if is_counter { 1088 } else { 44 + (self.word(cell + 32) >> 32) };
        cell.saturating_add(bytes)
    }

    /// The records that the current operation of a member changes: before and after.
    pub(crate) fn changed_by(&self, member: u64) -> Vec<u64> {
        let arena = ARENAS + 4096 * member;
        let words = match self.word(arena) {
            0 => Vec::new(),
            4 => {
                let txn = self.word(arena + 8);
                let lines = (1..=self.word(txn + 32).min(64)).map(|line| txn + 64 * line);
                lines.flat_map(|line| [line + 16, line + 24]).collect()
            }
            _ => vec![arena + 16, arena + 24],
        };
        let cells = words.iter().map(|at| (self.word(*at) & UNITS) * 64);
        cells.filter(|cell| self.word(*cell) >> 8 & 0xf == 1).collect()
    }

    /// The namespace of a record.
    pub(crate) fn namespace_of(&self, record: u64) -> usize {
        (self.word(record) >> 16 & 0xffff) as usize
    }

    /// True if a view may exist.
    pub(crate) fn has_pins(&self) -> bool {
        (0..self.member_slots()).any(|slot| self.word(MEMBERS + 128 * slot) != 0)
    }

    /// The cell contains a word: the hash of its key, or of the key of its record.
    fn hash_at(&self, cell: u64, at: u64) -> Option<u64> {
        let bytes = cell_bytes(self.word(cell) & 0xff);
        (cell..cell.saturating_add(bytes)).contains(&at).then(|| hash_low(self.word(cell + 32)))
    }

    /// The hashes of the records that a member fills, if it fills the cell that contains a word.
    pub(crate) fn filled_at(&self, member: u64, at: u64) -> Vec<u64> {
        let arena = ARENAS + 4096 * member;
        let mut cells = vec![self.word(arena + 32)];
        cells.extend(self.chain(self.word(arena + 40), CELLS_MAX));
        if cells.iter().all(|cell| self.hash_at(*cell, at).is_none()) {
            return Vec::new();
        }
        // A block belongs to a record of the same list, and a transaction's cell names its records.
        let cells = cells.into_iter().chain(self.changed_by(member));
        cells.map(|cell| hash_low(self.word(cell + 32))).collect()
    }

    /// The hash of the key of a retired cell that contains a word.
    pub(crate) fn retired_at(&self, member: u64, at: u64) -> Option<u64> {
        self.free_cells(member).into_iter().find_map(|cell| self.hash_at(cell, at))
    }

    /// The cells of a list.
    fn chain(&self, first: u64, most: usize) -> BTreeSet<u64> {
        let (mut cells, mut cell) = (BTreeSet::new(), first);
        while cell >= HEAP && cells.len() < most && cells.insert(cell) {
            cell = self.word(cell + 8);
        }
        cells
    }

    /// The free cells in the queues of a member's arena, at most some hundred.
    pub(crate) fn free_cells(&self, member: u64) -> BTreeSet<u64> {
        let mut cells = BTreeSet::new();
        for queue in 0..128 {
            let first = self.word(ARENAS + 4096 * member + 256 + 24 * queue);
            cells.extend(self.chain(first, CELLS_MAX - cells.len().min(CELLS_MAX)));
        }
        cells
    }
}
