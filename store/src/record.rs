//! The encoding of a record's value in its cell.
//!
//! A namespace of kind *value*: the value is one unnamed block, the bytes as given.
//!
//! A namespace of kind *blocks*: a table of named blocks, so that a procedure changes a few of them
//! and the others are neither copied nor touched. Small blocks stand in the record's cell; a larger
//! one has a cell of its own, which the next versions of the record share until it changes.
//!
//! A namespace of kind *mixed*: each record says what it is (its form, flags of its cell): a value,
//! a table of named blocks, or a set of members (`members.rs`).
//!
//! A namespace of kind *counters*: no value, and one child, which holds the counter's stripes.
//!
//! ```text
//! count u32 | count x { name bytes u8, location u8, child u16, bytes u32 } | names | inline blocks
//! ```

pub(crate) mod view;
pub mod meta;
pub(crate) mod fields;
pub(crate) mod members;
pub(crate) mod edit;
pub(crate) mod builder;
pub(crate) mod collection;
pub(crate) mod parts;
pub(crate) mod layout;
pub(crate) mod splice;

use nearstate_memory::{Cell, Corruption, FLAG_META};
use nearstate_model::invariant;
use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::{BLOCK_NAME_BYTES_MAX, BLOCKS_MAX};

/// Blocks up to this size stand in the record's cell. Copying 512 bytes costs less than the miss of
/// another cell; a larger block costs more to copy with every change of another. A hash that is put
/// whole may have larger ones there (`txn/whole_hash.rs`).
pub(crate) const BLOCK_INLINE_MAX: usize = 512;

/// Bytes of a block's entry in the table.
pub(crate) const ENTRY: usize = 8;
const _: () = assert!(ENTRY == 1 + 1 + 2 + 4, "name bytes, location, child, bytes");
const _: () = assert!(BLOCK_INLINE_MAX <= u32::MAX as usize, "an entry counts in 32 bits");
pub(crate) const NO_TEXT: Corruption = Corruption("a block's name is not UTF-8");
pub(crate) const BAD_LOCATION: Corruption =
    Corruption("a block has a location that does not exist");
pub(crate) const CUT: Corruption = Corruption("a record's block table is cut short");

/// The kind of a namespace: the form of its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// One unnamed block: a value (SDL, RESP strings).
    #[default]
    Value,
    /// Named blocks (TS 29.598, RESP hashes, UE contexts).
    Blocks,
    /// Numbers that many add to at once ([`Session::add`](crate::Session::add)). They have no tags
    /// and no expiry, make no events, and are no part of a transaction.
    Counters,
    /// Values, named blocks and sets: each record has a [`Form`] of its own, and
    /// may be replaced by one of another. What a server for Redis' clients needs.
    Mixed,
}

/// The form of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// One unnamed block.
    #[default]
    Value,
    /// Named blocks.
    Blocks,
    /// A set of members, each of them bytes.
    Set,
}

impl Form {
    /// The form of a record in a namespace of this kind.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "four kinds, and two bits of a cell")]
    pub(crate) const fn of(kind: Kind, cell: &Cell<'_>) -> Self {
        /// By the kind and the form in the cell: a `match` would become a jump table.
        const FORMS: [[Form; 4]; 4] = [
            [Form::Value; 4],
            [Form::Blocks; 4],
            [Form::Value; 4],
            [Form::Value, Form::Blocks, Form::Set, Form::Value],
        ];
        FORMS[kind as usize][cell.form() as usize & 3]
    }

    /// As [`Form::of`], by the code of the kind as the region has it.
    pub(crate) fn of_record(kind: u64, cell: &Cell<'_>) -> Self {
        Self::of(Kind::of(kind).unwrap_or_default(), cell)
    }

    /// The encoding in the flags of a cell.
    pub(crate) const fn flags(self) -> u8 {
        match self {
            Self::Value => 0,
            Self::Blocks => 1 << 1,
            Self::Set => 2 << 1,
        }
    }

    /// The form in the flags of a cell, if they are valid.
    pub(crate) const fn of_flags(flags: u8) -> Option<Self> {
        match flags >> 1 {
            0 => Some(Self::Value),
            1 => Some(Self::Blocks),
            2 => Some(Self::Set),
            _ => None,
        }
    }

    /// Its name in messages.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Value => "one unnamed block",
            Self::Blocks => "named blocks",
            Self::Set => "a set of members",
        }
    }
}

impl Kind {
    /// True if a namespace of this kind may have records of this form.
    #[inline]
    pub(crate) const fn has(self, form: Form) -> bool {
        matches!(
            (self, form),
            (Self::Mixed, _) | (Self::Value, Form::Value) | (Self::Blocks, Form::Blocks)
        )
    }

