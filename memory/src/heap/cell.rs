//! A cell and its header (`spec/region.md`, "Cell"). Readers access it under a pin. Its writer
//! fills it before any other member can reach it.

use std::sync::LazyLock;

use nearstate_model::limits::NAMESPACES_MAX;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::atomic::{AtomicU64, Ordering};
use crate::heap::class;
use crate::layout::{CLASS_EXTENT, Corruption, LINE, SUPER_SEED};
use crate::region::map::Map;

/// Bytes of a cell's header.
pub const CELL_HEADER_BYTES: u64 = 44;

/// The kind of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CellKind {
    /// Free.
    Free = 0,
    /// A version of a record.
    Record = 1,
    /// A block that a record owns.
    Block = 2,
    /// An overflow line of the index.
    OverflowLine = 3,
    /// A segment of the index.
    Extent = 4,
    /// The stripes of a counter that a record owns.
    Counter = 5,
    /// A ring that watchers or the commit stream read.
    Ring = 6,
    /// The lines of a transaction.
    Transaction = 7,
}

impl CellKind {
    /// True if the checksum of such a cell covers only its header: its body changes in place.
    const fn is_changing(self) -> bool {
        matches!(self, Self::Counter | Self::Ring)
    }
}

pub(crate) const WORD_HEAD: u64 = 0;
pub(crate) const WORD_NEXT: u64 = 8;
pub(crate) const WORD_RETIRED: u64 = 16;
pub(crate) const WORD_VERSION: u64 = 24;
pub(crate) const WORD_KEY: u64 = 40;

/// Entry words of an overflow line, and the offset of the first one.
pub(crate) const LINE_WORDS: u64 = 5;
pub(crate) const LINE_FIRST: u64 = 24;

/// The header of a new cell.
#[derive(Clone, Copy, Debug)]
pub struct CellHeader {
    /// Kind of the cell.
    pub kind: CellKind,
    /// Flags of the record format, in four bits.
    pub flags: u8,
    /// The catalog entry of a record's or block's namespace ([`crate::IndexTable::index`]); 0 for
    /// other kinds.
    pub namespace: u32,
    /// Bytes after the header.
    pub body: u32,
    /// Bytes of the key.
    pub key: u16,
    /// Block cells owned.
    pub children: u16,
    /// Hash of the key of the record that it is, or of which it is a block; 0 for other kinds.
    pub hash: u64,
}

/// Flag of a record: metadata follows its value. Also stored next to the child count, where readers
/// have it in the same word.
pub const FLAG_META: u8 = 1;
const META: u64 = 1 << 31;
/// Flags of a record: its form, which `store` defines. Also stored next to the child count.
pub const FLAGS_FORM: u8 = 0b110;
const FORM_SHIFT: u32 = 29;
const CHILDREN: u64 = 0x1fff;
/// What the word of the key has besides its length, in the header: the flags and the child count.
const NOT_KEY_BYTES: u64 = 0xffff_0000;

/// Fields of the first word: `checksum:32 | namespace:16 | flags:4 | kind:4 | class:8`.
const KIND_SHIFT: u32 = 8;
const FLAGS_SHIFT: u32 = 12;
const NAMESPACE_SHIFT: u32 = 16;
/// Values of the kind and of the flags.
const NIBBLE: u64 = 0xf;

const _: () = assert!(WORD_KEY + 4 == CELL_HEADER_BYTES, "the header ends with the child count");
const _: () = assert!(LINE_FIRST + 8 * LINE_WORDS == LINE, "an overflow line fills its line");
const _: () = assert!(CELL_HEADER_BYTES < LINE, "the header lies in the first line of a cell");
const _: () = assert!(META >> 16 > CHILDREN && CHILDREN >> 13 == 0, "flags and count are apart");

