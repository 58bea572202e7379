//! The names of the blocks that a program uses, and their locations in the last record.
//!
//! Records of one kind usually have the same layout: the same names in the same order, mostly with
//! the same sizes. Therefore the head of a block table (its count, entries and names) is cached
//! with the location of each block. The next record with the same head needs one comparison instead
//! of a walk and a comparison of each name.

use std::cell::{Ref, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

use nearstate_memory::Cell;
use nearstate_model::limits::{BLOCK_NAME_BYTES_MAX, BLOCKS_MAX};
use nearstate_model::{Error, Result, invariant};

use crate::record::splice::{ENTRY_BYTES, SIZE_IN_ENTRY, Span, Splice};
use crate::record::{Block, BlockContent, BlockTable};

/// The longest head that is cached. The comparison of a longer one costs as much as the walk.
const HEAD_BYTES_MAX: usize = 1024;
const _: () = assert!(HEAD_BYTES_MAX > 4 + ENTRY_BYTES as usize, "a head of one block is cached");
const _: () = assert!(BLOCK_NAME_BYTES_MAX <= u8::MAX as usize, "an entry counts names in 8 bits");

/// The names of blocks that a program reads and changes. It caches the layout of the last record,
/// so use one for each kind of record and each session. `Send`, not `Sync`.
#[derive(Clone, Debug)]
pub struct BlockLayout {
    names: Vec<String>,
    layout: RefCell<Layout>,
    /// Consecutive tables with another layout.
    misses: std::cell::Cell<u32>,
}

/// The layout of a record.
#[derive(Clone, Debug, Default)]
struct Layout {
    /// Unique among the layouts that were cached in this process; 0: none is cached.
    number: u64,
    /// The first bytes of its table.
    head: Vec<u8>,
    /// Bytes of the table.
    bytes: usize,
    /// The number of children of the record.
    children: u64,
    /// The location of the block of each name, if the record had one.
    locations: Vec<Option<BlockLocation>>,
}

/// The location of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockLocation {
    /// In the table.
    Inline(Span),
    /// In the record's child with this number.
    Child(u64),
}

/// A table of blocks in a record's cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordBlocks<'v, 'k> {
    /// The cell.
    pub(crate) cell: Cell<'v>,
    /// The table.
    pub(crate) table: &'v [u8],
    /// The number of its layout, 0 if it is not known.
    pub(crate) known: &'k std::cell::Cell<u64>,
}

/// The number of the last layout that was cached.
static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

/// If the layouts of records vary, only one in `LEARN_EVERY` is cached after the first
/// `MISSES_LEARNT`: caching costs as much as a few walks.
const MISSES_LEARNT: u32 = 4;
const LEARN_EVERY: u32 = 64;

/// The refusal of a list in which a block is named twice.
#[cold]
pub(crate) fn named_twice(name: &str) -> Error {
    let detail = format!("block {name:?} is named twice: name each block once");
    Error::BadArgument { detail }
}

impl BlockLayout {
    /// A layout of these names. Calls refer to them by index.
    ///
    /// # Errors
    /// `BadName` (empty, above 255 bytes, or with a NUL), `TooManyBlocks`; `BadArgument`: a name
    /// twice.
    pub fn new(names: &[&str]) -> Result<Self> {
        if names.len() > BLOCKS_MAX {
            return Err(Error::TooManyBlocks { blocks: names.len() });
        }
        for (index, name) in names.iter().enumerate() {
            let is_twice = names.iter().take(index).any(|known| known == name);
            let is_bad = name.is_empty() || name.len() > BLOCK_NAME_BYTES_MAX;
            if is_bad || name.contains('\0') {
                return Err(Error::BadName { bytes: name.len() });
            }
            if is_twice {
                return Err(named_twice(name));
            }
        }
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Ok(Self { names, layout: RefCell::default(), misses: std::cell::Cell::new(0) })
    }

    /// The number of names.
    #[inline]
    pub const fn len(&self) -> usize {
        self.names.len()
    }

    /// True if there are no names.
    pub const fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The name with this index.
    #[inline]
    pub fn name(&self, index: usize) -> Option<&str> {
        self.names.get(index).map(String::as_str)
    }