    pub(crate) const fn code(self) -> u64 {
        match self {
            Self::Value => 1,
            Self::Blocks => 2,
            Self::Counters => 3,
            Self::Mixed => 4,
        }
    }

    pub(crate) const fn of(code: u64) -> Option<Self> {
        match code {
            1 => Some(Self::Value),
            2 => Some(Self::Blocks),
            3 => Some(Self::Counters),
            4 => Some(Self::Mixed),
            _ => None,
        }
    }
}

/// The bytes of a block, or where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockContent<'a> {
    /// In the record's cell.
    Inline(&'a [u8]),
    /// In the record's child with this number.
    Child(u64),
}

/// A block as a record has it; its name is text, or its bytes where they are only compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block<'a, Name = &'a str> {
    pub(crate) name: Name,
    pub(crate) content: BlockContent<'a>,
    pub(crate) bytes: u32,
}

/// A change of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockChange<'a> {
    /// Name, 1 to 255 bytes.
    pub name: &'a str,
    /// The new bytes, or `None` to take the block away.
    pub bytes: Option<&'a [u8]>,
}

/// Reads a block table. Total: any bytes give blocks or an error.
#[derive(Clone, Debug)]
pub(crate) struct BlockTable<'a> {
    entries: &'a [u8],
    names: &'a [u8],
    inline: &'a [u8],
}

impl<'a> BlockTable<'a> {
    pub(crate) fn new(value: &'a [u8]) -> Result<Self, Corruption> {
        if value.is_empty() {
            return Ok(Self { entries: &[], names: &[], inline: &[] });
        }
        let (count, rest) = value.split_first_chunk::<4>().ok_or(CUT)?;
        let count = u32::from_le_bytes(*count) as usize;
        let (entries, rest) =
            rest.split_at_checked(count.checked_mul(ENTRY).ok_or(CUT)?).ok_or(CUT)?;
        let names_bytes =
            entries.chunks_exact(ENTRY).filter_map(|e| e.first()).map(|b| usize::from(*b)).sum();
        let (names, inline) = rest.split_at_checked(names_bytes).ok_or(CUT)?;
        Ok(Self { entries, names, inline })
    }

    /// The number of blocks that are left.
    pub(crate) const fn len(&self) -> usize {
        self.entries.len() / ENTRY
    }

    /// The next block, if there is one.
    pub(crate) fn next(&mut self) -> Result<Option<Block<'a>>, Corruption> {
        let Some(Block { name, content, bytes }) = self.step()? else { return Ok(None) };
        let name = str::from_utf8(name).map_err(|_| NO_TEXT)?;
        Ok(Some(Block { name, content, bytes }))
    }

    /// As [`BlockTable::next`], without checking that the name is UTF-8.
    #[inline]
    pub(crate) fn step(&mut self) -> Result<Option<Block<'a, &'a [u8]>>, Corruption> {
        let Some((entry, entries)) = self.entries.split_first_chunk::<ENTRY>() else {
            return Ok(None);
        };
        let [name_bytes, location, c0, c1, b0, b1, b2, b3] = *entry;
        let bytes = u32::from_le_bytes([b0, b1, b2, b3]);
        let (name, names) = self.names.split_at_checked(usize::from(name_bytes)).ok_or(CUT)?;
        let content = match location {
            0 => {
                let (inline, rest) = self.inline.split_at_checked(bytes as usize).ok_or(CUT)?;
                self.inline = rest;
                BlockContent::Inline(inline)
            }
            1 => BlockContent::Child(u64::from(u16::from_le_bytes([c0, c1]))),
            _ => return Err(BAD_LOCATION),
        };
        (self.entries, self.names) = (entries, names);
        Ok(Some(Block { name, content, bytes }))
    }
}

/// Equality of two names. They are short: two loads that overlap compare up to 16 bytes, where a
/// call of `memcmp` would cost as much as the rest of a step.
#[inline]
pub(crate) fn is_name(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    match one.len() {
        8..=16 => {
            one.first_chunk::<8>() == other.first_chunk::<8>()
                && one.last_chunk::<8>() == other.last_chunk::<8>()
        }
        4..=7 => {
            one.first_chunk::<4>() == other.first_chunk::<4>()
                && one.last_chunk::<4>() == other.last_chunk::<4>()
        }
        _ => one == other,
    }
}

/// The size of a block, as its table has it.
#[inline]
pub(crate) fn size_of_block(bytes: &[u8]) -> u32 {
    guaranteed(u32::try_from(bytes.len()).ok(), "a block is at most VALUE_BYTES_MAX bytes")
}