const _: () = assert!((FLAG_META | FLAGS_FORM) as u64 <= NIBBLE, "flags have four bits");
const _: () = assert!(CellKind::Transaction as u64 <= NIBBLE, "a kind has four bits");
const _: () = assert!(NAMESPACES_MAX <= 1 << 16, "a namespace's number has 16 bits");

const _: () = assert!(FORM_SHIFT == 16 + 13 && FLAG_META & FLAGS_FORM == 0, "form and metadata");

const SHORT: Corruption = Corruption("a record's body is shorter than its key");

/// A cell that does not change while the pin or the lock under which it was found is held.
#[derive(Clone, Copy, Debug)]
pub struct Cell<'m> {
    map: &'m Map,
    at: u64,
    version: u64,
    sizes: u64,
    key: u64,
}

/// A record, and its key with what follows it.
pub(crate) type CellParts<'m> = (Cell<'m>, (&'m [u8], &'m [u8]));

impl<'m> Cell<'m> {
    #[inline]
    pub(crate) fn new(map: &'m Map, at: u64) -> Result<Self, Corruption> {
        let [version, sizes, key] = map.words(at.saturating_add(WORD_VERSION))?;
        Ok(Self {
            map,
            at,
            version: version.load(Ordering::Relaxed),
            sizes: sizes.load(Ordering::Relaxed),
            key: key.load(Ordering::Relaxed),
        })
    }

    /// The cell that begins at a line.
    #[inline]
    pub(crate) fn at_units(map: &'m Map, units: u64) -> Result<Self, Corruption> {
        Ok(Self::with_line(map, units)?.0)
    }

    /// As [`Cell::at_units`], with the first line of the cell.
    #[inline]
    pub(crate) fn with_line(
        map: &'m Map,
        units: u64,
    ) -> Result<(Self, &'m [AtomicU64; 8]), Corruption> {
        let line = map.line(units)?;
        Ok((Self::of_line(map, units, line), line))
    }

    /// As [`Cell::at_units`], given the first line of the cell.
    #[inline]
    pub(crate) fn of_line(
        map: &'m Map,
        units: u64,
        [_, _, _, version, sizes, key, ..]: &[AtomicU64; 8],
    ) -> Self {
        Self {
            map,
            at: units * LINE,
            version: version.load(Ordering::Relaxed),
            sizes: sizes.load(Ordering::Relaxed),
            key: key.load(Ordering::Relaxed),
        }
    }

    /// The record at a line, its key, and what follows the key, if its key has this hash. `None`
    /// also of a damaged one.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every read")]
    pub(crate) fn parts_at(map: &'m Map, units: u64, hash: u64) -> Option<CellParts<'m>> {
        let cell = Self::at_units(map, units).ok()?;
        if cell.hash_low() != hash as u32 {
            return None;
        }
        let (skip, bytes) = if cell.key & NOT_KEY_BYTES == 0 {
            // The usual record owns no cells, and has no metadata and no form.
            (CELL_HEADER_BYTES, cell.body_bytes())
        } else {
            let children = 8 * cell.children();
            (CELL_HEADER_BYTES + children, cell.body_bytes().checked_sub(children)?)
        };
        let bytes = map.bytes_in(units, skip as u32, bytes as u32).ok()?;
        Some((cell, bytes.split_at_checked(cell.key_bytes() as usize)?))
    }

    #[inline]
    pub(crate) const fn map(&self) -> &'m Map {
        self.map
    }

    /// Its last line, counted from its first.
    #[inline]
    pub(crate) const fn last_line(&self) -> u64 {
        (CELL_HEADER_BYTES + self.body_bytes()) / LINE
    }

    /// Offset in the region. It identifies the cell while the cell is pinned.
    #[inline]
    pub const fn at(&self) -> u64 {
        self.at
    }

    #[inline]
    pub(crate) const fn hash_low(&self) -> u32 {
        self.sizes as u32
    }

    #[inline]
    const fn body_bytes(&self) -> u64 {
        self.sizes >> 32
    }