    /// The index of a name.
    pub(crate) fn index_of(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| known == name)
    }

    /// The layout of a table; `None` if it is too long, damaged, or not worth caching.
    #[inline]
    fn of(&self, of: RecordBlocks<'_, '_>) -> Option<Ref<'_, Layout>> {
        let layout = self.layout.try_borrow().ok()?;
        if layout.number != 0 {
            if layout.number == of.known.get() {
                return Some(layout);
            }
            if of.table.len() == layout.bytes
                && of.cell.children() == layout.children
                && of.table.starts_with(&layout.head)
            {
                of.known.set(layout.number);
                self.misses.set(0);
                return Some(layout);
            }
        }
        drop(layout);
        self.learn(of)
    }

    #[cold]
    fn learn(&self, of: RecordBlocks<'_, '_>) -> Option<Ref<'_, Layout>> {
        let misses = self.misses.get().wrapping_add(1);
        self.misses.set(misses);
        if misses > MISSES_LEARNT && !misses.is_multiple_of(LEARN_EVERY) {
            return None;
        }
        {
            let mut layout = self.layout.try_borrow_mut().ok()?;
            layout.number = 0;
            layout.locations.clear();
            layout.locations.resize(self.names.len(), None);
            (layout.bytes, layout.children) = (of.table.len(), of.cell.children());
            let head_bytes = head_of(of.table)?;
            layout.head.clear();
            layout.head.extend_from_slice(of.table.get(..head_bytes)?);
            let Layout { children, locations, .. } = &mut *layout;
            let is_whole = walk(of.table, head_bytes, *children, |name, location| {
                if let Some(slot) = self.index_of(name).and_then(|index| locations.get_mut(index)) {
                    *slot = Some(location);
                }
            });
            if !is_whole {
                return None;
            }
            invariant!(layout.locations.len() == self.names.len(), "each name has an entry");
            invariant!(layout.head.len() <= layout.bytes, "a table begins with its head");
            layout.number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
            of.known.set(layout.number);
        }
        self.layout.try_borrow().ok()
    }

    /// Calls `each` with the wanted blocks of a table and the indices of their names. False if the
    /// table must be walked: then `each` was not called.
    #[inline]
    pub(crate) fn each<'v>(
        &self,
        of: RecordBlocks<'v, '_>,
        wanted: impl Fn(usize) -> bool,
        mut each: impl FnMut(usize, &'v [u8]),
    ) -> bool {
        let Some(layout) = self.of(of) else { return false };
        debug_assert!(layout.locations.len() == self.names.len(), "each name has an entry");
        for (index, location) in layout.locations.iter().enumerate() {
            let bytes = match location {
                Some(BlockLocation::Inline(span)) if wanted(index) => span.of(of.table),
                Some(BlockLocation::Child(child)) if wanted(index) => of.cell.block(*child).ok(),
                _ => None,
            };
            if let Some(bytes) = bytes {
                each(index, bytes);
            }
        }
        true
    }

    /// Adds these changes to an empty splice; false if they change the layout of the table.
    #[inline]
    pub(crate) fn splice<'a>(
        &self,
        of: RecordBlocks<'_, '_>,
        changes: &[(usize, &'a [u8])],
        splice: &mut Splice<'a>,
    ) -> bool {
        let Some(layout) = self.of(of) else { return false };
        invariant!(layout.number != 0, "a splice follows a cached layout");
        changes.iter().all(|(index, new)| match layout.locations.get(*index) {
            Some(Some(BlockLocation::Inline(span))) => splice.add(*span, new),
            Some(Some(BlockLocation::Child(_)) | None) | None => false,
        })
    }
}

/// Bytes of a table before its inline blocks.
fn head_of(table: &[u8]) -> Option<usize> {
    let (count, rest) = table.split_first_chunk::<4>()?;
    let entries = (u32::from_le_bytes(*count) as usize).checked_mul(ENTRY_BYTES as usize)?;
    let names: usize = rest
        .get(..entries)?
        .chunks_exact(ENTRY_BYTES as usize)
        .filter_map(|entry| entry.first())
        .map(|bytes| usize::from(*bytes))
        .sum();
    Some(4 + entries + names).filter(|bytes| *bytes <= HEAD_BYTES_MAX && *bytes <= table.len())
}

/// Calls `each` with the location of each block of a table. False if a block is damaged, or if
/// bytes follow the last one.
fn walk(
    table: &[u8],
    head_bytes: usize,
    children: u64,
    mut each: impl FnMut(&str, BlockLocation),
) -> bool {
    invariant!(
        (4..=HEAD_BYTES_MAX).contains(&head_bytes) && head_bytes <= table.len(),
        "a head of {head_bytes} bytes in a table of {}",
        table.len()
    );
    let (Ok(mut blocks), Ok(mut from)) = (BlockTable::new(table), u32::try_from(head_bytes)) else {
        return false;
    };
    let mut size_at = 4 + SIZE_IN_ENTRY;
    loop {
        match blocks.next() {
            Ok(Some(Block { name, content: BlockContent::Inline(_), bytes })) => {
                let Some(to) = from.checked_add(bytes) else { return false };
                each(name, BlockLocation::Inline(Span { from, to, size_at }));
                from = to;
            }
            Ok(Some(Block { name, content: BlockContent::Child(child), .. }))
                if child < children =>
            {
                each(name, BlockLocation::Child(child));
            }
            Ok(None) => return from as usize == table.len(),
            Ok(Some(_)) | Err(_) => return false,
        }
        size_at += ENTRY_BYTES;
    }
}
