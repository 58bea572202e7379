//! Drafts of divided collections: cells for the parts that a transaction has changed, and the
//! record with the table of all parts.

use nearstate_memory::{Cell, CellHeader, CellKind, PendingCell, ReadToken};
use nearstate_model::{Error, Result, invariant};

use crate::record::builder::CollectionBuilder;
use crate::record::collection::{PartTable, is_divided};
use crate::record::edit::{BAD_COUNT, CollectionEdit, StoredParts};
use crate::record::fields::{self, encode_inline, is_block_name};
use crate::record::members;
use crate::record::meta::split;
use crate::record::parts::{Part, Shape};
use crate::record::{BLOCK_INLINE_MAX, Form};
use crate::session::buffers::ElementsWrite;
use crate::session::{KeyLookup, Session};

/// At or below these sizes a divided collection becomes flat. They are half of those of the other
/// direction, so that no sequence of small changes converts each time.
const FLAT_AGAIN_MAX: usize = 64;
const FLAT_AGAIN_BYTES_MAX: usize = 2 << 10;
const _: () = assert!(FLAT_AGAIN_MAX * 2 <= members::FLAT_MEMBERS_MAX);
const _: () = assert!(FLAT_AGAIN_MAX * 2 <= fields::FLAT_FIELDS_MAX);
const _: () = assert!(FLAT_AGAIN_BYTES_MAX * 2 <= members::FLAT_BYTES_MAX);

/// The parts of a stored collection; none without one.
pub(crate) fn stored_parts(cell: Option<Cell<'_>>) -> Result<StoredParts<'_>> {
    let Some(cell) = cell else { return Ok(StoredParts::default()) };
    let value = split(cell, cell.value()?)?.0;
    Ok(StoredParts { cell: Some(cell), table: PartTable::parse(value)? })
}

impl Session {
    /// An empty set or hash that is built in steps, for [`Txn::put_built`](crate::Txn::put_built).
    ///
    /// # Errors
    /// `BadArgument`: a value is no collection.
    pub fn collection_builder(&self, form: Form) -> Result<CollectionBuilder> {
        match form {
            Form::Set | Form::Blocks => {
                Ok(CollectionBuilder::new(shape_of(form), self.member.seed()))
            }
            Form::Value => {
                let detail = "a value is no collection: build a set or a hash".to_owned();
                Err(Error::BadArgument { detail })
            }
        }
    }

    /// A draft of a collection with its changes. `meta` follows the value; `None` keeps that of the
    /// stored version.
    pub(crate) fn draft_elements(
        &self,
        lookup: KeyLookup<'_>,
        (elements, seen): (&ElementsWrite, Option<ReadToken>),
        meta: Option<&[u8]>,
    ) -> Result<PendingCell> {
        let seen = seen.filter(|_| !elements.is_anew);
        let old = seen.map(|seen| self.stored(seen)).transpose()?.flatten().map(|(cell, _)| cell);
        let edit = &elements.edit;
        let kept = match old {
            Some(cell) => split(cell, cell.value()?)?.1,
            None => &[],
        };
        let meta = meta.unwrap_or(kept);
        if let Some(value) = flat_again(edit)? {
            return self.draft(lookup, &[], &value, meta);
        }
        let (children, value) =
            edit.record(stored_parts(old)?, |part| self.part_cell(lookup, part))?;
        invariant!(is_divided(&value), "the table of a divided collection");
        self.draft(lookup, &children, &value, meta)
    }

    /// A cell for a part of a collection.
    fn part_cell(&self, lookup: KeyLookup<'_>, part: &[u8]) -> Result<u64> {
        let body =
            u32::try_from(part.len()).map_err(|_| Error::ValueTooLarge { bytes: part.len() })?;
        let head = CellHeader {
            kind: CellKind::Block,
            flags: 0,
            namespace: lookup.table.index(),
            body,
            key: 0,
            children: 0,
            hash: lookup.hash,
        };
        let cell = self.member.fill_cell(&head, &[part], None)?;
        self.member.seal_block(cell.at, cell.body_crc)?;
        Ok(cell.at)
    }
}

/// The value of a flat collection, if a divided one has become small.
fn flat_again(edit: &CollectionEdit) -> Result<Option<Vec<u8>>> {
    let Some(part) = edit.single_part() else { return Ok(None) };
    if edit.elements > FLAT_AGAIN_MAX as u64 || part.len() > FLAT_AGAIN_BYTES_MAX {
        return Ok(None);
    }
    let part = Part::parse(edit.shape, part)?;
    let elements: Vec<_> = (0..part.len()).map_while(|index| part.element(index)).collect();
    if elements.len() != part.len() || elements.len() as u64 != edit.elements {
        return Err(BAD_COUNT.into());
    }
    if edit.shape == Shape::Set {
        let members: Vec<&[u8]> = elements.iter().map(|element| element.name).collect();
        return members::encode(&members).map(Some);
    }
    let mut pairs = Vec::with_capacity(part.len());
    for element in elements {
        match str::from_utf8(element.name) {
            Ok(name) if is_block_name(element.name) && element.value.len() <= BLOCK_INLINE_MAX => {
                pairs.push((name, element.value));
            }
            _ => return Ok(None),
        }
    }
    Ok(Some(encode_inline(&pairs)))
}

pub(super) const fn shape_of(form: Form) -> Shape {
    match form {
        Form::Set => Shape::Set,
        Form::Blocks | Form::Value => Shape::Hash,
    }
}