    /// Number of block cells that it owns.
    #[inline]
    pub const fn children(&self) -> u64 {
        self.key >> 16 & CHILDREN
    }

    /// True if metadata follows the value (flag [`FLAG_META`]).
    #[inline]
    pub const fn has_meta(&self) -> bool {
        self.key & META != 0
    }

    /// The form of the record (flags [`FLAGS_FORM`], from 0).
    #[inline]
    pub const fn form(&self) -> u8 {
        (self.key >> FORM_SHIFT) as u8 & 0b11
    }

    #[inline]
    const fn key_bytes(&self) -> u64 {
        self.key & 0xffff
    }

    /// Offset of an owned block cell.
    ///
    /// # Errors
    /// `Corruption`: outside the region.
    #[inline]
    pub fn child(&self, index: u64) -> Result<u64, Corruption> {
        let bytes = self.map.bytes(self.at + CELL_HEADER_BYTES + 8 * index, 8)?;
        let (word, _) =
            bytes.split_first_chunk().ok_or(Corruption("a child offset is cut short"))?;
        Ok(u64::from_le_bytes(*word))
    }

    /// The offsets of all block cells that it owns, as stored.
    ///
    /// # Errors
    /// `Corruption`: outside the region.
    #[inline]
    pub fn children_bytes(&self) -> Result<&'m [u8], Corruption> {
        self.map.bytes(self.at + CELL_HEADER_BYTES, 8 * self.children())
    }

    /// Everything after the header.
    ///
    /// # Errors
    /// `Corruption`: outside the region.
    #[inline]
    pub fn body(&self) -> Result<&'m [u8], Corruption> {
        self.map.bytes(self.at + CELL_HEADER_BYTES, self.body_bytes())
    }

    /// The key.
    ///
    /// # Errors
    /// `Corruption`: outside the region.
    #[inline]
    pub fn key(&self) -> Result<&'m [u8], Corruption> {
        self.map.bytes(self.at + CELL_HEADER_BYTES + 8 * self.children(), self.key_bytes())
    }

    /// The key, and what follows it: as [`Cell::key`] and [`Cell::value`], with half of the checks.
    #[inline]
    pub(crate) fn key_and_value(&self) -> Result<(&'m [u8], &'m [u8]), Corruption> {
        let children = 8 * self.children();
        let rest = self.body_bytes().checked_sub(children).ok_or(SHORT)?;
        let bytes = self.map.bytes(self.at + CELL_HEADER_BYTES + children, rest)?;
        bytes.split_at_checked(self.key_bytes() as usize).ok_or(SHORT)
    }

    /// What follows the key: the value or the block table.
    ///
    /// # Errors
    /// `Corruption`: a body shorter than its key, or outside the region.
    #[inline]
    pub fn value(&self) -> Result<&'m [u8], Corruption> {
        let before = 8 * self.children() + self.key_bytes();
        let bytes = self.body_bytes().checked_sub(before).ok_or(SHORT)?;
        self.map.bytes(self.at + CELL_HEADER_BYTES + before, bytes)
    }

    /// The bytes of a child.
    ///
    /// # Errors
    /// `Corruption`: not a block cell, or outside the region.
    #[inline]
    pub fn block(&self, index: u64) -> Result<&'m [u8], Corruption> {
        let child = Cell::new(self.map, self.child(index)?)?;
        if child.kind()? != CellKind::Block {
            return Err(Corruption("a record owns a cell that is not a block"));
        }
        child.value()
    }

    /// Bytes of the heap that it and the cells that it owns occupy.
    ///
    /// # Errors
    /// `Corruption`: outside the region.
    pub fn taken_bytes(&self) -> Result<u64, Corruption> {
        let mut bytes = class::bytes_of(self.head()? as u8);
        for index in 0..self.children() {
            let child = Self::new(self.map, self.child(index)?)?;
            bytes += class::bytes_of(child.head()? as u8);
        }
        Ok(bytes)
    }

    /// The seed of the hashes of the region.
    ///
    /// # Errors
    /// `Corruption`: the region has no first page.
    #[inline]
    pub fn seed(&self) -> Result<u64, Corruption> {
        Ok(self.map.word(SUPER_SEED)?.load(Ordering::Relaxed))
    }

    /// True if this time has come, in milliseconds of the clock by which the records of the cell's
    /// region expire.
    ///
    /// # Errors
    /// The word of that clock is damaged.
    #[inline]
    pub fn is_past(&self, time_ms: u64) -> Result<bool, Corruption> {
        self.map.is_past(time_ms)
    }

    /// The version of the record.
    #[inline]
    pub const fn version(&self) -> u64 {
        self.version
    }

    #[inline]
    fn head(&self) -> Result<u64, Corruption> {
        Ok(self.map.word(self.at + WORD_HEAD)?.load(Ordering::Relaxed))
    }

    /// False of a cell of which only zeros are left: each allocated cell has a kind.
    pub(crate) fn has_head(&self) -> Result<bool, Corruption> {
        Ok(self.head()? != 0)
    }

    /// The flags of the record format.
    ///
    /// # Errors
    /// `Corruption`: outside the region.
    #[inline]
    pub fn flags(&self) -> Result<u8, Corruption> {
        Ok((self.head()? >> FLAGS_SHIFT & NIBBLE) as u8)
    }

    /// The catalog entry of a record's or block's namespace.
    pub(crate) fn namespace(&self) -> Result<u32, Corruption> {
        Ok(u32::from((self.head()? >> NAMESPACE_SHIFT) as u16))
    }

    /// The kind.
    ///
    /// # Errors
    /// `Corruption`: a kind that does not exist, or outside the region.
    #[inline]
    pub fn kind(&self) -> Result<CellKind, Corruption> {
        kind_of(self.head()?)
    }

    /// True if the bytes are those that were published (checksum).
    ///
    /// # Errors
    /// `Corruption`: outside the region.
    pub fn is_whole(&self) -> Result<bool, Corruption> {
        let head = self.head()?;
        if CELL_HEADER_BYTES + self.body_bytes() > class::bytes_of(head as u8) {
            return Ok(false);
        }
        let crc = if kind_of(head)?.is_changing() {
            0
        } else {
            checksum_of(&[self.map.bytes(self.at + CELL_HEADER_BYTES, self.body_bytes())?])
        };
        Ok(head >> 32 == u64::from(checksum(self.map.words(self.at)?, crc)))
    }
}