/// Encodes a block table.
///
/// Its callers have checked all limits: what is encoded here reads back as it was.
pub(crate) fn encode(blocks: &[Block<'_>]) -> Vec<u8> {
    let inline = |block: &Block<'_>| match block.content {
        BlockContent::Inline(bytes) => bytes.len(),
        BlockContent::Child(_) => 0,
    };
    let bytes: usize = blocks.iter().map(|block| ENTRY + block.name.len() + inline(block)).sum();
    let mut out = Vec::with_capacity(4 + bytes);
    invariant!(blocks.len() <= BLOCKS_MAX, "a table of {} blocks", blocks.len());
    let count = guaranteed(u32::try_from(blocks.len()).ok(), "BLOCKS_MAX fits into 32 bits");
    out.extend_from_slice(&count.to_le_bytes());
    for block in blocks {
        // The name may come from a damaged table, and be empty: new names are checked by callers.
        let name = u8::try_from(block.name.len()).ok();
        let (location, child) = match block.content {
            BlockContent::Inline(bytes) => {
                invariant!(bytes.len() == block.bytes as usize, "block {:?}: its size", block.name);
                (0, 0)
            }
            BlockContent::Child(child) => {
                let child = u16::try_from(child).ok();
                (1, guaranteed(child, "a record has at most BLOCKS_MAX children"))
            }
        };
        out.push(guaranteed(name, "a block's name has at most BLOCK_NAME_BYTES_MAX bytes"));
        out.push(location);
        out.extend_from_slice(&child.to_le_bytes());
        out.extend_from_slice(&block.bytes.to_le_bytes());
    }
    for block in blocks {
        out.extend_from_slice(block.name.as_bytes());
    }
    for block in blocks {
        if let BlockContent::Inline(bytes) = block.content {
            out.extend_from_slice(bytes);
        }
    }
    invariant!(out.capacity() >= 4 + bytes, "a table of {bytes} bytes is reserved at once");
    invariant!(out.len() == 4 + bytes, "a table of {bytes} bytes became {}", out.len() - 4);
    out
}

const _: () = assert!(BLOCK_NAME_BYTES_MAX <= u8::MAX as usize, "a table counts names in 8 bits");
const _: () = {
    let mut forms = [Form::Value, Form::Blocks, Form::Set].as_slice();
    while let [form, rest @ ..] = forms {
        assert!(form.flags() & FLAG_META == 0, "a form leaves the flag of metadata alone");
        let read = Form::of_flags(form.flags());
        assert!(matches!(read, Some(read) if read as u8 == *form as u8), "a form reads back");
        forms = rest;
    }
    let mut kinds = [Kind::Value, Kind::Blocks, Kind::Counters, Kind::Mixed].as_slice();
    while let [kind, rest @ ..] = kinds {
        let read = Kind::of(kind.code());
        assert!(matches!(read, Some(read) if read as u8 == *kind as u8), "a kind reads back");
        kinds = rest;
    }
};
const _: () = assert!(BLOCKS_MAX <= u16::MAX as usize, "a table counts children in 16 bits");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_block_table_reads_back_as_it_was_written(
            parts in prop::collection::vec(
                ("[a-z]{1,20}", prop::collection::vec(any::<u8>(), 0..40)), 0..20)
        ) {
            let blocks: Vec<Block<'_>> = parts
                .iter()
                .map(|(name, bytes)| Block {
                    name: name.as_str(),
                    content: BlockContent::Inline(bytes),
                    bytes: u32::try_from(bytes.len()).unwrap(),
                })
                .collect();
            let bytes = encode(&blocks);
            let mut table = BlockTable::new(&bytes).unwrap();
            for block in &blocks {
                prop_assert_eq!(table.next().unwrap(), Some(*block));
            }
            prop_assert_eq!(table.next().unwrap(), None);
        }

        #[test]
        fn names_are_equal_as_their_bytes_are(one in "[ab]{0,20}", other in "[ab]{0,20}") {
            prop_assert_eq!(is_name(one.as_bytes(), other.as_bytes()), one == other);
            let mut almost = one.clone().into_bytes();
            for at in 0..almost.len() {
                almost[at] ^= 1;
                prop_assert!(!is_name(one.as_bytes(), &almost));
                almost[at] ^= 1;
            }
            prop_assert!(is_name(one.as_bytes(), &almost));
        }

        #[test]
        fn any_bytes_are_blocks_or_damage_and_never_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200)
        ) {
            if let Ok(mut table) = BlockTable::new(&bytes) {
                while let Ok(Some(_)) = table.next() {}
            }
        }
    }
}
