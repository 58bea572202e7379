//! The fields of a hash: of a small one its named blocks, of a large one the elements of its parts.

use nearstate_memory::Cell;
use nearstate_model::invariant;
use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::{
    BLOCK_NAME_BYTES_MAX, BLOCKS_MAX, TRANSACTION_BYTES_MAX, VALUE_BYTES_MAX,
};

use crate::record::collection::{Collection, ElementWalk};
use crate::record::{
    BLOCK_INLINE_MAX, Block, BlockContent, BlockTable, ENTRY, encode, size_of_block,
};

/// The largest flat hash: fields, and bytes of its table with what is inline.
pub(crate) const FLAT_FIELDS_MAX: usize = 128;
pub(crate) const FLAT_BYTES_MAX: usize = 8 << 10;

/// The largest flat hash of a mixed namespace, with the values outside of its table. It becomes
/// divided in one transaction, which holds it and one more value.
pub(crate) const FLAT_VALUES_MAX: usize = 64 << 20;
const _: () = assert!(FLAT_VALUES_MAX + VALUE_BYTES_MAX <= TRANSACTION_BYTES_MAX / 4 * 3);

/// True if a block can have this name.
pub(crate) fn is_block_name(name: &[u8]) -> bool {
    (1..=BLOCK_NAME_BYTES_MAX).contains(&name.len())
        && !name.contains(&0)
        && str::from_utf8(name).is_ok()
}

/// True if a hash of these fields is flat; duplicates may count.
pub(crate) fn is_flat<'f>(fields: impl Iterator<Item = (&'f [u8], &'f [u8])>) -> bool {
    let (mut count, mut bytes, mut values) = (0, 0, 0_usize);
    for (name, value) in fields {
        let inline = if value.len() <= BLOCK_INLINE_MAX { value.len() } else { 0 };
        count += 1;
        bytes += ENTRY + name.len() + inline;
        values = values.saturating_add(value.len());
        let is_small = bytes <= FLAT_BYTES_MAX && values <= FLAT_VALUES_MAX;
        if count > FLAT_FIELDS_MAX || !is_small || !is_block_name(name) {
            return false;
        }
    }
    true
}

/// True if a hash is too large to become divided in one transaction, and can stay flat: an attached
/// process has made it, block by block.
pub(crate) fn is_flat_only<'f>(fields: impl Iterator<Item = (&'f [u8], &'f [u8])>) -> bool {
    let (mut count, mut values) = (0, 0_usize);
    for (name, value) in fields {
        if !is_block_name(name) {
            return false;
        }
        count += 1;
        values = values.saturating_add(name.len() + value.len());
    }
    count <= BLOCKS_MAX && values > TRANSACTION_BYTES_MAX / 4 * 3
}

/// The value of a flat hash all of whose blocks are inline.
pub(crate) fn encode_inline(fields: &[(&str, &[u8])]) -> Vec<u8> {
    encode(&fields.iter().map(|(name, bytes)| inline(name, bytes)).collect::<Vec<_>>())
}

/// The blocks of a table that this process has encoded, all of them inline.
pub(crate) fn each_inline(table: &[u8]) -> impl Iterator<Item = (&str, &[u8])> {
    const OWN: &str = "a table that was just encoded is read";
    let mut table = guaranteed(BlockTable::new(table).ok(), OWN);
    std::iter::from_fn(move || {
        let block = guaranteed(table.next().ok(), OWN)?;
        match block.content {
            BlockContent::Inline(bytes) => Some((block.name, bytes)),
            BlockContent::Child(_) => invariant!("a hash that is put whole has no children"),
        }
    })
}

/// A block that stands in the record's cell.
fn inline<'a>(name: &'a str, bytes: &'a [u8]) -> Block<'a> {
    Block { name, content: BlockContent::Inline(bytes), bytes: size_of_block(bytes) }
}

/// The fields of a hash, as pairs of name and value: of a small hash in the order in which they
/// were first set, of a large one in the order of their hashes.
#[derive(Clone, Debug, Default)]
pub struct Fields<'v>(Source<'v>);

#[derive(Clone, Debug, Default)]
enum Source<'v> {
    #[default]
    None,
    Flat(Option<Cell<'v>>, BlockTable<'v>),
    Divided(Collection<'v>, Box<ElementWalk<'v>>),
}

impl<'v> Fields<'v> {
    pub(crate) const fn flat(cell: Option<Cell<'v>>, table: BlockTable<'v>) -> Self {
        Self(Source::Flat(cell, table))
    }

    pub(crate) fn divided(collection: Collection<'v>) -> Self {
        Self(Source::Divided(collection, Box::new(collection.walk_from(0))))
    }

    /// The number of fields; of a small hash, of those that were not passed.
    pub fn len(&self) -> usize {
        match &self.0 {
            Source::None => 0,
            Source::Flat(_, table) => table.len(),
            Source::Divided(collection, _) => collection.len(),
        }
    }

    /// True if there are no fields.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of a field. Linear in the fields of a small hash, logarithmic in those of a large
    /// one.
    pub fn get(&self, name: &[u8]) -> Option<&'v [u8]> {
        match &self.0 {
            Source::None => None,
            Source::Flat(..) => {
                self.clone().find(|(known, _)| *known == name).map(|(_, value)| value)
            }
            Source::Divided(collection, _) => collection.find(name).map(|element| element.value),
        }
    }

    /// The fields at these indices (from 0, in the order of the iterator), in the order of the
    /// indices. Complexity: linear in the indices, and in the fields of a small hash or the parts
    /// of a large one.
    pub fn select(&self, indices: &[usize]) -> Vec<(&'v [u8], &'v [u8])> {
        match &self.0 {
            Source::None => Vec::new(),
            Source::Flat(..) => {
                let all: Vec<_> = self.clone().collect();
                // A caller may name more fields than there are.
                indices.iter().filter_map(|index| all.get(*index).copied()).collect()
            }
            Source::Divided(collection, _) => {
                let found = collection.select(indices).into_iter();
                found.map(|element| (element.name, element.value)).collect()
            }
        }
    }

    /// Calls `each` with some fields from a cursor on, as [`Members::scan_from`].
    ///
    /// [`Members::scan_from`]: crate::Members::scan_from
    pub fn scan_from(
        &self,
        cursor: u64,
        count: u64,
        mut each: impl FnMut(&'v [u8], &'v [u8]),
    ) -> u64 {
        match &self.0 {
            Source::None => 0,
            Source::Flat(..) => {
                self.clone().for_each(|(name, value)| each(name, value));
                0
            }
            Source::Divided(collection, _) => {
                collection.scan(cursor, count, |element| each(element.name, element.value))
            }
        }
    }
}

impl<'v> Iterator for Fields<'v> {
    type Item = (&'v [u8], &'v [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Source::None => None,
            Source::Flat(cell, table) => {
                let block = table.step().ok()??;
                let bytes = match block.content {
                    BlockContent::Inline(bytes) => Some(bytes),
                    BlockContent::Child(child) => (*cell)?.block(child).ok(),
                };
                bytes.map(|bytes| (block.name, bytes))
            }
            Source::Divided(_, walk) => walk.next().map(|element| (element.name, element.value)),
        }
    }
}