/// The kind in a header's first word.
#[inline]
pub(crate) fn kind_of(head: u64) -> Result<CellKind, Corruption> {
    match head >> KIND_SHIFT & NIBBLE {
        0 => Ok(CellKind::Free),
        1 => Ok(CellKind::Record),
        2 => Ok(CellKind::Block),
        3 => Ok(CellKind::OverflowLine),
        4 => Ok(CellKind::Extent),
        5 => Ok(CellKind::Counter),
        6 => Ok(CellKind::Ring),
        7 => Ok(CellKind::Transaction),
        _ => Err(Corruption("a cell of a kind that does not exist")),
    }
}

/// A kind as the first word contains it.
pub(crate) const fn kind_in_head(kind: CellKind) -> u64 {
    (kind as u64) << KIND_SHIFT
}

/// Fills the header of a new cell. The caller writes the body, and [`seal`] the checksum.
#[inline]
pub(crate) fn begin(map: &Map, at: u64, head: &CellHeader) -> Result<(), Corruption> {
    // Sizes can come from a record that is replaced.
    debug_assert!(head.flags & !(FLAG_META | FLAGS_FORM) == 0, "a flag that no reader knows");
    debug_assert!(head.kind != CellKind::Free, "an allocated cell has a kind");
    debug_assert!(head.namespace >> 16 == 0, "the number of a catalog entry has 16 bits");
    let before_value = 8 * u64::from(head.children) + u64::from(head.key);
    if u64::from(head.children) > CHILDREN || before_value > u64::from(head.body) {
        return Err(Corruption("a record's children and key do not fit into its body"));
    }
    // The offset comes from a free list.
    let [first, _, _, version, sizes, key, ..] = map.line_at(at)?;
    let class = first.load(Ordering::Relaxed) & 0xff;
    let flags = u64::from(head.flags) << FLAGS_SHIFT;
    let namespace = u64::from(head.namespace) << NAMESPACE_SHIFT;
    first.store(kind_in_head(head.kind) | class | flags | namespace, Ordering::Relaxed);
    version.store(0, Ordering::Relaxed);
    sizes.store(head.hash & 0xffff_ffff | u64::from(head.body) << 32, Ordering::Relaxed);
    let meta = u64::from(head.flags & FLAG_META) << 31;
    let form = u64::from(head.flags & FLAGS_FORM) << (FORM_SHIFT - 1);
    let children = u64::from(head.children) << 16;
    // The high half is the beginning of the body, which is written later.
    key.store(u64::from(head.key) | children | form | meta, Ordering::Relaxed);
    Ok(())
}

/// Stores version and checksum: the last stores before a cell is published.
#[inline(always)]
#[expect(clippy::inline_always, reason = "the path of every write")]
pub(crate) fn seal(map: &Map, at: u64, version: u64, body_crc: u32) -> Result<(), Corruption> {
    debug_assert!(at.is_multiple_of(LINE), "a cell begins at a line");
    let words @ [head, _, _, its_version, ..] = map.line(at / LINE)?;
    its_version.store(version, Ordering::Relaxed);
    let low = head.load(Ordering::Relaxed) & 0xffff_ffff;
    head.store(low | u64::from(checksum(words, body_crc)) << 32, Ordering::Relaxed);
    Ok(())
}

/// The checksum of the header's fixed part over that of the body.
#[inline(always)]
#[expect(clippy::inline_always, reason = "as above")]
fn checksum(words: &[AtomicU64; 8], body_crc: u32) -> u32 {
    let [head, _, _, version, sizes, key, ..] = words.each_ref();
    let parts = [
        head.load(Ordering::Relaxed) & 0xffff_ffff | key.load(Ordering::Relaxed) << 32,
        version.load(Ordering::Relaxed),
        sizes.load(Ordering::Relaxed),
    ];
    let mut bytes = [0; 24];
    for (to, part) in bytes.chunks_exact_mut(8).zip(parts) {
        to.copy_from_slice(&part.to_le_bytes());
    }
    let sum = xxh3_64_with_seed(&bytes, u64::from(body_crc));
    (sum ^ sum >> 32) as u32
}

/// The checksum of a body in parts: CRC-32.
#[inline(always)]
pub fn checksum_of(parts: &[&[u8]]) -> u32 {
    // The processor's features are looked up once.
    static EMPTY: LazyLock<crc32fast::Hasher> = LazyLock::new(crc32fast::Hasher::new);
    let mut hasher = EMPTY.clone();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize()
}

/// The words of a cell's first line, which contains its header.
#[inline]
pub(crate) fn first_line(map: &Map, at: u64) -> Result<&[AtomicU64; 8], Corruption> {
    map.line_at(at)
}

/// A word of the header.
#[inline]
pub(crate) fn word(map: &Map, at: u64, which: u64) -> Result<&AtomicU64, Corruption> {
    // An offset from a damaged word must not wrap around to the superblock.
    map.word(at.saturating_add(which))
}

/// The class in a header.
#[inline]
pub(crate) fn class_at(map: &Map, at: u64) -> Result<u8, Corruption> {
    Ok(map.word(at + WORD_HEAD)?.load(Ordering::Relaxed) as u8)
}

/// True if the class of a record, a block or a counter is the one for its size. Other cells are not
/// compared.
#[inline]
pub(crate) fn has_class_of_its_size(map: &Map, at: u64) -> Result<bool, Corruption> {
    Ok(has_class_of_size(first_line(map, at)?))
}

/// As [`has_class_of_its_size`], of the cell with this first line.
#[inline(always)]
#[expect(clippy::inline_always, reason = "as above")]
pub(crate) fn has_class_of_size([head, _, _, _, sizes, ..]: &[AtomicU64; 8]) -> bool {
    let head = head.load(Ordering::Relaxed);
    let bytes = CELL_HEADER_BYTES + (sizes.load(Ordering::Relaxed) >> 32);
    // The usual cell. For cells of one size in lines, its class is the number of its last line.
    let last_line = (bytes - 1) / LINE;
    last_line < class::CLASSES_OF_LINES && last_line == head & 0xff || has_other_class(head, bytes)
}

/// As [`has_class_of_size`], of a large cell, or of one whose class is not compared.
#[inline(never)]
fn has_other_class(head: u64, bytes: u64) -> bool {
    !matches!(head >> KIND_SHIFT & NIBBLE, 1 | 2 | 5) || class::class_of(bytes) == Some(head as u8)
}

/// Bytes that the cell occupies in the heap.
///
/// # Errors
/// `Corruption`: a class that does not exist.
#[inline]
pub(crate) fn bytes_at(map: &Map, at: u64) -> Result<u64, Corruption> {
    bytes_of(map, first_line(map, at)?)
}

/// As [`bytes_at`], of the cell with this first line.
#[inline(always)]
#[expect(clippy::inline_always, reason = "as above")]
pub(crate) fn bytes_of(map: &Map, line: &[AtomicU64; 8]) -> Result<u64, Corruption> {
    let [head, ..] = line;
    bytes_of_class(map, head.load(Ordering::Relaxed) as u8, line)
}

/// As [`bytes_of`], given the class in that line.
#[inline(always)]
#[expect(clippy::inline_always, reason = "as above")]
pub(crate) fn bytes_of_class(
    map: &Map,
    class: u8,
    [_, _, _, units, ..]: &[AtomicU64; 8],
) -> Result<u64, Corruption> {
    let bytes = if class == CLASS_EXTENT {
        units.load(Ordering::Relaxed).saturating_mul(LINE)
    } else {
        class::bytes_of(class)
    };
    if bytes == 0 || bytes > map.len() {
        return Err(Corruption("a cell of a class that does not exist"));
    }
    debug_assert!(bytes.is_multiple_of(LINE), "a cell of {bytes} bytes ends inside a line");
    Ok(bytes)
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    /// The first line of a record with this class and body.
    fn line_of(kind: CellKind, class: u8, body: u64) -> [AtomicU64; 8] {
        let line: [AtomicU64; 8] = std::array::from_fn(|_| AtomicU64::new(0));
        line[0].store(u64::from(class) | kind_in_head(kind), Ordering::Relaxed);
        line[4].store(body << 32, Ordering::Relaxed);
        line
    }

    #[test]
    fn a_record_has_the_class_of_its_size_and_no_other_one() {
        for body in (0..5000).chain((1 << 17) - 99..1 << 17) {
            let class = class::class_of(CELL_HEADER_BYTES + body).unwrap();
            for kind in [CellKind::Record, CellKind::Block, CellKind::Counter] {
                assert!(has_class_of_size(&line_of(kind, class, body)), "{body} bytes");
                assert!(!has_class_of_size(&line_of(kind, class + 1, body)), "{body} bytes");
                let flipped = line_of(kind, class ^ 0x80, body);
                assert!(!has_class_of_size(&flipped), "{body} bytes");
            }
            assert!(has_class_of_size(&line_of(CellKind::Transaction, class + 1, body)));
        }
    }
}
